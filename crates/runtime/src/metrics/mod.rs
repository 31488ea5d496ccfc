//! What is counted and timed, under the names that controller-runtime uses, so that its dashboards and alerts work.

mod requests;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use moorline_queue::{Observer, Priority};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::Histogram,
    },
    registry::Registry,
};

pub(crate) use self::requests::{Requests, Sent};

/// The metrics of a process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    gauges: Arc<Mutex<Vec<Gauging>>>,
    reconciles: Family<Reconciled, Counter>,
    errors: Family<OfController, Counter>,
    terminal_errors: Family<OfController, Counter>,
    panics: Family<OfController, Counter>,
    timeouts: Family<OfController, Counter>,
    reconcile_time: Family<OfController, Histogram, Buckets>,
    workers: Family<OfController, Gauge>,
    most_workers: Family<OfController, Gauge>,
    gate: Family<Gated, Counter>,
    pub(crate) leading: Family<Named, Gauge>,
    pub(crate) slow_renewals: Family<Named, Counter>,
    pub(crate) requests: Requests,
    depth: Family<OfQueue, Gauge>,
    adds: Family<OfName, Counter>,
    retries: Family<OfName, Counter>,
    queue_time: Family<OfName, Histogram, Buckets>,
    work_time: Family<OfName, Histogram, Buckets>,
    unfinished: Family<OfName, Gauge<f64, AtomicU64>>,
    longest: Family<OfName, Gauge<f64, AtomicU64>>,
}

/// Brings gauges up to date; whether there is still something to gauge.
type Gauging = Box<dyn Fn() -> bool + Send + Sync>;

/// Labels: the controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfController {
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconciled {
    controller: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Gated {
    controller: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Named {
    pub(crate) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfName {
    name: String,
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQueue {
    name: String,
    controller: String,
    priority: i64,
}

/// controller-runtime's, and finer ones below: from 10 µs to three minutes.
const RECONCILE_SECONDS: &[f64] = &[
    1e-5, 1e-4, 1e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0, 180.0,
];
/// As controller-runtime's queues have them: a key may well wait for a quarter of an hour.
const QUEUE_SECONDS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0];

#[derive(Clone, Copy)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new() -> Self {
        let metrics = Self {
            registry: Arc::default(),
            gauges: Arc::default(),
            reconciles: Family::default(),
            errors: Family::default(),
            terminal_errors: Family::default(),
            panics: Family::default(),
            timeouts: Family::default(),
            reconcile_time: Family::new_with_constructor(Buckets(RECONCILE_SECONDS)),
            workers: Family::default(),
            most_workers: Family::default(),
            gate: Family::default(),
            leading: Family::default(),
            slow_renewals: Family::default(),
            requests: Requests::new(),
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            queue_time: Family::new_with_constructor(Buckets(QUEUE_SECONDS)),
            work_time: Family::new_with_constructor(Buckets(QUEUE_SECONDS)),
            unfinished: Family::default(),
            longest: Family::default(),
        };
        metrics.with_registry(|registry| {
            let m = &metrics;
            let reconcile = "controller_runtime_reconcile";
            // The encoder adds `_total` to counters.
            registry.register(reconcile, "Reconciles, by result", m.reconciles.clone());
            registry.register(
                format!("{reconcile}_errors"),
                "Reconciles that failed",
                m.errors.clone(),
            );
            registry.register(
                "controller_runtime_terminal_reconcile_errors",
                "Reconciles that failed and are not tried again",
                m.terminal_errors.clone(),
            );
            registry.register(
                format!("{reconcile}_panics"),
                "Reconciles that panicked",
                m.panics.clone(),
            );
            registry.register(
                format!("{reconcile}_timeouts"),
                "Reconciles that took too long",
                m.timeouts.clone(),
            );
            registry.register(
                format!("{reconcile}_time_seconds"),
                "Time of a reconcile",
                m.reconcile_time.clone(),
            );
            registry.register(
                "controller_runtime_active_workers",
                "Workers at work",
                m.workers.clone(),
            );
            registry.register(
                "controller_runtime_max_concurrent_reconciles",
                "Most workers at work",
                m.most_workers.clone(),
            );
            registry.register(
                "moorline_read_your_writes",
                "Waits for the cache to see what was written, by result",
                m.gate.clone(),
            );
            registry.register(
                "leader_election_master_status",
                "1 while this process leads",
                m.leading.clone(),
            );
            registry.register(
                "leader_election_slowpath",
                "Renewals of the lease that had to read it first",
                m.slow_renewals.clone(),
            );
            m.requests.register(registry);
            registry.register("workqueue_depth", "Keys in line", m.depth.clone());
            registry.register("workqueue_adds", "Keys asked for", m.adds.clone());
            registry.register("workqueue_retries", "Keys to be tried again", m.retries.clone());
            registry.register("workqueue_queue_duration_seconds", "Time in line", m.queue_time.clone());
            registry.register(
                "workqueue_work_duration_seconds",
                "Time with a worker",
                m.work_time.clone(),
            );
            registry.register(
                "workqueue_unfinished_work_seconds",
                "Work in progress",
                m.unfinished.clone(),
            );
            registry.register(
                "workqueue_longest_running_processor_seconds",
                "Oldest work",
                m.longest.clone(),
            );
        });
        metrics
    }

    /// Adds metrics of one's own.
    pub fn with_registry<R>(&self, edit: impl FnOnce(&mut Registry) -> R) -> R {
        edit(
            &mut self
                .registry
                .lock()
                .expect("nothing panics while it holds the registry"),
        )
    }

    /// Calls `gauging` whenever somebody reads, for as long as it returns true.
    pub(crate) fn gauge(&self, gauging: impl Fn() -> bool + Send + Sync + 'static) {
        self.gauges
            .lock()
            .expect("nothing panics while it holds this")
            .push(Box::new(gauging));
    }

    /// Everything in the text format that Prometheus reads.
    pub fn to_text(&self) -> String {
        self.gauges
            .lock()
            .expect("nothing panics while it holds this")
            .retain(|gauging| gauging());
        let mut text = String::new();
        self.with_registry(|registry| encode(&mut text, registry))
            .expect("writing to a string does not fail");
        text
    }
}

/// What is counted of one controller. The labels are looked up once, not for every reconcile.
pub(crate) struct ControllerMetrics {
    pub(crate) succeeded: Counter,
    pub(crate) requeued: Counter,
    pub(crate) requeued_after: Counter,
    pub(crate) failed: Counter,
    pub(crate) errors: Counter,
    pub(crate) terminal_errors: Counter,
    pub(crate) panics: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) reconcile_time: Histogram,
    pub(crate) workers: Gauge,
    pub(crate) most_workers: Gauge,
    pub(crate) gate_seen: Counter,
    pub(crate) gate_late: Counter,
    pub(crate) unfinished: Gauge<f64, AtomicU64>,
    pub(crate) longest: Gauge<f64, AtomicU64>,
}

impl ControllerMetrics {
    pub(crate) fn new(metrics: &Metrics, controller: &str) -> Self {
        let own = OfController {
            controller: controller.to_owned(),
        };
        let queue = OfName {
            name: controller.to_owned(),
            controller: controller.to_owned(),
        };
        let ended = |result| {
            let controller = controller.to_owned();
            metrics
                .reconciles
                .get_or_create(&Reconciled { controller, result })
                .clone()
        };
        let passed = |result| {
            let controller = controller.to_owned();
            metrics.gate.get_or_create(&Gated { controller, result }).clone()
        };
        Self {
            succeeded: ended("success"),
            requeued: ended("requeue"),
            requeued_after: ended("requeue_after"),
            failed: ended("error"),
            errors: metrics.errors.get_or_create(&own).clone(),
            terminal_errors: metrics.terminal_errors.get_or_create(&own).clone(),
            panics: metrics.panics.get_or_create(&own).clone(),
            timeouts: metrics.timeouts.get_or_create(&own).clone(),
            reconcile_time: metrics.reconcile_time.get_or_create(&own).clone(),
            workers: metrics.workers.get_or_create(&own).clone(),
            most_workers: metrics.most_workers.get_or_create(&own).clone(),
            gate_seen: passed("seen"),
            gate_late: passed("late"),
            unfinished: metrics.unfinished.get_or_create(&queue).clone(),
            longest: metrics.longest.get_or_create(&queue).clone(),
        }
    }
}

/// Counts what happens in one queue.
pub(crate) struct QueueMetrics {
    metrics: Metrics,
    name: OfName,
    adds: Counter,
    retries: Counter,
    queue_time: Histogram,
    work_time: Histogram,
    depths: Vec<Option<Gauge<i64, AtomicI64>>>,
}

impl QueueMetrics {
    pub(crate) fn new(metrics: &Metrics, controller: &str) -> Self {
        let name = OfName {
            name: controller.to_owned(),
            controller: controller.to_owned(),
        };
        Self {
            adds: metrics.adds.get_or_create(&name).clone(),
            retries: metrics.retries.get_or_create(&name).clone(),
            queue_time: metrics.queue_time.get_or_create(&name).clone(),
            work_time: metrics.work_time.get_or_create(&name).clone(),
            depths: vec![None; Priority::LEVELS],
            metrics: metrics.clone(),
            name,
        }
    }
}

impl Observer for QueueMetrics {
    fn depth(&mut self, priority: Priority, depth: usize) {
        let gauge = self.depths[usize::from(priority.level())].get_or_insert_with(|| {
            let labels = OfQueue {
                name: self.name.name.clone(),
                controller: self.name.controller.clone(),
                priority: i64::from(priority.level()) - i64::from(Priority::NORMAL.level()),
            };
            self.metrics.depth.get_or_create(&labels).clone()
        });
        gauge.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    fn added(&mut self, _: Priority) {
        self.adds.inc();
    }

    fn handed_out(&mut self, _: Priority, waited: Duration) {
        self.queue_time.observe(waited.as_secs_f64());
    }

    fn finished(&mut self, _: Priority, worked: Duration) {
        self.work_time.observe(worked.as_secs_f64());
    }

    fn retried(&mut self, _: Priority, _: u32) {
        self.retries.inc();
    }
}

//! Looking at the machine, again and again.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use moorline_container::State;
use tokio::{
    sync::{broadcast, watch},
    time::Instant,
};

use super::{
    judge::{Condition, Judge, Level, Levels, PressureConfig, Signal, Want},
    rank::{self, Candidate},
};
use crate::{
    kubelet::{self, Context, known_labels},
    pod::is_over,
};

/// Orders that a desk has not read yet. There is one a round, so more never wait.
const ORDERS: usize = 16;
/// How long a pod that has to end may take before another has to.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the machine runs short of, and whom it tells.
pub(crate) struct Pressure {
    conditions: watch::Sender<BTreeSet<Condition>>,
    orders: broadcast::Sender<Arc<Order>>,
    /// The nodes that somebody works at.
    staffed: Mutex<BTreeSet<String>>,
}

/// That a pod has to end.
#[derive(Debug)]
pub(crate) struct Order {
    /// Whose.
    pub(crate) uid: String,
    /// Of what there is too little.
    pub(crate) resource: &'static str,
    /// What it is told.
    pub(crate) message: String,
}

/// Says that somebody works at a node, until it is dropped.
pub(crate) struct Presence {
    pressure: Arc<Pressure>,
    node: String,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.pressure.staffed().remove(&self.node);
    }
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            conditions: watch::Sender::default(),
            orders: broadcast::Sender::new(ORDERS),
            staffed: Mutex::default(),
        }
    }
}

impl Pressure {
    /// What nodes have to say of the machine.
    pub(crate) fn conditions(&self) -> watch::Receiver<BTreeSet<Condition>> {
        self.conditions.subscribe()
    }

    /// The orders from now on, for who works at a node.
    pub(crate) fn work_at(self: &Arc<Self>, node: &str) -> (Presence, broadcast::Receiver<Arc<Order>>) {
        self.staffed().insert(node.to_owned());
        let presence = Presence {
            pressure: self.clone(),
            node: node.to_owned(),
        };
        (presence, self.orders.subscribe())
    }

    fn staffed(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.staffed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at the machine until it is dropped.
pub(crate) async fn run(context: Arc<Context>, config: PressureConfig) {
    let mut ticks = tokio::time::interval(config.look);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut judge = Judge::new(config);
    let mut last: Option<(String, Instant)> = None;
    loop {
        ticks.tick().await;
        let directory = context.data.clone();
        let Ok(levels) = tokio::task::spawn_blocking(move || measure(&directory)).await else {
            continue;
        };
        let (conditions, want) = judge.look(&levels, Instant::now());
        context.pressure.conditions.send_if_modified(|said| {
            let changed = *said != conditions;
            *said = conditions;
            changed
        });
        let Some(want) = want else { continue };
        // What the last one had is not given back before it is gone.
        let going =
            |(uid, since): &(String, Instant)| since.elapsed() < PATIENCE && context.pod_directory(uid).exists();
        if last.as_ref().is_some_and(going) {
            continue;
        }
        let (asked, wanted) = (context.clone(), want);
        let chosen = tokio::task::spawn_blocking(move || rank::choose(&candidates(&asked, &wanted), &wanted)).await;
        let Ok(Some(chosen)) = chosen else {
            tracing::warn!(
                resource = want.signal.resource(),
                available = want.available,
                "the machine runs short, and there is no pod that could end"
            );
            continue;
        };
        let order = Order {
            uid: chosen.pod.metadata.uid.clone().unwrap_or_default(),
            resource: want.signal.resource(),
            message: rank::message(&chosen, &want),
        };
        last = Some((order.uid.clone(), Instant::now()));
        // Without a desk nobody can act on it.
        let _ = context.pressure.orders.send(Arc::new(order));
    }
}

/// How much is left of everything.
fn measure(directory: &Path) -> Levels {
    let mut levels = Levels::new();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = |name: &str| -> Option<u64> {
        let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    if let (Some(available), Some(all)) = (kibibytes("MemAvailable:"), kibibytes("MemTotal:")) {
        let level = Level {
            available: available << 10,
            all: all << 10,
        };
        levels.insert(Signal::Memory, level);
    }
    if let Ok(disk) = rustix::fs::statvfs(directory) {
        let level = Level {
            available: disk.f_bavail * disk.f_frsize,
            all: disk.f_blocks * disk.f_frsize,
        };
        levels.insert(Signal::Disk, level);
        // Some file systems have as many as one likes, and say that there are none.
        if disk.f_files > 0 {
            let level = Level {
                available: disk.f_favail,
                all: disk.f_files,
            };
            levels.insert(Signal::Inodes, level);
        }
    }
    levels
}

/// The pods that run here at nodes where somebody works, and what they use.
fn candidates(context: &Context, want: &Want) -> Vec<Candidate> {
    let staffed = context.pressure.staffed().clone();
    let mut pods: BTreeMap<String, _> = BTreeMap::new();
    for pod in context.pods.all() {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        if node.is_some_and(|node| staffed.contains(node)) && !is_over(&pod) {
            pods.insert(pod.metadata.uid.clone().unwrap_or_default(), pod);
        }
    }
    let running = context.runtime.list();
    let candidates = running.iter().filter_map(|status| {
        let pod = pods.get(status.spec.id.as_str())?.clone();
        let (containers, total) = if want.signal == Signal::Memory {
            let used = status.containers.iter().filter_map(|found| {
                matches!(found.state, State::Running { .. }).then_some(())?;
                let stats = context.runtime.stats(&status.spec.id, &found.spec.id).ok()?;
                let used = i64::try_from(stats.memory_working_set_bytes).unwrap_or(i64::MAX);
                Some((found.spec.labels.get(known_labels::CONTAINER)?.clone(), used))
            });
            let used: BTreeMap<String, i64> = used.collect();
            let total = used.values().sum();
            (used, total)
        } else {
            let usage = kubelet::measure(context, &pod);
            let total = usage.total();
            (usage.containers, total)
        };
        Some(Candidate { pod, containers, total })
    });
    candidates.collect()
}

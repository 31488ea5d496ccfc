//! The runtime's caches and controllers beside kube-runtime's, over the same made-up server in the same process.
//!
//! Memory is what the operating system says of a process of its own for each side: this program starts itself once
//! more for that. The rest is measured here, both sides in turn.

mod pods;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    env, fs,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube_runtime::{WatchStreamExt as _, controller::Action, reflector, watcher};
use moorline_runtime::{
    Actor, Cache, Controller, Draft, Failure, Ground, Kind, Planner, Selection, Settings, Snapshot, Verdict, Watches,
    transformer,
};

use self::pods::Pods;
use crate::report::Row;

const PODS: usize = 10_000;
const PEER: &str = "kube-runtime 5.0";
/// Tells a process of this program that it is one side of a measurement of memory.
const SIDE: &str = "MOORLINE_BENCH_RUNTIME_MEMORY";

pub(crate) fn rows() -> Vec<Row> {
    let (ours, theirs) = (memory("ours"), memory("theirs"));
    vec![
        per_pod(&ours, &theirs),
        relist(&ours, &theirs),
        latency(),
        initial_sync(),
        idle(),
    ]
}

/// If this process was started to measure memory, does that and tells so.
pub(crate) fn is_memory_side() -> bool {
    match env::var(SIDE) {
        Ok(side) => {
            let report = one_thread().block_on(async {
                if side == "ours" {
                    ours_in_memory().await
                } else {
                    theirs_in_memory().await
                }
            });
            println!("{} {} {}", report.before, report.synced, report.peak);
            true
        }
        Err(_) => false,
    }
}

/// Resident bytes before the cache, with it, and at most while everything was listed anew.
struct Resident {
    before: f64,
    synced: f64,
    peak: f64,
}

fn memory(side: &str) -> Resident {
    let program = env::current_exe().expect("a program knows where it is");
    let output = Command::new(program)
        .env(SIDE, side)
        .output()
        .expect("this program can be started once more");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut figures = text
        .split_whitespace()
        .map(|figure| figure.parse().expect("it prints three numbers"));
    let mut next = || figures.next().expect("it prints three numbers");
    Resident {
        before: next(),
        synced: next(),
        peak: next(),
    }
}

fn per_pod(ours: &Resident, theirs: &Resident) -> Row {
    let each = |side: &Resident| (side.synced - side.before) / PODS as f64;
    let (ours, theirs) = (each(ours), each(theirs));
    Row {
        krate: "runtime",
        work: format!("resident memory for each of {PODS} cached pods of 4 kB"),
        unit: "B",
        ours,
        peer: Some(theirs),
        peer_name: Some(PEER.to_owned()),
        ratio: Some(theirs / ours),
        bar: "≤ a quarter".to_owned(),
        holds: ours * 4.0 <= theirs,
    }
}

fn relist(ours: &Resident, theirs: &Resident) -> Row {
    let extra = |side: &Resident| (side.peak - side.synced).max(0.0) / (side.synced - side.before) * 100.0;
    let (ours, theirs) = (extra(ours), extra(theirs));
    Row {
        krate: "runtime",
        work: format!("relist of {PODS} objects, extra peak memory"),
        unit: "%",
        ours,
        peer: Some(theirs),
        peer_name: Some(PEER.to_owned()),
        ratio: Some(theirs / ours.max(0.1)),
        bar: "< 10 %".to_owned(),
        holds: ours < 10.0,
    }
}

async fn ours_in_memory() -> Resident {
    let pods = Pods::new(PODS);
    let before = resident();
    let cache = Cache::new(pods.client());
    let collection = cache.collection(&Selection::all(Kind::of::<Pod>()));
    collection.synced().await;
    assert_eq!(collection.len(), PODS);
    let synced = resident();
    forget_peak();
    let lists = pods.lists();
    pods.expire();
    pods.listed_after(lists).await;
    Resident {
        before,
        synced,
        peak: peak(),
    }
}

async fn theirs_in_memory() -> Resident {
    let pods = Pods::new(PODS);
    let before = resident();
    let (store, writer) = reflector::store::<Pod>();
    let api: Api<Pod> = Api::all(pods.client());
    let events = reflector(writer, watcher(api, watcher::Config::default())).default_backoff();
    let following = tokio::spawn(events.for_each(|_| async {}));
    store.wait_until_ready().await.expect("the writer lives");
    while store.len() < PODS {
        tokio::task::yield_now().await;
    }
    let synced = resident();
    forget_peak();
    let lists = pods.lists();
    pods.expire();
    pods.listed_after(lists).await;
    following.abort();
    Resident {
        before,
        synced,
        peak: peak(),
    }
}

fn resident() -> f64 {
    status("VmRSS:")
}

fn peak() -> f64 {
    status("VmHWM:")
}

fn status(line: &str) -> f64 {
    let text = fs::read_to_string("/proc/self/status").expect("this is Linux");
    let found = text
        .lines()
        .find_map(|other| other.strip_prefix(line))
        .expect("the line is there");
    let kilobytes: f64 = found.trim().trim_end_matches(" kB").parse().expect("it is a number");
    kilobytes * 1024.0
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").expect("a process may forget its own peak");
}

/// Does nothing, but says that it was asked.
struct Idle {
    seen: Arc<Seen>,
}

/// Wakes whoever waits once, when what it waits for has come: the waking of the waiter is no part of what is measured.
#[derive(Default)]
struct Seen {
    names: Mutex<BTreeSet<String>>,
    times: AtomicUsize,
    /// How many names, and how many times, are waited for.
    wanted: (AtomicUsize, AtomicUsize),
    changed: tokio::sync::Notify,
}

impl Seen {
    fn note(&self, name: &str) {
        let names = {
            let mut names = self.names.lock().expect("nothing panics while it holds this");
            names.insert(name.to_owned());
            names.len()
        };
        let times = self.times.fetch_add(1, Ordering::SeqCst) + 1;
        let reached = |wanted: &AtomicUsize, count: usize| (1..=count).contains(&wanted.load(Ordering::SeqCst));
        if reached(&self.wanted.0, names) || reached(&self.wanted.1, times) {
            self.changed.notify_one();
        }
    }

    async fn all(&self, count: usize) {
        self.wanted.0.store(count, Ordering::SeqCst);
        while self.names.lock().expect("nothing panics while it holds this").len() < count {
            self.changed.notified().await;
        }
        self.wanted.0.store(0, Ordering::SeqCst);
    }

    async fn more_than(&self, times: usize) {
        self.wanted.1.store(times + 1, Ordering::SeqCst);
        while self.times.load(Ordering::SeqCst) <= times {
            self.changed.notified().await;
        }
    }
}

impl Actor for Idle {
    type Object = Pod;

    fn name(&self) -> &'static str {
        "idle"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Pod>().without_conditions()
    }

    fn plan(&self, plan: Planner<Pod>) -> Planner<Pod> {
        let seen = Arc::clone(&self.seen);
        plan.transformer(transformer("note", move |snapshot: &Snapshot<Pod>, _: &mut Draft| {
            seen.note(snapshot.raw().name());
            Ok::<_, Failure>(Verdict::Continue)
        }))
    }
}

fn start_ours(pods: &Pods, workers: usize) -> (moorline_runtime::Running, Ground, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let ground = Ground::new(pods.client());
    let settings = Settings {
        workers,
        ..Settings::default()
    };
    let controller = Controller::warm_up(
        &Idle {
            seen: Arc::clone(&seen),
        },
        &ground,
        settings,
    );
    (controller.start(), ground, seen)
}

fn start_theirs(pods: &Pods, workers: u16) -> (tokio::task::JoinHandle<()>, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let api: Api<Pod> = Api::all(pods.client());
    let config = kube_runtime::controller::Config::default().concurrency(workers);
    let controller = kube_runtime::Controller::new(api, watcher::Config::default()).with_config(config);
    let running = controller.run(
        |pod: Arc<Pod>, seen: Arc<Seen>| async move {
            seen.note(pod.metadata.name.as_deref().unwrap_or_default());
            Ok::<_, Infallible>(Action::await_change())
        },
        |_, _, _| Action::await_change(),
        Arc::clone(&seen),
    );
    (tokio::spawn(running.for_each(|_| async {})), seen)
}

/// From the change leaving the server to the start of the reconcile, when nothing else is going on.
fn latency() -> Row {
    const TIMES: usize = 300;
    let measure = |ours: bool| {
        one_thread().block_on(async move {
            let pods = Pods::new(100);
            let (mut running, mut theirs) = (None, None);
            let seen = if ours {
                let (controller, ground, seen) = start_ours(&pods, 1);
                running = Some((controller, ground));
                seen
            } else {
                let (controller, seen) = start_theirs(&pods, 1);
                theirs = Some(controller);
                seen
            };
            seen.all(100).await;
            pods.watched().await;
            let mut took = Vec::with_capacity(TIMES);
            for nth in 0..TIMES {
                tokio::time::sleep(Duration::from_millis(2)).await;
                let before = seen.times.load(Ordering::SeqCst);
                let change = pods.changed(nth % 100);
                let started = Instant::now();
                pods.tell(change);
                seen.more_than(before).await;
                took.push(started.elapsed().as_secs_f64() * 1e6);
            }
            took.sort_by(f64::total_cmp);
            if let Some((controller, ground)) = running {
                controller.abandon().await;
                ground.cache.stop().await;
            }
            if let Some(controller) = theirs {
                controller.abort();
            }
            took[TIMES / 2]
        })
    };
    let (ours, theirs) = (measure(true), measure(false));
    Row {
        krate: "runtime",
        work: "update seen to reconcile started, idle, p50".to_owned(),
        unit: "µs",
        ours,
        peer: Some(theirs),
        peer_name: Some(PEER.to_owned()),
        ratio: Some(theirs / ours),
        bar: "≤ a tenth".to_owned(),
        holds: ours * 10.0 <= theirs,
    }
}

/// From the start to the last of the first reconciles.
fn initial_sync() -> Row {
    let measure = |ours: bool| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("threads can be made");
        runtime.block_on(async move {
            let pods = Pods::made_in_advance(PODS);
            let started = Instant::now();
            if ours {
                let (running, ground, seen) = start_ours(&pods, 8);
                seen.all(PODS).await;
                let took = started.elapsed();
                running.abandon().await;
                ground.cache.stop().await;
                took
            } else {
                let (running, seen) = start_theirs(&pods, 8);
                seen.all(PODS).await;
                running.abort();
                started.elapsed()
            }
        })
    };
    let mut ours: Vec<f64> = Vec::new();
    let mut theirs: Vec<f64> = Vec::new();
    for _ in 0..7 {
        ours.push(measure(true).as_secs_f64() * 1e3);
        theirs.push(measure(false).as_secs_f64() * 1e3);
    }
    ours.sort_by(f64::total_cmp);
    theirs.sort_by(f64::total_cmp);
    let (ours, theirs) = (ours[3], theirs[3]);
    Row {
        krate: "runtime",
        work: format!("{PODS} objects, initial sync with 8 workers, median of 7"),
        unit: "ms",
        ours,
        peer: Some(theirs),
        peer_name: Some(PEER.to_owned()),
        ratio: Some(theirs / ours),
        bar: "≥ 3 x faster".to_owned(),
        holds: ours * 3.0 <= theirs,
    }
}

/// A minute in which nothing happens, for both sides at once.
fn idle() -> Row {
    let (ours, theirs) = one_thread().block_on(async {
        let (pods, peers) = (Pods::new(PODS), Pods::new(PODS));
        let (running, ground, seen) = start_ours(&pods, 8);
        let (peer, seen_by_peer) = start_theirs(&peers, 8);
        seen.all(PODS).await;
        seen_by_peer.all(PODS).await;
        let before = (pods.writes(), peers.writes());
        tokio::time::sleep(Duration::from_mins(1)).await;
        let writes = (pods.writes() - before.0, peers.writes() - before.1);
        running.abandon().await;
        ground.cache.stop().await;
        peer.abort();
        writes
    });
    Row {
        krate: "runtime",
        work: format!("idle for 60 s with {PODS} objects in sync"),
        unit: "writes",
        ours: ours as f64,
        peer: Some(theirs as f64),
        peer_name: Some(PEER.to_owned()),
        ratio: None,
        bar: "0 writes".to_owned(),
        holds: ours == 0,
    }
}

fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
}

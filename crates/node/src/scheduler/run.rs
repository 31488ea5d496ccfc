//! The loop that has pods scheduled: what is waiting, who is asked next, and what follows from a verdict.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};
use kube::Client;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{Cluster, Verdict, Wanted, decide, enact::Enactor};
use crate::{
    events::{Recorder, Severity},
    key::Key,
    mirror::{Change, Mirror},
    pod::is_over,
};

/// The name by which pods ask for this scheduler.
const NAME: &str = "default-scheduler";
/// How long a pod waits at least before it is looked at again; doubles up to the longest.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Waiting pods are looked at together after a change, so that a burst of changes costs one look.
const STIR: Duration = Duration::from_millis(50);
/// Even if nothing seems to have changed.
const STALE: Duration = Duration::from_mins(1);

/// What the scheduler reads.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) pods: Arc<Mirror<Pod>>,
    pub(crate) nodes: Arc<Mirror<Node>>,
    pub(crate) namespaces: Arc<Mirror<Namespace>>,
    pub(crate) claims: Arc<Mirror<PersistentVolumeClaim>>,
    pub(crate) volumes: Arc<Mirror<PersistentVolume>>,
    pub(crate) classes: Arc<Mirror<StorageClass>>,
    pub(crate) budgets: Arc<Mirror<PodDisruptionBudget>>,
}

/// Schedules pods until it is dropped.
pub(crate) async fn run(client: Client, sources: Sources, recorder: Recorder) {
    sources.nodes.synced().await;
    sources.pods.synced().await;
    sources.claims.synced().await;
    sources.volumes.synced().await;
    sources.classes.synced().await;
    let recorder = recorder.on_behalf_of(NAME, None);
    let enactor = Enactor {
        client,
        claims: sources.claims.clone(),
        recorder: recorder.clone(),
    };
    let mut pods = sources.pods.subscribe();
    let mut nodes = sources.nodes.subscribe();
    let mut namespaces = sources.namespaces.subscribe();
    let mut claims = sources.claims.subscribe();
    let mut volumes = sources.volumes.subscribe();
    let mut classes = sources.classes.subscribe();
    let mut budgets = sources.budgets.subscribe();
    let (settled_sender, mut settled) = mpsc::unbounded_channel();
    let mut desk = Desk {
        cluster: Cluster::default(),
        line: Line::default(),
        enactor,
        settled: settled_sender,
    };
    loop {
        let wake = desk.line.wake();
        tokio::select! {
            biased;
            Some(change) = nodes.recv() => desk.node(&change),
            Some(change) = namespaces.recv() => desk.namespace(&change),
            Some(change) = claims.recv() => desk.claim(&change),
            Some(change) = volumes.recv() => desk.volume(&change),
            Some(change) = classes.recv() => desk.class(&change),
            Some(change) = budgets.recv() => desk.budget(&change),
            Some(change) = pods.recv() => desk.pod(&change),
            Some(settled) = settled.recv() => desk.settled(settled),
            () = std::future::ready(()), if desk.line.has_active() => {
                desk.next();
                tokio::task::yield_now().await;
            }
            () = sleep_until(wake), if !desk.line.has_active() => desk.line.stir(Instant::now()),
            else => return,
        }
    }
}

/// How the carrying out of a verdict went.
pub(super) struct Settled {
    pub(super) key: Key,
    pub(super) uid: String,
    pub(super) outcome: Result<(), String>,
}

struct Desk {
    cluster: Cluster,
    line: Line,
    enactor: Enactor,
    settled: mpsc::UnboundedSender<Settled>,
}

impl Desk {
    fn node(&mut self, change: &Change<Node>) {
        match change {
            Change::Applied(node) => {
                if self.cluster.node_applied(node) {
                    self.line.something_changed();
                }
            }
            Change::Deleted(node) => self.cluster.node_deleted(&Key::of(&**node).name),
        }
    }

    fn namespace(&mut self, change: &Change<Namespace>) {
        if let Change::Applied(namespace) = change {
            let labels = namespace.metadata.labels.clone().unwrap_or_default();
            self.cluster.namespace_applied(&change.key().name, labels);
        }
    }

    fn claim(&mut self, change: &Change<PersistentVolumeClaim>) {
        match change {
            Change::Applied(claim) => self.cluster.claim_applied((**claim).clone()),
            Change::Deleted(_) => self.cluster.claim_deleted(&change.key()),
        }
        self.line.something_changed();
    }

    fn volume(&mut self, change: &Change<PersistentVolume>) {
        match change {
            Change::Applied(volume) => self.cluster.volume_applied((**volume).clone()),
            Change::Deleted(_) => self.cluster.volume_deleted(&change.key().name),
        }
        self.line.something_changed();
    }

    fn class(&mut self, change: &Change<StorageClass>) {
        match change {
            Change::Applied(class) => self.cluster.class_applied((**class).clone()),
            Change::Deleted(_) => self.cluster.class_deleted(&change.key().name),
        }
        self.line.something_changed();
    }

    fn budget(&mut self, change: &Change<PodDisruptionBudget>) {
        match change {
            Change::Applied(budget) => self.cluster.budget_applied(budget),
            Change::Deleted(_) => self.cluster.budget_deleted(&change.key()),
        }
    }

    fn pod(&mut self, change: &Change<Pod>) {
        let key = change.key();
        match change {
            Change::Applied(pod) => {
                let spec = pod.spec.as_ref();
                let placed = spec.is_some_and(|spec| spec.node_name.as_ref().is_some_and(|name| !name.is_empty()));
                if placed {
                    let room = self.cluster.pod_applied(pod);
                    self.line.remove(&key);
                    // A pod that is there now may be the one that another wants to be near to.
                    if room || self.line.has_parked() {
                        self.line.something_changed();
                    }
                    return;
                }
                let ours = spec.is_some_and(|spec| spec.scheduler_name.as_deref().is_none_or(|name| name == NAME));
                if !ours || is_over(pod) || pod.metadata.deletion_timestamp.is_some() {
                    self.line.remove(&key);
                    self.cluster.nominated.remove(&key);
                    return;
                }
                if spec.is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty())) {
                    self.line.remove(&key);
                    self.enactor.gated(pod.clone());
                    return;
                }
                self.line.add(pod.clone());
            }
            Change::Deleted(_) => {
                self.line.remove(&key);
                if self.cluster.pod_removed(&key) {
                    self.line.something_changed();
                }
            }
        }
    }

    /// Decides on the first in line.
    fn next(&mut self) {
        let Some((key, entry)) = self.line.take() else { return };
        let pod = entry.pod.clone();
        let wanted = entry.wanted.clone();
        match decide(&self.cluster, &wanted) {
            Verdict::Place { node, claims } => {
                self.cluster.place((*wanted).clone(), &node);
                self.line.binding(&key);
                let (enactor, settled) = (self.enactor.clone(), self.settled.clone());
                tokio::spawn(async move {
                    let uid = pod.metadata.uid.clone().unwrap_or_default();
                    let outcome = enactor.place(&pod, &node, &claims).await;
                    // The desk is gone when everything stops.
                    let _ = settled.send(Settled { key, uid, outcome });
                });
            }
            Verdict::Refuse { message, preemption } => {
                if let Some(preemption) = &preemption {
                    self.cluster.nominate(wanted, &preemption.node);
                }
                self.line.park(&key, Instant::now());
                self.enactor.refuse(pod, message, preemption);
            }
        }
    }

    fn settled(&mut self, settled: Settled) {
        if let Err(error) = settled.outcome {
            tracing::debug!(pod = %settled.key, error, "a pod could not be bound and will be looked at again");
            let same = |pod: &Pod| pod.metadata.uid.as_deref() == Some(&settled.uid);
            if let Some(pod) = self.line.unbind(&settled.key)
                && same(&pod)
            {
                self.cluster.pod_removed(&settled.key);
                self.enactor
                    .recorder
                    .tell(&*pod, Severity::Warning, "FailedScheduling", error);
                self.line.park(&settled.key, Instant::now());
                self.line.something_changed();
            }
        }
    }
}

/// A pod that has no node.
struct Entry {
    pod: Arc<Pod>,
    wanted: Arc<Wanted>,
    arrival: u64,
    attempts: u32,
    standing: Standing,
}

#[derive(PartialEq, Eq)]
enum Standing {
    /// To be looked at. Left by `take`.
    Active,
    /// Refused, not to be looked at before this moment. Left by `stir`, after a change.
    Parked { until: Instant },
    /// Being bound. Left when it is, or by `unbind`.
    Binding,
}

/// Pods without a node: the most important first, and among equals who came first.
#[derive(Default)]
struct Line {
    entries: HashMap<Key, Entry>,
    active: BTreeSet<(Reverse<i32>, u64, Key)>,
    parked: BTreeSet<Key>,
    arrivals: u64,
    changed: Option<Instant>,
    last_stir: Option<Instant>,
}

impl Line {
    fn add(&mut self, pod: Arc<Pod>) {
        let key = Key::of(&*pod);
        if let Some(entry) = self.entries.get_mut(&key) {
            let same_spec = entry.pod.metadata.uid == pod.metadata.uid
                && entry.pod.spec == pod.spec
                && entry.pod.metadata.labels == pod.metadata.labels;
            if same_spec {
                entry.pod = pod;
                return;
            }
        }
        self.remove(&key);
        self.arrivals += 1;
        let wanted = Arc::new(Wanted::of(&pod));
        self.active
            .insert((Reverse(wanted.priority), self.arrivals, key.clone()));
        let entry = Entry {
            pod,
            wanted,
            arrival: self.arrivals,
            attempts: 0,
            standing: Standing::Active,
        };
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.active
                .remove(&(Reverse(entry.wanted.priority), entry.arrival, key.clone()));
            self.parked.remove(key);
        }
    }

    fn has_active(&self) -> bool {
        !self.active.is_empty()
    }

    fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    fn take(&mut self) -> Option<(Key, &mut Entry)> {
        let (_, _, key) = self.active.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.attempts += 1;
        Some((key, entry))
    }

    fn binding(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.standing = Standing::Binding;
        }
    }

    fn unbind(&mut self, key: &Key) -> Option<Arc<Pod>> {
        self.entries
            .get(key)
            .filter(|entry| entry.standing == Standing::Binding)
            .map(|entry| entry.pod.clone())
    }

    fn park(&mut self, key: &Key, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            let doubled = FIRST_BACKOFF * 2_u32.saturating_pow(entry.attempts.saturating_sub(1).min(5));
            entry.standing = Standing::Parked {
                until: now + doubled.min(LONGEST_BACKOFF),
            };
            self.parked.insert(key.clone());
        }
    }

    fn something_changed(&mut self) {
        if self.has_parked() && self.changed.is_none() {
            self.changed = Some(Instant::now() + STIR);
        }
    }

    /// When to look at those who wait.
    fn wake(&self) -> Instant {
        let stale = self.last_stir.unwrap_or_else(Instant::now) + STALE;
        self.changed.map_or(stale, |changed| changed.min(stale))
    }

    /// Puts those back in line whose back-off is over; for the others, looks again when the first one's is.
    fn stir(&mut self, now: Instant) {
        self.last_stir = Some(now);
        self.changed = None;
        let parked = std::mem::take(&mut self.parked);
        for key in parked {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            match entry.standing {
                Standing::Parked { until } if until > now => {
                    self.changed = Some(self.changed.map_or(until, |before| before.min(until)));
                    self.parked.insert(key);
                }
                Standing::Parked { .. } => {
                    entry.standing = Standing::Active;
                    self.active.insert((Reverse(entry.wanted.priority), entry.arrival, key));
                }
                Standing::Active | Standing::Binding => {}
            }
        }
    }
}

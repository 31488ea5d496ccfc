//! The desk of a node: who gets which news.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::core::PartialObjectMeta;
use moorline_container as run;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    admit::{self, House, Registered},
    adopt::labels,
    context::{NodeContext, net_id},
    evict::{self, Limits},
    worker::{Origin, Update, Worker},
};
use crate::{
    env::references,
    events::Severity,
    key::Key,
    mirror::{Change, Mirror},
    pod::{Shape, is_over},
    pressure::Order,
    scheduler::Wanted,
    volume::Wants,
};

/// Objects whose changes reach pods.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) pods: Arc<Mirror<Pod>>,
    pub(crate) config_maps: Arc<Mirror<PartialObjectMeta<ConfigMap>>>,
    pub(crate) secrets: Arc<Mirror<PartialObjectMeta<Secret>>>,
}

/// A node's kubelet. Dropping it ends its work and leaves its pods running.
pub(crate) struct Kubelet {
    task: tokio::task::JoinHandle<()>,
    end: watch::Sender<bool>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kubelet {
    /// Begins to run the pods that are bound to a node. While `reachable` says no, it hears nothing from the API.
    pub(crate) fn start(context: Arc<NodeContext>, objects: Objects, reachable: watch::Receiver<bool>) -> Self {
        let (end, ending) = watch::channel(false);
        Self {
            task: tokio::spawn(run(context, objects, reachable, ending)),
            end,
        }
    }

    /// Ends its work, and waits until nobody acts any more.
    pub(crate) async fn end(mut self) {
        self.end.send_replace(true);
        // It has panicked or is done; either way nobody acts.
        let _ = (&mut self.task).await;
    }
}

struct Desk {
    context: Arc<NodeContext>,
    workers: HashMap<String, Entry>,
    /// Which worker ended, and whether it was with the last of its pod.
    tasks: JoinSet<String>,
    /// The last walk over what pods wrote.
    measuring: Option<tokio::task::JoinHandle<()>>,
}

struct Entry {
    key: Key,
    updates: mpsc::UnboundedSender<Update>,
    references: References,
    /// Whether the node has taken it, and room is kept for it.
    taken: bool,
}

#[derive(Default)]
struct References {
    config_maps: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

async fn run(
    context: Arc<NodeContext>,
    objects: Objects,
    mut reachable: watch::Receiver<bool>,
    mut ending: watch::Receiver<bool>,
) {
    tokio::select! {
        () = objects.pods.synced() => {}
        _ = ending.changed() => return,
    }
    let mut events = context.shared.runtime.events();
    let (_presence, mut orders) = context.shared.pressure.work_at(&context.name);
    let mut pods = objects.pods.subscribe();
    let mut config_maps = objects.config_maps.subscribe();
    let mut secrets = objects.secrets.subscribe();
    let mut desk = Desk {
        context,
        workers: HashMap::new(),
        tasks: JoinSet::new(),
        measuring: None,
    };
    desk.adopt(&objects.pods).await;
    let mut measuring = tokio::time::interval(evict::MEASURE);
    measuring.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let open = *reachable.borrow_and_update();
        tokio::select! {
            Some(event) = events.next() => desk.runtime(event),
            Some(change) = pods.recv(), if open => desk.pod(&change),
            Some(change) = config_maps.recv(), if open => {
                desk.object(&change.key(), |references| &references.config_maps);
            }
            Some(change) = secrets.recv(), if open => desk.object(&change.key(), |references| &references.secrets),
            Some(ended) = desk.tasks.join_next(), if !desk.tasks.is_empty() => match ended {
                Ok(uid) => {
                    desk.workers.remove(&uid);
                }
                Err(error) => tracing::error!(%error, "a pod's worker panicked"),
            },
            _ = measuring.tick() => desk.measure(),
            // Who misses orders gets the next: the want is still there.
            Ok(order) = orders.recv() => desk.evict(&order),
            changed = reachable.changed() => if changed.is_err() { return },
            _ = ending.changed() => {
                desk.tasks.shutdown().await;
                return;
            }
        }
    }
}

impl Desk {
    fn is_ours(&self, pod: &Pod) -> bool {
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(&self.context.name)
    }

    /// Takes over what runs already, and removes what nobody wants any more.
    async fn adopt(&mut self, pods: &Mirror<Pod>) {
        let wanted: HashMap<String, Arc<Pod>> = pods
            .all()
            .into_iter()
            .filter(|pod| self.is_ours(pod))
            .map(|pod| (pod.metadata.uid.clone().unwrap_or_default(), pod))
            .collect();
        for status in self.context.shared.runtime.list() {
            if status.spec.labels.get(labels::NODE) != Some(&self.context.name) {
                continue;
            }
            let id = status.spec.id.clone();
            if let Some(pod) = wanted.get(id.as_str()) {
                self.begin(pod.clone(), Origin::Adopted(&status));
                continue;
            }
            if let Err(error) = self.context.shared.runtime.remove_pod(&id).await {
                tracing::warn!(pod = %id, %error, "a pod that nobody wants could not be removed");
                continue;
            }
            let (context, uid) = (self.context.clone(), id.to_string());
            let cleaned = tokio::task::spawn_blocking(move || {
                if let Ok(id) = moorline_network::PodId::new(&uid) {
                    let _ = context.shared.network.detach(&id);
                }
                super::context::remove_files(&context.shared, &uid)
            });
            if let Ok(Err(error)) = cleaned.await {
                tracing::warn!(pod = %id, %error, "what a pod left could not be removed");
            }
        }
        let context = self.context.clone();
        let cleaned = tokio::task::spawn_blocking(move || context.shared.remove_files_of_strangers());
        if let Ok(Err(error)) = cleaned.await {
            tracing::warn!(%error, "what pods left that are gone could not be removed");
        }
        let pods = self.context.shared.runtime.list();
        let there: BTreeSet<&str> = pods.iter().map(|pod| pod.spec.id.as_str()).collect();
        if let Err(error) = self.context.shared.release_images(|uid| !there.contains(uid)).await {
            tracing::warn!(%error, "images of pods that are gone could not be let go");
        }
    }

    /// Whether the node takes a pod that is new to it.
    fn admit(&self, pod: &Pod) -> Origin<'static> {
        // It was taken before, by this process or one before it.
        if pod.status.as_ref().is_some_and(|status| status.start_time.is_some()) || is_over(pod) {
            return Origin::New;
        }
        let is_taken = |other: &Pod| {
            let uid = other.metadata.uid.as_deref().unwrap_or("");
            self.is_ours(other) && !is_over(other) && self.workers.get(uid).is_some_and(|entry| entry.taken)
        };
        let pods = self.context.shared.pods.all();
        let taken: Vec<_> = pods
            .iter()
            .filter(|other| is_taken(other))
            .map(|other| Wanted::of(other))
            .collect();
        let node = self.context.shared.nodes.get(&Key::new("", &self.context.name));
        let empty = BTreeMap::new();
        let short = self.context.shared.pressure.conditions().borrow().clone();
        let house = House {
            node: &self.context.name,
            registered: node.as_ref().map(|node| Registered {
                labels: node.metadata.labels.as_ref().unwrap_or(&empty),
                taints: node
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.taints.as_deref())
                    .unwrap_or_default(),
            }),
            allocatable: &self.context.allocatable,
            taken: &taken,
            pressure: &short,
        };
        admit::refuse(pod, &house).map_or(Origin::New, Origin::Refused)
    }

    fn begin(&mut self, pod: Arc<Pod>, origin: Origin<'_>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if net_id(&pod).is_err() || self.workers.contains_key(&uid) {
            return;
        }
        let (updates, receiver) = mpsc::unbounded_channel();
        let entry = Entry {
            key: Key::of(&*pod),
            updates: updates.clone(),
            references: References::of(&pod),
            taken: !matches!(origin, Origin::Refused(_)),
        };
        let worker = Worker::new(self.context.clone(), pod, origin, updates, receiver);
        let ended = uid.clone();
        self.workers.insert(uid, entry);
        self.tasks.spawn(async move {
            worker.run().await;
            ended
        });
    }

    fn pod(&mut self, change: &Change<Pod>) {
        match change {
            Change::Applied(pod) if self.is_ours(pod) => {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                // One that came by its old name is another pod.
                let key = Key::of(&**pod);
                for (other, entry) in &self.workers {
                    if entry.key == key && *other != uid {
                        let _ = entry.updates.send(Update::Gone);
                    }
                }
                match self.workers.get_mut(&uid) {
                    Some(entry) => {
                        entry.references = References::of(pod);
                        let _ = entry.updates.send(Update::Pod(pod.clone()));
                    }
                    None => self.begin(pod.clone(), self.admit(pod)),
                }
            }
            Change::Applied(_) => {}
            Change::Deleted(pod) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or("");
                if let Some(entry) = self.workers.get(uid) {
                    let _ = entry.updates.send(Update::Gone);
                }
            }
        }
    }

    fn runtime(&self, event: run::Event) {
        let tell = |pod: &run::PodId, update: Update| {
            if let Some(entry) = self.workers.get(pod.as_str()) {
                let _ = entry.updates.send(update);
            }
        };
        match event {
            run::Event::Exited { pod, container, exit } => {
                tell(
                    &pod,
                    Update::Exited {
                        container: container.to_string(),
                        exit,
                    },
                );
            }
            run::Event::Lost { pod, container } => {
                tell(
                    &pod,
                    Update::Lost {
                        container: Some(container.to_string()),
                    },
                );
            }
            run::Event::PodLost { pod } => tell(&pod, Update::Lost { container: None }),
            run::Event::Missed => {
                for status in self.context.shared.runtime.list() {
                    for found in &status.containers {
                        if let run::State::Exited(exit) = &found.state {
                            let update = Update::Exited {
                                container: found.spec.id.to_string(),
                                exit: exit.clone(),
                            };
                            tell(&status.spec.id, update);
                        }
                    }
                    if status.lost {
                        tell(&status.spec.id, Update::Lost { container: None });
                    }
                }
            }
        }
    }

    /// Has the room measured that pods with a limit take. One walk at a time: a disk is slow enough.
    fn measure(&mut self) {
        if self.measuring.as_ref().is_some_and(|walk| !walk.is_finished()) {
            return;
        }
        let limited: Vec<_> = self.context.shared.pods.all();
        let limited: Vec<_> = limited
            .into_iter()
            .filter(|pod| self.is_ours(pod) && !is_over(pod))
            .filter_map(|pod| {
                let entry = self.workers.get(pod.metadata.uid.as_deref()?)?;
                Some((Limits::of(&pod)?, pod, entry.updates.clone()))
            })
            .collect();
        if limited.is_empty() {
            return;
        }
        let context = self.context.clone();
        self.measuring = Some(tokio::task::spawn_blocking(move || {
            for (limits, pod, updates) in limited {
                if let Some(message) = limits.exceeded(&evict::measure(&context.shared, &pod)) {
                    // A worker that has ended has nothing to evict.
                    let _ = updates.send(Update::Evict(message));
                }
            }
        }));
    }

    /// Ends a pod of this node, for the good of the others.
    fn evict(&self, order: &Order) {
        let Some(entry) = self.workers.get(&order.uid) else {
            return;
        };
        if let Some(node) = self.context.shared.nodes.get(&Key::new("", &self.context.name)) {
            let message = format!("Attempting to reclaim {}", order.resource);
            self.context
                .recorder
                .tell(&*node, Severity::Warning, "EvictionThresholdMet", message);
        }
        let _ = entry.updates.send(Update::Evict(order.message.clone()));
    }

    fn object(&self, key: &Key, of: fn(&References) -> &BTreeSet<String>) {
        for entry in self.workers.values() {
            if entry.key.namespace == key.namespace && of(&entry.references).contains(&key.name) {
                let _ = entry.updates.send(Update::ObjectChanged);
            }
        }
    }
}

impl References {
    fn of(pod: &Pod) -> Self {
        let mut found = Self::default();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let wants = Wants::of(volume).unwrap_or_default();
            found.config_maps.extend(wants.config_maps);
            found.secrets.extend(wants.secrets);
        }
        for (_, container) in &Shape::of(pod).containers {
            let wanted = references(container);
            found.config_maps.extend(wanted.config_maps);
            found.secrets.extend(wanted.secrets);
        }
        found
    }
}

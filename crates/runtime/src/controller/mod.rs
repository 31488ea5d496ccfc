//! A controller: an actor, its caches, a queue and workers.

mod closing;
mod members;
mod placement;
pub(crate) mod plans;
mod reconcile;
mod running;

use std::{collections::BTreeSet, num::NonZeroUsize, sync::Arc, time::Duration};

use moorline_plan::Cancellation;
use moorline_queue::{Ask, Outcome, Priority, Queue};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub(crate) use self::members::Members;
use self::reconcile::{Mind, Next};
pub use self::running::Running;
use crate::{
    actor::Actor,
    cache::{Cache, Event, IndexFunction, Listening, Selection},
    clock::{SystemTime, TimeOfDay, TokioTimer},
    clusters::Clusters,
    dependency::Dependency,
    fence::Fence,
    gate::{self, Passed},
    metrics::{Metrics, QueueMetrics},
    object::{Key, Target},
    reach::Way,
    record::Recorder,
    scales::Scales,
    settled::Settled,
    sources::Sources,
    watches::{MANAGED_LABEL, Watches},
};

/// What controllers stand on: the caches and the client of a cluster, the time, the metrics.
#[derive(Clone)]
pub struct Ground {
    /// The caches, which hold the client.
    pub cache: Cache,
    /// The time of day.
    pub time: Arc<dyn TimeOfDay>,
    /// What is counted.
    pub metrics: Metrics,
    /// Where reconciles are kept, if they are.
    pub recorder: Option<Recorder>,
    /// The member clusters.
    pub clusters: Clusters,
    /// Until when anything may be written, in any of the clusters.
    pub fence: Fence,
}

impl Ground {
    /// The machine's own time, and metrics of its own.
    pub fn new(client: kube::Client) -> Self {
        Self {
            cache: Cache::new(client),
            time: Arc::new(SystemTime),
            metrics: Metrics::new(),
            recorder: None,
            clusters: Clusters::default(),
            fence: Fence::open(),
        }
    }

    /// The way to the cluster that a target is in; none to a member that is not known.
    pub(crate) fn way_to(&self, target: &Target) -> Option<Way> {
        match &target.cluster {
            None => Some(Way::home(self.cache.client().clone())),
            Some(name) => self.clusters.way_to(name),
        }
    }
}

/// How a controller works. Every field has a default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many objects are worked on at once.
    pub workers: usize,
    /// How many steps of one plan run at once.
    pub steps: NonZeroUsize,
    /// How long one reconcile may take.
    pub timeout: Duration,
    /// How long to wait for the cache to see what was written, before reading from the server itself.
    pub gate: Duration,
    /// Under which name fields are owned, and by which secrets and config maps are labelled.
    pub field_owner: String,
    /// The namespaces to watch; all without one.
    pub namespaces: Vec<String>,
    /// The queue's behaviour.
    pub queue: moorline_queue::Config,
}

impl Settings {
    /// The defaults, with fields owned under this name.
    pub fn of_owner(field_owner: &str) -> Self {
        Self {
            field_owner: field_owner.to_owned(),
            ..Self::default()
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 4,
            steps: NonZeroUsize::new(8).expect("eight is not zero"),
            timeout: Duration::from_mins(2),
            gate: Duration::from_secs(5),
            field_owner: "moorline".to_owned(),
            namespaces: Vec::new(),
            queue: moorline_queue::Config::default(),
        }
    }
}

pub(crate) type KeyQueue = Queue<Key, TokioTimer, QueueMetrics>;

/// A controller whose caches fill and whose queue collects, and that does nothing yet: a warm standby.
pub struct Controller<A: Actor> {
    mind: Arc<Mind<A>>,
    queue: KeyQueue,
    listening: Vec<Listening>,
    stop: DropGuard,
}

impl<A: Actor> Controller<A> {
    /// Starts the watches of an actor. Needs a tokio runtime.
    pub fn warm_up(actor: &A, ground: &Ground, settings: Settings) -> Self {
        let watches = actor.watches();
        ground.cache.keep_ownership_of(&settings.field_owner);
        let sources = Arc::new(sources(&ground.cache, &watches, &settings));
        let observer = QueueMetrics::new(&ground.metrics, actor.name());
        let queue: KeyQueue = Queue::with(settings.queue, TokioTimer::default(), observer);
        let mut listening = Vec::new();
        for (kind, watched) in &watches.kinds {
            for collection in sources.collections(kind) {
                for (name, values) in &watched.indexes {
                    collection.declare_index(name, Arc::clone(values));
                }
            }
        }
        for dependency in &watches.dependencies {
            let referred = dependency.clone();
            let values: IndexFunction =
                Arc::new(move |dependant| referred.keys(dependant).iter().map(ToString::to_string).collect());
            for collection in sources.collections(&watches.primary) {
                collection.declare_index(&index_of(actor.name(), dependency), Arc::clone(&values));
            }
        }
        let settled = Arc::<Settled>::default();
        for kind in watches.kinds.keys() {
            for collection in sources.collections(kind) {
                let route = Route {
                    watches: watches.clone(),
                    sources: Arc::clone(&sources),
                    queue: queue.clone(),
                    kind: kind.clone(),
                    actor: Arc::from(actor.name()),
                    settled: Arc::clone(&settled),
                };
                listening.push(collection.listen(move |event| route.take(event)));
            }
        }
        let scales = watches.scales.then(|| {
            let queue = queue.clone();
            let by_namespace = !settings.namespaces.is_empty();
            Scales::new(ground.cache.clone(), by_namespace, move |key| {
                queue.add(key);
            })
        });
        let mind = Arc::new(Mind::new(
            actor,
            watches,
            sources,
            scales,
            settled,
            ground.clone(),
            settings,
        ));
        let stop = CancellationToken::new();
        if !mind.watches.spread.is_empty() {
            let owners = members::Owners {
                home: Arc::clone(&mind.sources),
                primary: mind.watches.primary.clone(),
                by_place: format!("{}/placed-in", mind.name).into(),
                queue: queue.clone(),
            };
            owners.declare_indexes(&mind.name);
            let following = members::Following {
                clusters: ground.clusters.clone(),
                members: Arc::clone(&mind.members),
                kinds: mind.watches.spread_kinds().cloned().collect(),
                namespaces: mind.settings.namespaces.clone(),
                field_owner: mind.settings.field_owner.clone(),
                owners,
            };
            tokio::spawn(stop.clone().run_until_cancelled_owned(following.run()));
        }
        Self {
            mind,
            queue,
            listening,
            stop: stop.drop_guard(),
        }
    }

    /// Waits until every cache that the actor declared has its first list.
    pub async fn synced(&self) {
        for collection in self.mind.sources.all() {
            collection.synced().await;
        }
    }

    /// Whether every cache that the actor declared has its first list.
    pub fn is_synced(&self) -> bool {
        self.mind.sources.all().all(|collection| collection.progress().synced)
    }

    /// What the actor declared, as cached.
    pub fn sources(&self) -> &Arc<Sources> {
        &self.mind.sources
    }

    /// Starts the workers, once the caches have their first lists. Needs a tokio runtime.
    pub fn start(self) -> Running {
        let workers = TaskTracker::new();
        let stop = self.stop.disarm();
        let ending = stop.child_token();
        let cancellation = Cancellation::new();
        let most = self.mind.settings.workers.max(1);
        self.mind
            .metrics
            .most_workers
            .set(i64::try_from(most).unwrap_or(i64::MAX));
        for _ in 0..most {
            let worker = Worker {
                mind: Arc::clone(&self.mind),
                queue: self.queue.clone(),
                cancellation: cancellation.clone(),
                tasks: workers.clone(),
                ending: ending.clone(),
                stop: stop.clone(),
            };
            workers.spawn(worker.run());
        }
        // A reconcile that never ends shows while it does not.
        let (queue, stopped) = (self.queue.clone(), stop.clone());
        let (of_all, of_longest) = (self.mind.metrics.unfinished.clone(), self.mind.metrics.longest.clone());
        self.mind.ground.metrics.gauge(move || {
            let (unfinished, longest) =
                queue.inspect(|core, now| (core.unfinished_work(now), core.longest_running(now)));
            of_all.set(unfinished.as_secs_f64());
            of_longest.set(longest.as_secs_f64());
            !stopped.is_cancelled()
        });
        let queue = self.queue.clone();
        Running {
            queue: Box::new(move || drop(queue.shut_down_now())),
            workers,
            ending,
            stop,
            cancellation,
            _listening: self.listening,
        }
    }
}

/// From an event to the keys that it concerns.
struct Route {
    watches: Watches,
    sources: Arc<Sources>,
    queue: KeyQueue,
    kind: crate::kind::Kind,
    actor: Arc<str>,
    settled: Arc<Settled>,
}

impl Route {
    fn take(&self, event: &Event<'_>) {
        let ask = if event.initial {
            Ask::now().with_priority(Priority::LOW)
        } else {
            Ask::now()
        };
        if event.new.is_none() {
            self.settled.forget(&event.object().target());
        }
        let watched = &self.watches.kinds[&self.kind];
        if self.kind == self.watches.primary {
            self.queue.add_with(event.key(), ask);
            if event.new.is_none() {
                for collection in self.sources.all() {
                    collection.forget_owner(event.object().uid());
                }
            }
        }
        for object in event.old.into_iter().chain(event.new) {
            if watched.owned.is_some() {
                self.wake_controller(object, ask);
            }
            for mapper in &watched.mappers {
                for key in mapper(object, &self.sources) {
                    self.queue.add_with(key, ask);
                }
            }
        }
        self.wake_dependants(event, ask);
    }

    fn wake_controller(&self, object: &crate::object::Object, ask: Ask) {
        let primary = &self.watches.primary;
        let Some(owner) = object.controller() else { return };
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        if primary.is(group, &owner.kind) {
            let namespace = if primary.scope() == crate::kind::Scope::Cluster {
                ""
            } else {
                object.namespace()
            };
            self.queue.add_with(Key::new(namespace, &owner.name), ask);
        }
    }

    /// Everybody who refers to this object, by the index of each dependency.
    fn wake_dependants(&self, event: &Event<'_>, ask: Ask) {
        for dependency in self
            .watches
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind == self.kind)
        {
            let index = index_of(&self.actor, dependency);
            let key = event.key().to_string();
            let dependants = self.sources.indexed(&self.watches.primary, &index, &key);
            for dependant in dependants.unwrap_or_default() {
                self.queue.add_with(Key::of(&dependant), ask);
            }
        }
    }
}

/// The index of the keys that a dependency refers to. Actors share collections, so it carries the actor's name.
fn index_of(actor: &str, dependency: &Dependency) -> String {
    format!("{actor}/{}", dependency.name)
}

/// The collections that the watches ask for.
fn sources(cache: &Cache, watches: &Watches, settings: &Settings) -> Sources {
    let mut sources = Sources::default();
    for (kind, watched) in &watches.kinds {
        let selection = watched.selection.clone().unwrap_or_else(|| {
            let all = Selection::all(kind.clone());
            if kind.is_bulky() && *kind != watches.primary {
                all.labelled(format!("{MANAGED_LABEL}={}", settings.field_owner))
            } else {
                all
            }
        });
        let everywhere = settings.namespaces.is_empty()
            || selection.namespace.is_some()
            || kind.scope() == crate::kind::Scope::Cluster;
        if everywhere {
            sources.add(kind.clone(), cache.collection(&selection));
        } else {
            // One that is named twice is watched once.
            for namespace in settings.namespaces.iter().collect::<BTreeSet<_>>() {
                sources.add(kind.clone(), cache.collection(&selection.clone().within(namespace)));
            }
        }
    }
    sources
}

struct Worker<A: Actor> {
    mind: Arc<Mind<A>>,
    queue: KeyQueue,
    cancellation: Cancellation,
    tasks: TaskTracker,
    ending: CancellationToken,
    stop: CancellationToken,
}

impl<A: Actor> Worker<A> {
    async fn run(self) {
        for collection in self.mind.sources.all() {
            if self.ending.run_until_cancelled(collection.synced()).await.is_none() {
                return;
            }
        }
        let metrics = &self.mind.metrics;
        while let Some(Some(work)) = self.stop.run_until_cancelled(self.queue.get()).await {
            metrics.workers.inc();
            let key = (*work).clone();
            let reconciling = self.mind.reconcile(&key, work.failures(), &self.cancellation);
            let result = self.stop.run_until_cancelled(reconciling).await;
            metrics.workers.dec();
            let Some((next, writes)) = result else { return };
            let outcome = match next {
                Next::Done | Next::Again => Outcome::Done,
                Next::After(delay) => Outcome::After(delay),
                Next::Retry => Outcome::Retry,
            };
            if writes.is_empty() {
                if next == Next::Again {
                    self.queue.add(key);
                }
                work.finish(outcome).expect("nobody else says what became of it");
                continue;
            }
            // The key stays out of everybody's hands while the cache catches up; this worker goes on with others.
            let (mind, queue, ending) = (Arc::clone(&self.mind), self.queue.clone(), self.ending.clone());
            self.tasks.spawn(async move {
                let passing = gate::pass(&mind.ground, &mind.sources, &mind.members, writes, mind.settings.gate);
                let Some(passed) = ending.run_until_cancelled(passing).await else {
                    return;
                };
                if passed == Passed::Seen {
                    mind.metrics.gate_seen.inc();
                } else {
                    mind.metrics.gate_late.inc();
                }
                if let Passed::Late(targets) = passed {
                    tracing::warn!(controller = %mind.name, %key, ?targets, "the cache is late");
                    mind.take_live(key.clone(), targets);
                    queue.add(key);
                } else if next == Next::Again {
                    queue.add(key);
                }
                work.finish(outcome).expect("nobody else says what became of it");
            });
        }
    }
}

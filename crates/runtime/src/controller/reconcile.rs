//! One reconcile: what is seen becomes a plan, the plan runs, the status tells.

use std::{
    any::Any,
    collections::{BTreeSet, HashMap},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt as _;
use moorline_plan::{Cancellation, Class, Failure, Outcome, Outcomes, Plan, execute};
use serde_json::Value;
use tokio::sync::OnceCell;
use tracing::Instrument as _;

use super::{
    Ground, Members, Settings,
    plans::{Made, Plans},
};
use crate::{
    actor::Actor,
    aftermath::{Aftermath, failed},
    conditions,
    events::{self, EventType, Published, Tells},
    execute::{Effect, Expect, Hands, Write},
    gate::{self, Answered},
    metrics::ControllerMetrics,
    object::{Key, Object, Target},
    scales::{Asking, Scales},
    settled::Settled,
    snapshot::{Caches, Entropy, Given, Live, Reads},
    sources::Sources,
    watches::{Conditions, Deleted, Watches},
};

/// How long it may take to tell that a look was cut off.
const APOLOGY: Duration = Duration::from_secs(5);

/// What becomes of a key after its reconcile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    Done,
    /// Something was changed: look once more when the cache has seen it, whether or not that wakes anybody.
    Again,
    After(Duration),
    Retry,
}

/// An actor with everything that is made of it once.
pub(super) struct Mind<A: Actor> {
    pub(super) name: Arc<str>,
    field_owner: Arc<str>,
    pub(super) watches: Watches,
    plans: Plans<A::Object>,
    pub(super) sources: Arc<Sources>,
    pub(super) members: Arc<Members>,
    scales: Option<Arc<Scales>>,
    pub(super) ground: Ground,
    pub(super) settings: Settings,
    pub(super) metrics: ControllerMetrics,
    settled: Arc<Settled>,
    events: Published,
    entropy: Entropy,
    /// What the cache was too late for, by the key that waits for it.
    late: Mutex<HashMap<Key, Vec<Write>>>,
}

impl<A: Actor> Mind<A> {
    pub(super) fn new(
        actor: &A,
        watches: Watches,
        sources: Arc<Sources>,
        scales: Option<Arc<Scales>>,
        settled: Arc<Settled>,
        ground: Ground,
        settings: Settings,
    ) -> Self {
        Self {
            name: Arc::from(actor.name()),
            field_owner: Arc::from(&*settings.field_owner),
            plans: Plans::of(actor, &watches),
            watches,
            sources,
            members: Arc::default(),
            scales,
            metrics: ControllerMetrics::new(&ground.metrics, actor.name()),
            ground,
            settings,
            entropy: Entropy::fresh(),
            settled,
            events: Published::default(),
            late: Mutex::default(),
        }
    }

    /// Looks at a key take these from the server itself until the cache has seen them.
    pub(super) fn take_live(&self, key: Key, writes: Vec<Write>) {
        let mut late = self.late.lock().expect("nothing panics while it holds this");
        late.entry(key).or_default().extend(writes);
    }

    /// What the cache has not seen yet of what a key wrote.
    fn still_late(&self, key: &Key) -> BTreeSet<Target> {
        let mut late = self.late.lock().expect("nothing panics while it holds this");
        let Some(writes) = late.get_mut(key) else {
            return BTreeSet::new();
        };
        writes.retain(|write| !gate::is_seen(&self.sources, &self.members, write));
        let targets = writes.iter().map(|write| write.target.clone()).collect();
        if writes.is_empty() {
            late.remove(key);
        }
        targets
    }

    /// What became of writes whose answers were lost is known once the server has been asked.
    fn learn(&self, key: &Key, live: &Live) {
        let mut late = self.late.lock().expect("nothing panics while it holds this");
        let Some(writes) = late.get_mut(key) else { return };
        for write in writes.iter_mut().filter(|write| write.expect == Expect::Unknown) {
            if let Some(answer) = live.get(&write.target) {
                write.expect = Expect::Version(answer.as_ref().map_or(0, Object::version));
            }
        }
    }

    /// Looks at an object and does what follows. Never panics, and never takes longer than it may.
    pub(super) async fn reconcile(&self, key: &Key, failures: u32, cancellation: &Cancellation) -> (Next, Vec<Write>) {
        let started = tokio::time::Instant::now();
        // It only has to differ from others, so it needs no randomness of the operating system.
        let id = uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid();
        let id = id.to_string();
        let span = tracing::info_span!("reconcile", controller = %self.name, object = %key, reconcile = %id);
        let writes = Arc::new(Mutex::new(Vec::new()));
        let looking = self.look(key, id, &writes, cancellation).instrument(span.clone());
        let looking = AssertUnwindSafe(tokio::time::timeout(self.settings.timeout, looking)).catch_unwind();
        let result = match looking.await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => {
                self.metrics.timeouts.inc();
                let failure = Failure::retry(format!("it took longer than {:?}", self.settings.timeout));
                self.apologise(key, &failure, &writes, cancellation).await;
                Err(failure)
            }
            Err(panic) => {
                self.metrics.panics.inc();
                let failure = Failure::retry(format!("it panicked: {}", words_of(&*panic)));
                self.apologise(key, &failure, &writes, cancellation).await;
                Err(failure)
            }
        };
        let (next, result) = match result {
            Ok(next) => {
                let result = match next {
                    Next::Done => &self.metrics.succeeded,
                    Next::After(_) => &self.metrics.requeued_after,
                    Next::Again | Next::Retry => &self.metrics.requeued,
                };
                (next, result)
            }
            Err(failure) => {
                let _entered = span.enter();
                self.metrics.errors.inc();
                if failure.class == Class::Terminal {
                    self.metrics.terminal_errors.inc();
                    tracing::error!(error = %failure, "a reconcile failed and is not tried again");
                    (Next::Done, &self.metrics.failed)
                } else {
                    tracing::warn!(error = %failure, failures, "a reconcile failed and is tried again");
                    (Next::Retry, &self.metrics.failed)
                }
            }
        };
        result.inc();
        self.metrics.reconcile_time.observe(started.elapsed().as_secs_f64());
        let mut writes = std::mem::take(&mut *writes.lock().expect("nothing panics while it holds this"));
        writes.retain(|write: &Write| write.expect != Expect::Version(0));
        (next, writes)
    }

    /// A look that was cut off has told nobody. The status says at least that, if it can be written soon.
    async fn apologise(
        &self,
        key: &Key,
        failure: &Failure,
        writes: &Arc<Mutex<Vec<Write>>>,
        cancellation: &Cancellation,
    ) {
        let Some(object) = self.sources.find(&self.target_of(key)) else {
            return;
        };
        let now = self.ground.time.now();
        let telling = async {
            // Where conditions are the actor's own, only it could word them.
            if let (Conditions::Written, Ok(made)) = (&self.watches.conditions, self.plans.apologise(&object, failure))
            {
                // It ends in the failure that it tells of.
                drop(self.run(&object, made, now, None, writes, cancellation).await);
            } else {
                self.warn(&object, "ReconcileFailed", &failure.message, now).await;
            }
        };
        let telling = AssertUnwindSafe(tokio::time::timeout(APOLOGY, telling)).catch_unwind();
        if !matches!(telling.await, Ok(Ok(()))) {
            tracing::warn!(object = %key, error = %failure, "a failure could not be told in the status");
        }
    }

    fn target_of(&self, key: &Key) -> Target {
        Target {
            kind: self.watches.primary.clone(),
            namespace: Arc::clone(&key.namespace),
            name: Arc::clone(&key.name),
            cluster: None,
        }
    }

    async fn look(
        &self,
        key: &Key,
        id: String,
        writes: &Arc<Mutex<Vec<Write>>>,
        cancellation: &Cancellation,
    ) -> Result<Next, Failure> {
        let Answered { live, unknown } = gate::read_live(&self.ground, self.still_late(key)).await;
        self.learn(key, &live);
        if let Some((_, failure)) = unknown.iter().find(|(target, _)| target.cluster.is_none()) {
            // Planning from what is known to be behind could do things twice.
            return Err(Failure::retry(failure.message.clone()));
        }
        let own = self.target_of(key);
        let cached = || self.sources.find(&own);
        let Some(object) = live.get(&own).cloned().unwrap_or_else(cached) else {
            if let Some(scales) = &self.scales {
                scales.settle(key, &BTreeSet::new());
            }
            return Ok(Next::Done);
        };
        let left_alone = object.is_deleting() && self.watches.deleted == Deleted::LeftAlone;
        if left_alone && !self.plans.finalizer().is_some_and(|name| object.has_finalizer(name)) {
            return Ok(Next::Done);
        }
        let owned = self
            .watches
            .owned_kinds()
            .map(|(kind, _)| self.sources.ownership_changed(kind, object.uid()));
        let given = Given {
            now: self.ground.time.now(),
            id,
            epoch: owned.max().unwrap_or(0),
            field_owner: Arc::clone(&self.field_owner),
            actor: Arc::clone(&self.name),
            clusters: self.members.names(),
            forgotten: self.forgotten(),
            entropy: self.entropy.clone(),
        };
        let kept = self.ground.recorder.as_ref().map(|_| given.clone());
        let now = given.now;
        let asking = self
            .scales
            .as_ref()
            .map(|scales| Arc::new(Asking::new(Arc::clone(scales), key.clone())));
        let made = loop {
            let reads = Reads::from_caches(Caches {
                sources: Arc::clone(&self.sources),
                members: Arc::clone(&self.members),
                live: live.clone(),
                unknown: unknown.clone(),
                scales: asking.clone(),
            });
            let made = self.plans.make(&object, given.clone(), reads)?;
            match &asking {
                Some(asking) if asking.resolve().await => {}
                _ => break made,
            }
        };
        if made.panicked {
            self.metrics.panics.inc();
        }
        tracing::debug!(steps = made.built.plan.len(), "planned");
        self.run(&object, made, now, kept, writes, cancellation).await
    }

    /// The members that are not waited for any more.
    fn forgotten(&self) -> Vec<String> {
        if self.watches.spread.is_empty() {
            return Vec::new();
        }
        let forgotten = self.ground.clusters.forgotten();
        forgotten.iter().map(ToString::to_string).collect()
    }

    async fn run(
        &self,
        object: &Object,
        made: Made,
        now: jiff::Timestamp,
        kept: Option<Given>,
        writes: &Arc<Mutex<Vec<Write>>>,
        cancellation: &Cancellation,
    ) -> Result<Next, Failure> {
        let Made {
            built,
            account,
            panicked,
            answers,
        } = made;
        let conclude = |status: &mut Value, outcomes: &Outcomes<Target, Effect>| {
            let before = object.status();
            match &self.watches.conditions {
                Conditions::Written => conditions::write(status, &before, object.generation(), now, &account, outcomes),
                Conditions::LeftToTheActor => {}
                Conditions::Concluded(conclude) => {
                    let aftermath = Aftermath {
                        now,
                        before: &before,
                        plan: &built.plan,
                        outcomes,
                    };
                    conclude(status, &aftermath);
                }
            }
        };
        let hands = Hands {
            ground: &self.ground,
            plan: &built.plan,
            field_owner: &self.field_owner,
            settled: &self.settled,
            events: &self.events,
            conclude: match self.watches.conditions {
                Conditions::LeftToTheActor => None,
                Conditions::Written | Conditions::Concluded(_) => Some(&conclude),
            },
            writes: Arc::clone(writes),
            own_version: Mutex::new(object.version()),
            conflicted: false.into(),
            effective: Mutex::default(),
            may_adopt: OnceCell::new(),
        };
        let outcomes = execute(&built.plan, &hands, self.settings.steps, cancellation).await;
        let conflicted = hands.conflicted.into_inner();
        let mut failures: Vec<Failure> = account
            .trouble
            .iter()
            .map(|(class, message)| Failure {
                class: *class,
                message: message.clone(),
            })
            .collect();
        let changed = outcomes.iter().any(|(key, outcome)| {
            key != built.plan.root_key() && matches!(outcome, Outcome::Done(Effect::Written { .. } | Effect::Deleted))
        });
        failures.extend(outcomes.failures().map(|(_, failure)| failure.clone()));
        let worst = failures
            .iter()
            .find(|failure| failure.class == Class::Retry)
            .or_else(|| failures.iter().find(|failure| failure.class == Class::Terminal))
            .cloned();
        // What the server refuses today, by a policy or for want of something, it may take tomorrow, and nobody tells.
        let refused = outcomes.failures().any(|(_, failure)| failure.class == Class::Terminal);
        let named = self.tell_failures(object, &built.plan, &outcomes, now).await;
        if let (Some(recorder), Some(given)) = (&self.ground.recorder, kept) {
            recorder.keep(object, given, answers, built.plan.clone(), outcomes);
        }
        if let Some(worst) = worst {
            // The worst is told by whoever called; of the others, a status that could not be written among them, nobody
            // else would know.
            let others = failures
                .iter()
                .filter(|other| **other != worst && other.class != Class::Waiting);
            for other in others {
                tracing::warn!(error = %other, "this failed as well");
            }
            if !named.contains(&worst.message) {
                self.warn(object, "ReconcileFailed", &worst.message, now).await;
            }
            if panicked || refused {
                return Err(Failure::retry(worst.message));
            }
            return Err(worst);
        }
        if conflicted {
            return Ok(Next::Retry);
        }
        if changed {
            return Ok(Next::Again);
        }
        Ok(built.look_again.map_or(Next::Done, |look| Next::After(look.after)))
    }

    /// Publishes failures under the names that the actor has for them, and gives those that it had a name for.
    async fn tell_failures(
        &self,
        object: &Object,
        plan: &Plan<Object>,
        outcomes: &Outcomes<Target, Effect>,
        now: jiff::Timestamp,
    ) -> Vec<String> {
        let Some(naming) = &self.watches.naming else {
            return Vec::new();
        };
        if outcomes.failures().next().is_none() {
            return Vec::new();
        }
        let mut named = Vec::new();
        for failed in failed(plan, outcomes) {
            if let Some((reason, note)) = naming(&failed) {
                self.warn(object, &reason, &note, now).await;
                named.push(failed.message.to_owned());
            }
        }
        named
    }

    /// Publishes a failure for people.
    async fn warn(&self, object: &Object, reason: &str, note: &str, now: jiff::Timestamp) {
        let event = events::compose(
            object,
            EventType::Warning,
            reason,
            note,
            &self.name,
            &self.field_owner,
            now,
        );
        if let (Ok(event), Ok(())) = (event, self.ground.fence.check()) {
            self.events
                .publish(self.ground.cache.client(), &event, Tells::State)
                .await;
        }
    }
}

pub(super) fn words_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without words")
}

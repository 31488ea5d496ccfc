//! One reconcile: what is seen becomes a plan, the plan runs, the status tells.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt as _;
use moorline_plan::{
    Built, Cancellation, Class, Failure, Outcomes, Part, PlanBuilder, Step, execute,
};
use serde_json::Value;
use tracing::Instrument as _;

use super::{Ground, Settings, closing};
use crate::{
    actor::{Actor, Farewell, Planner},
    conditions::{self, Account},
    dependency::{Dependency, Met},
    events::{self, EventType, Published},
    execute::{Effect, Expect, Hands, Settled, Write},
    gate,
    kind::Kind,
    metrics::{OfController, Reconciled},
    object::{Key, Object, Target},
    snapshot::{Entropy, Given, Reads, Snapshot},
    sources::Sources,
    watches::{Conditions, Owning, Watches},
};

/// What becomes of a key after its reconcile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    Done,
    After(Duration),
    Retry,
}

/// An actor with everything that is made of it once.
pub(super) struct Mind<A: Actor> {
    pub(super) name: Arc<str>,
    field_owner: Arc<str>,
    watches: Watches,
    dependencies: Arc<[Dependency]>,
    planner: Planner<A::Object>,
    farewell: Option<(&'static str, Planner<A::Object>)>,
    /// For when the actor cannot be asked: nothing but the status.
    apology: PlanBuilder<Object, Object>,
    pub(super) sources: Arc<Sources>,
    pub(super) ground: Ground,
    pub(super) settings: Settings,
    settled: Settled,
    events: Published,
    /// What the cache was too late for, by the key that waits for it.
    late: Mutex<HashMap<Key, Vec<Target>>>,
}

/// How the making of a plan went.
struct Made {
    built: Built<Object>,
    account: Account,
    panicked: bool,
}

impl<A: Actor> Mind<A> {
    pub(super) fn new(
        actor: A,
        watches: Watches,
        sources: Arc<Sources>,
        ground: Ground,
        settings: Settings,
    ) -> Self {
        let root = |seen: &Snapshot<A::Object>| Ok(status_of(seen.raw()));
        let farewell = match actor.farewell(PlanBuilder::new(root)) {
            Farewell::None => None,
            Farewell::Finalizer { name, plan } => {
                let plan = plan.closing(closing::RUNTIME, move |seen, draft, end, look_again| {
                    closing::unwanted(seen, draft, end, look_again, name)
                });
                Some((name, plan))
            }
        };
        let finalizer = farewell.as_ref().map(|(name, _)| *name);
        let owned = watches.owned_kinds().filter(|(_, owning)| *owning == Owning::Exactly);
        let pruned: Vec<Kind> = owned.map(|(kind, _)| kind.clone()).collect();
        let planner = actor.plan(PlanBuilder::new(root)).closing(closing::RUNTIME, move |seen, draft, end, _| {
            closing::wanted(seen, draft, end, finalizer, &pruned)
        });
        Self {
            name: Arc::from(actor.name()),
            field_owner: Arc::from(&*settings.field_owner),
            dependencies: watches.dependencies.clone().into(),
            planner,
            farewell,
            apology: PlanBuilder::new(|object: &Object| Ok(status_of(object))),
            watches,
            sources,
            ground,
            settings,
            settled: Settled::default(),
            events: Published::default(),
            late: Mutex::default(),
        }
    }

    /// The next look at a key takes these from the server itself.
    pub(super) fn take_live(&self, key: Key, targets: Vec<Target>) {
        self.late.lock().expect("nothing panics while it holds this").insert(key, targets);
    }

    /// Looks at an object and does what follows. Never panics, and never takes longer than it may.
    pub(super) async fn reconcile(
        &self,
        key: &Key,
        failures: u32,
        cancellation: &Cancellation,
    ) -> (Next, Vec<Write>) {
        let started = tokio::time::Instant::now();
        let id = uuid::Uuid::new_v4().to_string();
        let span = tracing::info_span!("reconcile", controller = %self.name, object = %key, reconcile = %id);
        let writes = Arc::new(Mutex::new(Vec::new()));
        let looking = self.look(key, id, &writes, cancellation).instrument(span.clone());
        let looking = AssertUnwindSafe(tokio::time::timeout(self.settings.timeout, looking)).catch_unwind();
        let result = match looking.await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Failure::retry(format!("it took longer than {:?}", self.settings.timeout))),
            Err(panic) => {
                self.ground.metrics.panics.get_or_create(&self.labels()).inc();
                Err(Failure::retry(format!("it panicked: {}", words_of(&*panic))))
            }
        };
        let (next, result) = match result {
            Ok(next) => {
                let result = match next {
                    Next::Done => "success",
                    Next::After(_) => "requeue_after",
                    Next::Retry => "requeue",
                };
                (next, result)
            }
            Err(failure) => {
                let _entered = span.enter();
                self.ground.metrics.errors.get_or_create(&self.labels()).inc();
                if failure.class == Class::Terminal {
                    self.ground.metrics.terminal_errors.get_or_create(&self.labels()).inc();
                    tracing::error!(error = %failure, "a reconcile failed and is not tried again");
                    (Next::Done, "error")
                } else {
                    tracing::warn!(error = %failure, failures, "a reconcile failed and is tried again");
                    (Next::Retry, "error")
                }
            }
        };
        let labels = Reconciled { controller: self.name.to_string(), result };
        self.ground.metrics.reconciles.get_or_create(&labels).inc();
        let elapsed = started.elapsed().as_secs_f64();
        self.ground.metrics.reconcile_time.get_or_create(&self.labels()).observe(elapsed);
        let mut writes = std::mem::take(&mut *writes.lock().expect("nothing panics while it holds this"));
        writes.retain(|write: &Write| write.expect != Expect::Version(0));
        (next, writes)
    }

    async fn look(
        &self,
        key: &Key,
        id: String,
        writes: &Arc<Mutex<Vec<Write>>>,
        cancellation: &Cancellation,
    ) -> Result<Next, Failure> {
        let late = self.late.lock().expect("nothing panics while it holds this").remove(key).unwrap_or_default();
        let live = gate::read_live(self.ground.cache.client(), late).await;
        let own = Target {
            kind: self.watches.primary.clone(),
            namespace: Arc::clone(&key.namespace),
            name: Arc::clone(&key.name),
            cluster: None,
        };
        let cached = || self.sources.find(&own);
        let Some(object) = live.get(&own).cloned().unwrap_or_else(cached) else {
            self.settled.forget(&own);
            return Ok(Next::Done);
        };
        let finalizing = object.is_deleting();
        if finalizing && !self.farewell.as_ref().is_some_and(|(name, _)| object.has_finalizer(name)) {
            return Ok(Next::Done);
        }
        let owned = self.watches.owned_kinds().map(|(kind, _)| self.sources.ownership_changed(kind, object.uid()));
        let given = Given {
            now: self.ground.time.now(),
            id,
            epoch: owned.max().unwrap_or(0),
            field_owner: Arc::clone(&self.field_owner),
            actor: Arc::clone(&self.name),
            entropy: Entropy::fresh(),
        };
        let now = given.now;
        let reads = Reads::from_caches(Arc::clone(&self.sources), live);
        let made = self.make(&object, given, reads)?;
        tracing::debug!(steps = made.built.plan.len(), "planned");
        self.run(&object, made, now, writes, cancellation).await
    }

    /// Makes the plan. What cannot be planned still gets a status.
    fn make(&self, object: &Object, given: Given, reads: Reads) -> Result<Made, Failure> {
        let mut account = Account { finalizing: object.is_deleting(), ..Account::default() };
        let making = || {
            let seen = Snapshot::<A::Object>::new(object.clone(), given, reads, Arc::clone(&self.dependencies))?;
            let planner = match &self.farewell {
                Some((_, farewell)) if object.is_deleting() => farewell,
                _ => &self.planner,
            };
            let built = planner.build(&seen)?;
            let mut unmet = Vec::new();
            for (_, met) in seen.dependencies() {
                match met {
                    Ok(Met::Yes) => {}
                    Ok(Met::No(what)) => unmet.push(what),
                    Err(failure) => unmet.push(failure.message),
                }
            }
            Ok::<_, Failure>((built, unmet))
        };
        match catch_unwind(AssertUnwindSafe(making)) {
            Ok(Ok((built, unmet))) => {
                account.note_end(&built.end, built.look_again.as_ref());
                account.unmet = (!self.dependencies.is_empty()).then_some(unmet);
                let children = built.plan.order().filter_map(|(key, step)| {
                    let child = step.base().filter(|_| key.part == Part::Object && key.target != object.target());
                    child.filter(|child| child.owners().iter().any(|owner| *owner.uid == *object.uid()))
                });
                account.unready = children.filter_map(conditions::unready).collect();
                Ok(Made { built, account, panicked: false })
            }
            Ok(Err(failure)) => {
                account.trouble.push((failure.class, failure.message));
                Ok(Made { built: self.apology.build(object)?, account, panicked: false })
            }
            Err(panic) => {
                self.ground.metrics.panics.get_or_create(&self.labels()).inc();
                account.trouble.push((Class::Terminal, format!("the actor panicked: {}", words_of(&*panic))));
                Ok(Made { built: self.apology.build(object)?, account, panicked: true })
            }
        }
    }

    async fn run(
        &self,
        object: &Object,
        made: Made,
        now: jiff::Timestamp,
        writes: &Arc<Mutex<Vec<Write>>>,
        cancellation: &Cancellation,
    ) -> Result<Next, Failure> {
        let Made { built, account, panicked } = made;
        let before = object.value()["status"].take();
        let conclude = |status: &mut Value, outcomes: &Outcomes<Target, Effect>| {
            if self.watches.conditions == Conditions::Written {
                conditions::write(status, &before, object.generation(), now, &account, outcomes);
            }
        };
        let hands = Hands {
            client: self.ground.cache.client(),
            field_owner: &self.field_owner,
            settled: &self.settled,
            events: &self.events,
            conclude: &conclude,
            writes: Arc::clone(writes),
            own_version: Mutex::new(object.version()),
            conflicted: false.into(),
        };
        let outcomes = execute(&built.plan, &hands, self.settings.steps, cancellation).await;
        let conflicted = hands.conflicted.into_inner();
        let mut failures: Vec<Failure> = account
            .trouble
            .iter()
            .map(|(class, message)| Failure { class: *class, message: message.clone() })
            .collect();
        failures.extend(outcomes.failures().map(|(_, failure)| failure.clone()));
        let worst = failures
            .iter()
            .find(|failure| failure.class == Class::Retry)
            .or_else(|| failures.iter().find(|failure| failure.class == Class::Terminal));
        if let Some(worst) = worst {
            self.warn(object, worst, now).await;
            if panicked {
                return Err(Failure::retry(worst.message.clone()));
            }
            return Err(worst.clone());
        }
        if conflicted {
            return Ok(Next::Retry);
        }
        Ok(built.look_again.map_or(Next::Done, |look| Next::After(look.after)))
    }

    /// Publishes a failure for people.
    async fn warn(&self, object: &Object, failure: &Failure, now: jiff::Timestamp) {
        let (warning, reason) = (EventType::Warning, "ReconcileFailed");
        let event =
            events::compose(object, warning, reason, &failure.message, &self.name, &self.field_owner, now);
        if let Ok(event) = event {
            self.events.publish(self.ground.cache.client(), &event).await;
        }
    }

    fn labels(&self) -> OfController {
        OfController { controller: self.name.to_string() }
    }
}

fn status_of(object: &Object) -> Step<Object> {
    Step::status(object.clone(), object.clone(), "tell how it went")
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without words")
}

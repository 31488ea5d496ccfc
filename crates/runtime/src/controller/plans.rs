//! From a snapshot to a plan: the actor's transformers, and what the runtime adds to them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use moorline_plan::{Built, Class, Failure, Part, PlanBuilder, Step};

use super::{closing, reconcile::words_of};
use crate::{
    actor::{Actor, Farewell, Planner},
    cache::OWNER_LABEL,
    conditions::{self, Account},
    dependency::{Dependency, Met},
    kind::Kind,
    object::Object,
    snapshot::{Answers, Given, Reads, Snapshot},
    watches::{Owning, Watches},
};

/// The finalizer of objects whose parts live in member clusters.
const SPREAD: &str = "moorline.io/spread";

/// An actor's transformers, ready to be run. Pure: no client, no cache.
pub(crate) struct Plans<K> {
    dependencies: Arc<[Dependency]>,
    planner: Planner<K>,
    farewell: Option<(&'static str, Planner<K>)>,
    /// For when the actor cannot be asked: nothing but the status.
    apology: PlanBuilder<Object, Object>,
}

/// A plan and how its making went.
pub(crate) struct Made {
    pub(crate) built: Built<Object>,
    pub(crate) account: Account,
    pub(crate) panicked: bool,
    /// Every question that was asked, with its answer.
    pub(crate) answers: Answers,
}

impl<K: serde::de::DeserializeOwned + Send + Sync + 'static> Plans<K> {
    pub(crate) fn of<A: Actor<Object = K>>(actor: &A, watches: &Watches) -> Self {
        let root = |seen: &Snapshot<K>| Ok(status_of(seen.raw()));
        let spread: Vec<Kind> = watches.spread_kinds().cloned().collect();
        let farewell = match actor.farewell(PlanBuilder::new(root)) {
            Farewell::None if spread.is_empty() => None,
            Farewell::None => Some((SPREAD, PlanBuilder::new(root))),
            Farewell::Finalizer { name, plan } => Some((name, plan)),
        };
        let farewell = farewell.map(|(name, plan)| {
            let spread = spread.clone();
            let plan = plan.closing(closing::RUNTIME, move |seen, draft, end, look_again| {
                closing::unwanted(seen, draft, end, look_again, name, &spread)
            });
            (name, plan)
        });
        let finalizer = farewell.as_ref().map(|(name, _)| *name);
        let owned = watches.owned_kinds().filter(|(_, owning)| *owning == Owning::Exactly);
        let pruned: Vec<Kind> = owned.map(|(kind, _)| kind.clone()).collect();
        let planner = actor
            .plan(PlanBuilder::new(root))
            .closing(closing::RUNTIME, move |seen, draft, end, _| {
                closing::wanted(seen, draft, end, finalizer, &pruned, &spread)
            });
        Self {
            dependencies: watches.dependencies.clone().into(),
            planner,
            farewell,
            apology: PlanBuilder::new(|object: &Object| Ok(status_of(object))),
        }
    }

    pub(crate) fn finalizer(&self) -> Option<&'static str> {
        self.farewell.as_ref().map(|(name, _)| *name)
    }

    /// A plan that does nothing but tell of a failure.
    pub(crate) fn apologise(&self, object: &Object, failure: &Failure) -> Result<Made, Failure> {
        Ok(Made {
            built: self.apology.build(object)?,
            account: Account {
                finalizing: object.is_deleting(),
                trouble: vec![(failure.class, failure.message.clone())],
                ..Account::default()
            },
            panicked: false,
            answers: Answers::new(),
        })
    }

    /// Makes the plan. What cannot be planned still gets a status.
    pub(crate) fn make(&self, object: &Object, given: Given, reads: Reads) -> Result<Made, Failure> {
        let mut account = Account {
            finalizing: object.is_deleting(),
            ..Account::default()
        };
        let reads = Arc::new(reads);
        let making = || {
            let dependencies = Arc::clone(&self.dependencies);
            let seen = Snapshot::<K>::new(object.clone(), given, Arc::clone(&reads), dependencies)?;
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
        let mut panicked = false;
        let built = match catch_unwind(AssertUnwindSafe(making)) {
            Ok(Ok((built, unmet))) => {
                account.note_end(&built.end, built.look_again.as_ref());
                account.unmet = (!self.dependencies.is_empty()).then_some(unmet);
                account.unready = unready_children(object, &built);
                built
            }
            Ok(Err(failure)) => {
                account.trouble.push((failure.class, failure.message));
                self.apology.build(object)?
            }
            Err(panic) => {
                panicked = true;
                account
                    .trouble
                    .push((Class::Terminal, format!("the actor panicked: {}", words_of(&*panic))));
                self.apology.build(object)?
            }
        };
        Ok(Made {
            built,
            account,
            panicked,
            answers: reads.answers(),
        })
    }
}

/// What the plan leaves as it is, belongs to the object and is not ready.
fn unready_children(object: &Object, built: &Built<Object>) -> Vec<String> {
    let children = built.plan.order().filter_map(|(key, step)| {
        let child = step
            .base()
            .filter(|_| key.part == Part::Object && key.target != object.target());
        child.filter(|child| {
            // What lives in a member cannot refer to its owner, and names it by label.
            let by_label = child.cluster().is_some() && child.label(OWNER_LABEL) == Some(object.uid());
            by_label || child.owners().iter().any(|owner| *owner.uid == *object.uid())
        })
    });
    children.filter_map(conditions::unready).collect()
}

fn status_of(object: &Object) -> Step<Object> {
    Step::status(object.clone(), object.clone(), "tell how it went")
}

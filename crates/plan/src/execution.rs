//! The execution of a plan as a state machine: which step may start next, and what follows from an outcome.
//!
//! It knows no clock and no runtime. [`execute`](crate::execute) drives it with futures; a simulator drives it by
//! hand and chooses every interleaving.

use std::{collections::HashSet, num::NonZeroUsize, sync::Arc};

use moorline_graph::ReadySet;
use serde::{Deserialize, Serialize};

use crate::{Failure, Object, Plan, Step, StepKey};

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Outcome<T, R> {
    /// It succeeded, and this came of it.
    Done(R),
    /// It failed.
    Failed(Failure),
    /// It never started, because a step that had to succeed first failed.
    Blocked {
        /// The step that failed.
        by: StepKey<T>,
    },
    /// It never started, because the execution was cancelled.
    Cancelled,
}

/// Every outcome so far, in the order in which the steps ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    transparent,
    bound(
        serialize = "T: Serialize, R: Serialize",
        deserialize = "T: Deserialize<'de>, R: Deserialize<'de>"
    )
)]
pub struct Outcomes<T, R>(Vec<(StepKey<T>, Outcome<T, R>)>);

impl<T: Eq, R> Outcomes<T, R> {
    /// The outcomes in the order in which the steps ended.
    pub fn iter(&self) -> impl Iterator<Item = (&StepKey<T>, &Outcome<T, R>)> {
        self.0.iter().map(|(key, outcome)| (key, outcome))
    }

    /// How many steps have ended.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no step has ended.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The failures, in the order in which they happened.
    pub fn failures(&self) -> impl Iterator<Item = (&StepKey<T>, &Failure)> {
        self.0.iter().filter_map(|(key, outcome)| match outcome {
            Outcome::Failed(failure) => Some((key, failure)),
            _ => None,
        })
    }

    /// Whether every step that has ended has succeeded.
    pub fn all_done(&self) -> bool {
        self.0.iter().all(|(_, outcome)| matches!(outcome, Outcome::Done(_)))
    }
}

impl<T, R> Outcomes<T, R> {
    fn push(&mut self, outcome: (StepKey<T>, Outcome<T, R>)) {
        self.0.push(outcome);
    }

    fn extend(&mut self, outcomes: impl IntoIterator<Item = (StepKey<T>, Outcome<T, R>)>) {
        self.0.extend(outcomes);
    }
}

/// How far a cancelled execution still goes. Steps that run are always waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cancel {
    /// No further step starts but the root, which tells the outcomes. For an operation that somebody called off.
    Steps,
    /// No further step starts, the root included. For a controller that may no longer write, having lost its lease.
    All,
}

/// What may happen next in an execution.
#[derive(Debug, PartialEq)]
pub enum Next<'p, O: Object> {
    /// Start this step, and [`settle`](Execution::settle) it when it ends.
    Start(&'p StepKey<O::Target>, &'p Arc<Step<O>>),
    /// Everything else has ended: start the root, with every outcome at hand, and settle it.
    StartRoot(&'p StepKey<O::Target>, &'p Step<O>),
    /// Nothing, until a running step is settled.
    Wait,
    /// Nothing more: the execution is over.
    Over,
}

/// A plan being executed. `R` is what a successful step yields.
pub struct Execution<'p, O: Object, R> {
    plan: &'p Plan<O>,
    ready: ReadySet<'p, StepKey<O::Target>, Arc<Step<O>>>,
    bound: NonZeroUsize,
    running: usize,
    cancelled: Option<Cancel>,
    root: Root,
    outcomes: Outcomes<O::Target, R>,
}

/// Where the root stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// Other steps are not over. Left when the last of them ends.
    Waiting,
    /// With the executor. Left by `settle`.
    Running,
    /// Settled, or given up with the rest.
    Over,
}

/// A step was settled that is not running.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot settle {step}: it is not running")]
pub struct NotRunning {
    /// The step, as text.
    pub step: String,
}

impl<'p, O: Object, R> Execution<'p, O, R> {
    /// An execution of `plan` that runs at most `bound` steps at once.
    pub fn new(plan: &'p Plan<O>, bound: NonZeroUsize) -> Self {
        Self {
            plan,
            ready: plan.ready_set(),
            bound,
            running: 0,
            cancelled: None,
            root: Root::Waiting,
            outcomes: Outcomes(Vec::with_capacity(plan.len())),
        }
    }

    /// What may happen next. A step that is returned counts as running from then on.
    pub fn advance(&mut self) -> Next<'p, O> {
        match self.root {
            Root::Running => return Next::Wait,
            Root::Over => return Next::Over,
            Root::Waiting => {}
        }
        if self.cancelled.is_none() && self.running < self.bound.get() {
            match self.ready.pop() {
                Some((key, step)) if key != self.plan.root_key() => {
                    self.running += 1;
                    return Next::Start(key, step);
                }
                // The root is ready by itself once everything below it succeeded.
                Some(_) => return self.start_root(),
                None => {}
            }
        }
        if self.running > 0 {
            return Next::Wait;
        }
        match self.cancelled {
            None => self.start_root(),
            Some(Cancel::Steps) => {
                self.cancel_the_rest();
                self.start_root()
            }
            Some(Cancel::All) => {
                self.cancel_the_rest();
                self.outcomes.push((self.plan.root_key().clone(), Outcome::Cancelled));
                self.root = Root::Over;
                Next::Over
            }
        }
    }

    /// Takes the end of a running step. If it failed, whatever waits for it is blocked; nothing else is.
    pub fn settle(&mut self, key: &StepKey<O::Target>, result: Result<R, Failure>) -> Result<(), NotRunning> {
        let not_running = || NotRunning { step: key.to_string() };
        let mut blocked = Vec::new();
        if key == self.plan.root_key() {
            if self.root != Root::Running {
                return Err(not_running());
            }
            self.root = Root::Over;
        } else {
            if result.is_ok() {
                self.ready.complete(key).map_err(|_| not_running())?;
            } else {
                blocked = self.ready.fail(key).map_err(|_| not_running())?;
            }
            self.running -= 1;
        }
        let outcome = match result {
            Ok(yielded) => Outcome::Done(yielded),
            Err(failure) => Outcome::Failed(failure),
        };
        self.outcomes.push((key.clone(), outcome));
        let root = self.plan.root_key();
        let blocked = blocked.into_iter().filter(|key| *key != root);
        self.outcomes
            .extend(blocked.map(|blocked| (blocked.clone(), Outcome::Blocked { by: key.clone() })));
        Ok(())
    }

    /// Lets no further step start. A farther reaching cancel overrules an earlier one, never the other way round.
    pub fn cancel(&mut self, how: Cancel) {
        self.cancelled = self.cancelled.max(Some(how));
    }

    /// The outcomes so far.
    pub fn outcomes(&self) -> &Outcomes<O::Target, R> {
        &self.outcomes
    }

    /// The outcomes, when the execution is over or given up.
    pub fn into_outcomes(self) -> Outcomes<O::Target, R> {
        self.outcomes
    }

    fn start_root(&mut self) -> Next<'p, O> {
        self.root = Root::Running;
        Next::StartRoot(self.plan.root_key(), self.plan.root())
    }

    fn cancel_the_rest(&mut self) {
        let ended: HashSet<_> = self.outcomes.iter().map(|(key, _)| key.clone()).collect();
        let root = self.plan.root_key();
        let rest = self
            .plan
            .order()
            .filter(|(key, _)| *key != root && !ended.contains(key));
        let cancelled: Vec<_> = rest.map(|(key, _)| (key.clone(), Outcome::Cancelled)).collect();
        self.outcomes.extend(cancelled);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Name, Thing, plan_of};

    fn bound(steps: usize) -> NonZeroUsize {
        NonZeroUsize::new(steps).unwrap()
    }

    /// Starts everything that may start now; the names of those, the root's included.
    fn start_all(execution: &mut Execution<'_, Thing, ()>) -> Vec<String> {
        let mut started = Vec::new();
        loop {
            match execution.advance() {
                Next::Start(key, _) | Next::StartRoot(key, _) => started.push(key.to_string()),
                Next::Wait | Next::Over => return started,
            }
        }
    }

    fn key(name: &str) -> StepKey<Name> {
        StepKey {
            target: Name(name.to_owned()),
            part: crate::Part::Object,
        }
    }

    fn outcomes(execution: &Execution<'_, Thing, ()>) -> Vec<(String, Outcome<Name, ()>)> {
        execution
            .outcomes()
            .iter()
            .map(|(key, outcome)| (key.to_string(), outcome.clone()))
            .collect()
    }

    #[test]
    fn everything_that_is_ready_starts_at_once_up_to_the_bound() {
        let plan = plan_of(5, vec![(4, 0)]);
        let mut execution = Execution::new(&plan, bound(3));
        assert_eq!(start_all(&mut execution), ["0", "1", "2"]);
        execution.settle(&key("1"), Ok(())).unwrap();
        assert_eq!(start_all(&mut execution), ["3"]);
        execution.settle(&key("0"), Ok(())).unwrap();
        assert_eq!(start_all(&mut execution), ["4"], "it waited for 0");
    }

    #[test]
    fn a_failed_step_blocks_only_what_waits_for_it_and_the_root_still_runs_last() {
        let plan = plan_of(4, vec![(1, 0), (2, 1)]);
        let mut execution = Execution::new(&plan, bound(8));
        assert_eq!(start_all(&mut execution), ["0", "3"]);
        execution.settle(&key("0"), Err(Failure::retry("refused"))).unwrap();
        assert!(start_all(&mut execution).is_empty(), "3 still runs");
        execution.settle(&key("3"), Ok(())).unwrap();
        assert_eq!(start_all(&mut execution), ["root status"]);
        let blocked = Outcome::Blocked { by: key("0") };
        let ended = outcomes(&execution);
        assert_eq!(ended[0], ("0".into(), Outcome::Failed(Failure::retry("refused"))));
        assert!(ended.contains(&("1".into(), blocked.clone())) && ended.contains(&("2".into(), blocked)));
        assert!(ended.contains(&("3".into(), Outcome::Done(()))));
        execution.settle(plan.root_key(), Ok(())).unwrap();
        assert_eq!(execution.advance(), Next::Over);
        assert_eq!(execution.outcomes().len(), 5);
        assert_eq!(execution.outcomes().failures().count(), 1);
        assert!(!execution.outcomes().all_done());
    }

    #[test]
    fn a_plan_of_the_root_alone_runs_the_root() {
        let plan = plan_of(0, vec![]);
        let mut execution = Execution::new(&plan, bound(1));
        assert_eq!(start_all(&mut execution), ["root status"]);
        assert_eq!(execution.advance(), Next::Wait);
    }

    #[test]
    fn cancelling_the_steps_waits_for_those_that_run_and_lets_the_root_tell() {
        let plan = plan_of(3, vec![(2, 0)]);
        let mut execution = Execution::new(&plan, bound(1));
        assert_eq!(start_all(&mut execution), ["0"]);
        execution.cancel(Cancel::Steps);
        assert_eq!(execution.advance(), Next::Wait);
        execution.settle(&key("0"), Ok(())).unwrap();
        assert_eq!(start_all(&mut execution), ["root status"]);
        let expected = [
            ("0", Outcome::Done(())),
            ("1", Outcome::Cancelled),
            ("2", Outcome::Cancelled),
        ];
        assert_eq!(
            outcomes(&execution),
            expected.map(|(key, outcome)| (key.to_owned(), outcome))
        );
    }

    #[test]
    fn cancelling_all_starts_nothing_more_not_even_the_root() {
        let plan = plan_of(2, vec![]);
        let mut execution = Execution::new(&plan, bound(1));
        assert_eq!(start_all(&mut execution), ["0"]);
        execution.cancel(Cancel::All);
        execution.cancel(Cancel::Steps);
        execution.settle(&key("0"), Ok(())).unwrap();
        assert_eq!(execution.advance(), Next::Over);
        assert_eq!(
            outcomes(&execution).last().unwrap(),
            &("root status".into(), Outcome::Cancelled)
        );
    }

    #[test]
    fn settling_what_does_not_run_is_an_error_and_changes_nothing() {
        let plan = plan_of(2, vec![(1, 0)]);
        let mut execution: Execution<'_, Thing, ()> = Execution::new(&plan, bound(2));
        let error = execution.settle(&key("1"), Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "cannot settle 1: it is not running");
        assert!(execution.settle(plan.root_key(), Ok(())).is_err());
        assert_eq!(start_all(&mut execution), ["0"]);
        execution.settle(&key("0"), Ok(())).unwrap();
        assert!(execution.settle(&key("0"), Ok(())).is_err());
        assert_eq!(execution.outcomes().len(), 1);
    }

    proptest! {
        /// Any plan, any steps failing, any order of ending, any bound.
        #[test]
        fn every_step_gets_exactly_one_outcome_and_none_starts_before_its_time(
            steps in 1..14usize,
            orders in prop::collection::vec((0..14usize, 0..14usize), 0..40),
            failing in prop::collection::btree_set(0..14usize, 0..4),
            picks in prop::collection::vec(0..64usize, 64),
            at_once in 1..5usize,
        ) {
            let orders: Vec<_> = orders
                .into_iter()
                .filter(|(a, b)| a != b && *a < steps && *b < steps)
                .map(|(a, b)| (a.max(b), a.min(b)))
                .collect();
            let plan = plan_of(steps, orders.clone());
            let mut execution = Execution::new(&plan, bound(at_once));
            let mut running = Vec::new();
            let mut done = BTreeSet::new();
            let mut picks = picks.into_iter().cycle();
            loop {
                match execution.advance() {
                    Next::Start(key, _) => {
                        let own: usize = key.target.0.parse().unwrap();
                        for (_, earlier) in orders.iter().filter(|(later, _)| *later == own) {
                            prop_assert!(done.contains(earlier), "{own} started before {earlier} succeeded");
                        }
                        running.push(own);
                        prop_assert!(running.len() <= at_once);
                    }
                    Next::StartRoot(key, _) => {
                        prop_assert!(running.is_empty());
                        prop_assert_eq!(execution.outcomes().len(), steps, "the root is given every outcome");
                        execution.settle(key, Ok(())).unwrap();
                    }
                    Next::Wait => {
                        let ended = running.swap_remove(picks.next().unwrap() % running.len());
                        let result = if failing.contains(&ended) { Err(Failure::retry("chosen")) } else { Ok(()) };
                        if result.is_ok() {
                            done.insert(ended);
                        }
                        execution.settle(&key(&ended.to_string()), result).unwrap();
                    }
                    Next::Over => break,
                }
            }
            let mut ended: BTreeMap<String, usize> = BTreeMap::new();
            for (key, _) in execution.outcomes().iter() {
                *ended.entry(key.to_string()).or_default() += 1;
            }
            prop_assert_eq!(ended.len(), steps + 1);
            prop_assert!(ended.values().all(|times| *times == 1));
            // Blocked are exactly those that wait, directly or not, for one that failed.
            for (step, outcome) in execution.outcomes().iter().filter(|(key, _)| *key != plan.root_key()) {
                let own: usize = step.target.0.parse().unwrap();
                let mut below = BTreeSet::new();
                let mut open = vec![own];
                while let Some(next) = open.pop() {
                    for (_, earlier) in orders.iter().filter(|(later, _)| *later == next) {
                        if below.insert(*earlier) {
                            open.push(*earlier);
                        }
                    }
                }
                let waits_in_vain = below.iter().any(|earlier| failing.contains(earlier));
                prop_assert_eq!(matches!(outcome, Outcome::Blocked { .. }), waits_in_vain);
            }
        }
    }
}

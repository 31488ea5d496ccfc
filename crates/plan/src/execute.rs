//! Driving an execution with futures, on any runtime or none.

use std::{
    future::Future,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};

use crate::{Cancel, Execution, Failure, Next, Object, Outcomes, Plan, Step, StepKey};

/// What runs the steps of a plan: an API client, a simulator, a printer.
pub trait Executor<O: Object>: Sync {
    /// What a successful step yields.
    type Yield: Send;

    /// Runs one step.
    fn run(&self, step: &Step<O>) -> impl Future<Output = Result<Self::Yield, Failure>> + Send;

    /// Runs the root, the last step, which tells what became of all the others.
    fn run_root(
        &self,
        root: &Step<O>,
        outcomes: &Outcomes<O::Target, Self::Yield>,
    ) -> impl Future<Output = Result<Self::Yield, Failure>> + Send;
}

/// Runs a plan: everything that is ready at once, up to `bound` steps; the root last, with every outcome.
///
/// A failed step blocks only what waits for it. Cancelling takes effect between steps: those that run are waited for.
/// Dropping the future drops the running steps where they await; the plan for what is then observed finishes them.
pub async fn execute<O: Object, E: Executor<O>>(
    plan: &Plan<O>,
    executor: &E,
    bound: NonZeroUsize,
    cancellation: &Cancellation,
) -> Outcomes<O::Target, E::Yield> {
    let mut execution = Execution::new(plan, bound);
    let mut running = FuturesUnordered::new();
    loop {
        if let Some(how) = cancellation.asked() {
            execution.cancel(how);
        }
        match execution.advance() {
            Next::Start(key, step) => running.push(run(executor, key, step)),
            Next::StartRoot(key, root) => {
                let result = executor.run_root(root, execution.outcomes()).await;
                execution.settle(key, result).expect("the root was just started");
            }
            Next::Wait => {
                let (key, result) = running
                    .next()
                    .await
                    .expect("the execution waits only while a step runs");
                execution
                    .settle(key, result)
                    .expect("the step was started by this execution");
            }
            Next::Over => return execution.into_outcomes(),
        }
    }
}

async fn run<'p, O: Object, E: Executor<O>>(
    executor: &E,
    key: &'p StepKey<O::Target>,
    step: &Step<O>,
) -> (&'p StepKey<O::Target>, Result<E::Yield, Failure>) {
    (key, executor.run(step).await)
}

/// A wish to cancel an execution, shared between the one who wishes and the one who executes.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<AtomicU8>);

impl Cancellation {
    /// No wish yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for it. A farther reaching wish overrules an earlier one, never the other way round.
    pub fn cancel(&self, how: Cancel) {
        self.0.fetch_max(how as u8 + 1, Ordering::Relaxed);
    }

    /// How far the execution has been asked to go, if it has been asked to end early.
    pub fn asked(&self) -> Option<Cancel> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Cancel::Steps),
            _ => Some(Cancel::All),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::{Mutex, atomic::AtomicUsize},
        task::Poll,
    };

    use futures_executor::block_on;

    use super::*;
    use crate::{
        Outcome,
        testing::{Name, Thing, plan_of},
    };

    /// Runs steps that take a few polls each, and keeps what it saw.
    #[derive(Default)]
    struct Recorder {
        started: Mutex<Vec<String>>,
        running: AtomicUsize,
        most_at_once: AtomicUsize,
        fails: &'static [&'static str],
        cancels_after: Option<(usize, Cancel, Cancellation)>,
        told: Mutex<Vec<(String, Outcome<Name, ()>)>>,
    }

    impl Executor<Thing> for Recorder {
        type Yield = ();

        async fn run(&self, step: &Step<Thing>) -> Result<(), Failure> {
            let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_at_once.fetch_max(now, Ordering::SeqCst);
            let started = {
                let mut started = self.started.lock().unwrap();
                started.push(step.target.to_string());
                started.len()
            };
            let mut polls = 0;
            poll_fn(|context| {
                polls += 1;
                if polls > 3 {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            if let Some((after, how, cancellation)) = &self.cancels_after
                && started == *after
            {
                cancellation.cancel(*how);
            }
            self.running.fetch_sub(1, Ordering::SeqCst);
            if self.fails.contains(&step.target.0.as_str()) {
                Err(Failure::retry("chosen to fail"))
            } else {
                Ok(())
            }
        }

        async fn run_root(&self, _root: &Step<Thing>, outcomes: &Outcomes<Name, ()>) -> Result<(), Failure> {
            assert_eq!(self.running.load(Ordering::SeqCst), 0, "the root runs alone");
            *self.told.lock().unwrap() = outcomes.iter().map(|(key, o)| (key.to_string(), o.clone())).collect();
            Ok(())
        }
    }

    fn run(plan: &Plan<Thing>, executor: &Recorder, bound: usize) -> Outcomes<Name, ()> {
        let cancellation = executor
            .cancels_after
            .as_ref()
            .map(|(.., c)| c.clone())
            .unwrap_or_default();
        block_on(execute(
            plan,
            executor,
            NonZeroUsize::new(bound).unwrap(),
            &cancellation,
        ))
    }

    #[test]
    fn steps_that_do_not_wait_for_each_other_run_at_once_within_the_bound() {
        let (plan, executor) = (plan_of(10, vec![]), Recorder::default());
        assert!(run(&plan, &executor, 4).all_done());
        assert_eq!(executor.most_at_once.into_inner(), 4);
        assert_eq!(executor.started.into_inner().unwrap().len(), 10);
    }

    #[test]
    fn a_chain_runs_from_its_end_to_the_root() {
        let (plan, executor) = (plan_of(5, (1..5).map(|n| (n - 1, n)).collect()), Recorder::default());
        run(&plan, &executor, 8);
        assert_eq!(executor.started.into_inner().unwrap(), ["4", "3", "2", "1", "0"]);
    }

    #[test]
    fn the_root_is_told_every_outcome_also_after_failures() {
        let executor = Recorder {
            fails: &["0"],
            ..Recorder::default()
        };
        let outcomes = run(&plan_of(3, vec![(1, 0)]), &executor, 8);
        assert_eq!(executor.told.into_inner().unwrap().len(), 3);
        assert_eq!(outcomes.len(), 4);
        assert_eq!(
            outcomes.failures().map(|(key, _)| key.to_string()).collect::<Vec<_>>(),
            ["0"]
        );
    }

    #[test]
    fn a_cancelled_execution_starts_no_further_step_and_the_root_tells_of_it() {
        let cancellation = Cancellation::new();
        let executor = Recorder {
            cancels_after: Some((2, Cancel::Steps, cancellation)),
            ..Recorder::default()
        };
        run(&plan_of(6, vec![]), &executor, 1);
        assert_eq!(executor.started.into_inner().unwrap(), ["0", "1"]);
        let told = executor.told.into_inner().unwrap();
        assert_eq!(
            told.iter()
                .filter(|(_, outcome)| *outcome == Outcome::Cancelled)
                .count(),
            4
        );
    }

    #[test]
    fn an_execution_that_may_no_longer_write_does_not_run_the_root() {
        let cancellation = Cancellation::new();
        let executor = Recorder {
            cancels_after: Some((1, Cancel::All, cancellation)),
            ..Recorder::default()
        };
        let outcomes = run(&plan_of(3, vec![]), &executor, 1);
        assert!(executor.told.into_inner().unwrap().is_empty());
        assert_eq!(outcomes.iter().last().unwrap().1, &Outcome::Cancelled);
    }
}

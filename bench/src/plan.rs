//! Plans: executing one, and making one.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use moorline_plan::{
    Cancellation, Draft, Executor, Failure, Object, Outcomes, Plan, PlanBuilder, Step, Verdict, execute, transformer,
};

use crate::report::Row;

const STEPS: usize = 10_000;

#[derive(Clone, Debug, PartialEq)]
struct Thing(usize);

impl Object for Thing {
    type Target = usize;

    fn target(&self) -> usize {
        self.0
    }
}

/// Does nothing, at once.
struct Idle;

impl Executor<Thing> for Idle {
    type Yield = ();

    async fn run(&self, _step: &Step<Thing>) -> Result<(), Failure> {
        Ok(())
    }

    async fn run_root(&self, _root: &Step<Thing>, _outcomes: &Outcomes<usize, ()>) -> Result<(), Failure> {
        Ok(())
    }
}

pub(crate) fn rows() -> Vec<Row> {
    let builder = PlanBuilder::new(|(): &()| Ok(Step::status(Thing(STEPS), Thing(STEPS), "tell how it went")))
        .transformer(transformer("no-ops", ordered_no_ops));
    let (plan, _) = best_of(10, || builder.build(&()).expect("the root is always there").plan);
    let bound = NonZeroUsize::new(16).expect("16 is not zero");
    let (outcomes, time) = best_of(20, || run(&plan, bound));
    assert!(outcomes.all_done() && outcomes.len() == STEPS + 1, "every step ran");
    let milliseconds = time.as_secs_f64() * 1e3;
    vec![Row {
        krate: "plan",
        work: "execute a plan of 10,000 no-op steps in chains of ten, 16 at once, best of 20".to_owned(),
        unit: "ms",
        ours: milliseconds,
        peer: None,
        peer_name: None,
        ratio: None,
        bar: "< 20 ms".to_owned(),
        holds: milliseconds < 20.0,
    }]
}

/// Ten steps a chain, as the objects of one component wait for each other.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "a transformer takes its context by reference"
)]
fn ordered_no_ops((): &(), draft: &mut Draft<Thing>) -> Result<Verdict, Failure> {
    let mut earlier = None;
    for n in 0..STEPS {
        let step = draft.put(Step::no_op(n, None, "as it shall be"));
        if let Some(earlier) = earlier.filter(|_| n % 10 != 0) {
            draft.after(&step, &earlier)?;
        }
        earlier = Some(step);
    }
    Ok(Verdict::Continue)
}

fn run(plan: &Plan<Thing>, bound: NonZeroUsize) -> Outcomes<usize, ()> {
    futures_executor::block_on(execute(plan, &Idle, bound, &Cancellation::new()))
}

fn best_of<T>(times: usize, mut work: impl FnMut() -> T) -> (T, Duration) {
    let mut measure = || {
        let begin = Instant::now();
        let result = work();
        (result, begin.elapsed())
    };
    let first = measure();
    (1..times)
        .map(|_| measure())
        .fold(first, |best, next| if next.1 < best.1 { next } else { best })
}

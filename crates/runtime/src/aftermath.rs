//! What became of a plan, as an actor sees it that tells of it in its own words.

use jiff::Timestamp;
use moorline_plan::{Class, Outcomes, Plan};
use serde_json::Value;

use crate::{
    Step,
    execute::Effect,
    object::{Object, Target},
};

/// The outcomes of a plan's steps, for [`Watches::concluding`](crate::Watches::concluding).
pub struct Aftermath<'r> {
    pub(crate) now: Timestamp,
    pub(crate) before: &'r Value,
    pub(crate) plan: &'r Plan<Object>,
    pub(crate) outcomes: &'r Outcomes<Target, Effect>,
}

/// A step that failed.
#[derive(Clone, Copy)]
pub struct Failed<'r> {
    /// What was attempted.
    pub step: &'r Step,
    /// Why it failed, in the server's own words where it was the server that refused.
    pub why: &'r str,
    /// The same with what was attempted.
    pub(crate) message: &'r str,
}

/// The steps that failed, in the order of the plan. What only has to wait has not failed.
pub(crate) fn failed<'r>(
    plan: &'r Plan<Object>,
    outcomes: &'r Outcomes<Target, Effect>,
) -> impl Iterator<Item = Failed<'r>> {
    plan.order().filter_map(move |(key, step)| {
        let (_, failure) = outcomes.failures().find(|(failed, _)| *failed == key)?;
        let attempted = format!("cannot {} {}: ", step.action.verb(), step.target);
        let message = failure.message.as_str();
        let why = message.strip_prefix(&attempted).unwrap_or(message);
        (failure.class != Class::Waiting).then_some(Failed { step, why, message })
    })
}

impl<'r> Aftermath<'r> {
    /// The time of the reconcile, as its snapshot had it.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The status as it was seen.
    pub fn before(&self) -> &'r Value {
        self.before
    }

    /// The steps that failed, in the order of the plan. What only has to wait, for somebody who was faster or for a
    /// dependency, has not failed.
    pub fn failed(&self) -> impl Iterator<Item = Failed<'r>> {
        failed(self.plan, self.outcomes)
    }
}

//! A transformer: one scenario, read from the context and written into the draft.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Draft, Failure, Object};

/// One scenario of a controller, such as "credentials come before their readers" or "replicas that are too many go".
///
/// A transformer is pure: it reads the context and edits the draft, and does nothing else. Time, ids and random names
/// are part of the context. That is what lets a plan be printed before it runs, recorded and replayed.
pub trait Transformer<C, O: Object>: Send + Sync {
    /// The name that signs the steps that this transformer writes.
    fn name(&self) -> &str;

    /// Edits the draft for the context.
    ///
    /// What was put into the draft before a failure stays in it, so a transformer orders a step in the same breath in
    /// which it puts it.
    fn transform(&self, context: &C, draft: &mut Draft<O>) -> Result<Verdict, Failure>;
}

/// How a transformer that did not fail wants the chain to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Go on.
    Continue,
    /// Go on, and look again after a while even if nothing changes.
    LookAgain {
        /// After how long.
        after: Duration,
        /// What is waited for.
        reason: String,
    },
    /// The plan is complete as it is: leave out the transformers that follow.
    Stop {
        /// Why nothing more is needed.
        reason: String,
    },
}

/// A transformer made of a name and a function, for scenarios that need no state of their own.
pub struct Named<F> {
    name: &'static str,
    transform: F,
}

/// Makes a transformer of a function.
pub fn transformer<C, O, F>(name: &'static str, transform: F) -> Named<F>
where
    O: Object,
    F: Fn(&C, &mut Draft<O>) -> Result<Verdict, Failure> + Send + Sync,
{
    Named { name, transform }
}

impl<C, O, F> Transformer<C, O> for Named<F>
where
    O: Object,
    F: Fn(&C, &mut Draft<O>) -> Result<Verdict, Failure> + Send + Sync,
{
    fn name(&self) -> &str {
        self.name
    }

    fn transform(&self, context: &C, draft: &mut Draft<O>) -> Result<Verdict, Failure> {
        (self.transform)(context, draft)
    }
}

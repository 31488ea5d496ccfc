//! What the calls of a queue answer.

use std::time::Duration;

use thiserror::Error;

use crate::priority::Priority;
use crate::standing::SlotId;
use crate::time::Moment;

/// A key, given to one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handout<K> {
    /// The key.
    pub key: K,
    /// The highest priority it was asked for with.
    pub priority: Priority,
    /// How long it waited, from when it was first asked for or, if it was delayed, from when it was due.
    pub waited: Duration,
    /// How often in a row it has failed before.
    pub failures: u32,
    pub(crate) ticket: Ticket,
}

/// Tells one hand-out from all others, and where its key was when it was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    pub(crate) slot: SlotId,
}

/// The answer of [`Core::get`](crate::Core::get).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<K> {
    /// This key is yours until you are done with it.
    Key(Handout<K>),
    /// Nothing is queued. Ask again after something was added or done, and at this moment at the latest.
    Wait {
        /// When the first delayed key is due, if there is one.
        until: Option<Moment>,
    },
    /// The queue was shut down, and nothing is queued.
    Ended,
}

/// What became of a key that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It waits in line now.
    Queued,
    /// It is with a worker and will be handed out once more when that one is done.
    Dirty,
    /// It waits for its time.
    Delayed,
    /// It had been asked for already, no later than this. Its priority may have been raised.
    Merged,
    /// The queue was shut down. The key was not taken.
    Refused,
}

/// What a worker says of the key it is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It went well, as far as it goes; past failures are forgotten.
    Done,
    /// It went well, and is to be looked at again after this time; past failures are forgotten.
    After(Duration),
    /// It failed and is to be tried again after its backoff, with the priority it ran with.
    ///
    /// The backoff grows with each failure, but not when the run began before the last backoff had ended because
    /// something else asked for the key: such a failure says nothing new. How often a key has failed is remembered as
    /// long as the key is in the queue, which is until it succeeds.
    Retry,
}

/// Where a key went when its worker was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Out of the queue.
    Idle,
    /// Back in line.
    Requeued,
    /// Aside, until its time has come.
    Delayed {
        /// When that is.
        until: Moment,
    },
    /// Out of the queue, though it was to come back: the queue was shut down. The next report names it.
    Dropped,
}

/// A key was said to be done, but no worker had it: it was never handed out, or is done already.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot mark {key:?} as done, no worker holds it")]
pub struct NotProcessing<K> {
    /// The key.
    pub key: K,
}

/// What a queue did not hand out before it ended. No key is reported twice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it names the keys that nobody will look at any more"]
pub struct Dropped<K> {
    /// Waited in line. In order of arrival.
    pub queued: Vec<K>,
    /// Waited for their time, or asked for a retry when it was too late. In the order in which they were due.
    pub delayed: Vec<K>,
    /// Were with a worker and should have been handed out once more. In order of arrival.
    pub dirty: Vec<K>,
}

impl<K> Default for Dropped<K> {
    fn default() -> Self {
        Self {
            queued: Vec::new(),
            delayed: Vec::new(),
            dirty: Vec::new(),
        }
    }
}

impl<K> Dropped<K> {
    /// Whether nothing was dropped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys were dropped.
    pub fn len(&self) -> usize {
        self.queued.len() + self.delayed.len() + self.dirty.len()
    }
}

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained<K> {
    /// What was dropped.
    pub dropped: Dropped<K>,
    /// What workers still held when the time was up, in no order. Empty when the drain was complete.
    pub unfinished: Vec<K>,
}

//! A key in the hands of a worker.

use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::time::Duration;

use crate::observer::Observer;
use crate::outcome::{Handout, NotProcessing, Outcome, Settled};
use crate::priority::Priority;
use crate::queue::Queue;
use crate::time::{Clock, SystemClock};

/// A key that this worker, and no other, may work on. It reads like the key itself.
///
/// A worker that drops it without a word, because it panicked or was cancelled, has failed: the key is retried after
/// its backoff, as after [`Work::retry`]. So a panic neither loses a key nor locks it for ever, and a key that always
/// panics cannot take all the workers' time. What is dropped after a shutdown is in the next report.
#[must_use = "a key that is dropped counts as failed"]
pub struct Work<K: Eq + Hash + Clone, C: Clock = SystemClock, O: Observer = ()> {
    queue: Queue<K, C, O>,
    /// Taken when the worker has said what became of it.
    handout: Option<Handout<K>>,
}

impl<K: Eq + Hash + Clone, C: Clock, O: Observer> Work<K, C, O> {
    pub(crate) fn new(queue: Queue<K, C, O>, handout: Handout<K>) -> Self {
        Self {
            queue,
            handout: Some(handout),
        }
    }

    /// It went well: the key leaves the queue, unless it was asked for meanwhile, and past failures are forgotten.
    ///
    /// This and the other endings fail only if the key was marked as done behind this worker's back, by
    /// [`Queue::done`].
    pub fn done(self) -> Result<Settled, NotProcessing<K>> {
        self.finish(Outcome::Done)
    }

    /// It failed: try again after the backoff.
    pub fn retry(self) -> Result<Settled, NotProcessing<K>> {
        self.finish(Outcome::Retry)
    }

    /// It ended like this.
    pub fn finish(mut self, outcome: Outcome) -> Result<Settled, NotProcessing<K>> {
        let handout = self.handout.take().expect("it is taken only by methods that consume");
        self.queue.finish(&handout, outcome)
    }

    /// It ended like this, and the worker takes the next key if one is queued.
    ///
    /// The same as [`finish`](Self::finish) and then [`Queue::try_get`], at less than the price of the two: workers
    /// that are short on each key meet at the queue half as often.
    pub fn finish_and_try_get(mut self, outcome: Outcome) -> Finished<K, C, O> {
        let handout = self.handout.take().expect("it is taken only by methods that consume");
        let (settled, next) = self.queue.finish_and_try_get(&handout, outcome);
        // The same hold on the queue serves for the next key: letting go of it and taking it anew would write to what
        // every worker shares.
        self.handout = next;
        Finished {
            settled,
            next: self.handout.is_some().then_some(self),
        }
    }

    /// Takes the key out. It stays locked until somebody calls [`Queue::done`] for it.
    pub fn into_key(mut self) -> K {
        self.handout
            .take()
            .expect("it is taken only by methods that consume")
            .key
    }

    /// The priority with which it was handed out.
    pub fn priority(&self) -> Priority {
        self.handout().priority
    }

    /// How long it had waited.
    pub fn waited(&self) -> Duration {
        self.handout().waited
    }

    /// How often in a row it has failed before.
    pub fn failures(&self) -> u32 {
        self.handout().failures
    }

    fn handout(&self) -> &Handout<K> {
        self.handout.as_ref().expect("it is taken only by methods that consume")
    }
}

/// How [`Work::finish_and_try_get`] went.
#[must_use = "a next key that is dropped counts as failed"]
#[derive(Debug)]
pub struct Finished<K: Eq + Hash + Clone, C: Clock = SystemClock, O: Observer = ()> {
    /// What became of the key that was finished.
    pub settled: Result<Settled, NotProcessing<K>>,
    /// The next key. `None` when none is queued: wait for one with [`Queue::get`].
    pub next: Option<Work<K, C, O>>,
}

impl<K: Eq + Hash + Clone, C: Clock, O: Observer> Deref for Work<K, C, O> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.handout().key
    }
}

impl<K: Eq + Hash + Clone + fmt::Debug, C: Clock, O: Observer> fmt::Debug for Work<K, C, O> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Work").field(self.handout()).finish()
    }
}

impl<K: Eq + Hash + Clone, C: Clock, O: Observer> Drop for Work<K, C, O> {
    fn drop(&mut self) {
        if let Some(handout) = self.handout.take() {
            // A stray key here means that somebody else has already said what became of it.
            let _ = self.queue.finish(&handout, Outcome::Retry);
        }
    }
}

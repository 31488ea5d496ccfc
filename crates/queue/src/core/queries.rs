//! What can be asked of a queue without changing it.

use std::hash::Hash;
use std::time::Duration;

use super::Core;
use crate::observer::Observer;
use crate::priority::Priority;
use crate::time::Moment;

impl<K: Eq + Hash + Clone, O: Observer> Core<K, O> {
    /// How many keys wait in line. Neither delayed nor dirty ones count.
    pub fn len(&self) -> usize {
        self.lanes.queued()
    }

    /// Whether no key waits in line.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys of this priority wait in line.
    pub fn depth(&self, priority: Priority) -> usize {
        self.lanes.depth(priority)
    }

    /// How many keys are with a worker.
    pub fn processing(&self) -> usize {
        self.slots.runs().len()
    }

    /// How many of the keys with a worker are to be handed out once more.
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// How many keys wait for their time, those included that a worker has meanwhile.
    pub fn delayed(&self) -> usize {
        self.timers.live()
    }

    /// Whether nothing is with a worker and nothing waits in line: what a drain waits for.
    pub fn is_idle(&self) -> bool {
        self.slots.runs().is_empty() && self.is_empty()
    }

    /// The keys that are with a worker, in no order.
    pub fn held(&self) -> impl Iterator<Item = &K> {
        self.slots.runs().iter().map(|run| &self.slots[run.slot].key)
    }

    /// How long the present runs have taken, added up: `workqueue_unfinished_work_seconds`.
    pub fn unfinished_work(&self, now: Moment) -> Duration {
        let now = u128::from(self.now.max(now).nanoseconds());
        let total = now * self.slots.runs().len() as u128 - self.handed_out_at;
        Duration::from_nanos(u64::try_from(total).unwrap_or(u64::MAX))
    }

    /// How long the longest of the present runs has taken: `workqueue_longest_running_processor_seconds`.
    pub fn longest_running(&self, now: Moment) -> Duration {
        let now = self.now.max(now);
        let runs = self.slots.runs().iter().map(|run| now.since(run.since));
        runs.max().unwrap_or_default()
    }

    /// When the next delayed key is due.
    pub(crate) fn next_due(&mut self) -> Option<Moment> {
        self.timers.next(&self.slots)
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }
}

//! The end of a queue: nothing comes in, and whatever is not handed out any more is reported.

use std::hash::Hash;

use super::{Core, Phase};
use crate::lanes::Lanes;
use crate::observer::Observer;
use crate::outcome::Dropped;
use crate::priority::Priority;
use crate::standing::{Sequel, SlotId, Standing};
use crate::time::Moment;
use crate::timers::Timers;

impl<K: Eq + Hash + Clone, O: Observer> Core<K, O> {
    /// Takes nothing in from now on. What is queued or dirty is still handed out, then [`get`](Self::get) ends.
    ///
    /// Delayed keys are dropped, and so is what a worker asks to be retried from now on. Each is reported once, by
    /// whichever of the calls that end a queue returns next. Doing this twice is doing it once.
    pub fn shut_down(&mut self, now: Moment) -> Dropped<K> {
        self.close(now);
        self.report()
    }

    /// Ends the queue at once: drops all that waits and reports it. What workers hold stays theirs until they are done.
    pub fn shut_down_now(&mut self, now: Moment) -> Dropped<K> {
        self.close_now(now);
        self.report()
    }

    /// As [`shut_down`](Self::shut_down), with the report left for later.
    pub(crate) fn close(&mut self, now: Moment) {
        self.advance(now);
        if self.phase == Phase::Closing {
            return;
        }
        self.phase = Phase::Closing;
        if self.timers.live() == 0 {
            return;
        }
        let mut delayed: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(id, _)| self.slots.delay(id).map(|delay| (delay.due, delay.stamp, id)))
            .collect();
        delayed.sort_unstable();
        self.timers = Timers::default();
        for (_, _, id) in delayed {
            let key = self.drop_sequel(id);
            self.unreported.delayed.push(key);
        }
        self.compact_if_sparse();
    }

    /// As [`shut_down_now`](Self::shut_down_now), with the report left for later.
    pub(crate) fn close_now(&mut self, now: Moment) {
        self.close(now);
        let mut waiting: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(id, _)| self.slots.turn(id).map(|turn| (turn.arrival, id)))
            .collect();
        waiting.sort_unstable();
        let emptied: Vec<_> = Priority::all()
            .filter(|priority| self.lanes.depth(*priority) > 0)
            .collect();
        self.lanes = Lanes::new();
        self.dirty = 0;
        for (_, id) in waiting {
            let was_queued = matches!(self.slots[id].standing, Standing::Queued(_));
            let key = self.drop_sequel(id);
            if was_queued {
                self.unreported.queued.push(key);
            } else {
                self.unreported.dirty.push(key);
            }
        }
        for priority in emptied {
            self.observe_depth(priority);
        }
        self.compact_if_sparse();
    }

    /// All that was dropped since the last report.
    pub(crate) fn report(&mut self) -> Dropped<K> {
        std::mem::take(&mut self.unreported)
    }

    /// Whether the queue was shut down.
    pub fn is_shut_down(&self) -> bool {
        self.phase == Phase::Closing
    }

    /// Leaves a key with its worker if one has it, and forgets it otherwise.
    fn drop_sequel(&mut self, id: SlotId) -> K {
        if let Some(run) = self.slots.run_mut(id) {
            run.sequel = Sequel::Nothing;
            self.slots[id].key.clone()
        } else {
            self.slots.remove(id).key
        }
    }

    fn compact_if_sparse(&mut self) {
        if self.slots.is_sparse() {
            self.compact();
        }
    }
}

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
        self.advance(now);
        self.phase = Phase::Closing;
        let mut delayed: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(id, _)| self.slots.delay(id).map(|delay| (delay.due, delay.stamp, id)))
            .collect();
        delayed.sort_unstable();
        self.timers = Timers::default();
        let mut dropped = self.report();
        for (_, _, id) in delayed {
            dropped.delayed.push(self.drop_sequel(id));
        }
        self.compact_if_sparse();
        dropped
    }

    /// Ends the queue at once: drops all that waits and reports it. What workers hold stays theirs until they are done.
    pub fn shut_down_now(&mut self, now: Moment) -> Dropped<K> {
        let mut dropped = self.shut_down(now);
        let mut waiting: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(id, slot)| match slot.standing {
                Standing::Queued(turn) | Standing::Processing(_, Sequel::Again(turn) | Sequel::Passed(turn)) => {
                    Some((turn.arrival, id))
                }
                _ => None,
            })
            .collect();
        waiting.sort_unstable();
        let emptied: Vec<_> = Priority::all()
            .filter(|priority| self.lanes.depth(*priority) > 0)
            .collect();
        self.lanes = Lanes::new();
        self.dirty = 0;
        for (_, id) in waiting {
            match self.slots[id].standing {
                Standing::Queued(_) => dropped.queued.push(self.slots.remove(id).key),
                _ => dropped.dirty.push(self.drop_sequel(id)),
            }
        }
        for priority in emptied {
            self.observe_depth(priority);
        }
        self.compact_if_sparse();
        dropped
    }

    /// What was dropped since the last report without its caller having been told in a list.
    pub(crate) fn report(&mut self) -> Dropped<K> {
        Dropped {
            queued: Vec::new(),
            delayed: std::mem::take(&mut self.unreported),
            dirty: Vec::new(),
        }
    }

    /// Whether the queue was shut down.
    pub fn is_shut_down(&self) -> bool {
        self.phase == Phase::Closing
    }

    /// Leaves a key with its worker if one has it, and forgets it otherwise.
    fn drop_sequel(&mut self, id: SlotId) -> K {
        if let Standing::Processing(_, sequel) = &mut self.slots[id].standing {
            *sequel = Sequel::Nothing;
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

//! Which delayed key is due next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hash;

use crate::standing::{Delay, SPARE, SlotId, Slots, is_sparse};
use crate::time::Moment;

/// A heap of delays. A delay that was given up stays until it is due or until such delays outnumber the others.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    live: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    due: Moment,
    stamp: u64,
    slot: SlotId,
}

impl Timer {
    fn is_live<K: Eq + Hash>(self, slots: &Slots<K>) -> bool {
        slots.delay(self.slot).is_some_and(|delay| delay.stamp == self.stamp)
    }
}

impl Timers {
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    pub(crate) fn insert(&mut self, delay: Delay, slot: SlotId) {
        self.heap.push(Reverse(Timer {
            due: delay.due,
            stamp: delay.stamp,
            slot,
        }));
        self.live += 1;
    }

    /// A delay was given up: its key goes earlier, or not at all.
    pub(crate) fn abandon<K: Eq + Hash>(&mut self, slots: &Slots<K>) {
        const FEW: usize = 32;
        self.live -= 1;
        if self.heap.len() > 2 * self.live + FEW {
            self.heap.retain(|Reverse(timer)| timer.is_live(slots));
            self.give_back();
        }
    }

    /// Takes the next key that is due, with the delay it waited for.
    #[inline]
    pub(crate) fn take_due<K: Eq + Hash>(&mut self, now: Moment, slots: &Slots<K>) -> Option<(SlotId, Delay)> {
        while let Some(Reverse(timer)) = self.heap.peek().copied() {
            if timer.due > now || timer.due == Moment::NEVER {
                return None;
            }
            self.heap.pop();
            self.give_back();
            if let Some(delay) = slots.delay(timer.slot).filter(|delay| delay.stamp == timer.stamp) {
                self.live -= 1;
                return Some((timer.slot, delay));
            }
        }
        None
    }

    /// When the next key is due.
    pub(crate) fn next<K: Eq + Hash>(&mut self, slots: &Slots<K>) -> Option<Moment> {
        while let Some(Reverse(timer)) = self.heap.peek() {
            if timer.is_live(slots) {
                return Some(timer.due).filter(|due| *due != Moment::NEVER);
            }
            self.heap.pop();
        }
        None
    }

    /// Forgets all timers and finds them again from the slots, whose numbers have changed.
    pub(crate) fn rebuild<K: Eq + Hash>(&mut self, slots: &Slots<K>) {
        self.heap.clear();
        self.live = 0;
        for (slot, _) in slots.iter() {
            if let Some(delay) = slots.delay(slot) {
                self.insert(delay, slot);
            }
        }
        self.give_back();
    }

    fn give_back(&mut self) {
        if is_sparse(self.heap.len(), self.heap.capacity()) {
            self.heap.shrink_to((2 * self.heap.len()).max(SPARE));
        }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.heap.len()
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.heap.capacity()
    }
}

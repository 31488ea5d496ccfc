//! The queue as a plain state machine: no lock, no clock, no runtime.

#[cfg(test)]
mod behaviour;
mod closing;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod invariants;
mod queries;

use std::hash::Hash;
use std::time::Duration;

use crate::config::{Ask, Config, When};
use crate::lanes::{Lanes, Place};
use crate::observer::Observer;
use crate::outcome::{Added, Dropped, Handout, Next, NotProcessing, Outcome, Settled, Ticket};
use crate::pace::{Bucket, Pacer};
use crate::priority::Priority;
use crate::standing::{Delay, Presence, Run, Sequel, SlotId, Slots, Standing, Start, Turn};
use crate::time::Moment;
use crate::timers::Timers;

/// The whole behaviour of the queue, driven by whoever holds it.
///
/// Time comes in with each call. A call with an earlier time than the one before counts as made at the same time, so
/// callers that read the clock before they take a lock do no harm.
///
/// Every call takes constant time, spread over many calls, but for delays, which take the logarithm of the number of
/// keys delayed, and for keys that were dirty or raised, which take the logarithm of the number of those.
pub struct Core<K, O = ()> {
    slots: Slots<K>,
    lanes: Lanes,
    timers: Timers,
    /// The moments at which the keys that are processing were handed out, added up.
    handed_out_at: u128,
    dirty: usize,
    phase: Phase,
    /// Numbers arrivals, delays and hand-outs alike.
    counter: u64,
    now: Moment,
    patience: Duration,
    pacer: Pacer,
    bucket: Option<Bucket>,
    /// What was dropped, until a report takes it.
    unreported: Dropped<K>,
    observer: O,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing is taken in; what is queued or dirty is still handed out. Never left.
    Closing,
}

impl<K: Eq + Hash + Clone> Core<K> {
    /// An empty queue that nobody observes.
    pub fn new(config: Config) -> Self {
        Self::observed(config, ())
    }
}

impl<K: Eq + Hash + Clone, O: Observer> Core<K, O> {
    /// An empty queue that tells `observer` what happens in it.
    pub fn observed(config: Config, observer: O) -> Self {
        Self {
            slots: Slots::new(),
            lanes: Lanes::new(),
            timers: Timers::default(),
            handed_out_at: 0,
            dirty: 0,
            phase: Phase::Open,
            counter: 0,
            now: Moment::START,
            patience: config.patience,
            pacer: Pacer::new(config.backoff, config.seed),
            bucket: config.rate.map(Bucket::new),
            unreported: Dropped::default(),
            observer,
        }
    }

    /// Asks for a key to be handed out.
    ///
    /// A key that waits already is not queued twice; of two wishes the earlier time and the higher priority win, and
    /// the arrival stays that of the first. A key that is being processed is handed out once more afterwards, in the
    /// order in which it was asked for now.
    pub fn add(&mut self, key: K, ask: Ask, now: Moment) -> Added {
        let now = self.advance(now);
        if self.phase == Phase::Closing {
            return Added::Refused;
        }
        let (due, stamp) = (self.due(ask.when, now), self.counter + 1);
        let standing = if due > now {
            Standing::Delayed(Delay {
                due,
                stamp,
                priority: ask.priority,
            })
        } else {
            Standing::Queued(Turn {
                arrival: stamp,
                since: now,
                priority: ask.priority,
            })
        };
        let (slot, presence) = self.slots.find_or_insert(key, standing);
        if presence == Presence::Known {
            return self.add_again(slot, ask, now);
        }
        self.counter = stamp;
        self.take_token(ask.when, now);
        if let Standing::Delayed(delay) = standing {
            self.timers.insert(delay, slot);
            return Added::Delayed;
        }
        self.lanes.insert(ask.priority, Place { arrival: stamp, slot });
        self.enter(ask.priority);
        Added::Queued
    }

    fn add_again(&mut self, slot: SlotId, ask: Ask, now: Moment) -> Added {
        let Some(run) = self.slots.run_mut(slot) else {
            return match self.slots[slot].standing {
                Standing::Queued(turn) => self.raise(slot, turn, ask.priority),
                _ => self.hasten(slot, ask, now),
            };
        };
        match &mut run.sequel {
            Sequel::Again(turn) => {
                let turn = *turn;
                self.raise(slot, turn, ask.priority)
            }
            Sequel::Passed(turn) => {
                turn.priority = turn.priority.max(ask.priority);
                Added::Merged
            }
            Sequel::Nothing | Sequel::Later(_) => self.hasten(slot, ask, now),
        }
    }

    /// Moves a key that has its place in line to the lane of a higher priority, at its old arrival.
    fn raise(&mut self, slot: SlotId, turn: Turn, to: Priority) -> Added {
        if to > turn.priority {
            self.slots.set_turn(slot, Turn { priority: to, ..turn });
            self.lanes.insert(
                to,
                Place {
                    arrival: turn.arrival,
                    slot,
                },
            );
            self.lanes.abandon(turn.priority, &self.slots);
            if self.slots.run(slot).is_none() {
                self.lanes.discount(turn.priority);
                self.lanes.count(to);
                self.lanes.expect_overdue(turn.since, self.patience);
                self.observe_depth(turn.priority);
                self.observe_depth(to);
            }
        }
        Added::Merged
    }

    /// Asks for a key that has no turn yet: it is delayed, or with a worker, or both.
    fn hasten(&mut self, slot: SlotId, ask: Ask, now: Moment) -> Added {
        let delay = self.slots.delay(slot);
        let priority = delay.map_or(ask.priority, |delay| delay.priority.max(ask.priority));
        let due = self.due(ask.when, now);
        if let Some(delay) = delay
            && delay.due <= due
        {
            self.slots.set_delay(slot, Delay { priority, ..delay });
            return Added::Merged;
        }
        self.take_token(ask.when, now);
        if due > now {
            let later = self.delay(due, priority);
            self.slots.set_delay(slot, later);
            self.timers.insert(later, slot);
        } else {
            let turn = self.turn(now, priority);
            self.give_turn(slot, turn);
        }
        if delay.is_some() {
            self.timers.abandon(&self.slots);
        }
        match (due > now, self.slots.run(slot)) {
            (true, _) => Added::Delayed,
            (false, None) => Added::Queued,
            (false, Some(_)) => Added::Dirty,
        }
    }

    /// Lets a key that had no turn join the line: as queued, or as dirty when a worker has it.
    fn give_turn(&mut self, slot: SlotId, turn: Turn) {
        self.lanes.insert(
            turn.priority,
            Place {
                arrival: turn.arrival,
                slot,
            },
        );
        self.slots.set_turn(slot, turn);
        if self.slots.run(slot).is_some() {
            self.dirty += 1;
            self.observer.added(turn.priority);
        } else {
            self.enter(turn.priority);
        }
    }

    #[inline]
    fn enter(&mut self, priority: Priority) {
        self.lanes.count(priority);
        self.observer.added(priority);
        self.observe_depth(priority);
    }

    /// Hands out the next key, or says what to wait for.
    pub fn get(&mut self, now: Moment) -> Next<K> {
        let now = self.advance(now);
        let Some(lane) = self.lanes.choose(now, self.patience, &mut self.slots) else {
            return match self.phase {
                Phase::Closing => Next::Ended,
                Phase::Open => Next::Wait {
                    until: self.timers.next(&self.slots),
                },
            };
        };
        let id = self.lanes.take(lane, &mut self.slots);
        let ticket = self.count();
        let slot = &self.slots[id];
        let Standing::Queued(turn) = slot.standing else {
            unreachable!("lanes hand out queued keys only")
        };
        let start = if slot.failures > 0 && now < slot.rested_at {
            Start::DuringBackoff
        } else {
            Start::InTime
        };
        let (failures, waited) = (slot.failures, now.since(turn.since));
        self.slots.begin(Run {
            slot: id,
            since: now,
            ticket,
            priority: turn.priority,
            start,
            sequel: Sequel::Nothing,
        });
        self.handed_out_at += u128::from(now.nanoseconds());
        // Foreign code: should it panic, the key is still in its place, if only as one that is held.
        let key = self.slots[id].key.clone();
        let handout = Handout {
            key,
            priority: turn.priority,
            waited,
            failures,
            ticket: Ticket {
                number: ticket,
                slot: id,
            },
        };
        self.observer.handed_out(turn.priority, waited);
        self.observe_depth(turn.priority);
        Next::Key(handout)
    }

    /// A worker is done with a key. What it said decides what becomes of the key; a key that was asked for meanwhile
    /// goes back in line in any case.
    pub fn done(&mut self, key: &K, outcome: Outcome, now: Moment) -> Result<Settled, NotProcessing<K>> {
        self.finish(self.slots.find(key), key, outcome, now)
    }

    /// As [`Core::done`], but only if the key is still with the worker that was given this hand-out.
    pub fn done_handout(
        &mut self,
        handout: &Handout<K>,
        outcome: Outcome,
        now: Moment,
    ) -> Result<Settled, NotProcessing<K>> {
        let Ticket { number, slot } = handout.ticket;
        // The slot is the same as ever, unless the slots were numbered anew since.
        let is_it = |slot: &SlotId| self.slots.run(*slot).is_some_and(|run| run.ticket == number);
        let slot = if is_it(&slot) {
            Some(slot)
        } else {
            self.slots.find(&handout.key).filter(is_it)
        };
        self.finish(slot, &handout.key, outcome, now)
    }

    fn finish(
        &mut self,
        slot: Option<SlotId>,
        key: &K,
        outcome: Outcome,
        now: Moment,
    ) -> Result<Settled, NotProcessing<K>> {
        let now = self.advance(now);
        let ended = slot.and_then(|slot| Some((slot, self.slots.end(slot)?)));
        let (slot, run) = ended.ok_or_else(|| NotProcessing { key: key.clone() })?;
        self.handed_out_at -= u128::from(run.since.nanoseconds());
        self.observer.finished(run.priority, now.since(run.since));
        let wish = self.judge(slot, run, outcome, now);
        Ok(match run.sequel {
            Sequel::Again(turn) => self.requeue(slot, turn),
            Sequel::Passed(turn) => {
                self.lanes.insert(
                    turn.priority,
                    Place {
                        arrival: turn.arrival,
                        slot,
                    },
                );
                self.requeue(slot, turn)
            }
            Sequel::Later(delay) if wish.is_none_or(|due| delay.due <= due) => {
                self.slots[slot].standing = Standing::Delayed(delay);
                Settled::Delayed { until: delay.due }
            }
            Sequel::Later(delay) => {
                let priority = run.priority.max(delay.priority);
                let settled = self.rest(slot, priority, outcome, wish, now);
                self.timers.abandon(&self.slots);
                settled
            }
            Sequel::Nothing => self.rest(slot, run.priority, outcome, wish, now),
        })
    }

    /// Learns from how a run ended, and says when the worker wants the key back, if it does.
    #[inline]
    fn judge(&mut self, slot: SlotId, run: Run, outcome: Outcome, now: Moment) -> Option<Moment> {
        let slot = &mut self.slots[slot];
        match outcome {
            Outcome::Done => {
                slot.failures = 0;
                None
            }
            Outcome::After(delay) => {
                slot.failures = 0;
                Some(now.after(delay))
            }
            Outcome::Retry => {
                if run.start == Start::InTime {
                    slot.failures = slot.failures.saturating_add(1);
                }
                slot.rested_at = now.after(self.pacer.delay(slot.failures));
                self.observer.retried(run.priority, slot.failures);
                Some(slot.rested_at.max(self.due(When::Limited, now)))
            }
        }
    }

    /// A key that was not asked for during its run, or only for later than the worker wishes, goes where that says.
    #[inline]
    fn rest(
        &mut self,
        slot: SlotId,
        priority: Priority,
        outcome: Outcome,
        wish: Option<Moment>,
        now: Moment,
    ) -> Settled {
        let Some(due) = wish else {
            self.remove(slot);
            return Settled::Idle;
        };
        if self.phase == Phase::Closing {
            let key = self.remove(slot);
            self.unreported.delayed.push(key);
            return Settled::Dropped;
        }
        if outcome == Outcome::Retry {
            self.take_token(When::Limited, now);
        }
        if due > now {
            let delay = self.delay(due, priority);
            self.slots[slot].standing = Standing::Delayed(delay);
            self.timers.insert(delay, slot);
            Settled::Delayed { until: due }
        } else {
            let turn = self.turn(now, priority);
            self.slots[slot].standing = Standing::Queued(turn);
            self.lanes.insert(
                priority,
                Place {
                    arrival: turn.arrival,
                    slot,
                },
            );
            self.enter(priority);
            Settled::Requeued
        }
    }

    /// A dirty key whose place is in line is dirty no longer but queued.
    fn requeue(&mut self, slot: SlotId, turn: Turn) -> Settled {
        self.slots[slot].standing = Standing::Queued(turn);
        self.dirty -= 1;
        self.lanes.count(turn.priority);
        self.lanes.expect_overdue(turn.since, self.patience);
        self.observe_depth(turn.priority);
        Settled::Requeued
    }

    /// Makes a key idle.
    #[inline]
    fn remove(&mut self, slot: SlotId) -> K {
        let key = self.slots.remove(slot).key;
        if self.slots.is_sparse() {
            self.compact();
        }
        key
    }

    fn compact(&mut self) {
        self.slots.compact();
        self.lanes.rebuild(&self.slots);
        self.timers.rebuild(&self.slots);
    }

    /// Lets time pass up to `now`: what was delayed until then joins the line, in the order in which it fell due.
    #[inline]
    fn advance(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        while let Some((slot, delay)) = self.timers.take_due(self.now, &self.slots) {
            let turn = self.turn(delay.due, delay.priority);
            self.give_turn(slot, turn);
        }
        self.now
    }

    /// When a wish made now is to be fulfilled.
    #[inline]
    fn due(&self, when: When, now: Moment) -> Moment {
        match (when, &self.bucket) {
            (When::After(delay), _) => now.after(delay),
            (When::Limited, Some(bucket)) => bucket.ready_at(now),
            (When::Now, _) | (When::Limited, None) => now,
        }
    }

    /// Pays for a wish that is granted. One that finds the key in line already costs nothing.
    #[inline]
    fn take_token(&mut self, when: When, now: Moment) {
        if let (When::Limited, Some(bucket)) = (when, &mut self.bucket) {
            bucket.take(now);
        }
    }

    fn turn(&mut self, since: Moment, priority: Priority) -> Turn {
        Turn {
            arrival: self.count(),
            since,
            priority,
        }
    }

    fn delay(&mut self, due: Moment, priority: Priority) -> Delay {
        Delay {
            due,
            stamp: self.count(),
            priority,
        }
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn observe_depth(&mut self, priority: Priority) {
        self.observer.depth(priority, self.lanes.depth(priority));
    }
}

//! Where a key stands, and the store of all keys that stand anywhere.

use std::hash::Hash;
use std::ops::{Index, IndexMut};

use slab::Slab;

use crate::lanes::Place;
use crate::priority::Priority;
use crate::table::{KeyHash, KeyHasher, Table};
use crate::time::Moment;

/// Where a key stands. Keys that are idle are not stored at all.
#[derive(Clone, Copy)]
pub(crate) enum Standing {
    /// Waiting for its time. Left when that comes, or by an `add` that wants it sooner, to `Queued`.
    Delayed(Delay),
    /// Waiting in line. Left by `get`, to `Processing`.
    Queued(Turn),
    /// With a worker: the run at this position of [`Slots::runs`]. Left by `done`, to wherever its sequel says.
    Processing(u32),
}

/// What follows the present processing of a key.
#[derive(Clone, Copy)]
pub(crate) enum Sequel {
    /// Nothing new has been said since it was handed out. Left by `add`.
    Nothing,
    /// It is to be looked at later. Left when that time comes or by `add`, to `Again`.
    Later(Delay),
    /// Asked for again: dirty. Its place is in the line already, and those before it have not all been served.
    /// Left when its turn comes while it is still with a worker, to `Passed`.
    Again(Turn),
    /// Dirty, and its turn has come and passed. `done` puts it back at its place, ahead of all later arrivals.
    Passed(Turn),
}

/// The right to be handed out, earned by having been asked for.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    /// The order of asking, over all keys and priorities.
    pub(crate) arrival: u64,
    /// The time of asking. Of two turns, the one with the lower arrival is not the younger.
    pub(crate) since: Moment,
    pub(crate) priority: Priority,
}

/// A wish to be queued at a certain time.
#[derive(Clone, Copy)]
pub(crate) struct Delay {
    pub(crate) due: Moment,
    /// Tells this delay from all others, past ones of the same key included.
    pub(crate) stamp: u64,
    pub(crate) priority: Priority,
}

/// One processing of one key.
///
/// Few keys run at a time, and many may wait: so what only those that run need to know is not in their slots.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) slot: SlotId,
    pub(crate) since: Moment,
    /// Tells this hand-out from all others.
    pub(crate) ticket: u64,
    pub(crate) priority: Priority,
    pub(crate) start: Start,
    pub(crate) sequel: Sequel,
}

/// Whether a run waited for the end of its key's backoff.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    InTime,
    /// Something asked for the key while it was still backing off. Failing once more says nothing new about it.
    DuringBackoff,
}

pub(crate) struct Slot<K> {
    pub(crate) key: K,
    pub(crate) standing: Standing,
    /// Failures in a row, not counting those of runs that started during the backoff.
    pub(crate) failures: u32,
    hash: KeyHash,
    /// The end of the backoff after the last failure.
    pub(crate) rested_at: Moment,
}

/// The number of a slot. It may change only in [`Slots::compact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId(u32);

impl SlotId {
    /// The number of no slot.
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(crate) fn new(index: usize) -> Self {
        let number = u32::try_from(index).ok().map(Self).filter(|id| *id != Self::NONE);
        number.expect("the keys of one queue are fewer than four billion")
    }

    #[inline]
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether a key had a slot before it was looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Known,
    New,
}

/// What the place of a key in a line turns out to be when it is looked at.
pub(crate) enum Found {
    Queued,
    Dirty,
    /// Left behind by a key that moved to another lane.
    Stale,
}

/// All keys that are not idle, each stored once and found by its hash.
pub(crate) struct Slots<K> {
    slab: Slab<Slot<K>>,
    table: Table,
    /// In no order.
    runs: Vec<Run>,
    hasher: KeyHasher,
}

/// Room that is kept even when it is not used, so that an ordinary load never makes the store grow or shrink.
pub(crate) const SPARE: usize = 1024;

/// Whether so few of the places are used that giving memory back is worth the copying.
pub(crate) fn is_sparse(used: usize, capacity: usize) -> bool {
    capacity > 2 * SPARE && used < capacity / 8
}

impl<K: Eq + Hash> Slots<K> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            slab: Slab::new(),
            table: Table::new(),
            runs: Vec::new(),
            hasher: KeyHasher::new(),
        }
    }

    pub(crate) fn find(&self, key: &K) -> Option<SlotId> {
        let found = self.table.find(self.hasher.hash(key), |id| self[id].key == *key)?;
        Some(self.table.slot(found))
    }

    /// What is with a worker.
    #[inline]
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The run of the key in this slot, if there is one and it is with a worker.
    #[inline]
    pub(crate) fn run(&self, id: SlotId) -> Option<&Run> {
        match self.slab.get(id.index())?.standing {
            Standing::Processing(position) => Some(&self.runs[position as usize]),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn run_mut(&mut self, id: SlotId) -> Option<&mut Run> {
        match self.slab.get(id.index())?.standing {
            Standing::Processing(position) => Some(&mut self.runs[position as usize]),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn begin(&mut self, run: Run) {
        let position = u32::try_from(self.runs.len()).expect("the keys of one queue are fewer than four billion");
        self[run.slot].standing = Standing::Processing(position);
        self.runs.push(run);
    }

    /// Ends the run of a key. Where the key stands from now on is for the caller to say.
    #[inline]
    pub(crate) fn end(&mut self, id: SlotId) -> Option<Run> {
        let Standing::Processing(position) = self.slab.get(id.index())?.standing else {
            return None;
        };
        let run = self.runs.swap_remove(position as usize);
        if let Some(moved) = self.runs.get(position as usize) {
            self.slab[moved.slot.index()].standing = Standing::Processing(position);
        }
        if is_sparse(self.runs.len(), self.runs.capacity()) {
            self.runs.shrink_to((2 * self.runs.len()).max(SPARE));
        }
        Some(run)
    }

    /// The turn that a key has: its own, or, when a worker has it, the one after that.
    pub(crate) fn turn(&self, id: SlotId) -> Option<Turn> {
        match (self.slab.get(id.index())?.standing, self.run(id)) {
            (Standing::Queued(turn), _) => Some(turn),
            (_, Some(run)) => match run.sequel {
                Sequel::Again(turn) | Sequel::Passed(turn) => Some(turn),
                Sequel::Nothing | Sequel::Later(_) => None,
            },
            _ => None,
        }
    }

    /// Lets a key have a turn: now, or, when a worker has it, after that.
    pub(crate) fn set_turn(&mut self, id: SlotId, turn: Turn) {
        match self.run_mut(id) {
            Some(run) => run.sequel = Sequel::Again(turn),
            None => self[id].standing = Standing::Queued(turn),
        }
    }

    /// The delay that a key waits for, be it idle otherwise or with a worker.
    pub(crate) fn delay(&self, id: SlotId) -> Option<Delay> {
        match (self.slab.get(id.index())?.standing, self.run(id)) {
            (Standing::Delayed(delay), _) => Some(delay),
            (_, Some(run)) => match run.sequel {
                Sequel::Later(delay) => Some(delay),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn set_delay(&mut self, id: SlotId, delay: Delay) {
        match self.run_mut(id) {
            Some(run) => run.sequel = Sequel::Later(delay),
            None => self[id].standing = Standing::Delayed(delay),
        }
    }

    /// The slot of a key, or, if it has none, a new one with this standing.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, key: K, standing: Standing) -> (SlotId, Presence) {
        let hash = self.hasher.hash(&key);
        if let Some(found) = self.table.find(hash, |id| self[id].key == key) {
            return (self.table.slot(found), Presence::Known);
        }
        let id = SlotId::new(self.slab.insert(Slot {
            key,
            standing,
            failures: 0,
            hash,
            rested_at: Moment::START,
        }));
        self.table.insert(hash, id);
        (id, Presence::New)
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: SlotId) -> Slot<K> {
        let slot = self.slab.remove(id.index());
        let position = self.table.find(slot.hash, |other| other == id);
        self.table.remove(position.expect("every slot is in the table"));
        slot
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot<K>)> {
        self.slab.iter().map(|(index, slot)| (SlotId::new(index), slot))
    }

    pub(crate) fn is_sparse(&self) -> bool {
        is_sparse(self.slab.len(), self.slab.capacity())
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.slab.capacity().max(self.table.capacity())
    }

    /// Gives unused memory back. Slots are numbered anew; whoever holds a number must look it up again.
    pub(crate) fn compact(&mut self) {
        let Self { slab, table, runs, .. } = self;
        slab.compact(|slot, from, to| {
            let (from, to) = (SlotId::new(from), SlotId::new(to));
            let position = table.find(slot.hash, |id| id == from);
            table.set_slot(position.expect("every slot is in the table"), to);
            if let Standing::Processing(position) = slot.standing {
                runs[position as usize].slot = to;
            }
            true
        });
        let room = (2 * slab.len()).max(SPARE);
        slab.reserve_exact(room - slab.len());
        table.shrink_to(room);
    }

    #[inline]
    pub(crate) fn found(&self, place: Place, priority: Priority) -> Found {
        let at_place = |turn: Turn| turn.arrival == place.arrival && turn.priority == priority;
        match self.slab.get(place.slot.index()).map(|slot| slot.standing) {
            Some(Standing::Queued(turn)) if at_place(turn) => Found::Queued,
            Some(Standing::Processing(position)) => match self.runs[position as usize].sequel {
                Sequel::Again(turn) if at_place(turn) => Found::Dirty,
                _ => Found::Stale,
            },
            _ => Found::Stale,
        }
    }
}

impl<K> Index<SlotId> for Slots<K> {
    type Output = Slot<K>;

    #[inline]
    fn index(&self, id: SlotId) -> &Slot<K> {
        &self.slab[id.index()]
    }
}

impl<K> IndexMut<SlotId> for Slots<K> {
    fn index_mut(&mut self, id: SlotId) -> &mut Slot<K> {
        &mut self.slab[id.index()]
    }
}

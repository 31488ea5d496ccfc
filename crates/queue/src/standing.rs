//! Where a key stands, and the store of all keys that stand anywhere.

use std::hash::{BuildHasher, Hash};
use std::ops::{Index, IndexMut};

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;

use crate::lanes::Place;
use crate::priority::Priority;
use crate::time::Moment;

/// Where a key stands. Keys that are idle are not stored at all.
#[derive(Clone, Copy)]
pub(crate) enum Standing {
    /// Waiting for its time. Left when that comes, or by an `add` that wants it sooner, to `Queued`.
    Delayed(Delay),
    /// Waiting in line. Left by `get`, to `Processing`.
    Queued(Turn),
    /// With a worker. Left by `done`, to wherever the sequel says.
    Processing(Run, Sequel),
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
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) since: Moment,
    /// Tells this hand-out from all others.
    pub(crate) ticket: u64,
    /// Where the key is in the list of those that are processing.
    pub(crate) position: u32,
    pub(crate) priority: Priority,
    pub(crate) start: Start,
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
    /// The end of the backoff after the last failure.
    pub(crate) rested_at: Moment,
}

/// The number of a slot. It may change only in [`Slots::compact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId(u32);

impl SlotId {
    #[inline]
    fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("the keys of one queue are fewer than four billion"))
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

/// Spreads half a hash over the bits that the table looks at, which are the lowest and the highest.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// All keys that are not idle, each stored once and found by its hash.
///
/// With many keys, time goes where memory is touched out of order. So the table holds numbers only, and what it needs
/// to grow is packed by itself, not spread over the slots.
pub(crate) struct Slots<K> {
    slab: Slab<Slot<K>>,
    table: HashTable<SlotId>,
    /// Half of the hash of each slot's key.
    hashes: Vec<u32>,
    hasher: DefaultHashBuilder,
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
            table: HashTable::new(),
            hashes: Vec::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    fn hash(&self, key: &K) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }

    pub(crate) fn find(&self, key: &K) -> Option<SlotId> {
        self.table
            .find(spread(self.hash(key)), |id| self.slab[id.index()].key == *key)
            .copied()
    }

    /// Whether the key in this slot, if there is one, is with the worker that has this ticket.
    #[inline]
    pub(crate) fn is_run(&self, id: SlotId, ticket: u64) -> bool {
        let standing = self.slab.get(id.index()).map(|slot| &slot.standing);
        matches!(standing, Some(Standing::Processing(run, _)) if run.ticket == ticket)
    }

    /// The slot of a key, or, if it has none, a new one with the standing that `standing` gives it.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, key: K, standing: impl FnOnce() -> Standing) -> (SlotId, Presence) {
        let hash = self.hash(&key);
        let Self {
            slab, table, hashes, ..
        } = self;
        let same = |id: &SlotId| slab[id.index()].key == key;
        match table.entry(spread(hash), same, |id| spread(hashes[id.index()])) {
            Entry::Occupied(found) => (*found.get(), Presence::Known),
            Entry::Vacant(vacant) => {
                let id = SlotId::new(slab.vacant_key());
                vacant.insert(id);
                match hashes.get_mut(id.index()) {
                    Some(place) => *place = hash,
                    None => hashes.push(hash),
                }
                slab.insert(Slot {
                    key,
                    standing: standing(),
                    failures: 0,
                    rested_at: Moment::START,
                });
                (id, Presence::New)
            }
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: SlotId) -> Slot<K> {
        let hash = spread(self.hashes[id.index()]);
        self.table
            .find_entry(hash, |other| *other == id)
            .expect("every slot is in the table")
            .remove();
        self.slab.remove(id.index())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot<K>)> {
        self.slab.iter().map(|(index, slot)| (SlotId::new(index), slot))
    }

    pub(crate) fn is_sparse(&self) -> bool {
        is_sparse(self.slab.len(), self.slab.capacity())
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.slab
            .capacity()
            .max(self.table.capacity())
            .max(self.hashes.capacity())
    }

    /// Gives unused memory back. Slots are numbered anew; whoever holds a number must look it up again.
    pub(crate) fn compact(&mut self) {
        let Self {
            slab, table, hashes, ..
        } = self;
        slab.compact(|_, from, to| {
            let (from, to) = (SlotId::new(from), SlotId::new(to));
            let hash = hashes[from.index()];
            *table
                .find_mut(spread(hash), |id| *id == from)
                .expect("every slot is in the table") = to;
            hashes[to.index()] = hash;
            true
        });
        let room = (2 * slab.len()).max(SPARE);
        slab.reserve_exact(room - slab.len());
        hashes.truncate(slab.len());
        hashes.shrink_to(room);
        table.shrink_to(room, |id| spread(hashes[id.index()]));
    }

    #[inline]
    pub(crate) fn found(&self, place: Place, priority: Priority) -> Found {
        let at_place = |turn: Turn| turn.arrival == place.arrival && turn.priority == priority;
        match self.slab.get(place.slot.index()).map(|slot| &slot.standing) {
            Some(Standing::Queued(turn)) if at_place(*turn) => Found::Queued,
            Some(Standing::Processing(_, Sequel::Again(turn))) if at_place(*turn) => Found::Dirty,
            _ => Found::Stale,
        }
    }

    /// The delay that a key waits for, be it idle otherwise or with a worker.
    pub(crate) fn delay(&self, id: SlotId) -> Option<Delay> {
        match self.slab.get(id.index())?.standing {
            Standing::Delayed(delay) | Standing::Processing(_, Sequel::Later(delay)) => Some(delay),
            _ => None,
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

//! Which slot a key has, found by its hash.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;

use crate::standing::SlotId;

/// Hashes the keys of one queue.
pub(crate) struct KeyHasher(RandomState);

/// Half of the hash of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHash(u32);

impl KeyHasher {
    pub(crate) fn new() -> Self {
        Self(RandomState::default())
    }

    #[inline]
    pub(crate) fn hash<K: Hash>(&self, key: &K) -> KeyHash {
        KeyHash((self.0.hash_one(key) >> 32) as u32)
    }
}

impl KeyHash {
    /// Where a key of this hash belongs in a table whose length less one is `mask`.
    #[inline]
    fn home(self, mask: usize) -> usize {
        self.0 as usize & mask
    }
}

/// A hash table of slot numbers: open addressing, each entry beside the next.
///
/// With many keys, time goes where memory is touched out of order, which is here. So an entry has all that a search, a
/// removal or growth needs to know: each of them touches one line of the cache, seldom two, and no slot but the one
/// that it is looking for.
pub(crate) struct Table {
    /// A power of two of them, or none at all.
    entries: Box<[Entry]>,
    len: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    hash: KeyHash,
    slot: SlotId,
}

impl Entry {
    const VACANT: Self = Self {
        hash: KeyHash(0),
        slot: SlotId::NONE,
    };

    fn is_vacant(self) -> bool {
        self.slot == SlotId::NONE
    }
}

/// Where an entry is, until the table changes.
#[derive(Clone, Copy)]
pub(crate) struct Position(usize);

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            entries: Box::default(),
            len: 0,
        }
    }

    /// How many slots it holds before it grows.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len() / 8 * 5
    }

    /// The entry of this hash whose slot is the one looked for.
    #[inline]
    pub(crate) fn find(&self, hash: KeyHash, is_it: impl Fn(SlotId) -> bool) -> Option<Position> {
        let mask = self.entries.len().checked_sub(1)?;
        let mut at = hash.home(mask);
        // There is always a vacant entry: the table grows long before it is full.
        loop {
            let entry = self.entries[at];
            if entry.is_vacant() {
                return None;
            }
            if entry.hash == hash && is_it(entry.slot) {
                return Some(Position(at));
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    pub(crate) fn slot(&self, position: Position) -> SlotId {
        self.entries[position.0].slot
    }

    pub(crate) fn set_slot(&mut self, position: Position, slot: SlotId) {
        self.entries[position.0].slot = slot;
    }

    /// Adds a slot that is not there yet.
    #[inline]
    pub(crate) fn insert(&mut self, hash: KeyHash, slot: SlotId) {
        if self.len == self.capacity() {
            self.resize((2 * self.entries.len()).max(16));
        }
        self.put(Entry { hash, slot });
        self.len += 1;
    }

    #[inline]
    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = entry.hash.home(mask);
        while !self.entries[at].is_vacant() {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }

    /// Removes an entry. Those after it that were kept from their own place by it move up, so that no search ends early.
    #[inline]
    pub(crate) fn remove(&mut self, position: Position) {
        let mask = self.entries.len() - 1;
        let mut hole = position.0;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry.is_vacant() {
                break;
            }
            let displaced = at.wrapping_sub(entry.hash.home(mask)) & mask;
            if displaced >= at.wrapping_sub(hole) & mask {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = Entry::VACANT;
        self.len -= 1;
    }

    /// Gives back what is not needed to hold so many slots.
    pub(crate) fn shrink_to(&mut self, room: usize) {
        let entries = (room.max(self.len) * 8 / 5 + 1).next_power_of_two().max(16);
        if entries < self.entries.len() {
            self.resize(entries);
        }
    }

    fn resize(&mut self, entries: usize) {
        let old = std::mem::replace(&mut self.entries, vec![Entry::VACANT; entries].into_boxed_slice());
        for entry in old.into_iter().filter(|entry| !entry.is_vacant()) {
            self.put(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Few different hashes, most of them at the end of the table: long runs that wrap around.
    #[test]
    fn it_holds_what_a_map_holds_whatever_the_order() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut table, mut model) = (Table::new(), BTreeMap::<usize, KeyHash>::new());
            for _ in 0..400 {
                let number = random.usize(0..60);
                let slot = SlotId::new(number);
                match model.get(&number).copied() {
                    None => {
                        let hash = KeyHash(u32::MAX - random.u32(0..6));
                        table.insert(hash, slot);
                        model.insert(number, hash);
                    }
                    Some(hash) => {
                        let position = table.find(hash, |other| other == slot).expect("it is there");
                        assert_eq!(table.slot(position), slot);
                        table.remove(position);
                        model.remove(&number);
                    }
                }
                if random.u8(0..40) == 0 {
                    table.shrink_to(0);
                }
                assert!(table.len == model.len() && table.len <= table.capacity());
                for (number, hash) in &model {
                    assert!(table.find(*hash, |other| other == SlotId::new(*number)).is_some());
                }
            }
            assert!((0..60).all(|number| {
                let found = (0..6).any(|back| {
                    table
                        .find(KeyHash(u32::MAX - back), |other| other == SlotId::new(number))
                        .is_some()
                });
                found == model.contains_key(&number)
            }));
        }
    }
}

//! Who goes first among vertices that could go at the same time.

use crate::topology::Slot;

/// A number for each vertex: the lower goes first.
#[derive(Debug)]
pub(crate) struct Ranks {
    /// Vacant slots have no meaning here.
    of_slot: Vec<u32>,
    slots: Vec<Slot>,
}

impl Ranks {
    /// Ranks the slots as they are listed; each is below `bound`.
    pub(crate) fn new(slots: Vec<Slot>, bound: usize) -> Self {
        let mut of_slot = vec![0; bound];
        for (rank, slot) in (0..).zip(&slots) {
            of_slot[*slot as usize] = rank;
        }
        Self { of_slot, slots }
    }

    pub(crate) fn of(&self, slot: Slot) -> u32 {
        self.of_slot[slot as usize]
    }
}

/// The vertices that are ready, handed out by rank.
///
/// A set of small numbers as a tree of 64-bit words: a bit in a word above says that the word below it has any. Adding
/// and taking the least cost one step a layer, that is three for a quarter of a million vertices.
#[derive(Debug)]
pub(crate) struct ReadyRanks {
    ranks: Ranks,
    /// From the leaves, one bit a rank, to the top, a single word.
    layers: Vec<Vec<u64>>,
    len: usize,
}

impl ReadyRanks {
    pub(crate) fn new(ranks: Ranks) -> Self {
        let mut layers = Vec::new();
        let mut width = ranks.slots.len();
        loop {
            width = width.div_ceil(64).max(1);
            layers.push(vec![0; width]);
            if width == 1 {
                break;
            }
        }
        Self { ranks, layers, len: 0 }
    }

    pub(crate) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a vertex that is not in the set.
    pub(crate) fn push(&mut self, slot: Slot) {
        self.len += 1;
        let mut at = self.ranks.of(slot) as usize;
        for layer in &mut self.layers {
            let word = &mut layer[at / 64];
            let known_above = *word != 0;
            *word |= 1 << (at % 64);
            if known_above {
                break;
            }
            at /= 64;
        }
    }

    /// Takes out the vertex with the lowest rank.
    pub(crate) fn pop(&mut self) -> Option<Slot> {
        if self.len == 0 {
            return None;
        }
        self.len -= 1;
        let mut at = 0;
        for layer in self.layers.iter().rev() {
            at = at * 64 + layer[at].trailing_zeros() as usize;
        }
        let slot = self.ranks.slots[at];
        for layer in &mut self.layers {
            let word = &mut layer[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_lowest_rank_is_always_taken_first() {
        for size in [1_u32, 63, 64, 65, 4096, 4097, 10_000] {
            let slots: Vec<Slot> = (0..size).rev().collect();
            let mut ready = ReadyRanks::new(Ranks::new(slots, size as usize));
            let mut model = BTreeSet::new();
            let mut state = 7_u64;
            for _ in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let slot = u32::try_from(state >> 33).unwrap() % size;
                if state & (1 << 20) != 0 {
                    if model.insert(size - 1 - slot) {
                        ready.push(slot);
                    }
                } else {
                    assert_eq!(ready.pop(), model.pop_first().map(|rank| size - 1 - rank));
                }
                assert_eq!(ready.len(), model.len());
            }
        }
    }

    #[test]
    fn an_empty_graph_has_nothing_ready() {
        assert_eq!(ReadyRanks::new(Ranks::new(Vec::new(), 0)).pop(), None);
    }
}

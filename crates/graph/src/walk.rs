//! Walks: every vertex once, in an order that depends on nothing but the edits that made the graph.

use std::cmp::Ordering;
use std::hash::Hash;

use crate::error::RootError;
use crate::graph::Graph;
use crate::ranks::{Ranks, ReadyRanks};
use crate::topology::{Direction, Slot, Topology};

/// A vertex as walks and comparators see it.
pub type Vertex<'g, K, V> = (&'g K, &'g V);

impl<K, V> Graph<K, V> {
    /// Every vertex before what it depends on: a plan from its goal to its beginnings. Ties go by insertion.
    pub fn topological(&self) -> Walk<'_, K, V> {
        self.walk(self.ranks(), Direction::Out)
    }

    /// As [`Graph::topological`], where of all vertices that could come next the least comes first, then the earliest.
    ///
    /// `order` must be a total order, as for [`slice::sort_by`]; like there, one that is not may panic.
    pub fn topological_by(&self, order: impl FnMut(Vertex<'_, K, V>, Vertex<'_, K, V>) -> Ordering) -> Walk<'_, K, V> {
        self.walk(self.ranks_by(order), Direction::Out)
    }

    /// Every vertex after all that it depends on: the order of execution. Ties go by insertion.
    ///
    /// This is a walk of its own and not [`Graph::topological`] backward: among vertices that could come next, the one
    /// that was inserted first does.
    pub fn reverse_topological(&self) -> Walk<'_, K, V> {
        self.walk(self.ranks(), Direction::Into)
    }

    /// As [`Graph::reverse_topological`], where of all vertices that could come next the least comes first, then the
    /// earliest. `order` must be a total order.
    pub fn reverse_topological_by(
        &self,
        order: impl FnMut(Vertex<'_, K, V>, Vertex<'_, K, V>) -> Ordering,
    ) -> Walk<'_, K, V> {
        self.walk(self.ranks_by(order), Direction::Into)
    }

    /// The vertices by the longest way from them to one that depends on nothing. What is in one level can run at once,
    /// when all earlier levels are done: level 0 has no successors, each later level has one in the level before.
    /// Inside a level the order is that of insertion.
    pub fn levels(&self) -> Vec<Vec<&K>> {
        let mut level_of = vec![0_u32; self.topology.nodes.len()];
        let mut depth = 0;
        for slot in self.kahn(self.ranks(), Direction::Into) {
            let next = level_of[slot as usize] + 1;
            depth = depth.max(next);
            for dependent in self.topology.neighbours(slot, Direction::Into) {
                let level = &mut level_of[dependent as usize];
                *level = next.max(*level);
            }
        }
        let mut levels = vec![Vec::new(); depth as usize];
        for slot in self.topology.slots() {
            levels[level_of[slot as usize] as usize].push(self.key(slot));
        }
        levels
    }

    fn walk(&self, ranks: Ranks, direction: Direction) -> Walk<'_, K, V> {
        Walk {
            graph: self,
            slots: self.kahn(ranks, direction).into_iter(),
        }
    }

    /// Takes away, again and again, the lowest-ranked vertex that no edge against `direction` holds back.
    fn kahn(&self, ranks: Ranks, direction: Direction) -> Vec<Slot> {
        let mut walked = Vec::with_capacity(self.len());
        let mut held_by = self.held_by(direction);
        let neighbours = Rows::new(&self.topology, direction);
        let mut ready = ReadyRanks::new(ranks);
        for slot in self.topology.slots() {
            if held_by[slot as usize] == 0 {
                ready.push(slot);
            }
        }
        while let Some(slot) = ready.pop() {
            walked.push(slot);
            for &next in neighbours.of(slot) {
                let holds = &mut held_by[next as usize];
                *holds -= 1;
                if *holds == 0 {
                    ready.push(next);
                }
            }
        }
        walked
    }

    /// For each slot, how many neighbours must go before it when edges are followed in `direction`.
    pub(crate) fn held_by(&self, direction: Direction) -> Vec<u32> {
        let degree = |node: &crate::topology::Node| match direction {
            Direction::Out => node.in_degree,
            Direction::Into => node.out_degree,
        };
        self.topology.nodes.iter().map(degree).collect()
    }

    pub(crate) fn ranks(&self) -> Ranks {
        let mut slots = Vec::with_capacity(self.len());
        slots.extend(self.topology.slots());
        Ranks::new(slots, self.topology.nodes.len())
    }

    fn ranks_by(&self, mut order: impl FnMut(Vertex<'_, K, V>, Vertex<'_, K, V>) -> Ordering) -> Ranks {
        let mut slots: Vec<Slot> = self.topology.slots().collect();
        slots.sort_by(|left, right| order(self.vertex(*left), self.vertex(*right)));
        Ranks::new(slots, self.topology.nodes.len())
    }
}

impl<K: Eq + Hash + Clone, V> Graph<K, V> {
    /// The vertices by the shortest way to them from the root, nearest first. At one distance the order is that of
    /// insertion. Refused for a graph without a single root.
    pub fn breadth_first(&self) -> Result<Walk<'_, K, V>, RootError<K>> {
        let root = self.root_slot()?;
        Ok(self.outward(root, &self.ranks()))
    }

    /// As [`Graph::breadth_first`], where at one distance the least comes first, then the earliest. `order` must be a
    /// total order.
    pub fn breadth_first_by(
        &self,
        order: impl FnMut(Vertex<'_, K, V>, Vertex<'_, K, V>) -> Ordering,
    ) -> Result<Walk<'_, K, V>, RootError<K>> {
        let root = self.root_slot()?;
        Ok(self.outward(root, &self.ranks_by(order)))
    }

    fn outward(&self, root: Slot, ranks: &Ranks) -> Walk<'_, K, V> {
        let mut seen = vec![false; self.topology.nodes.len()];
        seen[root as usize] = true;
        let mut walked = Vec::with_capacity(self.len());
        walked.push(root);
        let mut near = 0;
        while near < walked.len() {
            let far = walked.len();
            for index in near..far {
                for next in self.topology.neighbours(walked[index], Direction::Out) {
                    if !std::mem::replace(&mut seen[next as usize], true) {
                        walked.push(next);
                    }
                }
            }
            walked[far..].sort_unstable_by_key(|slot| ranks.of(*slot));
            near = far;
        }
        Walk {
            graph: self,
            slots: walked.into_iter(),
        }
    }
}

/// The neighbours of all vertices side by side.
///
/// A walk that asks for every vertex's neighbours is better served by one pass over the edges than by following lists
/// that lead all over them: what it then needs is a tenth of the size.
struct Rows {
    /// Where the row of a slot ends; it begins where the one before ends.
    ends: Vec<u32>,
    neighbours: Vec<Slot>,
}

impl Rows {
    fn new(topology: &Topology, direction: Direction) -> Self {
        let mut length = 0;
        let mut ends: Vec<u32> = Vec::with_capacity(topology.nodes.len());
        // Each row's beginning at first, moved to its end as the row fills.
        for node in &topology.nodes {
            ends.push(length);
            length += match direction {
                Direction::Out => node.out_degree,
                Direction::Into => node.in_degree,
            };
        }
        let mut neighbours = vec![0; length as usize];
        for edge in topology.edge_slots() {
            let edge = topology.edge(edge);
            let (row, neighbour) = match direction {
                Direction::Out => (edge.from, edge.to),
                Direction::Into => (edge.to, edge.from),
            };
            let end = &mut ends[row as usize];
            neighbours[*end as usize] = neighbour;
            *end += 1;
        }
        Self { ends, neighbours }
    }

    fn of(&self, slot: Slot) -> &[Slot] {
        let begin = slot.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        &self.neighbours[begin as usize..self.ends[slot as usize] as usize]
    }
}

/// Every vertex of a graph once, in the order of the walk that made it. Can also be read from its end.
pub struct Walk<'g, K, V> {
    graph: &'g Graph<K, V>,
    slots: std::vec::IntoIter<Slot>,
}

impl<'g, K, V> Iterator for Walk<'g, K, V> {
    type Item = Vertex<'g, K, V>;

    fn next(&mut self) -> Option<Self::Item> {
        self.slots.next().map(|slot| self.graph.vertex(slot))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.slots.size_hint()
    }
}

impl<K, V> DoubleEndedIterator for Walk<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.slots.next_back().map(|slot| self.graph.vertex(slot))
    }
}

impl<K, V> ExactSizeIterator for Walk<'_, K, V> {}

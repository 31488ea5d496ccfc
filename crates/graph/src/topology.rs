//! The shape of the graph: slots for vertices and edges, without keys or values.
//!
//! Everything is an index into one of two slabs. A vertex is in the list of all vertices and, while nothing points at
//! it, in the list of roots; an edge is in the list of all edges, in its source's `out` and in its target's `into`.
//! So every edit touches a fixed number of places, whatever the degree of the vertices involved. [`crate::order`] adds
//! the order that makes cycles visible.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::list::{Link, List, NIL};

/// Where a vertex is stored. Reused after removal.
pub(crate) type Slot = u32;

/// Where an edge is stored. Reused after removal.
pub(crate) type EdgeSlot = u32;

/// A vertex without its key and value. Fills one cache line: editing an edge touches its two ends and little else.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    /// In the list of all vertices; chains the free slots while vacant.
    pub(crate) all: Link,
    /// In the list of roots, while `in_degree` is zero.
    pub(crate) root: Link,
    pub(crate) out: List,
    pub(crate) into: List,
    /// The part of `into` whose source has the tier of this vertex: what a backward search follows.
    pub(crate) level_into: List,
    pub(crate) out_degree: u32,
    pub(crate) in_degree: u32,
    /// First half of the kept order: never falls while the vertex lives.
    pub(crate) tier: u32,
    /// What the search that is under way knows about the vertex. [`Mark::Unseen`] between searches.
    pub(crate) mark: Mark,
    /// Second half of the kept order, unique in the graph.
    pub(crate) place: i64,
}

/// What a search for a cycle knows about a vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Unseen,
    /// Reaches the source of the edge that is being added.
    Behind,
    /// Is reached from its target.
    Ahead,
}

/// An edge `from -> to`, in three or four lists at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) from: Slot,
    pub(crate) to: Slot,
    /// In the list of all edges; chains the free slots while vacant.
    pub(crate) all: Link,
    pub(crate) out: Link,
    pub(crate) into: Link,
    /// In `level_into` of the target exactly while both ends have one tier; otherwise meaningless.
    pub(crate) level_into: Link,
}

/// Which way edges are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From a vertex to what it depends on.
    Out,
    /// From a vertex to what depends on it.
    Into,
}

#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<Node>,
    pub(crate) edges: Vec<Edge>,
    edge_slots: HashMap<(Slot, Slot), EdgeSlot, FixedState>,
    pub(crate) all: List,
    pub(crate) all_edges: List,
    pub(crate) roots: List,
    pub(crate) vacant_node: u32,
    pub(crate) vacant_edge: u32,
    len: usize,
    /// The place of the next vertex to be inserted: above all places in use.
    pub(crate) highest: i64,
    /// Below all places in use.
    pub(crate) lowest: i64,
    pub(crate) scratch: crate::order::Scratch,
}

impl Topology {
    pub(crate) fn with_capacity(vertices: usize, edges: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(vertices),
            edges: Vec::with_capacity(edges),
            edge_slots: HashMap::with_capacity_and_hasher(edges, FixedState::default()),
            all: List::EMPTY,
            all_edges: List::EMPTY,
            roots: List::EMPTY,
            vacant_node: NIL,
            vacant_edge: NIL,
            len: 0,
            highest: 0,
            lowest: 0,
            scratch: crate::order::Scratch::default(),
        }
    }

    pub(crate) fn reserve(&mut self, vertices: usize, edges: usize) {
        self.nodes.reserve(vertices);
        self.edges.reserve(edges);
        self.edge_slots.reserve(edges);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn edge_count(&self) -> usize {
        self.edge_slots.len()
    }

    #[inline]
    pub(crate) fn node(&self, slot: Slot) -> &Node {
        &self.nodes[slot as usize]
    }

    #[inline]
    pub(crate) fn node_mut(&mut self, slot: Slot) -> &mut Node {
        &mut self.nodes[slot as usize]
    }

    #[inline]
    pub(crate) fn edge(&self, edge: EdgeSlot) -> &Edge {
        &self.edges[edge as usize]
    }

    /// Adds a vertex without edges, last in the kept order of its tier.
    pub(crate) fn add_vertex(&mut self) -> Slot {
        let node = Node {
            all: Link::LOOSE,
            root: Link::LOOSE,
            out: List::EMPTY,
            into: List::EMPTY,
            level_into: List::EMPTY,
            out_degree: 0,
            in_degree: 0,
            tier: 0,
            mark: Mark::Unseen,
            place: self.highest,
        };
        self.highest += 1;
        let slot = match self.vacant_node {
            NIL => {
                self.nodes.push(node);
                slab_index(self.nodes.len())
            }
            vacant => {
                self.vacant_node = self.node(vacant).all.next;
                *self.node_mut(vacant) = node;
                vacant
            }
        };
        self.all.push(&mut self.nodes, slot, |node| &mut node.all);
        self.roots.push(&mut self.nodes, slot, |node| &mut node.root);
        self.len += 1;
        slot
    }

    /// Removes a vertex with its edges, in time proportional to their number.
    pub(crate) fn remove_vertex(&mut self, slot: Slot) {
        while self.node(slot).out.head != NIL {
            self.remove_edge_slot(self.node(slot).out.head);
        }
        while self.node(slot).into.head != NIL {
            self.remove_edge_slot(self.node(slot).into.head);
        }
        self.roots.unlink(&mut self.nodes, slot, |node| &mut node.root);
        self.all.unlink(&mut self.nodes, slot, |node| &mut node.all);
        self.node_mut(slot).all.next = self.vacant_node;
        self.vacant_node = slot;
        self.len -= 1;
    }

    #[inline]
    pub(crate) fn find_edge(&self, from: Slot, to: Slot) -> Option<EdgeSlot> {
        self.edge_slots.get(&(from, to)).copied()
    }

    /// Adds an edge that is known to be absent and to agree with the kept order.
    pub(crate) fn link_edge(&mut self, from: Slot, to: Slot) {
        debug_assert!(
            self.precedes(from, to),
            "an edge is linked only after room was made for it"
        );
        let edge = Edge {
            from,
            to,
            all: Link::LOOSE,
            out: Link::LOOSE,
            into: Link::LOOSE,
            level_into: Link::LOOSE,
        };
        let at = match self.vacant_edge {
            NIL => {
                self.edges.push(edge);
                slab_index(self.edges.len())
            }
            vacant => {
                self.vacant_edge = self.edge(vacant).all.next;
                self.edges[vacant as usize] = edge;
                vacant
            }
        };
        self.edge_slots.insert((from, to), at);
        self.all_edges.push(&mut self.edges, at, |edge| &mut edge.all);
        let source = &mut self.nodes[from as usize];
        source.out.push(&mut self.edges, at, |edge| &mut edge.out);
        source.out_degree += 1;
        let tier = source.tier;
        let target = &mut self.nodes[to as usize];
        target.into.push(&mut self.edges, at, |edge| &mut edge.into);
        if target.tier == tier {
            target.level_into.push(&mut self.edges, at, |edge| &mut edge.level_into);
        }
        target.in_degree += 1;
        if target.in_degree == 1 {
            self.roots.unlink(&mut self.nodes, to, |node| &mut node.root);
        }
    }

    pub(crate) fn remove_edge(&mut self, from: Slot, to: Slot) -> bool {
        match self.find_edge(from, to) {
            Some(edge) => {
                self.remove_edge_slot(edge);
                true
            }
            None => false,
        }
    }

    fn remove_edge_slot(&mut self, at: EdgeSlot) {
        let Edge { from, to, .. } = *self.edge(at);
        self.edge_slots.remove(&(from, to));
        let source = &mut self.nodes[from as usize];
        source.out.unlink(&mut self.edges, at, |edge| &mut edge.out);
        source.out_degree -= 1;
        let tier = source.tier;
        let target = &mut self.nodes[to as usize];
        target.into.unlink(&mut self.edges, at, |edge| &mut edge.into);
        if target.tier == tier {
            target
                .level_into
                .unlink(&mut self.edges, at, |edge| &mut edge.level_into);
        }
        target.in_degree -= 1;
        if target.in_degree == 0 {
            self.roots.push(&mut self.nodes, to, |node| &mut node.root);
        }
        self.all_edges.unlink(&mut self.edges, at, |edge| &mut edge.all);
        self.edges[at as usize].all.next = self.vacant_edge;
        self.vacant_edge = at;
    }

    /// Every vertex in insertion order.
    pub(crate) fn slots(&self) -> Chain<'_, Node> {
        Chain {
            slab: &self.nodes,
            at: self.all.head,
            next: |node| node.all.next,
        }
    }

    /// Every edge in insertion order.
    pub(crate) fn edge_slots(&self) -> Chain<'_, Edge> {
        Chain {
            slab: &self.edges,
            at: self.all_edges.head,
            next: |edge| edge.all.next,
        }
    }

    /// The one root, where there is exactly one.
    #[inline]
    pub(crate) fn single_root(&self) -> Option<Slot> {
        (self.roots.head != NIL && self.roots.head == self.roots.tail).then_some(self.roots.head)
    }

    /// The neighbours of a vertex, in the order in which their edges were added.
    pub(crate) fn neighbours(&self, slot: Slot, direction: Direction) -> Neighbours<'_> {
        let node = self.node(slot);
        Neighbours {
            edges: &self.edges,
            at: match direction {
                Direction::Out => node.out.head,
                Direction::Into => node.into.head,
            },
            direction,
        }
    }
}

/// The index of the element that was just pushed as the `len`th.
fn slab_index(len: usize) -> u32 {
    u32::try_from(len - 1)
        .ok()
        .filter(|index| *index != NIL)
        .expect("a graph holds fewer than 2^32 - 1 vertices and as many edges")
}

/// The indices along one list of a slab.
#[derive(Clone, Debug)]
pub(crate) struct Chain<'g, T> {
    slab: &'g [T],
    at: u32,
    next: fn(&T) -> u32,
}

impl<T> Iterator for Chain<'_, T> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let at = self.at;
        let element = self.slab.get(at as usize)?;
        self.at = (self.next)(element);
        Some(at)
    }
}

/// The vertices at the other ends of a vertex's edges.
#[derive(Clone, Debug)]
pub(crate) struct Neighbours<'g> {
    edges: &'g [Edge],
    at: EdgeSlot,
    direction: Direction,
}

impl Neighbours<'_> {
    pub(crate) const NONE: Neighbours<'static> = Neighbours {
        edges: &[],
        at: NIL,
        direction: Direction::Out,
    };
}

impl Iterator for Neighbours<'_> {
    type Item = Slot;

    #[inline]
    fn next(&mut self) -> Option<Slot> {
        let edge = self.edges.get(self.at as usize)?;
        let (at, slot) = match self.direction {
            Direction::Out => (edge.out.next, edge.to),
            Direction::Into => (edge.into.next, edge.from),
        };
        self.at = at;
        Some(slot)
    }
}

//! The order that is kept while edges come and go, and by which a cycle is seen at the edge that closes it.
//!
//! Each vertex has a position `(tier, place)`, compared in that order, such that every edge leads from a lower position
//! to a higher one. An edge that agrees with the positions closes no cycle and costs constant time. For one that does
//! not, the positions must change, or there is a cycle. The method is the two-way search of Bender, Fineman, Gilbert
//! and Tarjan for sparse graphs ("A New Approach to Incremental Cycle Detection and Related Problems"):
//!
//! ```text
//!   tier 2            ┌──► w' ─► …     w and what it reaches below tier 2 move up, ahead of the rest of the tier
//!   tier 1   b ─► b ─► v               a few edges are followed backward from v, inside its tier
//!   tier 0        w ─► …               w was below or beside v when the edge v ─► w came
//! ```
//!
//! 1. Search backward from `v`, only along edges inside its tier, and give up after a few of them: the [`patience`] of
//!    the tier. Meeting `w` is a cycle.
//! 2. If the search ended by itself, `w` belongs on the tier of `v`, behind everything the search found; if it was given
//!    up, on the tier above, where it is behind all of that without looking further.
//! 3. If that lifts `w`, search forward from it through the vertices that lie lower than its new tier: they are lifted
//!    along. Meeting a vertex of step 1 is a cycle.
//! 4. Only now write: new tiers, and new places at the front of the tier for what was found behind `v`, then for
//!    what was lifted.
//!
//! The authors give up after √m edges on every tier, for `m` edges in all. We give up after `2 (t + 1)` on tier `t`,
//! which needs no `m` to be known and is far less while there are few tiers, as in most graphs. The bound stays: a tier
//! is begun only when as many edges as its patience lie on the tier below it, and the vertices on it are lifted along
//! with those, so `T` tiers need `2 + 4 + … + 2T > T²` edges and there are at most √m. So a search backward follows at
//! most `2√m` edges; a vertex is lifted at most once a tier, √m times, and looks at its outgoing edges each time. In all
//! `m` insertions cost `O(m √m)`, `O(√m)` amortised for each, in any order of insertion. (Removals keep the positions
//! right but may leave tiers thinner than that, so the bound is on insertions without removals between.) The order of
//! Pearce and Kelly, which `petgraph::acyclic` keeps, has no such bound: joining the pieces of a long chain in an unlucky
//! order is quadratic.
//!
//! Two cases need no search: a target without successors goes to the end of the source's tier; and a source without
//! predecessors on its tier ends step 1 at once. They cover what plans do: leaves that are added to what exists, and
//! a root that is put before it.
//!
//! A refused edge has written nothing. What it cost is not repaid by later operations, so the bound is on accepted ones.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::list::{List, NIL};
use crate::topology::{Direction, EdgeSlot, Mark, Slot, Topology};

/// Buffers of the searches, kept so that adding an edge does not allocate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// The way of the depth-first search: a vertex and its next edge to follow.
    trail: Vec<(Slot, EdgeSlot)>,
    /// What reaches the source inside its tier; predecessors before successors.
    behind: Vec<Slot>,
    /// What the target reaches below its new tier; successors before predecessors.
    ahead: Vec<Slot>,
    /// Edges followed since the graph was made.
    #[cfg(test)]
    pub(crate) followed: u64,
}

/// The refused edge's target reaches its source.
#[derive(Debug)]
pub(crate) struct ClosesCycle;

/// How the bounded backward search ended.
enum Behind {
    Complete,
    GivenUp,
}

/// How many edges a search backward follows on a tier before it is given up.
fn patience(tier: u32) -> usize {
    2 * (tier as usize + 1)
}

impl Topology {
    /// Whether `before` has the lower position.
    #[inline]
    pub(crate) fn precedes(&self, before: Slot, after: Slot) -> bool {
        let (before, after) = (self.node(before), self.node(after));
        (before.tier, before.place) < (after.tier, after.place)
    }

    /// Moves positions so that an edge `from -> to` agrees with them, or finds that it closes a cycle and moves nothing.
    pub(crate) fn make_room(&mut self, from: Slot, to: Slot) -> Result<(), ClosesCycle> {
        if self.precedes(from, to) {
            return Ok(());
        }
        if self.node(to).out_degree == 0 {
            self.move_to_end(to, self.node(from).tier);
            return Ok(());
        }
        let searched = self.search(from, to);
        for index in 0..self.scratch.behind.len() {
            let slot = self.scratch.behind[index];
            self.node_mut(slot).mark = Mark::Unseen;
        }
        for index in 0..self.scratch.ahead.len() {
            let slot = self.scratch.ahead[index];
            self.node_mut(slot).mark = Mark::Unseen;
        }
        if let Ok(lifted_to) = searched {
            self.rearrange(lifted_to);
        }
        self.scratch.behind.clear();
        self.scratch.ahead.clear();
        searched.map(|_| ())
    }

    /// Puts a vertex without successors last on a tier that is not below its own.
    fn move_to_end(&mut self, sink: Slot, tier: u32) {
        let place = self.highest;
        self.highest += 1;
        let node = self.node_mut(sink);
        node.place = place;
        if node.tier != tier {
            node.tier = tier;
            // Its predecessors are where they were, at most at its old tier.
            node.level_into = List::EMPTY;
        }
    }

    /// Fills `behind` and `ahead` and says on which tier `ahead` belongs. Leaves their marks for the caller to clear.
    fn search(&mut self, from: Slot, to: Slot) -> Result<u32, ClosesCycle> {
        let (source_tier, target_tier) = (self.node(from).tier, self.node(to).tier);
        let tier = match self.search_behind(from, to)? {
            Behind::Complete if source_tier == target_tier => return Ok(source_tier),
            Behind::Complete => source_tier,
            Behind::GivenUp => source_tier + 1,
        };
        self.search_ahead(to, tier)?;
        if tier > source_tier {
            // The source stays where it is: the tiers alone put it first. It was marked to be recognised.
            self.node_mut(from).mark = Mark::Unseen;
            self.scratch.behind.clear();
        }
        Ok(tier)
    }

    fn search_behind(&mut self, from: Slot, to: Slot) -> Result<Behind, ClosesCycle> {
        let limit = patience(self.node(from).tier);
        let mut followed = 0;
        let mut met_target = false;
        self.node_mut(from).mark = Mark::Behind;
        self.scratch.trail.push((from, self.node(from).level_into.head));
        while let Some(&mut (slot, ref mut next)) = self.scratch.trail.last_mut() {
            if *next == NIL {
                self.scratch.trail.pop();
                self.scratch.behind.push(slot);
                continue;
            }
            let edge = &self.edges[*next as usize];
            *next = edge.level_into.next;
            let source = edge.from;
            followed += 1;
            met_target = source == to;
            if met_target || followed > limit {
                break;
            }
            let node = &mut self.nodes[source as usize];
            if node.mark == Mark::Unseen {
                node.mark = Mark::Behind;
                self.scratch.trail.push((source, node.level_into.head));
            }
        }
        self.note_followed(followed);
        let complete = self.scratch.trail.is_empty();
        let unfinished = self.scratch.trail.drain(..).map(|(slot, _)| slot);
        self.scratch.behind.extend(unfinished);
        if met_target {
            return Err(ClosesCycle);
        }
        if complete {
            return Ok(Behind::Complete);
        }
        for slot in self.scratch.behind.drain(..) {
            self.nodes[slot as usize].mark = Mark::Unseen;
        }
        self.node_mut(from).mark = Mark::Behind;
        self.scratch.behind.push(from);
        Ok(Behind::GivenUp)
    }

    fn search_ahead(&mut self, to: Slot, tier: u32) -> Result<(), ClosesCycle> {
        let mut followed = 0;
        let mut met_behind = false;
        self.node_mut(to).mark = Mark::Ahead;
        self.scratch.trail.push((to, self.node(to).out.head));
        while let Some(&mut (slot, ref mut next)) = self.scratch.trail.last_mut() {
            if *next == NIL {
                self.scratch.trail.pop();
                self.scratch.ahead.push(slot);
                continue;
            }
            let edge = &self.edges[*next as usize];
            *next = edge.out.next;
            let target = edge.to;
            followed += 1;
            let node = &mut self.nodes[target as usize];
            match node.mark {
                Mark::Behind => {
                    met_behind = true;
                    break;
                }
                Mark::Unseen if node.tier < tier => {
                    node.mark = Mark::Ahead;
                    self.scratch.trail.push((target, node.out.head));
                }
                Mark::Ahead | Mark::Unseen => {}
            }
        }
        self.note_followed(followed);
        let unfinished = self.scratch.trail.drain(..).map(|(slot, _)| slot);
        self.scratch.ahead.extend(unfinished);
        if met_behind { Err(ClosesCycle) } else { Ok(()) }
    }

    /// Lifts `ahead` to `tier` and puts `behind`, then `ahead`, in front of everything else there.
    fn rearrange(&mut self, tier: u32) {
        let moved = self.scratch.behind.len() + self.scratch.ahead.len();
        self.lowest -= i64::try_from(moved).expect("a count of vertices fits");
        let in_order = self.scratch.behind.iter().chain(self.scratch.ahead.iter().rev());
        for (place, &slot) in (self.lowest..).zip(in_order) {
            self.nodes[slot as usize].place = place;
        }
        for &slot in &self.scratch.ahead {
            let node = &mut self.nodes[slot as usize];
            node.tier = tier;
            // A predecessor at the new tier would have kept the vertex there already, so only lifted ones can be.
            node.level_into = List::EMPTY;
        }
        let mut followed = 0;
        for &slot in &self.scratch.ahead {
            let mut at = self.nodes[slot as usize].out.head;
            while at != NIL {
                followed += 1;
                let target = &mut self.nodes[self.edges[at as usize].to as usize];
                if target.tier == tier {
                    target.level_into.push(&mut self.edges, at, |edge| &mut edge.level_into);
                }
                at = self.edges[at as usize].out.next;
            }
        }
        self.note_followed(followed);
    }

    /// The shortest way from `from` to `to`, both included. There must be one.
    pub(crate) fn shortest_path(&self, from: Slot, to: Slot) -> Vec<Slot> {
        let mut reached_from: HashMap<Slot, Slot, FixedState> = HashMap::default();
        let mut queue = VecDeque::from([from]);
        while let Some(slot) = queue.pop_front() {
            if slot == to {
                break;
            }
            for next in self.neighbours(slot, Direction::Out) {
                // What lies beyond the goal in the order cannot lead back to it.
                if (next == to || self.precedes(next, to)) && !reached_from.contains_key(&next) {
                    reached_from.insert(next, slot);
                    queue.push_back(next);
                }
            }
        }
        let mut path = vec![to];
        let mut at = to;
        while at != from {
            at = reached_from[&at];
            path.push(at);
        }
        path.reverse();
        path
    }

    #[cfg(test)]
    fn note_followed(&mut self, edges: usize) {
        self.scratch.followed += edges as u64;
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "counted in tests only")]
    fn note_followed(&self, _edges: usize) {}
}

#[cfg(test)]
mod tests {
    use super::patience;
    use crate::{ConnectError, Graph};

    /// Vertices `0..size` in this order, and these edges in theirs.
    fn graph(size: u32, edges: impl IntoIterator<Item = (u32, u32)>) -> Graph<u32, ()> {
        let mut graph = Graph::with_capacity(size as usize, size as usize);
        for key in 0..size {
            graph.insert(key, ());
        }
        for (from, to) in edges {
            graph.connect(&from, &to).unwrap();
        }
        graph
    }

    fn followed(graph: &Graph<u32, ()>) -> u64 {
        graph.topology.scratch.followed
    }

    #[test]
    fn edges_from_earlier_to_later_vertices_are_added_without_a_search() {
        let size = 100_000;
        let graph = graph(size, (1..size).map(|key| (key - 1, key)));
        assert_eq!(followed(&graph), 0);
    }

    #[test]
    fn a_chain_against_insertion_order_is_added_without_a_search() {
        let size = 100_000;
        let from_its_head = graph(size, (1..size).rev().map(|key| (key, key - 1)));
        assert_eq!(followed(&from_its_head), 0);
        let from_its_end = graph(size, (1..size).map(|key| (key, key - 1)));
        assert_eq!(followed(&from_its_end), 0);
    }

    #[test]
    fn a_root_that_comes_last_is_put_before_everything_without_a_search() {
        let size = 100_000;
        let star = graph(size, (0..size - 1).map(|child| (size - 1, child)));
        assert_eq!(followed(&star), 0);
        let pairs = (0..size / 2 - 1).map(|pair| (2 * pair, 2 * pair + 1));
        let heads = (0..size / 2 - 1).map(|pair| (size - 1, 2 * pair));
        assert_eq!(followed(&graph(size, pairs.chain(heads))), 0);
    }

    #[test]
    fn a_leaf_under_a_lifted_vertex_is_added_without_a_search() {
        let size = 20_000;
        let mut edges: Vec<_> = (1..size).map(|key| (key - 1, key)).collect();
        fastrand::Rng::with_seed(3).shuffle(&mut edges);
        let reversed = edges.into_iter().map(|(from, to)| (size - 1 - from, size - 1 - to));
        let mut graph = graph(size, reversed);
        assert!(
            graph.topology.nodes.iter().any(|node| node.tier > 0),
            "nothing was lifted"
        );
        let before = followed(&graph);
        for key in 0..size {
            graph.add_connect(&key, size + key, ()).unwrap();
        }
        assert_eq!(followed(&graph), before);
    }

    /// The bound that the method promises, in edges followed and not in seconds.
    #[test]
    fn any_order_of_insertion_follows_at_most_the_root_of_the_edges_for_each() {
        let mut random = fastrand::Rng::with_seed(1);
        for size in [1_000_u32, 10_000, 100_000] {
            let mut chain: Vec<_> = (1..size).map(|key| (key - 1, key)).collect();
            random.shuffle(&mut chain);
            let mut names: Vec<u32> = (0..size).collect();
            random.shuffle(&mut names);
            let chain = chain
                .into_iter()
                .map(|(from, to)| (names[from as usize], names[to as usize]));
            let sparse = (0..2 * size).map(|_| (random.u32(..size), random.u32(..size)));
            let sparse: Vec<_> = sparse
                .filter(|(one, other)| one != other)
                .map(|(one, other)| (one.min(other), one.max(other)))
                .map(|(from, to)| (names[from as usize], names[to as usize]))
                .collect();
            for graph in [graph(size, chain), graph(size, sparse)] {
                let edges = graph.edge_count() as u64;
                let bound = 2 * edges * edges.isqrt();
                assert!(
                    followed(&graph) <= bound,
                    "{} edges: {} followed",
                    edges,
                    followed(&graph)
                );
            }
        }
    }

    /// Each pair must go behind the whole chain, and each time the search backward along it is given up.
    #[test]
    fn a_search_backward_is_given_up_when_the_patience_of_the_tier_is_spent() {
        let size = 10_000;
        let pairs = (0..size).map(|pair| (2 * pair, 2 * pair + 1));
        let chain = (2 * size + 1..3 * size).map(|key| (key - 1, key));
        let mut graph = graph(3 * size, pairs.chain(chain));
        for pair in 0..size {
            let before = followed(&graph);
            graph.connect(&(3 * size - 1), &(2 * pair)).unwrap();
            // One more to find out, and the pair's own edge, once to search and once to write.
            assert!(followed(&graph) - before <= patience(0) as u64 + 3);
            assert_eq!(graph.topology.node(2 * pair).tier, 1, "one tier up is enough");
        }
        assert_eq!(graph.check_invariants(), Ok(()));
    }

    /// Layers in random order need several tiers; what is followed for an edge must not grow with the graph.
    #[test]
    fn a_layered_graph_in_random_order_follows_a_few_edges_for_each() {
        for width in [10, 100, 1_000] {
            let mut random = fastrand::Rng::with_seed(1);
            let mut names: Vec<u32> = (0..100 * width).collect();
            random.shuffle(&mut names);
            let mut edges = Vec::new();
            for place in 0..99 * width {
                let layer = place / width;
                for _ in 0..3 {
                    let target = (layer + 1) * width + random.u32(..width);
                    edges.push((names[place as usize], names[target as usize]));
                }
            }
            random.shuffle(&mut edges);
            let graph = graph(100 * width, edges);
            let tiers = graph.topology.nodes.iter().map(|node| node.tier).max();
            let edges = graph.edge_count() as u64;
            assert!(
                followed(&graph) < 15 * edges,
                "{} followed for {edges} edges",
                followed(&graph)
            );
            assert!(tiers > Some(5), "nothing was lifted far: {tiers:?}");
        }
    }

    /// A tier is begun only on top of as many edges as its patience.
    #[test]
    fn there_are_fewer_tiers_than_the_root_of_the_edges() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..300 {
            let size = random.u32(2..200);
            let mut graph = graph(size, []);
            for _ in 0..random.u32(..6 * size) {
                let _ = graph.connect(&random.u32(..size), &random.u32(..size));
                let highest = graph.topology.nodes.iter().map(|node| node.tier).max().unwrap();
                assert!(u64::from(highest) * u64::from(highest + 1) <= graph.edge_count() as u64);
            }
        }
    }

    #[test]
    fn a_refused_edge_leaves_positions_and_lists_as_they_were() {
        let mut random = fastrand::Rng::with_seed(2);
        let (mut refused, mut lifted) = (0, false);
        for _ in 0..200 {
            let size = random.u32(3..24);
            let mut graph = graph(size, []);
            for _ in 0..3 * size {
                let before = format!("{:?} {:?}", graph.topology.nodes, graph.topology.edges);
                let answer = graph.connect(&random.u32(..size), &random.u32(..size));
                let after = || format!("{:?} {:?}", graph.topology.nodes, graph.topology.edges);
                if let Err(ConnectError::Cycle(_)) = answer {
                    refused += 1;
                    assert_eq!(after(), before);
                }
            }
            lifted |= graph.topology.nodes.iter().any(|node| node.tier > 0);
        }
        assert!(refused > 1_000 && lifted, "{refused} refused");
    }

    #[test]
    fn the_edges_of_a_hub_are_edited_without_looking_at_the_others() {
        let size = 100_000;
        let mut graph = graph(size, (1..size).map(|key| (key, 0)));
        let before = followed(&graph);
        for key in (1..size).step_by(2) {
            assert!(graph.disconnect(&key, &0));
        }
        for key in (1..size).step_by(3) {
            graph.remove(&key);
        }
        assert_eq!(followed(&graph), before);
        assert_eq!(
            graph.in_degree(&0),
            (1..size).filter(|key| key % 2 == 0 && key % 3 != 1).count()
        );
        assert_eq!(graph.check_invariants(), Ok(()));
    }
}

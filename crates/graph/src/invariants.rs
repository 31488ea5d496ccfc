//! What must hold between edits, checked in full. For tests: it costs time linear in the graph, and more memory than it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

use crate::graph::Graph;
use crate::list::{Link, List, NIL};
use crate::topology::{Edge, Mark, Topology};

/// Where an edge keeps its neighbours in one of its lists.
type LinkIn = fn(&Edge) -> Link;

macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

impl<K: Eq + Hash + Clone, V> Graph<K, V> {
    /// Checks the inner invariants and says which one is broken.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        let live: BTreeSet<u32> = self.topology.slots().collect();
        for (slot, vertex) in (0..).zip(&self.slots) {
            ensure!(
                vertex.is_some() == live.contains(&slot),
                "slot {slot} is occupied and vacant at once"
            );
            if let Some((key, _)) = vertex {
                ensure!(
                    self.find(key) == Some(slot),
                    "the key in slot {slot} is not found there"
                );
            }
        }
        ensure!(
            self.slots.len() == self.topology.nodes.len(),
            "the slabs differ in length"
        );
        self.topology.check(&live)
    }
}

impl Topology {
    fn check(&self, live: &BTreeSet<u32>) -> Result<(), String> {
        ensure!(
            live.len() == self.len(),
            "{} vertices are listed, {} counted",
            live.len(),
            self.len()
        );
        listed(&self.nodes, self.all, |node| node.all)?;

        let rootless = live.iter().copied().filter(|slot| self.node(*slot).in_degree == 0);
        let roots: BTreeSet<u32> = listed(&self.nodes, self.roots, |node| node.root)?.into_iter().collect();
        ensure!(roots == rootless.collect(), "the list of roots is {roots:?}");

        let places: BTreeSet<i64> = live.iter().map(|slot| self.node(*slot).place).collect();
        ensure!(places.len() == live.len(), "two vertices share a place");
        let bounds = self.lowest..self.highest;
        ensure!(
            places.iter().all(|place| bounds.contains(place)),
            "a place is outside {bounds:?}"
        );

        let edges = listed(&self.edges, self.all_edges, |edge| edge.all)?;
        ensure!(
            edges.len() == self.edge_count(),
            "{} edges are listed, {} indexed",
            edges.len(),
            self.edge_count()
        );
        let mut out: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut into = out.clone();
        let mut level_into = out.clone();
        for at in edges {
            let edge = self.edge(at);
            ensure!(
                live.contains(&edge.from) && live.contains(&edge.to),
                "edge {at} hangs on a vacant slot"
            );
            ensure!(self.find_edge(edge.from, edge.to) == Some(at), "edge {at} is not found");
            ensure!(self.precedes(edge.from, edge.to), "edge {at} runs against the order");
            out.entry(edge.from).or_default().insert(at);
            into.entry(edge.to).or_default().insert(at);
            if self.node(edge.from).tier == self.node(edge.to).tier {
                level_into.entry(edge.to).or_default().insert(at);
            }
        }
        for slot in live {
            let node = self.node(*slot);
            ensure!(node.mark == Mark::Unseen, "a search left its mark on {slot}");
            let expected = |edges: &BTreeMap<u32, BTreeSet<u32>>| edges.get(slot).cloned().unwrap_or_default();
            let lists: [(List, BTreeSet<u32>, LinkIn); 3] = [
                (node.out, expected(&out), |edge| edge.out),
                (node.into, expected(&into), |edge| edge.into),
                (node.level_into, expected(&level_into), |edge| edge.level_into),
            ];
            for (list, expected, link) in lists {
                let found: BTreeSet<u32> = listed(&self.edges, list, link)?.into_iter().collect();
                ensure!(
                    found == expected,
                    "vertex {slot} lists the edges {found:?} and has {expected:?}"
                );
            }
            ensure!(
                node.out_degree as usize == expected(&out).len(),
                "the out-degree of {slot} is wrong"
            );
            ensure!(
                node.in_degree as usize == expected(&into).len(),
                "the in-degree of {slot} is wrong"
            );
        }
        self.check_vacant()
    }

    fn check_vacant(&self) -> Result<(), String> {
        let vacant = |first: u32, next: &dyn Fn(u32) -> u32, bound: usize| {
            let present = |at: u32| (at != NIL).then_some(at);
            std::iter::successors(present(first), |at| present(next(*at)))
                .take(bound + 1)
                .count()
        };
        let nodes = vacant(self.vacant_node, &|at| self.node(at).all.next, self.nodes.len());
        ensure!(nodes + self.len() == self.nodes.len(), "{nodes} vertex slots are free");
        let edges = vacant(self.vacant_edge, &|at| self.edge(at).all.next, self.edges.len());
        ensure!(
            edges + self.edge_count() == self.edges.len(),
            "{edges} edge slots are free"
        );
        Ok(())
    }
}

/// The elements of a list, each met once and linked in both directions.
fn listed<T>(slab: &[T], list: List, link: impl Fn(&T) -> Link) -> Result<Vec<u32>, String> {
    let mut elements = Vec::new();
    let mut prev = NIL;
    let mut at = list.head;
    while at != NIL {
        ensure!(elements.len() < slab.len(), "a list runs in a circle");
        let found = link(&slab[at as usize]);
        ensure!(
            found.prev == prev,
            "element {at} follows {prev} and says it follows {}",
            found.prev
        );
        elements.push(at);
        prev = at;
        at = found.next;
    }
    ensure!(
        list.tail == prev,
        "a list ends with {prev} and says it ends with {}",
        list.tail
    );
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Node;

    fn pair() -> Graph<u8, ()> {
        let mut graph = Graph::new();
        graph.insert(0, ());
        graph.add_connect(&0, 1, ()).unwrap();
        graph.check_invariants().unwrap();
        graph
    }

    fn broken(damage: impl FnOnce(&mut Vec<Node>, &mut Vec<Edge>)) -> String {
        let mut graph = pair();
        damage(&mut graph.topology.nodes, &mut graph.topology.edges);
        graph.check_invariants().unwrap_err()
    }

    #[test]
    fn an_edge_against_the_order_is_noticed() {
        let message = broken(|nodes, _| (nodes[0].place, nodes[1].place) = (1, 0));
        assert_eq!(message, "edge 0 runs against the order");
    }

    #[test]
    fn a_wrong_degree_is_noticed() {
        assert_eq!(
            broken(|nodes, _| nodes[0].out_degree = 2),
            "the out-degree of 0 is wrong"
        );
    }

    #[test]
    fn a_forgotten_mark_is_noticed() {
        assert_eq!(
            broken(|nodes, _| nodes[1].mark = Mark::Ahead),
            "a search left its mark on 1"
        );
    }

    #[test]
    fn a_broken_link_is_noticed() {
        let message = broken(|_, edges| edges[0].into.prev = 0);
        assert_eq!(message, format!("element 0 follows {NIL} and says it follows 0"));
    }
}

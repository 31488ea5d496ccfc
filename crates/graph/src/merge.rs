//! Merging a sub-graph into a graph.

use std::hash::Hash;

use crate::error::{ConnectError, MergeError};
use crate::graph::Graph;
use crate::list::NIL;
use crate::topology::Slot;

impl<K: Eq + Hash + Clone, V: PartialEq> Graph<K, V> {
    /// Takes over the vertices and edges of `sub` and makes our root depend on the roots of `sub`, or changes nothing.
    ///
    /// A vertex that both graphs have is shared when its values are equal; otherwise the merge is refused. Of the roots
    /// of `sub` only those become children of our root that nothing depends on after the merge: not our root itself,
    /// and not one that already has a predecessor here. An empty graph becomes `sub`.
    ///
    /// ```
    /// # use moorline_graph::Graph;
    /// let mut graph = Graph::new();
    /// graph.insert("cluster", 0);
    /// let mut backup = Graph::new();
    /// backup.insert("schedule", 1);
    /// backup.add_connect_root("policy", 2)?;
    /// graph.merge(backup)?;
    /// assert!(graph.has_edge(&"cluster", &"schedule"));
    /// assert!(!graph.has_edge(&"cluster", &"policy"), "only the roots of the sub-graph hang on our root");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(&mut self, sub: Self) -> Result<(), MergeError<K>> {
        if sub.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            *self = sub;
            return Ok(());
        }
        let root = self.root_slot().map_err(MergeError::Root)?;
        let shared = self.shared_with(&sub)?;
        let mut added = Added::default();
        let merged = self.take_over(root, sub, shared, &mut added);
        if merged.is_err() {
            added.undo(self);
        }
        merged.map_err(MergeError::Connect)
    }

    /// For each slot of `sub` our slot of the same key, [`NIL`] where we have none.
    fn shared_with(&self, sub: &Self) -> Result<Vec<Slot>, MergeError<K>> {
        let mut ours = vec![NIL; sub.topology.nodes.len()];
        for theirs in sub.topology.slots() {
            let (key, value) = sub.vertex(theirs);
            if let Some(slot) = self.find(key) {
                if self.vertex(slot).1 != value {
                    return Err(MergeError::Conflict(key.clone()));
                }
                ours[theirs as usize] = slot;
            }
        }
        Ok(ours)
    }

    fn take_over(
        &mut self,
        root: Slot,
        mut sub: Self,
        mut ours: Vec<Slot>,
        added: &mut Added,
    ) -> Result<(), ConnectError<K>> {
        let sub_roots: Vec<Slot> = sub.root_slots().collect();
        self.reserve(sub.len(), sub.edge_count() + sub_roots.len());
        for theirs in sub.topology.slots() {
            let ours = &mut ours[theirs as usize];
            if *ours == NIL {
                let (key, value) = sub.slots[theirs as usize]
                    .take()
                    .expect("the topology names occupied slots only");
                *ours = self.add_absent(key, value);
                added.vertices.push(*ours);
            }
        }
        for edge in sub.topology.edge_slots() {
            let edge = sub.topology.edge(edge);
            added.connect(self, ours[edge.from as usize], ours[edge.to as usize])?;
        }
        for theirs in sub_roots {
            let ours = ours[theirs as usize];
            if ours != root && self.topology.node(ours).in_degree == 0 {
                added.connect(self, root, ours)?;
            }
        }
        Ok(())
    }
}

/// What a merge has added so far, so that it can be taken back.
#[derive(Default)]
struct Added {
    vertices: Vec<Slot>,
    edges: Vec<(Slot, Slot)>,
}

impl Added {
    fn connect<K: Eq + Hash + Clone, V>(
        &mut self,
        graph: &mut Graph<K, V>,
        from: Slot,
        to: Slot,
    ) -> Result<(), ConnectError<K>> {
        if graph.connect_slots(from, to)? {
            self.edges.push((from, to));
        }
        Ok(())
    }

    fn undo<K: Eq + Hash + Clone, V>(self, graph: &mut Graph<K, V>) {
        for (from, to) in self.edges.into_iter().rev() {
            graph.topology.remove_edge(from, to);
        }
        for slot in self.vertices.into_iter().rev() {
            graph.remove_slot(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RootError;

    fn graph(vertices: &[(&'static str, u8)], edges: &[(&'static str, &'static str)]) -> Graph<&'static str, u8> {
        let mut graph = Graph::new();
        for (key, value) in vertices {
            graph.insert(*key, *value);
        }
        for (from, to) in edges {
            graph.connect(from, to).unwrap();
        }
        graph
    }

    fn refused(mut into: Graph<&'static str, u8>, sub: Graph<&'static str, u8>) -> MergeError<&'static str> {
        let before = format!("{into:?}");
        let error = into.merge(sub).unwrap_err();
        assert_eq!(format!("{into:?}"), before, "a refused merge changes nothing");
        assert_eq!(into.check_invariants(), Ok(()));
        error
    }

    #[test]
    fn a_merge_that_closes_a_cycle_takes_back_what_it_added() {
        let into = graph(&[("root", 0), ("a", 1), ("b", 2)], &[("root", "b"), ("b", "a")]);
        let sub = graph(
            &[("new", 3), ("root", 0), ("a", 1), ("b", 2)],
            &[("root", "a"), ("a", "new"), ("new", "b")],
        );
        let cycle = ConnectError::Cycle(vec!["b", "a", "new", "b"]);
        assert_eq!(refused(into, sub), MergeError::Connect(cycle));
    }

    #[test]
    fn two_values_for_one_key_are_refused_with_the_key() {
        let into = graph(&[("root", 0), ("a", 1)], &[("root", "a")]);
        let sub = graph(&[("new", 3), ("a", 2)], &[("new", "a")]);
        assert_eq!(refused(into, sub), MergeError::Conflict("a"));
    }

    #[test]
    fn a_graph_with_several_roots_cannot_take_a_sub_graph() {
        let into = graph(&[("one", 0), ("two", 1)], &[]);
        let sub = graph(&[("new", 3)], &[]);
        assert_eq!(
            refused(into, sub),
            MergeError::Root(RootError::SeveralRoots(vec!["one", "two"]))
        );
    }

    #[test]
    fn a_shared_root_of_the_sub_graph_keeps_the_predecessor_it_has() {
        let mut into = graph(&[("root", 0), ("a", 1), ("b", 2)], &[("root", "a"), ("a", "b")]);
        into.merge(graph(&[("b", 2), ("c", 3)], &[("b", "c")])).unwrap();
        assert_eq!(into.predecessors(&"b").collect::<Vec<_>>(), [&"a"]);
        assert_eq!(into.root(), Ok(&"root"));
    }
}

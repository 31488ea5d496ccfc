//! Equality of graphs, and what lies between two that are not equal.

use std::fmt::{self, Display, Formatter};
use std::hash::Hash;

use crate::graph::Graph;

/// Equal when both have the same keys with equal values and the same edges, in whatever order they were inserted.
impl<K: Eq + Hash + Clone, V: PartialEq> PartialEq for Graph<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self.edge_count() == other.edge_count()
            && self.iter().all(|(key, value)| other.get(key) == Some(value))
            && self.edges().all(|(from, to)| other.has_edge(from, to))
    }
}

impl<K: Eq + Hash + Clone, V: Eq> Eq for Graph<K, V> {}

impl<K: Eq + Hash + Clone, V: PartialEq> Graph<K, V> {
    /// What must be done to this graph to make it equal to `later`.
    ///
    /// ```
    /// # use moorline_graph::Graph;
    /// let mut before = Graph::new();
    /// before.insert("cluster", 1);
    /// before.add_connect_root("service", 1)?;
    /// let mut after = before.clone();
    /// after.insert("cluster", 2);
    /// after.remove(&"service");
    /// after.add_connect_root("secret", 1)?;
    /// assert_eq!(
    ///     before.difference(&after).to_string(),
    ///     "+ secret\n- service\n~ cluster\n+ cluster -> secret\n- cluster -> service\n"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn difference(&self, later: &Self) -> Difference<K> {
        let vertices_missing_in =
            |there: &Self, here: &Self| -> Vec<K> { here.keys().filter(|key| !there.contains(key)).cloned().collect() };
        let edges_missing_in = |there: &Self, here: &Self| -> Vec<(K, K)> {
            let missing = here.edges().filter(|(from, to)| !there.has_edge(from, to));
            missing.map(|(from, to)| (from.clone(), to.clone())).collect()
        };
        let changed = self
            .iter()
            .filter(|(key, value)| later.get(key).is_some_and(|other| other != *value));
        Difference {
            added: vertices_missing_in(self, later),
            removed: vertices_missing_in(later, self),
            changed: changed.map(|(key, _)| key.clone()).collect(),
            added_edges: edges_missing_in(self, later),
            removed_edges: edges_missing_in(later, self),
        }
    }
}

/// What lies between two graphs. Made by [`Graph::difference`]; every list is in insertion order.
///
/// An edge of a vertex that was added or removed is listed too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<K> {
    /// Vertices that only the later graph has.
    pub added: Vec<K>,
    /// Vertices that only the earlier graph has.
    pub removed: Vec<K>,
    /// Vertices that both have, with different values.
    pub changed: Vec<K>,
    /// Edges, as `(from, to)`, that only the later graph has.
    pub added_edges: Vec<(K, K)>,
    /// Edges, as `(from, to)`, that only the earlier graph has.
    pub removed_edges: Vec<(K, K)>,
}

impl<K> Difference<K> {
    /// Whether the two graphs are equal.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty()
            && self.removed.is_empty()
            && self.changed.is_empty()
            && self.added_edges.is_empty()
            && self.removed_edges.is_empty()
    }
}

/// One line a vertex or edge, marked `+`, `-` or `~`; nothing for equal graphs.
impl<K: Display> Display for Difference<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (sign, keys) in [('+', &self.added), ('-', &self.removed), ('~', &self.changed)] {
            for key in keys {
                writeln!(f, "{sign} {key}")?;
            }
        }
        for (sign, edges) in [('+', &self.added_edges), ('-', &self.removed_edges)] {
            for (from, to) in edges {
                writeln!(f, "{sign} {from} -> {to}")?;
            }
        }
        Ok(())
    }
}

//! A graph as data: vertices in insertion order, edges as pairs of positions among them.
//!
//! Reading gives back an equal graph whose walks are the same, and checks what was read as every edit is checked.

use std::hash::Hash;

use serde::de::Error as _;
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::graph::Graph;
use crate::topology::Slot;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenVertex<K, V> {
    key: K,
    value: V,
}

#[derive(Deserialize)]
#[serde(rename = "Graph", deny_unknown_fields)]
struct WrittenGraph<K, V> {
    vertices: Vec<WrittenVertex<K, V>>,
    edges: Vec<(usize, usize)>,
}

struct WrittenVertices<'g, K, V>(&'g Graph<K, V>);
struct WrittenEdges<'g, K, V>(&'g Graph<K, V>);

impl<K: Serialize, V: Serialize> Serialize for Graph<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut graph = serializer.serialize_struct("Graph", 2)?;
        graph.serialize_field("vertices", &WrittenVertices(self))?;
        graph.serialize_field("edges", &WrittenEdges(self))?;
        graph.end()
    }
}

impl<K: Serialize, V: Serialize> Serialize for WrittenVertices<'_, K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(key, value)| WrittenVertex { key, value }))
    }
}

impl<K, V> Serialize for WrittenEdges<'_, K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let positions = self.0.ranks();
        let mut edges = serializer.serialize_seq(Some(self.0.edge_count()))?;
        for edge in self.0.topology.edge_slots() {
            let edge = self.0.topology.edge(edge);
            edges.serialize_element(&(positions.of(edge.from), positions.of(edge.to)))?;
        }
        edges.end()
    }
}

impl<'de, K, V> Deserialize<'de> for Graph<K, V>
where
    K: Deserialize<'de> + Eq + Hash + Clone,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = WrittenGraph::deserialize(deserializer)?;
        let mut graph = Graph::with_capacity(written.vertices.len(), written.edges.len());
        for (position, WrittenVertex { key, value }) in written.vertices.into_iter().enumerate() {
            if graph.insert(key, value).is_some() {
                return Err(D::Error::custom(format_args!(
                    "cannot read graph: vertex {position} has the key of an earlier one"
                )));
            }
        }
        for (number, (from, to)) in written.edges.into_iter().enumerate() {
            graph
                .connect_positions(from, to)
                .map_err(|why| D::Error::custom(format!("cannot read graph: edge {number}, {from} -> {to}, {why}")))?;
        }
        Ok(graph)
    }
}

impl<K: Eq + Hash + Clone, V> Graph<K, V> {
    /// Connects two vertices of a graph from which none was ever removed, so that slots are positions. The error says
    /// what is wrong with the edge; keys need not be printable, so it speaks of positions.
    fn connect_positions(&mut self, from: usize, to: usize) -> Result<(), String> {
        let slot = |position: usize| {
            Slot::try_from(position)
                .ok()
                .filter(|_| position < self.len())
                .ok_or_else(|| format!("names vertex {position} of {}", self.len()))
        };
        let (from, to) = (slot(from)?, slot(to)?);
        if from == to {
            return Err("leads from a vertex to itself".to_owned());
        }
        if self.topology.find_edge(from, to).is_some() {
            return Err("is there twice".to_owned());
        }
        if self.topology.make_room(from, to).is_err() {
            return Err("closes a cycle with the edges before it".to_owned());
        }
        self.topology.link_edge(from, to);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Graph<String, u8>, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    fn refused(edges: &str) -> String {
        let vertices = r#"[{"key":"a","value":1},{"key":"b","value":2}]"#;
        let error = read(&format!(r#"{{"vertices":{vertices},"edges":{edges}}}"#)).unwrap_err();
        error.split(" at line").next().unwrap().to_owned()
    }

    #[test]
    fn a_graph_is_written_as_vertices_and_positions() {
        let mut graph = Graph::new();
        for key in ["gone", "a", "b"] {
            graph.insert(key.to_owned(), 7);
        }
        graph.remove(&"gone".to_owned());
        graph.add_connect(&"b".to_owned(), "c".to_owned(), 8).unwrap();
        let written = serde_json::to_string(&graph).unwrap();
        assert_eq!(
            written,
            r#"{"vertices":[{"key":"a","value":7},{"key":"b","value":7},{"key":"c","value":8}],"edges":[[1,2]]}"#
        );
        assert_eq!(read(&written), Ok(graph));
    }

    #[test]
    fn an_edge_that_could_not_have_been_added_is_not_read() {
        let cycle = "cannot read graph: edge 1, 1 -> 0, closes a cycle with the edges before it";
        assert_eq!(refused("[[0,1],[1,0]]"), cycle);
        assert_eq!(
            refused("[[1,1]]"),
            "cannot read graph: edge 0, 1 -> 1, leads from a vertex to itself"
        );
        assert_eq!(
            refused("[[0,2]]"),
            "cannot read graph: edge 0, 0 -> 2, names vertex 2 of 2"
        );
        assert_eq!(
            refused("[[0,1],[0,1]]"),
            "cannot read graph: edge 1, 0 -> 1, is there twice"
        );
    }

    #[test]
    fn a_key_that_is_there_twice_is_not_read() {
        let error = read(r#"{"vertices":[{"key":"a","value":1},{"key":"a","value":1}],"edges":[]}"#).unwrap_err();
        assert!(
            error.starts_with("cannot read graph: vertex 1 has the key of an earlier one"),
            "{error}"
        );
    }
}

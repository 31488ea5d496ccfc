//! Pictures of a graph, as text for Graphviz and Mermaid.
//!
//! Vertices are numbered in insertion order; only the labels come from the caller, and they are escaped, so any text
//! is safe in them.

use std::fmt::Write as _;

use crate::graph::Graph;
use crate::topology::Slot;

impl<K, V> Graph<K, V> {
    /// The graph in Graphviz' DOT language. An edge points at what comes first in an execution.
    ///
    /// ```
    /// # use moorline_graph::Graph;
    /// let mut graph = Graph::new();
    /// graph.insert("cluster", 1);
    /// graph.add_connect_root("secret", 2)?;
    /// let dot = "digraph {\n  n0 [label=\"cluster\"];\n  n1 [label=\"secret\"];\n  n0 -> n1;\n}\n";
    /// assert_eq!(graph.to_dot(|key, _| key.to_string()), dot);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_dot(&self, label: impl FnMut(&K, &V) -> String) -> String {
        let mut text = String::from("digraph {\n");
        self.draw(
            &mut text,
            label,
            |text, number, label| writeln!(text, "  n{number} [label=\"{}\"];", dot_escaped(label)),
            |text, from, to| writeln!(text, "  n{from} -> n{to};"),
        );
        text.push_str("}\n");
        text
    }

    /// The graph as a Mermaid flowchart. An edge points at what comes first in an execution.
    ///
    /// ```
    /// # use moorline_graph::Graph;
    /// let mut graph = Graph::new();
    /// graph.insert("cluster", 1);
    /// graph.add_connect_root("secret", 2)?;
    /// let mermaid = "flowchart TD\n  n0[\"cluster\"]\n  n1[\"secret\"]\n  n0 --> n1\n";
    /// assert_eq!(graph.to_mermaid(|key, _| key.to_string()), mermaid);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_mermaid(&self, label: impl FnMut(&K, &V) -> String) -> String {
        let mut text = String::from("flowchart TD\n");
        self.draw(
            &mut text,
            label,
            |text, number, label| writeln!(text, "  n{number}[\"{}\"]", mermaid_escaped(label)),
            |text, from, to| writeln!(text, "  n{from} --> n{to}"),
        );
        text
    }

    fn draw(
        &self,
        text: &mut String,
        mut label: impl FnMut(&K, &V) -> String,
        vertex: impl Fn(&mut String, u32, &str) -> std::fmt::Result,
        edge: impl Fn(&mut String, u32, u32) -> std::fmt::Result,
    ) {
        let numbers = self.ranks();
        let number = |slot: Slot| numbers.of(slot);
        for slot in self.topology.slots() {
            let (key, value) = self.vertex(slot);
            vertex(text, number(slot), &label(key, value)).expect("writing to a string cannot fail");
        }
        for slot in self.topology.edge_slots() {
            let ends = self.topology.edge(slot);
            edge(text, number(ends.from), number(ends.to)).expect("writing to a string cannot fail");
        }
    }
}

fn dot_escaped(label: &str) -> String {
    let mut escaped = String::with_capacity(label.len());
    for letter in label.chars() {
        match letter {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => {}
            // Graphviz reads HTML entities inside plain labels too.
            '&' => escaped.push_str("&amp;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Mermaid knows no escape character; it has entities, written with `#`. Letters that would begin markup (HTML, Markdown
/// strings, entities themselves) are all written that way.
fn mermaid_escaped(label: &str) -> String {
    let mut escaped = String::with_capacity(label.len());
    for letter in label.chars() {
        match letter {
            '"' | '#' | '&' | '<' | '>' | '`' | '\\' | ';' => {
                write!(escaped, "#{};", u32::from(letter)).expect("writing to a string cannot fail");
            }
            '\n' => escaped.push_str("<br/>"),
            '\r' => {}
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_out_of_a_dot_string() {
        assert_eq!(dot_escaped("a\"];\\n\nb&quot;"), "a\\\"];\\\\n\\nb&amp;quot;");
    }

    #[test]
    fn labels_cannot_break_out_of_a_mermaid_node() {
        assert_eq!(
            mermaid_escaped("a\"] --> b\n`<b>#35;"),
            "a#34;] --#62; b<br/>#96;#60;b#62;#35;35#59;"
        );
    }

    #[test]
    fn numbers_follow_insertion_even_where_a_slot_was_used_before() {
        let mut graph = Graph::new();
        for key in ["gone", "a", "b"] {
            graph.insert(key, ());
        }
        graph.remove(&"gone");
        graph.insert("c", ());
        graph.connect(&"c", &"a").unwrap();
        let mermaid = graph.to_mermaid(|key, ()| (*key).to_owned());
        assert_eq!(
            mermaid,
            "flowchart TD\n  n0[\"a\"]\n  n1[\"b\"]\n  n2[\"c\"]\n  n2 --> n0\n"
        );
    }
}

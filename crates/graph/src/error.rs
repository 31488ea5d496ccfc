//! Why an edit was refused, naming the vertices concerned.

use std::error::Error;
use std::fmt::{self, Debug, Display, Formatter};

/// Why two vertices were not connected. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError<K> {
    /// One end of the edge is not in the graph.
    MissingVertex(K),
    /// Both ends are the same vertex.
    SelfEdge(K),
    /// The target already reaches the source. The path begins and ends with the target; its last step is the edge that
    /// was refused and all others are edges of the graph. No shorter cycle goes through the refused edge.
    Cycle(Vec<K>),
}

impl<K: Display> Display for ConnectError<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingVertex(key) => write!(f, "cannot connect {key}: the graph has no such vertex"),
            Self::SelfEdge(key) => write!(f, "cannot connect {key} to itself"),
            Self::Cycle(path) => match &path[..] {
                [to, .., from, _] => {
                    write!(
                        f,
                        "cannot connect {from} to {to}: this would close the cycle {}",
                        Arrows(path)
                    )
                }
                _ => write!(f, "cannot connect: this would close the cycle {}", Arrows(path)),
            },
        }
    }
}

impl<K: Debug + Display> Error for ConnectError<K> {}

/// Why a graph has no root to speak of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootError<K> {
    /// The graph is empty.
    NoVertex,
    /// More than one vertex has no predecessor: these, in insertion order.
    SeveralRoots(Vec<K>),
}

impl<K: Display> Display for RootError<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVertex => write!(f, "cannot tell the root: the graph is empty"),
            Self::SeveralRoots(roots) => {
                write!(
                    f,
                    "cannot tell the root: {} vertices have no predecessor: ",
                    roots.len()
                )?;
                joined(f, roots, ", ")
            }
        }
    }
}

impl<K: Debug + Display> Error for RootError<K> {}

/// Why a vertex was not connected to the root. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectRootError<K> {
    /// There is no single root.
    Root(RootError<K>),
    /// The edge from the root was refused.
    Connect(ConnectError<K>),
}

impl<K: Display> Display for ConnectRootError<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(_) => write!(f, "cannot connect a vertex to the root"),
            Self::Connect(_) => write!(f, "cannot connect the root to a vertex"),
        }
    }
}

impl<K: Debug + Display + 'static> Error for ConnectRootError<K> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Root(root) => Some(root),
            Self::Connect(connect) => Some(connect),
        }
    }
}

/// Why a sub-graph was not merged. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeError<K> {
    /// Both graphs have this vertex, with different values.
    Conflict(K),
    /// The receiving graph has no single root to hang the sub-graph on.
    Root(RootError<K>),
    /// An edge of the sub-graph, or the one from the root to it, closes a cycle with what was there.
    Connect(ConnectError<K>),
}

impl<K: Display> Display for MergeError<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict(key) => write!(f, "cannot merge: the two graphs hold different values for {key}"),
            Self::Root(_) => write!(f, "cannot merge: the receiving graph has no single root"),
            Self::Connect(_) => write!(f, "cannot merge: the two graphs together have a cycle"),
        }
    }
}

impl<K: Debug + Display + 'static> Error for MergeError<K> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Conflict(_) => None,
            Self::Root(root) => Some(root),
            Self::Connect(connect) => Some(connect),
        }
    }
}

/// A vertex was reported on that had not been handed out, or was reported on twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotInFlight<K>(
    /// The vertex.
    pub K,
);

impl<K: Display> Display for NotInFlight<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "cannot settle {}: it is not being worked on", self.0)
    }
}

impl<K: Debug + Display> Error for NotInFlight<K> {}

/// How many keys a message names at each end before it only counts.
const NAMED: usize = 8;

struct Arrows<'a, K>(&'a [K]);

impl<K: Display> Display for Arrows<'_, K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        joined(f, self.0, " -> ")
    }
}

/// Names all keys, or of very many the first and the last, so that a message stays readable.
fn joined<K: Display>(f: &mut Formatter<'_>, keys: &[K], separator: &str) -> fmt::Result {
    let skipped = if keys.len() > 2 * NAMED + 1 {
        NAMED..keys.len() - NAMED
    } else {
        0..0
    };
    let mut first = true;
    for (index, key) in keys.iter().enumerate() {
        if skipped.contains(&index) && index != skipped.start {
            continue;
        }
        if !first {
            f.write_str(separator)?;
        }
        first = false;
        if skipped.contains(&index) {
            write!(f, "({} more)", skipped.len())?;
        } else {
            write!(f, "{key}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_named_from_the_refused_target_back_to_it() {
        let error = ConnectError::Cycle(vec!["b", "c", "a", "b"]);
        assert_eq!(
            error.to_string(),
            "cannot connect a to b: this would close the cycle b -> c -> a -> b"
        );
    }

    #[test]
    fn a_very_long_list_is_shortened_in_the_middle() {
        let error = RootError::SeveralRoots((0..100).collect());
        assert_eq!(
            error.to_string(),
            "cannot tell the root: 100 vertices have no predecessor: \
             0, 1, 2, 3, 4, 5, 6, 7, (84 more), 92, 93, 94, 95, 96, 97, 98, 99"
        );
    }

    #[test]
    fn errors_chain_their_source() {
        let error = MergeError::Root(RootError::<u8>::NoVertex);
        assert_eq!(
            error.source().unwrap().to_string(),
            "cannot tell the root: the graph is empty"
        );
    }
}

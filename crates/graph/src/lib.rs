//! A keyed directed acyclic graph: what there is to do, and what must be done first.
#![forbid(unsafe_code)]

mod difference;
mod draw;
mod error;
mod graph;
mod list;
mod merge;
mod order;
mod persist;
mod ranks;
mod ready;
mod topology;
mod walk;

pub use difference::Difference;
pub use error::{ConnectError, ConnectRootError, MergeError, NotInFlight, RootError};
pub use graph::{Adjacent, Edges, Graph, Vertices};
pub use ready::ReadySet;
pub use walk::{Vertex, Walk};

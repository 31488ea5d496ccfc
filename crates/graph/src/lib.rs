//! A keyed directed acyclic graph: what there is to do, and what must be done first.
//!
//! ```text
//!              cluster                 root: nothing depends on it, so it comes last in an execution
//!             ╱   │   ╲
//!            ▼    ▼    ▼               an edge leads from what depends to what it depends on
//!   workload-0 workload-1 service
//!            ╲    ╱
//!             ▼  ▼
//!            secret                    comes first: level 0, ready at once
//! ```
//!
//! # What it guarantees
//!
//! - **A graph never has a cycle.** [`Graph::connect`] refuses the edge that would close one, names a shortest cycle
//!   through it, and leaves everything as it was. All other edits that can fail also change nothing when they do.
//! - **Edits do not scan.** Adding and finding a vertex, removing an edge and asking for the root take constant time;
//!   removing a vertex takes time proportional to its edges. Adding an edge takes constant time where it agrees with the
//!   order that is kept, which includes all ways of building a graph from its root or from its leaves; otherwise it is
//!   amortised `O(√m)` for `m` edges, in whatever order they come.
//! - **Walks are a function of the edits.** Vertices and edges are listed in insertion order, and where a walk has a
//!   choice, the earlier inserted goes first. No address, hash or thread has a say.
//! - **Nothing recurses.** The depth of a graph is bounded by memory, not by a stack.
//!
//! # What it assumes
//!
//! Keys hash and compare alike for as long as they are in the graph. Keys come from a trusted side: hashing has a fixed
//! seed, so that two runs do the same work, and is no defence against keys that are chosen to collide. There are fewer
//! than 2³² vertices and edges.
//!
//! # How it is built
//!
//! A shape without keys (vertices and edges in two slabs, threaded by linked lists, so that no vertex owns an
//! allocation) under an index from keys to slots. An order is kept in the shape that every edge agrees with; it is what
//! makes a cycle visible at the edge that closes it, and the module `order` explains how it is kept.
//!
//! `petgraph` does not carry this: its `StableGraph` has no keys and scans a vertex's edges to find one of them, its
//! `GraphMap` wants `Copy` keys and removes edges by scanning, and the order of its `acyclic` wrapper is Pearce and
//! Kelly's, which is quadratic for unlucky insertions and does not tell the path of a cycle. It is the independent judge
//! in the tests.
#![forbid(unsafe_code)]

mod difference;
mod draw;
mod error;
mod graph;
mod invariants;
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

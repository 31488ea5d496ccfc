//! Kubernetes API machinery on JSON objects: what an API server, a client cache and a simulator must agree on.
//!
//! Objects are [`serde_json::Value`]s, built-in and custom kinds alike. Everything here is a function of its arguments:
//! no I/O, no clock, no randomness. Time stamps, uids and random suffixes are handed in.
//!
//! Guarantees: no input makes it panic or use unbounded memory; what it accepts, refuses and answers is what a
//! Kubernetes 1.36 API server accepts, refuses and answers, to the letter of its messages.
//! Assumes: `serde_json` maps are sorted (feature `preserve_order` off), as Go's JSON is.
//!
//! ```text
//!   bytes ──► decode / protobuf ──► Value ──► meta (create, update) ──► stored
//!                                     │
//!            schema, cel, patch, apply (what it may look like, and how it changes)
//!                                     │
//!            selector, table ◄────────┤
//!            field, status   ◄────────┘ whatever is wrong with it
//! ```
#![forbid(unsafe_code)]

pub mod apply;
pub mod cel;
pub mod decode;
pub mod duration;
pub mod facts;
pub mod field;
pub mod gvk;
pub mod meta;
pub mod names;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod table;
pub mod time;

//! A real kube-apiserver beside ours: the same requests to both, and what they answer compared.
//!
//! ```text
//!              seed ─► corpus: a scenario, step after step
//!                         │                  │
//!                    our server        kube-apiserver + etcd
//!                         │                  │
//!                     canonical ──► differ ◄── canonical      ids, times, revisions become names of where
//!                                     │                       they were first seen
//!                         docs/compatibility.md: accepted, with a reason, or a failure
//! ```
//!
//! Guarantees: a seed gives the same requests every time; a difference is either in the table of accepted ones or
//! fails; a row of that table that nothing differs by any more fails too.
//! Assumes: `make reference` has built the real server; without it there is nothing to compare with, and
//! [`real::find`] says so.

#![forbid(unsafe_code)]

pub mod accepted;
pub mod canonical;
pub mod client;
pub mod corpus;
pub mod differ;
pub mod real;
pub mod step;

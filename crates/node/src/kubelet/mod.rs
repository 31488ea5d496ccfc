//! The kubelet of one virtual node: every pod that is bound to the node has a worker, which has it run.
//!
//! ```text
//!   API ──► Mirror<Pod> ──┐
//!   container exits ──────┼──► desk ──► worker of the pod ──► prepare · start · stop ──► container, image, network
//!   changed objects ──────┘                   │  ▲                        │
//!                                      status ▼  └────── outcomes ────────┘
//! ```
//!
//! A worker decides with [`crate::pod`] from what it knows, acts in tasks of their own, and hears of their outcomes. It
//! never waits for one task while another thing could be done.

mod admit;
mod adopt;
mod context;
mod desk;
mod evict;
mod prepare;
mod publish;
mod pull;
mod resize;
mod signals;
mod spec;
mod start;
mod stop;
mod worker;

pub(crate) use adopt::{container_name, labels as known_labels};
pub(crate) use context::{Context, NodeContext, run_id};
pub(crate) use desk::{Kubelet, Objects};
pub(crate) use evict::measure;
pub(crate) use prepare::protocol;

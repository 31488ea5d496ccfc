//! Want of memory or disk on the machine: it is noticed, said of every node, and ended by ending pods, one at a time.
//!
//! ```text
//!   /proc/meminfo, statvfs ──► judge ──► conditions ──► status of every node, and whom nodes take
//!                                │
//!                                └─────► rank: whose pod ──► order ──► desk of its node ──► worker
//! ```
//!
//! All nodes share the machine, so all say the same, and one pod goes in a round, not one a node.

mod judge;
mod rank;
mod watch;

pub(crate) use judge::Condition;
pub use judge::{PressureConfig, Thresholds};
pub(crate) use watch::{Order, Pressure, run};

/// The priority from which on pods are the cluster's own and stay.
const CRITICAL: i32 = 2_000_000_000;

/// Whether a pod is so important that it is neither refused nor ended for want of anything.
pub(crate) fn is_critical(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    priority.is_some_and(|priority| priority >= CRITICAL)
}

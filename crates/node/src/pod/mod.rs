//! One pod, as a machine of states: from its spec, what is known of its containers and the time, to what is to be done
//! next and to the status that says where it stands.
//!
//! ```text
//!   spec ─────┐                       ┌─► decide ──► start, kill, end; or look again at
//!   Memory ───┼───────────────────────┤
//!   now ──────┘                       └─► status ──► the whole PodStatus, as a kubelet writes it
//!      ▲
//!      └── what the containers did, what probes said, what could not be done
//! ```
//!
//! No I/O and no clock: the kubelet and the simulated nodes drive the same code.

mod backoff;
mod decide;
mod memory;
mod restart;
mod shape;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use backoff::go_duration;
pub(crate) use decide::{Action, Decision, KillReason, decide, grace_of};
pub(crate) use memory::{Attempt, ContainerMemory, Ended, Ending, Memory, Sandbox, State, Trouble};
pub(crate) use shape::{Kind, Shape};
pub(crate) use status::{EVICTED, described, is_over, says_that_something_runs, status};

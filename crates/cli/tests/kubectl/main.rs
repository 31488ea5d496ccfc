//! The real kubectl against the embedded API server: what a person types, and what the terminal answers.
//!
//! Every test is a namespace of its own on one server that all tests share, so they run side by side; tests about a
//! server's own life start one for themselves. `$KUBECTL` names the kubectl to use, else `scripts/kubectl` finds or
//! installs one. The expectations hold for every kubectl from 1.32 on.
//!
//! With `$REFERENCE_KUBECONFIG` the shared server is the cluster that file names, which shows whether an expectation
//! is Kubernetes' own or only ours.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "every function here belongs to a test")]

mod access;
mod applying;
mod changing;
mod cluster;
mod creating;
mod custom_kinds;
mod deleting;
mod discovering;
mod harness;
mod lifetime;
mod reading;
mod refusals;
mod rollouts;
mod waiting;

//! Pods that are real: a machine over an API server in memory, with processes in containers.

mod bench;
mod endings;
mod failures;
mod pods;
mod simulated;
mod volumes;

use bench::Bench;

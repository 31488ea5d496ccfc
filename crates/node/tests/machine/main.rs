//! Pods that are real: a machine over an API server in memory, with processes in containers.

mod bench;
mod pods;
mod simulated;

use bench::Bench;

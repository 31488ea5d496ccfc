//! Pods as Linux containers on this machine: everything of a Kubernetes cluster that is not its API.
//!
//! [`Machine`] is the whole of it: virtual nodes with their kubelets, a scheduler, services and names, volumes, and what
//! becomes of nodes that fall silent. It talks to an API through a [`kube::Client`] and to nothing else of it, so it
//! works the same beside the embedded server and over the network.
//!
//! ```text
//!                       API (kube::Client)
//!    ┌──────────┬───────────┬────┴──────┬──────────┬───────────┐
//!    ▼          ▼           ▼           ▼          ▼           ▼
//! scheduler  lifecycle   storage     service    kubelet    simulated
//!                        (volumes)   (names)   (one a node)
//!                                       │       │   │   │
//!                                       ▼       ▼   ▼   ▼
//!                                     network  container image
//! ```
//!
//! # Guarantees
//!
//! - *What is decided is decided by functions.* Scheduling, the life of a pod, claims, taints: each is a function of
//!   what was observed and of the time, and is tested by calling it. The loops around them only fetch and act.
//! - *Pods outlive this process.* A start takes over what runs, with restart counts, exit codes and logs.
//! - *A status says what is.* Phases, conditions, reasons and events are those of a kubelet of Kubernetes 1.36. A node
//!   that only seems to run pods says so.
//! - *Nothing is destroyed on a guess.* Deletes carry UIDs; a node is gone when the API says so.
//!
//! # Assumptions
//!
//! - It runs as root. The executable calls `moorline_container::shim::run_if_asked` before anything else.
//! - Endpoints of services are written by somebody else, as are all workloads.

#![forbid(unsafe_code)]

mod amounts;
mod env;
mod events;
mod gate;
mod key;
mod kubelet;
mod lifecycle;
mod machine;
mod mirror;
mod pod;
mod pressure;
mod probe;
mod registration;
pub mod scheduler;
mod service;
mod simulated;
mod storage;
mod tls;
mod volume;

pub use amounts::{Amounts, pod_requests, qos_class};
pub use key::Key;
pub use machine::{ContainerUsage, Error, LogQuery, Machine, MachineConfig, Mode, NodeConfig, PodUsage, StreamError};
/// What streams of pods are made of.
pub use moorline_container as container;
pub use pressure::{PressureConfig, Thresholds};
pub use simulated::{FAIL_WITH, READY_AFTER, SIMULATED, SimulatedConfig};
pub use storage::{CLASS, PROVISIONER};

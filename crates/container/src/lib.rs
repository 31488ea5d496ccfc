//! Pods of Linux containers on this machine.
//!
//! A pod is a handful of containers that share a network, a host name and System V memory. Each pod is kept by one
//! small process, the *shim*, which is the parent of its containers, writes their logs and remembers how they ended.
//! [`Runtime`] is the asynchronous face of it all.
//!
//! ```text
//!   Runtime ──spawns──► shim (one a pod, own session, outlives us)
//!      │                 │ spawns a launcher for each start and each exec; only launchers know libcontainer
//!      │ unix socket     ▼
//!      └────────────► launcher ──► container process (child of the shim once the launcher is gone)
//! ```
//!
//! # Guarantees
//!
//! - *Pods outlive the process that made them.* [`Runtime::open`] finds them again, with their logs and exit codes. An
//!   exit is on disk before anybody is told of it.
//! - *A shim that died is told, not guessed.* Its containers are killed, their cgroups removed, and they are reported
//!   as [`State::Lost`] unless their exit had been written.
//! - *Nothing is left behind.* Mounts of containers live in namespaces that end with their processes, those of a pod
//!   below its directory; processes are found by their cgroup. [`Runtime::remove_pod`] and [`Runtime::purge`] leave no
//!   process, mount, cgroup or socket.
//! - *Every wait has a deadline,* and dropping a future cancels what it waited for: an exec whose session is dropped
//!   is killed.
//!
//! # Assumptions
//!
//! - The executable calls [`shim::run_if_asked`] before anything else, because shims and launchers are this same
//!   executable run again. [`Config::program`] names another one where it cannot.
//! - cgroups are mounted at `/sys/fs/cgroup`: v1, v2 or both side by side.
//! - It runs as root, of the machine or of namespaces that a plain user has made: see [`rootless`].

mod cgroup;
mod error;
mod host;
mod id;
mod launch;
mod log;
mod mounts;
pub mod rootless;
mod runtime;
pub mod shim;
mod spec;
mod state;
mod terminal;
mod user;
mod wire;

pub use cgroup::Stats;
pub use error::{Error, Result};
pub use host::{Missing, missing};
pub use id::{ContainerId, InvalidId, PodId};
pub use log::{Entry, LogOptions, LogReader, LogStream};
pub use runtime::{
    Attached, Config, ContainerStatus, Event, Events, ExecEnd, ExecSession, Input, Output, PodStatus, Runtime, Terminal,
};
pub use spec::{
    Capabilities, ContainerSpec, Device, ExecSpec, LogSpec, MemoryVolume, Mount, MountSource, Network, PodSpec,
    Processes, Propagation, Resources, Rlimit, RootFs, Sharing, StdinPolicy, TerminationMessage, User, WindowSize,
};
pub use state::{Exit, State};
pub use user::{UnknownUser, resolve_user};

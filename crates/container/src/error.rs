//! What can go wrong, and with what.

use std::{io, path::PathBuf, time::Duration};

use crate::{ContainerId, Missing, PodId};

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such pod.
    #[error("pod {0} does not exist")]
    NoPod(PodId),
    /// There is no such container.
    #[error("container {1} of pod {0} does not exist")]
    NoContainer(PodId, ContainerId),
    /// The name is taken.
    #[error("pod {0} exists already")]
    PodExists(PodId),
    /// The name is taken.
    #[error("container {1} of pod {0} exists already")]
    ContainerExists(PodId, ContainerId),
    /// The pod's shim has died, and its containers with it. Only removing the pod is left.
    #[error("the shim of pod {0} is gone and its containers with it; remove the pod and make it anew")]
    PodLost(PodId),
    /// It asks for a state that the container is not in.
    #[error("cannot {attempted} container {container} of pod {pod}: it is {state}")]
    WrongState {
        /// The pod.
        pod: PodId,
        /// The container.
        container: ContainerId,
        /// What was asked for.
        attempted: &'static str,
        /// What it is.
        state: &'static str,
    },
    /// The pod's namespaces could not be set up.
    #[error("cannot set up pod {pod}: {reason}")]
    PodSetup {
        /// The pod.
        pod: PodId,
        /// What the shim said.
        reason: String,
    },
    /// The process could not be started: no such command, no such user, no such mount.
    #[error("cannot start container {container} of pod {pod}: {reason}")]
    Start {
        /// The pod.
        pod: PodId,
        /// The container.
        container: ContainerId,
        /// What the launcher said.
        reason: String,
    },
    /// The process could not be run in the container.
    #[error("cannot run {command:?} in container {container} of pod {pod}: {reason}")]
    Exec {
        /// The pod.
        pod: PodId,
        /// The container.
        container: ContainerId,
        /// The command.
        command: String,
        /// What the launcher said.
        reason: String,
    },
    /// It took longer than it may.
    #[error("gave up to {attempted} after {after:?}")]
    Deadline {
        /// What was waited for.
        attempted: String,
        /// How long.
        after: Duration,
    },
    /// Not a signal.
    #[error("there is no signal {0}")]
    Signal(i32),
    /// A field of a specification says what cannot be.
    #[error("{field} cannot be used: {reason}")]
    Invalid {
        /// The field.
        field: String,
        /// Why not.
        reason: String,
    },
    /// This machine cannot run containers, or not for this user.
    #[error("cannot run containers here; missing: {}", list(.0))]
    Machine(Vec<Missing>),
    /// Another runtime works in the directory.
    #[error("another process is using the pods in {0}; stop it first, or choose another directory")]
    InUse(PathBuf),
    /// The shim said no, or nonsense.
    #[error("the shim of pod {pod} refused to {attempted}: {reason}")]
    Shim {
        /// The pod.
        pod: PodId,
        /// What was asked of it.
        attempted: &'static str,
        /// What it said.
        reason: String,
    },
    /// The system said no.
    #[error("cannot {attempted}")]
    Io {
        /// What was attempted, on what.
        attempted: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

fn list(missing: &[Missing]) -> String {
    missing.iter().map(Missing::to_string).collect::<Vec<_>>().join("; ")
}

/// Says what was attempted when the system says no.
pub(crate) trait Attempt<T> {
    /// `attempted` completes the sentence "cannot …".
    fn attempt<S: Into<String>>(self, attempted: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<io::Error>> Attempt<T> for std::result::Result<T, E> {
    fn attempt<S: Into<String>>(self, attempted: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|source| Error::Io {
            attempted: attempted().into(),
            source: source.into(),
        })
    }
}

/// An error and everything behind it, in one line; shims and launchers send it over a socket.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

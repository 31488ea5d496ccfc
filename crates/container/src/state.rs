//! What is on disk about a pod: enough to take it over after a restart.
//!
//! ```text
//!   <dir>/pods/<pod>/pod.json        the specification
//!                    lock            held by the shim as long as it lives; holds its process id
//!                    socket          the shim listens here
//!                    shim.log        what a failing shim or launcher had to say
//!                    memory/<name>   memory volumes, and `shm`; the only mounts that the host sees
//!                    oci/            libcontainer's own state
//!                    containers/<container>/
//!                        spec.json   the specification
//!                        state.json  since when it runs, and as which process; written by the shim
//!                        exit.json   how it ended; written by the shim before anybody is told
//!                        message     the termination message
//!                        config.json, rootfs/, upper/, work/, mounts/
//! ```

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    ContainerId, PodId,
    error::{Attempt, Result},
};

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 and the signal's number when a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// How many of its processes the kernel killed because its memory limit was reached.
    pub oom_kills: u64,
    /// When it was started.
    pub started_at: jiff::Timestamp,
    /// When it ended.
    pub finished_at: jiff::Timestamp,
    /// What it left in its [`TerminationMessage`](crate::TerminationMessage) file.
    #[serde(default)]
    pub message: String,
}

/// Where a container stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Made, and not started. Left by a start.
    Created,
    /// Running.
    Running {
        /// The process, as the host numbers it.
        pid: u32,
        /// Since when.
        started_at: jiff::Timestamp,
    },
    /// Ended.
    Exited(Exit),
    /// It ran when its shim died or the machine went down; nobody knows how it ended.
    Lost,
}

impl State {
    /// One word for messages.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Created => "not started",
            Self::Running { .. } => "running",
            Self::Exited(_) => "not running any more",
            Self::Lost => "lost",
        }
    }
}

/// `state.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) pid: u32,
    pub(crate) started_at: jiff::Timestamp,
}

/// Where the files of a pod are.
#[derive(Debug, Clone)]
pub(crate) struct PodDir(PathBuf);

impl PodDir {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn of(pods: &Path, pod: &PodId) -> Self {
        Self(pods.join(pod.as_str()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn spec(&self) -> PathBuf {
        self.0.join("pod.json")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    pub(crate) fn shim_log(&self) -> PathBuf {
        self.0.join("shim.log")
    }

    pub(crate) fn memory(&self, name: &str) -> PathBuf {
        self.0.join("memory").join(name)
    }

    pub(crate) fn oci(&self) -> PathBuf {
        self.0.join("oci")
    }

    pub(crate) fn containers(&self) -> PathBuf {
        self.0.join("containers")
    }

    pub(crate) fn container(&self, container: &ContainerId) -> ContainerDir {
        ContainerDir(self.containers().join(container.as_str()))
    }
}

/// Where the files of a container are.
#[derive(Debug, Clone)]
pub(crate) struct ContainerDir(PathBuf);

impl ContainerDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn spec(&self) -> PathBuf {
        self.0.join("spec.json")
    }

    pub(crate) fn running(&self) -> PathBuf {
        self.0.join("state.json")
    }

    pub(crate) fn exit(&self) -> PathBuf {
        self.0.join("exit.json")
    }

    pub(crate) fn message(&self) -> PathBuf {
        self.0.join("message")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.0.join("config.json")
    }

    pub(crate) fn rootfs(&self) -> PathBuf {
        self.0.join("rootfs")
    }

    pub(crate) fn upper(&self) -> PathBuf {
        self.0.join("upper")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    pub(crate) fn cgroups(&self) -> PathBuf {
        self.0.join("mounts").join("cgroup")
    }

    pub(crate) fn mount(&self, index: usize) -> PathBuf {
        self.0.join("mounts").join(index.to_string())
    }
}

/// Writes a file so that a reader, also one after a crash, finds it whole or not at all.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(io::Error::other);
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    text.and_then(|text| {
        fs::write(&temporary, text)?;
        fs::rename(&temporary, path)
    })
    .attempt(|| format!("write {}", path.display()))
}

/// Reads what [`write_json`] wrote; none where there is no such file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.attempt(|| format!("read {}", path.display()))?,
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(io::Error::from)
        .attempt(|| format!("understand {}", path.display()))
}

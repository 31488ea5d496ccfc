//! How other commands talk to an instance that runs: one line of JSON each way, over a socket that only its owner can
//! open.

use std::{os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use moorline_node::{Machine, Mode};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    task::AbortHandle,
};

/// Longer than anything that can be asked for takes.
const PATIENCE: Duration = Duration::from_mins(1);
/// Nothing that is asked is longer.
const LONGEST: u64 = 64 * 1024;

/// What can be asked for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Request {
    /// How things are.
    Status,
    /// Make a node fail, or mend it.
    SetMode {
        /// The node.
        node: String,
        /// How it shall be.
        mode: NodeMode,
    },
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum NodeMode {
    Running,
    Stopped,
    Frozen,
    CutOff,
}

/// How things are.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// Where the API is.
    pub(crate) server: String,
    /// The nodes that run containers, and how they are.
    pub(crate) nodes: Vec<(String, NodeMode)>,
    /// How many nodes only seem to run them.
    #[serde(default)]
    pub(crate) simulated: usize,
    /// What its owner should know of, if anything.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}

/// What an instance tells of itself beside how its nodes are.
#[derive(Clone)]
pub(crate) struct About {
    /// Where the API is.
    pub(crate) server: String,
    /// How many nodes only seem to run containers.
    pub(crate) simulated: usize,
    /// What its owner should know of, if anything.
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Reply {
    Done(Status),
    Failed(String),
}

impl From<Mode> for NodeMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Running => Self::Running,
            Mode::Stopped => Self::Stopped,
            Mode::Frozen => Self::Frozen,
            Mode::CutOff => Self::CutOff,
        }
    }
}

impl From<NodeMode> for Mode {
    fn from(mode: NodeMode) -> Self {
        match mode {
            NodeMode::Running => Self::Running,
            NodeMode::Stopped => Self::Stopped,
            NodeMode::Frozen => Self::Frozen,
            NodeMode::CutOff => Self::CutOff,
        }
    }
}

/// Answers at `socket` until this is dropped.
pub(crate) struct Answering {
    task: AbortHandle,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn answer(socket: &Path, about: About, machine: Arc<Machine>) -> Result<Answering> {
    // One that a crash left; whoever holds the instance may take its place.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))
        .context("cannot close the socket to others")?;
    let serve = async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (about, machine) = (about.clone(), Arc::clone(&machine));
            tokio::spawn(async move {
                if let Err(error) = serve_one(stream, about, &machine).await {
                    tracing::debug!(%error, "a command was not answered");
                }
            });
        }
    };
    Ok(Answering {
        task: tokio::spawn(serve).abort_handle(),
    })
}

async fn serve_one(stream: UnixStream, about: About, machine: &Machine) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    (&mut stream).take(LONGEST).read_line(&mut line).await?;
    let done = match serde_json::from_str(&line) {
        Err(error) => Err(format!("cannot read the request: {error}")),
        Ok(Request::Status) => Ok(()),
        Ok(Request::SetMode { node, mode }) => {
            let set = machine.set_mode(&node, mode.into()).await;
            set.map_err(|error| format!("{:#}", anyhow::Error::from(error)))
        }
    };
    let reply = if let Err(why) = done {
        Reply::Failed(why)
    } else {
        let mode = |name: String| machine.mode(&name).map(|mode| (name, NodeMode::from(mode)));
        let nodes = machine.node_names().into_iter().map(mode).collect::<Result<_, _>>()?;
        Reply::Done(Status {
            server: about.server,
            nodes,
            simulated: about.simulated,
            warnings: about.warnings,
        })
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    stream.get_mut().write_all(text.as_bytes()).await?;
    Ok(())
}

/// Asks the instance whose socket this is.
pub(crate) async fn ask(socket: &Path, request: &Request) -> Result<Status> {
    let asking = async {
        let mut stream = UnixStream::connect(socket)
            .await
            .with_context(|| format!("nobody answers at {}", socket.display()))?;
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        stream.write_all(text.as_bytes()).await?;
        let mut reply = String::new();
        BufReader::new(stream).take(LONGEST).read_line(&mut reply).await?;
        match serde_json::from_str(&reply).context("cannot read the answer")? {
            Reply::Done(status) => Ok(status),
            Reply::Failed(why) => bail!(why),
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .context("the instance did not answer in time")?
}

//! What the server asks of whoever runs pods.

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{future::BoxFuture, stream::BoxStream};
use jiff::Timestamp;
use moorline_machinery::status::ApiError;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};

/// Reaches into running pods: what a kubelet does for a Kubernetes API server.
///
/// The server has looked at the pod's object before it calls: the pod exists, is on a node, and has the container.
/// Whatever a method hands out ends when it is dropped; that is how the server says that its client has left.
#[async_trait]
pub trait PodAccess: Send + Sync + 'static {
    /// The log of a container, with every option carried out except [`LogOptions::limit_bytes`], which the server
    /// carries out itself. When it follows, the stream goes on until the container has ended.
    async fn logs(
        &self,
        container: &ContainerRef,
        options: &LogOptions,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, AccessError>;

    /// Starts a command in a container.
    async fn exec(
        &self,
        container: &ContainerRef,
        command: &[String],
        streams: &StreamChoice,
    ) -> Result<Session, AccessError>;

    /// Takes part in the input and output of a container's own process. The session ends when that process does.
    async fn attach(&self, container: &ContainerRef, streams: &StreamChoice) -> Result<Session, AccessError>;

    /// Connects to a port within a pod, on the pod's loopback.
    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, AccessError>;

    /// Connects to an address that pods of this cluster reach: a pod's, a service's.
    async fn dial(&self, address: SocketAddr) -> Result<Box<dyn Duplex>, AccessError>;

    /// What the running pods use now. Pods that nothing is known of are left out.
    async fn pod_usage(&self) -> Vec<PodUsage>;

    /// What the nodes use now. Nodes that nothing is known of are left out.
    async fn node_usage(&self) -> Vec<NodeUsage>;
}

/// A pod, by its name and its identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID, which tells it from an earlier pod of the same name.
    pub uid: String,
    /// The node that it is on.
    pub node: String,
}

/// A container of a pod: an ordinary one, an init container or an ephemeral one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerRef {
    /// Its pod.
    pub pod: PodRef,
    /// Its name.
    pub container: String,
}

/// Which part of a log is wanted, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Whether the stream goes on with what is written from now on.
    pub follow: bool,
    /// Whether the log of the run before this one is meant.
    pub previous: bool,
    /// Only what was written from then on.
    pub since: Option<Since>,
    /// Whether every line begins with its time, in RFC 3339 with nanoseconds, and a space.
    pub timestamps: bool,
    /// Only so many lines at the end of what there is; nothing for all of them.
    pub tail_lines: Option<u64>,
    /// No more than so many bytes. A hint: the server cuts what goes beyond.
    pub limit_bytes: Option<u64>,
    /// Which of the container's outputs.
    pub stream: LogStream,
}

/// From when on a log is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// From so long ago on.
    Ago(Duration),
    /// From a time on.
    Time(Timestamp),
}

/// Which output of a container a log is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogStream {
    /// Both, in the order in which they were written.
    #[default]
    All,
    /// The standard output.
    Stdout,
    /// The standard error.
    Stderr,
}

/// Which streams of a process a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamChoice {
    /// Whether it writes to the standard input.
    pub stdin: bool,
    /// Whether it reads the standard output, or what the terminal shows.
    pub stdout: bool,
    /// What the process is connected to.
    pub console: Console,
}

/// What a process is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Console {
    /// A terminal, whose output is one.
    Terminal,
    /// Pipes.
    Pipes {
        /// Whether the client reads the standard error.
        stderr: bool,
    },
}

impl StreamChoice {
    /// Whether the process is to have a terminal.
    pub fn terminal(&self) -> bool {
        self.console == Console::Terminal
    }

    /// Whether the client reads the standard error.
    pub fn stderr(&self) -> bool {
        self.console == Console::Pipes { stderr: true }
    }
}

/// A process that a client takes part in. Dropped before its exit is known, it means that the client has left: its
/// input ends and its terminal hangs up.
pub struct Session {
    /// Where the client's input goes; shut down when that has ended.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// The standard output, or what the terminal shows.
    pub stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// The standard error, where there is no terminal.
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Told how large the client's terminal is, each time that changes.
    pub resize: Option<watch::Sender<TerminalSize>>,
    /// The exit code of the process, 128 and the signal for one that was killed. An error means that it never ran or
    /// was lost.
    pub exit: BoxFuture<'static, Result<i32, AccessError>>,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub struct TerminalSize {
    /// Columns.
    #[serde(rename = "Width", default)]
    pub columns: u16,
    /// Lines.
    #[serde(rename = "Height", default)]
    pub rows: u16,
}

/// A connection that can be read and written.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Duplex for T {}

/// What a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUsage {
    /// The namespace of the pod.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it was measured.
    pub taken: Timestamp,
    /// Over how long.
    pub window: Duration,
    /// What each of its running containers uses.
    pub containers: BTreeMap<String, Usage>,
}

/// What a node uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUsage {
    /// The node.
    pub name: String,
    /// When it was measured.
    pub taken: Timestamp,
    /// Over how long.
    pub window: Duration,
    /// What it uses.
    pub usage: Usage,
}

/// Processor time and memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Billionths of a processor, on average over the window.
    pub cpu_nanocores: u64,
    /// Bytes that cannot be given up under pressure: the working set.
    pub memory_bytes: u64,
}

/// Why a pod could not be reached into.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AccessError {
    /// What was asked for is not possible as things are; said to the client as it is.
    #[error("{0}")]
    Refused(String),
    /// Whoever runs the pod cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// It was tried and failed.
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for AccessError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<AccessError> for ApiError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Refused(why) => Self::bad_request(why),
            AccessError::Unreachable(why) => Self::unknown(format!("error dialing backend: {why}")),
            AccessError::Failed(why) => Self::internal(why),
        }
    }
}

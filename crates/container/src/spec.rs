//! What a pod and its containers are to be, in plain types.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{ContainerId, PodId};

/// A container: what runs, in which root, as whom, with how much.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own, and any of them goes with any other"
)]
pub struct ContainerSpec {
    /// Its name, unique in its pod.
    pub id: ContainerId,
    /// The root file system.
    pub root: RootFs,
    /// The command and its arguments; the command is looked up in `PATH` when it has no slash.
    pub args: Vec<String>,
    /// The environment, later entries winning. `PATH` and `HOME` get defaults.
    pub env: Vec<(String, String)>,
    /// The working directory; made when it is missing.
    pub cwd: PathBuf,
    /// Whom it runs as.
    pub user: User,
    /// What it may do beyond, or short of, the default set of capabilities.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// All capabilities, all devices, nothing masked, cgroups writable.
    #[serde(default)]
    pub privileged: bool,
    /// Whether a set-user-id program inside gains nothing.
    #[serde(default)]
    pub no_new_privileges: bool,
    /// Whether the parts of `/proc` and `/sys` that tell of the host are left open. Privileged containers have them
    /// open in any case.
    #[serde(default)]
    pub unmasked_proc: bool,
    /// Mounted in this order, after the system's own (`/proc`, `/dev`, `/sys`).
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Devices beside the usual ones (`null`, `zero`, `full`, `random`, `urandom`, `tty`).
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Limits.
    #[serde(default)]
    pub resources: Resources,
    /// How readily the kernel kills it when memory is short, −1000 to 1000. A value below what this process may set
    /// is raised to it.
    #[serde(default)]
    pub oom_score_adj: Option<i32>,
    /// Limits of single processes; a limit above what this process may give is lowered to it.
    #[serde(default)]
    pub rlimits: Vec<Rlimit>,
    /// Whether standard input, output and error are a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// What becomes of standard input.
    #[serde(default)]
    pub stdin: StdinPolicy,
    /// Where its output goes. Without it, output reaches only those who are attached.
    #[serde(default)]
    pub log: Option<LogSpec>,
    /// A file in which the container may leave a last word.
    #[serde(default)]
    pub termination_message: Option<TerminationMessage>,
    /// The caller's own words, kept with the container and handed back after a restart.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl ContainerSpec {
    /// A container that runs `args` as root in `layers`, with everything else at its default.
    pub fn new(id: ContainerId, layers: Vec<PathBuf>, args: Vec<String>) -> Self {
        Self {
            id,
            root: RootFs {
                layers,
                read_only: false,
            },
            args,
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            user: User::default(),
            capabilities: Capabilities::default(),
            privileged: false,
            no_new_privileges: false,
            unmasked_proc: false,
            mounts: Vec::new(),
            devices: Vec::new(),
            resources: Resources::default(),
            oom_score_adj: None,
            rlimits: Vec::new(),
            terminal: false,
            stdin: StdinPolicy::default(),
            log: None,
            termination_message: None,
            labels: BTreeMap::new(),
        }
    }
}

/// What the containers of a pod share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodSpec {
    /// Its name, unique in its runtime.
    pub id: PodId,
    /// The host name its containers see. With [`Network::Host`] the host's own stays.
    pub hostname: Option<String>,
    /// The NIS domain name.
    pub domainname: Option<String>,
    /// Which network.
    pub network: Network,
    /// Whose System V memory, semaphores and message queues.
    #[serde(default)]
    pub ipc: Sharing,
    /// Which processes its containers see.
    #[serde(default)]
    pub processes: Processes,
    /// Kernel settings of the pod's own namespaces, by their dotted names.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// The size of `/dev/shm`, which the pod's containers share.
    pub shared_memory_bytes: u64,
    /// File systems in memory that the pod's containers can share by name: [`MountSource::PodMemory`].
    #[serde(default)]
    pub memory_volumes: Vec<MemoryVolume>,
    /// Limits of the pod as a whole.
    #[serde(default)]
    pub resources: Resources,
    /// The caller's own words, kept with the pod and handed back after a restart.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl PodSpec {
    /// A pod on `network` with everything else at its default.
    pub fn new(id: PodId, network: Network) -> Self {
        Self {
            hostname: Some(id.to_string()),
            id,
            domainname: None,
            network,
            ipc: Sharing::Pod,
            processes: Processes::PerContainer,
            sysctls: BTreeMap::new(),
            shared_memory_bytes: 64 << 20,
            memory_volumes: Vec::new(),
            resources: Resources::default(),
            labels: BTreeMap::new(),
        }
    }
}

/// A file system in memory that lives as long as its pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryVolume {
    /// Its name, unique in the pod; rules are those of an id.
    pub name: ContainerId,
    /// Its size; half of the machine's memory when none is given.
    pub size_bytes: Option<u64>,
    /// Permissions of its root.
    pub mode: u32,
    /// The group that its root belongs to.
    pub gid: u32,
}

/// The network of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// The host's.
    Host,
    /// The network namespace behind this path, which exists before the pod does.
    Namespace(PathBuf),
    /// A new one with nothing in it but a loopback that is down.
    Isolated,
}

/// Whether something is the pod's own or the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Sharing {
    /// Shared by the pod's containers, and by nobody else.
    #[default]
    Pod,
    /// The host's.
    Host,
}

/// Which processes a container sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Processes {
    /// Its own.
    #[default]
    PerContainer,
    /// All of its pod. Process 1 is a process of ours that reaps orphans.
    Pod,
    /// All of the host.
    Host,
}

/// The root of a container: directories laid over each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFs {
    /// The layers, lowest first. None of them is ever written to.
    pub layers: Vec<PathBuf>,
    /// Whether the container may not write to its root either. What is written otherwise is gone with the container.
    pub read_only: bool,
}

/// Whom a process runs as.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Groups beside that one.
    #[serde(default)]
    pub additional_gids: Vec<u32>,
}

/// Changes to the default set of capabilities. Names with or without `CAP_`; `ALL` is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Given beside the default ones.
    pub add: Vec<String>,
    /// Taken away. Adding wins over dropping `ALL`, dropping one by name wins over adding `ALL`.
    pub drop: Vec<String>,
}

/// Something mounted in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where, inside; made when it is missing.
    pub target: PathBuf,
    /// What.
    pub source: MountSource,
    /// Whether it cannot be written to through this mount.
    pub read_only: bool,
    /// Which later mounts pass.
    #[serde(default)]
    pub propagation: Propagation,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    /// A file or directory of the host.
    Bind {
        /// Its path.
        path: PathBuf,
        /// A place below it; made as a directory when it is missing. It is resolved so that no symbolic link leads out
        /// of `path`.
        subpath: Option<PathBuf>,
    },
    /// Memory of this container alone.
    Tmpfs {
        /// Its size; half of the machine's memory when none is given.
        size_bytes: Option<u64>,
        /// Permissions of its root.
        mode: u32,
    },
    /// A [`MemoryVolume`] of the pod.
    PodMemory {
        /// Its name.
        name: ContainerId,
        /// As for [`MountSource::Bind`].
        subpath: Option<PathBuf>,
    },
    /// The files of an image, laid over each other. Nothing can be written to them or executed from them.
    Layers {
        /// Lowest first.
        layers: Vec<PathBuf>,
        /// A place below them, which must be there already.
        subpath: Option<PathBuf>,
    },
}

/// Which mounts that are made later are seen on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Propagation {
    /// None.
    #[default]
    Private,
    /// The host's are seen in the container, where the host shares that part of its tree.
    HostToContainer,
    /// And those of the container on the host, where the host shares that part of its tree. They outlive the container.
    Bidirectional,
}

/// A device of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The device node on the host.
    pub host_path: PathBuf,
    /// Where it appears inside.
    pub path: PathBuf,
    /// Letters of `rwm`: read, write, make nodes of it.
    pub access: String,
}

/// Limits of a container or a pod; none is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Weight when processors are short, 2 to 262144; 1024 is one processor's worth.
    pub cpu_shares: Option<u64>,
    /// Microseconds of processor time in each period.
    pub cpu_quota_micros: Option<u64>,
    /// The period; 100 ms when none is given.
    pub cpu_period_micros: Option<u64>,
    /// Which processors, as in `0-2,5`.
    pub cpuset_cpus: Option<String>,
    /// Bytes of memory, without swap; what goes beyond is killed.
    pub memory_limit_bytes: Option<u64>,
    /// Number of processes and threads.
    pub pids_limit: Option<u64>,
}

/// A limit of single processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// As in `RLIMIT_NOFILE`.
    pub name: String,
    /// What applies.
    pub soft: u64,
    /// Up to where the process may raise it.
    pub hard: u64,
}

/// What becomes of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum StdinPolicy {
    /// Nothing can be read from it.
    #[default]
    Null,
    /// Open for those who attach, as long as the container runs.
    Open,
    /// Open for the first who attaches, and closed after.
    OpenOnce,
}

/// Where output is written, in the format of the Container Runtime Interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSpec {
    /// The file. Older parts are `path.1`, `path.2` and so on, the highest being the oldest.
    pub path: PathBuf,
    /// A file is put aside once it is this big.
    pub max_bytes: u64,
    /// How many files there are at most, the current one included.
    pub max_files: u32,
}

impl LogSpec {
    /// Kubernetes' defaults: five files of ten mebibytes.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            max_bytes: 10 << 20,
            max_files: 5,
        }
    }
}

/// A file in which a container leaves a last word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminationMessage {
    /// Its path inside the container.
    pub path: PathBuf,
    /// How much of its beginning is kept.
    pub max_bytes: u64,
}

/// A process to run in a running container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// The command and its arguments.
    pub args: Vec<String>,
    /// Environment on top of the container's.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// The working directory, if not the container's.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// Whom it runs as, if not as the container does.
    #[serde(default)]
    pub user: Option<User>,
    /// A terminal of this size, or separate streams.
    #[serde(default)]
    pub terminal: Option<WindowSize>,
    /// Whether standard input can be written to.
    #[serde(default)]
    pub stdin: bool,
}

impl ExecSpec {
    /// `args` with separate streams, without input, as the container's own user.
    pub fn new(args: Vec<String>) -> Self {
        Self {
            args,
            env: Vec::new(),
            cwd: None,
            user: None,
            terminal: None,
            stdin: false,
        }
    }
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Characters in a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

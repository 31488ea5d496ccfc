//! A launcher: starts one container, or one process in a container, and ends.
//!
//! Only here is libcontainer at work. It forks, changes its own namespaces and limits, and needs megabytes; a shim that
//! did this itself would be neither small nor the same afterwards.

mod capabilities;
mod config;
mod executor;
mod root;

use std::{
    env, fs,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
};

use libcontainer::{container::builder::ContainerBuilder, oci_spec::runtime::Spec, syscall::syscall::SyscallType};

use crate::{
    ContainerSpec, PodSpec,
    cgroup::Hierarchies,
    error::{Attempt, Error, Result, chain},
    state::{ContainerDir, PodDir, read_json},
    wire::{self, Inbox, Launch, Launched},
};

/// Answers the one request that comes over standard input.
pub(crate) fn run() -> Result<()> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).attempt(|| "take over the socket")?;
    // What it was launching would be nobody's.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .attempt(|| "tie the launcher to its shim")?;
    let null = fs::File::open("/dev/null").attempt(|| "open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).attempt(|| "close the standard input")?;
    let mut inbox = Inbox::default();
    let launch: Launch = wire::receive(&socket, &mut inbox).attempt(|| "hear what to launch")?;
    let fds: Vec<_> = std::iter::from_fn(|| inbox.take_fd()).collect();
    let result = if launch.exec.is_some() {
        exec(&launch, fds)
    } else {
        start(&launch, fds).inspect_err(|_| forget(&launch))
    };
    let (answer, terminal) = match result {
        Ok((pid, terminal)) => (Launched::Running { pid }, terminal),
        Err(error) => (Launched::Failed { reason: chain(&error) }, None),
    };
    let terminal: Vec<_> = terminal.iter().map(AsFd::as_fd).collect();
    wire::send(&socket, &answer, &terminal).attempt(|| "tell what was launched")
}

type Process = (u32, Option<OwnedFd>);

fn start(launch: &Launch, fds: Vec<OwnedFd>) -> Result<Process> {
    let dir = PodDir::new(launch.pod_dir.clone());
    let container = dir.container(&launch.container);
    let missing = |what: &str| Error::Invalid {
        field: what.to_owned(),
        reason: "it is missing".to_owned(),
    };
    let pod: PodSpec = read_json(&dir.spec())?.ok_or_else(|| missing("pod.json"))?;
    let spec: ContainerSpec = read_json(&container.spec())?.ok_or_else(|| missing("spec.json"))?;

    let hierarchies = Hierarchies::find()?;
    let group = hierarchies.group(&launch.cgroup);
    group.create()?;
    group.limit(&spec.resources)?;
    let devices = config::Devices::of(&spec)?;
    if !spec.privileged {
        group.allow_devices(&devices.rules)?;
    }
    group.join_without_limits()?;
    set_oom_score(spec.oom_score_adj.unwrap_or(0));

    let sources = root::find_sources(&spec, &dir)?;
    root::own_mounts()?;
    root::lay(&spec, &container)?;
    let mounts = root::stage(sources, &container)?;
    let context = config::Context {
        pod: &pod,
        launch,
        guards_devices: group.guards_devices(),
        devices,
        mounts,
        root: container.rootfs(),
        cgroups: root::stage_cgroups(&group.views(), spec.privileged, &container)?,
    };
    let document = config::document(&spec, &context)?;
    let text = serde_json::to_vec(&document)
        .map_err(io::Error::from)
        .attempt(|| "write the container's configuration")?;
    fs::write(container.config(), text).attempt(|| format!("write {}", container.config().display()))?;

    let console = spec
        .terminal
        .then(|| Console::listen(&container, "console"))
        .transpose()?;
    let (executor, outcome) = executor::Executor::new()?;
    let mut builder = ContainerBuilder::new(launch.container.to_string(), SyscallType::default())
        .with_root_path(dir.oci())
        .map_err(refused)?
        .with_executor(executor);
    if let Some(console) = &console {
        builder = builder.with_console_socket(Some(&console.path));
    }
    let mut builder = with_streams(builder, fds)
        .as_init(container.path())
        .with_systemd(false)
        .with_detach(true)
        .build()
        .map_err(refused)?;
    let pid = builder.pid().map_or(0, |pid| pid.as_raw().unsigned_abs());
    builder.start().map_err(refused)?;
    outcome.wait()?;
    Ok((pid, console.map(Console::take).transpose()?))
}

/// Removes what a start that failed has left, so that it can be tried again.
fn forget(launch: &Launch) {
    let dir = PodDir::new(launch.pod_dir.clone());
    let container = dir.container(&launch.container);
    for left in [
        dir.oci().join(launch.container.as_str()),
        container.upper(),
        container.work(),
    ] {
        let _ = fs::remove_dir_all(left);
    }
}

fn exec(launch: &Launch, fds: Vec<OwnedFd>) -> Result<Process> {
    let dir = PodDir::new(launch.pod_dir.clone());
    let container = dir.container(&launch.container);
    let Some(exec) = &launch.exec else {
        return Err(Error::Invalid {
            field: "exec".to_owned(),
            reason: "it is missing".to_owned(),
        });
    };
    let hierarchies = Hierarchies::find()?;
    hierarchies.group(&launch.cgroup).join_without_limits()?;
    let spec = Spec::load(container.config())
        .map_err(io::Error::other)
        .attempt(|| "read the container's configuration")?;
    let process = config::exec_process(exec, &spec)?;
    // Names of parallel launchers must differ; a launcher's process id does.
    let name = format!("exec-{}", std::process::id());
    let process_path = container.path().join(format!("{name}.json"));
    let text = serde_json::to_vec(&process)
        .map_err(io::Error::from)
        .attempt(|| "write the process's configuration")?;
    fs::write(&process_path, text).attempt(|| format!("write {}", process_path.display()))?;
    let _remove = RemoveFile(process_path.clone());

    let console = exec.terminal.map(|_| Console::listen(&container, &name)).transpose()?;
    let (executor, outcome) = executor::Executor::new()?;
    let mut builder = ContainerBuilder::new(launch.container.to_string(), SyscallType::default())
        .with_root_path(dir.oci())
        .map_err(refused)?
        .with_executor(executor);
    if let Some(console) = &console {
        builder = builder.with_console_socket(Some(&console.path));
    }
    let pid = with_streams(builder, fds)
        .as_tenant()
        .with_process(Some(&process_path))
        .with_detach(true)
        .build()
        .map_err(refused)?;
    outcome.wait()?;
    let terminal = console.map(Console::take).transpose()?;
    if let (Some(terminal), Some(size)) = (&terminal, exec.terminal) {
        crate::terminal::set_window(terminal, size)?;
    }
    Ok((pid.as_raw().unsigned_abs(), terminal))
}

/// Input, output, error; none with a terminal. An exec without input has two.
fn with_streams(builder: ContainerBuilder, fds: Vec<OwnedFd>) -> ContainerBuilder {
    let mut fds = fds.into_iter().rev();
    let (stderr, stdout, stdin) = (fds.next(), fds.next(), fds.next());
    let builder = match stdin {
        Some(fd) => builder.with_stdin(fd),
        None => builder,
    };
    match (stdout, stderr) {
        (Some(stdout), Some(stderr)) => builder.with_stdout(stdout).with_stderr(stderr),
        _ => builder,
    }
}

/// Where libcontainer hands over the terminal that it has made.
struct Console {
    listener: UnixListener,
    path: PathBuf,
}

impl Console {
    fn listen(container: &ContainerDir, name: &str) -> Result<Self> {
        // The name of a socket has at most 107 bytes, that of a directory many more.
        env::set_current_dir(container.path()).attempt(|| "change to the container's directory")?;
        let name = format!("{name}.sock");
        let listener = UnixListener::bind(&name).attempt(|| "listen for the terminal")?;
        Ok(Self {
            listener,
            path: container.path().join(name),
        })
    }

    fn take(self) -> Result<OwnedFd> {
        let (socket, _) = self.listener.accept().attempt(|| "be handed the terminal")?;
        let mut inbox = Inbox::default();
        inbox.receive(&socket).attempt(|| "receive the terminal")?;
        inbox
            .take_fd()
            .ok_or(io::ErrorKind::UnexpectedEof)
            .attempt(|| "find a terminal in what was handed over")
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

struct RemoveFile(PathBuf);

impl Drop for RemoveFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Children inherit it. Lowering it takes a privilege that even root may lack; then it stays as low as it may be.
fn set_oom_score(score: i32) {
    let path = Path::new("/proc/self/oom_score_adj");
    let now = || {
        fs::read_to_string(path)
            .ok()
            .and_then(|text| text.trim().parse::<i32>().ok())
    };
    if fs::write(path, score.to_string()).is_err() && now().is_some_and(|now| now < score) {
        let _ = fs::write(path, score.to_string());
    }
}

fn refused(error: impl std::error::Error) -> Error {
    Error::Io {
        attempted: "make the container".to_owned(),
        source: io::Error::other(chain(&error)),
    }
}

/// Reads what a child left in a pipe, until all its ends are closed.
fn read_all(mut reader: io::PipeReader) -> io::Result<String> {
    let mut text = String::new();
    reader.read_to_string(&mut text)?;
    Ok(text)
}

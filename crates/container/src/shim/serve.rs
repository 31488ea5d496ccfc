//! The loop of a shim: one thread, one poll.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::{
    signal::SigSet,
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{SocketFlags, acceptfrom_with},
    process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait},
};

use super::{
    LAUNCHER, SELF,
    connection::{Connection, ConnectionId, Purpose, Received},
    container::{Container, TheirEnds, give_to_user},
};
use crate::{
    ContainerId, ContainerSpec, ExecSpec, LogStream,
    cgroup::Hierarchies,
    error::{Attempt, Result},
    state::{PodDir, read_json},
    wire::{self, Inbox, Launch, Launched, Reach, Reply, Request},
};

/// How long the processes of a pod may take to die once they are killed.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Shim {
    dir: PodDir,
    hierarchies: Hierarchies,
    cgroup: PathBuf,
    /// The first process of the pod, where there is one.
    pause: Option<u32>,
    listener: OwnedFd,
    signals: SignalFd,
    containers: BTreeMap<ContainerId, Container>,
    connections: Vec<Connection>,
    launches: Vec<Launching>,
    /// Ends of processes that a launcher has not told of yet.
    unclaimed: Vec<(u32, End)>,
    next_connection: u64,
    /// Set by a request to shut down; it gets the last answer.
    stopping: Option<ConnectionId>,
}

/// A launcher at work.
struct Launching {
    socket: OwnedFd,
    inbox: Inbox,
    connection: ConnectionId,
    purpose: LaunchPurpose,
}

enum LaunchPurpose {
    Start(Box<Container>),
    Exec,
}

/// How a process ended.
#[derive(Debug, Clone, Copy)]
struct End {
    code: i32,
    signal: Option<i32>,
}

impl End {
    fn of(status: WaitStatus) -> Self {
        let signal = status.terminating_signal();
        let code = status.exit_status().unwrap_or_else(|| 128 + signal.unwrap_or(0));
        Self { code, signal }
    }
}

/// What a file descriptor is polled for.
#[derive(Clone)]
enum Source {
    Listener,
    Signals,
    Connection(ConnectionId),
    Launch(ConnectionId),
    Output(ContainerId, LogStream),
    Writable,
}

/// Takes the signals that a shim deals with out of their usual way.
pub(super) fn block_signals() -> Result<SignalFd> {
    use nix::sys::signal::Signal;
    let signals: SigSet = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().attempt(|| "block signals")?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).attempt(|| "watch for signals")
}

/// Tells the first who asks why there is no pod.
pub(super) fn refuse(listener: &OwnedFd, reason: &str) {
    if let Ok(socket) = acceptfrom_with(listener, SocketFlags::CLOEXEC).map(|(socket, _)| socket) {
        let _ = wire::receive::<Request>(&socket, &mut Inbox::default());
        let _ = wire::send(&socket, &Reply::Failed { reason: reason.to_owned() }, &[]);
    }
}

impl Shim {
    pub(super) fn new(
        dir: PodDir,
        hierarchies: Hierarchies,
        cgroup: PathBuf,
        pause: Option<u32>,
        listener: OwnedFd,
        signals: SignalFd,
    ) -> Self {
        Self {
            dir,
            hierarchies,
            cgroup,
            pause,
            listener,
            signals,
            containers: BTreeMap::new(),
            connections: Vec::new(),
            launches: Vec::new(),
            unclaimed: Vec::new(),
            next_connection: 0,
            stopping: None,
        }
    }

    pub(super) fn serve(mut self) -> Result<()> {
        rustix::io::ioctl_fionbio(&self.listener, true).attempt(|| "make the socket not block")?;
        loop {
            for source in self.poll()? {
                self.handle(source)?;
            }
            for id in self.containers.keys().cloned().collect::<Vec<_>>() {
                self.relieve(&id);
            }
            if self.stopping.is_some() {
                return self.stop();
            }
        }
    }

    /// Waits for something to do.
    fn poll(&self) -> Result<Vec<Source>> {
        let mut sources = vec![Source::Listener, Source::Signals];
        let mut fds = vec![
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        for connection in &self.connections {
            sources.push(Source::Connection(connection.id));
            fds.push(PollFd::new(&connection.socket, PollFlags::IN));
        }
        for launch in &self.launches {
            sources.push(Source::Launch(launch.connection));
            fds.push(PollFd::new(&launch.socket, PollFlags::IN));
        }
        for (id, container) in &self.containers {
            for (stream, fd) in container.readable() {
                sources.push(Source::Output(id.clone(), stream));
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            }
            for fd in container.writable() {
                sources.push(Source::Writable);
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::OUT));
            }
        }
        let deadline = self.containers.values().filter_map(Container::deadline).min();
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
        });
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            other => other.attempt(|| "wait for something to do")?,
        };
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(sources.into_iter().zip(ready).filter_map(|(source, ready)| ready.then_some(source)).collect())
    }

    fn handle(&mut self, source: Source) -> Result<()> {
        match source {
            Source::Listener => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                if let Ok((socket, _)) = acceptfrom_with(&self.listener, flags) {
                    let id = ConnectionId(self.next_connection);
                    self.next_connection += 1;
                    self.connections.push(Connection::new(id, socket));
                }
            }
            Source::Signals => {
                while let Ok(Some(signal)) = self.signals.read_signal() {
                    if signal.ssi_signo != Signal::CHILD.as_raw().unsigned_abs() {
                        self.stopping = Some(ConnectionId(u64::MAX));
                    }
                }
                self.reap();
            }
            Source::Connection(id) => self.converse(id),
            Source::Launch(connection) => self.launched(connection),
            Source::Output(id, stream) => {
                if let Some(container) = self.containers.get_mut(&id) {
                    container.read(stream);
                }
            }
            // Listeners are relieved after every turn.
            Source::Writable => {}
        }
        Ok(())
    }

    fn relieve(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let done = container.relieve(Instant::now());
        let reply = match &container.exit {
            Some(exit) => Reply::ExecEnded { code: exit.code, signal: exit.signal },
            None => Reply::Failed { reason: "the output was not read for too long".to_owned() },
        };
        for connection in done {
            self.reply(connection, &reply, &[]);
            self.drop_connection(connection);
        }
    }

    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.id == id)
    }

    fn drop_connection(&mut self, id: ConnectionId) {
        self.connections.retain(|connection| connection.id != id);
    }

    fn reply(&mut self, id: ConnectionId, reply: &Reply, fds: &[BorrowedFd<'_>]) {
        let sent = self.connection(id).is_some_and(|connection| connection.reply(reply, fds).is_ok());
        if !sent {
            self.drop_connection(id);
        }
    }

    /// Something arrived on a connection, or it has ended.
    fn converse(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection(id) else {
            return;
        };
        match connection.receive() {
            Ok(Received::Nothing) => {}
            Ok(Received::Request(request)) => match self.answer(id, request) {
                Ok(Some(reply)) => self.reply(id, &reply, &[]),
                Ok(None) => {}
                Err(reason) => self.reply(id, &Reply::Failed { reason }, &[]),
            },
            Ok(Received::End) | Err(_) => match &connection.purpose {
                Purpose::Exec { pid } => {
                    let pid = *pid;
                    self.drop_connection(id);
                    kill(pid, Signal::KILL);
                }
                Purpose::Attached { container } => {
                    let container = container.clone();
                    self.drop_connection(id);
                    if let Some(container) = self.containers.get_mut(&container) {
                        container.detach(id);
                    }
                }
                Purpose::Unknown | Purpose::Launching | Purpose::Watching => self.drop_connection(id),
            },
        }
    }

    /// The answer, if it can be given at once.
    fn answer(&mut self, id: ConnectionId, request: Request) -> std::result::Result<Option<Reply>, String> {
        match request {
            Request::Hello => Ok(Some(Reply::Done)),
            Request::Watch => {
                if let Some(connection) = self.connection(id) {
                    connection.purpose = Purpose::Watching;
                }
                // Ends before this moment are on disk; the watcher reads them after this answer.
                Ok(Some(Reply::Done))
            }
            Request::Start { container } => self.start(id, container).map(|()| None),
            Request::Signal { container, signal, reach } => {
                self.signal(&container, signal, reach)?;
                Ok(Some(Reply::Done))
            }
            Request::Exec { container, spec } => self.exec(id, container, spec).map(|()| None),
            Request::Attach { container } => self.attach(id, &container).map(|()| None),
            Request::Forget { container } => match self.containers.get(&container) {
                Some(known) if known.process.is_some() => Err(format!("container {container} is running")),
                _ => {
                    self.containers.remove(&container);
                    Ok(Some(Reply::Done))
                }
            },
            Request::Shutdown => {
                self.stopping = Some(id);
                Ok(None)
            }
        }
    }

    fn start(&mut self, id: ConnectionId, container: ContainerId) -> std::result::Result<(), String> {
        let starting = self.launches.iter().any(|launch| match &launch.purpose {
            LaunchPurpose::Start(other) => other.id == container,
            LaunchPurpose::Exec => false,
        });
        if starting || self.containers.contains_key(&container) {
            return Err(format!("container {container} has been started already"));
        }
        let dir = self.dir.container(&container);
        let spec: ContainerSpec = read_json(&dir.spec())
            .map_err(|error| crate::error::chain(&error))?
            .ok_or_else(|| format!("container {container} does not exist"))?;
        let (prepared, TheirEnds(fds)) =
            Container::prepare(container.clone(), dir, spec).map_err(|error| error.to_string())?;
        self.launch(id, container, None, &fds, LaunchPurpose::Start(Box::new(prepared)))
    }

    fn exec(&mut self, id: ConnectionId, container: ContainerId, spec: ExecSpec) -> std::result::Result<(), String> {
        let known = self.running(&container)?;
        let uid = spec.user.as_ref().unwrap_or(&known.spec.user).uid;
        let mut fds = Vec::new();
        if let Some(connection) = self.connection(id) {
            fds.extend(std::iter::from_fn(|| connection.inbox.take_fd()));
        }
        for fd in &fds {
            give_to_user(fd, uid).map_err(|error| format!("cannot give a pipe to user {uid}: {error}"))?;
        }
        self.launch(id, container, Some(spec), &fds, LaunchPurpose::Exec)
    }

    fn launch(
        &mut self,
        id: ConnectionId,
        container: ContainerId,
        exec: Option<ExecSpec>,
        fds: &[OwnedFd],
        purpose: LaunchPurpose,
    ) -> std::result::Result<(), String> {
        let launch = Launch {
            pod_dir: self.dir.path().to_owned(),
            cgroup: self.cgroup.join(container.as_str()),
            container,
            pid_namespace_of: self.pause,
            exec,
        };
        let spawn = || -> io::Result<UnixStream> {
            let (ours, theirs) = UnixStream::pair()?;
            Command::new(SELF)
                .arg(LAUNCHER)
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::null())
                .spawn()?;
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            wire::send(&ours, &launch, &fds)?;
            ours.set_nonblocking(true)?;
            Ok(ours)
        };
        let socket = spawn().map_err(|error| format!("cannot run a launcher: {error}"))?;
        if let Some(connection) = self.connection(id) {
            connection.purpose = Purpose::Launching;
        }
        self.launches.push(Launching { socket: socket.into(), inbox: Inbox::default(), connection: id, purpose });
        Ok(())
    }

    /// A launcher has answered, or has died.
    fn launched(&mut self, id: ConnectionId) {
        let Some(place) = self.launches.iter().position(|launch| launch.connection == id) else {
            return;
        };
        let launch = &mut self.launches[place];
        let answer = match launch.inbox.receive(&launch.socket) {
            Ok(true) => match launch.inbox.next::<Launched>() {
                Ok(None) => return,
                Ok(Some(answer)) => answer,
                Err(error) => Launched::Failed { reason: format!("its launcher spoke nonsense: {error}") },
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(false) | Err(_) => {
                let reason = "its launcher died; the limits may leave too little memory to start anything, and shim.log \
                              in the pod's directory may say more";
                Launched::Failed { reason: reason.to_owned() }
            }
        };
        let mut launch = self.launches.swap_remove(place);
        match (answer, launch.purpose) {
            (Launched::Failed { reason }, _) => self.reply(id, &Reply::Failed { reason }, &[]),
            (Launched::Running { pid }, LaunchPurpose::Start(mut container)) => {
                let started = container.started(pid, launch.inbox.take_fd());
                let container_id = container.id.clone();
                self.containers.insert(container_id, *container);
                match started {
                    Ok(()) => self.reply(id, &Reply::Started { pid }, &[]),
                    // It runs, but would not be found again: better not at all.
                    Err(error) => {
                        kill(pid, Signal::KILL);
                        self.reply(id, &Reply::Failed { reason: crate::error::chain(&error) }, &[]);
                    }
                }
            }
            (Launched::Running { pid }, LaunchPurpose::Exec) => {
                let terminal = launch.inbox.take_fd();
                let fds: Vec<_> = terminal.iter().map(AsFd::as_fd).collect();
                if let Some(connection) = self.connection(id) {
                    connection.purpose = Purpose::Exec { pid };
                    self.reply(id, &Reply::Started { pid }, &fds);
                } else {
                    kill(pid, Signal::KILL);
                }
            }
        }
        for (pid, end) in std::mem::take(&mut self.unclaimed) {
            self.process_ended(pid, end);
        }
    }

    fn attach(&mut self, id: ConnectionId, container: &ContainerId) -> std::result::Result<(), String> {
        self.running(container)?;
        let Some(connection) = self.connection(id) else {
            return Ok(());
        };
        connection.purpose = Purpose::Attached { container: container.clone() };
        let pipes = [connection.inbox.take_fd(), connection.inbox.take_fd()];
        let Some(known) = self.containers.get_mut(container) else {
            return Ok(());
        };
        let input = known.attach(id, pipes);
        let fds: Vec<_> = input.iter().map(AsFd::as_fd).collect();
        self.reply(id, &Reply::Attached, &fds);
        Ok(())
    }

    fn running(&self, container: &ContainerId) -> std::result::Result<&Container, String> {
        self.containers
            .get(container)
            .filter(|known| known.process.is_some())
            .ok_or_else(|| format!("container {container} is not running"))
    }

    fn signal(&self, container: &ContainerId, signal: i32, reach: Reach) -> std::result::Result<(), String> {
        let known = self.running(container)?;
        let signal = Signal::from_named_raw(signal).ok_or_else(|| format!("there is no signal {signal}"))?;
        match (reach, &known.process) {
            (Reach::First, Some(process)) => kill(process.pid, signal),
            (Reach::First, None) => {}
            (Reach::All, _) => self.hierarchies.group(&self.cgroup.join(container.as_str())).signal(signal),
        }
        Ok(())
    }

    /// Collects every child that has ended, orphans of containers included.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            self.process_ended(pid.as_raw_nonzero().get().unsigned_abs(), End::of(status));
        }
    }

    fn process_ended(&mut self, pid: u32, end: End) {
        let of_container = |container: &Container| container.process.as_ref().is_some_and(|process| process.pid == pid);
        if let Some(id) = self.containers.values().find(|container| of_container(container)).map(|c| c.id.clone()) {
            self.container_ended(&id, end);
            return;
        }
        let of_exec = |connection: &&Connection| matches!(connection.purpose, Purpose::Exec { pid: known } if known == pid);
        if let Some(id) = self.connections.iter().find(of_exec).map(|connection| connection.id) {
            self.reply(id, &Reply::ExecEnded { code: end.code, signal: end.signal }, &[]);
            self.drop_connection(id);
            return;
        }
        if self.pause == Some(pid) {
            // Everything in its namespace has died with it.
            self.stopping = Some(ConnectionId(u64::MAX));
        }
        if !self.launches.is_empty() {
            self.unclaimed.push((pid, end));
        }
    }

    fn container_ended(&mut self, id: &ContainerId, end: End) {
        let group = self.hierarchies.group(&self.cgroup.join(id.as_str()));
        let oom_kills = group.oom_kills();
        // Where processes are shared, others of the container outlive its first one.
        if let Err(error) = group.kill(PATIENCE) {
            let _ = writeln!(io::stderr(), "{} {error}", jiff::Timestamp::now());
        }
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let exit = container.ended(end.code, end.signal, oom_kills);
        let watching = |connection: &&Connection| matches!(connection.purpose, Purpose::Watching);
        let watchers: Vec<_> = self.connections.iter().filter(watching).map(|connection| connection.id).collect();
        let reply = Reply::Exited { container: id.clone(), exit };
        for watcher in watchers {
            self.reply(watcher, &reply, &[]);
        }
        self.relieve(id);
    }

    /// Kills everything, writes down how it ended, and answers who asked.
    fn stop(mut self) -> Result<()> {
        let start = Instant::now();
        let mut killed = self.hierarchies.group(&self.cgroup).kill(PATIENCE);
        // Every descendant becomes a child in the end, launchers and what they had not yet put in a cgroup included.
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.process_ended(pid.as_raw_nonzero().get().unsigned_abs(), End::of(status));
                    continue;
                }
                Ok(None) if start.elapsed() < PATIENCE => {}
                Ok(None) | Err(_) => break,
            }
            for child in children() {
                kill(child, Signal::KILL);
            }
            killed = self.hierarchies.group(&self.cgroup).kill(PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        let reply = match &killed {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Failed { reason: error.to_string() },
        };
        if let Some(id) = self.stopping {
            self.reply(id, &reply, &[]);
        }
        killed
    }
}

/// The children of this process, which has one thread.
fn children() -> Vec<u32> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

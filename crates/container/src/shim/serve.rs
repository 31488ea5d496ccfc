//! The loop of a shim: one thread, one poll.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::sys::{
    signal::SigSet,
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{SocketFlags, acceptfrom_with},
    process::Signal,
};

use super::{
    connection::{Connection, ConnectionId, Purpose, Received},
    container::Container,
    ends::{End, kill},
    trim::forget_code,
};
use crate::{
    ContainerId, LogStream,
    cgroup::Hierarchies,
    error::{Attempt, Result},
    state::PodDir,
    wire::{self, Inbox, Reply, Request},
};

/// After so long without anything to do, a shim makes itself small.
const IDLE: Duration = Duration::from_millis(300);

pub(super) struct Shim {
    pub(super) dir: PodDir,
    pub(super) hierarchies: Hierarchies,
    pub(super) cgroup: PathBuf,
    /// The first process of the pod, where there is one.
    pub(super) pause: Option<u32>,
    listener: OwnedFd,
    signals: SignalFd,
    pub(super) containers: BTreeMap<ContainerId, Container>,
    pub(super) connections: Vec<Connection>,
    pub(super) launches: Vec<Launching>,
    /// Ends of processes that a launcher has not told of yet.
    pub(super) unclaimed: Vec<(u32, End)>,
    next_connection: u64,
    pub(super) stopping: Option<Stop>,
    /// Whether something was done since memory was last given back.
    untrimmed: bool,
}

/// A launcher at work.
pub(super) struct Launching {
    pub(super) socket: OwnedFd,
    pub(super) inbox: Inbox,
    pub(super) connection: ConnectionId,
    pub(super) purpose: LaunchPurpose,
}

/// Why a shim ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stop {
    /// Somebody asked for it, and gets the last answer.
    AskedBy(ConnectionId),
    /// The system wants it, or the first process of the pod is gone.
    Unasked,
}

pub(super) enum LaunchPurpose {
    Start(Box<Container>),
    Exec,
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
    let signals: SigSet = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]
        .into_iter()
        .collect();
    signals.thread_block().attempt(|| "block signals")?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).attempt(|| "watch for signals")
}

/// Tells the first who asks why there is no pod.
pub(super) fn refuse(listener: &OwnedFd, reason: &str) {
    if let Ok(socket) = acceptfrom_with(listener, SocketFlags::CLOEXEC).map(|(socket, _)| socket) {
        let _ = wire::receive::<Request>(&socket, &mut Inbox::default());
        let _ = wire::send(
            &socket,
            &Reply::Failed {
                reason: reason.to_owned(),
            },
            &[],
        );
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
            untrimmed: true,
        }
    }

    pub(super) fn serve(mut self) -> Result<()> {
        rustix::io::ioctl_fionbio(&self.listener, true).attempt(|| "make the socket not block")?;
        loop {
            let ready = self.poll()?;
            if self.untrimmed && ready.is_empty() {
                forget_code();
            }
            self.untrimmed = !ready.is_empty();
            for source in ready {
                self.handle(source);
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
        let idle = self.untrimmed.then(|| Instant::now() + IDLE);
        let deadline = self
            .containers
            .values()
            .filter_map(Container::deadline)
            .chain(idle)
            .min();
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
        });
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            other => other.attempt(|| "wait for something to do")?,
        };
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(sources
            .into_iter()
            .zip(ready)
            .filter_map(|(source, ready)| ready.then_some(source))
            .collect())
    }

    fn handle(&mut self, source: Source) {
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
                        self.stopping = Some(Stop::Unasked);
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
    }

    pub(super) fn relieve(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let done = container.relieve(Instant::now());
        let reply = match &container.exit {
            Some(exit) => Reply::ExecEnded {
                code: exit.code,
                signal: exit.signal,
            },
            None => Reply::Failed {
                reason: "the output was not read for too long".to_owned(),
            },
        };
        for connection in done {
            self.reply(connection, &reply, &[]);
            self.drop_connection(connection);
        }
    }

    pub(super) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.id == id)
    }

    pub(super) fn drop_connection(&mut self, id: ConnectionId) {
        self.connections.retain(|connection| connection.id != id);
    }

    pub(super) fn reply(&mut self, id: ConnectionId, reply: &Reply, fds: &[BorrowedFd<'_>]) {
        let sent = self
            .connection(id)
            .is_some_and(|connection| connection.reply(reply, fds).is_ok());
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
}

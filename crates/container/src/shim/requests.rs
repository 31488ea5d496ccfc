//! What a shim does when it is asked to.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Command, Stdio},
};

use rustix::process::Signal;

use super::{
    LAUNCHER, SELF,
    connection::{ConnectionId, Purpose},
    container::{Container, TheirEnds, give_to_user},
    ends::kill,
    serve::{LaunchPurpose, Launching, Shim, Stop},
};
use crate::{
    ContainerId, ContainerSpec, ExecSpec,
    state::read_json,
    wire::{self, Inbox, Launch, Launched, Reach, Reply, Request},
};

/// An answer, or why there is none, in words for whoever asked.
type Answer<T> = Result<T, String>;

impl Shim {
    /// The answer, if it can be given at once.
    pub(super) fn answer(&mut self, id: ConnectionId, request: Request) -> Answer<Option<Reply>> {
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
            Request::Signal {
                container,
                signal,
                reach,
            } => {
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
                self.stopping = Some(Stop::AskedBy(id));
                Ok(None)
            }
        }
    }

    fn start(&mut self, id: ConnectionId, container: ContainerId) -> Answer<()> {
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

    fn exec(&mut self, id: ConnectionId, container: ContainerId, spec: ExecSpec) -> Answer<()> {
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
    ) -> Answer<()> {
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
        self.launches.push(Launching {
            socket: socket.into(),
            inbox: Inbox::default(),
            connection: id,
            purpose,
        });
        Ok(())
    }

    /// A launcher has answered, or has died.
    pub(super) fn launched(&mut self, id: ConnectionId) {
        let Some(place) = self.launches.iter().position(|launch| launch.connection == id) else {
            return;
        };
        let launch = &mut self.launches[place];
        let answer = match launch.inbox.receive(&launch.socket) {
            Ok(true) => match launch.inbox.next::<Launched>() {
                Ok(None) => return,
                Ok(Some(answer)) => answer,
                Err(error) => Launched::Failed {
                    reason: format!("its launcher spoke nonsense: {error}"),
                },
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(false) | Err(_) => {
                let reason = "its launcher died; the limits may leave too little memory to start anything, and shim.log \
                              in the pod's directory may say more";
                Launched::Failed {
                    reason: reason.to_owned(),
                }
            }
        };
        let mut launch = self.launches.swap_remove(place);
        match (answer, launch.purpose) {
            (Launched::Failed { reason }, _) => self.reply(id, &Reply::Failed { reason }, &[]),
            (Launched::Running { pid }, LaunchPurpose::Start(mut container)) => {
                let started = container.started(pid, launch.inbox.take_fd());
                let container_id = container.id.clone();
                self.containers.insert(container_id.clone(), *container);
                match started {
                    Ok(()) => {
                        self.reply(id, &Reply::Started { pid }, &[]);
                        self.tell_watchers(&Reply::Running {
                            container: container_id,
                        });
                    }
                    // It runs, but would not be found again: better not at all.
                    Err(error) => {
                        kill(pid, Signal::KILL);
                        self.reply(
                            id,
                            &Reply::Failed {
                                reason: crate::error::chain(&error),
                            },
                            &[],
                        );
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

    fn attach(&mut self, id: ConnectionId, container: &ContainerId) -> Answer<()> {
        self.running(container)?;
        let Some(connection) = self.connection(id) else {
            return Ok(());
        };
        connection.purpose = Purpose::Attached {
            container: container.clone(),
        };
        let pipes = [connection.inbox.take_fd(), connection.inbox.take_fd()];
        let Some(known) = self.containers.get_mut(container) else {
            return Ok(());
        };
        let input = known.attach(id, pipes);
        let fds: Vec<_> = input.iter().map(AsFd::as_fd).collect();
        self.reply(id, &Reply::Attached, &fds);
        Ok(())
    }

    fn running(&self, container: &ContainerId) -> Answer<&Container> {
        self.containers
            .get(container)
            .filter(|known| known.process.is_some())
            .ok_or_else(|| format!("container {container} is not running"))
    }

    fn signal(&self, container: &ContainerId, signal: i32, reach: Reach) -> Answer<()> {
        let known = self.running(container)?;
        let signal = Signal::from_named_raw(signal).ok_or_else(|| format!("there is no signal {signal}"))?;
        match (reach, &known.process) {
            (Reach::First, Some(process)) => kill(process.pid, signal),
            (Reach::First, None) => {}
            (Reach::All, _) => self
                .hierarchies
                .group(&self.cgroup.join(container.as_str()))
                .signal(signal),
        }
        Ok(())
    }
}

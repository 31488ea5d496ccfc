//! A container as its shim knows it: a process, its streams, its log, and who listens.

use std::{
    collections::VecDeque,
    fs,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant, SystemTime},
};

use rustix::{fs::Uid, pipe::PipeFlags};

use super::connection::ConnectionId;
use crate::{
    ContainerId, ContainerSpec, Exit, LogStream, StdinPolicy,
    log::LogWriter,
    state::{ContainerDir, Running, write_json},
};

/// How long somebody who is attached may hold up a container by not reading.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much output is taken at once.
const CHUNK: usize = 16 * 1024;

pub(super) struct Container {
    pub(super) id: ContainerId,
    pub(super) dir: ContainerDir,
    pub(super) spec: Box<ContainerSpec>,
    pub(super) process: Option<Running>,
    /// Where its output comes from: two pipes, or the terminal and nothing.
    output: [Option<OwnedFd>; 2],
    /// Where its input goes.
    input: Option<OwnedFd>,
    log: Option<LogWriter>,
    listeners: Vec<Listener>,
    /// How it ended.
    pub(super) exit: Option<Exit>,
}

/// Somebody who is attached.
struct Listener {
    connection: ConnectionId,
    /// Where output and error go.
    pipes: [Option<OwnedFd>; 2],
    /// What did not fit; while there is any, nothing more is read from the container.
    waiting: VecDeque<(LogStream, Vec<u8>)>,
    /// When it last took something.
    since: Instant,
}

/// The ends of the streams that the container gets: none of them with a terminal.
pub(super) struct TheirEnds(pub(super) Vec<OwnedFd>);

impl Container {
    /// Makes its streams and opens its log.
    pub(super) fn prepare(id: ContainerId, dir: ContainerDir, spec: ContainerSpec) -> io::Result<(Self, TheirEnds)> {
        let log = spec
            .log
            .clone()
            .map(|log| {
                let path = log.path.clone();
                LogWriter::open(log).map_err(|error| {
                    io::Error::new(error.kind(), format!("cannot open the log {}: {error}", path.display()))
                })
            })
            .transpose()?;
        let mut container = Self {
            id,
            dir,
            spec: Box::new(spec),
            process: None,
            output: [None, None],
            input: None,
            log,
            listeners: Vec::new(),
            exit: None,
        };
        let mut theirs = Vec::new();
        if !container.spec.terminal {
            theirs.push(match container.spec.stdin {
                StdinPolicy::Null => fs::File::open("/dev/null")?.into(),
                StdinPolicy::Open | StdinPolicy::OpenOnce => {
                    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                    give_to_user(&reader, container.spec.user.uid)?;
                    rustix::io::ioctl_fionbio(&writer, true)?;
                    container.input = Some(writer);
                    reader
                }
            });
            for output in &mut container.output {
                let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                give_to_user(&writer, container.spec.user.uid)?;
                rustix::io::ioctl_fionbio(&reader, true)?;
                *output = Some(reader);
                theirs.push(writer);
            }
        }
        Ok((container, TheirEnds(theirs)))
    }

    /// It runs, on `terminal` if it was to have one.
    pub(super) fn started(&mut self, pid: u32, terminal: Option<OwnedFd>) -> crate::Result<()> {
        let running = Running {
            pid,
            started_at: jiff::Timestamp::now(),
        };
        write_json(&self.dir.running(), &running)?;
        self.process = Some(running);
        if let Some(terminal) = terminal {
            // A terminal that blocks would be worse than one that might; it is ours and cannot refuse.
            let _ = rustix::io::ioctl_fionbio(&terminal, true);
            self.input = terminal.try_clone().ok();
            self.output[0] = Some(terminal);
        }
        Ok(())
    }

    /// Which of its streams to poll.
    pub(super) fn readable(&self) -> impl Iterator<Item = (LogStream, BorrowedFd<'_>)> {
        let held_up = self.listeners.iter().any(|listener| !listener.waiting.is_empty());
        [LogStream::Stdout, LogStream::Stderr]
            .into_iter()
            .zip(&self.output)
            .filter(move |_| !held_up)
            .filter_map(|(stream, fd)| Some((stream, fd.as_ref()?.as_fd())))
    }

    /// Which pipes of listeners to poll, because something is waiting for them.
    pub(super) fn writable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().filter_map(|listener| {
            let (stream, _) = listener.waiting.front()?;
            Some(listener.pipes[index(*stream)].as_ref()?.as_fd())
        })
    }

    /// When to give up on a listener that holds it up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let held_up = self.listeners.iter().filter(|listener| !listener.waiting.is_empty());
        held_up.map(|listener| listener.since + PATIENCE).min()
    }

    /// Takes one chunk of what it has written; false if there was none.
    pub(super) fn read(&mut self, stream: LogStream) -> bool {
        let Some(fd) = &self.output[index(stream)] else {
            return false;
        };
        let mut chunk = [0; CHUNK];
        match rustix::io::read(fd, &mut chunk) {
            Ok(length) if length > 0 => {
                let bytes = &chunk[..length];
                if let Some(log) = &mut self.log {
                    // A full disk costs lines of a log, not the container.
                    let _ = log.write(stream, bytes, SystemTime::now());
                }
                for listener in &mut self.listeners {
                    listener.offer(stream, bytes);
                }
                true
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            // Nobody holds the other end any more; a terminal says EIO.
            Ok(_) | Err(_) => {
                self.output[index(stream)] = None;
                false
            }
        }
    }

    /// Lets listeners have what was waiting for them. Returns those that are done: they have not taken anything for too
    /// long, or the container has ended and they have all of it.
    pub(super) fn relieve(&mut self, now: Instant) -> Vec<ConnectionId> {
        let ended = self.exit.is_some();
        let mut done = Vec::new();
        self.listeners.retain_mut(|listener| {
            listener.push();
            let keep = if listener.waiting.is_empty() {
                !ended
            } else {
                now < listener.since + PATIENCE
            };
            if !keep {
                done.push(listener.connection);
            }
            keep
        });
        done
    }

    /// Somebody listens from now on. Returns where to write input, if it takes any.
    pub(super) fn attach(&mut self, connection: ConnectionId, pipes: [Option<OwnedFd>; 2]) -> Option<OwnedFd> {
        for pipe in pipes.iter().flatten() {
            let _ = rustix::io::ioctl_fionbio(pipe, true);
        }
        self.listeners.push(Listener {
            connection,
            pipes,
            waiting: VecDeque::new(),
            since: Instant::now(),
        });
        match self.spec.stdin {
            // Ours is given away: the end of the listener is then the end of the input.
            StdinPolicy::OpenOnce if !self.spec.terminal => self.input.take(),
            StdinPolicy::Null if !self.spec.terminal => None,
            _ => self.input.as_ref().and_then(|fd| fd.try_clone().ok()),
        }
    }

    pub(super) fn detach(&mut self, connection: ConnectionId) {
        self.listeners.retain(|listener| listener.connection != connection);
    }

    /// It has ended: takes the rest of its output, and writes down how it was.
    pub(super) fn ended(&mut self, code: i32, signal: Option<i32>, oom_kills: u64) -> Exit {
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            while self.read(stream) {}
        }
        if let Some(log) = &mut self.log {
            let _ = log.finish(SystemTime::now());
        }
        let finished_at = jiff::Timestamp::now();
        let exit = Exit {
            code,
            signal,
            oom_kills,
            started_at: self.process.as_ref().map_or(finished_at, |process| process.started_at),
            finished_at,
            message: self.message().unwrap_or_default(),
        };
        if let Err(error) = write_json(&self.dir.exit(), &exit) {
            let _ = writeln!(io::stderr(), "{finished_at} {}", crate::error::chain(&error));
        }
        self.process = None;
        self.output = [None, None];
        self.input = None;
        self.log = None;
        self.exit = Some(exit.clone());
        exit
    }

    fn message(&self) -> Option<String> {
        let wanted = self.spec.termination_message.as_ref()?;
        let mut bytes = Vec::new();
        let file = fs::File::open(self.dir.message()).ok()?;
        file.take(wanted.max_bytes).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Listener {
    fn offer(&mut self, stream: LogStream, bytes: &[u8]) {
        if self.waiting.is_empty() {
            self.since = Instant::now();
        }
        self.waiting.push_back((stream, bytes.to_vec()));
        self.push();
    }

    /// Writes as much as there is room for.
    fn push(&mut self) {
        while let Some((stream, bytes)) = self.waiting.front_mut() {
            let pipe = &mut self.pipes[index(*stream)];
            let written = match pipe {
                Some(fd) => match rustix::io::write(&*fd, bytes) {
                    Ok(written) => written,
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(rustix::io::Errno::AGAIN) => return,
                    Err(_) => {
                        *pipe = None;
                        bytes.len()
                    }
                },
                None => bytes.len(),
            };
            self.since = Instant::now();
            bytes.drain(..written);
            if bytes.is_empty() {
                self.waiting.pop_front();
            }
        }
    }
}

fn index(stream: LogStream) -> usize {
    match stream {
        LogStream::Stdout => 0,
        LogStream::Stderr => 1,
    }
}

/// Programs open `/dev/stdout` anew, which for a pipe asks who owns it.
pub(super) fn give_to_user(fd: &OwnedFd, uid: u32) -> io::Result<()> {
    Ok(rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), None)?)
}

//! How a runtime, its shims and their launchers talk: a length, a JSON document, and file descriptors beside them.
//!
//! A shim may be older than the runtime that talks to it: what is here is added to, never changed.
//!
//! One connection is one request. The end of the connection is the end of what was asked for: an exec whose connection
//! closes is killed.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{ContainerId, ExecSpec, Exit};

/// What a runtime asks of a shim.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Whether the pod is set up.
    Hello,
    /// Start a container whose directory is ready.
    Start { container: ContainerId },
    /// Send a signal to its first process, or to all of them.
    Signal {
        container: ContainerId,
        signal: i32,
        reach: Reach,
    },
    /// Run a process in it. Without a terminal, its standard streams come with the request: input if the
    /// specification wants one, output, error.
    Exec { container: ContainerId, spec: ExecSpec },
    /// Send its output to the pipes that come with the request: output, error.
    Attach { container: ContainerId },
    /// Tell of every exit from now on.
    Watch,
    /// It has ended and will be removed.
    Forget { container: ContainerId },
    /// Kill everything and end.
    Shutdown,
}

/// Whom a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reach {
    First,
    All,
}

/// What a shim answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    /// It runs. An exec with a terminal is followed by the terminal's file descriptor.
    Started {
        pid: u32,
    },
    /// Attached; followed by a file descriptor for input where there is one.
    Attached,
    /// The exec that was asked for has ended.
    ExecEnded {
        code: i32,
        signal: Option<i32>,
    },
    /// A container runs.
    Running {
        container: ContainerId,
    },
    /// A container has ended.
    Exited {
        container: ContainerId,
        exit: Exit,
    },
    Failed {
        reason: String,
    },
}

/// What a shim asks of a launcher. Standard streams come with it, as in [`Request::Exec`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) pod_dir: PathBuf,
    pub(crate) cgroup: PathBuf,
    pub(crate) container: ContainerId,
    /// The process that holds the pod's process namespace, where it has one.
    pub(crate) pid_namespace_of: Option<u32>,
    /// None starts the container.
    pub(crate) exec: Option<ExecSpec>,
}

/// What a launcher answers. A terminal's file descriptor comes with it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Launched {
    Running { pid: u32 },
    Failed { reason: String },
}

/// A frame longer than this is nonsense: Linux limits arguments and environment to less.
const LONGEST: usize = 8 << 20;

/// The most file descriptors that travel with one frame.
const MOST_FDS: usize = 4;

/// The bytes of a frame.
pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// Sends the beginning of `bytes`, and `fds` with it.
pub(crate) fn send_some(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many file descriptors for one message"));
    }
    Ok(sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?)
}

/// Sends a whole frame over a blocking socket, or, over one that does not block, fails when it is full.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = encode(message)?;
    let mut sent = send_some(&socket, &bytes, fds)?;
    while sent < bytes.len() {
        sent += send_some(&socket, &bytes[sent..], &[])?;
    }
    Ok(())
}

/// What has arrived on a socket and was not yet taken.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
}

impl Inbox {
    /// Reads once; false at the end of the stream.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut chunk)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        self.bytes.extend_from_slice(&chunk[..received.bytes]);
        Ok(received.bytes > 0)
    }

    /// The next frame, if all of it is here.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(head) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > LONGEST {
            return Err(io::Error::other(format!("a message of {length} bytes is too long")));
        }
        let Some(body) = self.bytes.get(4..4 + length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(body)?;
        self.bytes.drain(..4 + length);
        self.bytes.shrink_to(4096);
        Ok(Some(message))
    }

    /// The next file descriptor that came with the frames so far.
    pub(crate) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }
}

/// Waits for one frame on a blocking socket.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd, inbox: &mut Inbox) -> io::Result<T> {
    loop {
        if let Some(message) = inbox.next()? {
            return Ok(message);
        }
        if !inbox.receive(&socket)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn a_frame_arrives_whole_with_its_file_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let container: ContainerId = "c".parse().unwrap();
        send(&ours, &Request::Attach { container }, &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut inbox = Inbox::default();
        let request: Request = receive(&theirs, &mut inbox).unwrap();
        assert!(matches!(request, Request::Attach { container } if container.as_str() == "c"));
        let mut passed = std::fs::File::from(inbox.take_fd().unwrap());
        passed.write_all(b"through").unwrap();
        drop(passed);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn frames_that_arrive_in_pieces_are_put_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bytes = [encode(&Request::Hello).unwrap(), encode(&Request::Watch).unwrap()].concat();
        let mut inbox = Inbox::default();
        for byte in &bytes[..bytes.len() - 1] {
            send_some(&ours, &[*byte], &[]).unwrap();
            inbox.receive(&theirs).unwrap();
        }
        assert!(matches!(inbox.next().unwrap(), Some(Request::Hello)));
        assert!(inbox.next::<Request>().unwrap().is_none());
        send_some(&ours, &bytes[bytes.len() - 1..], &[]).unwrap();
        inbox.receive(&theirs).unwrap();
        assert!(matches!(inbox.next().unwrap(), Some(Request::Watch)));
    }

    #[test]
    fn a_length_that_cannot_be_is_an_error_and_not_an_allocation() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_some(&ours, &u32::MAX.to_le_bytes(), &[]).unwrap();
        assert!(receive::<Request>(&theirs, &mut Inbox::default()).is_err());
    }
}

//! One request of a runtime, as long as it lasts.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use crate::{
    ContainerId,
    wire::{self, Inbox, Reply, Request},
};

/// Names a connection; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionId(pub(super) u64);

/// What a connection is there for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Its request has not arrived. Left by the request.
    Unknown,
    /// A launcher is at work for it. Left by the launcher's answer.
    Launching,
    /// It wants to know of every exit. Left by its end.
    Watching,
    /// It wants to know how this process ends; its end kills the process. Left by either.
    Exec { pid: u32 },
    /// It gets the output of this container. Left by its end or the container's.
    Attached { container: ContainerId },
}

pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) socket: OwnedFd,
    pub(super) inbox: Inbox,
    pub(super) purpose: Purpose,
}

impl Connection {
    pub(super) fn new(id: ConnectionId, socket: OwnedFd) -> Self {
        Self {
            id,
            socket,
            inbox: Inbox::default(),
            purpose: Purpose::Unknown,
        }
    }

    /// What it asks for, once that has arrived.
    pub(super) fn receive(&mut self) -> io::Result<Received> {
        match self.inbox.receive(&self.socket) {
            Ok(true) => Ok(self.inbox.next()?.map_or(Received::Nothing, Received::Request)),
            Ok(false) => Ok(Received::End),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Answers. Answers are small; a peer whose socket is full of them has stopped reading, and is given up.
    pub(super) fn reply(&self, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        wire::send(self.socket.as_fd(), reply, fds)
    }
}

pub(super) enum Received {
    Nothing,
    Request(Request),
    End,
}

//! Talking to a shim.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use tokio::{io::Interest, net::UnixStream, time::timeout};

use crate::{
    error::{Attempt, Error, Result},
    state::PodDir,
    wire::{self, Inbox, Reply, Request},
};

/// One request and its answers.
pub(super) struct Client {
    socket: UnixStream,
    inbox: Inbox,
}

impl Client {
    /// Connects to the shim of a pod.
    pub(super) async fn connect(dir: &PodDir) -> io::Result<Self> {
        let directory = std::fs::File::open(dir.path())?;
        let socket = UnixStream::connect(socket_path(&directory)).await?;
        Ok(Self {
            socket,
            inbox: Inbox::default(),
        })
    }

    pub(super) async fn send(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = wire::encode(request)?;
        let mut sent = 0;
        while sent < bytes.len() {
            let fds = if sent == 0 { fds } else { &[] };
            let socket = &self.socket;
            sent += socket
                .async_io(Interest::WRITABLE, || {
                    wire::send_some(socket.as_fd(), &bytes[sent..], fds)
                })
                .await?;
        }
        Ok(())
    }

    /// The next answer; none when the shim is gone. Cancelling it loses nothing.
    pub(super) async fn receive(&mut self) -> io::Result<Option<Reply>> {
        loop {
            if let Some(reply) = self.inbox.next()? {
                return Ok(Some(reply));
            }
            let (socket, inbox) = (&self.socket, &mut self.inbox);
            match socket
                .async_io(Interest::READABLE, || inbox.receive(socket.as_fd()))
                .await
            {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// A file descriptor that came with the answers so far.
    pub(super) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.inbox.take_fd()
    }
}

/// The name of a socket has at most 107 bytes, that of a pod's directory many more.
pub(super) fn socket_path(directory: &std::fs::File) -> std::path::PathBuf {
    format!("/proc/self/fd/{}/socket", directory.as_raw_fd()).into()
}

/// Asks and waits for the first answer, no longer than `patience`. None means that the shim is gone.
pub(super) async fn ask(
    dir: &PodDir,
    request: &Request,
    fds: &[BorrowedFd<'_>],
    patience: Duration,
    attempted: &str,
) -> Result<Option<(Client, Reply)>> {
    let asking = async {
        let mut client = match Client::connect(dir).await {
            Ok(client) => client,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        match client.send(request, fds).await {
            Err(error) if is_gone(&error) => return Ok(None),
            other => other?,
        }
        let reply = client.receive().await?;
        Ok(reply.map(|reply| (client, reply)))
    };
    let answer = timeout(patience, asking).await.map_err(|_| Error::Deadline {
        attempted: attempted.to_owned(),
        after: patience,
    })?;
    answer.attempt(|| format!("talk to the shim in {}", dir.path().display()))
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(
        error.kind(),
        NotFound | ConnectionRefused | ConnectionReset | BrokenPipe
    )
}

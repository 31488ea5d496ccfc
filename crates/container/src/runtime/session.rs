//! Processes run in containers, and being attached to containers: streams that bypass the shim.

use std::{
    io,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::pipe::PipeFlags;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::unix::pipe,
};

use super::client::Client;
use crate::{
    WindowSize,
    error::{Attempt, Error, Result},
    terminal::set_window,
    wire::Reply,
};

/// A process that runs in a container. Dropping it kills the process.
pub struct ExecSession {
    /// Its input, if it was asked for.
    pub stdin: Option<Input>,
    /// Its output; with a terminal, all of it.
    pub stdout: Option<Output>,
    /// Its errors; none with a terminal.
    pub stderr: Option<Output>,
    /// The terminal, if it was asked for.
    pub terminal: Option<Terminal>,
    /// The process, as the host numbers it.
    pub pid: u32,
    pub(super) client: Client,
}

/// How a process in a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecEnd {
    /// The exit code; 128 and the signal's number when a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl ExecSession {
    /// Waits for its end. Cancelling it loses nothing. Output may still be in the streams.
    pub async fn wait(&mut self) -> Result<ExecEnd> {
        wait(&mut self.client).await
    }
}

/// The streams of a running container. Dropping it detaches.
pub struct Attached {
    /// Its input, if it takes any.
    pub stdin: Option<Input>,
    /// Its output from now on; with a terminal, all of it.
    pub stdout: Option<Output>,
    /// Its errors from now on; nothing with a terminal.
    pub stderr: Option<Output>,
    /// Its terminal, if it has one.
    pub terminal: Option<Terminal>,
    pub(super) client: Client,
}

impl Attached {
    /// Waits for the end of the container. Cancelling it loses nothing. Output may still be in the streams.
    pub async fn wait(&mut self) -> Result<ExecEnd> {
        wait(&mut self.client).await
    }
}

async fn wait(client: &mut Client) -> Result<ExecEnd> {
    let reply = client.receive().await.attempt(|| "wait for the end of a process")?;
    match reply {
        Some(Reply::ExecEnded { code, signal }) => Ok(ExecEnd { code, signal }),
        Some(Reply::Failed { reason }) => Err(io::Error::other(reason)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
    .attempt(|| "learn how a process ended")
}

/// A terminal, to tell it its size.
#[derive(Debug, Clone)]
pub struct Terminal(Arc<OwnedFd>);

impl Terminal {
    /// Tells the processes on it how big it is.
    pub fn resize(&self, size: WindowSize) -> Result<()> {
        set_window(&*self.0, size)
    }
}

/// Reads what a process writes.
#[derive(Debug)]
pub struct Output(pipe::Receiver);

/// Writes what a process reads. Shutting it down, or dropping it, ends the process's input unless it is a terminal.
#[derive(Debug)]
pub struct Input(Option<pipe::Sender>);

/// A terminal as its three handles.
pub(super) fn terminal(fd: OwnedFd) -> Result<(Input, Output, Terminal)> {
    let copy = || fd.try_clone().attempt(|| "copy the handle of a terminal");
    let (input, output) = (existing_input(copy()?)?, existing_output(copy()?)?);
    Ok((input, output, Terminal(Arc::new(fd))))
}

/// A pipe that we read from, and the end that somebody else writes to.
pub(super) fn output() -> Result<(Output, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(|| "make a pipe")?;
    Ok((existing_output(reader)?, writer))
}

/// A pipe that we write to, and the end that somebody else reads from.
pub(super) fn input() -> Result<(Input, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(|| "make a pipe")?;
    Ok((existing_input(writer)?, reader))
}

/// The writing end of something that somebody else has made. Terminals are not pipes, but behave like them.
pub(super) fn existing_input(fd: OwnedFd) -> Result<Input> {
    let sender = rustix::io::ioctl_fionbio(&fd, true)
        .map_err(io::Error::from)
        .and_then(|()| pipe::Sender::from_owned_fd_unchecked(fd));
    Ok(Input(Some(sender.attempt(|| "watch a stream")?)))
}

fn existing_output(fd: OwnedFd) -> Result<Output> {
    let receiver = rustix::io::ioctl_fionbio(&fd, true)
        .map_err(io::Error::from)
        .and_then(|()| pipe::Receiver::from_owned_fd_unchecked(fd));
    Ok(Output(receiver.attempt(|| "watch a stream")?))
}

impl AsyncRead for Output {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.0).poll_read(context, into)) {
            // What a terminal says when nobody is on it any more.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Poll::Ready(Ok(())),
            other => Poll::Ready(other),
        }
    }
}

impl AsyncWrite for Input {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(sender) => Pin::new(sender).poll_write(context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

/// What an answer other than the expected one means.
pub(super) fn unexpected(reply: Reply) -> String {
    match reply {
        Reply::Failed { reason } => reason,
        other => format!("it answered {other:?}"),
    }
}

/// An error for a field of a specification.
pub(super) fn invalid(field: &str, reason: &str) -> Error {
    Error::Invalid {
        field: field.to_owned(),
        reason: reason.to_owned(),
    }
}

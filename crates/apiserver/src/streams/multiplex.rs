//! Several byte streams over one connection, whatever the protocol that carries them.
//!
//! A reader takes the connection apart into [`Input`]s, a writer puts [`Output`]s together into it. Between them and
//! those who use them are short queues: who does not read holds up whoever writes, and memory stays bounded.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// The most bytes that travel in one piece.
pub(super) const PIECE: usize = 32 << 10;

/// Pieces that may wait in a queue.
pub(super) const QUEUE: usize = 4;

/// How long a connection may carry nothing, as with a kubelet.
const IDLE: Duration = Duration::from_hours(4);

/// Bytes that come from the client; it ends when the client has ended it.
pub(super) type Input = mpsc::Receiver<Bytes>;

/// Something for the client.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Bytes of a stream.
    Data(u32, Bytes),
    /// A stream has come to its end.
    End(u32),
    /// A stream is broken off.
    Reset(u32),
    /// A stream that the client has opened is welcome; in SPDY alone, as is all that follows.
    Reply(u32),
    /// A stream that the client has opened is not welcome, for the reason of that number.
    Refuse(u32, u32),
    /// The client asked whether anybody is there.
    Pong(u32),
    /// So many bytes of a stream were read.
    Window(u32, u32),
    /// There is nothing more to say.
    Goodbye,
}

/// A stream to the client.
#[derive(Clone, Debug)]
pub(super) struct Output {
    stream: u32,
    queue: mpsc::Sender<Outgoing>,
}

/// The client is not there any more.
#[derive(Debug)]
pub(super) struct Gone;

impl Output {
    /// A stream of that number, over whatever reads the queue.
    pub(super) fn new(stream: u32, queue: &mpsc::Sender<Outgoing>) -> Self {
        Self {
            stream,
            queue: queue.clone(),
        }
    }

    /// Sends bytes, as soon as there is room for them.
    pub(super) async fn send(&self, bytes: Bytes) -> Result<(), Gone> {
        let sent = self.queue.send(Outgoing::Data(self.stream, bytes)).await;
        sent.map_err(|_| Gone)
    }

    /// Ends the stream.
    pub(super) async fn end(self) {
        let _ = self.queue.send(Outgoing::End(self.stream)).await;
    }

    /// Breaks the stream off.
    pub(super) async fn reset(self) {
        let _ = self.queue.send(Outgoing::Reset(self.stream)).await;
    }

    /// Sends all that a reader has to say. Stops when `enough` does, which is asked anew after every piece.
    pub(super) async fn send_all<R, F>(&self, mut reader: R, enough: impl Fn() -> F) -> Result<(), Gone>
    where
        R: AsyncRead + Unpin,
        F: Future<Output = ()>,
    {
        let mut buffer = BytesMut::with_capacity(PIECE);
        loop {
            buffer.reserve(PIECE);
            let read = tokio::select! {
                read = reader.read_buf(&mut buffer) => read,
                () = enough() => return Ok(()),
            };
            // A terminal whose process has ended fails to be read; that is its end.
            if read.unwrap_or_default() == 0 {
                return Ok(());
            }
            self.send(buffer.split().freeze()).await?;
        }
    }
}

/// Writes all that comes from the client, and then ends. What comes after the writer has failed is dropped.
pub(super) async fn write_all(mut input: Input, mut writer: impl AsyncWrite + Unpin) {
    while let Some(bytes) = input.recv().await {
        let written = async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
    let _ = writer.shutdown().await;
}

/// Copies bytes until there are no more.
pub(super) async fn copy(mut reader: impl AsyncRead + Unpin, mut writer: impl AsyncWrite + Unpin, pulse: &Pulse) {
    let mut buffer = vec![0; PIECE];
    while let Ok(read @ 1..) = reader.read(&mut buffer).await {
        pulse.beat();
        if writer.write_all(&buffer[..read]).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}

/// When a connection last carried anything.
#[derive(Clone, Debug)]
pub(super) struct Pulse(Arc<Mutex<Instant>>);

impl Pulse {
    /// Beats now.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Something was carried.
    pub(super) fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until nothing has been carried for too long.
    pub(super) async fn stopped(&self) {
        loop {
            let deadline = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + IDLE;
            if Instant::now() >= deadline {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        pin::Pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Poll},
    };

    use tokio::io::ReadBuf;

    use super::*;

    /// Has always more to say, and counts how much was taken.
    struct Endless(Arc<AtomicUsize>);

    impl AsyncRead for Endless {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let length = buffer.remaining();
            buffer.put_slice(&vec![b'x'; length]);
            self.0.fetch_add(length, Ordering::Relaxed);
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_holds_up_what_it_reads_from() {
        let (queue, mut outgoing) = mpsc::channel(QUEUE);
        let taken = Arc::new(AtomicUsize::new(0));
        let (output, endless) = (Output::new(1, &queue), Endless(Arc::clone(&taken)));
        let sending = tokio::spawn(async move { output.send_all(endless, std::future::pending).await });
        while queue.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let before = taken.load(Ordering::Relaxed);
        assert!(before <= (QUEUE + 2) * 2 * PIECE, "{before}");
        // Whoever reads again gets more.
        for _ in 0..=QUEUE {
            assert!(matches!(outgoing.recv().await, Some(Outgoing::Data(1, _))));
        }
        drop(outgoing);
        assert!(sending.await.unwrap().is_err());
        assert!(taken.load(Ordering::Relaxed) > before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pulse_stops_hours_after_its_last_beat() {
        let pulse = Pulse::new();
        let begun = Instant::now();
        let beating = {
            let pulse = pulse.clone();
            async move {
                sleep_until(begun + IDLE / 2).await;
                pulse.beat();
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = beating => {}
            () = pulse.stopped() => {}
        }
        assert_eq!(begun.elapsed(), IDLE / 2 + IDLE);
    }
}

//! SPDY/3.1, as far as Kubernetes' clients speak it: streams that the client opens.
//!
//! Clients (all of them Go's spdystream) neither grant nor expect windows: a reader that does not keep up is felt
//! through the connection. So nothing here waits for a window, and windows are granted for what was read, for clients
//! that go by the book.

mod headers;

use std::{collections::HashMap, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
pub(super) use headers::Headers;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    GOODBYE,
    multiplex::{Input, Outgoing, Output, PIECE, Pulse, QUEUE},
    upgrade::Stop,
};
use headers::{Inflater, empty_block};

/// How long a client may take to open the streams that belong together.
pub(super) const OPENING: Duration = Duration::from_secs(30);

/// Streams that a client may have open at once.
const STREAM_LIMIT: usize = 1024;

/// The most bytes of a control frame.
const CONTROL_LIMIT: usize = 64 << 10;

/// Bytes of a stream after which its window is opened again.
const WINDOW_STEP: u32 = 32 << 10;

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;
const FIN: u8 = 1;

/// Why a stream is reset.
const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 3;
const CANCEL: u32 = 5;

/// A stream that the client has opened. It is forgotten once this is dropped.
pub(super) struct Opened {
    pub(super) id: u32,
    pub(super) headers: Headers,
    pub(super) input: Input,
    pub(super) output: Output,
    /// Ready when the client has broken the stream off.
    pub(super) broken: oneshot::Receiver<()>,
}

/// Carries streams until `work`, which is given them as they are opened, is done and what it said is sent, the client
/// leaves, or the server stops.
pub(super) async fn carry<F>(
    reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    mut stop: Stop,
    work: impl FnOnce(mpsc::Receiver<Opened>) -> F,
) where
    F: Future<Output = ()>,
{
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let (opened, streams) = mpsc::channel(1);
    let pulse = Pulse::new();
    let mut reading = std::pin::pin!(read(BufReader::new(reader), queue.clone(), opened, &pulse));
    let working = async {
        work(streams).await;
        let _ = queue.send(Outgoing::Goodbye).await;
    };
    let mut write = Writer {
        first_reply: true,
        pulse: &pulse,
    };
    let sent = tokio::select! {
        ((), sent) = async { tokio::join!(working, write.all(&mut writer, outgoing)) } => sent,
        () = &mut reading => return,
        () = stop.wait_longer() => Ok(()),
        () = pulse.stopped() => Ok(()),
    };
    if sent.is_err() {
        return;
    }
    let _ = timeout(GOODBYE, async {
        let goodbye = control(GOAWAY, &[0; 8]);
        if writer.write_all(&goodbye).await.is_ok() && writer.flush().await.is_ok() {
            reading.await;
        }
        let _ = writer.shutdown().await;
    })
    .await;
}

/// A stream as the reader knows it.
struct Known {
    input: Option<mpsc::Sender<Bytes>>,
    broken: oneshot::Sender<()>,
    /// Bytes that were read since the window was last opened.
    unacknowledged: u32,
}

/// Takes frames apart until the client leaves or breaks the protocol.
async fn read(
    mut reader: impl AsyncRead + Unpin,
    queue: mpsc::Sender<Outgoing>,
    opened: mpsc::Sender<Opened>,
    pulse: &Pulse,
) {
    let mut inflater = Inflater::new();
    let mut streams: HashMap<u32, Known> = HashMap::new();
    let mut last = 0;
    loop {
        let (Ok(first), Ok(second)) = (reader.read_u32().await, reader.read_u32().await) else {
            return;
        };
        pulse.beat();
        let [flags, ..] = second.to_be_bytes();
        let length = usize::try_from(second & 0x00ff_ffff).expect("24 bits");
        if first >> 31 == 0 {
            if data(&mut reader, &queue, &mut streams, first, length).await.is_err() {
                return;
            }
            if flags & FIN != 0
                && let Some(stream) = streams.get_mut(&first)
            {
                stream.input = None;
            }
            continue;
        }
        let (version, kind) = ((first >> 16) & 0x7fff, first & 0xffff);
        if version != u32::from(VERSION) || length > CONTROL_LIMIT {
            return;
        }
        let mut payload = vec![0; length];
        if reader.read_exact(&mut payload).await.is_err() {
            return;
        }
        let mut payload = &payload[..];
        let Ok(kind) = u16::try_from(kind) else { return };
        match kind {
            SYN_STREAM if length >= 10 => {
                let id = payload.get_u32() & 0x7fff_ffff;
                payload.advance(6);
                let Ok(headers) = inflater.read(payload) else { return };
                streams.retain(|_, stream| !stream.broken.is_closed());
                let answer = if id % 2 == 0 || id <= last {
                    Outgoing::Refuse(id, PROTOCOL_ERROR)
                } else if streams.len() >= STREAM_LIMIT {
                    Outgoing::Refuse(id, REFUSED_STREAM)
                } else {
                    Outgoing::Reply(id)
                };
                let accepted = matches!(answer, Outgoing::Reply(_));
                last = last.max(id);
                if queue.send(answer).await.is_err() {
                    return;
                }
                if !accepted {
                    continue;
                }
                let (sender, input) = mpsc::channel(QUEUE);
                let (broken, breaks) = oneshot::channel();
                let known = Known {
                    input: (flags & FIN == 0).then_some(sender),
                    broken,
                    unacknowledged: 0,
                };
                streams.insert(id, known);
                let stream = Opened {
                    id,
                    headers,
                    input,
                    output: Output::new(id, &queue),
                    broken: breaks,
                };
                // Nobody wants it: it is forgotten with the next one.
                let _ = opened.send(stream).await;
            }
            RST_STREAM if length == 8 => {
                if let Some(stream) = streams.remove(&(payload.get_u32() & 0x7fff_ffff)) {
                    let _ = stream.broken.send(());
                }
            }
            // Both carry headers that the inflater must have seen, and that mean nothing here.
            SYN_REPLY | HEADERS if length >= 4 => {
                let id = payload.get_u32() & 0x7fff_ffff;
                if inflater.read(payload).is_err() {
                    return;
                }
                if flags & FIN != 0
                    && let Some(stream) = streams.get_mut(&id)
                {
                    stream.input = None;
                }
            }
            // Even numbers would be answers to questions of ours.
            PING if length == 4 => {
                let id = payload.get_u32();
                if id % 2 == 1 {
                    let _ = queue.try_send(Outgoing::Pong(id));
                }
            }
            GOAWAY | SYN_STREAM | RST_STREAM | SYN_REPLY | HEADERS | PING => return,
            _ => {}
        }
    }
}

/// Hands the bytes of a data frame on, piece by piece.
async fn data(
    reader: &mut (impl AsyncRead + Unpin),
    queue: &mpsc::Sender<Outgoing>,
    streams: &mut HashMap<u32, Known>,
    id: u32,
    mut left: usize,
) -> std::io::Result<()> {
    while left > 0 {
        let mut piece = BytesMut::zeroed(left.min(PIECE));
        reader.read_exact(&mut piece).await?;
        left -= piece.len();
        let length = u32::try_from(piece.len()).expect("pieces are short");
        let Some(stream) = streams.get_mut(&id) else { continue };
        if let Some(input) = &stream.input
            && input.send(piece.freeze()).await.is_err()
        {
            // Nobody reads it any more; what still comes is dropped.
            stream.input = None;
        }
        stream.unacknowledged += length;
        if stream.unacknowledged >= WINDOW_STEP {
            let step = std::mem::take(&mut stream.unacknowledged);
            // When there is no room for this, it is made up for by the next one, or not needed at all.
            let _ = queue.try_send(Outgoing::Window(id, step));
        }
    }
    Ok(())
}

struct Writer<'p> {
    first_reply: bool,
    pulse: &'p Pulse,
}

impl Writer<'_> {
    /// Puts frames together until the work is done.
    async fn all(
        &mut self,
        writer: &mut (impl AsyncWrite + Unpin),
        mut outgoing: mpsc::Receiver<Outgoing>,
    ) -> std::io::Result<()> {
        while let Some(piece) = outgoing.recv().await {
            let frame = match piece {
                Outgoing::Data(id, bytes) => {
                    let mut head = BytesMut::with_capacity(8 + bytes.len());
                    head.put_u32(id);
                    head.put_u32(u32::try_from(bytes.len()).expect("pieces are short"));
                    head.put(bytes);
                    head
                }
                Outgoing::End(id) => {
                    let mut head = BytesMut::with_capacity(8);
                    head.put_u32(id);
                    head.put_u32(u32::from(FIN) << 24);
                    head
                }
                Outgoing::Reply(id) => {
                    let block = empty_block(std::mem::take(&mut self.first_reply));
                    control(SYN_REPLY, &[&id.to_be_bytes(), block].concat())
                }
                Outgoing::Reset(id) => control(RST_STREAM, &pair(id, CANCEL)),
                Outgoing::Refuse(id, why) => control(RST_STREAM, &pair(id, why)),
                Outgoing::Pong(id) => control(PING, &id.to_be_bytes()),
                Outgoing::Window(id, step) => {
                    let mut both = control(WINDOW_UPDATE, &pair(id, step));
                    // The connection has a window of its own.
                    both.put(control(WINDOW_UPDATE, &pair(0, step)));
                    both
                }
                Outgoing::Goodbye => return Ok(()),
            };
            writer.write_all(&frame).await?;
            writer.flush().await?;
            self.pulse.beat();
        }
        Ok(())
    }
}

fn control(kind: u16, payload: &[u8]) -> BytesMut {
    let mut frame = BytesMut::with_capacity(8 + payload.len());
    frame.put_u16(0x8000 | VERSION);
    frame.put_u16(kind);
    frame.put_u32(u32::try_from(payload.len()).expect("control frames are short"));
    frame.put(payload);
    frame
}

fn pair(first: u32, second: u32) -> [u8; 8] {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first.to_be_bytes());
    both[4..].copy_from_slice(&second.to_be_bytes());
    both
}

#[cfg(test)]
mod tests;

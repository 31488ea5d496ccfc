//! Channels over WebSocket: every message begins with the number of its channel.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::{
    GOODBYE,
    multiplex::{Outgoing, Pulse},
    upgrade::Stop,
};

/// The most bytes that a client may send in one message.
const MESSAGE_LIMIT: usize = 1 << 20;

/// The channel on which version 5 says that another one has ended.
const CLOSE_CHANNEL: u8 = 255;

/// How bytes are put into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    /// As they are, after the channel as a byte.
    Binary,
    /// In base64, after the channel as a digit: for clients that can send nothing but text.
    Base64,
}

/// What a connection carries.
pub(super) struct Channels {
    /// Where the messages of each channel go; nowhere for channels that are not read.
    pub(super) inputs: Vec<Option<mpsc::Sender<Bytes>>>,
    /// How bytes are put into messages.
    pub(super) codec: Codec,
    /// Whether the client can end a single channel.
    pub(super) can_close: bool,
}

/// The answer to a challenge, as RFC 6455 has it.
pub(super) fn accept_key(key: &[u8]) -> String {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let mut context = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(GUID);
    STANDARD.encode(context.finish())
}

/// A server's end of WebSocket over a connection.
pub(super) async fn over<IO: AsyncRead + AsyncWrite + Unpin>(io: IO) -> WebSocketStream<IO> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_LIMIT))
        .max_frame_size(Some(MESSAGE_LIMIT))
        // What is written goes out at once: it is an answer to somebody's key stroke, or large.
        .write_buffer_size(0)
        .max_write_buffer_size(2 * MESSAGE_LIMIT);
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// Carries channels until `work` is done and what it said is sent, the client leaves, or the server stops.
pub(super) async fn carry<IO>(
    io: IO,
    channels: Channels,
    outgoing: mpsc::Receiver<Outgoing>,
    mut stop: Stop,
    work: impl Future<Output = ()>,
) where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let codec = channels.codec;
    let (mut sink, stream) = over(io).await.split();
    let pulse = Pulse::new();
    let mut reading = std::pin::pin!(read(stream, channels, pulse.clone()));
    let done = tokio::select! {
        ((), sent) = async { tokio::join!(work, write(&mut sink, codec, outgoing, &pulse)) } => sent.map(|()| CloseCode::Normal),
        () = &mut reading => return,
        () = stop.wait_longer() => Ok(CloseCode::Away),
        () = pulse.stopped() => Ok(CloseCode::Policy),
    };
    let Ok(code) = done else { return };
    let _ = timeout(GOODBYE, async {
        close(&mut sink, code).await;
        reading.await;
    })
    .await;
}

/// Says goodbye.
pub(super) async fn close(sink: &mut (impl Sink<Message, Error = Error> + Unpin), code: CloseCode) {
    let reason = match code {
        CloseCode::Away => "the server is stopping",
        CloseCode::Policy => "nothing was said for too long",
        _ => "",
    };
    let frame = CloseFrame {
        code,
        reason: reason.into(),
    };
    let _ = sink.send(Message::Close(Some(frame))).await;
}

/// Takes messages apart until the client leaves or breaks the protocol.
async fn read(mut stream: impl Stream<Item = Result<Message, Error>> + Unpin, channels: Channels, pulse: Pulse) {
    let Channels {
        mut inputs,
        codec,
        can_close,
    } = channels;
    while let Some(Ok(message)) = stream.next().await {
        pulse.beat();
        let message = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => return,
            _ => continue,
        };
        let Some(&channel) = message.first() else { continue };
        let payload = message.slice(1..);
        if can_close && channel == CLOSE_CHANNEL {
            let [closed] = payload[..] else { return };
            let Some(input) = inputs.get_mut(usize::from(closed)) else {
                return;
            };
            *input = None;
            continue;
        }
        let channel = match codec {
            Codec::Binary => channel,
            Codec::Base64 => channel.wrapping_sub(b'0'),
        };
        let Some(input) = inputs.get_mut(usize::from(channel)) else {
            continue;
        };
        let Some(sender) = input else { continue };
        let payload = match codec {
            Codec::Binary => payload,
            Codec::Base64 => match STANDARD.decode(&payload) {
                Ok(bytes) => bytes.into(),
                Err(_) => continue,
            },
        };
        if !payload.is_empty() && sender.send(payload).await.is_err() {
            // Nobody reads it any more; what still comes is dropped.
            *input = None;
        }
    }
}

/// Puts messages together until everyone who could have something to say is gone.
async fn write(
    sink: &mut (impl Sink<Message, Error = Error> + Unpin),
    codec: Codec,
    mut outgoing: mpsc::Receiver<Outgoing>,
    pulse: &Pulse,
) -> Result<(), Error> {
    while let Some(piece) = outgoing.recv().await {
        // A channel has no end of its own towards the client: the connection has.
        let Outgoing::Data(channel, bytes) = piece else {
            continue;
        };
        let channel = u8::try_from(channel).expect("channels are numbered from 0 to 254");
        let message = match codec {
            Codec::Binary => {
                let mut message = BytesMut::with_capacity(1 + bytes.len());
                message.put_u8(channel);
                message.put(bytes);
                Message::Binary(message.freeze())
            }
            Codec::Base64 => {
                let mut message = String::from(char::from(b'0' + channel));
                STANDARD.encode_string(&bytes, &mut message);
                Message::Text(message.into())
            }
        };
        sink.send(message).await?;
        pulse.beat();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::streams::multiplex::Output;

    async fn client(io: DuplexStream) -> WebSocketStream<DuplexStream> {
        WebSocketStream::from_raw_socket(io, Role::Client, None).await
    }

    /// A server that sends back on channel 1 what comes on channel 0, and says so on channel 3 when that has ended.
    async fn echo(codec: Codec, can_close: bool) -> WebSocketStream<DuplexStream> {
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(async move {
            let (queue, outgoing) = mpsc::channel(4);
            let (sender, mut input) = mpsc::channel::<Bytes>(4);
            let channels = Channels {
                inputs: vec![Some(sender), None],
                codec,
                can_close,
            };
            let (echo, ended) = (Output::new(1, &queue), Output::new(3, &queue));
            drop(queue);
            let work = async move {
                while let Some(bytes) = input.recv().await {
                    echo.send(bytes).await.unwrap();
                }
                ended.send("ended".into()).await.unwrap();
            };
            carry(theirs, channels, outgoing, Stop::never(), work).await;
        });
        client(ours).await
    }

    #[tokio::test]
    async fn a_channel_can_be_ended_by_itself() {
        let mut client = echo(Codec::Binary, true).await;
        client.send(Message::binary(&b"\0hello"[..])).await.unwrap();
        assert_eq!(
            client.next().await.unwrap().unwrap(),
            Message::binary(&b"\x01hello"[..])
        );
        client.send(Message::binary(&[255, 0][..])).await.unwrap();
        assert_eq!(
            client.next().await.unwrap().unwrap(),
            Message::binary(&b"\x03ended"[..])
        );
        assert!(client.next().await.unwrap().unwrap().is_close());
    }

    #[tokio::test]
    async fn bytes_travel_as_text_for_those_who_can_send_nothing_else() {
        let mut client = echo(Codec::Base64, false).await;
        client.send(Message::text("0aGVsbG8=")).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::text("1aGVsbG8="));
    }

    #[tokio::test]
    async fn what_is_meant_for_nobody_is_dropped() {
        let mut client = echo(Codec::Binary, true).await;
        for message in [&b""[..], b"\x01x", b"\x09x", b"\0"] {
            client.send(Message::binary(message)).await.unwrap();
        }
        client.send(Message::binary(&b"\0y"[..])).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(&b"\x01y"[..]));
    }

    #[test]
    fn a_challenge_is_answered_as_the_standard_has_it() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}

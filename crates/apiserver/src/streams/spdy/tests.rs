use tokio::io::{DuplexStream, duplex, split};

use super::*;

/// A client that writes frames by hand. The first block of headers is a zlib stream's beginning.
struct Client {
    io: DuplexStream,
    compressor: flate2::Compress,
}

impl Client {
    async fn open(&mut self, id: u32, kind: &str) {
        let mut block = 1_u32.to_be_bytes().to_vec();
        for text in ["streamType", kind] {
            block.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
            block.extend_from_slice(text.as_bytes());
        }
        let mut packed = Vec::with_capacity(256);
        let flush = flate2::FlushCompress::Sync;
        self.compressor.compress_vec(&block, &mut packed, flush).unwrap();
        let payload = [&id.to_be_bytes()[..], &[0; 6], &packed].concat();
        self.io.write_all(&control(SYN_STREAM, &payload)).await.unwrap();
    }

    async fn say(&mut self, id: u32, bytes: &[u8], flags: u8) {
        let length = u32::try_from(bytes.len()).unwrap();
        self.io.write_u32(id).await.unwrap();
        self.io.write_u32(u32::from(flags) << 24 | length).await.unwrap();
        self.io.write_all(bytes).await.unwrap();
    }

    /// The next frame: its first word, its flags and what it carries.
    async fn hear(&mut self) -> (u32, u8, Vec<u8>) {
        let first = self.io.read_u32().await.unwrap();
        let second = self.io.read_u32().await.unwrap();
        let mut payload = vec![0; usize::try_from(second & 0x00ff_ffff).unwrap()];
        self.io.read_exact(&mut payload).await.unwrap();
        (first, second.to_be_bytes()[0], payload)
    }
}

fn kind(kind: u16) -> u32 {
    u32::from(0x8000 | VERSION) << 16 | u32::from(kind)
}

/// A server that sends back what each stream says, with the type of the stream before it.
fn echo() -> Client {
    let (ours, theirs) = duplex(1 << 20);
    tokio::spawn(async move {
        let (reader, writer) = split(theirs);
        carry(reader, writer, Stop::never(), |mut streams| async move {
            let mut echoes = tokio::task::JoinSet::new();
            while let Some(stream) = streams.recv().await {
                echoes.spawn(async move {
                    // All of it: a stream of which a part is dropped is forgotten.
                    let mut stream = stream;
                    let name = stream.headers.get("streamtype").to_owned();
                    stream.output.send(name.into()).await.unwrap();
                    while let Some(bytes) = stream.input.recv().await {
                        stream.output.send(bytes).await.unwrap();
                    }
                    stream.output.end().await;
                });
            }
        })
        .await;
    });
    Client {
        io: ours,
        compressor: flate2::Compress::new(flate2::Compression::fast(), true),
    }
}

#[tokio::test]
async fn a_stream_is_answered_carried_and_ended() {
    let mut client = echo();
    client.open(1, "data").await;
    let (reply, _, payload) = client.hear().await;
    assert_eq!((reply, &payload[..4]), (kind(SYN_REPLY), &1_u32.to_be_bytes()[..]));
    assert_eq!(client.hear().await, (1, 0, b"data".to_vec()));
    client.say(1, b"hello", 0).await;
    assert_eq!(client.hear().await, (1, 0, b"hello".to_vec()));
    client.say(1, b"bye", FIN).await;
    assert_eq!(client.hear().await, (1, 0, b"bye".to_vec()));
    assert_eq!(client.hear().await, (1, FIN, Vec::new()));
}

#[tokio::test]
async fn streams_do_not_get_into_each_others_way() {
    let mut client = echo();
    client.open(1, "first").await;
    client.open(3, "second").await;
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(client.hear().await);
    }
    client.say(3, b"3", 0).await;
    assert_eq!(client.hear().await, (3, 0, b"3".to_vec()));
    client.say(1, b"1", 0).await;
    assert_eq!(client.hear().await, (1, 0, b"1".to_vec()));
    assert!(heard.contains(&(1, 0, b"first".to_vec())));
    assert!(heard.contains(&(3, 0, b"second".to_vec())));
}

#[tokio::test]
async fn a_ping_comes_back() {
    let mut client = echo();
    let ping = control(PING, &7_u32.to_be_bytes());
    client.io.write_all(&ping).await.unwrap();
    assert_eq!(client.hear().await, (kind(PING), 0, 7_u32.to_be_bytes().to_vec()));
}

#[tokio::test]
async fn a_number_that_was_used_is_refused() {
    let mut client = echo();
    client.open(3, "a").await;
    let _ = (client.hear().await, client.hear().await);
    for used in [1, 3, 4] {
        client.open(used, "b").await;
        let expected = (kind(RST_STREAM), 0, pair(used, PROTOCOL_ERROR).to_vec());
        assert_eq!(client.hear().await, expected, "{used}");
    }
}

#[tokio::test]
async fn a_window_is_opened_for_what_was_read() {
    let mut client = echo();
    client.open(1, "data").await;
    let _ = (client.hear().await, client.hear().await);
    let sent = vec![b'x'; 100_000];
    client.say(1, &sent, FIN).await;
    let (mut echoed, mut opened) = (0, 0);
    loop {
        let (first, flags, payload) = client.hear().await;
        if first == kind(WINDOW_UPDATE) && payload[..4] == 1_u32.to_be_bytes() {
            opened += u32::from_be_bytes(payload[4..].try_into().unwrap());
        } else if first == 1 {
            echoed += payload.len();
            if flags & FIN != 0 {
                break;
            }
        }
    }
    assert_eq!(echoed, 100_000);
    assert!((WINDOW_STEP..=100_000).contains(&opened), "{opened}");
}

#[tokio::test]
async fn what_is_no_spdy_ends_the_connection() {
    for frame in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0x80, 2, 0, 1, 0, 0, 0, 0],
        &[0x80, 3, 0, 1, 0, 0, 0, 2, 0, 0],
    ] {
        let mut client = echo();
        client.io.write_all(frame).await.unwrap();
        client.io.shutdown().await.unwrap();
        let mut rest = Vec::new();
        client.io.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"", "{frame:?}");
    }
}

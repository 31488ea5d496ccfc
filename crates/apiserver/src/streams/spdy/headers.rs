//! Blocks of headers: names and values, compressed over the life of a connection with a dictionary that both sides
//! know beforehand.

use miniz_oxide::inflate::{
    TINFLStatus,
    core::{DecompressorOxide, decompress, inflate_flags::TINFL_FLAG_HAS_MORE_INPUT},
};

/// The most bytes that a block may have once it is inflated, and the most headers in it.
const BLOCK_LIMIT: usize = 64 << 10;
const HEADER_LIMIT: u32 = 256;

/// How far back inflating may look.
const WINDOW: usize = 32 << 10;

/// The checksum of the dictionary, by which a sender names it.
const DICTIONARY_ID: u32 = 0xe3c6_a7c2;

/// The headers of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of a header, whose name is in lower case; empty when it is missing.
    pub(in super::super) fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

/// Why a block cannot be read; the connection is lost then, because what follows depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// Inflates the blocks of a connection, in the order in which they come.
pub(super) struct Inflater {
    state: Box<DecompressorOxide>,
    /// A ring of what was inflated last, which begins with the dictionary.
    window: Box<[u8]>,
    at: usize,
    begun: bool,
}

impl Inflater {
    pub(super) fn new() -> Self {
        let dictionary = dictionary();
        let mut window = vec![0; WINDOW].into_boxed_slice();
        window[..dictionary.len()].copy_from_slice(&dictionary);
        Self {
            state: Box::default(),
            at: dictionary.len(),
            window,
            begun: false,
        }
    }

    /// Reads the next block.
    pub(super) fn read(&mut self, mut block: &[u8]) -> Result<Headers, Unreadable> {
        if !self.begun {
            block = self.begin(block)?;
        }
        parse(&self.inflate(block)?).ok_or(Unreadable)
    }

    /// Reads what stands before everything else in a zlib stream.
    fn begin<'b>(&mut self, block: &'b [u8]) -> Result<&'b [u8], Unreadable> {
        self.begun = true;
        let (&[method, flags], rest) = block.split_first_chunk().ok_or(Unreadable)?;
        let checked = (u16::from(method) << 8 | u16::from(flags)) % 31 == 0;
        if method & 0x0f != 8 || !checked {
            return Err(Unreadable);
        }
        if flags & 0x20 == 0 {
            return Ok(rest);
        }
        let (id, rest) = rest.split_first_chunk().ok_or(Unreadable)?;
        if u32::from_be_bytes(*id) == DICTIONARY_ID {
            Ok(rest)
        } else {
            Err(Unreadable)
        }
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let mut inflated = Vec::new();
        loop {
            let (status, read, written) = decompress(
                &mut self.state,
                block,
                &mut self.window,
                self.at,
                TINFL_FLAG_HAS_MORE_INPUT,
            );
            inflated.extend_from_slice(&self.window[self.at..self.at + written]);
            self.at = (self.at + written) % WINDOW;
            block = &block[read..];
            match status {
                _ if inflated.len() > BLOCK_LIMIT => return Err(Unreadable),
                TINFLStatus::NeedsMoreInput if block.is_empty() => return Ok(inflated),
                TINFLStatus::HasMoreOutput => {}
                _ => return Err(Unreadable),
            }
        }
    }
}

/// Takes an inflated block apart.
fn parse(block: &[u8]) -> Option<Headers> {
    fn number(rest: &mut &[u8]) -> Option<u32> {
        let (bytes, after) = rest.split_first_chunk()?;
        *rest = after;
        Some(u32::from_be_bytes(*bytes))
    }
    fn text(rest: &mut &[u8]) -> Option<String> {
        let length = usize::try_from(number(rest)?).ok()?;
        let (bytes, after) = rest.split_at_checked(length)?;
        *rest = after;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
    let mut rest = block;
    let count = number(&mut rest).filter(|count| *count <= HEADER_LIMIT)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = text(&mut rest)?.to_ascii_lowercase();
        headers.push((name, text(&mut rest)?));
    }
    Some(Headers(headers))
}

/// A block without headers, as the first and as a later one of a connection. A stored block needs no compressor, and no
/// memory of what was sent before; the empty one behind it makes the other side look at what it has.
pub(super) fn empty_block(first: bool) -> &'static [u8] {
    const STREAM: &[u8] = &[0x78, 0x01, 0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    if first { STREAM } else { &STREAM[2..] }
}

/// The dictionary of SPDY/3: words, each after its length, and phrases.
fn dictionary() -> Vec<u8> {
    let mut dictionary = Vec::with_capacity(1423);
    for word in WORDS {
        let length = u32::try_from(word.len()).expect("words are short");
        dictionary.extend_from_slice(&length.to_be_bytes());
        dictionary.extend_from_slice(word.as_bytes());
    }
    dictionary.extend_from_slice(PHRASES.as_bytes());
    dictionary
}

#[rustfmt::skip]
const WORDS: [&str; 65] = [
    "options", "head", "post", "put", "delete", "trace", "accept", "accept-charset", "accept-encoding",
    "accept-language", "accept-ranges", "age", "allow", "authorization", "cache-control", "connection",
    "content-base", "content-encoding", "content-language", "content-length", "content-location", "content-md5",
    "content-range", "content-type", "date", "etag", "expect", "expires", "from", "host", "if-match",
    "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified", "location",
    "max-forwards", "pragma", "proxy-authenticate", "proxy-authorization", "range", "referer", "retry-after",
    "server", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning",
    "www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie",
    "keep-alive", "origin",
];

const PHRASES: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 \
    Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 \
    Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept \
    Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,\
    sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

#[cfg(test)]
mod tests {
    use super::*;

    fn adler32(bytes: &[u8]) -> u32 {
        let (mut low, mut high) = (1_u32, 0_u32);
        for byte in bytes {
            low = (low + u32::from(*byte)) % 65521;
            high = (high + low) % 65521;
        }
        high << 16 | low
    }

    #[test]
    fn the_dictionary_is_the_one_that_everybody_knows() {
        assert_eq!(dictionary().len(), 1423);
        assert_eq!(adler32(&dictionary()), DICTIONARY_ID);
    }

    #[test]
    fn an_empty_block_is_read_again_and_again() {
        let mut inflater = Inflater::new();
        assert_eq!(inflater.read(empty_block(true)), Ok(Headers::default()));
        assert_eq!(inflater.read(empty_block(false)), Ok(Headers::default()));
    }

    #[test]
    fn what_a_client_compressed_with_the_dictionary_is_read() {
        // As Go's spdystream sends it: `streamtype: error` and then `streamtype: stdout`, on one connection.
        let blocks: [&[u8]; 2] = [
            &[
                0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0x62, 0x60, 0x60, 0x60, 0x04, 0xa7, 0xb3, 0x92, 0xa2, 0xd4, 0xc4,
                0x5c, 0x68, 0x51, 0xc2, 0x9a, 0x0a, 0x0a, 0x68, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff,
            ],
            &[
                0xc2, 0x2a, 0xc5, 0x56, 0x5c, 0x92, 0x92, 0x5f, 0x5a, 0x02, 0x00, 0x00, 0x00, 0xff, 0xff,
            ],
        ];
        let mut inflater = Inflater::new();
        assert_eq!(inflater.read(blocks[0]).unwrap().get("streamtype"), "error");
        assert_eq!(inflater.read(blocks[1]).unwrap().get("streamtype"), "stdout");
    }

    #[test]
    fn nonsense_and_bombs_are_refused() {
        assert_eq!(Inflater::new().read(b"nonsense"), Err(Unreadable));
        assert_eq!(Inflater::new().read(&[]), Err(Unreadable));
        let mut bomb = flate2::Compress::new(flate2::Compression::best(), true);
        let mut packed = Vec::with_capacity(4096);
        let zeros = vec![0; 2 * BLOCK_LIMIT];
        bomb.compress_vec(&zeros, &mut packed, flate2::FlushCompress::Sync)
            .unwrap();
        assert_eq!(Inflater::new().read(&packed), Err(Unreadable));
    }

    #[test]
    fn a_block_may_reach_round_the_window() {
        let mut sender = flate2::Compress::new(flate2::Compression::fast(), true);
        let mut inflater = Inflater::new();
        for round in 0..20_u32 {
            let value: String = (0..5000)
                .map(|at| char::from(b'a' + u8::try_from((at * 7 + round) % 26).unwrap()))
                .collect();
            let mut block = 1_u32.to_be_bytes().to_vec();
            for text in ["port", &value] {
                block.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
                block.extend_from_slice(text.as_bytes());
            }
            let mut packed = Vec::with_capacity(16 << 10);
            sender
                .compress_vec(&block, &mut packed, flate2::FlushCompress::Sync)
                .unwrap();
            assert_eq!(inflater.read(&packed).unwrap().get("port"), value);
        }
    }
}

//! The unit of writing: what was written with one sync, under checksums.
//!
//! ```text
//!   file   = prologue frame*
//!   log    : magic 8 │ format u32 │ first revision u64             │ crc u32
//!   shot   : magic 8 │ format u32 │ revision u64    │ records u64  │ crc u32
//!   frame  = magic 4 │ length u32 │ revision u64 │ count u32 │ crc of payload u32 │ crc of these u32 │ payload
//! ```
//!
//! All numbers are little-endian. The checksum of the frame's head is its own, so a damaged length is never believed. A
//! frame of a log is written only after the one before it is durable: a frame that reads well after one that does not
//! proves that the latter was damaged later, and not torn by a crash.

use std::io::{self, Read};

use bytes::{Buf, BufMut};

use crate::Revision;

/// The newest layout that this code reads, and the one it writes.
pub(super) const FORMAT: u32 = 1;

const MAGIC: [u8; 4] = *b"mFr1";
pub(super) const HEAD: usize = 28;

/// Memory is not set aside for more than this before it is known to be needed, nor kept for longer than it is.
const LARGE: usize = 4 << 20;

/// What a frame says of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Of the first transaction in it; of the whole, in a snapshot.
    pub(super) revision: Revision,
    /// How many transactions or records it holds.
    pub(super) count: u32,
    pub(super) length: u32,
    payload_crc: u32,
}

/// Opens a frame in `buffer`: leaves room for the head, to be filled in by [`seal`].
pub(super) fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(LARGE);
    buffer.resize(HEAD, 0);
}

/// Writes the head of the frame whose payload has been put into `buffer` since [`begin`].
pub(super) fn seal(buffer: &mut [u8], revision: Revision, count: u32) -> io::Result<()> {
    let (mut head, payload) = buffer.split_at_mut(HEAD);
    let length = u32::try_from(payload.len()).map_err(|_| io::Error::other("a frame holds less than 4 GiB"))?;
    let mut bytes = Vec::with_capacity(HEAD);
    bytes.put_slice(&MAGIC);
    bytes.put_u32_le(length);
    bytes.put_u64_le(revision.get());
    bytes.put_u32_le(count);
    bytes.put_u32_le(crc32c::crc32c(payload));
    bytes.put_u32_le(crc32c::crc32c(&bytes));
    head.put_slice(&bytes);
    Ok(())
}

impl Head {
    /// Reads a head, if these bytes begin with one.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEAD)?;
        if bytes[..4] != MAGIC {
            return None;
        }
        let (guarded, mut crc) = bytes.split_at(HEAD - 4);
        if crc.get_u32_le() != crc32c::crc32c(guarded) {
            return None;
        }
        let mut rest = &guarded[4..];
        let length = rest.get_u32_le();
        let revision = Revision::new(rest.get_u64_le());
        let count = rest.get_u32_le();
        Some(Self {
            revision,
            count,
            length,
            payload_crc: rest.get_u32_le(),
        })
    }

    fn fits(&self, payload: &[u8]) -> bool {
        crc32c::crc32c(payload) == self.payload_crc
    }
}

/// What stands where a frame should begin.
pub(super) enum Next {
    Frame(Head, Vec<u8>),
    /// The file ends here.
    End,
    /// Something that is no whole frame, of which this much has been read.
    Broken(Vec<u8>),
}

/// What is to be made of something that is no whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wreck {
    /// Nothing but zeros: length that was set ahead.
    Blank,
    /// No frame comes after: a crash may have torn it. There are so many bytes to the end of the file.
    Last { bytes: u64 },
    /// A later frame reads well, which tells of this revision: it was whole once.
    Followed { by: Revision },
}

/// Reads frames one after the other.
pub(super) struct Frames<R> {
    source: R,
    pub(super) offset: u64,
}

impl<R: Read> Frames<R> {
    /// Frames that begin at `offset` of the file, which is where `source` stands.
    pub(super) fn new(source: R, offset: u64) -> Self {
        Self { source, offset }
    }

    pub(super) fn next(&mut self) -> io::Result<Next> {
        let mut bytes = Vec::with_capacity(HEAD);
        (&mut self.source).take(HEAD as u64).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(Next::End);
        }
        let Some(head) = Head::parse(&bytes) else {
            return Ok(Next::Broken(bytes));
        };
        // Its checksum vouches for the length, but the file may end before.
        let mut payload = Vec::with_capacity((head.length as usize).min(LARGE));
        (&mut self.source)
            .take(u64::from(head.length))
            .read_to_end(&mut payload)?;
        if payload.len() < head.length as usize || !head.fits(&payload) {
            bytes.extend_from_slice(&payload);
            return Ok(Next::Broken(bytes));
        }
        self.offset += (HEAD + payload.len()) as u64;
        Ok(Next::Frame(head, payload))
    }

    /// Looks at all that follows something broken, to tell what it is.
    pub(super) fn examine(mut self, mut broken: Vec<u8>) -> io::Result<Wreck> {
        self.source.read_to_end(&mut broken)?;
        if broken.iter().all(|byte| *byte == 0) {
            return Ok(Wreck::Blank);
        }
        let whole = |from: usize| {
            let head = Head::parse(&broken[from..])?;
            let payload = broken.get(from + HEAD..)?.get(..head.length as usize)?;
            head.fits(payload).then_some(head.revision)
        };
        let starts = broken
            .windows(MAGIC.len())
            .enumerate()
            .skip(1)
            .filter(|(_, window)| *window == MAGIC);
        let by = starts.filter_map(|(from, _)| whole(from)).max();
        Ok(by.map_or(
            Wreck::Last {
                bytes: broken.len() as u64,
            },
            |by| Wreck::Followed { by },
        ))
    }
}

/// The beginning of a file: which kind it is, of which format, and numbers that it opens with.
pub(super) struct Prologue<const NUMBERS: usize> {
    pub(super) magic: [u8; 8],
    pub(super) numbers: [u64; NUMBERS],
}

/// Why a prologue could not be read.
pub(super) enum PrologueError {
    Newer { format: u32 },
    Broken,
    Io(io::Error),
}

impl<const NUMBERS: usize> Prologue<NUMBERS> {
    pub(super) const SIZE: usize = 8 + 4 + 8 * NUMBERS + 4;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::SIZE);
        bytes.put_slice(&self.magic);
        bytes.put_u32_le(FORMAT);
        for number in self.numbers {
            bytes.put_u64_le(number);
        }
        bytes.put_u32_le(crc32c::crc32c(&bytes));
        bytes
    }

    pub(super) fn read(source: &mut impl Read, magic: [u8; 8]) -> Result<Self, PrologueError> {
        let mut bytes = Vec::with_capacity(Self::SIZE);
        source
            .take(Self::SIZE as u64)
            .read_to_end(&mut bytes)
            .map_err(PrologueError::Io)?;
        if bytes.get(..8) != Some(magic.as_slice()) {
            return Err(PrologueError::Broken);
        }
        // Before the checksum: a later format may well arrange the rest in another way.
        let format = bytes.get(8..12).ok_or(PrologueError::Broken)?.get_u32_le();
        if format > FORMAT {
            return Err(PrologueError::Newer { format });
        }
        if bytes.len() < Self::SIZE {
            return Err(PrologueError::Broken);
        }
        let (guarded, mut crc) = bytes.split_at(Self::SIZE - 4);
        if crc.get_u32_le() != crc32c::crc32c(guarded) {
            return Err(PrologueError::Broken);
        }
        let mut rest = &guarded[12..];
        Ok(Self {
            magic,
            numbers: std::array::from_fn(|_| rest.get_u64_le()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(revision: u64, payload: &[u8]) -> Vec<u8> {
        let mut buffer = Vec::new();
        begin(&mut buffer);
        buffer.extend_from_slice(payload);
        seal(&mut buffer, Revision::new(revision), 1).unwrap();
        buffer
    }

    fn wreck(bytes: &[u8]) -> Wreck {
        let mut frames = Frames::new(bytes, 0);
        let Next::Broken(begun) = frames.next().unwrap() else {
            panic!("it reads well")
        };
        frames.examine(begun).unwrap()
    }

    #[test]
    fn a_frame_reads_back() {
        let bytes = [frame(7, b"seven"), frame(8, b"")].concat();
        let mut frames = Frames::new(&bytes[..], 100);
        let Next::Frame(head, payload) = frames.next().unwrap() else {
            panic!("it does not read well")
        };
        assert_eq!(
            (head.revision, head.count, payload),
            (Revision::new(7), 1, b"seven".to_vec())
        );
        assert_eq!(frames.offset, 100 + HEAD as u64 + 5);
        assert!(matches!(frames.next().unwrap(), Next::Frame(head, _) if head.revision == Revision::new(8)));
        assert!(matches!(frames.next().unwrap(), Next::End));
    }

    #[test]
    fn zeros_are_an_end_and_not_a_wreck() {
        let mut bytes = [0; 5000];
        assert_eq!(wreck(&bytes), Wreck::Blank);
        bytes[4999] = 1;
        assert_eq!(wreck(&bytes), Wreck::Last { bytes: 5000 });
    }

    #[test]
    fn every_cut_of_a_last_frame_is_torn() {
        let bytes = frame(7, b"some payload");
        for length in 1..bytes.len() {
            assert_eq!(wreck(&bytes[..length]), Wreck::Last { bytes: length as u64 });
        }
    }

    #[test]
    fn every_flipped_bit_is_seen_and_the_frame_behind_proves_that_it_was_no_tear() {
        let whole = [frame(7, b"some payload"), frame(8, b"more")].concat();
        for position in 0..HEAD + 12 {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[position] ^= 1 << bit;
                assert_eq!(
                    wreck(&bytes),
                    Wreck::Followed { by: Revision::new(8) },
                    "bit {bit} of byte {position}"
                );
            }
        }
    }

    #[test]
    fn a_newer_format_is_told_from_a_wreck() {
        let mut bytes = Prologue {
            magic: *b"somefile",
            numbers: [5],
        }
        .encode();
        assert!(Prologue::<1>::read(&mut &bytes[..], *b"somefile").is_ok_and(|prologue| prologue.numbers == [5]));
        assert!(matches!(
            Prologue::<1>::read(&mut &bytes[..], *b"elsefile"),
            Err(PrologueError::Broken)
        ));
        assert!(matches!(
            Prologue::<1>::read(&mut &bytes[..20], *b"somefile"),
            Err(PrologueError::Broken)
        ));
        bytes[8] = 2;
        assert!(matches!(
            Prologue::<1>::read(&mut &bytes[..], *b"somefile"),
            Err(PrologueError::Newer { format: 2 })
        ));
    }
}

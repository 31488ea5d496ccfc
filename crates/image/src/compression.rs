//! Reading layers and archives, compressed in any way that registries and tools use.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, Read},
};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

use crate::model::{LAYER, LAYER_GZIP, LAYER_ZSTD};

/// How bytes are packed; told by their first bytes, because media types are often wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Looks at the beginning without taking it away.
    fn of(reader: &mut impl BufRead) -> io::Result<Self> {
        Ok(match reader.fill_buf()? {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            // A frame, or one that carries no content and may come first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            _ => Compression::None,
        })
    }

    /// The media type of a layer that is packed so.
    pub(crate) fn layer_type(self) -> &'static str {
        match self {
            Compression::None => LAYER,
            Compression::Gzip => LAYER_GZIP,
            Compression::Zstd => LAYER_ZSTD,
        }
    }
}

/// The content of `reader`, whichever way it is packed. Memory is bounded: by the window of 128 MiB at worst.
pub(crate) fn unpacked<'a>(reader: impl Read + 'a) -> io::Result<(Compression, Box<dyn Read + 'a>)> {
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let compression = Compression::of(&mut reader)?;
    let content: Box<dyn Read + 'a> = match compression {
        Compression::None => Box::new(reader),
        Compression::Gzip => Box::new(MultiGzDecoder::new(reader)),
        Compression::Zstd => Box::new(ZstdFrames::new(reader)),
    };
    Ok((compression, content))
}

/// All frames of a stream one after the other; the decoder itself knows of one at a time.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    within: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: R) -> Self {
        Self {
            source,
            decoder: FrameDecoder::new(),
            within: false,
        }
    }

    /// Enters the next frame with content; false at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.within = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if self.decoder.is_finished() {
                self.within = false;
            }
        }
    }
}

/// Fails a read past what is left of an allowance that the holder renews.
///
/// The tar decoder keeps long names and extended headers in memory, as many bytes as the archive claims; between entries
/// the allowance is small, within an entry it is the rest of the whole.
pub(crate) struct Rationed<'a, R> {
    inner: R,
    allowance: &'a Cell<u64>,
}

impl<'a, R> Rationed<'a, R> {
    pub(crate) fn new(inner: R, allowance: &'a Cell<u64>) -> Self {
        Self { inner, allowance }
    }
}

impl<R: Read> Read for Rationed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.allowance.get();
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "more bytes than any honest content has",
            ));
        }
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..most])?;
        self.allowance.set(left - read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn text() -> Vec<u8> {
        (0..40_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn read(bytes: &[u8]) -> io::Result<(Compression, Vec<u8>)> {
        let (compression, mut reader) = unpacked(bytes)?;
        let mut content = Vec::new();
        reader.read_to_end(&mut content)?;
        Ok((compression, content))
    }

    #[test]
    fn the_way_of_packing_is_told_by_the_first_bytes() {
        let text = text();
        assert_eq!(read(&text).unwrap(), (Compression::None, text.clone()));
        assert_eq!(read(&gzip(&text)).unwrap(), (Compression::Gzip, text.clone()));
        assert_eq!(read(&zstd(&text)).unwrap(), (Compression::Zstd, text));
        assert_eq!(read(b"").unwrap(), (Compression::None, Vec::new()));
    }

    #[test]
    fn several_frames_and_frames_without_content_are_read_through() {
        let text = text();
        let twice = [text.clone(), text.clone()].concat();
        assert_eq!(read(&[gzip(&text), gzip(&text)].concat()).unwrap().1, twice);
        let skip = [0x51, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let frames = [&skip[..], &zstd(&text), &skip, &zstd(&text), &skip].concat();
        assert_eq!(read(&frames).unwrap().1, twice);
    }

    #[test]
    fn what_is_cut_off_or_altered_is_an_error_or_other_bytes_but_never_a_panic() {
        let text = text();
        let mut random = fastrand::Rng::with_seed(5);
        for packed in [gzip(&text), zstd(&text)] {
            for _ in 0..60 {
                let cut = random.usize(4..packed.len() - 1);
                assert!(read(&packed[..cut]).is_err(), "cut at {cut} of {}", packed.len());
                let mut altered = packed.clone();
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(4..altered.len());
                    altered[at] = random.u8(..);
                }
                let _ = read(&altered);
            }
        }
    }

    #[test]
    fn a_ration_ends_the_reading() {
        let allowance = Cell::new(10);
        let mut reader = Rationed::new(io::repeat(0), &allowance);
        let mut content = Vec::new();
        assert!(reader.read_to_end(&mut content).is_err());
        assert_eq!(content.len(), 10);
        allowance.set(5);
        reader.read_exact(&mut [0; 5]).unwrap();
    }
}

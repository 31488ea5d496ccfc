//! Writing the log of one container.

use std::{
    fs::{self, File},
    io::{self, Write},
    time::SystemTime,
};

use super::{LogStream, rotated};
use crate::LogSpec;

/// A line longer than this is written in pieces.
const LONGEST_LINE: usize = 16 * 1024;

/// Writes whole lines; what has no end yet waits in memory.
pub(crate) struct LogWriter {
    spec: LogSpec,
    file: File,
    written: u64,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl LogWriter {
    /// Opens the file, and makes its directory.
    pub(crate) fn open(spec: LogSpec) -> io::Result<Self> {
        if let Some(parent) = spec.path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = open(&spec)?;
        let written = file.metadata()?.len();
        Ok(Self {
            spec,
            file,
            written,
            out: Vec::new(),
            err: Vec::new(),
        })
    }

    /// Takes what a container has just written.
    pub(crate) fn write(&mut self, stream: LogStream, mut bytes: &[u8], now: SystemTime) -> io::Result<()> {
        let mut text = Vec::with_capacity(bytes.len() + 64);
        let stamp = Stamp::new(now);
        let pending = match stream {
            LogStream::Stdout => &mut self.out,
            LogStream::Stderr => &mut self.err,
        };
        while !bytes.is_empty() {
            let room = LONGEST_LINE - pending.len();
            let end = bytes.iter().take(room + 1).position(|byte| *byte == b'\n');
            let Some(end) = end else {
                if bytes.len() <= room {
                    pending.extend_from_slice(bytes);
                    break;
                }
                entry(&mut text, &stamp, stream, 'P', pending, &bytes[..room]);
                pending.clear();
                bytes = &bytes[room..];
                continue;
            };
            entry(&mut text, &stamp, stream, 'F', pending, &bytes[..end]);
            pending.clear();
            bytes = &bytes[end + 1..];
        }
        // Thousands of containers are mostly silent; none of them keeps a buffer for it.
        if pending.is_empty() {
            pending.shrink_to(256);
        }
        self.append(&text)
    }

    /// Writes what has not come to the end of its line.
    pub(crate) fn finish(&mut self, now: SystemTime) -> io::Result<()> {
        let mut text = Vec::new();
        let stamp = Stamp::new(now);
        for (stream, pending) in [(LogStream::Stdout, &mut self.out), (LogStream::Stderr, &mut self.err)] {
            if !pending.is_empty() {
                entry(&mut text, &stamp, stream, 'P', pending, &[]);
                *pending = Vec::new();
            }
        }
        self.append(&text)
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if self.written > 0 && self.written + text.len() as u64 > self.spec.max_bytes {
            self.rotate()?;
        }
        self.file.write_all(text)?;
        self.written += text.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let path = &self.spec.path;
        let oldest = self.spec.max_files.max(1) - 1;
        for age in (0..oldest).rev() {
            match fs::rename(rotated(path, age), rotated(path, age + 1)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        if oldest == 0 {
            fs::remove_file(path)?;
        }
        self.file = open(&self.spec)?;
        self.written = 0;
        Ok(())
    }
}

fn open(spec: &LogSpec) -> io::Result<File> {
    File::options().create(true).append(true).open(&spec.path)
}

fn entry(text: &mut Vec<u8>, stamp: &Stamp, stream: LogStream, tag: char, begin: &[u8], end: &[u8]) {
    // Writing to memory cannot fail.
    let _ = write!(text, "{} {} {tag} ", stamp.0, stream.as_str());
    text.extend_from_slice(begin);
    text.extend_from_slice(end);
    text.push(b'\n');
}

/// A moment with all nine digits.
struct Stamp(String);

impl Stamp {
    fn new(moment: SystemTime) -> Self {
        let moment = jiff::Timestamp::try_from(moment).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        Self(format!("{moment:.9}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn writer(directory: &tempfile::TempDir, max_bytes: u64, max_files: u32) -> LogWriter {
        let path = directory.path().join("pod/0.log");
        LogWriter::open(LogSpec {
            path,
            max_bytes,
            max_files,
        })
        .unwrap()
    }

    fn read(directory: &tempfile::TempDir, name: &str) -> String {
        fs::read_to_string(directory.path().join("pod").join(name)).unwrap()
    }

    #[test]
    fn a_line_is_written_once_its_end_has_come() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = writer(&directory, 1 << 20, 2);
        let now = UNIX_EPOCH + Duration::new(1_475_712_000, 669_794_200);
        log.write(LogStream::Stdout, b"one\ntw", now).unwrap();
        log.write(LogStream::Stderr, b"oops\n", now).unwrap();
        log.write(LogStream::Stdout, b"o\n", now).unwrap();
        assert_eq!(
            read(&directory, "0.log"),
            "2016-10-06T00:00:00.669794200Z stdout F one\n\
             2016-10-06T00:00:00.669794200Z stderr F oops\n\
             2016-10-06T00:00:00.669794200Z stdout F two\n"
        );
    }

    #[test]
    fn what_has_no_end_is_written_as_a_piece_when_the_container_ends() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = writer(&directory, 1 << 20, 2);
        log.write(LogStream::Stdout, b"bye", UNIX_EPOCH).unwrap();
        log.finish(UNIX_EPOCH).unwrap();
        assert_eq!(
            read(&directory, "0.log"),
            "1970-01-01T00:00:00.000000000Z stdout P bye\n"
        );
    }

    #[test]
    fn a_very_long_line_is_written_in_pieces() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = writer(&directory, 1 << 20, 2);
        let line = [b"x".repeat(LONGEST_LINE + 10), b"\n".to_vec()].concat();
        for chunk in line.chunks(1000) {
            log.write(LogStream::Stdout, chunk, UNIX_EPOCH).unwrap();
        }
        let text = read(&directory, "0.log");
        let entries: Vec<_> = text
            .lines()
            .map(|line| line.splitn(4, ' ').collect::<Vec<_>>())
            .collect();
        let pieces: Vec<_> = entries.iter().map(|entry| (entry[2], entry[3].len())).collect();
        assert_eq!(pieces, [("P", LONGEST_LINE), ("F", 10)]);
    }

    #[test]
    fn a_line_of_exactly_the_longest_length_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = writer(&directory, 1 << 20, 2);
        let line = [b"x".repeat(LONGEST_LINE), b"\n".to_vec()].concat();
        log.write(LogStream::Stdout, &line, UNIX_EPOCH).unwrap();
        assert_eq!(read(&directory, "0.log").matches(" F ").count(), 1);
    }

    #[test]
    fn files_are_put_aside_by_size_and_the_oldest_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = writer(&directory, 100, 3);
        for line in 0..8 {
            let text = format!("line {line}, long enough that two of them are too much\n");
            log.write(LogStream::Stdout, text.as_bytes(), UNIX_EPOCH).unwrap();
        }
        assert!(read(&directory, "0.log").contains("line 7"));
        assert!(read(&directory, "0.log.1").contains("line 6"));
        assert!(read(&directory, "0.log.2").contains("line 5"));
        assert!(!directory.path().join("pod/0.log.3").exists());
    }
}

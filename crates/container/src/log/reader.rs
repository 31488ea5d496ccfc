//! Reading logs: from the end or from a moment, over parts that were put aside, and on as they grow.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::sync::watch;

use super::{LogStream, rotated};
use crate::error::{Attempt, Result};

/// How often a reader that follows looks for more.
const LOOK_AGAIN: Duration = Duration::from_millis(40);

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// What to read of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on as it grows, until the container ends.
    pub follow: bool,
    /// Begin this many entries before the end.
    pub tail_lines: Option<usize>,
    /// Leave out what is older.
    pub since: Option<jiff::Timestamp>,
    /// Stop after so many bytes of [`Entry::text`], the last entry being cut short.
    pub limit_bytes: Option<u64>,
}

/// Something that a container has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub timestamp: jiff::Timestamp,
    /// Where.
    pub stream: LogStream,
    /// What; with the end of the line, if it had come.
    pub text: Vec<u8>,
}

impl Entry {
    /// The text with the moment before it.
    pub fn with_timestamp(&self) -> Vec<u8> {
        let mut line = format!("{:.9} ", self.timestamp).into_bytes();
        line.extend_from_slice(&self.text);
        line
    }

    /// None for a line that is not of our making.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let timestamp = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let stream = match parts.next()? {
            b"stdout" => LogStream::Stdout,
            b"stderr" => LogStream::Stderr,
            _ => return None,
        };
        let whole = match parts.next()? {
            b"P" => false,
            tag if tag.first() == Some(&b'F') => true,
            _ => return None,
        };
        let mut text = parts.next()?.to_vec();
        if whole {
            text.push(b'\n');
        }
        Some(Self {
            timestamp,
            stream,
            text,
        })
    }
}

/// Reads the log of one container, entry by entry.
pub struct LogReader {
    cursor: Option<Cursor>,
    options: LogOptions,
    ready: std::vec::IntoIter<Entry>,
    bytes_left: u64,
    /// True once the container has ended; then what is there is all there will be.
    ended: watch::Receiver<bool>,
}

impl LogReader {
    /// A reader of the log at `path`; the log need not exist yet.
    pub(crate) async fn open(path: PathBuf, options: LogOptions, ended: watch::Receiver<bool>) -> Result<Self> {
        let attempted = format!("open the log {}", path.display());
        let tail = options.tail_lines;
        let cursor = blocking(move || match tail {
            Some(lines) => Cursor::before_end(path, lines),
            None => Cursor::at_start(path),
        })
        .await
        .attempt(|| attempted)?;
        Ok(Self {
            cursor: Some(cursor),
            bytes_left: options.limit_bytes.unwrap_or(u64::MAX),
            options,
            ready: Vec::new().into_iter(),
            ended,
        })
    }

    /// A reader of the log that a container left which the runtime has no more.
    pub async fn of_ended(path: PathBuf, options: LogOptions) -> Result<Self> {
        Self::open(path, options, watch::channel(true).1).await
    }

    /// The next entry; none at the end, which comes for one who follows when the container has ended. Cancelling it
    /// loses at most what was being read.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            if self.bytes_left == 0 {
                return Ok(None);
            }
            if let Some(mut entry) = self.ready.next() {
                if self.options.since.is_some_and(|since| entry.timestamp < since) {
                    continue;
                }
                let length = entry.text.len() as u64;
                if length > self.bytes_left {
                    entry
                        .text
                        .truncate(usize::try_from(self.bytes_left).unwrap_or(usize::MAX));
                }
                self.bytes_left = self.bytes_left.saturating_sub(length);
                return Ok(Some(entry));
            }
            // Asked before reading: what is written before the end is then certain to be read.
            let ended = *self.ended.borrow_and_update();
            let Some(mut cursor) = self.cursor.take() else {
                return Ok(None);
            };
            let (cursor, entries) = blocking(move || cursor.read().map(|entries| (cursor, entries)))
                .await
                .attempt(|| "read a log")?;
            self.cursor = Some(cursor);
            if !entries.is_empty() {
                self.ready = entries.into_iter();
            } else if !self.options.follow || ended {
                return Ok(None);
            } else {
                // An error means that the container is gone altogether, which the next turn sees as its end.
                let _ = tokio::time::timeout(LOOK_AGAIN, self.ended.changed()).await;
                if self.ended.has_changed().is_err() {
                    self.options.follow = false;
                }
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// A place in a log that may be spread over several files.
struct Cursor {
    path: PathBuf,
    /// The file that is being read; none while the log does not exist.
    file: Option<File>,
    /// The beginning of an entry whose end has not been read.
    partial: Vec<u8>,
}

impl Cursor {
    fn at_start(path: PathBuf) -> io::Result<Self> {
        let file = open_oldest(&path)?;
        Ok(Self {
            path,
            file,
            partial: Vec::new(),
        })
    }

    fn before_end(path: PathBuf, lines: usize) -> io::Result<Self> {
        let mut missing = lines;
        let mut age = 0;
        loop {
            let Some(mut file) = open(&rotated(&path, age))? else {
                return Self::at_start(path);
            };
            let found = seek_lines_before_end(&mut file, missing)?;
            if found == missing || !rotated(&path, age + 1).exists() {
                return Ok(Self {
                    path,
                    file: Some(file),
                    partial: Vec::new(),
                });
            }
            missing -= found;
            age += 1;
        }
    }

    /// What comes next, or nothing where there is nothing yet.
    fn read(&mut self) -> io::Result<Vec<Entry>> {
        loop {
            if self.file.is_none() {
                self.file = open_oldest(&self.path)?;
            }
            let Some(file) = &mut self.file else {
                return Ok(Vec::new());
            };
            let mut chunk = vec![0; CHUNK];
            let length = file.read(&mut chunk)?;
            if length > 0 {
                self.partial.extend_from_slice(&chunk[..length]);
                let entries = self.take_entries();
                if entries.is_empty() {
                    continue;
                }
                return Ok(entries);
            }
            let Some(newer) = newer_than(&self.path, file.metadata()?.ino())? else {
                return Ok(Vec::new());
            };
            // The file may have grown between the last read and being put aside.
            let mut rest = Vec::new();
            file.read_to_end(&mut rest)?;
            self.partial.extend_from_slice(&rest);
            self.file = Some(newer);
            let entries = self.take_entries();
            self.partial.clear();
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }

    fn take_entries(&mut self) -> Vec<Entry> {
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let entries = self.partial[..end]
            .split(|byte| *byte == b'\n')
            .filter_map(Entry::parse)
            .collect();
        self.partial.drain(..=end);
        entries
    }
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The part with which the log begins.
fn open_oldest(path: &Path) -> io::Result<Option<File>> {
    loop {
        let mut age = 0;
        while has_older(path, age) {
            age += 1;
        }
        let file = open(&rotated(path, age))?;
        // While this looked, parts may have grown older by one.
        if !has_older(path, age) && (file.is_some() || age == 0) {
            return Ok(file);
        }
    }
}

/// Whether there are parts that are older than this. Parts grow older one after the other, the oldest first, so one of
/// them may be missing for a moment, and never two.
fn has_older(path: &Path, age: u32) -> bool {
    rotated(path, age + 1).exists() || rotated(path, age + 2).exists()
}

/// The part that follows the one with this inode; none if that one is the current one.
fn newer_than(path: &Path, inode: u64) -> io::Result<Option<File>> {
    let mut newer = None;
    let mut age = 0;
    loop {
        let Some(file) = open(&rotated(path, age))? else {
            if age == 0 {
                // Between two renames the current file is missing for a moment.
                return Ok(None);
            }
            if has_older(path, age) {
                age += 1;
                continue;
            }
            // The part that was being read has itself been dropped, and the oldest one follows it.
            return Ok(newer);
        };
        if file.metadata()?.ino() == inode {
            return Ok(newer);
        }
        newer = Some(file);
        age += 1;
    }
}

/// Goes to where `lines` lines are left, or to the start; tells how many are.
fn seek_lines_before_end(file: &mut File, lines: usize) -> io::Result<usize> {
    let mut position = file.seek(SeekFrom::End(0))?;
    let mut found = 0;
    // The end of the last line ends nothing but it; the start is found at the end of the one before.
    let mut ends = 0;
    let mut chunk = vec![0; CHUNK];
    while position > 0 && ends <= lines {
        let length = position.min(CHUNK as u64);
        position -= length;
        let part = &mut chunk[..usize::try_from(length).map_err(io::Error::other)?];
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(part)?;
        for (index, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            ends += 1;
            if ends > lines {
                file.seek(SeekFrom::Start(position + index as u64 + 1))?;
                return Ok(lines);
            }
            found = ends;
        }
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::{LogSpec, log::LogWriter};

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    async fn texts(path: &Path, options: LogOptions) -> Vec<String> {
        let (_sender, ended) = watch::channel(true);
        let mut reader = LogReader::open(path.to_owned(), options, ended).await.unwrap();
        let mut texts = Vec::new();
        while let Some(entry) = reader.next().await.unwrap() {
            texts.push(String::from_utf8(entry.text).unwrap());
        }
        texts
    }

    fn write_lines(path: &Path, max_bytes: u64, lines: u64) -> LogWriter {
        let spec = LogSpec {
            path: path.to_owned(),
            max_bytes,
            max_files: 100,
        };
        let mut log = LogWriter::open(spec).unwrap();
        for line in 0..lines {
            log.write(LogStream::Stdout, format!("{line}\n").as_bytes(), at(line))
                .unwrap();
        }
        log
    }

    fn numbers(range: std::ops::Range<u64>) -> Vec<String> {
        range.map(|line| format!("{line}\n")).collect()
    }

    #[tokio::test]
    async fn everything_is_read_in_order_over_parts_that_were_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write_lines(&path, 200, 40);
        assert!(rotated(&path, 3).exists());
        assert_eq!(texts(&path, LogOptions::default()).await, numbers(0..40));
    }

    #[tokio::test]
    async fn the_tail_reaches_back_into_older_parts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write_lines(&path, 200, 40);
        for lines in [0, 1, 3, 4, 5, 11, 39, 40, 41] {
            let options = LogOptions {
                tail_lines: Some(lines),
                ..LogOptions::default()
            };
            let first = 40_u64.saturating_sub(lines as u64);
            assert_eq!(texts(&path, options).await, numbers(first..40), "tail {lines}");
        }
    }

    #[tokio::test]
    async fn what_is_older_than_asked_for_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write_lines(&path, 1 << 20, 10);
        let since = Some(at(7).try_into().unwrap());
        assert_eq!(
            texts(
                &path,
                LogOptions {
                    since,
                    ..LogOptions::default()
                }
            )
            .await,
            numbers(7..10)
        );
    }

    #[tokio::test]
    async fn the_last_entry_is_cut_at_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write_lines(&path, 1 << 20, 10);
        let options = LogOptions {
            limit_bytes: Some(5),
            ..LogOptions::default()
        };
        assert_eq!(texts(&path, options).await, ["0\n", "1\n", "2"]);
    }

    #[tokio::test]
    async fn one_who_follows_sees_every_line_over_rotations_until_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let (sender, ended) = watch::channel(false);
        let options = LogOptions {
            follow: true,
            ..LogOptions::default()
        };
        let mut reader = LogReader::open(path.clone(), options, ended).await.unwrap();
        let writer = tokio::task::spawn_blocking(move || {
            write_lines(&path, 1000, 300);
            sender.send(true).unwrap();
        });
        let mut seen = Vec::new();
        while let Some(entry) = reader.next().await.unwrap() {
            seen.push(String::from_utf8(entry.text).unwrap());
        }
        writer.await.unwrap();
        assert_eq!(seen, numbers(0..300));
    }

    #[tokio::test]
    async fn a_log_that_does_not_exist_is_empty() {
        assert!(
            texts(Path::new("/nonexistent/0.log"), LogOptions::default())
                .await
                .is_empty()
        );
    }

    #[test]
    fn a_piece_of_a_line_has_no_end_of_line() {
        let entry = Entry::parse(b"2016-10-06T00:17:10.113242941Z stderr P half ").unwrap();
        assert_eq!(
            (entry.stream, entry.text.as_slice()),
            (LogStream::Stderr, b"half ".as_slice())
        );
        assert_eq!(entry.with_timestamp(), b"2016-10-06T00:17:10.113242941Z half ");
        assert_eq!(Entry::parse(b"nonsense"), None);
    }
}

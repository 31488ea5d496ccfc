//! Appending to the log, and replacing its beginning by a snapshot.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::files::{Files, Hold, Writable};
use super::frame::{self, Prologue};
use super::names::{self, LOG_MAGIC};
use super::note::Note;
use super::{Committing, DiskOptions, codec, snapshot};
use crate::Revision;
use crate::committer::{Accepted, Journal};
use crate::view::View;

/// How far the length of a log runs ahead of what is written. A sync that need not record a new length is faster by a
/// third.
const LENGTH_AHEAD: u64 = 1 << 20;

/// So many logs are worth a snapshot however small they are.
const MANY_LOGS: usize = 32;

/// The log on disk.
pub(super) struct Log {
    files: Arc<dyn Files>,
    options: DiskOptions,
    /// The log being appended to. None until the first append, and after every failure: a file that failed once is never
    /// written again, because nothing is known of it but what was synced before.
    segment: Option<Segment>,
    /// The newest revision that the log holds for good.
    revision: Revision,
    note: Note,
    /// What a snapshot would make obsolete.
    since_snapshot: Extent,
    /// The size of the last snapshot, or a guess at it.
    snapshot_bytes: u64,
    running: Option<Snapshotting>,
    buffer: Vec<u8>,
    /// Failures leave this set until a log can be made again.
    failed: bool,
    _hold: Hold,
}

/// How much log there is.
#[derive(Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) bytes: u64,
    pub(super) logs: usize,
}

struct Segment {
    file: Box<dyn Writable>,
    /// The end of the last frame that was synced.
    end: u64,
    length: u64,
    ahead: u64,
}

/// A snapshot on its way.
struct Snapshotting {
    thread: JoinHandle<io::Result<u64>>,
    stop: Arc<AtomicBool>,
}

impl Log {
    pub(super) fn new(
        files: Arc<dyn Files>,
        hold: Hold,
        options: DiskOptions,
        revision: Revision,
        since_snapshot: Extent,
        snapshot_bytes: u64,
    ) -> io::Result<Self> {
        let mut note = Note::open(&*files)?;
        note.write(revision);
        Ok(Self {
            files,
            options,
            segment: None,
            revision,
            note,
            since_snapshot,
            snapshot_bytes,
            running: None,
            buffer: Vec::new(),
            failed: false,
            _hold: hold,
        })
    }

    fn write(&mut self, accepted: &[Accepted]) -> io::Result<Revision> {
        let (Some(first), Some(last)) = (accepted.first(), accepted.last()) else {
            return Ok(self.revision);
        };
        frame::begin(&mut self.buffer);
        for transaction in accepted {
            codec::put_transaction(&mut self.buffer, transaction);
        }
        let count =
            u32::try_from(accepted.len()).map_err(|_| io::Error::other("a batch holds too many transactions"))?;
        frame::seal(&mut self.buffer, first.revision, count)?;

        if self
            .segment
            .as_ref()
            .is_some_and(|segment| segment.end >= self.options.log_bytes)
        {
            self.leave_segment();
        }
        if self.segment.is_none() {
            self.segment = Some(Segment::create(&*self.files, first.revision, self.length_ahead())?);
            self.since_snapshot.logs += 1;
        }
        let segment = self.segment.as_mut().expect("made above if there was none");
        if let Err(error) = segment.append(&self.buffer) {
            // Nothing of the refused frame may be found after a crash. Should this fail too, it holds as soon as the next
            // log is made, whose name voids everything from its first revision on.
            let _ = segment.file.set_len(segment.end).and_then(|()| segment.file.sync());
            return Err(error);
        }
        self.since_snapshot.bytes += self.buffer.len() as u64;
        Ok(last.revision)
    }

    fn length_ahead(&self) -> u64 {
        LENGTH_AHEAD.min(self.options.log_bytes)
    }

    /// Goes on in a new log with the next append.
    fn leave_segment(&mut self) {
        if let Some(mut segment) = self.segment.take() {
            // The zeros at the end are only in the way; a log with them reads as well.
            let _ = segment.file.set_len(segment.end);
        }
    }

    fn collect_snapshot(&mut self) {
        if let Some(running) = self.running.take_if(|running| running.thread.is_finished()) {
            // After a failure the log is still there, whole, and the next attempt comes when it has grown as much again.
            if let Ok(Ok(bytes)) = running.thread.join() {
                self.snapshot_bytes = bytes;
            }
        }
    }

    fn wants_snapshot(&self) -> bool {
        let enough = self.options.snapshot_after_bytes.max(self.snapshot_bytes);
        self.since_snapshot.bytes >= enough || self.since_snapshot.logs >= MANY_LOGS
    }

    fn take_snapshot(&mut self, view: &View) {
        self.leave_segment();
        self.since_snapshot = Extent::default();
        let (records, revision) = {
            let state = view.read();
            (state.everything(), state.revision())
        };
        let files = Arc::clone(&self.files);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let bytes = snapshot::write(&*files, revision, &records, &stopped)?;
            snapshot::remove_covered(&*files, revision)?;
            Ok(bytes)
        };
        match self.options.committing {
            Committing::OnCallersThread => {
                if let Ok(bytes) = work() {
                    self.snapshot_bytes = bytes;
                }
            }
            Committing::OnOwnThread => {
                let thread = std::thread::Builder::new()
                    .name("store-snapshot".to_owned())
                    .spawn(work);
                self.running = thread.ok().map(|thread| Snapshotting { thread, stop });
            }
        }
    }
}

impl Journal for Log {
    fn append(&mut self, accepted: &[Accepted]) -> io::Result<()> {
        match self.write(accepted) {
            Ok(revision) => {
                self.failed = false;
                self.revision = revision;
                self.note.write(revision);
                Ok(())
            }
            Err(error) => {
                self.failed = true;
                self.segment = None;
                Err(error)
            }
        }
    }

    fn tidy(&mut self, view: &View) -> io::Result<()> {
        if self.failed {
            self.segment = Some(Segment::create(
                &*self.files,
                self.revision.next(),
                self.length_ahead(),
            )?);
            self.failed = false;
        }
        self.collect_snapshot();
        if self.running.is_none() && self.wants_snapshot() {
            self.take_snapshot(view);
        }
        Ok(())
    }

    fn close(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop.store(true, Ordering::Relaxed);
            let _ = running.thread.join();
        }
        self.leave_segment();
        // So that damage done to the files while nobody runs is told from a crash, down to the last write.
        self.note.sync();
    }
}

impl Segment {
    /// Makes a log that begins with `first`. Under its name it is whole from the start, and voids whatever earlier logs
    /// hold from `first` on.
    fn create(files: &dyn Files, first: Revision, ahead: u64) -> io::Result<Self> {
        let prologue = Prologue {
            magic: LOG_MAGIC,
            numbers: [first.get()],
        }
        .encode();
        let end = prologue.len() as u64;
        let length = end + ahead;
        let file = names::create_whole(files, &names::log(first), |file| {
            file.write_at(&prologue, 0)?;
            file.set_len(length)
        })?;
        Ok(Self {
            file,
            end,
            length,
            ahead,
        })
    }

    fn append(&mut self, frame: &[u8]) -> io::Result<()> {
        let end = self.end + frame.len() as u64;
        if end > self.length {
            self.file.set_len(end + self.ahead)?;
            self.length = end + self.ahead;
        }
        self.file.write_at(frame, self.end)?;
        self.file.sync()?;
        self.end = end;
        Ok(())
    }
}

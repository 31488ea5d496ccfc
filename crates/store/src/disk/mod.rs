//! A store on disk: a log of what was committed, and now and then a snapshot in place of its beginning.
//!
//! ```text
//!   durable                          the newest revision known to be on disk
//!   snapshot-00000000000000041200    everything there was at that revision
//!   log-00000000000000041201         transactions from that revision on, one frame per sync
//!   log-00000000000000056317         … the newest log is the one appended to
//!   lock                             held while the store is open
//! ```
//!
//! What is promised, and why it holds:
//! - *Nothing acknowledged is lost.* A batch is one frame, written and synced before anyone learns of it. A snapshot gets
//!   its name only when it is whole and durable, and what it replaces is removed only after that.
//! - *Nothing is invented.* A frame that a crash tore fails its checksum and is cut off. A frame that the disk refused is
//!   cut off at once, and void as soon as the next log begins: a log voids what earlier ones hold from its first revision
//!   on. So a file that failed is never written again, and nothing is ever assumed of unsynced bytes.
//! - *Damage is not mistaken for a crash.* A frame is written only after the one before is durable, and `durable` tells of
//!   the last one: whatever does not read well before that point was damaged, and the store refuses to open, naming file
//!   and offset, or keeps what comes before if told so ([`Damage`]). Revisions go on behind the lost ones even then.
//! - *The disk may fill up.* Writes are refused, reads go on, and the next write or idle moment tries a new log.
//!
//! A log of our own was chosen on measurement (two virtual cores, ext4 on a virtual disk whose bare `fdatasync` of 1 KiB
//! takes 0.12 ms; 1 KiB values; two rounds):
//!
//! | shape | durable puts/s, one a sync | 32 a sync | read back 20 MB |
//! | --- | --- | --- | --- |
//! | log, length set 64 MiB ahead of writing | 8.0–9.1k | 146–164k | 46 ms |
//! | log, length growing with each write | 6.3–6.4k | 133–135k | 15 ms |
//! | fjall 3.1, two keyspaces | 9.2k | 108–118k | 103–109 ms |
//! | redb 4.4, two tables | 4.5–4.8k | 58–62k | 16 ms |
//!
//! Reading back a log was reading and checking all of the file, zeros included (the store runs 1 MiB ahead, not 64), and
//! not decoding it; of the others, opening and scanning. Nothing is ever looked up on disk, so what trees and levels would
//! buy is not needed here.
//!
//! The whole store, by `examples/measure.rs` on the same machine, in a single run in which a bare sync took
//! 0.12 ms: 10.3k durable puts/s from one writer, 58k from 32, 0.1 ms from a durable put to its watch event. It follows the disk: with
//! builds writing beside it a bare `fdatasync` took 0.6–5 ms, and one writer got 0.2–0.6k puts/s, 32 got 4–38k.

mod codec;
mod files;
mod frame;
mod journal;
mod names;
mod note;
mod recovery;
mod simulated;
mod snapshot;

use std::io;

use thiserror::Error;

pub use files::{Directory, Files, Hold, LockError, Writable};
pub(crate) use recovery::{Recovered, recover};
pub use simulated::{Crash, SimulatedDisk};

use crate::{Options, Revision};
use frame::PrologueError;

/// How a store on disk behaves.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// What is not particular to disks.
    pub store: Options,
    /// A new log is begun when one has grown to this size.
    pub log_bytes: u64,
    /// A snapshot is taken when the logs have grown by this much, or by the size of the last snapshot if that is more.
    pub snapshot_after_bytes: u64,
    /// What to do about damaged files.
    pub damage: Damage,
    /// Where the work is done.
    pub committing: Committing,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            store: Options::default(),
            log_bytes: 16 << 20,
            snapshot_after_bytes: 32 << 20,
            damage: Damage::Refuse,
            committing: Committing::OnOwnThread,
        }
    }
}

/// What to do when files are damaged. A tail torn by a crash is not damage: it holds nothing acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Refuse to open.
    Refuse,
    /// Go on with everything committed before the damage, and set the damaged files aside. What is after it is lost, so
    /// the revision moves on behind whatever was given out, and all watches from before are told that it is compacted.
    /// A damaged snapshot is refused still: there is nothing before it.
    KeepWhatComesBefore,
}

/// Where commits are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committing {
    /// On a thread of the store: what is handed in while a sync is under way shares the next one.
    OnOwnThread,
    /// On the thread that hands in a write, so that what happens depends on nothing but the calls made.
    OnCallersThread,
}

/// What was found on opening.
#[derive(Debug)]
pub struct Recovery {
    /// Where the store stands.
    pub revision: Revision,
    /// How many objects there are.
    pub records: usize,
    /// What a crash had torn, and was cut off. Nothing of it had been acknowledged.
    pub cut: Vec<Cut>,
    /// What was damaged and set aside ([`Damage::KeepWhatComesBefore`]).
    pub salvaged: Option<OpenError>,
}

/// The torn end of a log, or the torn note of what is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub file: String,
    /// Where the tear began.
    pub offset: u64,
    /// How many bytes were cut off.
    pub bytes: u64,
}

/// Why a store could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The directory is in use.
    #[error("cannot open the store: {}", match by {
        Some(process) => format!("process {process} holds its directory"),
        None => "another process holds its directory".to_owned(),
    })]
    Held {
        /// The process that uses it, if it said so.
        by: Option<u32>,
    },
    /// A file was written by a later version of this code.
    #[error("cannot open the store: {file} has format {format}, the newest known here is {supported}")]
    NewerFormat {
        /// The file.
        file: String,
        /// Its format.
        format: u32,
        /// The newest format that can be read.
        supported: u32,
    },
    /// A file is not as it was written.
    #[error("cannot open the store: {file} is damaged at offset {offset}: {reason}")]
    Damaged {
        /// The file.
        file: String,
        /// Where what cannot be read begins.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file could not be read or written.
    #[error("cannot open the store: {file}")]
    Io {
        /// The file, or what was to be done.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    fn damaged(file: &str, offset: u64, reason: &'static str) -> Self {
        Self::Damaged {
            file: file.to_owned(),
            offset,
            reason,
        }
    }

    fn io(file: &str, source: io::Error) -> Self {
        Self::Io {
            file: file.to_owned(),
            source,
        }
    }

    fn prologue(file: &str, error: PrologueError) -> Self {
        match error {
            PrologueError::Newer { format } => Self::NewerFormat {
                file: file.to_owned(),
                format,
                supported: frame::FORMAT,
            },
            PrologueError::Broken => Self::damaged(file, 0, "its beginning does not read as it was written"),
            PrologueError::Io(source) => Self::io(file, source),
        }
    }
}

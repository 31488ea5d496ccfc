//! The files of a store, and how one comes into being whole.

use std::io;

use super::files::{Files, Writable};
use crate::Revision;

pub(super) const LOG_MAGIC: [u8; 8] = *b"moorlog\n";
pub(super) const SNAPSHOT_MAGIC: [u8; 8] = *b"moorshot";

/// The end of the name of a file that is not whole yet.
const UNFINISHED: &str = ".unfinished";

/// The beginning of the names of files put aside because they are damaged.
const DAMAGED: &str = "damaged-";

/// What a file is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Transactions from this revision on.
    Log(Revision),
    /// Everything that was there at this revision.
    Snapshot(Revision),
    /// Left behind by a crash.
    Unfinished,
    /// Not ours to judge.
    Other,
}

impl Kind {
    pub(super) fn of(name: &str) -> Self {
        let number = |digits: &str| digits.parse().ok().filter(|_| digits.len() == 20);
        if name.ends_with(UNFINISHED) {
            Self::Unfinished
        } else if let Some(first) = name.strip_prefix("log-").and_then(number) {
            Self::Log(first)
        } else if let Some(revision) = name.strip_prefix("snapshot-").and_then(number) {
            Self::Snapshot(revision)
        } else {
            Self::Other
        }
    }
}

pub(super) fn log(first: Revision) -> String {
    format!("log-{:020}", first.get())
}

pub(super) fn snapshot(revision: Revision) -> String {
    format!("snapshot-{:020}", revision.get())
}

/// Makes a file that has its name only once it is filled and durable.
pub(super) fn create_whole(
    files: &dyn Files,
    name: &str,
    write: impl FnOnce(&mut dyn Writable) -> io::Result<()>,
) -> io::Result<Box<dyn Writable>> {
    let unfinished = format!("{name}{UNFINISHED}");
    let mut made = files.create(&unfinished)?;
    let whole = write(&mut *made)
        .and_then(|()| made.sync())
        .and_then(|()| files.rename(&unfinished, name))
        .and_then(|()| files.sync_names());
    if let Err(error) = whole {
        let _ = files.remove(&unfinished);
        return Err(error);
    }
    Ok(made)
}

/// Puts a file out of the way for someone to look at.
pub(super) fn set_aside(files: &dyn Files, name: &str) -> io::Result<()> {
    files.rename(name, &format!("{DAMAGED}{name}"))
}

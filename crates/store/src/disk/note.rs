//! The note of how far the log is durable: how damage to its last frame is told from a crash while it was written.
//!
//! It is written with every commit and synced with none, so it may tell of less than there is, but never of more, and the
//! power may go while it is being written. Unreadable it is reported, made anew, and nothing is lost but some certainty.

use std::io::{self, Read};

use super::OpenError;
use super::files::{Files, Writable};
use super::frame::{Prologue, PrologueError};
use super::names;
use crate::Revision;

/// The name of the file. It is made before any other.
pub(super) const DURABLE: &str = "durable";

const MAGIC: [u8; 8] = *b"moordur\n";

/// The note, open to be written.
pub(super) struct Note(Box<dyn Writable>);

fn encode(revision: Revision) -> Vec<u8> {
    Prologue {
        magic: MAGIC,
        numbers: [revision.get()],
    }
    .encode()
}

impl Note {
    /// Makes the note anew.
    pub(super) fn create(files: &dyn Files, revision: Revision) -> io::Result<()> {
        names::create_whole(files, DURABLE, |file| file.write_at(&encode(revision), 0)).map(drop)
    }

    pub(super) fn open(files: &dyn Files) -> io::Result<Self> {
        files.open(DURABLE).map(Self)
    }

    /// Notes that everything up to `revision` is durable.
    pub(super) fn write(&mut self, revision: Revision) {
        let _ = self.0.write_at(&encode(revision), 0);
    }

    pub(super) fn sync(&mut self) {
        let _ = self.0.sync();
    }

    /// What the note says, if it can be read.
    pub(super) fn read(files: &dyn Files) -> Result<Option<Revision>, OpenError> {
        let mut source = files.read(DURABLE).map_err(|error| OpenError::io(DURABLE, error))?;
        match Prologue::<1>::read(&mut source, MAGIC) {
            Ok(prologue) if source.read(&mut [0]).is_ok_and(|more| more == 0) => {
                Ok(Some(Revision::new(prologue.numbers[0])))
            }
            Ok(_) | Err(PrologueError::Broken) => Ok(None),
            Err(error) => Err(OpenError::prologue(DURABLE, error)),
        }
    }
}

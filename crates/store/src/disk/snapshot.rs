//! Everything there is at one revision, in one file.

use std::io::{self, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::files::Files;
use super::frame::{self, Frames, Next, Prologue};
use super::names::{self, Kind, SNAPSHOT_MAGIC};
use super::{OpenError, codec};
use crate::{Record, Revision};

/// How much goes into a frame. Each is synced on its own, so that the syncs of the log in the meantime are not held up
/// behind one large one.
const FRAME_BYTES: usize = 1 << 20;

/// Writes a snapshot and gives its size. Until it is whole and durable it does not have its name.
pub(super) fn write(
    files: &dyn Files,
    revision: Revision,
    records: &[Arc<Record>],
    stop: &AtomicBool,
) -> io::Result<u64> {
    let prologue = Prologue {
        magic: SNAPSHOT_MAGIC,
        numbers: [revision.get(), records.len() as u64],
    }
    .encode();
    let mut end = prologue.len() as u64;
    names::create_whole(files, &names::snapshot(revision), |file| {
        file.write_at(&prologue, 0)?;
        let mut rest = records;
        let mut buffer = Vec::new();
        while !rest.is_empty() {
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            frame::begin(&mut buffer);
            let mut count = 0;
            while let Some((record, others)) = rest.split_first()
                && buffer.len() < FRAME_BYTES
            {
                codec::put_record(&mut buffer, record);
                count += 1;
                rest = others;
            }
            frame::seal(&mut buffer, revision, count)?;
            file.write_at(&buffer, end)?;
            file.sync()?;
            end += buffer.len() as u64;
        }
        Ok(())
    })?;
    Ok(end)
}

/// Reads a snapshot, handing out each record, and gives its size.
pub(super) fn read(files: &dyn Files, revision: Revision, mut each: impl FnMut(Record)) -> Result<u64, OpenError> {
    let name = names::snapshot(revision);
    let mut source = BufReader::new(files.read(&name).map_err(|error| OpenError::io(&name, error))?);
    let prologue =
        Prologue::<2>::read(&mut source, SNAPSHOT_MAGIC).map_err(|error| OpenError::prologue(&name, error))?;
    let [stated, promised] = prologue.numbers;
    let mut offset = Prologue::<2>::SIZE as u64;
    if stated != revision.get() {
        return Err(OpenError::damaged(&name, 0, "the file is named after another revision"));
    }
    let mut frames = Frames::new(source, offset);
    let mut near = None;
    let mut found = 0;
    loop {
        match frames.next().map_err(|error| OpenError::io(&name, error))? {
            Next::Frame(head, payload) => {
                let mut payload = &payload[..];
                for _ in 0..head.count {
                    let record = codec::get_record(&mut payload, near.as_ref())
                        .map_err(|_| OpenError::damaged(&name, offset, "a record makes no sense"))?;
                    near = Some(record.key.clone());
                    found += 1;
                    each(record);
                }
                offset = frames.offset;
            }
            Next::End if found == promised => return Ok(offset),
            Next::End => return Err(OpenError::damaged(&name, offset, "records are missing at the end")),
            Next::Broken(_) => return Err(OpenError::damaged(&name, offset, "the checksum does not match")),
        }
    }
}

/// Removes what a durable snapshot makes obsolete: older snapshots, and the logs that begin before it, which also end
/// before it because a new log is begun with every snapshot.
pub(super) fn remove_covered(files: &dyn Files, revision: Revision) -> io::Result<()> {
    for name in files.names()? {
        match Kind::of(&name) {
            Kind::Log(first) if first <= revision => files.remove(&name)?,
            Kind::Snapshot(other) if other < revision => files.remove(&name)?,
            _ => {}
        }
    }
    files.sync_names()
}

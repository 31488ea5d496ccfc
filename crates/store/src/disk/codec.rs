//! How transactions and records are laid out within a frame.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, TryGetError};

use crate::committer::Accepted;
use crate::record::{Effect, decimal_digits};
use crate::{Key, Record, Resource, Revision};

/// A change as the log tells it: what it did, not what was there before.
pub(super) struct Logged {
    pub(super) key: Key,
    /// The value and its slot; none for a deletion.
    pub(super) written: Option<(Bytes, Option<u32>)>,
}

/// A payload that its checksum vouches for makes no sense: not damage, but a mistake of whoever wrote it.
#[derive(Debug)]
pub(super) struct Malformed;

impl From<TryGetError> for Malformed {
    fn from(_: TryGetError) -> Self {
        Self
    }
}

/// Stands for the absence of a slot; no value is that long.
const NO_SLOT: u32 = u32::MAX;

const WRITE: u8 = 1;
const DELETE: u8 = 2;

pub(super) fn put_transaction(buffer: &mut Vec<u8>, accepted: &Accepted) {
    put_length(buffer, accepted.changes.len());
    for change in &accepted.changes {
        match &change.effect {
            Effect::Created { now } | Effect::Updated { now, .. } => {
                buffer.put_u8(WRITE);
                put_key(buffer, &now.key);
                put_value(buffer, now);
            }
            Effect::Deleted { before } => {
                buffer.put_u8(DELETE);
                put_key(buffer, &before.key);
            }
        }
    }
}

pub(super) fn get_transaction(payload: &mut &[u8], near: Option<&Key>) -> Result<Vec<Logged>, Malformed> {
    let count = payload.try_get_u32_le()?;
    let mut changes: Vec<Logged> = Vec::new();
    for _ in 0..count {
        let tag = payload.try_get_u8()?;
        let key = get_key(payload, changes.last().map(|change| &change.key).or(near))?;
        let written = match tag {
            WRITE => Some(get_value(payload)?),
            DELETE => None,
            _ => return Err(Malformed),
        };
        changes.push(Logged { key, written });
    }
    Ok(changes)
}

pub(super) fn put_record(buffer: &mut Vec<u8>, record: &Record) {
    put_key(buffer, &record.key);
    buffer.put_u64_le(record.create_revision.get());
    buffer.put_u64_le(record.mod_revision.get());
    buffer.put_u64_le(record.version);
    put_value(buffer, record);
}

/// Reads a record; its attributes are for the caller to work out.
pub(super) fn get_record(payload: &mut &[u8], near: Option<&Key>) -> Result<Record, Malformed> {
    let key = get_key(payload, near)?;
    let create_revision = Revision::new(payload.try_get_u64_le()?);
    let mod_revision = Revision::new(payload.try_get_u64_le()?);
    let version = payload.try_get_u64_le()?;
    let (value, revision_at) = get_value(payload)?;
    if !slot_lies_within(revision_at, mod_revision, &value) {
        return Err(Malformed);
    }
    Ok(Record {
        key,
        create_revision,
        mod_revision,
        version,
        value,
        revision_at,
        attributes: Arc::default(),
    })
}

/// Whether the value has room for the revision that its slot says is there.
pub(super) fn slot_lies_within(slot: Option<u32>, revision: Revision, value: &[u8]) -> bool {
    slot.is_none_or(|at| at as usize + decimal_digits(revision) <= value.len())
}

fn put_length(buffer: &mut Vec<u8>, length: usize) {
    buffer.put_u32_le(u32::try_from(length).expect("a transaction is smaller than 1 GiB"));
}

fn put_text(buffer: &mut Vec<u8>, text: &str) {
    put_length(buffer, text.len());
    buffer.put_slice(text.as_bytes());
}

fn put_key(buffer: &mut Vec<u8>, key: &Key) {
    put_text(buffer, key.resource().as_str());
    put_text(buffer, key.namespace());
    put_text(buffer, key.name());
}

fn put_value(buffer: &mut Vec<u8>, record: &Record) {
    buffer.put_u32_le(record.revision_at.unwrap_or(NO_SLOT));
    put_length(buffer, record.value.len());
    buffer.put_slice(&record.value);
}

fn get_slice<'a>(payload: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = payload.try_get_u32_le()? as usize;
    let (slice, rest) = payload.split_at_checked(length).ok_or(Malformed)?;
    *payload = rest;
    Ok(slice)
}

fn get_text<'a>(payload: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    str::from_utf8(get_slice(payload)?).map_err(|_| Malformed)
}

fn get_key(payload: &mut &[u8], near: Option<&Key>) -> Result<Key, Malformed> {
    let (resource, namespace, name) = (get_text(payload)?, get_text(payload)?, get_text(payload)?);
    let key = Key::new(&Resource::new(resource), namespace, name);
    Ok(match near {
        Some(near) => key.sharing_with(near),
        None => key,
    })
}

fn get_value(payload: &mut &[u8]) -> Result<(Bytes, Option<u32>), Malformed> {
    let slot = payload.try_get_u32_le()?;
    let value = Bytes::copy_from_slice(get_slice(payload)?);
    Ok((value, (slot != NO_SLOT).then_some(slot)))
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn record() -> Record {
        Record {
            key: Key::new(&Resource::new("things"), "home", "a"),
            create_revision: Revision::new(3),
            mod_revision: Revision::new(17),
            version: 4,
            value: Bytes::from_static(b"rv=17!"),
            revision_at: Some(3),
            attributes: Arc::default(),
        }
    }

    #[test]
    fn a_record_reads_back() {
        let mut payload = Vec::new();
        put_record(&mut payload, &record());
        let read = get_record(&mut &payload[..], None).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", record()));
    }

    #[test]
    fn a_slot_that_lies_outside_its_value_makes_no_sense() {
        for slot in [5, 6, 1_000, u32::MAX - 1] {
            let mut payload = Vec::new();
            put_record(
                &mut payload,
                &Record {
                    revision_at: Some(slot),
                    ..record()
                },
            );
            assert!(get_record(&mut &payload[..], None).is_err(), "{slot}");
        }
    }

    #[test]
    fn no_bytes_whatever_bring_the_decoders_down() {
        let mut random = Rng::with_seed(11);
        let mut whole = Vec::new();
        put_record(&mut whole, &record());
        let mut refused = 0;
        for _ in 0..100_000 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..5) {
                let position = random.usize(..bytes.len());
                bytes[position] = random.u8(..);
            }
            bytes.truncate(random.usize(..=bytes.len()));
            refused += usize::from(get_record(&mut &bytes[..], None).is_err());
            refused += usize::from(get_transaction(&mut &bytes[..], None).is_err());
        }
        assert!(refused > 100_000, "{refused}");
    }
}

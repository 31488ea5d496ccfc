use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::{Key, Revision};

/// One version of an object: immutable, shared by readers, watchers and history alike.
#[derive(Debug)]
pub struct Record {
    pub(crate) key: Key,
    pub(crate) create_revision: Revision,
    pub(crate) mod_revision: Revision,
    pub(crate) version: u64,
    pub(crate) value: Bytes,
    pub(crate) revision_at: Option<u32>,
    pub(crate) attributes: Arc<Attributes>,
}

impl Record {
    /// Where the object is kept.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// When the object came into being.
    pub fn create_revision(&self) -> Revision {
        self.create_revision
    }

    /// When this version was written.
    pub fn mod_revision(&self) -> Revision {
        self.mod_revision
    }

    /// How many times the object has been written since its creation; 1 for a new one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The bytes as written, with [`mod_revision`](Self::mod_revision) in the slot that the writer left for it.
    pub fn value(&self) -> &Bytes {
        &self.value
    }

    /// What selectors look at.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// This version as an object that departs at `revision`: the same content under the later revision.
    fn departing_at(&self, revision: Revision) -> Self {
        let value = match self.revision_at {
            None => self.value.clone(),
            Some(at) => {
                let digits = decimal_digits(self.mod_revision);
                let at = at as usize;
                splice(&self.value[..at], revision, &self.value[at + digits..])
            }
        };
        Self {
            key: self.key.clone(),
            create_revision: self.create_revision,
            mod_revision: revision,
            version: self.version,
            value,
            revision_at: self.revision_at,
            attributes: Arc::clone(&self.attributes),
        }
    }
}

/// What a writer hands in: bytes, and where among them the revision belongs.
///
/// An object carries its own revision, which is known only when the write commits. So the writer leaves a gap of no
/// width, and the digits are put there at that moment; readers then serve the bytes as they are.
#[derive(Clone, Debug)]
pub struct Value {
    bytes: Bytes,
    revision_at: Option<u32>,
}

impl Value {
    /// Bytes that do not carry their revision.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self {
            bytes: bytes.into(),
            revision_at: None,
        }
    }

    /// Bytes into which the decimal revision is inserted before the byte at `at`.
    ///
    /// # Panics
    /// When `at` lies behind the end of the bytes or beyond 4 GiB.
    pub fn with_revision_at(bytes: impl Into<Bytes>, at: usize) -> Self {
        let bytes = bytes.into();
        assert!(
            at <= bytes.len(),
            "the revision slot at {at} lies behind the {} bytes of the value",
            bytes.len()
        );
        let at = u32::try_from(at).expect("a value is smaller than 4 GiB");
        Self {
            bytes,
            revision_at: Some(at),
        }
    }

    /// The bytes without a revision.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Where the revision goes.
    pub fn revision_at(&self) -> Option<usize> {
        self.revision_at.map(|at| at as usize)
    }

    /// The bytes as they read once written at `revision`, and the slot.
    pub(crate) fn stamped(&self, revision: Revision) -> (Bytes, Option<u32>) {
        let bytes = match self.revision_at() {
            None => self.bytes.clone(),
            Some(at) => splice(&self.bytes[..at], revision, &self.bytes[at..]),
        };
        (bytes, self.revision_at)
    }
}

fn splice(head: &[u8], revision: Revision, tail: &[u8]) -> Bytes {
    let digits = revision.to_string();
    let mut bytes = Vec::with_capacity(head.len() + digits.len() + tail.len());
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(digits.as_bytes());
    bytes.extend_from_slice(tail);
    Bytes::from(bytes)
}

pub(crate) fn decimal_digits(revision: Revision) -> usize {
    revision.get().checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// What selectors look at, worked out once per write so that no reader ever parses a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Tells one object from another that had the same key before or after it.
    pub uid: Box<str>,
    /// Labels.
    pub labels: Pairs,
    /// Fields that the resource allows to select by, as path and value.
    pub fields: Pairs,
}

/// Works out the [`Attributes`] of a value.
///
/// Called on the writer's thread before the revision is known, and again for each object when a store is opened from
/// disk; it must give the same answer both times, so it looks neither at the revision nor at the world.
pub trait Describe: Send + Sync + 'static {
    /// The attributes of `value`, to be kept at `key`.
    fn describe(&self, key: &Key, value: &[u8]) -> Attributes;
}

impl<F: Fn(&Key, &[u8]) -> Attributes + Send + Sync + 'static> Describe for F {
    fn describe(&self, key: &Key, value: &[u8]) -> Attributes {
        self(key, value)
    }
}

/// A small map from text to text, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs(Box<[(Box<str>, Box<str>)]>);

impl Pairs {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        let index = self.0.binary_search_by(|(candidate, _)| (**candidate).cmp(key)).ok()?;
        Some(&self.0[index].1)
    }

    /// All pairs in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Pairs {
    /// Of two pairs with one key the later counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut sorted: Vec<(Box<str>, Box<str>)> = pairs
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        sorted.reverse();
        sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
        sorted.dedup_by(|(later, _), (earlier, _)| later == earlier);
        Self(sorted.into_boxed_slice())
    }
}

/// What one transaction did to one key.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) effect: Effect,
    /// What went, under the revision at which it went. Made once, for whoever asks first, and shared.
    departed: OnceLock<Arc<Record>>,
}

#[derive(Debug)]
pub(crate) enum Effect {
    Created { now: Arc<Record> },
    Updated { now: Arc<Record>, before: Arc<Record> },
    Deleted { before: Arc<Record> },
}

impl Change {
    pub(crate) fn new(revision: Revision, effect: Effect) -> Self {
        Self {
            revision,
            effect,
            departed: OnceLock::new(),
        }
    }

    pub(crate) fn key(&self) -> &Key {
        match &self.effect {
            Effect::Created { now } | Effect::Updated { now, .. } => &now.key,
            Effect::Deleted { before } => &before.key,
        }
    }

    pub(crate) fn now(&self) -> Option<&Arc<Record>> {
        match &self.effect {
            Effect::Created { now } | Effect::Updated { now, .. } => Some(now),
            Effect::Deleted { .. } => None,
        }
    }

    pub(crate) fn before(&self) -> Option<&Arc<Record>> {
        match &self.effect {
            Effect::Created { .. } => None,
            Effect::Updated { before, .. } | Effect::Deleted { before } => Some(before),
        }
    }

    /// The previous version under this revision, for those from whose sight it goes.
    pub(crate) fn departed(&self, before: &Record) -> Arc<Record> {
        Arc::clone(
            self.departed
                .get_or_init(|| Arc::new(before.departing_at(self.revision))),
        )
    }

    /// What the transaction answers for this key: what is there now, or what went.
    pub(crate) fn outcome(&self) -> Arc<Record> {
        match &self.effect {
            Effect::Created { now } | Effect::Updated { now, .. } => Arc::clone(now),
            Effect::Deleted { before } => self.departed(before),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resource;

    fn record(value: &'static str, at: usize, revision: u64) -> Record {
        let (value, revision_at) = Value::with_revision_at(value, at).stamped(Revision::new(revision));
        Record {
            key: Key::new(&Resource::new("things"), "", "a"),
            create_revision: Revision::new(revision),
            mod_revision: Revision::new(revision),
            version: 1,
            value,
            revision_at,
            attributes: Arc::default(),
        }
    }

    #[test]
    fn the_revision_is_put_into_its_slot() {
        assert_eq!(record(r#"{"rv":"","x":1}"#, 7, 42).value, r#"{"rv":"42","x":1}"#);
        assert_eq!(record("end", 3, 7).value, "end7");
    }

    #[test]
    fn what_departs_carries_the_later_revision_even_when_it_has_more_digits() {
        let departed = record(r#"{"rv":"","x":1}"#, 7, 99).departing_at(Revision::new(100));
        assert_eq!(departed.value, r#"{"rv":"100","x":1}"#);
        assert_eq!(departed.mod_revision, Revision::new(100));
        assert_eq!(departed.create_revision, Revision::new(99));
    }

    #[test]
    fn digits_are_counted_at_every_power_of_ten() {
        for exponent in 0..20 {
            let power = 10_u64.pow(exponent);
            for number in [power - 1, power, power + 1] {
                assert_eq!(
                    decimal_digits(Revision::new(number)),
                    number.to_string().len(),
                    "{number}"
                );
            }
        }
    }

    #[test]
    #[should_panic(expected = "lies behind the 3 bytes")]
    fn a_slot_behind_the_value_is_refused() {
        let _ = Value::with_revision_at("abc", 4);
    }

    #[test]
    fn of_pairs_with_one_key_the_last_counts() {
        let pairs: Pairs = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
        assert_eq!((pairs.get("b"), pairs.get("c")), (Some("3"), None));
    }
}

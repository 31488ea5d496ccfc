//! Objects as they are stored and as they travel.
//!
//! An object is stored as JSON without `apiVersion` and `kind`, with a gap for its revision. To answer with it, the two
//! are put in front: nothing is parsed, and every served version of a resource shares the stored bytes.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use moorline_store::Value as StoredValue;
use serde_json::{Map, Value};

/// The bytes to store for an object, with the place of its revision.
///
/// # Panics
/// When the object has no metadata; every object that reaches the store has.
pub(crate) fn to_stored(object: &Value) -> StoredValue {
    write_stored(object, None)
}

/// The same for an object of a custom kind: of those, the version that they are stored in is kept, in front.
pub(crate) fn to_stored_with_version(object: &Value) -> StoredValue {
    write_stored(object, object["apiVersion"].as_str())
}

fn write_stored(object: &Value, version: Option<&str>) -> StoredValue {
    let fields = object.as_object().expect("an object to store is a JSON object");
    let mut bytes = Vec::with_capacity(1024);
    let mut revision_at = None;
    bytes.push(b'{');
    if let Some(version) = version {
        bytes.extend_from_slice(&VERSION_MARK[1..]);
        bytes.extend_from_slice(version.as_bytes());
        bytes.push(b'"');
    }
    for (name, value) in fields
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind"))
    {
        write_name(&mut bytes, name);
        if name == "metadata" {
            revision_at = Some(write_metadata(
                &mut bytes,
                value.as_object().expect("metadata is a JSON object"),
            ));
        } else {
            serde_json::to_writer(&mut bytes, value).expect("a JSON value can be written");
        }
    }
    bytes.push(b'}');
    StoredValue::with_revision_at(bytes, revision_at.expect("an object to store has metadata"))
}

/// How a stored object begins that keeps its version. No other one does: a field of that name is never stored.
const VERSION_MARK: &[u8] = b"{\"apiVersion\":\"";

/// The version that a stored object keeps.
pub(crate) fn stored_version(stored: &[u8]) -> Option<&str> {
    let rest = stored.strip_prefix(VERSION_MARK)?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// A stored object without its opening brace and the version that it may keep.
fn stored_fields(stored: &[u8]) -> &[u8] {
    match stored_version(stored) {
        Some(version) => &stored[VERSION_MARK.len() + version.len() + 2..],
        None => &stored[1..],
    }
}

/// Writes metadata and returns where the revision goes.
fn write_metadata(bytes: &mut Vec<u8>, metadata: &Map<String, Value>) -> usize {
    bytes.push(b'{');
    for (name, value) in metadata.iter().filter(|(name, _)| name.as_str() != "resourceVersion") {
        write_name(bytes, name);
        serde_json::to_writer(&mut *bytes, value).expect("a JSON value can be written");
    }
    write_name(bytes, "resourceVersion");
    bytes.push(b'"');
    let revision_at = bytes.len();
    bytes.extend_from_slice(b"\"}");
    revision_at
}

fn write_name(bytes: &mut Vec<u8>, name: &str) {
    if bytes.last() != Some(&b'{') {
        bytes.push(b',');
    }
    serde_json::to_writer(&mut *bytes, name).expect("a string can be written");
    bytes.push(b':');
}

/// A stored object as JSON, with its type.
pub(crate) fn from_stored(stored: &[u8], api_version: &str, kind: &str) -> Value {
    let mut object: Value = serde_json::from_slice(stored).expect("only JSON is stored, and checksums guard it");
    if let Some(fields) = object.as_object_mut() {
        fields.insert("apiVersion".to_owned(), api_version.into());
        fields.insert("kind".to_owned(), kind.into());
    }
    object
}

/// What turns stored bytes into an answer: everything up to the first stored field.
#[derive(Clone, Debug)]
pub(crate) struct TypePrefix(Bytes);

impl TypePrefix {
    /// The prefix of a type.
    pub(crate) fn new(api_version: &str, kind: &str) -> Self {
        let mut text = String::new();
        let _ = write!(text, "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",");
        Self(Bytes::from(text))
    }

    /// Appends a stored object with its type.
    pub(crate) fn append(&self, to: &mut BytesMut, stored: &[u8]) {
        to.extend_from_slice(&self.0);
        to.extend_from_slice(stored_fields(stored));
    }

    /// A stored object with its type.
    pub(crate) fn whole(&self, stored: &[u8]) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.0.len() + stored.len());
        self.append(&mut bytes, stored);
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use moorline_store::{Attributes, Key, Options, Resource, Store};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_comes_back_as_it_was_stored_with_its_revision() {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "data": {"resourceVersion": "not this one", "metadata": "nor this"},
            "metadata": {"name": "c", "resourceVersion": "7", "uid": "u"},
        });
        let store = Store::memory(Options::default(), |_: &Key, _: &[u8]| Attributes::default());
        let key = Key::new(&Resource::new("configmaps"), "n", "c");
        let record = store.create(key, to_stored(&object)).wait().unwrap().into_record();
        let mut expected = object;
        expected["metadata"]["resourceVersion"] = record.mod_revision().to_string().into();
        assert_eq!(from_stored(record.value(), "v1", "ConfigMap"), expected);
        let answer = TypePrefix::new("v1", "ConfigMap").whole(record.value());
        assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap(), expected);
    }

    #[test]
    fn an_object_that_keeps_its_version_is_served_in_another() {
        let object = json!({
            "apiVersion": "example.com/v1", "kind": "Database", "Also": 1, "metadata": {"name": "d"}, "spec": {"a": 1},
        });
        let store = Store::memory(Options::default(), |_: &Key, _: &[u8]| Attributes::default());
        let key = Key::new(&Resource::new("example.com/databases"), "n", "d");
        let record = store
            .create(key, to_stored_with_version(&object))
            .wait()
            .unwrap()
            .into_record();
        assert_eq!(stored_version(record.value()), Some("example.com/v1"));
        let answer = TypePrefix::new("example.com/v2", "Database").whole(record.value());
        let mut expected = object;
        expected["apiVersion"] = "example.com/v2".into();
        expected["metadata"]["resourceVersion"] = record.mod_revision().to_string().into();
        assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap(), expected);
        assert!(!answer.windows(14).any(|window| window == b"example.com/v1"));
    }
}

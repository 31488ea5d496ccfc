//! The door: what is read out of an object's JSON when it comes in, and what is left outside.

use std::{borrow::Cow, collections::BTreeMap, fmt, ops::Range, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    intern::intern,
    kind::Kind,
    object::{DecodeError, Meta, Owner},
};

/// Reads the metadata and gives the JSON without managed fields, and with its type where the server left it out.
///
/// One pass over the bytes and one copy; the rest of the object is not looked into.
pub(crate) fn at_the_door(kind: &Kind, json: &[u8], keep: &[Arc<str>]) -> Result<(Meta, Box<str>), DecodeError> {
    let unreadable = |error: serde_json::Error| DecodeError {
        what: format!("an object of kind {kind}"),
        why: error.to_string(),
    };
    let text = std::str::from_utf8(json).map_err(|error| DecodeError {
        what: format!("an object of kind {kind}"),
        why: error.to_string(),
    })?;
    let outer: Outer<Metadata<'_>> = serde_json::from_str(text).map_err(unreadable)?;
    let metadata = outer.metadata;
    let managed = metadata
        .managed_fields
        .map(|fields| range_of_member(json, fields.get()));
    let meta = metadata.settle(keep);

    let prefix = if outer.api_version.is_none() {
        format!(r#"{{"apiVersion":"{}","kind":"{}","#, kind.api_version(), kind.name())
    } else {
        String::new()
    };
    let mut kept =
        String::with_capacity(prefix.len() + json.len() - managed.as_ref().map_or(0, ExactSizeIterator::len));
    let mut from = 0;
    if !prefix.is_empty() {
        kept.push_str(&prefix);
        from = json.iter().position(|byte| *byte == b'{').map_or(0, |brace| brace + 1);
    }
    if let Some(managed) = managed {
        kept.push_str(&text[from..managed.start]);
        from = managed.end;
    }
    kept.push_str(&text[from..]);
    Ok((meta, kept.into_boxed_str()))
}

/// Which object some JSON is, and which version of it: enough to know that nothing has changed.
pub(crate) struct Glance<'a> {
    pub(crate) namespace: Cow<'a, str>,
    pub(crate) name: Cow<'a, str>,
    pub(crate) uid: Cow<'a, str>,
    pub(crate) version: u64,
}

/// Looks at an object without taking it in; `None` when it cannot be read.
pub(crate) fn glance(json: &str) -> Option<Glance<'_>> {
    let outer: Outer<Identity<'_>> = serde_json::from_str(json).ok()?;
    let identity = outer.metadata;
    Some(Glance {
        namespace: identity.namespace.0,
        name: identity.name.0,
        uid: identity.uid.0,
        version: identity.resource_version.0.parse().ok()?,
    })
}

/// The bytes of a member of an object, with its key and one comma, by its value, which lies within `json`.
fn range_of_member(json: &[u8], value: &str) -> Range<usize> {
    let start = value.as_ptr() as usize - json.as_ptr() as usize;
    let end = start + value.len();
    let mut before = start;
    // Back over the colon and the quoted key.
    let mut quotes = 0;
    while quotes < 2 {
        before -= 1;
        quotes += usize::from(json[before] == b'"');
    }
    let blank_before = json[..before]
        .iter()
        .rev()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count();
    if json[before - blank_before - 1] == b',' {
        return before - blank_before - 1..end;
    }
    let blank_after = json[end..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    match json.get(end + blank_after) {
        Some(b',') => before..end + blank_after + 1,
        _ => before..end,
    }
}

#[derive(Deserialize)]
struct Outer<M> {
    #[serde(rename = "apiVersion")]
    api_version: Option<IgnoredAny>,
    metadata: M,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    namespace: Text<'a>,
    #[serde(borrow, default)]
    uid: Text<'a>,
    #[serde(borrow, default)]
    resource_version: Text<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    namespace: Text<'a>,
    #[serde(borrow, default)]
    uid: Text<'a>,
    #[serde(borrow, default)]
    resource_version: Text<'a>,
    #[serde(default)]
    generation: Option<i64>,
    #[serde(borrow, default)]
    deletion_timestamp: Option<&'a RawValue>,
    #[serde(borrow, default)]
    labels: Option<BTreeMap<Text<'a>, Text<'a>>>,
    #[serde(borrow, default)]
    owner_references: Option<Vec<Reference<'a>>>,
    #[serde(borrow, default)]
    finalizers: Option<Vec<Text<'a>>>,
    #[serde(borrow, default)]
    managed_fields: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference<'a> {
    #[serde(borrow)]
    api_version: Text<'a>,
    #[serde(borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    uid: Text<'a>,
    #[serde(default)]
    controller: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedEntry<'a> {
    #[serde(borrow, default)]
    manager: Text<'a>,
    #[serde(borrow, default)]
    operation: Text<'a>,
    #[serde(borrow, default)]
    subresource: Text<'a>,
    #[serde(borrow, default)]
    fields_v1: Option<&'a RawValue>,
}

impl Metadata<'_> {
    fn settle(self, keep: &[Arc<str>]) -> Meta {
        let labels = self.labels.unwrap_or_default();
        let owners = self.owner_references.unwrap_or_default();
        let finalizers = self.finalizers.unwrap_or_default();
        Meta {
            namespace: intern(&self.namespace.0),
            name: Arc::from(&*self.name.0),
            uid: Arc::from(&*self.uid.0),
            version: self.resource_version.0.parse().unwrap_or(0),
            generation: self.generation.unwrap_or(0),
            deleting: self.deletion_timestamp.is_some_and(|stamp| stamp.get() != "null"),
            labels: labels
                .iter()
                .map(|(key, value)| (intern(&key.0), intern(&value.0)))
                .collect(),
            owners: owners.iter().map(Reference::settle).collect(),
            finalizers: finalizers.iter().map(|name| intern(&name.0)).collect(),
            applied: self
                .managed_fields
                .map(|fields| applied(fields.get(), keep))
                .unwrap_or_default(),
        }
    }
}

/// What the field owners of interest have applied, status left out.
fn applied(managed: &str, keep: &[Arc<str>]) -> Box<[(Arc<str>, Box<str>)]> {
    // Most objects were never applied by any of them, and need no second reading to know it.
    let may_be_there = |owner: &Arc<str>| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        !owner.bytes().all(is_plain) || memchr::memmem::find(managed.as_bytes(), owner.as_bytes()).is_some()
    };
    if !keep.iter().any(may_be_there) {
        return Box::default();
    }
    let entries: Vec<ManagedEntry<'_>> = serde_json::from_str(managed).unwrap_or_default();
    entries
        .iter()
        .filter(|entry| entry.operation.0 == "Apply" && entry.subresource.0.is_empty())
        .filter_map(|entry| {
            let owner = keep.iter().find(|owner| ***owner == *entry.manager.0)?;
            Some((Arc::clone(owner), Box::from(entry.fields_v1?.get())))
        })
        .collect()
}

impl Reference<'_> {
    fn settle(&self) -> Owner {
        Owner {
            api_version: intern(&self.api_version.0),
            kind: intern(&self.kind.0),
            name: intern(&self.name.0),
            uid: intern(&self.uid.0),
            controller: self.controller.unwrap_or(false),
        }
    }
}

/// A text that is borrowed from the bytes unless it has escapes; serde borrows a `Cow` only at the top of a field.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_unit<E>(self) -> Result<Text<'de>, E> {
                Ok(Text::default())
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn read(json: &str, keep: &[Arc<str>]) -> (Meta, Value) {
        let (meta, json) = at_the_door(&Kind::of::<Pod>(), json.as_bytes(), keep).unwrap();
        (meta, serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn managed_fields_stay_outside_wherever_they_stand() {
        for metadata in [
            r#"{"name":"a","managedFields":[{"manager":"x"}]}"#,
            r#"{"managedFields":[{"manager":"x"}],"name":"a"}"#,
            r#"{ "managedFields" : [ ] , "name":"a" }"#,
            r#"{"name":"a" , "managedFields" : [{"m":"]}\""}] ,"uid":"u"}"#,
        ] {
            let text = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{metadata},"spec":{{"a":[1,{{}}]}}}}"#);
            let (meta, value) = read(&text, &[]);
            assert_eq!(&*meta.name, "a");
            assert_eq!(value["metadata"].get("managedFields"), None, "{text}");
            assert_eq!(value["metadata"]["name"], "a");
            assert_eq!(value["spec"], json!({ "a": [1, {}] }));
        }
        let (_, value) = read(r#"{"metadata":{"managedFields":[]},"spec":1}"#, &[]);
        assert_eq!(
            value,
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": 1 })
        );
    }

    #[test]
    fn an_item_of_a_list_gets_the_type_that_the_list_left_out() {
        let (_, value) = read(r#"{"metadata":{"name":"a"}}"#, &[]);
        assert_eq!(value["kind"], "Pod");
        assert_eq!(value["apiVersion"], "v1");
    }

    #[test]
    fn what_a_kept_field_owner_applied_is_remembered() {
        let text = r#"{"metadata":{"name":"a","managedFields":[
            {"manager":"ours","operation":"Apply","fieldsV1":{"f:spec":{}}},
            {"manager":"ours","operation":"Apply","subresource":"status","fieldsV1":{"f:status":{}}},
            {"manager":"theirs","operation":"Apply","fieldsV1":{}},
            {"manager":"ours","operation":"Update","fieldsV1":{"f:x":{}}}]}}"#;
        let (meta, _) = read(text, &[Arc::from("ours")]);
        assert_eq!(&*meta.applied, [(Arc::from("ours"), Box::from(r#"{"f:spec":{}}"#))]);
    }

    #[test]
    fn what_everybody_asks_for_is_read_once() {
        let text = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","generation":2,
            "deletionTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"w\u0065b"},"finalizers":["f"],
            "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"o","controller":true}]}}"#;
        let (meta, _) = read(text, &[]);
        assert_eq!((meta.version, meta.generation, meta.deleting), (7, 2, true));
        assert_eq!(&*meta.labels, [(Arc::from("app"), Arc::from("web"))]);
        assert!(meta.owners[0].controller);
        assert_eq!(&*meta.finalizers[0], "f");
    }

    #[test]
    fn what_is_no_object_is_refused_with_its_kind() {
        let error = at_the_door(&Kind::of::<Pod>(), br#"{"metadata":5}"#, &[]).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot read an object of kind Pod: "),
            "{error}"
        );
    }
}

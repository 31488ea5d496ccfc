//! Pod templates: whether two are the same, and a short name for one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The label by which a deployment tells the pods of its replica sets apart.
pub(crate) const TEMPLATE_HASH: &str = "pod-template-hash";

/// The characters of names that Kubernetes makes: without vowels, so that no words come about.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Whether two templates make the same pods, the label that tells them apart left aside.
pub(crate) fn is_same(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    normal(a) == normal(b)
}

/// The template as JSON, without what does not matter and with empty parts left out.
pub(crate) fn normal(template: &PodTemplateSpec) -> Value {
    let mut value = serde_json::to_value(template).unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(TEMPLATE_HASH);
        }
        // Maps of text, which the server leaves out when they are empty.
        metadata.retain(|_, member| member.as_object().is_none_or(|map| !map.is_empty()));
    }
    leave_out_empty(&mut value);
    value
}

/// Takes away members that are null or empty lists: writing them or leaving them out means the same. An empty object may
/// mean something else than none, as a selector of everything does.
pub(crate) fn leave_out_empty(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(leave_out_empty);
            members.retain(|_, member| !member.is_null() && member.as_array().is_none_or(|list| !list.is_empty()));
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out_empty),
        _ => {}
    }
}

/// A short name for contents, another one for each count of collisions.
pub(crate) fn short_hash(contents: &impl Serialize, collisions: Option<i32>) -> String {
    let mut hasher = Sha256::new();
    hasher.update(serde_json::to_vec(contents).unwrap_or_default());
    if let Some(collisions) = collisions.filter(|count| *count > 0) {
        hasher.update(collisions.to_le_bytes());
    }
    hasher
        .finalize()
        .iter()
        .take(10)
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect()
}

/// Adds a label.
pub(crate) fn label(labels: &mut Option<BTreeMap<String, String>>, key: &str, value: &str) {
    labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

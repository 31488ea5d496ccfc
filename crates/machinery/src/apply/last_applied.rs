//! The annotation in which client-side apply remembers what it applied. The server keeps it true for the manager
//! `kubectl`, and lets that manager take over what the annotation shows to be its own.

use serde_json::Value;

use super::set::FieldSet;
use super::typed::{compare, field_set};
use crate::schema::Schema;

/// The annotation.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manager for whom the annotation is kept.
pub(super) const KUBECTL: &str = "kubectl";

/// All annotations of an object may take this many bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The fields that the annotation of `live` shows to have been applied and not changed since.
pub(super) fn still_applied(live: &Value, api_version: &str, schema: &Schema) -> Option<FieldSet> {
    let applied: Value = serde_json::from_str(annotation(live)?).ok()?;
    if applied.get("apiVersion").and_then(Value::as_str) != Some(api_version) {
        return None;
    }
    let at = Some(schema.place());
    let changes = compare(&applied, live, at);
    let fields = field_set(&applied, at);
    Some(
        fields
            .difference(&changes.modified)
            .difference(&changes.added)
            .difference(&changes.removed),
    )
}

/// Writes what was applied into the annotation, where there is one.
pub(super) fn keep(object: &mut Value, applied: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut applied = applied.clone();
    if let Some(annotations) = annotations_mut(&mut applied) {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{applied}\n");
    let Some(annotations) = annotations_mut(object) else {
        return;
    };
    annotations.insert(LAST_APPLIED.to_owned(), Value::from(text));
    let size: usize = annotations
        .iter()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(LAST_APPLIED);
    }
}

fn annotation(object: &Value) -> Option<&str> {
    let text = object
        .get("metadata")?
        .get("annotations")?
        .get(LAST_APPLIED)?
        .as_str()?;
    Some(text).filter(|text| !text.is_empty())
}

fn annotations_mut(object: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
}

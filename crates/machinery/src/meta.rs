//! An object's metadata: reading it, and the rules under which it is made and changed.
//!
//! [`of`] borrows; nothing is copied and nothing fails: what is absent or of the wrong type reads as absent, because an
//! object in the store has passed [`validate`].

mod lifecycle;
mod validate;

pub use lifecycle::{
    Birth, FORBIDDEN_NAMESPACE, Generation, Scope, UnversionedUpdate, check_resource_version, equal, generated_name,
    mark_deleted, name_suffix, not_a_version, parse_resource_version, prepare_for_create, prepare_for_update,
};
use serde_json::{Map, Value};
pub use validate::{
    FINALIZER_FOREGROUND, FINALIZER_ORPHAN, Finalizers, Look, validate, validate_field_manager, validate_update,
};

use crate::gvk::split_api_version;

/// The metadata of an object, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a>(Option<&'a Map<String, Value>>);

/// One entry of `ownerReferences`, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    /// Group and version of the owner's kind.
    pub api_version: &'a str,
    /// The owner's kind.
    pub kind: &'a str,
    /// The owner's name.
    pub name: &'a str,
    /// The owner's uid, which is what decides.
    pub uid: &'a str,
    /// Whether this owner controls the object.
    pub controller: bool,
    /// Whether a foreground deletion of the owner waits for this object.
    pub block_owner_deletion: bool,
}

/// The metadata of an object.
pub fn of(object: &Value) -> Meta<'_> {
    Meta(object.get("metadata").and_then(Value::as_object))
}

/// The metadata of an object for writing; an empty one is put in where there is none. `None` if `object` is no object.
pub fn of_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let metadata = object
        .as_object_mut()?
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut()
}

/// Writes `metadata.resourceVersion`.
pub fn set_resource_version(object: &mut Value, version: &str) {
    if let Some(metadata) = of_mut(object) {
        metadata.insert("resourceVersion".to_owned(), version.into());
    }
}

impl<'a> Meta<'a> {
    fn get(self, key: &str) -> Option<&'a Value> {
        self.0?.get(key)
    }

    fn text(self, key: &str) -> &'a str {
        self.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// The whole of it, if there is any.
    pub fn as_map(self) -> Option<&'a Map<String, Value>> {
        self.0
    }

    /// `metadata.name`, empty if absent.
    pub fn name(self) -> &'a str {
        self.text("name")
    }

    /// `metadata.generateName`, empty if absent.
    pub fn generate_name(self) -> &'a str {
        self.text("generateName")
    }

    /// `metadata.namespace`, empty for cluster-wide objects.
    pub fn namespace(self) -> &'a str {
        self.text("namespace")
    }

    /// `metadata.uid`, empty if absent.
    pub fn uid(self) -> &'a str {
        self.text("uid")
    }

    /// `metadata.resourceVersion`, empty if absent.
    pub fn resource_version(self) -> &'a str {
        self.text("resourceVersion")
    }

    /// `metadata.generation`, 0 if absent.
    pub fn generation(self) -> i64 {
        self.get("generation").and_then(Value::as_i64).unwrap_or_default()
    }

    /// `metadata.creationTimestamp`, if set.
    pub fn creation_timestamp(self) -> Option<&'a str> {
        self.get("creationTimestamp")?.as_str()
    }

    /// `metadata.deletionTimestamp`, if the object is being deleted.
    pub fn deletion_timestamp(self) -> Option<&'a str> {
        self.get("deletionTimestamp")?.as_str()
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(self) -> bool {
        self.deletion_timestamp().is_some()
    }

    /// `metadata.deletionGracePeriodSeconds`, if set.
    pub fn deletion_grace_period_seconds(self) -> Option<i64> {
        self.get("deletionGracePeriodSeconds")?.as_i64()
    }

    /// `metadata.labels`, if any; a selector matches over it.
    pub fn labels(self) -> Option<&'a Map<String, Value>> {
        self.get("labels")?.as_object()
    }

    /// The value of a label.
    pub fn label(self, key: &str) -> Option<&'a str> {
        self.labels()?.get(key)?.as_str()
    }

    /// `metadata.annotations`, if any.
    pub fn annotations(self) -> Option<&'a Map<String, Value>> {
        self.get("annotations")?.as_object()
    }

    /// The value of an annotation.
    pub fn annotation(self, key: &str) -> Option<&'a str> {
        self.annotations()?.get(key)?.as_str()
    }

    /// `metadata.finalizers` in their order.
    pub fn finalizers(self) -> impl Iterator<Item = &'a str> {
        self.get("finalizers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
    }

    /// Whether a finalizer is there.
    pub fn has_finalizer(self, finalizer: &str) -> bool {
        self.finalizers().any(|candidate| candidate == finalizer)
    }

    /// `metadata.ownerReferences` in their order.
    pub fn owner_references(self) -> impl Iterator<Item = OwnerReference<'a>> {
        self.get("ownerReferences")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(OwnerReference::read)
    }

    /// The owner that controls the object.
    pub fn controller(self) -> Option<OwnerReference<'a>> {
        self.owner_references().find(|owner| owner.controller)
    }

    /// `metadata.managedFields` as they are.
    pub fn managed_fields(self) -> &'a [Value] {
        self.get("managedFields")
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }
}

impl<'a> OwnerReference<'a> {
    fn read(value: &'a Value) -> Self {
        let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let flag = |key| value.get(key).and_then(Value::as_bool).unwrap_or_default();
        OwnerReference {
            api_version: text("apiVersion"),
            kind: text("kind"),
            name: text("name"),
            uid: text("uid"),
            controller: flag("controller"),
            block_owner_deletion: flag("blockOwnerDeletion"),
        }
    }

    /// The group of the owner's kind; empty for the core group and for text that is no group and version.
    pub fn group(&self) -> &'a str {
        split_api_version(self.api_version).map_or("", |(group, _)| group)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_there_is_read_and_what_is_not_reads_as_absent() {
        let object = json!({"metadata": {
            "name": "n", "namespace": "s", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "1"},
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "p", "uid": "2", "controller": true},
            ],
            "managedFields": [{"manager": "m"}],
        }});
        let meta = of(&object);
        assert_eq!(
            (meta.name(), meta.namespace(), meta.uid(), meta.resource_version()),
            ("n", "s", "u", "7")
        );
        assert_eq!(meta.generation(), 3);
        assert_eq!(
            (meta.label("a"), meta.annotation("c"), meta.label("z")),
            (Some("b"), Some("d"), None)
        );
        assert!(meta.has_finalizer("x/y"));
        assert!(!meta.is_deleting());
        assert_eq!(
            meta.controller().map(|owner| (owner.name, owner.group())),
            Some(("p", "apps"))
        );
        assert_eq!(meta.managed_fields().len(), 1);

        for object in [
            json!({}),
            json!({"metadata": null}),
            json!([1]),
            json!({"metadata": {"name": 1, "labels": []}}),
        ] {
            let meta = of(&object);
            assert_eq!((meta.name(), meta.generation(), meta.labels()), ("", 0, None));
            assert_eq!(meta.finalizers().count() + meta.owner_references().count(), 0);
        }
    }

    #[test]
    fn writing_makes_room_where_there_is_none() {
        let mut object = json!({"metadata": null});
        set_resource_version(&mut object, "9");
        assert_eq!(object, json!({"metadata": {"resourceVersion": "9"}}));
        assert!(of_mut(&mut json!(1)).is_none());
    }
}

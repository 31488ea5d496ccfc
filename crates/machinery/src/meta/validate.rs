//! What metadata may hold.

use serde_json::{Value, json};

use super::{Meta, OwnerReference, Scope, of};
use crate::{
    field::{FieldError, Path, quote},
    gvk::split_api_version,
    names::{self, NamePart, NameRule},
};

/// The finalizer that keeps dependents of a deleted object.
pub const FINALIZER_ORPHAN: &str = "orphan";
/// The finalizer that keeps a deleted object until its dependents are gone.
pub const FINALIZER_FOREGROUND: &str = "foregroundDeletion";

const ANNOTATIONS_MAX: usize = 256 * 1024;
const FIELD_MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;
const IMMUTABLE: &str = "field is immutable";

/// Which finalizers a kind takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finalizers {
    /// Any that are well formed. Custom kinds, and what tells of kinds and admission.
    Any,
    /// Those that name the domain of whoever waits, and the few that Kubernetes knows by a bare name. All others.
    Qualified,
}

/// One look at the metadata of what is written. A kind may look more than once, and tells everything as often as it
/// sees it: clients compare the causes of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Look {
    /// At the new metadata as such: [`validate`].
    Whole(Finalizers),
    /// At what changed: [`validate_update`].
    Change(Finalizers),
}

impl Look {
    /// What it finds.
    pub fn find(self, new: &Value, old: &Value, scope: Scope<'_>, rule: NameRule) -> Vec<FieldError> {
        let (mut errors, finalizers) = match self {
            Self::Whole(finalizers) => (validate(new, scope, rule), finalizers),
            Self::Change(finalizers) => (validate_update(new, old), finalizers),
        };
        finalizers.validate(of(new), &mut errors);
        errors
    }
}

impl Finalizers {
    fn validate(self, meta: Meta<'_>, errors: &mut Vec<FieldError>) {
        if self == Self::Any {
            return;
        }
        let metadata = Path::root("metadata");
        let path = metadata.child("finalizers");
        for (index, finalizer) in meta.finalizers().enumerate() {
            let known = ["kubernetes", FINALIZER_ORPHAN, FINALIZER_FOREGROUND].contains(&finalizer);
            if !finalizer.contains('/') && !known {
                let why = "name is neither a standard finalizer name nor is it fully qualified";
                errors.push(FieldError::invalid(&path.index(index), finalizer, why));
            }
        }
    }
}

/// What is wrong with metadata as such.
pub fn validate(object: &Value, scope: Scope<'_>, rule: NameRule) -> Vec<FieldError> {
    let (meta, path) = (of(object), Path::root("metadata"));
    let mut errors = Vec::new();
    validate_names(meta, &path, rule, &mut errors);
    validate_namespace(meta, &path, scope, &mut errors);
    if meta.generation() < 0 {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&path.child("generation"), meta.generation(), why));
    }
    validate_labels(meta, &path, &mut errors);
    validate_annotations(meta, &path, &mut errors);
    validate_owner_references(meta, &path, &mut errors);
    validate_finalizers(meta, &path, &mut errors);
    validate_managed_fields(meta, &path, &mut errors);
    errors
}

/// What is wrong with an update of metadata. Much of it [`validate`] finds too.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let (new_meta, old, path) = (of(new), of(old), Path::root("metadata"));
    let mut errors = Vec::new();
    if old.is_deleting() {
        let mut added: Vec<&str> = new_meta
            .finalizers()
            .filter(|finalizer| !old.has_finalizer(finalizer))
            .collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let added: Vec<String> = added.into_iter().map(quote).collect();
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden(&path.child("finalizers"), why));
        }
    }
    if new_meta.resource_version().is_empty() {
        let why = "must be specified for an update";
        errors.push(FieldError::invalid(&path.child("resourceVersion"), "", why));
    }
    if new_meta.generation() < old.generation() {
        let why = "must not be decremented";
        errors.push(FieldError::invalid(
            &path.child("generation"),
            new_meta.generation(),
            why,
        ));
    }
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let (new, old) = (present(new_meta, key), present(old, key));
        if new != old {
            let shown = match key {
                "name" | "namespace" | "uid" => new.cloned().unwrap_or_else(|| json!("")),
                _ => new.cloned().unwrap_or_default(),
            };
            errors.push(FieldError::invalid(&path.child(key), shown, IMMUTABLE));
        }
    }
    validate_labels(new_meta, &path, &mut errors);
    validate_annotations(new_meta, &path, &mut errors);
    validate_owner_references(new_meta, &path, &mut errors);
    validate_managed_fields(new_meta, &path, &mut errors);
    errors
}

/// What is wrong with the name of a field manager.
pub fn validate_field_manager(manager: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if manager.len() > FIELD_MANAGER_MAX {
        errors.push(FieldError::too_long(path, FIELD_MANAGER_MAX));
    }
    for (position, character) in manager.char_indices() {
        if character.is_control() {
            let why = format!(
                "invalid character U+{:04X} (at position {position})",
                u32::from(character)
            );
            errors.push(FieldError::invalid(path, manager, why));
        }
    }
}

fn present<'a>(meta: Meta<'a>, key: &str) -> Option<&'a Value> {
    meta.get(key)
        .filter(|value| !value.is_null() && value.as_str() != Some(""))
}

fn validate_names(meta: Meta<'_>, path: &Path<'_>, rule: NameRule, errors: &mut Vec<FieldError>) {
    if !meta.generate_name().is_empty() {
        let complaints = rule.check(meta.generate_name(), NamePart::Prefix);
        report(complaints, meta.generate_name(), &path.child("generateName"), errors);
    }
    if meta.name().is_empty() {
        errors.push(FieldError::required(
            &path.child("name"),
            "name or generateName is required",
        ));
    } else {
        report(
            rule.check(meta.name(), NamePart::Whole),
            meta.name(),
            &path.child("name"),
            errors,
        );
    }
}

fn validate_namespace(meta: Meta<'_>, path: &Path<'_>, scope: Scope<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("namespace");
    match (scope, meta.namespace()) {
        (Scope::Cluster, "") => {}
        (Scope::Cluster, _) => errors.push(FieldError::forbidden(&path, "not allowed on this type")),
        (Scope::Namespace(_), "") => errors.push(FieldError::required(&path, "")),
        (Scope::Namespace(_), namespace) => report(names::dns_label(namespace), namespace, &path, errors),
    }
}

fn validate_labels(meta: Meta<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("labels");
    for (key, value) in meta.labels().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        report(names::qualified_name(key), key, &path, errors);
        report(names::label_value(value), value, &path, errors);
    }
}

fn validate_annotations(meta: Meta<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("annotations");
    let mut size = 0;
    for (key, value) in meta.annotations().into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        // Unlike labels, annotations may have capitals before the slash.
        report(names::qualified_name(&key.to_lowercase()), key, &path, errors);
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(&path, ANNOTATIONS_MAX));
    }
}

fn validate_owner_references(meta: Meta<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("ownerReferences");
    let mut controller: Option<OwnerReference<'_>> = None;
    for (index, owner) in meta.owner_references().enumerate() {
        let (group, version) = split_api_version(owner.api_version).unwrap_or_default();
        for (key, part, found, why) in [
            ("apiVersion", version, owner.api_version, "version must not be empty"),
            ("kind", owner.kind, owner.kind, "must not be empty"),
            ("name", owner.name, owner.name, "must not be empty"),
            ("uid", owner.uid, owner.uid, "must not be empty"),
        ] {
            if part.is_empty() {
                errors.push(FieldError::invalid(&path.child(key), found, why));
            }
        }
        let written = || meta.get("ownerReferences").cloned().unwrap_or_default();
        if (group, version, owner.kind) == ("", "v1", "Event") {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(&path, written()[index].clone(), why));
        }
        if owner.controller {
            if let Some(first) = controller {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {}/{} and {}/{}",
                    first.kind, first.name, owner.kind, owner.name
                );
                errors.push(FieldError::invalid(&path, written(), why));
            }
            controller = controller.or(Some(owner));
        }
    }
}

fn validate_finalizers(meta: Meta<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("finalizers");
    for finalizer in meta.finalizers() {
        report(names::qualified_name(finalizer), finalizer, &path, errors);
    }
    if meta.has_finalizer(FINALIZER_ORPHAN) && meta.has_finalizer(FINALIZER_FOREGROUND) {
        let why = format!("finalizer {FINALIZER_ORPHAN} and {FINALIZER_FOREGROUND} cannot be both set");
        errors.push(FieldError::invalid(
            &path,
            meta.get("finalizers").cloned().unwrap_or_default(),
            why,
        ));
    }
}

fn validate_managed_fields(meta: Meta<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("managedFields");
    for (index, entry) in meta.managed_fields().iter().enumerate() {
        let path = path.index(index);
        let text = |key| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        if !matches!(text("operation"), "Apply" | "Update") {
            let why = "must be `Apply` or `Update`";
            errors.push(FieldError::invalid(&path.child("operation"), text("operation"), why));
        }
        if !matches!(text("fieldsType"), "" | "FieldsV1") {
            let why = "must be `FieldsV1`";
            errors.push(FieldError::invalid(&path.child("fieldsType"), text("fieldsType"), why));
        }
        validate_field_manager(text("manager"), &path.child("manager"), errors);
        if text("subresource").len() > SUBRESOURCE_MAX {
            errors.push(FieldError::too_long(&path.child("subresource"), SUBRESOURCE_MAX));
        }
    }
}

fn report(complaints: Vec<String>, value: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    errors.extend(
        complaints
            .into_iter()
            .map(|complaint| FieldError::invalid(path, value, complaint)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(errors: &[FieldError]) -> Vec<&str> {
        errors.iter().map(|error| error.field.as_str()).collect()
    }

    #[test]
    fn sound_metadata_passes() {
        let object = json!({"metadata": {
            "name": "db.example", "namespace": "n", "labels": {"example.com/a": "B_1"},
            "annotations": {"Example.com/A": "anything at all"}, "finalizers": ["example.com/f", "orphan"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "1", "controller": true}],
            "managedFields": [{"operation": "Apply", "manager": "m", "fieldsType": "FieldsV1"}],
        }});
        assert_eq!(validate(&object, Scope::Namespace("n"), NameRule::DnsSubdomain), []);
        let mut stored = object;
        stored["metadata"]["resourceVersion"] = json!("1");
        assert_eq!(validate_update(&stored, &stored), []);
    }

    #[test]
    fn every_wrong_field_is_named() {
        let object = json!({"metadata": {
            "generateName": "A_b-", "namespace": "N", "generation": -1, "labels": {"a": "-"}, "annotations": {"/": ""},
            "finalizers": ["-", "orphan", "foregroundDeletion"],
            "ownerReferences": [
                {"kind": "K", "name": "a", "uid": "1", "apiVersion": "v1", "controller": true},
                {"kind": "K", "name": "b", "uid": "2", "apiVersion": "v1", "controller": true},
                {"kind": "Event", "name": "b", "apiVersion": "v1"},
            ],
            "managedFields": [{"operation": "Take", "manager": "a\nb", "fieldsType": "V2"}],
        }});
        assert_eq!(
            fields(&validate(&object, Scope::Namespace("n"), NameRule::DnsSubdomain)),
            [
                "metadata.generateName",
                "metadata.name",
                "metadata.namespace",
                "metadata.generation",
                "metadata.labels",
                "metadata.annotations",
                "metadata.annotations",
                "metadata.annotations",
                "metadata.ownerReferences",
                "metadata.ownerReferences.uid",
                "metadata.ownerReferences",
                "metadata.finalizers",
                "metadata.finalizers",
                "metadata.managedFields[0].operation",
                "metadata.managedFields[0].fieldsType",
                "metadata.managedFields[0].manager",
            ]
        );
    }

    #[test]
    fn annotations_are_bounded_together() {
        let object = json!({"metadata": {"name": "a", "annotations": {"a": "x".repeat(ANNOTATIONS_MAX)}}});
        let errors = validate(&object, Scope::Cluster, NameRule::PathSegment);
        assert_eq!(
            errors[0].to_string(),
            "metadata.annotations: Too long: may not be more than 262144 bytes"
        );
    }

    #[test]
    fn a_cluster_wide_object_has_no_namespace() {
        let object = json!({"metadata": {"name": "a", "namespace": "n"}});
        let errors = validate(&object, Scope::Cluster, NameRule::DnsLabel);
        assert_eq!(
            errors[0].to_string(),
            "metadata.namespace: Forbidden: not allowed on this type"
        );
    }

    #[test]
    fn what_is_immutable_cannot_be_changed() {
        let old = json!({"metadata": {"name": "a", "uid": "1", "resourceVersion": "1", "generation": 3}});
        let new = json!({"metadata": {"name": "b", "uid": "2", "deletionTimestamp": "x"}});
        let errors = validate_update(&new, &old);
        assert_eq!(
            fields(&errors),
            [
                "metadata.resourceVersion",
                "metadata.generation",
                "metadata.name",
                "metadata.uid",
                "metadata.deletionTimestamp"
            ]
        );
        assert_eq!(
            errors[3].to_string(),
            "metadata.uid: Invalid value: \"2\": field is immutable"
        );
    }

    #[test]
    fn no_finalizer_is_added_to_what_is_being_deleted() {
        let old = json!({"metadata": {"resourceVersion": "1", "deletionTimestamp": "x", "finalizers": ["a"]}});
        let new =
            json!({"metadata": {"resourceVersion": "1", "deletionTimestamp": "x", "finalizers": ["c", "a", "b"]}});
        let errors = validate_update(&new, &old);
        assert_eq!(
            errors[0].to_string(),
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new \
             finalizers []string{\"b\", \"c\"}"
        );
    }

    #[test]
    fn only_finalizers_of_kubernetes_may_have_bare_names() {
        let object = json!({"metadata": {"name": "a", "finalizers": ["mine", "orphan", "example.com/f"]}});
        let find = |look: Look| look.find(&object, &object, Scope::Cluster, NameRule::DnsSubdomain);
        assert_eq!(find(Look::Whole(Finalizers::Any)), []);
        let found = find(Look::Whole(Finalizers::Qualified));
        assert_eq!(
            found[0].to_string(),
            "metadata.finalizers[0]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully \
             qualified"
        );
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_look_at_a_change_finds_bad_labels_once_more() {
        let old = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
        let new = json!({"metadata": {"name": "a", "resourceVersion": "1", "labels": {"a": "-"}}});
        assert_eq!(fields(&validate_update(&new, &old)), ["metadata.labels"]);
    }
}

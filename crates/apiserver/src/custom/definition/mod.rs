//! `CustomResourceDefinition` objects: what is filled in, what may be written, and what is said when it may not.
//!
//! Kubernetes looks at a definition after lifting to the top whatever all versions have in common, and names fields by
//! where they stand then: with one version, a fault in its schema lies in `spec.validation`, not in `spec.versions[0]`.
//! Clients compare messages, so the same is done here ([`Shared`]).

mod conversion;
mod names;
#[cfg(test)]
mod tests;
mod version;

use moorline_machinery::{
    field::{ErrorKind, FieldError, Path},
    meta, time,
};
use serde_json::{Value, json};

use super::condition::{self, Condition};
pub(crate) use conversion::ca_bundle_fault;
use conversion::{Bundle, Review};
use version::Shared;

/// The finalizer by which a definition waits for its objects to go.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// By what right a definition lies in a group of the Kubernetes project.
const APPROVAL: &str = "api-approved.kubernetes.io";

/// Fills in what may be left out.
pub(crate) fn default(object: &mut Value) {
    let spec = &mut object["spec"];
    if !spec.is_object() {
        *spec = json!({});
    }
    let names = &mut spec["names"];
    if !names.is_object() {
        *names = json!({});
    }
    let kind = text(names, "kind").to_owned();
    for always in ["plural", "kind"] {
        if !names[always].is_string() {
            names[always] = "".into();
        }
    }
    if text(names, "singular").is_empty() && !kind.is_empty() {
        names["singular"] = kind.to_lowercase().into();
    }
    if text(names, "listKind").is_empty() && !kind.is_empty() {
        names["listKind"] = format!("{kind}List").into();
    }
    for version in spec["versions"]
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter(|version| version.is_object())
    {
        for flag in ["served", "storage"] {
            if !version[flag].is_boolean() {
                version[flag] = false.into();
            }
        }
    }
    if !spec["conversion"].is_object() {
        spec["conversion"] = json!({ "strategy": "None" });
    }
    let service = spec
        .pointer_mut("/conversion/webhook/clientConfig/service")
        .and_then(Value::as_object_mut);
    if let Some(service) = service {
        let port = service.entry("port").or_insert(Value::Null);
        if port.is_null() {
            *port = 443.into();
        }
    }
}

/// Brings a new definition into its first state: it is stored in one version, and nothing else is known of it.
pub(crate) fn prepare_create(object: &mut Value) {
    let stored: Vec<String> = storage_version(object).into_iter().map(str::to_owned).collect();
    let stored = if stored.is_empty() { Value::Null } else { json!(stored) };
    object["status"] = json!({
        "conditions": null, "acceptedNames": { "plural": "", "kind": "" }, "storedVersions": stored,
    });
}

/// Keeps the status, but for noting in which versions objects may be stored.
pub(crate) fn prepare_update(object: &mut Value, old: &Value) {
    object["status"] = old["status"].clone();
    let Some(storage) = storage_version(object).map(str::to_owned) else {
        return;
    };
    let stored = &mut object["status"]["storedVersions"];
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Some(stored) = stored.as_array_mut()
        && !stored.iter().any(|version| *version == storage)
    {
        stored.push(storage.into());
    }
}

/// Brings a definition that was just marked as deleted into the state of waiting for its objects to go.
pub(crate) fn prepare_delete(object: &mut Value) {
    if condition::holds(object, condition::TERMINATING) {
        return;
    }
    let Some(since) = meta::of(object)
        .deletion_timestamp()
        .and_then(|text| time::parse(text).ok())
    else {
        return;
    };
    // Definitions go without grace, and their generation tells of their specification alone.
    let generation = meta::of(object).generation();
    if let Some(metadata) = meta::of_mut(object) {
        metadata.remove("deletionGracePeriodSeconds");
        if generation > 1 {
            metadata.insert("generation".to_owned(), (generation - 1).into());
        }
    }
    if !meta::of(object).has_finalizer(CLEANUP) {
        let mut finalizers: Vec<String> = meta::of(object).finalizers().map(str::to_owned).collect();
        finalizers.push(CLEANUP.to_owned());
        object["metadata"]["finalizers"] = json!(finalizers);
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    Condition::new(condition::TERMINATING, true, "InstanceDeletionPending", message).set(object, since);
}

/// Everything that is wrong with a new definition, its metadata aside but for the name.
pub(crate) fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let name = meta::of(object).name();
    let required = format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group"));
    if name != required {
        let metadata = Path::root("metadata");
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(&metadata.child("name"), name, detail));
    }
    check_spec(spec, &Leniency::default(), &mut errors);
    names::check(&object["status"]["acceptedNames"], "status.acceptedNames", &mut errors);
    check_stored_versions(object, &mut errors);
    check_approval(object, None, &mut errors);
    check_preserved(spec, None, &mut errors);
    errors
}

/// Everything that is wrong with a change of a definition, its metadata aside.
pub(crate) fn validate_update(object: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (spec, old_spec) = (&object["spec"], &old["spec"]);
    if spec == old_spec {
        // A write of the status may take versions from the stored ones as it sees fit: a migration ends like that.
        names::check(&object["status"]["acceptedNames"], "status.acceptedNames", &mut errors);
        return errors;
    }
    check_spec(spec, &Leniency::towards(spec, old), &mut errors);
    let at = Path::root("spec");
    let names_at = at.child("names");
    if condition::holds(old, condition::ESTABLISHED) {
        immutable(&spec["scope"], &old_spec["scope"], &at.child("scope"), &mut errors);
        immutable(
            &spec["names"]["kind"],
            &old_spec["names"]["kind"],
            &names_at.child("kind"),
            &mut errors,
        );
    }
    immutable(&spec["group"], &old_spec["group"], &at.child("group"), &mut errors);
    immutable(
        &spec["names"]["plural"],
        &old_spec["names"]["plural"],
        &names_at.child("plural"),
        &mut errors,
    );
    names::check(&object["status"]["acceptedNames"], "status.acceptedNames", &mut errors);
    check_stored_versions(object, &mut errors);
    check_approval(object, Some(old), &mut errors);
    check_preserved(spec, Some(old_spec), &mut errors);
    errors
}

/// What a change may keep that a new definition may not have.
#[derive(Default)]
struct Leniency {
    bundle: Bundle,
    review: Review,
    /// Versions with more selectable fields than are allowed now.
    crowded: Vec<String>,
}

impl Leniency {
    fn towards(spec: &Value, old: &Value) -> Self {
        let old_spec = &old["spec"];
        let fields = |spec: &Value, name: &str| {
            let found = list(spec, "versions").iter().find(|version| version["name"] == name);
            found.map_or(Value::Null, |version| version["selectableFields"].clone())
        };
        let crowded = list(old_spec, "versions").iter().filter(|version| {
            let before = &version["selectableFields"];
            let many = before
                .as_array()
                .is_some_and(|fields| fields.len() > version::MOST_SELECTABLE);
            many && *before == fields(spec, text(version, "name"))
        });
        Self {
            bundle: Bundle::after(old),
            review: Review::after(&old_spec["conversion"]),
            crowded: crowded.map(|version| text(version, "name").to_owned()).collect(),
        }
    }
}

fn check_spec(spec: &Value, leniency: &Leniency, errors: &mut Vec<FieldError>) {
    names::check_group(spec, errors);
    names::check_scope(spec, errors);
    let shared = Shared::of(spec);
    version::check_all(spec, &shared, &leniency.crowded, errors);
    names::check_required(&spec["names"], errors);
    names::check(&spec["names"], "spec.names", errors);
    version::check_shared(spec, &shared, &leniency.crowded, errors);
    conversion::check(spec, leniency.bundle, leniency.review, errors);
}

fn check_stored_versions(object: &Value, errors: &mut Vec<FieldError>) {
    let stored = &object["status"]["storedVersions"];
    let names: Vec<&str> = stored
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let status = Path::root("status");
    let at = status.child("storedVersions");
    if names.is_empty() {
        errors.push(FieldError::invalid(
            &at,
            stored.clone(),
            "must have at least one stored version",
        ));
        return;
    }
    let versions = list(&object["spec"], "versions");
    // Where several are marked, which is wrong by itself, the last one counts.
    let marked = versions.iter().rev().find(|version| version["storage"] == true);
    let storage = marked.map(|version| text(version, "name"));
    if let Some(storage) = storage.filter(|storage| !names.contains(storage)) {
        let detail = format!("must have the storage version {storage}");
        errors.push(FieldError::invalid(&at, stored.clone(), detail));
    }
    for (index, name) in names.iter().enumerate() {
        if !versions.iter().any(|version| version["name"] == **name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {name} and removes {name} from \
                 status.storedVersions"
            );
            errors.push(FieldError::invalid(&at.index(index), *name, detail));
        }
    }
}

fn check_preserved(spec: &Value, old_spec: Option<&Value>, errors: &mut Vec<FieldError>) {
    let preserves = |spec: &Value| spec["preserveUnknownFields"] == true;
    if preserves(spec) && !old_spec.is_some_and(preserves) {
        let at = Path::root("spec");
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema \
                      instead";
        errors.push(FieldError::invalid(&at.child("preserveUnknownFields"), true, detail));
    }
}

/// What a definition says of its right to lie in a group of the Kubernetes project.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Approval {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

fn approval(object: &Value) -> (Approval, String) {
    let said = meta::of(object).annotation(APPROVAL).unwrap_or_default();
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let is_url = said
        .parse::<http::Uri>()
        .is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some());
    match said {
        "" => (
            Approval::Missing,
            format!("protected groups must have approval annotation {APPROVAL:?}, {see}"),
        ),
        _ if said.starts_with("unapproved") => (Approval::Bypassed, format!("not approved: {said:?}")),
        _ if is_url => (Approval::Approved, format!("approved in {said}")),
        _ => (
            Approval::Invalid,
            format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting \
                 with \"unapproved\", {see}"
            ),
        ),
    }
}

fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group
            .strip_suffix(domain)
            .is_some_and(|before| before.is_empty() || before.ends_with('.'))
    })
}

fn check_approval(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if !is_protected(text(&object["spec"], "group")) {
        return;
    }
    let (state, reason) = approval(object);
    if old.is_some_and(|old| approval(old).0 == state) {
        return;
    }
    let metadata = Path::root("metadata");
    let annotations = metadata.child("annotations");
    let at = annotations.key(APPROVAL);
    match state {
        Approval::Missing => errors.push(FieldError::required(&at, reason)),
        Approval::Invalid => {
            let said = meta::of(object).annotation(APPROVAL).unwrap_or_default();
            errors.push(FieldError::invalid(&at, said, reason));
        }
        Approval::Bypassed | Approval::Approved => {}
    }
}

/// What the status says of the right of a definition to lie in its group; nothing for groups that are free to all.
pub(crate) fn approval_condition(object: &Value) -> Option<Condition> {
    if !is_protected(text(&object["spec"], "group")) {
        return None;
    }
    let (state, message) = approval(object);
    let reason = match state {
        Approval::Missing => "MissingAnnotation",
        Approval::Bypassed => "UnapprovedAnnotation",
        Approval::Approved => "ApprovedAnnotation",
        Approval::Invalid => "InvalidAnnotation",
    };
    Some(Condition::new(
        condition::APPROVED,
        state == Approval::Approved,
        reason,
        message,
    ))
}

fn immutable(new: &Value, old: &Value, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    if new != old {
        errors.push(FieldError::invalid(at, new.clone(), "field is immutable"));
    }
}

/// The version that objects are stored in.
pub(crate) fn storage_version(object: &Value) -> Option<&str> {
    let versions = list(&object["spec"], "versions");
    versions.iter().find(|version| version["storage"] == true)?["name"].as_str()
}

/// An error at a field whose path is put together as text.
fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
    FieldError {
        kind: ErrorKind::Invalid,
        field: field.into(),
        value: Some(value.into()),
        detail: detail.into(),
    }
}

fn required(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    FieldError {
        kind: ErrorKind::Required,
        field: field.into(),
        value: None,
        detail: detail.into(),
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

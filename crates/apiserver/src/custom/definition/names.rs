//! The names of a kind, its group and its scope.

use moorline_machinery::{
    field::{FieldError, Path},
    names::{dns_subdomain, dns1035_label},
};
use serde_json::Value;

use super::{invalid, list, text};

pub(super) fn check_group(spec: &Value, errors: &mut Vec<FieldError>) {
    let group = text(spec, "group");
    let spec_at = Path::root("spec");
    let at = spec_at.child("group");
    let complaints = dns_subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else if !complaints.is_empty() {
        errors.push(FieldError::invalid(&at, group, complaints.join(",")));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid(
            &at,
            group,
            "should be a domain with at least one dot",
        ));
    }
}

pub(super) fn check_scope(spec: &Value, errors: &mut Vec<FieldError>) {
    let spec_at = Path::root("spec");
    let at = spec_at.child("scope");
    match text(spec, "scope") {
        "" => errors.push(FieldError::required(&at, "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::not_supported(&at, other, ["Cluster", "Namespaced"])),
    }
}

/// Names that a definition must give; its status may lack them.
pub(super) fn check_required(names: &Value, errors: &mut Vec<FieldError>) {
    let spec = Path::root("spec");
    let at = spec.child("names");
    for name in ["plural", "singular", "kind", "listKind"] {
        if text(names, name).is_empty() {
            errors.push(FieldError::required(&at.child(name), ""));
        }
    }
}

pub(super) fn check(names: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for field in ["plural", "singular"] {
        let name = text(names, field);
        let complaints = dns1035_label(name);
        if !name.is_empty() && !complaints.is_empty() {
            errors.push(invalid(format!("{at}.{field}"), name, complaints.join(",")));
        }
    }
    for field in ["kind", "listKind"] {
        let name = text(names, field);
        let complaints = dns1035_label(&name.to_lowercase());
        if !name.is_empty() && !complaints.is_empty() {
            let detail = format!(
                "may have mixed case, but should otherwise match: {}",
                complaints.join(",")
            );
            errors.push(invalid(format!("{at}.{field}"), name, detail));
        }
    }
    check_each(names, "shortNames", at, errors);
    // Otherwise nobody could tell an object from a list.
    let (kind, list_kind) = (text(names, "kind"), text(names, "listKind"));
    if !kind.is_empty() && kind == list_kind {
        errors.push(invalid(
            format!("{at}.listKind"),
            list_kind,
            "kind and listKind may not be the same",
        ));
    }
    check_each(names, "categories", at, errors);
}

fn check_each(names: &Value, field: &str, at: &str, errors: &mut Vec<FieldError>) {
    for (index, name) in list(names, field).iter().enumerate() {
        let name = name.as_str().unwrap_or_default();
        let complaints = dns1035_label(name);
        if !complaints.is_empty() {
            errors.push(invalid(format!("{at}.{field}[{index}]"), name, complaints.join(",")));
        }
    }
}

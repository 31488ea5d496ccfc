//! Namespaces and nodes.

use std::collections::HashSet;

use moorline_machinery::{
    field::{ErrorKind, FieldError, Path},
    names,
};
use serde_json::Value;

use super::{
    at::{At, Errors, NOT_NEGATIVE, dig, internal_value, is_empty, quantity, same, shown},
    text,
};

/// A namespace.
pub(super) fn namespace(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let finalizers = spec.at("finalizers");
    for name in finalizers.items().iter().filter_map(Value::as_str) {
        for complaint in names::qualified_name(name) {
            finalizers.invalid_as(errors, name, complaint);
        }
        if !name.contains('/') && name != "kubernetes" {
            finalizers.invalid_as(
                errors,
                name,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
    }
}

/// A node.
pub(super) fn node(object: &At<'_>, errors: &mut Errors) {
    taints(object, errors);
    let status = object.at("status");
    // A kubelet that tells what there is and not what may be used means the same by both.
    let capacity = status.at("capacity");
    for list in ["capacity", "allocatable"] {
        let amounts = status.at(list);
        let values = if amounts.is_empty() && list == "allocatable" {
            capacity.value
        } else {
            amounts.value
        };
        for (name, value) in values.as_object().into_iter().flatten() {
            if quantity(value).is_some_and(|amount| amount.signum() < 0) {
                errors.push(FieldError::invalid(
                    &amounts.path.child(name),
                    value.clone(),
                    NOT_NEGATIVE,
                ));
            }
        }
    }
    pod_ranges(&object.at("spec"), errors);
}

fn taints(object: &At<'_>, errors: &mut Errors) {
    // Kubernetes reports taints as if they were metadata, where they once stood.
    let metadata = Path::root("metadata");
    let list = At {
        value: dig(object.value, &["spec", "taints"]),
        path: metadata.child("taints"),
    };
    let mut seen = HashSet::new();
    list.each(|taint| {
        taint.at("key").follow(errors, names::qualified_name);
        taint.at("value").follow(errors, names::label_value);
        taint
            .at("effect")
            .require_one_of(errors, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        let pair = (taint.at("key").text().to_owned(), taint.at("effect").text().to_owned());
        if !seen.insert(pair) {
            let text = format!(
                "{{\"Key\":{},\"Value\":\"{}\",\"Effect\":{},\"TimeAdded\":{}}}",
                shown(taint.at("key").value),
                taint.at("value").text(),
                shown(taint.at("effect").value),
                shown(taint.at("timeAdded").value)
            );
            let why = "taints must be unique by key and effect pair";
            errors.push(internal_value(ErrorKind::Duplicate, &taint.path, &text, why));
        }
    });
}

fn pod_ranges(spec: &At<'_>, errors: &mut Errors) {
    let list = spec.at("podCIDRs");
    if list.items().is_empty() {
        let one = spec.at("podCIDR");
        if !one.text().is_empty() {
            let first = At {
                value: one.value,
                path: list.path.index(0),
            };
            first.follow(errors, text::range);
        }
        return;
    }
    list.each(|range| range.follow(errors, text::range));
    let families: Vec<bool> = list
        .items()
        .iter()
        .filter_map(Value::as_str)
        .map(|range| range.contains(':'))
        .collect();
    if families.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        list.invalid(errors, "may specify no more than one CIDR for each IP family");
    }
}

/// A change of a node: what its pods are addressed by stays.
pub(super) fn node_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let before = dig(old, &["spec"]);
    let ranges = dig(before, &["podCIDRs"]);
    if !is_empty(ranges) && !same(spec.at("podCIDRs").value, ranges) {
        spec.at("podCIDRs")
            .forbidden(errors, "node updates may not change podCIDR except from \"\" to valid");
    }
    let provider = dig(before, &["providerID"]);
    if !is_empty(provider) && spec.at("providerID").value != provider {
        spec.at("providerID").forbidden(
            errors,
            "node updates may not change providerID except from \"\" to valid",
        );
    }
    if !same(spec.at("taints").value, dig(before, &["taints"])) {
        taints(new, errors);
    }
}

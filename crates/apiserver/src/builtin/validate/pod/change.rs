//! What may change in a pod that exists.

use moorline_machinery::field::FieldError;
use serde_json::{Map, Value};

use super::super::{
    super::states::quality_of_service,
    at::{At, Errors, dig, is_empty, items_mut, put, same},
};

const FORBIDDEN: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
                         `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions \
                         to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it \
                         was previously negative)";

/// An update of a pod through its own address.
pub(in super::super) fn change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let old_spec = dig(old, &["spec"]);
    for list in ["containers", "initContainers"] {
        let containers = spec.at(list);
        let count = dig(old_spec, &[list]).as_array().map_or(0, Vec::len);
        if containers.len() != count {
            containers.forbidden(errors, "pod updates may not add or remove containers");
            return;
        }
    }
    for list in ["containers", "initContainers"] {
        spec.at(list).each(|container| {
            container.at("image").require(errors);
            let image = container.at("image");
            if image.text().trim() != image.text() {
                image.invalid(errors, "must not have leading or trailing whitespace");
            }
        });
    }
    deadline(
        &spec.at("activeDeadlineSeconds"),
        dig(old_spec, &["activeDeadlineSeconds"]),
        errors,
    );
    only_added_tolerations(&spec.at("tolerations"), dig(old_spec, &["tolerations"]), errors);
    scheduling_gates(&spec.at("schedulingGates"), dig(old_spec, &["schedulingGates"]), errors);
    if errors.is_empty() {
        the_rest(&spec, old_spec, errors);
    }
}

fn deadline(deadline: &At<'_>, old: &Value, errors: &mut Errors) {
    if let Some(before) = old.as_i64() {
        match deadline.optional_number() {
            Some(now) if now > before => {
                deadline.invalid(errors, "must be less than or equal to previous value");
            }
            Some(_) => {}
            None => deadline.invalid_as(
                errors,
                Value::Null,
                "must not update from a positive integer to nil value",
            ),
        }
    }
}

fn only_added_tolerations(tolerations: &At<'_>, old: &Value, errors: &mut Errors) {
    for gone in old.as_array().into_iter().flatten() {
        let mut before = gone.clone();
        let kept = tolerations.items().iter().any(|toleration| {
            let mut now = toleration.clone();
            // How long a taint is put up with may change.
            for one in [&mut before, &mut now] {
                one.as_object_mut().map(|fields| fields.remove("tolerationSeconds"));
            }
            same(&now, &before)
        });
        if !kept {
            tolerations.forbidden(
                errors,
                "existing toleration can not be modified except its tolerationSeconds",
            );
        }
    }
}

fn scheduling_gates(gates: &At<'_>, old: &Value, errors: &mut Errors) {
    let known = |gate: &Value| {
        old.as_array()
            .is_some_and(|old| old.iter().any(|old| old["name"] == gate["name"]))
    };
    gates.each(|gate| {
        if !known(gate.value) {
            let name = gate.at("name");
            let why = format!(
                "only deletion is allowed, but found new scheduling gate '{}'",
                name.text()
            );
            name.forbidden(errors, why);
        }
    });
}

/// What may differ, taken from the old pod, must make the new one equal to it.
fn the_rest(spec: &At<'_>, old: &Value, errors: &mut Errors) {
    let mut munged = spec.value.clone();
    for list in ["containers", "initContainers"] {
        for (position, container) in items_mut(&mut munged, list).enumerate() {
            put(container, &["image"], old[list][position]["image"].clone());
        }
    }
    for name in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        put(&mut munged, &[name], old[name].clone());
    }
    let grace = |spec: &Value| spec["terminationGracePeriodSeconds"].as_i64();
    if grace(old).is_some_and(|seconds| seconds < 0) && grace(&munged) == Some(1) {
        put(
            &mut munged,
            &["terminationGracePeriodSeconds"],
            old["terminationGracePeriodSeconds"].clone(),
        );
    }
    if has_gates(old) {
        narrowed_node_selector(spec, &mut munged, old, errors);
    }
    if !same(&munged, old) {
        let path = spec.path;
        errors.push(FieldError::forbidden(&path, FORBIDDEN));
    }
}

fn has_gates(spec: &Value) -> bool {
    spec["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty())
}

/// A pod that waits at a gate may be tied to fewer nodes than before, not to others.
fn narrowed_node_selector(spec: &At<'_>, munged: &mut Value, old: &Value, errors: &mut Errors) {
    let selector = spec.at("nodeSelector");
    let before = old["nodeSelector"].as_object().cloned().unwrap_or_default();
    let kept = before.iter().all(|(key, value)| selector.value.get(key) == Some(value));
    if !kept {
        selector.invalid(
            errors,
            "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
        );
    }
    put(munged, &["nodeSelector"], old["nodeSelector"].clone());
    let node = |spec: &Value| dig(spec, &["affinity", "nodeAffinity"]).clone();
    if is_empty(&node(old)) && !is_empty(&node(munged)) {
        let affinity = munged
            .get_mut("affinity")
            .and_then(Value::as_object_mut)
            .map(|affinity| {
                affinity.remove("nodeAffinity");
                affinity.is_empty() && is_empty(&old["affinity"])
            });
        if affinity == Some(true) {
            put(munged, &["affinity"], old["affinity"].clone());
        }
    }
}

/// A write of `pods/ephemeralcontainers`: such containers can be added. All else was put back before.
pub(in super::super) fn ephemeral_containers(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let list = spec.at("ephemeralContainers");
    let before = dig(old, &["spec", "ephemeralContainers"])
        .as_array()
        .cloned()
        .unwrap_or_default();
    for former in &before {
        let name = former["name"].as_str().unwrap_or_default();
        match list
            .items()
            .iter()
            .find(|container| container["name"] == former["name"])
        {
            None => list.forbidden(
                errors,
                format!("existing ephemeral containers {} may not be removed\n", quoted(name)),
            ),
            Some(container) if !same(container, former) => {
                list.forbidden(
                    errors,
                    format!("existing ephemeral containers {} may not be changed\n", quoted(name)),
                );
            }
            Some(_) => {}
        }
    }
}

fn quoted(name: &str) -> String {
    moorline_machinery::field::quote(name)
}

/// A write of `pods/resize`: how much processor time and memory containers ask for may change; nothing else.
pub(in super::super) fn resize(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let old_spec = dig(old, &["spec"]);
    let before = quality_of_service(old_spec);
    if before != quality_of_service(spec.value) {
        spec.invalid_as(errors, before, "Pod QOS Class may not change as a result of resizing");
    }
    let mut munged = spec.value.clone();
    for list in CONTAINERS {
        let containers = spec.at(list);
        let former = dig(old_spec, &[list]).as_array().cloned().unwrap_or_default();
        if containers.len() != former.len() {
            containers.forbidden(errors, "containers may not be added or removed on resize");
            return;
        }
        let mut position = 0;
        containers.each(|container| {
            let former = &former[position]["resources"];
            removed(&container.at("resources"), former, errors);
            if let Some(container) = items_mut(&mut munged, list).nth(position) {
                resizable(container, former);
            }
            position += 1;
        });
    }
    resizable(&mut munged, &old_spec["resources"]);
    if errors.is_empty() && !same(&munged, old_spec) {
        spec.forbidden(errors, "only cpu and memory resources are mutable");
    }
}

const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

fn removed(resources: &At<'_>, old: &Value, errors: &mut Errors) {
    for which in ["limits", "requests"] {
        let list = resources.at(which);
        let gone = |name: &&String| list.value.get(name.as_str()).is_none();
        let before = old[which].as_object().cloned().unwrap_or_default();
        if before.keys().filter(|name| is_resizable(name)).any(|name| gone(&name)) {
            list.forbidden(errors, format!("resource {which} cannot be removed"));
        }
    }
}

fn is_resizable(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory")
}

/// Puts the old amounts of what may be resized in place of the new ones.
fn resizable(holder: &mut Value, old: &Value) {
    for which in ["limits", "requests"] {
        for name in ["cpu", "memory"] {
            let former = dig(old, &[which, name]).clone();
            let Some(resources) = holder.get_mut("resources").and_then(Value::as_object_mut) else {
                return;
            };
            if former.is_null() {
                resources
                    .get_mut(which)
                    .and_then(Value::as_object_mut)
                    .map(|list| list.remove(name));
            } else {
                let list = resources.entry(which).or_insert_with(|| Value::Object(Map::new()));
                put(list, &[name], former);
            }
        }
    }
}

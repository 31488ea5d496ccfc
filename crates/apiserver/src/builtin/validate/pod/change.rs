//! What may change in a pod that exists.

use moorline_machinery::field::FieldError;
use serde_json::{Map, Value};

use super::super::at::{At, Errors, dig, is_empty, same};

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
        for (position, container) in munged[list].as_array_mut().into_iter().flatten().enumerate() {
            container["image"] = old[list][position]["image"].clone();
        }
    }
    for name in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        munged[name] = old[name].clone();
    }
    let grace = |spec: &Value| spec["terminationGracePeriodSeconds"].as_i64();
    if grace(old).is_some_and(|seconds| seconds < 0) && grace(&munged) == Some(1) {
        munged["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"].clone();
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
    munged["nodeSelector"] = old["nodeSelector"].clone();
    let node = |spec: &Value| dig(spec, &["affinity", "nodeAffinity"]).clone();
    if is_empty(&node(old)) && !is_empty(&node(munged)) {
        let affinity = munged["affinity"].as_object_mut().map(|affinity| {
            affinity.remove("nodeAffinity");
            affinity.is_empty() && is_empty(&old["affinity"])
        });
        if affinity == Some(true) {
            munged["affinity"] = old["affinity"].clone();
        }
    }
}

/// A write of `pods/ephemeralcontainers`: such containers can be added, and nothing else.
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
    let mut rest = spec.value.clone();
    if let Some(fields) = rest.as_object_mut() {
        match dig(old, &["spec"]).get("ephemeralContainers") {
            Some(list) => drop(fields.insert("ephemeralContainers".to_owned(), list.clone())),
            None => drop(fields.remove("ephemeralContainers")),
        }
    }
    if !same(&rest, dig(old, &["spec"])) {
        spec.forbidden(
            errors,
            "pod updates may not change fields other than ephemeral containers",
        );
    }
}

fn quoted(name: &str) -> String {
    moorline_machinery::field::quote(name)
}

/// A write of `pods/resize`: what containers ask for may change, and how they are resized; nothing else.
pub(in super::super) fn resize(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let old_spec = dig(old, &["spec"]);
    if old.get("status").is_some_and(|status| status["qosClass"].is_string()) {
        let before = super::super::super::states::quality_of_service(old_spec);
        let after = super::super::super::states::quality_of_service(spec.value);
        if before != after {
            spec.invalid_as(errors, after, "Pod QOS Class may not change as a result of resizing");
        }
    }
    for list in ["containers", "initContainers"] {
        let containers = spec.at(list);
        let former = dig(old_spec, &[list]).as_array().cloned().unwrap_or_default();
        if containers.len() != former.len() {
            spec.forbidden(errors, "containers may not be added or removed on resize");
            return;
        }
        containers.each(|container| {
            let before = former.iter().find(|before| before["name"] == container.value["name"]);
            if let Some(before) = before {
                only_processor_and_memory(&container.at("resources"), &before["resources"], errors);
            }
        });
    }
    let mut munged = spec.value.clone();
    for list in ["containers", "initContainers"] {
        for (position, container) in munged[list].as_array_mut().into_iter().flatten().enumerate() {
            for name in ["resources", "resizePolicy"] {
                container[name] = old_spec[list][position][name].clone();
            }
        }
    }
    munged["resources"] = old_spec["resources"].clone();
    if !same(&munged, old_spec) {
        spec.forbidden(errors, "only cpu and memory resources are mutable");
    }
}

fn only_processor_and_memory(resources: &At<'_>, old: &Value, errors: &mut Errors) {
    for which in ["limits", "requests"] {
        let list = resources.at(which);
        let before = old[which].as_object().cloned().unwrap_or_default();
        let now: Map<String, Value> = list.value.as_object().cloned().unwrap_or_default();
        for name in before.keys().filter(|name| !now.contains_key(*name)) {
            list.forbidden(errors, format!("{name} {which} cannot be removed"));
        }
    }
}

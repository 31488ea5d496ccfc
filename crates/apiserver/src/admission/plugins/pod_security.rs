//! The pod security standards: what a namespace's labels let its pods do.
//!
//! A label names a level for each of two ways to be told: refusing pods, and warning about them and about whatever
//! makes pods. The standards are those of the newest version, whatever version a label names.

mod standards;

use moorline_machinery::{meta, status::ApiError};
use serde_json::Value;

use super::{Attributes, Operation, text};
use standards::Level;

const PREFIX: &str = "pod-security.kubernetes.io/";

pub(super) fn check(attributes: &Attributes<'_>, object: &Value, warnings: &mut Vec<String>) -> Result<(), ApiError> {
    if !matches!(attributes.operation, Operation::Create | Operation::Update) {
        return Ok(());
    }
    let gvr = &attributes.call.resource.gvr;
    let part = attributes.call.path.subresource.as_str();
    let (pod, is_pod) = match (&*gvr.group, &*gvr.resource, part) {
        ("", "pods", "" | "ephemeralcontainers" | "resize") => (Some(object), true),
        ("", "podtemplates", "") => (object.get("template"), false),
        ("", "replicationcontrollers", "")
        | ("apps", "deployments" | "replicasets" | "daemonsets" | "statefulsets", "")
        | ("batch", "jobs", "") => (object.pointer("/spec/template"), false),
        ("batch", "cronjobs", "") => (object.pointer("/spec/jobTemplate/spec/template"), false),
        _ => return Ok(()),
    };
    let Some(pod) = pod.filter(|pod| !pod["spec"].is_null()) else {
        return Ok(());
    };
    // A change that leaves a pod's containers as they are makes it no less secure.
    let same = attributes
        .old
        .is_some_and(|old| is_pod && part.is_empty() && same_containers(old, pod));
    if same {
        return Ok(());
    }
    let Some(namespace) = attributes.found("", "namespaces", "", &attributes.call.path.namespace) else {
        return Ok(());
    };
    let level = |mode: &str| {
        let label = meta::of(&namespace).label(&format!("{PREFIX}{mode}"));
        // A word that nobody knows is taken for the strictest, so that a slip of the pen opens nothing.
        label.map_or(Level::Privileged, |name| {
            Level::parse(name).unwrap_or(Level::Restricted)
        })
    };
    let version = |mode: &str| {
        let label = meta::of(&namespace).label(&format!("{PREFIX}{mode}-version"));
        label.unwrap_or("latest").to_owned()
    };
    if is_pod && let Some(faults) = standards::faults(pod, level("enforce")) {
        return Err(attributes.refuse(format_args!(
            "violates PodSecurity \"{}:{}\": {faults}",
            level("enforce").as_str(),
            version("enforce")
        )));
    }
    if let Some(faults) = standards::faults(pod, level("warn")) {
        warnings.push(format!(
            "would violate PodSecurity \"{}:{}\": {faults}",
            level("warn").as_str(),
            version("warn")
        ));
    }
    Ok(())
}

fn same_containers(old: &Value, new: &Value) -> bool {
    ["containers", "initContainers", "ephemeralContainers"]
        .iter()
        .all(|list| {
            let images = |pod: &Value| -> Vec<String> {
                super::items(&pod["spec"], list)
                    .map(|container| text(container, "image").to_owned())
                    .collect()
            };
            images(old) == images(new)
        })
}

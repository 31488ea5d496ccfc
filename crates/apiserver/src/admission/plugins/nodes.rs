//! A node says of itself and its own pods what it may, and a new one waits until it is known to be ready.

use std::collections::BTreeSet;

use moorline_machinery::{meta, status::ApiError};
use serde_json::{Value, json};

use super::{Attributes, Operation, items, push, text};

const NODES: &str = "system:nodes";
const PREFIX: &str = "system:node:";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Labels of Kubernetes' own that a node may give itself.
const OWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const OWN_LABEL_GROUPS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// A new node takes no pods until somebody has found it ready; `controllers::node_taints` does.
pub(super) fn taint(attributes: &Attributes<'_>, node: &mut Value) {
    if !attributes.is("", "nodes", "") || !attributes.creates() {
        return;
    }
    let is_there = |taint: &Value| text(taint, "key") == NOT_READY && text(taint, "effect") == "NoSchedule";
    if !items(&node["spec"], "taints").any(is_there) {
        push(
            &mut node["spec"],
            "taints",
            json!({ "key": NOT_READY, "effect": "NoSchedule" }),
        );
    }
}

/// The taint of nodes that are not ready.
pub(crate) const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Refuses what a node may not write.
pub(super) fn restrict(attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
    let user = attributes.call.user;
    let Some(node) = user.name.strip_prefix(PREFIX).filter(|_| user.is_in(NODES)) else {
        return Ok(());
    };
    let gvr = &attributes.call.resource.gvr;
    match (&*gvr.group, &*gvr.resource, attributes.call.path.subresource.as_str()) {
        ("", "pods", "") => restrict_pod(attributes, node, object),
        ("", "pods", "status") => restrict_pod_status(attributes, node, object),
        ("", "pods", "eviction") => {
            if attributes.old.is_some_and(|pod| text(&pod["spec"], "nodeName") == node) {
                return Ok(());
            }
            Err(attributes.refuse(format_args!(
                "node {node} can only evict pods with spec.nodeName set to itself"
            )))
        }
        ("", "pods", part) => Err(attributes.refuse(format_args!(
            "unexpected pod subresource {part:?}, only 'status' and 'eviction' are allowed"
        ))),
        ("", "nodes", _) => restrict_node(attributes, node, object),
        ("coordination.k8s.io", "leases", _) => {
            let place = attributes.call.path.namespace.as_str();
            if place != "kube-node-lease" {
                return Err(attributes.refuse("can only access leases in the \"kube-node-lease\" system namespace"));
            }
            if attributes.name != node {
                return Err(attributes.refuse(format_args!(
                    "can only access node lease with the same name as the requesting node"
                )));
            }
            Ok(())
        }
        ("storage.k8s.io", "csinodes", _) if attributes.name != node => {
            Err(attributes.refuse("can only access CSINode with the same name as the requesting node"))
        }
        _ => Ok(()),
    }
}

fn restrict_pod(attributes: &Attributes<'_>, node: &str, pod: &Value) -> Result<(), ApiError> {
    let refuse = |why: String| Err(attributes.refuse(why));
    match attributes.operation {
        Operation::Delete => match attributes.old {
            Some(pod) if text(&pod["spec"], "nodeName") == node => Ok(()),
            _ => refuse(format!(
                "node {node:?} can only delete pods with spec.nodeName set to itself"
            )),
        },
        Operation::Create => {
            if meta::of(pod).annotation(MIRROR).is_none() {
                return refuse(format!(
                    "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
                ));
            }
            if text(&pod["spec"], "nodeName") != node {
                return refuse(format!(
                    "node {node:?} can only create pods with spec.nodeName set to itself"
                ));
            }
            let own = |owner: &Value| {
                text(owner, "apiVersion") == "v1" && text(owner, "kind") == "Node" && text(owner, "name") == node
            };
            let mut owners = items(&pod["metadata"], "ownerReferences");
            match (owners.next(), owners.next()) {
                (Some(owner), None) if own(owner) && owner["controller"] == true => Ok(()),
                (Some(owner), None) if own(owner) => refuse(format!(
                    "node {node:?} can only create pods with a controller owner reference set to itself"
                )),
                (_, Some(_)) => refuse(format!(
                    "node {node:?} can only create pods with a single owner reference set to itself"
                )),
                _ => refuse(format!(
                    "node {node:?} can only create pods with an owner reference set to itself"
                )),
            }
        }
        Operation::Update | Operation::Bind | Operation::Connect => refuse(format!(
            "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
        )),
    }
}

fn restrict_pod_status(attributes: &Attributes<'_>, node: &str, pod: &Value) -> Result<(), ApiError> {
    let Some(old) = attributes.old else { return Ok(()) };
    if text(&old["spec"], "nodeName") != node {
        return Err(attributes.refuse(format_args!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        )));
    }
    if !changed_labels(pod, old).is_empty() {
        return Err(attributes.refuse(format_args!("node {node:?} cannot update labels through pod status")));
    }
    Ok(())
}

fn restrict_node(attributes: &Attributes<'_>, node: &str, object: &Value) -> Result<(), ApiError> {
    if attributes.name != node {
        return Err(attributes.refuse(format_args!(
            "node {node:?} is not allowed to modify node {:?}",
            attributes.name
        )));
    }
    if attributes.operation == Operation::Delete {
        return Ok(());
    }
    let nothing = Value::Null;
    let old = attributes.old.unwrap_or(&nothing);
    if attributes.operation == Operation::Update {
        if object["spec"]["taints"] != old["spec"]["taints"] {
            return Err(attributes.refuse(format_args!("node {node:?} is not allowed to modify taints")));
        }
        if object["metadata"]["ownerReferences"] != old["metadata"]["ownerReferences"] {
            return Err(attributes.refuse(format_args!("node {node:?} is not allowed to modify ownerReferences")));
        }
    }
    let foreign: Vec<&str> = changed_labels(object, old)
        .into_iter()
        .filter(|label| is_foreign(label))
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    Err(if attributes.creates() {
        attributes.refuse(format_args!(
            "node {node:?} is not allowed to set the following labels: {}",
            foreign.join(", ")
        ))
    } else {
        attributes.refuse(format_args!("is not allowed to modify labels: {}", foreign.join(", ")))
    })
}

fn changed_labels<'v>(new: &'v Value, old: &'v Value) -> BTreeSet<&'v str> {
    let (new, old) = (meta::of(new), meta::of(old));
    let names = [new.labels(), old.labels()]
        .into_iter()
        .flatten()
        .flat_map(|labels| labels.keys());
    names
        .map(String::as_str)
        .filter(|name| new.label(name) != old.label(name))
        .collect()
}

/// Whether a label is not a node's to give itself.
fn is_foreign(label: &str) -> bool {
    let group = label.split_once('/').map_or("", |(group, _)| group);
    let within = |parent: &str| group == parent || group.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'));
    if within("node-restriction.kubernetes.io") {
        return true;
    }
    let of_kubernetes = within("kubernetes.io") || within("k8s.io");
    of_kubernetes && !OWN_LABELS.contains(&label) && !OWN_LABEL_GROUPS.iter().any(|own| within(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_labels_itself_only_with_what_concerns_nobody_else() {
        for (label, foreign) in [
            ("mine", false),
            ("example.com/mine", false),
            ("kubernetes.io/hostname", false),
            ("node.kubernetes.io/anything", false),
            ("sub.kubelet.kubernetes.io/anything", false),
            ("node-restriction.kubernetes.io/trusted", true),
            ("x.node-restriction.kubernetes.io/trusted", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("anything.k8s.io/x", true),
        ] {
            assert_eq!(is_foreign(label), foreign, "{label}");
        }
    }
}

//! Resources that change while containers run. Pure.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use crate::{
    amounts::{Amounts, Side, pod_requests},
    pod::{Kind, Memory, Shape, is_over},
};

/// What a change of resources comes to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Resize {
    /// What is asked for is what is given.
    Nothing,
    /// It cannot be, or not yet: reason and message.
    Pending(&'static str, String),
    /// These containers get what they ask for.
    Apply(Vec<Change>),
}

/// New resources for one container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    pub(crate) container: String,
    pub(crate) resources: ResourceRequirements,
    pub(crate) restarts: bool,
}

/// Compares what a pod asks for with what it was given.
pub(crate) fn compare(pod: &Pod, shape: &Shape, memory: &Memory, node: &Amounts, others: &Amounts) -> Resize {
    let mut changes = Vec::new();
    for (_, container) in shape.of_kind(&[Kind::Main, Kind::Sidecar]) {
        let Some(given) = memory.allocated.get(&container.name) else {
            continue;
        };
        let asked = container.resources.clone().unwrap_or_default();
        if same(given, &asked) {
            continue;
        }
        let restarts = ["cpu", "memory"]
            .iter()
            .any(|name| differs(given, &asked, name) && policy(container, name) == Some("RestartContainer"));
        changes.push(Change {
            container: container.name.clone(),
            resources: asked,
            restarts,
        });
    }
    if changes.is_empty() {
        return Resize::Nothing;
    }
    let Some(spec) = &pod.spec else { return Resize::Nothing };
    let wanted = pod_requests(spec, None);
    for name in ["cpu", "memory"] {
        let (asked, all, used) = (wanted.get(name), node.get(name), others.get(name));
        if asked > all {
            let message = format!("Node didn't have enough capacity: {name}, requested: {asked}, capacity: {all}");
            return Resize::Pending("Infeasible", message);
        }
        if asked > all - used {
            let message =
                format!("Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {all}");
            return Resize::Pending("Deferred", message);
        }
    }
    Resize::Apply(changes)
}

fn same(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    ["cpu", "memory"].iter().all(|name| !differs(one, other, name))
}

fn differs(one: &ResourceRequirements, other: &ResourceRequirements, name: &str) -> bool {
    [Side::Requests, Side::Limits]
        .iter()
        .any(|side| side.of(Some(one)).get(name) != side.of(Some(other)).get(name))
}

fn policy<'c>(container: &'c Container, name: &str) -> Option<&'c str> {
    let policies = container.resize_policy.as_ref()?;
    policies
        .iter()
        .find(|policy| policy.resource_name == name)
        .map(|policy| policy.restart_policy.as_str())
}

/// What the other pods of a node ask for.
pub(crate) fn others<'p>(pods: impl Iterator<Item = &'p Pod>, node: &str, except: Option<&str>) -> Amounts {
    let mut sum = Amounts::default();
    for pod in pods {
        let here = pod.spec.as_ref().filter(|spec| spec.node_name.as_deref() == Some(node));
        if let Some(spec) = here
            && !is_over(pod)
            && pod.metadata.uid.as_deref() != except
        {
            sum.add(&pod_requests(spec, pod.status.as_ref()));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn pod(cpu: &str, policy: &str) -> Pod {
        serde_json::from_value(json!({ "spec": { "containers": [{
            "name": "c", "resources": { "requests": { "cpu": cpu } },
            "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": policy }],
        }] } }))
        .unwrap()
    }

    /// The resources of every container, as the spec has them.
    fn asked(shape: &Shape) -> std::collections::BTreeMap<String, ResourceRequirements> {
        let all = shape
            .containers
            .iter()
            .map(|(_, container)| (container.name.clone(), container.resources.clone().unwrap_or_default()));
        all.collect()
    }

    fn resized(from: &str, to: &str, policy: &str, used: i64) -> Resize {
        let mut memory = Memory::new(Timestamp::UNIX_EPOCH);
        memory.allocated = asked(&Shape::of(&pod(from, policy)));
        let (mut node, mut others) = (Amounts::default(), Amounts::default());
        node.set("cpu", 2000);
        others.set("cpu", used);
        let wanted = pod(to, policy);
        compare(&wanted, &Shape::of(&wanted), &memory, &node, &others)
    }

    #[test]
    fn what_means_the_same_is_no_change() {
        assert_eq!(resized("1", "1000m", "NotRequired", 0), Resize::Nothing);
    }

    #[test]
    fn a_change_is_applied_with_or_without_a_restart() {
        for (policy, expected) in [("NotRequired", false), ("RestartContainer", true)] {
            let Resize::Apply(changes) = resized("1", "1500m", policy, 0) else {
                panic!("there is room")
            };
            assert_eq!(changes[0].restarts, expected);
        }
    }

    #[test]
    fn what_does_not_fit_waits_or_never_will() {
        let Resize::Pending(reason, _) = resized("1", "1500m", "NotRequired", 1000) else {
            panic!("no room")
        };
        assert_eq!(reason, "Deferred");
        let Resize::Pending(reason, message) = resized("1", "3", "NotRequired", 0) else {
            panic!("no room")
        };
        assert_eq!(reason, "Infeasible");
        assert_eq!(
            message,
            "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000"
        );
    }
}

//! What one object counts for.

use std::collections::BTreeSet;

use moorline_machinery::{
    meta,
    quantity::{Quantity, Style},
};
use serde_json::Value;

pub(crate) use crate::admission::plugins::resources::{Amounts, amounts};
use crate::{
    admission::plugins::resources::{self, add},
    resource::ResourceType,
};

/// What a pod has to say how much of, where a quota limits it.
const MUST_BE_SAID: [&str; 6] = [
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.memory",
];

/// What an object uses, by the names that quotas give to it.
pub(super) fn of(resource: &ResourceType, object: &Value) -> Amounts {
    let mut used = Amounts::from([(count_name(resource), one())]);
    match (&*resource.gvr.group, &*resource.gvr.resource) {
        ("", "pods") if is_over(object) => {}
        ("", "pods") => add(&mut used, &of_pod(&object["spec"])),
        ("", "services") => add(&mut used, &of_service(&object["spec"])),
        ("", "persistentvolumeclaims") => add(&mut used, &of_claim(object)),
        ("", plural @ ("configmaps" | "secrets" | "resourcequotas" | "replicationcontrollers")) => {
            used.insert(plural.to_owned(), one());
        }
        _ => {}
    }
    used
}

/// Whether a name of a quota is about objects of a resource.
pub(super) fn concerns(name: &str, resource: &ResourceType) -> bool {
    if name.starts_with("count/") {
        return name == count_name(resource);
    }
    match (&*resource.gvr.group, &*resource.gvr.resource) {
        ("", "pods") => {
            let plain = name
                .strip_prefix("requests.")
                .or_else(|| name.strip_prefix("limits."))
                .unwrap_or(name);
            name == "pods"
                || matches!(plain, "cpu" | "memory" | "ephemeral-storage")
                || plain.starts_with("hugepages-")
                || (name.starts_with("requests.") && plain.contains('/') && !plain.contains(CLASS_SUFFIX))
        }
        ("", "services") => matches!(name, "services" | "services.nodeports" | "services.loadbalancers"),
        ("", "persistentvolumeclaims") => {
            matches!(name, "persistentvolumeclaims" | "requests.storage") || name.contains(CLASS_SUFFIX)
        }
        ("", plural @ ("configmaps" | "secrets" | "resourcequotas" | "replicationcontrollers")) => name == plural,
        _ => false,
    }
}

/// Adds to a sum what it is about.
pub(super) fn add_known(sum: &mut Amounts, used: &Amounts) {
    for (name, amount) in sum.iter_mut() {
        if let Some(more) = used.get(name).and_then(|more| amount.checked_add(more)) {
            *amount = more;
        }
    }
}

/// How a sum is written that nothing has been added to.
pub(super) fn style(name: &str) -> Style {
    if name.ends_with("memory") || name.ends_with("storage") {
        Style::Binary
    } else {
        Style::Decimal
    }
}

/// What the containers of a pod would have to say for a quota, and who does not; empty when all do.
pub(super) fn missing(pod: &Value, hard: &Amounts) -> String {
    let lists = ["containers", "initContainers"].into_iter();
    let containers: Vec<&Value> = lists
        .filter_map(|list| pod["spec"][list].as_array())
        .flatten()
        .collect();
    let told = MUST_BE_SAID
        .iter()
        .filter(|name| hard.contains_key(**name))
        .filter_map(|name| {
            let silent: BTreeSet<&str> = containers
                .iter()
                .filter(|container| {
                    let said = compute(
                        &amounts(&container["resources"]["requests"]),
                        &amounts(&container["resources"]["limits"]),
                    );
                    !said.contains_key(*name)
                })
                .filter_map(|container| container["name"].as_str())
                .collect();
            let silent: Vec<&str> = silent.into_iter().collect();
            (!silent.is_empty()).then(|| format!("{name} for: {}", silent.join(",")))
        });
    told.collect::<Vec<_>>().join("; ")
}

const CLASS_SUFFIX: &str = ".storageclass.storage.k8s.io/";

fn count_name(resource: &ResourceType) -> String {
    format!("count/{}", resource.group_resource())
}

fn one() -> Quantity {
    Quantity::new(1, Style::Decimal)
}

/// A pod that has ended uses nothing any more.
fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn of_pod(spec: &Value) -> Amounts {
    let mut used = compute(&resources::of_pod(spec, "requests"), &resources::of_pod(spec, "limits"));
    used.insert("pods".to_owned(), one());
    used
}

fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::new();
    for (name, amount) in requests {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if plain {
            used.insert(name.clone(), amount.clone());
        }
        if plain || name.contains('/') {
            used.insert(format!("requests.{name}"), amount.clone());
        }
    }
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(amount) = limits.get(name) {
            used.insert(format!("limits.{name}"), amount.clone());
        }
    }
    used
}

fn of_service(spec: &Value) -> Amounts {
    let count = |count: usize| Quantity::new(i64::try_from(count).unwrap_or(i64::MAX), Style::Decimal);
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (balanced, node_ports) = match spec["type"].as_str() {
        Some("NodePort") => (0, ports.len()),
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => {
            let given = ports.iter().filter(|port| port["nodePort"].as_u64().unwrap_or(0) != 0);
            (1, given.count())
        }
        Some("LoadBalancer") => (1, ports.len()),
        _ => (0, 0),
    };
    Amounts::from([
        ("services".to_owned(), one()),
        ("services.loadbalancers".to_owned(), count(balanced)),
        ("services.nodeports".to_owned(), count(node_ports)),
    ])
}

fn of_claim(claim: &Value) -> Amounts {
    let mut used = Amounts::from([("persistentvolumeclaims".to_owned(), one())]);
    let named = claim["spec"]["storageClassName"].as_str();
    let class = named.or_else(|| meta::of(claim).annotation("volume.beta.kubernetes.io/storage-class"));
    let class = class.filter(|class| !class.is_empty());
    if let Some(class) = class {
        used.insert(format!("{class}{CLASS_SUFFIX}persistentvolumeclaims"), one());
    }
    if let Some(size) = amounts(&claim["spec"]["resources"]["requests"]).remove("storage") {
        if let Some(class) = class {
            used.insert(format!("{class}{CLASS_SUFFIX}requests.storage"), size.clone());
        }
        used.insert("requests.storage".to_owned(), size);
    }
    used
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin;

    fn told(plural: &str, object: &Value) -> Vec<String> {
        let mut all = builtin::resource_types().into_iter();
        let resource = all.find(|resource| &*resource.gvr.resource == plural).unwrap();
        of(&resource, object)
            .iter()
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect()
    }

    #[test]
    fn a_pod_counts_until_it_has_ended() {
        let mut pod = json!({ "spec": { "containers": [{ "resources": {
            "requests": { "cpu": "500m", "example.com/device": "2" }, "limits": { "cpu": "1" },
        } }] } });
        assert_eq!(
            told("pods", &pod),
            [
                "count/pods=1",
                "cpu=500m",
                "limits.cpu=1",
                "pods=1",
                "requests.cpu=500m",
                "requests.example.com/device=2"
            ]
        );
        pod["status"]["phase"] = json!("Succeeded");
        assert_eq!(told("pods", &pod), ["count/pods=1"]);
    }

    #[test]
    fn services_and_claims_count_by_what_they_take() {
        let service = json!({ "spec": { "type": "LoadBalancer", "ports": [{}, {}] } });
        assert_eq!(
            told("services", &service),
            [
                "count/services=1",
                "services=1",
                "services.loadbalancers=1",
                "services.nodeports=2"
            ]
        );
        let claim =
            json!({ "spec": { "storageClassName": "fast", "resources": { "requests": { "storage": "1Gi" } } } });
        assert_eq!(
            told("persistentvolumeclaims", &claim),
            [
                "count/persistentvolumeclaims=1",
                "fast.storageclass.storage.k8s.io/persistentvolumeclaims=1",
                "fast.storageclass.storage.k8s.io/requests.storage=1Gi",
                "persistentvolumeclaims=1",
                "requests.storage=1Gi",
            ]
        );
        assert_eq!(told("deployments", &json!({})), ["count/deployments.apps=1"]);
    }

    #[test]
    fn a_pod_has_to_say_what_a_quota_limits() {
        let pod = json!({ "spec": { "containers": [
            { "name": "a", "resources": { "limits": { "cpu": "1" } } }, { "name": "b" },
        ] } });
        let hard = amounts(&json!({ "limits.cpu": "4", "requests.memory": "1Gi", "pods": "3" }));
        assert_eq!(missing(&pod, &hard), "limits.cpu for: b; requests.memory for: a,b");
    }
}

//! What a pod asks for and what a node has, as whole numbers: processor time in thousandths, everything else in units.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use moorline_machinery::quantity::Quantity;

/// Amounts of resources by name. What is absent is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<String, i64>);

/// The name of the resource that counts pods.
pub(crate) const PODS: &str = "pods";

impl Amounts {
    /// Reads the amounts of a resource list. What is no quantity counts as nothing: the server has refused it already.
    pub fn of(list: Option<&BTreeMap<String, ApiQuantity>>) -> Self {
        let amounts = list.into_iter().flatten();
        Self(
            amounts
                .map(|(name, quantity)| (name.clone(), amount(name, quantity)))
                .collect(),
        )
    }

    /// How much there is of a resource: thousandths of a core for `cpu`, units for everything else.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Says how much there is of a resource.
    pub fn set(&mut self, name: &str, amount: i64) {
        self.0.insert(name.to_owned(), amount);
    }

    /// Each resource with its amount, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// Adds to every resource.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let slot = self.0.entry(name.clone()).or_insert(0);
            *slot = slot.saturating_add(*amount);
        }
    }

    /// Takes from every resource.
    pub fn subtract(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let slot = self.0.entry(name.clone()).or_insert(0);
            *slot = slot.saturating_sub(*amount);
        }
    }

    /// Raises every resource to at least the other's.
    pub fn raise_to(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let slot = self.0.entry(name.clone()).or_insert(0);
            *slot = (*slot).max(*amount);
        }
    }
}

/// The amount that a quantity of this resource stands for.
pub(crate) fn amount(name: &str, quantity: &ApiQuantity) -> i64 {
    let quantity: Quantity = quantity.0.parse().unwrap_or(Quantity::ZERO);
    if name == "cpu" {
        quantity.milli_value()
    } else {
        quantity.value()
    }
}

/// Which side of resource requirements is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Requests,
    Limits,
}

impl Side {
    pub(crate) fn of(self, requirements: Option<&ResourceRequirements>) -> Amounts {
        let list = requirements.and_then(|requirements| match self {
            Side::Requests => requirements.requests.as_ref(),
            Side::Limits => requirements.limits.as_ref(),
        });
        Amounts::of(list)
    }
}

/// Whether an init container keeps running beside those after it.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What a pod takes on its node: the most that it needs at any moment of its start, or while it runs, with overhead.
///
/// Where its containers were resized in place, the larger of what is asked for and what they were last given counts, as
/// the node may not have followed yet.
pub fn pod_requests(spec: &PodSpec, status: Option<&PodStatus>) -> Amounts {
    let mut total = of_containers(spec, |container| {
        let mut asked = Side::Requests.of(container.resources.as_ref());
        if let Some(given) = status.and_then(|status| allocated(status, &container.name)) {
            asked.raise_to(&given);
        }
        asked
    });
    let whole = Side::Requests.of(spec.resources.as_ref());
    for (name, amount) in whole.iter() {
        total.set(name, amount);
    }
    total.add(&Amounts::of(spec.overhead.as_ref()));
    total
}

/// The limits of a pod as a whole; `None` for a resource that some container may use without bound.
pub(crate) fn pod_limit(spec: &PodSpec, resource: &str) -> Option<i64> {
    let whole = Side::Limits.of(spec.resources.as_ref()).get(resource);
    if whole > 0 {
        return Some(whole + Amounts::of(spec.overhead.as_ref()).get(resource));
    }
    let unbounded = |container: &Container| Side::Limits.of(container.resources.as_ref()).get(resource) == 0;
    if spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .any(unbounded)
    {
        return None;
    }
    let total = of_containers(spec, |container| Side::Limits.of(container.resources.as_ref()));
    Some(total.get(resource) + Amounts::of(spec.overhead.as_ref()).get(resource))
}

fn of_containers(spec: &PodSpec, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut running = Amounts::default();
    for container in &spec.containers {
        running.add(&of(container));
    }
    let mut sidecars = Amounts::default();
    let mut starting = Amounts::default();
    for container in spec.init_containers.iter().flatten() {
        let mut here = of(container);
        if is_sidecar(container) {
            running.add(&here);
            sidecars.add(&here);
            here = sidecars.clone();
        } else {
            here.add(&sidecars);
        }
        starting.raise_to(&here);
    }
    running.raise_to(&starting);
    running
}

fn allocated(status: &PodStatus, container: &str) -> Option<Amounts> {
    let all = status
        .container_statuses
        .iter()
        .flatten()
        .chain(status.init_container_statuses.iter().flatten());
    let status = all.into_iter().find(|status| status.name == container)?;
    status.allocated_resources.as_ref().map(|list| Amounts::of(Some(list)))
}

/// The quality-of-service class of a pod.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    let known = |name: &str| name == "cpu" || name == "memory";
    let mut any = false;
    let mut guaranteed = true;
    let mut look = |requirements: Option<&ResourceRequirements>| {
        let (requests, limits) = (Side::Requests.of(requirements), Side::Limits.of(requirements));
        any |= requests
            .iter()
            .chain(limits.iter())
            .any(|(name, amount)| known(name) && amount > 0);
        for name in ["cpu", "memory"] {
            let limit = limits.get(name);
            guaranteed &= limit > 0 && requests.get(name) == limit;
        }
    };
    let whole = spec.resources.as_ref();
    if whole.is_some_and(|whole| whole.requests.is_some() || whole.limits.is_some()) {
        look(whole);
    } else {
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            look(container.resources.as_ref());
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_needs_the_most_of_any_moment_of_its_start() {
        let spec = spec(json!({
            "initContainers": [
                { "name": "a", "resources": { "requests": { "cpu": "3" } } },
                { "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "100m", "memory": "1Mi" } } },
                { "name": "b", "resources": { "requests": { "cpu": "250m" } } },
            ],
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1", "memory": "1Gi" } } }],
            "overhead": { "cpu": "10m" },
        }));
        let requests = pod_requests(&spec, None);
        assert_eq!(requests.get("cpu"), 3010);
        assert_eq!(requests.get("memory"), (1 << 30) + (1 << 20));
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        let of = |resources: serde_json::Value| {
            qos_class(&spec(
                json!({ "containers": [{ "name": "c", "resources": resources }] }),
            ))
        };
        assert_eq!(of(json!({})), "BestEffort");
        assert_eq!(of(json!({ "requests": { "cpu": "1" } })), "Burstable");
        let both = json!({ "cpu": "1", "memory": "1Gi" });
        assert_eq!(of(json!({ "requests": both, "limits": both })), "Guaranteed");
    }
}

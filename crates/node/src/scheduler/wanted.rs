//! What a pod asks of the node it will run on, read once from its spec.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, Toleration,
        TopologySpreadConstraint,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector as ApiLabelSelector,
};
use moorline_machinery::selector::{LabelSelector, Requirement, Test};

use crate::{
    amounts::{Amounts, PODS, pod_requests},
    key::Key,
};

/// A pod as the scheduler sees it.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Which pod.
    pub key: Key,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Its controller's UID: pods of one controller are spread even when nothing asks for it.
    pub(crate) controller: Option<String>,
    /// The higher, the more important.
    pub priority: i32,
    pub(crate) may_preempt: bool,
    pub(crate) nominated: Option<String>,
    pub(crate) requests: Amounts,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) node_required: Option<NodeTerms>,
    pub(crate) node_preferred: Vec<(i32, NodeTerm)>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) near: Vec<PodTerm>,
    pub(crate) apart: Vec<PodTerm>,
    /// Terms that only weigh; negative for anti-affinity.
    pub(crate) weighing: Vec<(i32, PodTerm)>,
    pub(crate) spread: Vec<Spread>,
    pub(crate) claims: Vec<String>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) terminating: bool,
}

/// A port of the node that a pod takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    ip: String,
    protocol: String,
    port: i32,
}

impl HostPort {
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let any = |ip: &str| ip == "0.0.0.0" || ip == "::";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || any(&self.ip) || any(&other.ip))
    }
}

/// Terms of which one has to hold.
#[derive(Debug, Clone)]
pub(crate) struct NodeTerms(Vec<NodeTerm>);

/// Requirements on a node that have to hold together.
#[derive(Debug, Clone)]
pub(crate) struct NodeTerm {
    /// Nothing when the term matches no node at all.
    labels: Option<LabelSelector>,
    names: Vec<(NameTest, BTreeSet<String>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameTest {
    In,
    NotIn,
}

impl NodeTerms {
    pub(crate) fn of(selector: &NodeSelector) -> Self {
        Self(selector.node_selector_terms.iter().map(NodeTerm::of).collect())
    }

    pub(crate) fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().any(|term| term.matches(name, labels))
    }
}

impl NodeTerm {
    fn of(term: &NodeSelectorTerm) -> Self {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        if expressions.is_empty() && fields.is_empty() {
            return Self {
                labels: None,
                names: Vec::new(),
            };
        }
        let labels: Option<Vec<_>> = expressions.iter().map(requirement).collect();
        let names = fields.iter().filter(|field| field.key == "metadata.name").map(|field| {
            let test = if field.operator == "NotIn" {
                NameTest::NotIn
            } else {
                NameTest::In
            };
            (test, field.values.iter().flatten().cloned().collect())
        });
        Self {
            labels: labels.map(LabelSelector::all),
            names: names.collect(),
        }
    }

    pub(crate) fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let named = |(test, names): &(NameTest, BTreeSet<String>)| names.contains(name) == (*test == NameTest::In);
        self.labels.as_ref().is_some_and(|selector| selector.matches(labels)) && self.names.iter().all(named)
    }
}

fn requirement(requirement: &NodeSelectorRequirement) -> Option<Requirement> {
    let values = requirement.values.clone().unwrap_or_default();
    let number = || values.first().and_then(|value| value.parse().ok());
    let test = match requirement.operator.as_str() {
        "In" => Test::In(sorted(values)),
        "NotIn" => Test::NotIn(sorted(values)),
        "Exists" => Test::Exists,
        "DoesNotExist" => Test::DoesNotExist,
        "Gt" => Test::GreaterThan(number()?),
        "Lt" => Test::LessThan(number()?),
        _ => return None,
    };
    Requirement::new(requirement.key.clone(), test).ok()
}

fn sorted(mut values: Vec<String>) -> Vec<String> {
    values.sort();
    values
}

/// Other pods that a pod wants to be near to, or apart from, within a domain of nodes.
#[derive(Debug, Clone)]
pub(crate) struct PodTerm {
    pub(crate) topology_key: String,
    selector: LabelSelector,
    namespaces: BTreeSet<String>,
    namespace_selector: Option<LabelSelector>,
}

impl PodTerm {
    fn of(term: &PodAffinityTerm, own: &Key, labels: &BTreeMap<String, String>) -> Self {
        let mut selector = read_selector(term.label_selector.as_ref());
        for key in term.match_label_keys.iter().flatten() {
            if let Some(value) = labels.get(key) {
                selector = and(&selector, key, Test::In(vec![value.clone()]));
            }
        }
        for key in term.mismatch_label_keys.iter().flatten() {
            if let Some(value) = labels.get(key) {
                selector = and(&selector, key, Test::NotIn(vec![value.clone()]));
            }
        }
        let mut namespaces: BTreeSet<_> = term.namespaces.iter().flatten().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(own.namespace.clone());
        }
        Self {
            topology_key: term.topology_key.clone(),
            selector,
            namespaces,
            namespace_selector: term
                .namespace_selector
                .as_ref()
                .map(|selector| read_selector(Some(selector))),
        }
    }

    /// Whether pods of a namespace with these labels can be meant.
    pub(crate) fn covers(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.namespaces.contains(namespace)
            || self
                .namespace_selector
                .as_ref()
                .is_some_and(|selector| selector.matches(&labels))
    }

    /// Whether a pod of a covered namespace is meant.
    pub(crate) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selector.matches(labels)
    }
}

/// How evenly pods are to lie over domains of nodes.
#[derive(Debug, Clone)]
pub(crate) struct Spread {
    pub(crate) topology_key: String,
    pub(crate) max_skew: i64,
    pub(crate) min_domains: i64,
    pub(crate) required: bool,
    pub(crate) selector: LabelSelector,
    /// Whether nodes that the pod may not go to count as domains.
    pub(crate) honours_affinity: bool,
    pub(crate) honours_taints: bool,
}

impl Spread {
    fn of(constraint: &TopologySpreadConstraint, labels: &BTreeMap<String, String>) -> Self {
        let mut selector = read_selector(constraint.label_selector.as_ref());
        for key in constraint.match_label_keys.iter().flatten() {
            if let Some(value) = labels.get(key) {
                selector = and(&selector, key, Test::In(vec![value.clone()]));
            }
        }
        Self {
            topology_key: constraint.topology_key.clone(),
            max_skew: constraint.max_skew.into(),
            min_domains: constraint.min_domains.unwrap_or(1).into(),
            required: constraint.when_unsatisfiable == "DoNotSchedule",
            selector,
            honours_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honours_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}

fn and(selector: &LabelSelector, key: &str, test: Test) -> LabelSelector {
    if selector.is_nothing() {
        return LabelSelector::NOTHING;
    }
    let mut requirements = selector.requirements().to_vec();
    requirements.extend(Requirement::new(key, test).ok());
    LabelSelector::all(requirements)
}

/// Reads a selector of the API; one that cannot be understood selects nothing.
pub(crate) fn read_selector(selector: Option<&ApiLabelSelector>) -> LabelSelector {
    let value = selector.and_then(|selector| serde_json::to_value(selector).ok());
    LabelSelector::from_json(value.as_ref()).unwrap_or(LabelSelector::NOTHING)
}

impl Wanted {
    /// Reads a pod.
    pub fn of(pod: &Pod) -> Self {
        let key = Key::of(pod);
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let status = pod.status.as_ref();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let mut requests = pod_requests(spec, status);
        requests.set(PODS, 1);
        let affinity = spec.affinity.as_ref();
        let node = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let node_preferred = node.and_then(|node| node.preferred_during_scheduling_ignored_during_execution.as_ref());
        let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let term = |term: &PodAffinityTerm| PodTerm::of(term, &key, &labels);
        let mut weighing = Vec::new();
        for weighted in near.iter().flat_map(|near| {
            near.preferred_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
        }) {
            weighing.push((weighted.weight, term(&weighted.pod_affinity_term)));
        }
        for weighted in apart.iter().flat_map(|apart| {
            apart
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
        }) {
            weighing.push((-weighted.weight, term(&weighted.pod_affinity_term)));
        }
        let owners = pod.metadata.owner_references.iter().flatten();
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            controller: owners
                .into_iter()
                .find(|owner| owner.controller == Some(true))
                .map(|owner| owner.uid.clone()),
            priority: spec.priority.unwrap_or(0),
            may_preempt: spec.preemption_policy.as_deref() != Some("Never"),
            nominated: status.and_then(|status| status.nominated_node_name.clone()),
            requests,
            ports: host_ports(spec),
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            node_required: node
                .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref())
                .map(NodeTerms::of),
            node_preferred: node_preferred
                .into_iter()
                .flatten()
                .map(|preferred| (preferred.weight, NodeTerm::of(&preferred.preference)))
                .collect(),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            near: near
                .iter()
                .flat_map(|near| {
                    near.required_during_scheduling_ignored_during_execution
                        .iter()
                        .flatten()
                })
                .map(term)
                .collect(),
            apart: apart
                .iter()
                .flat_map(|apart| {
                    apart
                        .required_during_scheduling_ignored_during_execution
                        .iter()
                        .flatten()
                })
                .map(term)
                .collect(),
            weighing,
            spread: spec
                .topology_spread_constraints
                .iter()
                .flatten()
                .map(|each| Spread::of(each, &labels))
                .collect(),
            claims: claims(spec, &key.name),
            started: status.and_then(|status| status.start_time.as_ref()).map(|time| time.0),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            labels,
            key,
        }
    }

    /// Whether a node with these labels is one that the pod asks for by selector and required affinity.
    pub(crate) fn chooses(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.node_selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .node_required
                .as_ref()
                .is_none_or(|terms| terms.matches(name, labels))
    }
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| crate::amounts::is_sidecar(container));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    let taken = ports.filter_map(|port| {
        let number = port.host_port.filter(|port| *port > 0)?;
        let ip = port.host_ip.clone().filter(|ip| !ip.is_empty());
        Some(HostPort {
            ip: ip.unwrap_or_else(|| "0.0.0.0".to_owned()),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: number,
        })
    });
    taken.collect()
}

/// The names of the claims that a pod mounts, its ephemeral volumes' included.
pub(crate) fn claims(spec: &PodSpec, pod: &str) -> Vec<String> {
    let volumes = spec.volumes.iter().flatten();
    let names = volumes.filter_map(|volume| {
        let named = volume
            .persistent_volume_claim
            .as_ref()
            .map(|claim| claim.claim_name.clone());
        named.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name)))
    });
    names.collect()
}

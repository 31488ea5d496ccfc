//! Which nodes can take a pod at all.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::{
    cluster::{Cluster, NodeState},
    domains::{Neighbours, Spreading},
    volumes::Claims,
    wanted::Wanted,
};
use crate::{
    amounts::{Amounts, PODS},
    key::Key,
};

/// Why a node does not take a pod.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) reasons: Vec<String>,
    /// Whether the node would take it if some of its pods were gone.
    pub(crate) room_would_help: bool,
}

impl Refusal {
    fn for_good(reason: impl Into<String>) -> Self {
        Self {
            reasons: vec![reason.into()],
            room_would_help: false,
        }
    }

    fn for_want_of_room(reason: impl Into<String>) -> Self {
        Self {
            reasons: vec![reason.into()],
            room_would_help: true,
        }
    }
}

/// A pod, and all that is worked out once for it before nodes are looked at.
pub(crate) struct Situation<'a> {
    cluster: &'a Cluster,
    wanted: &'a Wanted,
    claims: &'a Claims<'a>,
    pub(crate) neighbours: Neighbours<'a>,
    spreading: Vec<Spreading<'a>>,
    /// Pods that are taken to be gone already.
    without: &'a BTreeSet<Key>,
}

impl<'a> Situation<'a> {
    pub(crate) fn new(
        cluster: &'a Cluster,
        wanted: &'a Wanted,
        claims: &'a Claims<'a>,
        without: &'a BTreeSet<Key>,
    ) -> Self {
        let required = wanted.spread.iter().filter(|spread| spread.required);
        Self {
            cluster,
            wanted,
            claims,
            neighbours: Neighbours::new(cluster, wanted, without),
            spreading: required
                .map(|spread| Spreading::new(cluster, wanted, spread, without))
                .collect(),
            without,
        }
    }

    /// Whether a node takes the pod.
    pub(crate) fn check(&self, node: &NodeState) -> Result<(), Refusal> {
        let wanted = self.wanted;
        let unschedulable = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        if node.unschedulable && !tolerated(&wanted.tolerations, &unschedulable) {
            return Err(Refusal::for_good("node(s) were unschedulable"));
        }
        let repels = |taint: &&Taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute";
        if node
            .taints
            .iter()
            .filter(repels)
            .any(|taint| !tolerated(&wanted.tolerations, taint))
        {
            return Err(Refusal::for_good("node(s) had untolerated taint(s)"));
        }
        if !wanted.chooses(&node.name, &node.labels) {
            return Err(Refusal::for_good("node(s) didn't match Pod's node affinity/selector"));
        }
        self.check_ports(node)?;
        self.check_room(node)?;
        self.claims.check(self.cluster, node)?;
        for spreading in &self.spreading {
            spreading.check(node).map_err(|(reason, room_would_help)| Refusal {
                reasons: vec![reason.to_owned()],
                room_would_help,
            })?;
        }
        self.neighbours
            .check(node)
            .map_err(|(reason, room_would_help)| Refusal {
                reasons: vec![reason.to_owned()],
                room_would_help,
            })
    }

    fn check_ports(&self, node: &NodeState) -> Result<(), Refusal> {
        if self.wanted.ports.is_empty() {
            return Ok(());
        }
        let others = node
            .pods
            .values()
            .filter(|placed| !self.without.contains(&placed.wanted.key));
        let taken = others.flat_map(|placed| &placed.wanted.ports);
        for theirs in taken {
            if self.wanted.ports.iter().any(|ours| ours.conflicts(theirs)) {
                return Err(Refusal::for_want_of_room(
                    "node(s) didn't have free ports for the requested pod ports",
                ));
            }
        }
        Ok(())
    }

    fn check_room(&self, node: &NodeState) -> Result<(), Refusal> {
        let used = self.used(node);
        let mut reasons = Vec::new();
        let mut room_would_help = true;
        for (name, asked) in self.wanted.requests.iter() {
            if asked == 0 || asked <= node.allocatable.get(name) - used.get(name) {
                continue;
            }
            if name == PODS {
                reasons.push("Too many pods".to_owned());
            } else {
                room_would_help &= asked <= node.allocatable.get(name);
                reasons.push(format!("Insufficient {name}"));
            }
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Refusal {
            reasons,
            room_would_help,
        })
    }

    /// What is taken on a node: by its pods, and by those for which room is being made there.
    fn used(&self, node: &NodeState) -> Amounts {
        let mut used = node.used.clone();
        for key in self.without {
            if let Some(placed) = node.pods.get(key) {
                used.subtract(&placed.wanted.requests);
            }
        }
        for (key, (on, other)) in &self.cluster.nominated {
            if *on == node.name && *key != self.wanted.key && other.priority >= self.wanted.priority {
                used.add(&other.requests);
            }
        }
        used
    }
}

/// Whether one of the tolerations covers a taint.
pub(crate) fn tolerated(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

/// Whether a toleration covers a taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if given(&toleration.effect).is_some_and(|effect| effect != taint.effect) {
        return false;
    }
    let key = given(&toleration.key);
    if key.as_ref().is_some_and(|key| *key != taint.key) {
        return false;
    }
    let (value, other) = (
        toleration.value.as_deref().unwrap_or(""),
        taint.value.as_deref().unwrap_or(""),
    );
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => key.is_some() && value == other,
        Some(comparison @ ("Lt" | "Gt")) => match (other.parse::<i64>(), value.parse::<i64>()) {
            (Ok(taint), Ok(bound)) => (comparison == "Lt" && taint < bound) || (comparison == "Gt" && taint > bound),
            _ => false,
        },
        Some(_) => false,
    }
}

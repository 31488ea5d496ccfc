//! Room for an important pod, made by less important ones going.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    cluster::{Cluster, NodeState, Placed},
    filter::{Refusal, Situation},
    summary,
    volumes::Claims,
    wanted::Wanted,
};
use crate::key::Key;

/// Who has to go for a pod to fit on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// The node.
    pub node: String,
    /// The pods that go, with their UIDs, most important first.
    pub victims: Vec<(Key, String)>,
}

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// Looks for the node where the least is lost. Also gives what to add to the pod's message.
pub(crate) fn find(
    cluster: &Cluster,
    wanted: &Wanted,
    claims: &Claims<'_>,
    refusals: &BTreeMap<&str, Refusal>,
) -> (String, Option<Preemption>) {
    if !wanted.may_preempt {
        return (
            " preemption: not eligible due to preemptionPolicy=Never.".to_owned(),
            None,
        );
    }
    if waits_for_victims(cluster, wanted) {
        return (
            " preemption: not eligible due to a terminating pod on the nominated node.".to_owned(),
            None,
        );
    }
    let mut reasons = Vec::new();
    let mut candidates = Vec::new();
    for (name, refusal) in refusals {
        let Some(node) = cluster.nodes.get(*name) else { continue };
        if !refusal.room_would_help {
            reasons.push(NOT_HELPFUL.to_owned());
            continue;
        }
        match victims(cluster, wanted, claims, node) {
            Some(candidate) => candidates.push(candidate),
            None => reasons.push("No preemption victims found for incoming pod".to_owned()),
        }
    }
    let best = candidates.into_iter().min_by_key(Candidate::cost);
    match best {
        Some(candidate) => (String::new(), Some(candidate.into_preemption())),
        None => (
            format!(" preemption: {}", summary(refusals.len(), reasons.into_iter())),
            None,
        ),
    }
}

/// Whether room that was made for this pod is still being left by those who go.
fn waits_for_victims(cluster: &Cluster, wanted: &Wanted) -> bool {
    let node = cluster
        .nominated
        .get(&wanted.key)
        .map(|(node, _)| node)
        .or(wanted.nominated.as_ref());
    let Some(node) = node.and_then(|name| cluster.nodes.get(name)) else {
        return false;
    };
    node.pods
        .values()
        .any(|placed| placed.wanted.terminating && placed.wanted.priority < wanted.priority)
}

struct Candidate<'a> {
    node: &'a NodeState,
    violations: usize,
    /// Most important first.
    victims: Vec<&'a Placed>,
}

impl Candidate<'_> {
    /// What is lost, worst first: budgets broken, the most important victim, all their importance, their number; and
    /// of nodes that are equal in all that, the one whose most important victim ran the shortest.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Option<jiff::Timestamp>>, String) {
        let highest = self
            .victims
            .iter()
            .map(|placed| placed.wanted.priority)
            .max()
            .unwrap_or(i32::MIN);
        let sum = self
            .victims
            .iter()
            .map(|placed| i64::from(placed.wanted.priority) + (1_i64 << 31))
            .sum();
        let oldest = self.victims.iter().filter(|placed| placed.wanted.priority == highest);
        let oldest = oldest.filter_map(|placed| placed.wanted.started).min();
        (
            self.violations,
            highest,
            sum,
            self.victims.len(),
            Reverse(oldest),
            self.node.name.clone(),
        )
    }

    fn into_preemption(self) -> Preemption {
        let victims = self
            .victims
            .iter()
            .map(|placed| (placed.wanted.key.clone(), placed.wanted.uid.clone()));
        Preemption {
            node: self.node.name.clone(),
            victims: victims.collect(),
        }
    }
}

/// The fewest and least important pods of a node without which it takes the new one.
fn victims<'a>(
    cluster: &'a Cluster,
    wanted: &Wanted,
    claims: &Claims<'_>,
    node: &'a NodeState,
) -> Option<Candidate<'a>> {
    let mut lower: Vec<&Placed> = node
        .pods
        .values()
        .map(AsRef::as_ref)
        .filter(|placed| placed.wanted.priority < wanted.priority)
        .collect();
    if lower.is_empty() {
        return None;
    }
    let mut gone: BTreeSet<Key> = lower.iter().map(|placed| placed.wanted.key.clone()).collect();
    let fits = |gone: &BTreeSet<Key>| Situation::new(cluster, wanted, claims, gone).check(node).is_ok();
    if !fits(&gone) {
        return None;
    }
    lower.sort_by_key(|placed| {
        (
            Reverse(placed.wanted.priority),
            placed.wanted.started,
            placed.wanted.key.clone(),
        )
    });
    let (protected, others) = split_by_budgets(cluster, &lower);
    let mut victims = Vec::new();
    let mut violations = 0;
    let mut spare = |placed: &'a Placed, counts: bool| {
        gone.remove(&placed.wanted.key);
        if !fits(&gone) {
            gone.insert(placed.wanted.key.clone());
            victims.push(placed);
            violations += usize::from(counts);
        }
    };
    for placed in protected {
        spare(placed, true);
    }
    for placed in others {
        spare(placed, false);
    }
    victims.sort_by_key(|placed| (Reverse(placed.wanted.priority), placed.wanted.started));
    Some(Candidate {
        node,
        violations,
        victims,
    })
}

/// Those whose going would break a disruption budget, and the others.
fn split_by_budgets<'a>(cluster: &Cluster, pods: &[&'a Placed]) -> (Vec<&'a Placed>, Vec<&'a Placed>) {
    let mut left: Vec<_> = cluster
        .budgets
        .values()
        .map(|budget| (budget, budget.allowed))
        .collect();
    let mut protected = Vec::new();
    let mut others = Vec::new();
    for placed in pods {
        let mut broken = false;
        for (budget, allowed) in &mut left {
            if budget.namespace == placed.wanted.key.namespace && budget.selector.matches(&placed.wanted.labels) {
                *allowed -= 1;
                broken |= *allowed < 0;
            }
        }
        if broken {
            protected.push(*placed);
        } else {
            others.push(*placed);
        }
    }
    (protected, others)
}

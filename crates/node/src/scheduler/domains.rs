//! Terms that concern other pods: affinity, anti-affinity and even spreading over domains of nodes.
//!
//! A domain is the nodes that carry the same value of one label. What lies in each domain is counted once for a pod;
//! asking a node is then a few look-ups.

use std::collections::{BTreeSet, HashMap};

use super::{
    cluster::{Cluster, NodeState, Placed},
    filter::tolerated,
    wanted::{PodTerm, Spread, Wanted},
};
use crate::key::Key;

/// Counts by topology key and value.
type Domains<'a> = HashMap<(&'a str, &'a str), i64>;

/// What the pods that are there have to say about a new one, and it about them.
pub(crate) struct Neighbours<'a> {
    wanted: &'a Wanted,
    /// Domains that pods which are there want for themselves.
    forbidden: Domains<'a>,
    /// Pods in each domain that the new one must be near to.
    near: Domains<'a>,
    /// Pods in each domain that it must be apart from.
    apart: Domains<'a>,
    /// What each domain weighs for or against.
    weights: Domains<'a>,
}

impl<'a> Neighbours<'a> {
    pub(crate) fn new(cluster: &'a Cluster, wanted: &'a Wanted, without: &BTreeSet<Key>) -> Self {
        let mut this = Self {
            wanted,
            forbidden: Domains::new(),
            near: Domains::new(),
            apart: Domains::new(),
            weights: Domains::new(),
        };
        this.hear_others(cluster, without);
        if !wanted.near.is_empty() {
            for placed in present(
                cluster,
                without,
                |placed| wanted.near.iter().all(|term| means(cluster, term, placed)),
                &wanted.near,
            ) {
                for term in &wanted.near {
                    count(&mut this.near, cluster, placed, &term.topology_key, 1);
                }
            }
        }
        for term in &wanted.apart {
            let terms = std::slice::from_ref(term);
            for placed in present(cluster, without, |placed| means(cluster, term, placed), terms) {
                count(&mut this.apart, cluster, placed, &term.topology_key, 1);
            }
        }
        for (weight, term) in &wanted.weighing {
            let terms = std::slice::from_ref(term);
            for placed in present(cluster, without, |placed| means(cluster, term, placed), terms) {
                count(
                    &mut this.weights,
                    cluster,
                    placed,
                    &term.topology_key,
                    i64::from(*weight),
                );
            }
        }
        this
    }

    fn hear_others(&mut self, cluster: &'a Cluster, without: &BTreeSet<Key>) {
        let wanted = self.wanted;
        let labels = cluster.namespaces.get(&wanted.key.namespace);
        let means_us = |term: &PodTerm| term.covers(&wanted.key.namespace, labels) && term.selects(&wanted.labels);
        for (key, placed) in &cluster.with_terms {
            if without.contains(key) {
                continue;
            }
            for term in placed.wanted.apart.iter().filter(|term| means_us(term)) {
                count(&mut self.forbidden, cluster, placed, &term.topology_key, 1);
            }
            for term in placed.wanted.near.iter().filter(|term| means_us(term)) {
                count(&mut self.weights, cluster, placed, &term.topology_key, 1);
            }
            for (weight, term) in placed.wanted.weighing.iter().filter(|(_, term)| means_us(term)) {
                count(
                    &mut self.weights,
                    cluster,
                    placed,
                    &term.topology_key,
                    i64::from(*weight),
                );
            }
        }
    }

    /// Whether a node suits; else why not, and whether it would if some of its pods were gone.
    pub(crate) fn check(&self, node: &NodeState) -> Result<(), (&'static str, bool)> {
        if !self.check_near(node) {
            return Err(("node(s) didn't match pod affinity rules", false));
        }
        let apart =
            |term: &PodTerm| domain(node, &term.topology_key).is_some_and(|domain| self.apart.contains_key(&domain));
        if self.wanted.apart.iter().any(apart) {
            return Err(("node(s) didn't match pod anti-affinity rules", true));
        }
        let held = |(key, value): &(&str, &str)| node.labels.get(*key).is_some_and(|own| own == value);
        if self.forbidden.keys().any(held) {
            return Err(("node(s) didn't satisfy existing pods anti-affinity rules", true));
        }
        Ok(())
    }

    fn check_near(&self, node: &NodeState) -> bool {
        let terms = &self.wanted.near;
        let domains: Option<Vec<_>> = terms.iter().map(|term| domain(node, &term.topology_key)).collect();
        let Some(domains) = domains else { return false };
        if domains
            .iter()
            .all(|domain| self.near.get(domain).is_some_and(|count| *count > 0))
        {
            return true;
        }
        // The first of a group that wants to be near itself may go anywhere.
        let own = &self.wanted.key.namespace;
        self.near.is_empty()
            && terms
                .iter()
                .all(|term| term.covers(own, None) && term.selects(&self.wanted.labels))
    }

    /// What the neighbours weigh for a node.
    pub(crate) fn weight(&self, node: &NodeState) -> i64 {
        let here = self
            .weights
            .iter()
            .filter(|((key, value), _)| node.labels.get(*key).is_some_and(|own| own == value));
        here.map(|(_, weight)| weight).sum()
    }
}

/// Pods that are there and selected, looked for in the namespaces that the terms can mean.
fn present<'a>(
    cluster: &'a Cluster,
    without: &BTreeSet<Key>,
    selected: impl Fn(&Placed) -> bool,
    terms: &[PodTerm],
) -> Vec<&'a Placed> {
    let mut found = Vec::new();
    for (namespace, pods) in &cluster.by_namespace {
        let labels = cluster.namespaces.get(namespace);
        if !terms.iter().any(|term| term.covers(namespace, labels)) {
            continue;
        }
        let here = pods
            .values()
            .filter(|placed| !without.contains(&placed.wanted.key) && selected(placed));
        found.extend(here.map(AsRef::as_ref));
    }
    found
}

fn means(cluster: &Cluster, term: &PodTerm, placed: &Placed) -> bool {
    let namespace = &placed.wanted.key.namespace;
    term.selects(&placed.wanted.labels) && term.covers(namespace, cluster.namespaces.get(namespace))
}

fn domain<'n>(node: &'n NodeState, key: &'n str) -> Option<(&'n str, &'n str)> {
    node.labels.get(key).map(|value| (key, value.as_str()))
}

fn count<'a>(domains: &mut Domains<'a>, cluster: &'a Cluster, placed: &Placed, key: &'a str, by: i64) {
    let value = cluster.nodes.get(&placed.node).and_then(|node| node.labels.get(key));
    if let Some(value) = value {
        *domains.entry((key, value.as_str())).or_insert(0) += by;
    }
}

/// How pods lie over the domains of one constraint.
pub(crate) struct Spreading<'a> {
    spread: &'a Spread,
    counts: HashMap<&'a str, i64>,
    /// The fewest in any domain.
    fewest: i64,
    /// One where the new pod counts itself.
    own: i64,
}

impl<'a> Spreading<'a> {
    pub(crate) fn new(cluster: &'a Cluster, wanted: &'a Wanted, spread: &'a Spread, without: &BTreeSet<Key>) -> Self {
        let counts_as_domain = |node: &NodeState| {
            let repelled = || {
                node.taints
                    .iter()
                    .any(|taint| taint.effect != "PreferNoSchedule" && !tolerated(&wanted.tolerations, taint))
            };
            (!spread.honours_affinity || wanted.chooses(&node.name, &node.labels))
                && (!spread.honours_taints || !repelled())
        };
        let mut counts: HashMap<&str, i64> = HashMap::new();
        let mut eligible = BTreeSet::new();
        for node in cluster.nodes.values().filter(|node| counts_as_domain(node)) {
            if let Some(value) = node.labels.get(&spread.topology_key) {
                counts.entry(value).or_insert(0);
                eligible.insert(node.name.as_str());
            }
        }
        let pods = cluster.by_namespace.get(&wanted.key.namespace);
        for placed in pods.into_iter().flat_map(std::collections::BTreeMap::values) {
            let gone = placed.wanted.terminating || without.contains(&placed.wanted.key);
            if gone || !eligible.contains(placed.node.as_str()) || !spread.selector.matches(&placed.wanted.labels) {
                continue;
            }
            let node = cluster.nodes.get(&placed.node);
            if let Some(value) = node.and_then(|node| node.labels.get(&spread.topology_key)) {
                *counts.entry(value).or_insert(0) += 1;
            }
        }
        let domains = i64::try_from(counts.len()).unwrap_or(i64::MAX);
        let fewest = counts.values().copied().min().unwrap_or(0);
        Self {
            spread,
            // Too few domains count as if an empty one were missing.
            fewest: if domains < spread.min_domains { 0 } else { fewest },
            own: i64::from(spread.selector.matches(&wanted.labels)),
            counts,
        }
    }

    pub(crate) fn check(&self, node: &NodeState) -> Result<(), (&'static str, bool)> {
        let Some(value) = node.labels.get(&self.spread.topology_key) else {
            return Err((
                "node(s) didn't match pod topology spread constraints (missing required label)",
                false,
            ));
        };
        let here = self.counts.get(value.as_str()).copied().unwrap_or(0);
        if here + self.own - self.fewest > self.spread.max_skew {
            return Err(("node(s) didn't match pod topology spread constraints", true));
        }
        Ok(())
    }

    /// How many lie in a node's domain; nothing where it has none.
    pub(crate) fn here(&self, node: &NodeState) -> Option<i64> {
        let value = node.labels.get(&self.spread.topology_key)?;
        Some(self.counts.get(value.as_str()).copied().unwrap_or(0))
    }
}

//! The scheduler: which node a pod goes to, and why none will have it.
//!
//! [`decide`] is a function of what is known of the cluster and of the pod; `run` keeps that knowledge by watches,
//! carries decisions out and asks again when something changed that could make a difference.
//!
//! ```text
//!   watches ──► Cluster ──┐
//!                         ├─► decide ──► Place ──► volumes bound ──► pods/binding
//!   waiting pods ─────────┘      │
//!        ▲                       └────► Refuse ──► PodScheduled=False, FailedScheduling, victims deleted
//!        └──── something changed, or its back-off is over ◄──────────────┘
//! ```
//!
//! Filters, their order, their messages and the weights of what is preferred are Kubernetes'. One thing differs: among
//! nodes that score equally the one with the fewest pods wins, then the first by name, where Kubernetes takes any; a
//! simulation can be repeated.

mod cluster;
mod domains;
mod enact;
mod filter;
mod preempt;
mod run;
mod score;
#[cfg(test)]
mod tests;
mod volumes;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};

pub use cluster::{Budget, Cluster};
pub(crate) use filter::tolerates;
pub use preempt::Preemption;
pub(crate) use run::{Sources, run};
pub use volumes::ClaimChoice;
pub use wanted::Wanted;

/// What is to happen with a pod.
#[derive(Debug)]
pub enum Verdict {
    /// It goes to a node, once its volumes are seen to.
    Place {
        /// Which node.
        node: String,
        /// What becomes of claims that waited for the pod.
        claims: Vec<ClaimChoice>,
    },
    /// It goes nowhere for now.
    Refuse {
        /// Why, in Kubernetes' words.
        message: String,
        /// Who could make room.
        preemption: Option<Preemption>,
    },
}

/// Finds the node for a pod.
pub fn decide(cluster: &Cluster, wanted: &Wanted) -> Verdict {
    if cluster.nodes.is_empty() {
        return refuse("no nodes available to schedule pods".to_owned(), None);
    }
    let claims = match volumes::read(cluster, wanted) {
        Ok(claims) => claims,
        Err(reason) => {
            let postscript = "preemption: 0/0 nodes are available: Preemption is not helpful for scheduling.";
            let count = cluster.nodes.len();
            let nodes = format!("0/{count} nodes are available: {reason}. ");
            return refuse(nodes + &postscript.replace("0/0", &format!("0/{count}")), None);
        }
    };
    let nobody = BTreeSet::new();
    let situation = filter::Situation::new(cluster, wanted, &claims, &nobody);
    let mut fitting = Vec::new();
    let mut refusals = BTreeMap::new();
    for node in cluster.nodes.values() {
        match situation.check(node) {
            Ok(()) => fitting.push(node),
            Err(refusal) => {
                refusals.insert(node.name.as_str(), refusal);
            }
        }
    }
    if let Some(node) = score::best(cluster, wanted, &situation, &fitting) {
        let claims = claims.choose(cluster, node);
        return Verdict::Place {
            node: node.name.clone(),
            claims,
        };
    }
    let reasons = refusals.values().flat_map(|refusal| refusal.reasons.iter().cloned());
    let mut message = summary(cluster.nodes.len(), reasons);
    let (postscript, preemption) = preempt::find(cluster, wanted, &claims, &refusals);
    message.push_str(&postscript);
    refuse(message, preemption)
}

fn refuse(message: String, preemption: Option<Preemption>) -> Verdict {
    Verdict::Refuse { message, preemption }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
fn summary(nodes: usize, reasons: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_insert(0) += 1;
    }
    let mut parts: Vec<_> = counts
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    parts.sort();
    format!("0/{nodes} nodes are available: {}.", parts.join(", "))
}

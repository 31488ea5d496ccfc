//! Which of the nodes that can take a pod suits it best.

use std::{cmp::Reverse, collections::BTreeSet};

use super::{
    cluster::{Cluster, NodeState},
    domains::Spreading,
    filter::{Situation, tolerated},
    wanted::Wanted,
};

const FULL: i64 = 100;
const ZONE: &str = "topology.kubernetes.io/zone";
/// What a pod that asks for nothing is taken to need, so that such pods spread too.
const UNSAID: [(&str, i64); 2] = [("cpu", 100), ("memory", 200 << 20)];

/// The best of the nodes, if there is one.
pub(crate) fn best<'n>(
    cluster: &'n Cluster,
    wanted: &Wanted,
    situation: &Situation<'_>,
    fitting: &[&'n NodeState],
) -> Option<&'n NodeState> {
    if fitting.len() < 2 {
        return fitting.first().copied();
    }
    if let Some(nominated) = &wanted.nominated
        && let Some(node) = fitting.iter().find(|node| node.name == *nominated)
    {
        return Some(node);
    }
    let mut totals: Vec<i64> = fitting
        .iter()
        .map(|node| room(wanted, node) + balance(wanted, node))
        .collect();
    let mut add = |weight: i64, scores: Vec<i64>| {
        for (total, score) in totals.iter_mut().zip(scores) {
            *total += weight * score;
        }
    };
    add(3, fewer_is_better(&each(fitting, |node| disliked_taints(wanted, node))));
    add(2, more_is_better(&each(fitting, |node| liked(wanted, node))));
    add(2, between(&each(fitting, |node| situation.neighbours.weight(node))));
    add(2, spread(cluster, wanted, fitting));
    let ranked = fitting.iter().zip(totals);
    let best = ranked.max_by_key(|(node, total)| (*total, Reverse(node.pods.len()), Reverse(&node.name)));
    best.map(|(node, _)| *node)
}

fn each(nodes: &[&NodeState], score: impl Fn(&NodeState) -> i64) -> Vec<i64> {
    nodes.iter().map(|node| score(node)).collect()
}

fn asked(wanted: &Wanted, name: &str, unsaid: i64) -> i64 {
    match wanted.requests.get(name) {
        0 => unsaid,
        asked => asked,
    }
}

/// The more stays free, the better.
fn room(wanted: &Wanted, node: &NodeState) -> i64 {
    let mut sum = 0;
    for (name, unsaid) in UNSAID {
        let all = node.allocatable.get(name);
        let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
        let silent = if node.used.get(name) == 0 {
            pods.saturating_mul(unsaid)
        } else {
            0
        };
        let free = all - node.used.get(name) - silent - asked(wanted, name, unsaid);
        if all > 0 && free > 0 {
            sum += free.saturating_mul(FULL) / all;
        }
    }
    sum / 2
}

/// The more evenly processor and memory are used, the better.
fn balance(wanted: &Wanted, node: &NodeState) -> i64 {
    let fraction = |(name, unsaid): (&str, i64)| {
        let all = node.allocatable.get(name).max(1) as f64;
        ((node.used.get(name) + asked(wanted, name, unsaid)) as f64 / all).min(1.0)
    };
    let [one, other] = UNSAID.map(fraction);
    let deviation = ((one - other) / 2.0).abs();
    #[expect(clippy::cast_possible_truncation, reason = "it lies between nothing and a hundred")]
    {
        ((1.0 - deviation) * 100.0) as i64
    }
}

fn disliked_taints(wanted: &Wanted, node: &NodeState) -> i64 {
    let mild = node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
    i64::try_from(mild.filter(|taint| !tolerated(&wanted.tolerations, taint)).count()).unwrap_or(i64::MAX)
}

fn liked(wanted: &Wanted, node: &NodeState) -> i64 {
    let matching = wanted
        .node_preferred
        .iter()
        .filter(|(_, term)| term.matches(&node.name, &node.labels));
    matching.map(|(weight, _)| i64::from(*weight)).sum()
}

/// By the constraints that only wish for it; without any, pods of one controller over nodes and zones.
fn spread(cluster: &Cluster, wanted: &Wanted, fitting: &[&NodeState]) -> Vec<i64> {
    let nothing = BTreeSet::new();
    let wishes: Vec<_> = wanted.spread.iter().filter(|spread| !spread.required).collect();
    let mut crowd = vec![0_i64; fitting.len()];
    if wishes.is_empty() && wanted.spread.is_empty() {
        let Some(controller) = &wanted.controller else {
            return vec![0; fitting.len()];
        };
        let siblings = |node: &NodeState| {
            let here = node
                .pods
                .values()
                .filter(|placed| placed.wanted.controller.as_ref() == Some(controller));
            i64::try_from(here.count()).unwrap_or(i64::MAX)
        };
        for (slot, node) in crowd.iter_mut().zip(fitting) {
            let zone = node.labels.get(ZONE);
            let neighbours = fitting
                .iter()
                .filter(|other| zone.is_some() && other.labels.get(ZONE) == zone);
            *slot = siblings(node) * 3 + neighbours.map(|other| siblings(other)).sum::<i64>();
        }
        return fewer_is_better(&crowd);
    }
    for wish in wishes {
        let spreading = Spreading::new(cluster, wanted, wish, &nothing);
        for (slot, node) in crowd.iter_mut().zip(fitting) {
            *slot += spreading.here(node).unwrap_or(1000);
        }
    }
    fewer_is_better(&crowd)
}

fn more_is_better(scores: &[i64]) -> Vec<i64> {
    let most = scores.iter().copied().max().unwrap_or(0);
    scores
        .iter()
        .map(|score| if most > 0 { score * FULL / most } else { 0 })
        .collect()
}

fn fewer_is_better(scores: &[i64]) -> Vec<i64> {
    let most = scores.iter().copied().max().unwrap_or(0);
    scores
        .iter()
        .map(|score| if most > 0 { (most - score) * FULL / most } else { FULL })
        .collect()
}

fn between(scores: &[i64]) -> Vec<i64> {
    let (least, most) = (
        scores.iter().copied().min().unwrap_or(0),
        scores.iter().copied().max().unwrap_or(0),
    );
    scores
        .iter()
        .map(|score| {
            if most > least {
                (score - least) * FULL / (most - least)
            } else {
                0
            }
        })
        .collect()
}

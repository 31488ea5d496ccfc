//! How often daemons failed on a node lately: those that fail at once would otherwise be made again without a pause.
//!
//! Nothing is kept in memory, so the set itself keeps it, in an annotation that is written with its status.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use moorline_runtime::Snapshot;
use serde::{Deserialize, Serialize};

use crate::pods;

/// The annotation of a daemon set that tells on which nodes its pods failed.
pub(crate) const FAILED_DAEMONS: &str = "moorline.io/failed-daemons";

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(15);
/// After such a time without a failure, the next one counts as the first.
const FORGOTTEN: Duration = Duration::from_mins(30);
/// An annotation has its limits. Beyond so many nodes, those whose last failure is the longest ago are forgotten.
const MOST_NODES: usize = 500;

/// The failures of one generation of a set: another one may not fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failures {
    generation: i64,
    nodes: BTreeMap<String, Failed>,
}

/// How often pods failed on a node, and when the last of them was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Failed {
    times: u32,
    at: Timestamp,
}

impl Failed {
    fn delay(&self) -> Duration {
        let doublings = self.times.saturating_sub(1).min(16);
        (SHORTEST * 2_u32.pow(doublings)).min(LONGEST)
    }

    fn is_forgotten(&self, now: Timestamp) -> bool {
        pods::elapsed(self.at, now) > FORGOTTEN
    }
}

impl Failures {
    /// What the set says. What cannot be read was not written here, and counts for nothing.
    pub(super) fn observe(snapshot: &Snapshot<DaemonSet>) -> Self {
        let generation = snapshot.raw().generation();
        let text = pods::annotation(&snapshot.object().metadata, FAILED_DAEMONS);
        text.and_then(|text| serde_json::from_str(text).ok())
            .filter(|told: &Self| told.generation == generation)
            .unwrap_or(Self {
                generation,
                nodes: BTreeMap::new(),
            })
    }

    /// How long a failed pod on this node is left in place from now on; none if it may go.
    pub(super) fn pause(&self, node: &str, now: Timestamp) -> Option<Duration> {
        let failed = self.nodes.get(node).filter(|failed| !failed.is_forgotten(now))?;
        let left = failed.delay().saturating_sub(pods::elapsed(failed.at, now));
        (!left.is_zero()).then_some(left)
    }

    /// Notes that a failed pod is deleted.
    pub(super) fn note(&mut self, node: &str, now: Timestamp) {
        self.nodes.retain(|_, failed| !failed.is_forgotten(now));
        let times = self.nodes.get(node).map_or(0, |failed| failed.times);
        let failed = Failed {
            times: times.saturating_add(1),
            at: now,
        };
        self.nodes.insert(node.to_owned(), failed);
        while self.nodes.len() > MOST_NODES {
            let longest_ago = self.nodes.iter().min_by_key(|(_, failed)| failed.at);
            let Some(node) = longest_ago.map(|(node, _)| node.clone()) else {
                return;
            };
            self.nodes.remove(&node);
        }
    }

    /// As the set keeps it.
    pub(super) fn written(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    #[test]
    fn pauses_double_up_to_a_quarter_of_an_hour_and_are_forgotten_after_half_an_hour() {
        let mut failures = Failures::default();
        let mut now = Timestamp::UNIX_EPOCH;
        assert_eq!(failures.pause("a", now), None);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            failures.note("a", now);
            let pause = failures.pause("a", now).unwrap();
            pauses.push(pause.as_secs());
            now += SignedDuration::try_from(pause).unwrap();
            assert_eq!(failures.pause("a", now), None);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
        assert_eq!(failures.pause("b", now), None);
        failures.note("a", now + SignedDuration::from_mins(31));
        let after = failures.pause("a", now + SignedDuration::from_mins(31));
        assert_eq!(after, Some(Duration::from_secs(1)));
    }

    #[test]
    fn what_is_kept_has_an_end() {
        let mut failures = Failures::default();
        for node in 0..600 {
            let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(node);
            failures.note(&format!("node-{node}"), now);
        }
        assert_eq!(failures.nodes.len(), MOST_NODES);
        assert!(failures.nodes.contains_key("node-599"));
        let read: Failures = serde_json::from_str(&failures.written()).unwrap();
        assert_eq!(read, failures);
    }
}

//! How long a job waits before it tries again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use moorline_runtime::Seen;

use super::Run;
use super::belonging::is_held;
use super::failure::{Verdict as PolicyVerdict, tries_before};
use super::instances::index_of;
use crate::pods;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(10);

impl Run<'_> {
    /// How long to wait before another try, after failures in a row: of the job, or of the index that waits shortest.
    pub(super) fn backoff_left(&self, now: Timestamp) -> Option<Duration> {
        if self.fails_by_index() {
            return self.waiting_indexes(now).into_values().min();
        }
        let last_success = self
            .pods
            .iter()
            .filter(|pod| pods::phase(pod) == "Succeeded")
            .filter_map(|pod| ended_at(pod))
            .max();
        let start = self.status.start_time.as_ref().map(|time| time.0);
        let in_a_row: Vec<(Timestamp, PolicyVerdict)> = self
            .pods
            .iter()
            .filter(|pod| self.has_failed(pod))
            .filter_map(|pod| Some((ended_at(pod)?, self.policy_on(pod))))
            // What ended before the job started ended because it was suspended.
            .filter(|(end, _)| Some(*end) > last_success && Some(*end) >= start)
            .collect();
        let ignored = in_a_row
            .iter()
            .filter(|(_, verdict)| *verdict == PolicyVerdict::Ignore)
            .count();
        // A pod that the job took away looks like one that somebody else deleted, but it was not counted.
        let counted = usize::try_from(self.failures()).unwrap_or(0);
        let failures = ignored + counted.min(in_a_row.len() - ignored);
        let last = in_a_row.iter().map(|(end, _)| *end).max()?;
        delay_left(failures, last, now)
    }

    /// The indexes that have failed, may be tried again, and have to wait for that, each with how long.
    pub(super) fn waiting_indexes(&self, now: Timestamp) -> BTreeMap<i32, Duration> {
        let left = |(index, pod): (i32, &Seen<Pod>)| {
            let failures = usize::try_from(tries_before(pod).all()).unwrap_or(0) + 1;
            Some((index, delay_left(failures, ended_at(pod)?, now)?))
        };
        self.last_failures().into_iter().filter_map(left).collect()
    }

    /// The last failure of each index that is to be tried again and has no other pod yet. These pods are held until
    /// they are replaced: how often an index has failed stands on its pods alone.
    pub(super) fn last_failures(&self) -> BTreeMap<i32, &Seen<Pod>> {
        let mut last: BTreeMap<i32, &Seen<Pod>> = BTreeMap::new();
        if !self.fails_by_index() || self.ending().is_some() {
            return last;
        }
        let running: BTreeSet<i32> = self.active().filter_map(|pod| index_of(pod)).collect();
        let is_open =
            |index: &i32| !self.succeeded.contains(index) && !self.failed.contains(index) && !running.contains(index);
        for pod in self.pods.iter().filter(|pod| is_held(pod) && self.has_failed(pod)) {
            let Some(index) = self.place_of(pod).filter(is_open) else {
                continue;
            };
            let standing = |pod: &Seen<Pod>| (tries_before(pod).all(), ended_at(pod));
            let known = last.get(&index).copied().map(standing);
            let (tries, end) = standing(pod);
            if known.is_none_or(|(known_tries, known_end)| known_tries <= tries && known_end <= end) {
                last.insert(index, pod);
            }
        }
        last
    }
}

/// What is left of the delay after so many failures in a row, if anything is.
fn delay_left(failures: usize, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = u32::try_from(failures.checked_sub(1)?).unwrap_or(u32::MAX);
    let delay = FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST);
    Some(delay.saturating_sub(pods::elapsed(last, now))).filter(|left| !left.is_zero())
}

/// When a pod ended: when its last container did; else when it was no longer ready; else when it was deleted, which is
/// a grace period before the time that stands on it; else it never began.
fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let metadata = &pod.metadata;
    let deleted = || {
        let grace = SignedDuration::from_secs(metadata.deletion_grace_period_seconds.unwrap_or(0));
        metadata.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok()
    };
    containers_ended_at(pod)
        .or_else(|| unready_since(pod))
        .or_else(deleted)
        .or_else(|| metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// The end of the container that ended last, if all have: sidecars too, which go on for longer than the others.
fn containers_ended_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let starters = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref());
    let is_sidecar = |name: &str| {
        let mut starters = starters.unwrap_or_default().iter();
        starters.any(|starter| starter.name == name && starter.restart_policy.as_deref() == Some("Always"))
    };
    let sidecars = status.init_container_statuses.iter().flatten();
    let all = status.container_statuses.iter().flatten();
    let ends: Option<Vec<Timestamp>> = all
        .chain(sidecars.filter(|status| is_sidecar(&status.name)))
        .map(container_ended_at)
        .collect();
    ends?.into_iter().max()
}

fn container_ended_at(status: &ContainerStatus) -> Option<Timestamp> {
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    ended.finished_at.as_ref().map(|time| time.0)
}

fn unready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref()?;
    (ready.status == "False").then_some(since.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn end_of(pod: Value) -> String {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        ended_at(&pod).unwrap().to_string()
    }

    #[test]
    fn a_pod_ends_with_the_last_of_its_containers_and_sidecars() {
        let ended = |name: &str, at: &str| {
            json!({ "name": name, "ready": false, "restartCount": 0, "image": "a", "imageID": "a",
            "state": { "terminated": { "exitCode": 1, "finishedAt": at } } })
        };
        let mut pod = json!({
            "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "containers": [], "initContainers": [{ "name": "side", "restartPolicy": "Always" }, { "name": "once" }] },
            "status": {
                "containerStatuses": [ended("a", "2026-01-01T00:01:00Z"), ended("b", "2026-01-01T00:03:00Z")],
                "initContainerStatuses": [ended("side", "2026-01-01T00:04:00Z"), ended("once", "2026-01-01T00:09:00Z")],
            },
        });
        assert_eq!(end_of(pod.clone()), "2026-01-01T00:04:00Z");
        pod["status"]["containerStatuses"][0]["state"] = json!({ "running": {} });
        assert_eq!(end_of(pod), "2026-01-01T00:00:00Z", "one still runs");
    }

    #[test]
    fn a_pod_without_ended_containers_ended_when_it_was_no_longer_ready_or_was_deleted() {
        let mut pod = json!({
            "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:05:30Z",
                "deletionGracePeriodSeconds": 30 },
            "status": { "conditions": [
                { "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:02:00Z" }] },
        });
        assert_eq!(end_of(pod.clone()), "2026-01-01T00:02:00Z");
        pod["status"] = json!({});
        assert_eq!(end_of(pod), "2026-01-01T00:05:00Z");
    }
}

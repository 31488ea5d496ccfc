//! Counting each pod that has ended exactly once.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen};
use serde_json::Value;

use super::failure::Verdict as PolicyVerdict;
use super::instances::index_of;
use super::{Run, TRACKING, indexes};
use crate::pods;
use crate::replicas::positive;

impl Run<'_> {
    fn uncounted(&self) -> UncountedTerminatedPods {
        self.status.uncounted_terminated_pods.clone().unwrap_or_default()
    }

    /// Whether a pod's end is a failure of the job's.
    pub(super) fn has_failed(&self, pod: &Seen<Pod>) -> bool {
        pods::phase(pod) == "Failed"
            || (self.counts_terminating_as_failed() && pod.is_deleting() && pods::phase(pod) != "Succeeded")
    }

    /// Lets go of pods whose end is written down.
    pub(super) fn release_counted(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let uncounted = self.uncounted();
        let is_over = self.ending().is_some_and(|ending| ending.is_final());
        for pod in self.pods.iter().filter(|pod| pod.raw().has_finalizer(TRACKING)) {
            let uid = pod.uid();
            let listed = |uids: &Option<Vec<String>>| uids.iter().flatten().any(|known| known == uid);
            let written = listed(&uncounted.succeeded) || listed(&uncounted.failed);
            let by_index = self.is_indexed()
                && pods::phase(pod) == "Succeeded"
                && index_of(pod).is_some_and(|index| self.succeeded.contains(&index));
            let ignored = self.has_failed(pod) && self.policy_on(pod) == PolicyVerdict::Ignore;
            if written || by_index || ignored || is_over || (self.snapshot.raw().is_deleting() && pods::has_ended(pod))
            {
                draft.put(self.snapshot.patch_value(
                    pod.raw(),
                    &without_tracking(pod.raw()),
                    "its end is written down",
                )?);
            }
        }
        Ok(())
    }

    /// Moves the counters for pods that have been let go, and writes down those that have ended since.
    pub(super) fn count(&mut self) {
        let uncounted = self.uncounted();
        let held: BTreeSet<String> = self
            .pods
            .iter()
            .filter(|pod| pod.raw().has_finalizer(TRACKING))
            .map(|pod| pod.uid().to_owned())
            .collect();
        let split = |uids: Option<Vec<String>>| -> (Vec<String>, Vec<String>) {
            uids.unwrap_or_default().into_iter().partition(|uid| held.contains(uid))
        };
        let (mut succeeded, gone_succeeded) = split(uncounted.succeeded);
        let (mut failed, gone_failed) = split(uncounted.failed);
        add(&mut self.status.succeeded, gone_succeeded.len());
        add(&mut self.status.failed, gone_failed.len());
        for pod in self.pods.iter().filter(|pod| held.contains(pod.uid())) {
            let uid = pod.uid().to_owned();
            if pods::phase(pod) == "Succeeded" {
                match index_of(pod) {
                    Some(index) if self.is_indexed() => drop(self.succeeded.insert(index)),
                    _ if succeeded.contains(&uid) => {}
                    _ => succeeded.push(uid),
                }
            } else if self.has_failed(pod) && !failed.contains(&uid) && self.policy_on(pod) != PolicyVerdict::Ignore {
                failed.push(uid);
            }
        }
        if self.is_indexed() {
            let completions = self.spec.completions.unwrap_or(0);
            self.succeeded.retain(|index| *index < completions);
            self.status.succeeded = positive(i32::try_from(self.succeeded.len()).unwrap_or(i32::MAX));
        }
        let some = |uids: Vec<String>| (!uids.is_empty()).then_some(uids);
        self.status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
            succeeded: some(succeeded),
            failed: some(failed),
        });
        self.fail_indexes();
    }

    /// Successes, those not yet in the counter included.
    pub(super) fn successes(&self) -> i32 {
        self.status.succeeded.unwrap_or(0) + length(self.uncounted().succeeded.as_ref())
    }

    /// Failures, those not yet in the counter included.
    pub(super) fn failures(&self) -> i32 {
        self.status.failed.unwrap_or(0) + length(self.uncounted().failed.as_ref())
    }

    pub(super) fn is_all_counted(&self) -> bool {
        let uncounted = self.uncounted();
        length(uncounted.succeeded.as_ref()) + length(uncounted.failed.as_ref()) == 0
            && self
                .pods
                .iter()
                .all(|pod| !pod.raw().has_finalizer(TRACKING) || self.policy_on(pod) == PolicyVerdict::Ignore)
    }

    /// Writes the counters that are read off the pods.
    pub(super) fn tell_counts(&mut self) {
        let count = |wanted: &dyn Fn(&Seen<Pod>) -> bool| {
            i32::try_from(self.pods.iter().filter(|pod| wanted(pod)).count()).unwrap_or(i32::MAX)
        };
        let active = if self.ending().is_some() {
            0
        } else {
            count(&|pod| pods::is_active(pod))
        };
        let ready = count(&|pod| pods::is_active(pod) && pods::is_ready(pod));
        let terminating = count(&|pod| pod.is_deleting() && !pods::has_ended(pod));
        self.status.active = positive(active);
        self.status.ready = Some(if self.ending().is_some() { 0 } else { ready });
        self.status.terminating = Some(terminating);
        if self.is_indexed() {
            self.status.completed_indexes = Some(indexes::write(&self.succeeded)).filter(|text| !text.is_empty());
            self.status.failed_indexes = self.spec.backoff_limit_per_index.map(|_| indexes::write(&self.failed));
        }
    }

    /// The status as it is written.
    pub(super) fn written(&self) -> JobStatus {
        self.status.clone()
    }
}

fn add(counter: &mut Option<i32>, count: usize) {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    *counter = positive(counter.unwrap_or(0).saturating_add(count));
}

fn length(uids: Option<&Vec<String>>) -> i32 {
    uids.map_or(0, |uids| i32::try_from(uids.len()).unwrap_or(i32::MAX))
}

/// A pod as it is when no job holds it.
pub(crate) fn without_tracking(pod: &Object) -> Value {
    let mut value = pod.value();
    if let Some(finalizers) = value["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|finalizer| finalizer != TRACKING);
    }
    value
}

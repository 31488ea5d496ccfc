//! Counting each pod that has ended exactly once.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen};

use super::belonging::{is_held, is_newcomer, without_tracking};
use super::failure::Verdict as PolicyVerdict;
use super::instances::index_of;
use super::{Run, indexes};
use crate::pods;
use crate::replicas::positive;

/// So many pods are written down at once at most, so that the status does not outgrow an object.
const MOST_UNCOUNTED: usize = 500;

impl Run<'_> {
    fn uncounted(&self) -> UncountedTerminatedPods {
        self.status.uncounted_terminated_pods.clone().unwrap_or_default()
    }

    /// Whether a pod's end is a failure of the job's.
    pub(super) fn has_failed(&self, pod: &Seen<Pod>) -> bool {
        pods::phase(pod) == "Failed"
            || (self.counts_terminating_as_failed() && pod.is_deleting() && pods::phase(pod) != "Succeeded")
    }

    /// The index of a pod, if the job has such an index: it may have had more.
    pub(super) fn place_of(&self, pod: &Pod) -> Option<i32> {
        index_of(pod).filter(|index| *index < self.spec.completions.unwrap_or(0))
    }

    /// Whether the end of a pod can be counted as a failure at all.
    fn is_countable(&self, pod: &Seen<Pod>) -> bool {
        let has_place = !self.is_indexed() || self.place_of(pod).is_some();
        has_place && self.policy_on(pod) != PolicyVerdict::Ignore
    }

    /// Lets go of pods whose end is written down, or need not be.
    pub(super) fn release_counted(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let listed = self.listed();
        let kept = self.kept();
        let is_ending = self.ending().is_some();
        for pod in self.held() {
            let is_done = if pods::phase(pod) == "Succeeded" {
                let place = self.place_of(pod);
                self.is_indexed() && place.is_none_or(|index| self.succeeded.contains(&index))
            } else {
                (is_ending || self.has_failed(pod)) && !self.is_countable(pod) && !kept.contains(pod.uid())
            };
            if is_done || listed.contains(pod.uid()) {
                let freed = without_tracking(pod.raw());
                draft.put(
                    self.snapshot
                        .patch_value(pod.raw(), &freed, "its end is written down")?,
                );
            }
        }
        Ok(())
    }

    /// Moves the counters for pods that have been let go, and writes down those that have ended since.
    pub(super) fn count(&mut self) {
        let uncounted = self.uncounted();
        let held: BTreeSet<String> = self.held().map(|pod| pod.uid().to_owned()).collect();
        let split = |uids: Option<Vec<String>>| -> (Vec<String>, Vec<String>) {
            uids.unwrap_or_default().into_iter().partition(|uid| held.contains(uid))
        };
        let (mut succeeded, gone_succeeded) = split(uncounted.succeeded);
        let (failed, gone_failed) = split(uncounted.failed);
        add(&mut self.status.succeeded, gone_succeeded.len());
        add(&mut self.status.failed, gone_failed.len());
        let ended_well =
            |pod: &&Seen<Pod>| pods::phase(pod) == "Succeeded" && !failed.iter().any(|known| known == pod.uid());
        if self.is_indexed() {
            let places: Vec<i32> = self
                .held()
                .filter(ended_well)
                .filter_map(|pod| self.place_of(pod))
                .collect();
            self.succeeded.extend(places);
            self.status.succeeded = positive(count_of(self.succeeded.len()));
        } else {
            let known: BTreeSet<String> = succeeded.iter().cloned().collect();
            let uids = self.held().filter(ended_well).map(|pod| pod.uid().to_owned());
            let room = MOST_UNCOUNTED.saturating_sub(succeeded.len() + failed.len());
            succeeded.extend(uids.filter(|uid| !known.contains(uid)).take(room));
        }
        self.write_uncounted(succeeded, failed);
        self.fail_indexes();
        let kept = self.kept();
        self.write_failed(|run, pod| run.has_failed(pod) && !kept.contains(pod.uid()));
    }

    /// Whatever a job stops because it has failed counts as failed, however it ends.
    pub(super) fn count_stopped(&mut self) {
        self.write_failed(|_, pod| pods::phase(pod) != "Succeeded");
    }

    /// Writes pods down as failed that are not yet, as far as there is room.
    fn write_failed(&mut self, is_meant: impl Fn(&Self, &Seen<Pod>) -> bool) {
        let uncounted = self.uncounted();
        let succeeded = uncounted.succeeded.unwrap_or_default();
        let mut failed = uncounted.failed.unwrap_or_default();
        let known: BTreeSet<String> = failed.iter().cloned().collect();
        let meant = self.held().filter(|pod| self.is_countable(pod) && is_meant(self, pod));
        let uids = meant.map(|pod| pod.uid().to_owned()).filter(|uid| !known.contains(uid));
        let room = MOST_UNCOUNTED.saturating_sub(succeeded.len() + failed.len());
        failed.extend(uids.take(room).collect::<Vec<_>>());
        self.write_uncounted(succeeded, failed);
    }

    fn write_uncounted(&mut self, succeeded: Vec<String>, failed: Vec<String>) {
        let some = |uids: Vec<String>| (!uids.is_empty()).then_some(uids);
        self.status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
            succeeded: some(succeeded),
            failed: some(failed),
        });
    }

    fn held(&self) -> impl Iterator<Item = &Seen<Pod>> {
        self.pods.iter().filter(|pod| is_held(pod))
    }

    /// The failed pods that are held until they are replaced, by their uids.
    fn kept(&self) -> BTreeSet<String> {
        let last = self.last_failures().into_values();
        last.map(|pod| pod.uid().to_owned()).collect()
    }

    /// The pods whose end is written down and not yet counted, by their uids.
    fn listed(&self) -> BTreeSet<String> {
        let uncounted = self.uncounted();
        let lists = [uncounted.succeeded, uncounted.failed].into_iter().flatten();
        lists.flatten().collect()
    }

    /// Successes, those not yet in the counter and those not yet written down included.
    pub(super) fn successes(&self) -> i32 {
        if self.is_indexed() {
            return count_of(self.succeeded.len());
        }
        let unlisted = self.unlisted(|pod| pods::phase(pod) == "Succeeded");
        let uncounted = self.uncounted().succeeded.unwrap_or_default().len() + unlisted;
        self.status.succeeded.unwrap_or(0).saturating_add(count_of(uncounted))
    }

    /// Failures, those not yet in the counter and those not yet written down included.
    pub(super) fn failures(&self) -> i32 {
        let unlisted = self.unlisted(|pod| self.has_failed(pod) && self.is_countable(pod));
        let uncounted = self.uncounted().failed.unwrap_or_default().len() + unlisted;
        self.status.failed.unwrap_or(0).saturating_add(count_of(uncounted))
    }

    /// How many pods of a sort have yet to be written down.
    fn unlisted(&self, is_meant: impl Fn(&Seen<Pod>) -> bool) -> usize {
        let listed = self.listed();
        let meant = self.held().filter(|pod| is_meant(pod));
        meant.filter(|pod| !listed.contains(pod.uid())).count()
    }

    pub(super) fn is_all_counted(&self) -> bool {
        let is_pending = |pod: &Seen<Pod>| is_held(pod) || is_newcomer(pod);
        self.listed().is_empty() && !self.pods.iter().any(is_pending)
    }

    /// Writes the counters that are read off the pods.
    pub(super) fn tell_counts(&mut self) {
        let count = |wanted: &dyn Fn(&Seen<Pod>) -> bool| count_of(self.pods.iter().filter(|pod| wanted(pod)).count());
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
    *counter = positive(counter.unwrap_or(0).saturating_add(count_of(count)));
}

fn count_of(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

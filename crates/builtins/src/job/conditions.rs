//! How a job ends, and how its conditions tell it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Run;
use super::failure::Verdict as PolicyVerdict;
use crate::pods;

/// Why a job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) is_success: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Ending {
    fn success(reason: &str, message: &str) -> Self {
        Self {
            is_success: true,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    fn failure(reason: &str, message: impl Into<String>) -> Self {
        Self {
            is_success: false,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// When a job finished, if it has.
pub(crate) fn finished_at(job: &Job) -> Option<Timestamp> {
    finish(job)?.last_transition_time.as_ref().map(|time| time.0)
}

/// Whether the last word on a job is written.
pub(crate) fn is_finished(job: &Job) -> bool {
    finish(job).is_some()
}

fn finish(job: &Job) -> Option<&JobCondition> {
    let mut conditions = job.status.as_ref()?.conditions.as_deref()?.iter();
    conditions.find(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True")
}

impl Run<'_> {
    pub(super) fn has_condition(&self, type_: &str) -> bool {
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition.type_ == type_ && condition.status == "True")
    }

    /// Writes a condition; whether that changed it.
    pub(super) fn set_condition(&mut self, type_: &str, holds: bool, reason: &str, message: &str) -> bool {
        let now = Time(self.snapshot.now());
        let conditions = self.status.conditions.get_or_insert_default();
        let status = if holds { "True" } else { "False" };
        let condition = JobCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(now.clone()),
            last_transition_time: Some(now),
        };
        match conditions.iter_mut().find(|condition| condition.type_ == type_) {
            Some(known)
                if known.status == condition.status
                    && known.reason == condition.reason
                    && known.message == condition.message =>
            {
                return false;
            }
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
        true
    }

    /// The ending that stands in the status.
    pub(super) fn ending(&self) -> Option<Ending> {
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        let read = |type_: &str, is_success: bool| {
            let mut conditions = conditions.iter();
            let holding = conditions.find(|condition| condition.type_ == type_ && condition.status == "True")?;
            Some(Ending {
                is_success,
                reason: holding.reason.clone().unwrap_or_default(),
                message: holding.message.clone().unwrap_or_default(),
            })
        };
        read("SuccessCriteriaMet", true).or_else(|| read("FailureTarget", false))
    }

    /// Tells the ending: at once that it is bound to come, and, when all is quiet, that it has.
    pub(super) fn tell_ending(&mut self, ending: &Ending, is_quiet: bool) {
        let (bound, last) = if ending.is_success {
            ("SuccessCriteriaMet", "Complete")
        } else {
            ("FailureTarget", "Failed")
        };
        self.set_condition(bound, true, &ending.reason, &ending.message);
        if is_quiet {
            self.set_condition(last, true, &ending.reason, &ending.message);
            if ending.is_success {
                self.status.completion_time = Some(Time(self.snapshot.now()));
            }
        }
    }

    /// Whether and why the job has ended.
    pub(super) fn judge(&self) -> Option<Ending> {
        self.ending()
            .or_else(|| self.failed_for())
            .or_else(|| self.succeeded_for())
    }

    fn failed_for(&self) -> Option<Ending> {
        for pod in self.pods.iter().filter(|pod| self.has_failed(pod)) {
            if let PolicyVerdict::FailJob(message) = self.policy_on(pod) {
                return Some(Ending::failure("PodFailurePolicy", message));
            }
        }
        let limit = self.backoff_limit();
        if self.failures() > limit || self.has_restarted_too_often(limit) {
            return Some(Ending::failure(
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            ));
        }
        if let Some((limit, start)) = self.spec.active_deadline_seconds.zip(self.status.start_time.as_ref())
            && !self.is_suspended()
            && pods::elapsed(start.0, self.snapshot.now()) >= Duration::from_secs(u64::try_from(limit).unwrap_or(0))
        {
            return Some(Ending::failure(
                "DeadlineExceeded",
                "Job was active longer than specified deadline",
            ));
        }
        let completions = self.spec.completions.filter(|_| self.is_indexed())?;
        let failed = i32::try_from(self.failed.len()).unwrap_or(i32::MAX);
        if self.spec.max_failed_indexes.is_some_and(|most| failed > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(Ending::failure("MaxFailedIndexesExceeded", message));
        }
        let is_through = i32::try_from(self.succeeded.union(&self.failed).count()).unwrap_or(i32::MAX) >= completions;
        (failed > 0 && is_through).then(|| Ending::failure("FailedIndexes", "Job has failed indexes"))
    }

    /// Pods that restart their containers in place count by restarts.
    fn has_restarted_too_often(&self, limit: i32) -> bool {
        let spec = self.spec.template.spec.as_ref();
        if spec.and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let restarts: i32 = self
            .pods
            .iter()
            .filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"))
            .filter_map(|pod| pod.status.as_ref())
            .flat_map(|status| {
                status
                    .container_statuses
                    .iter()
                    .chain(&status.init_container_statuses)
                    .flatten()
            })
            .map(|container| container.restart_count)
            .sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn succeeded_for(&self) -> Option<Ending> {
        let met = Ending::success("SuccessPolicy", "Matched rules at index 0");
        if self.is_indexed() {
            let rules = self
                .spec
                .success_policy
                .as_ref()
                .map(|policy| policy.rules.as_slice())
                .unwrap_or_default();
            for (number, rule) in rules.iter().enumerate() {
                let among = rule.succeeded_indexes.as_deref().map(|text| self.within(text));
                let counted = among
                    .as_ref()
                    .map_or(self.succeeded.len(), |among| self.succeeded.intersection(among).count());
                // A rule without a count wants all of its indexes, as many of them as the job has.
                let all = among.as_ref().map(BTreeSet::len).filter(|all| *all > 0);
                let count = rule.succeeded_count.and_then(|count| usize::try_from(count).ok());
                let needed = match (count, all) {
                    (Some(count), Some(all)) => count.min(all),
                    (Some(count), None) if among.is_none() => count,
                    (None, Some(all)) => all,
                    _ => usize::MAX,
                };
                if counted >= needed && counted > 0 {
                    return Some(Ending {
                        message: format!("Matched rules at index {number}"),
                        ..met
                    });
                }
            }
        }
        let reached = Ending::success("CompletionsReached", "Reached expected number of succeeded pods");
        match self.spec.completions {
            Some(completions) => (self.successes() >= completions).then_some(reached),
            None => (self.successes() > 0 && self.active().next().is_none()).then_some(reached),
        }
    }
}

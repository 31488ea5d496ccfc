//! How a job ends, and how its conditions tell it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::failure::Verdict as PolicyVerdict;
use super::{Run, indexes};
use crate::pods;

/// Why a job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) is_success: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
    is_final: bool,
}

impl Ending {
    fn success(reason: &str, message: &str) -> Self {
        Self {
            is_success: true,
            reason: reason.to_owned(),
            message: message.to_owned(),
            is_final: false,
        }
    }

    fn failure(reason: &str, message: impl Into<String>) -> Self {
        Self {
            is_success: false,
            reason: reason.to_owned(),
            message: message.into(),
            is_final: false,
        }
    }

    /// Whether everything has come to rest, and the last word is written.
    pub(crate) fn is_final(&self) -> bool {
        self.is_final
    }
}

/// When a job finished, if it has.
pub(crate) fn finished_at(job: &Job) -> Option<Timestamp> {
    let conditions = job.status.as_ref()?.conditions.as_deref()?;
    let last = conditions
        .iter()
        .find(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True")?;
    last.last_transition_time.as_ref().map(|time| time.0)
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
            Some(known) if known.status == status => return false,
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
        true
    }

    /// The ending that stands in the status.
    pub(super) fn ending(&self) -> Option<Ending> {
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        let holding = |type_: &str| {
            conditions
                .iter()
                .find(|condition| condition.type_ == type_ && condition.status == "True")
        };
        let read = |condition: &JobCondition, is_success: bool, is_final: bool| Ending {
            is_success,
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
            is_final,
        };
        holding("Complete")
            .map(|condition| read(condition, true, true))
            .or_else(|| holding("Failed").map(|condition| read(condition, false, true)))
            .or_else(|| holding("SuccessCriteriaMet").map(|condition| read(condition, true, false)))
            .or_else(|| holding("FailureTarget").map(|condition| read(condition, false, false)))
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
            .active()
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
                let among = rule.succeeded_indexes.as_deref().map(indexes::read);
                let counted = among
                    .as_ref()
                    .map_or(self.succeeded.len(), |among| self.succeeded.intersection(among).count());
                let needed = match (rule.succeeded_count, &among) {
                    (Some(count), _) => usize::try_from(count).unwrap_or(usize::MAX),
                    (None, Some(among)) => among.len(),
                    (None, None) => usize::MAX,
                };
                if counted >= needed {
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

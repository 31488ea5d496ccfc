//! What a pod's failure means, by `podFailurePolicy`, and when an index has failed for good.

use k8s_openapi::api::batch::v1::{PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule};
use k8s_openapi::api::core::v1::Pod;
use moorline_runtime::Seen;

use super::Run;
use super::belonging::is_held;
use crate::{pods, template};

const FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// What the first rule that applies says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It counts.
    Count,
    /// It does not count.
    Ignore,
    /// The job fails at once, for this reason.
    FailJob(String),
    /// The index fails at once.
    FailIndex,
}

impl Run<'_> {
    pub(super) fn policy_on(&self, pod: &Seen<Pod>) -> Verdict {
        let Some(policy) = &self.spec.pod_failure_policy else {
            return Verdict::Count;
        };
        if pods::phase(pod) != "Failed" {
            return Verdict::Count;
        }
        for (number, rule) in policy.rules.iter().enumerate() {
            let Some(what) = applies(rule, pod) else { continue };
            return match rule.action.as_str() {
                "Ignore" => Verdict::Ignore,
                "FailIndex" => Verdict::FailIndex,
                "FailJob" => Verdict::FailJob(format!("{what} matching FailJob rule at index {number}")),
                _ => Verdict::Count,
            };
        }
        Verdict::Count
    }

    /// Indexes that have failed more often than they may, or that a rule fails. What a job stops when it ends has not
    /// failed its index.
    pub(super) fn fail_indexes(&mut self) {
        let Some(limit) = self.spec.backoff_limit_per_index.filter(|_| self.is_indexed()) else {
            return;
        };
        if self.ending().is_some() {
            return;
        }
        let mut failed = Vec::new();
        for pod in self.pods.iter().filter(|pod| is_held(pod) && self.has_failed(pod)) {
            let Some(index) = self.place_of(pod) else { continue };
            let at_once = self.policy_on(pod) == Verdict::FailIndex;
            if at_once || (tries_before(pod).counted >= limit && self.policy_on(pod) == Verdict::Count) {
                failed.push(index);
            }
        }
        self.failed.extend(failed);
    }

    /// Writes on a pod how often its index has failed, by the pod that it replaces.
    pub(super) fn tell_tries(&self, pod: &mut Pod, replaced: Option<&Seen<Pod>>) {
        let mut tries = replaced.map(|replaced| tries_before(replaced)).unwrap_or_default();
        match replaced.map(|replaced| self.policy_on(replaced)) {
            None => {}
            Some(Verdict::Ignore) => tries.ignored += 1,
            Some(_) => tries.counted += 1,
        }
        template::label(&mut pod.metadata.annotations, FAILURE_COUNT, &tries.counted.to_string());
        if tries.ignored > 0 {
            template::label(&mut pod.metadata.annotations, IGNORED_COUNT, &tries.ignored.to_string());
        }
    }
}

/// How often the index of a pod had failed before the pod was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tries {
    /// Those that count for `backoffLimitPerIndex`.
    counted: i32,
    /// Those that a rule ignores. They only make the next try wait.
    ignored: i32,
}

impl Tries {
    pub(super) fn all(self) -> i32 {
        self.counted.saturating_add(self.ignored)
    }
}

/// What a pod says of the tries before it.
pub(super) fn tries_before(pod: &Pod) -> Tries {
    let read = |key: &str| {
        pods::annotation(&pod.metadata, key)
            .and_then(|count| count.parse().ok())
            .filter(|count| *count >= 0)
            .unwrap_or(0)
    };
    Tries {
        counted: read(FAILURE_COUNT),
        ignored: read(IGNORED_COUNT),
    }
}

/// What about a pod makes a rule apply.
fn applies(rule: &PodFailurePolicyRule, pod: &Seen<Pod>) -> Option<String> {
    if let Some(codes) = &rule.on_exit_codes {
        return exit_code(codes, pod);
    }
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let matched = conditions.iter().find(|condition| {
        let mut patterns = rule.on_pod_conditions.iter().flatten();
        patterns.any(|pattern| {
            condition.type_ == pattern.type_ && condition.status == pattern.status.as_deref().unwrap_or("True")
        })
    })?;
    Some(format!(
        "Pod {}/{} has condition {}",
        pod.raw().namespace(),
        pod.name(),
        matched.type_
    ))
}

fn exit_code(codes: &PodFailurePolicyOnExitCodesRequirement, pod: &Seen<Pod>) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten();
    let mut ended = containers.filter_map(|container| {
        let terminated = container.state.as_ref()?.terminated.as_ref()?;
        Some((&container.name, terminated.exit_code)).filter(|(_, code)| *code != 0)
    });
    let (name, code) = ended.find(|(name, code)| {
        let named = codes.container_name.as_ref().is_none_or(|wanted| wanted == *name);
        let listed = codes.values.contains(code);
        named && if codes.operator == "In" { listed } else { !listed }
    })?;
    Some(format!(
        "Container {name} for pod {}/{} failed with exit code {code}",
        pod.raw().namespace(),
        pod.name()
    ))
}

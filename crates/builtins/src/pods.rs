//! What controllers ask of pods.

use std::cmp::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use moorline_runtime::{Failed, Kind, Seen};

/// Whether it runs or may come to run: it has not ended, and nobody has deleted it.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Whether all its containers have ended for good.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Its phase; a pod that no node has seen is pending.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

/// Whether it can serve.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, _)| status == "True")
}

/// The status of a condition, and since when it is that.
fn condition<'p>(pod: &'p Pod, wanted: &str) -> Option<(&'p str, Option<Timestamp>)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == wanted)?;
    let since = condition.last_transition_time.as_ref().map(|time| time.0);
    Some((&condition.status, since))
}

/// Whether a pod has been ready for long enough to be counted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// It is.
    Available,
    /// It will be after this time, if it stays ready.
    In(Duration),
    /// It is not ready.
    NotReady,
}

/// How a pod stands against `minReadySeconds`.
pub(crate) fn availability(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Availability {
    match condition(pod, "Ready") {
        Some(("True", since)) => {
            let wanted = Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
            let lasted = since.map_or(Duration::ZERO, |since| elapsed(since, now));
            match wanted.saturating_sub(lasted) {
                Duration::ZERO => Availability::Available,
                left => Availability::In(left),
            }
        }
        _ => Availability::NotReady,
    }
}

/// The time from one moment to a later one; none when they are the other way round.
pub(crate) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}

/// A pod of a template. Its name and its owner are the caller's to give.
pub(crate) fn of_template(template: &PodTemplateSpec) -> Pod {
    let metadata = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// The value of an annotation.
pub(crate) fn annotation<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The events that tell of pods that could not be made or taken away.
pub(crate) fn failures(failed: &Failed<'_>) -> Option<(String, String)> {
    if failed.step.target.kind != Kind::of::<Pod>() {
        return None;
    }
    match failed.step.action.verb() {
        "create" => Some(("FailedCreate".to_owned(), format!("Error creating: {}", failed.why))),
        "delete" => Some(("FailedDelete".to_owned(), format!("Error deleting: {}", failed.why))),
        _ => None,
    }
}

/// Sorts pods so that those whose loss costs least come first: not placed, not running, not ready, cheap to delete by
/// their own word, on a node that has many others, ready for a short time, restarted often, young.
pub(crate) fn cheapest_first(pods: &mut [Seen<Pod>], peers_on_node: impl Fn(&str) -> usize) {
    pods.sort_by(|a, b| cheaper(a, b, &peers_on_node).then_with(|| a.name().cmp(b.name())));
}

fn cheaper(a: &Pod, b: &Pod, peers_on_node: &impl Fn(&str) -> usize) -> Ordering {
    let by = |of: &dyn Fn(&Pod) -> i64| of(a).cmp(&of(b));
    let node = |pod: &Pod| {
        pod.spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default()
    };
    by(&|pod| i64::from(!node(pod).is_empty()))
        .then_with(|| {
            by(&|pod| match phase(pod) {
                "Pending" => 0,
                "Unknown" => 1,
                _ => 2,
            })
        })
        .then_with(|| by(&|pod| i64::from(is_ready(pod))))
        .then_with(|| by(&deletion_cost))
        .then_with(|| peers_on_node(&node(b)).cmp(&peers_on_node(&node(a))))
        .then_with(|| younger(ready_since(a), ready_since(b)))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| younger(created(a), created(b)))
}

/// What a pod says that deleting it costs, beside its peers.
fn deletion_cost(pod: &Pod) -> i64 {
    annotation(&pod.metadata, "controller.kubernetes.io/pod-deletion-cost")
        .and_then(|cost| cost.parse().ok())
        .unwrap_or(0)
}

/// Later times first; a time that is not known counts as the latest.
fn younger(a: Option<Timestamp>, b: Option<Timestamp>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.cmp(&a),
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready").filter(|(status, _)| *status == "True")?.1
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// The restarts of the container that restarted most.
fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default();
    statuses.iter().map(|status| status.restart_count).max().unwrap_or(0)
}

//! Which pods a job has, and which of them it holds: those whose end it has yet to write down.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use moorline_machinery::selector::LabelSelector;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen, Snapshot};
use serde_json::Value;

use super::TRACKING;
use crate::claim::{Candidate, claim};

/// The pods of a job, those that the plan adopts included. Whoever is adopted is held from then on, so that it is
/// counted like a pod that the job made.
pub(super) fn claim_pods(
    snapshot: &Snapshot<Job>,
    selector: &LabelSelector,
    draft: &mut Draft<Object>,
) -> Result<Vec<Seen<Pod>>, Failure> {
    let pods: Vec<Seen<Pod>> = claim(snapshot, selector, draft, |_| Candidate::Yes)?;
    for orphan in pods.iter().filter(|pod| is_newcomer(pod)) {
        let adopting = snapshot.adopt(orphan.raw(), "its labels match the selector and nobody controls it")?;
        let mut desired = adopting.desired().map_or_else(|| orphan.raw().value(), Object::value);
        hold(&mut desired);
        draft.put(snapshot.patch_value(orphan.raw(), &desired, adopting.reason)?);
    }
    // A pod that leaves the job while it is being deleted would otherwise be held by it until the job is gone.
    for stray in of(snapshot)?.iter().filter(|pod| pod.is_deleting()) {
        if !selector.matches(stray.raw()) {
            draft.put(snapshot.release(stray.raw(), "its labels no longer match the selector")?);
        }
    }
    Ok(pods)
}

/// The pods that a job controls, whatever their labels.
pub(super) fn of(snapshot: &Snapshot<Job>) -> Result<Vec<Seen<Pod>>, Failure> {
    let mut pods = snapshot.owned::<Pod>()?;
    pods.retain(|pod| {
        let owner = pod.raw().controller();
        owner.is_some_and(|owner| *owner.uid == *snapshot.raw().uid())
    });
    Ok(pods)
}

/// Whether the plan at hand adopts it. It has its step then, and can have no other; and as somebody else may adopt it
/// first, its end is not written down before it is the job's.
pub(super) fn is_newcomer(pod: &Seen<Pod>) -> bool {
    pod.raw().controller().is_none()
}

/// Whether it is the job's and its end has yet to be written down.
pub(super) fn is_held(pod: &Seen<Pod>) -> bool {
    pod.raw().has_finalizer(TRACKING) && !is_newcomer(pod)
}

fn hold(pod: &mut Value) {
    let finalizers = &mut pod["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(known) if known.iter().any(|finalizer| finalizer == TRACKING) => {}
        Some(known) => known.push(TRACKING.into()),
        None => *finalizers = serde_json::json!([TRACKING]),
    }
}

/// A pod as it is when no job holds it.
pub(super) fn without_tracking(pod: &Object) -> Value {
    let mut value = pod.value();
    if let Some(finalizers) = value["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|finalizer| finalizer != TRACKING);
    }
    value
}

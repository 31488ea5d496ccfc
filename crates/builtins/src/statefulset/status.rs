//! What a stateful set says of itself.

use k8s_openapi::api::apps::v1::StatefulSetStatus;
use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen};

use super::Set;
use crate::pods;
use crate::replicas::positive;

/// Plans the status. The instance that is `leaving` to be updated is not of the current revision any more: which
/// revision it is made of anew may go by this count.
pub(crate) fn write(set: &Set<'_>, leaving: Option<i32>, draft: &mut Draft<Object>) -> Result<(), Failure> {
    let count = |wanted: &dyn Fn(i32, &Seen<Pod>) -> bool| {
        let counted = set.pods.iter().filter(|(ordinal, pod)| wanted(**ordinal, pod));
        i32::try_from(counted.count()).unwrap_or(i32::MAX)
    };
    let is_ready = |pod: &Seen<Pod>| pods::phase(pod) == "Running" && pods::is_ready(pod);
    let all = count(&|_, _| true);
    let ready = count(&|_, pod| is_ready(pod));
    let update = &set.revisions.update;
    let updated = count(&|_, pod| !pod.is_deleting() && update.made(pod.raw()));
    // An update is over when every instance is of it and ready; then it is the current revision.
    let is_over = updated == set.replicas() && ready == set.replicas() && all == set.replicas();
    let is_rolled = !set.is_updated_by_hand() && is_over;
    let current = if is_rolled { update } else { &set.current };
    let is_current =
        |ordinal, pod: &Seen<Pod>| !pod.is_deleting() && current.made(pod.raw()) && Some(ordinal) != leaving;
    let before = set.snapshot.object().status.clone().unwrap_or_default();
    let status = StatefulSetStatus {
        observed_generation: Some(set.snapshot.raw().generation()),
        replicas: all,
        ready_replicas: positive(ready),
        available_replicas: Some(count(&|_, pod| is_ready(pod) && set.is_available(pod))),
        current_replicas: positive(count(&is_current)),
        updated_replicas: positive(updated),
        current_revision: Some(current.name.clone()),
        update_revision: Some(update.name.clone()),
        collision_count: Some(set.revisions.collisions.unwrap_or(0)),
        conditions: before.conditions,
    };
    draft.put(
        set.snapshot
            .status(&status, format!("{ready} of {} instances are ready", set.replicas()))?,
    );
    Ok(())
}

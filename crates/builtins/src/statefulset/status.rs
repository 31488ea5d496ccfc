//! What a stateful set says of itself.

use k8s_openapi::api::apps::v1::StatefulSetStatus;
use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen};

use super::Set;
use crate::pods;
use crate::replicas::positive;
use crate::revisions::Revision;

pub(crate) fn write(set: &Set<'_>, draft: &mut Draft<Object>) -> Result<(), Failure> {
    let there: Vec<&Seen<Pod>> = set.pods.values().filter(|pod| !pods::has_ended(pod)).collect();
    let count = |wanted: &dyn Fn(&Seen<Pod>) -> bool| {
        i32::try_from(there.iter().filter(|pod| wanted(pod)).count()).unwrap_or(i32::MAX)
    };
    let of = |revision: &Revision| count(&|pod| !pod.is_deleting() && revision.made(pod.raw()));
    let ready = count(&|pod| pods::is_ready(pod));
    let update = &set.revisions.update;
    let updated = of(update);
    // An update is over when every instance is of it and ready; then it is the current revision.
    let is_over = updated == set.replicas() && ready == set.replicas() && count(&|_| true) == set.replicas();
    let is_rolled = !set.is_updated_by_hand() && is_over;
    let current = if is_rolled { update } else { &set.current };
    let before = set.snapshot.object().status.clone().unwrap_or_default();
    let status = StatefulSetStatus {
        observed_generation: Some(set.snapshot.raw().generation()),
        replicas: count(&|_| true),
        ready_replicas: positive(ready),
        available_replicas: Some(count(&|pod| set.is_available(pod))),
        current_replicas: positive(of(current)),
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

//! Pods of jobs that are gone: nobody will count them, so nothing may hold them.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Key, Kind, Object, Planner, Snapshot, Sources, Watches};

use super::belonging::without_tracking;
use super::{TRACKING, is_managed_elsewhere};

/// Lets go of pods whose job is gone or going.
pub(crate) struct OrphansOfJobs;

impl Actor for OrphansOfJobs {
    type Object = Pod;

    fn name(&self) -> &'static str {
        "job-orphan-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Pod>()
            .maps::<Job>(pods_of)
            .while_deleted()
            .without_conditions()
    }

    fn plan(&self, plan: Planner<Pod>) -> Planner<Pod> {
        plan.transformer(transformer("release", release))
    }
}

fn pods_of(job: &Object, sources: &Sources) -> Vec<Key> {
    sources
        .owned(&Kind::of::<Pod>(), job.uid())
        .iter()
        .map(Key::of)
        .collect()
}

fn release(snapshot: &Snapshot<Pod>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let pod = snapshot.raw();
    if !pod.has_finalizer(TRACKING) {
        return Ok(Verdict::Continue);
    }
    let job = match pod.controller() {
        // Whatever that means to a controller of another kind, it is theirs.
        Some(owner) if &*owner.kind != "Job" || &*owner.api_version != "batch/v1" => return Ok(Verdict::Continue),
        Some(owner) => snapshot.get::<Job>(&owner.name)?.filter(|job| job.uid() == &*owner.uid),
        None => None,
    };
    if job.as_ref().is_some_and(|job| is_managed_elsewhere(job)) {
        return Ok(Verdict::Continue);
    }
    if job.is_none_or(|job| job.is_deleting()) {
        draft.put(snapshot.patch_value(pod, &without_tracking(pod), "the job that would count it is gone")?);
    }
    Ok(Verdict::Continue)
}

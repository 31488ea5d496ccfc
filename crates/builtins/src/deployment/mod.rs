//! `Deployment`: replica sets of one template after another, moved between by small steps.
//!
//! ```text
//!   Deployment ──► new ReplicaSet (the template's) ── grows while ──► old ReplicaSets shrink
//! ```

mod proportion;
mod rollback;
mod rollout;
mod sets;
mod status;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Kind, Object, Planner, Snapshot, Watches};

use self::sets::Sets;
pub(crate) use self::sets::{Rounding, scaled};
use crate::wake;

/// Runs deployments.
pub(crate) struct Deployments;

impl Actor for Deployments {
    type Object = Deployment;

    fn name(&self) -> &'static str {
        "deployment-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Deployment>()
            .owns::<ReplicaSet>()
            .maps::<ReplicaSet>(wake::selecting(Kind::of::<Deployment>()))
            .maps::<Pod>(rollout::waiting_to_recreate)
            .concluding(status::conclude)
            .naming_failures(status::failures)
            .while_deleted()
    }

    fn plan(&self, plan: Planner<Deployment>) -> Planner<Deployment> {
        plan.transformer(transformer("rollout", roll_out))
    }
}

fn roll_out(snapshot: &Snapshot<Deployment>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let mut sets = Sets::observe(snapshot, draft)?;
    if !snapshot.raw().is_deleting() {
        if sets.is_paused() {
            sets.find_new(snapshot, draft)?;
            rollout::scale(snapshot, &sets, draft)?;
        } else if rollback::roll_back(snapshot, &sets, draft)? {
            // The next look sees the template of old as the one that is wanted.
        } else if sets.is_being_scaled() {
            sets.find_new(snapshot, draft)?;
            rollout::scale(snapshot, &sets, draft)?;
        } else if sets.recreates() {
            rollout::recreate(snapshot, &mut sets, draft)?;
        } else {
            rollout::roll(snapshot, &mut sets, draft)?;
        }
        sets.clean_up(snapshot, draft);
    }
    status::write(snapshot, &sets, draft)
}

//! What a deployment says of itself.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use moorline_plan::{Draft, Failure, Verdict};
use moorline_runtime::{Aftermath, Failed, Kind, Object, Snapshot};
use serde_json::{Value, json};

use super::sets::{REVISION, Sets, replicas_of};
use crate::pods::elapsed;
use crate::replicas::{FAILURE, positive};

/// A deadline this far away is none.
const NO_DEADLINE: i32 = i32::MAX;

pub(crate) fn write(
    snapshot: &Snapshot<Deployment>,
    sets: &Sets,
    draft: &mut Draft<Object>,
) -> Result<Verdict, Failure> {
    let before = snapshot.object().status.clone().unwrap_or_default();
    let mut status = count(snapshot, sets);
    status.conditions.clone_from(&before.conditions);
    let conditions = status.conditions.get_or_insert_default();
    let now = snapshot.now();
    let available = status.available_replicas.unwrap_or(0);
    if available >= sets.replicas() - sets.unavailable() {
        set(
            conditions,
            now,
            "Available",
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".to_owned(),
        );
    } else {
        let message = "Deployment does not have minimum availability.".to_owned();
        set(
            conditions,
            now,
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            message,
        );
    }
    let is_deleting = snapshot.raw().is_deleting();
    let verdict = if is_deleting {
        Verdict::Continue
    } else {
        tell_failure_of_sets(sets, conditions, now);
        progress(snapshot, sets, &before, &mut status)
    };
    let revision = sets.current_revision().filter(|_| !is_deleting);
    let revision: Vec<_> = revision
        .map(|revision| (REVISION, revision.to_string()))
        .into_iter()
        .collect();
    draft.put(snapshot.status_with(
        &status,
        &revision,
        format!("{available} of {} replicas are available", sets.replicas()),
    )?);
    Ok(verdict)
}

/// What keeps a replica set from having its pods is told by the deployment too: of the new set, or else of an old one.
fn tell_failure_of_sets(sets: &Sets, conditions: &mut Vec<DeploymentCondition>, now: Timestamp) {
    let failure = sets
        .new_set()
        .into_iter()
        .chain(sets.old_sets())
        .filter_map(|set| set.status.as_ref()?.conditions.as_deref())
        .flatten()
        .find(|condition| condition.type_ == FAILURE);
    match failure {
        Some(failure) => {
            let (reason, message) = (failure.reason.as_deref(), failure.message.clone());
            let reason = reason.unwrap_or_default();
            set(
                conditions,
                now,
                FAILURE,
                &failure.status,
                reason,
                message.unwrap_or_default(),
            );
        }
        None => conditions.retain(|condition| condition.type_ != FAILURE),
    }
}

/// The event that tells of a new replica set that could not be made.
pub(crate) fn failures(failed: &Failed<'_>) -> Option<(String, String)> {
    is_new_set(failed).then(|| ("ReplicaSetCreateError".to_owned(), not_made(failed)))
}

fn is_new_set(failed: &Failed<'_>) -> bool {
    failed.step.target.kind == Kind::of::<ReplicaSet>() && failed.step.action.verb() == "create"
}

fn not_made(failed: &Failed<'_>) -> String {
    let name = &failed.step.target.name;
    format!("Failed to create new replica set \"{name}\": {}", failed.why)
}

/// A new replica set that cannot be made is no progress, and the condition says why.
pub(crate) fn conclude(status: &mut Value, aftermath: &Aftermath<'_>) {
    let Some(failed) = aftermath.failed().find(is_new_set) else {
        return;
    };
    let progressing = |status: &Value| {
        let conditions = status["conditions"].as_array()?;
        conditions
            .iter()
            .position(|condition| condition["type"] == "Progressing")
    };
    // Without a deadline for progress there is no such condition.
    let Some(place) = progressing(status) else { return };
    let message = not_made(&failed);
    let before = progressing(aftermath.before()).map(|place| &aftermath.before()["conditions"][place]);
    let told = before.filter(|before| before["reason"] == "ReplicaSetCreateError" && before["message"] == *message);
    let now = Time(aftermath.now());
    status["conditions"][place] = told.cloned().unwrap_or_else(|| {
        json!({
            "type": "Progressing", "status": "False", "reason": "ReplicaSetCreateError", "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now,
        })
    });
}

fn count(snapshot: &Snapshot<Deployment>, sets: &Sets) -> DeploymentStatus {
    let sum = |of: &dyn Fn(&k8s_openapi::api::apps::v1::ReplicaSetStatus) -> i32| -> i32 {
        sets.all().iter().filter_map(|set| set.status.as_ref()).map(of).sum()
    };
    let total: i32 = sets.all().iter().map(|set| replicas_of(set)).sum();
    let available = sum(&|status| status.available_replicas.unwrap_or(0));
    let updated = sets
        .new_set()
        .and_then(|new| new.status.as_ref())
        .map_or(0, |status| status.replicas);
    DeploymentStatus {
        observed_generation: Some(snapshot.raw().generation()),
        replicas: positive(sum(&|status| status.replicas)),
        updated_replicas: positive(updated),
        ready_replicas: positive(sum(&|status| status.ready_replicas.unwrap_or(0))),
        available_replicas: positive(available),
        unavailable_replicas: positive((total - available).max(0)),
        terminating_replicas: Some(sum(&|status| status.terminating_replicas.unwrap_or(0))),
        collision_count: sets.collisions,
        conditions: None,
    }
}

/// Keeps the condition `Progressing`, and says when to look whether the deadline has passed.
fn progress(
    snapshot: &Snapshot<Deployment>,
    sets: &Sets,
    before: &DeploymentStatus,
    status: &mut DeploymentStatus,
) -> Verdict {
    let now = snapshot.now();
    let deadline = sets
        .spec()
        .progress_deadline_seconds
        .filter(|seconds| *seconds != NO_DEADLINE);
    let is_complete = is_complete(status, sets);
    let is_progressing = is_progressing(before, status);
    let counts = (status.replicas, status.updated_replicas);
    let conditions = status.conditions.get_or_insert_default();
    let Some(deadline) = deadline else {
        conditions.retain(|condition| condition.type_ != "Progressing");
        return Verdict::Continue;
    };
    let deadline = Duration::from_secs(u64::try_from(deadline).unwrap_or(0));
    let (mut current, mut reason) = progressing(conditions);
    if sets.is_paused() {
        // That it came to nothing is still true, and only progress changes that.
        if reason != "DeploymentPaused" && reason != "ProgressDeadlineExceeded" {
            set(
                conditions,
                now,
                "Progressing",
                "Unknown",
                "DeploymentPaused",
                "Deployment is paused".to_owned(),
            );
        }
        return Verdict::Continue;
    }
    if reason == "DeploymentPaused" {
        set(
            conditions,
            now,
            "Progressing",
            "Unknown",
            "DeploymentResumed",
            "Deployment is resumed".to_owned(),
        );
        // The deadline begins anew.
        (current, reason) = progressing(conditions);
    }
    if let Some(created) = &sets.created {
        let message = format!("Created new replica set \"{created}\"");
        set(conditions, now, "Progressing", "True", "NewReplicaSetCreated", message);
        return look_again(deadline);
    }
    let what = match sets.new_set() {
        Some(new) => format!("ReplicaSet \"{}\"", new.name()),
        None => format!("Deployment \"{}\"", snapshot.raw().name()),
    };
    if counts.0 == counts.1 && reason == "NewReplicaSetAvailable" {
        return Verdict::Continue;
    }
    if is_complete {
        let message = format!("{what} has successfully progressed.");
        set(
            conditions,
            now,
            "Progressing",
            "True",
            "NewReplicaSetAvailable",
            message,
        );
        return Verdict::Continue;
    }
    if is_progressing || current.is_none() {
        let (reason, message) = match sets.new_set().filter(|_| !is_progressing) {
            Some(new) => (
                "FoundNewReplicaSet",
                format!("Found new replica set \"{}\"", new.name()),
            ),
            None => ("ReplicaSetUpdated", format!("{what} is progressing.")),
        };
        set(conditions, now, "Progressing", "True", reason, message);
        return look_again(deadline);
    }
    let since = current
        .and_then(|condition| condition.last_update_time)
        .map_or(now, |time| time.0);
    match deadline.saturating_sub(elapsed(since, now)) {
        Duration::ZERO if reason != "NewReplicaSetAvailable" => {
            let message = format!("{what} has timed out progressing.");
            set(
                conditions,
                now,
                "Progressing",
                "False",
                "ProgressDeadlineExceeded",
                message,
            );
            Verdict::Continue
        }
        left => look_again(left),
    }
}

/// The condition as it stands, and its reason.
fn progressing(conditions: &[DeploymentCondition]) -> (Option<DeploymentCondition>, String) {
    let current = conditions.iter().find(|condition| condition.type_ == "Progressing");
    let reason = current.and_then(|condition| condition.reason.clone());
    (current.cloned(), reason.unwrap_or_default())
}

fn look_again(after: Duration) -> Verdict {
    Verdict::LookAgain {
        after: after + Duration::from_secs(1),
        reason: "the rollout has a deadline to make progress".to_owned(),
    }
}

fn is_complete(status: &DeploymentStatus, sets: &Sets) -> bool {
    let wanted = sets.replicas();
    [status.updated_replicas, status.replicas, status.available_replicas]
        .iter()
        .all(|count| count.unwrap_or(0) == wanted)
}

fn is_progressing(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let old = |status: &DeploymentStatus| status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0);
    after.updated_replicas.unwrap_or(0) > before.updated_replicas.unwrap_or(0)
        || old(after) < old(before)
        || after.ready_replicas.unwrap_or(0) > before.ready_replicas.unwrap_or(0)
        || after.available_replicas.unwrap_or(0) > before.available_replicas.unwrap_or(0)
}

/// Writes a condition. One that already says so keeps its times.
fn set(
    conditions: &mut Vec<DeploymentCondition>,
    now: Timestamp,
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
) {
    let known = conditions.iter().find(|condition| condition.type_ == type_);
    let is_progress = type_ == "Progressing" && status == "True" && reason == "ReplicaSetUpdated";
    if let Some(known) = known
        && known.status == status
        && known.reason.as_deref() == Some(reason)
        && !is_progress
    {
        return;
    }
    let unchanged = known
        .filter(|known| known.status == status)
        .and_then(|known| known.last_transition_time.clone());
    let condition = DeploymentCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(unchanged.unwrap_or(Time(now))),
    };
    match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

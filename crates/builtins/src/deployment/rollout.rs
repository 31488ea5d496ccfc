//! How replicas move from the old sets to the new one.

use std::cmp::Reverse;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Key, Kind, Object, Seen, Snapshot, Sources};

use super::proportion;
use super::sets::{Sets, available_of, desired_of, replicas_of};
use crate::pods;

/// One small step of a rolling update: the new set grows as far as the surge allows; if it does not, old ones shrink as
/// far as availability allows.
pub(crate) fn roll(snapshot: &Snapshot<Deployment>, sets: &mut Sets, draft: &mut Draft<Object>) -> Result<(), Failure> {
    sets.ensure_new(snapshot, |sets| grown(sets, 0), draft)?;
    let Some(new) = sets.new_set() else { return Ok(()) };
    let (now, wanted) = (replicas_of(new), sets.replicas());
    let next = if now > wanted { wanted } else { grown(sets, now) };
    if next != now {
        return sets.resize(snapshot, new, next, draft);
    }
    shrink_old(snapshot, sets, draft)
}

/// How many replicas the new set may have next.
fn grown(sets: &Sets, now: i32) -> i32 {
    let total: i32 = sets.all().iter().map(|set| replicas_of(set)).sum();
    let room = sets.replicas() + sets.surge() - total;
    if room <= 0 {
        now
    } else {
        now + room.min(sets.replicas() - now).max(0)
    }
}

fn shrink_old(snapshot: &Snapshot<Deployment>, sets: &Sets, draft: &mut Draft<Object>) -> Result<(), Failure> {
    let Some(new) = sets.new_set() else { return Ok(()) };
    let least = sets.replicas() - sets.unavailable();
    let total: i32 = sets.all().iter().map(|set| replicas_of(set)).sum();
    let new_missing = replicas_of(new) - available_of(new);
    let mut room = total - least - new_missing;
    let mut old: Vec<(&Seen<ReplicaSet>, i32)> = sets.old_sets().map(|set| (set, replicas_of(set))).collect();
    // Pods that serve nobody go first: losing them costs no availability.
    for (set, left) in &mut old {
        let unhealthy = (*left - available_of(set)).clamp(0, room.max(0));
        *left -= unhealthy;
        room -= unhealthy;
    }
    let available: i32 = sets.all().iter().map(|set| available_of(set)).sum();
    let mut surplus = available - least;
    for (_, left) in &mut old {
        let gone = (*left).min(surplus.max(0)).min(room.max(0));
        *left -= gone;
        surplus -= gone;
        room -= gone;
    }
    for (set, left) in old {
        if left != replicas_of(set) {
            sets.resize(snapshot, set, left, draft)?;
        }
    }
    Ok(())
}

/// All old pods go before the first new one comes.
pub(crate) fn recreate(
    snapshot: &Snapshot<Deployment>,
    sets: &mut Sets,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let mut shrinking = false;
    for set in sets.old_sets() {
        if replicas_of(set) > 0 {
            sets.resize(snapshot, set, 0, draft)?;
            shrinking = true;
        }
        // As long as its status counts pods, the deployment's would count old and new ones at once.
        shrinking |= set.status.as_ref().is_some_and(|status| status.replicas > 0);
    }
    for set in sets.old_sets() {
        let pods = snapshot.owned_by::<Pod>(set.raw())?;
        shrinking |= pods.iter().any(|pod| !pods::has_ended(pod));
    }
    if shrinking {
        return Ok(());
    }
    sets.ensure_new(snapshot, Sets::replicas, draft)?;
    match sets.new_set() {
        Some(new) if replicas_of(new) != sets.replicas() => sets.resize(snapshot, new, sets.replicas(), draft),
        _ => Ok(()),
    }
}

/// A deployment that recreates waits for the last old pod to go, which its replica set may not tell.
pub(crate) fn waiting_to_recreate(pod: &Object, sources: &Sources) -> Vec<Key> {
    let Some(owner) = pod.controller().filter(|owner| &*owner.kind == "ReplicaSet") else {
        return Vec::new();
    };
    let set = sources.get(&Kind::of::<ReplicaSet>(), pod.namespace(), &owner.name);
    let deployment = set
        .as_ref()
        .and_then(Object::controller)
        .filter(|owner| &*owner.kind == "Deployment");
    let Some(deployment) =
        deployment.and_then(|owner| sources.get(&Kind::of::<Deployment>(), pod.namespace(), &owner.name))
    else {
        return Vec::new();
    };
    let recreates = deployment.value()["spec"]["strategy"]["type"] == "Recreate";
    if recreates {
        vec![Key::of(&deployment)]
    } else {
        Vec::new()
    }
}

/// The number of replicas was changed: one set takes it all, or all that are active take their share.
pub(crate) fn scale(snapshot: &Snapshot<Deployment>, sets: &Sets, draft: &mut Draft<Object>) -> Result<(), Failure> {
    let wanted = sets.replicas();
    let active: Vec<&Seen<ReplicaSet>> = sets.all().iter().filter(|set| replicas_of(set) > 0).collect();
    let only = match active.as_slice() {
        [] => sets.new_set().or_else(|| sets.all().last()),
        [one] => Some(*one),
        _ => None,
    };
    if let Some(only) = only {
        return sets.resize(snapshot, only, wanted, draft);
    }
    if let Some(new) = sets.new_set()
        && replicas_of(new) == wanted
        && desired_of(new) == Some(wanted)
        && available_of(new) == wanted
    {
        for old in sets.old_sets().filter(|set| replicas_of(set) > 0) {
            sets.resize(snapshot, old, 0, draft)?;
        }
        return Ok(());
    }
    if sets.recreates() {
        return Ok(());
    }
    let most = if wanted > 0 { wanted + sets.surge() } else { 0 };
    let mut shared = active;
    // The largest first; of equals, the newer when growing and the older when shrinking.
    let total: i32 = shared.iter().map(|set| replicas_of(set)).sum();
    shared.sort_by_key(|set| Reverse(replicas_of(set)));
    if most >= total {
        shared.reverse();
        shared.sort_by_key(|set| Reverse(replicas_of(set)));
    }
    for (set, share) in proportion::shares(&shared, wanted, most) {
        sets.resize(snapshot, set, share, draft)?;
    }
    Ok(())
}

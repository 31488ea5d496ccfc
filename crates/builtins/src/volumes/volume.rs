//! Volumes: available, bound, released.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Key, Kind, Object, Planner, Seen, Snapshot, Sources, Watches};
use serde_json::Value;

use super::{BOUND_BY_CONTROLLER, PROVISIONED_BY, fit, reclaim};
use crate::pods::{annotation, elapsed};

/// How long a volume waits for a claim that has not been seen before it counts as released. Claims and volumes are not
/// seen in step, and what is released may be deleted with all its data.
const PATIENCE: Duration = Duration::from_secs(2);

/// Keeps the phases of volumes.
pub(crate) struct Volumes;

impl Actor for Volumes {
    type Object = PersistentVolume;

    fn name(&self) -> &'static str {
        "persistentvolume-phases"
    }

    fn watches(&self) -> Watches {
        Watches::of::<PersistentVolume>()
            .maps::<PersistentVolumeClaim>(volumes_of)
            .indexes::<PersistentVolume>("claim", |volume| claim_of(volume).into_iter().collect())
            // A volume that was deleted while it was bound goes when it is told that it is no longer.
            .while_deleted()
            .without_conditions()
    }

    fn plan(&self, plan: Planner<PersistentVolume>) -> Planner<PersistentVolume> {
        plan.transformer(transformer("phase", phase))
    }
}

fn claim_of(volume: &PersistentVolume) -> Option<String> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(format!(
        "{}/{}",
        reference.namespace.as_deref()?,
        reference.name.as_deref()?
    ))
}

/// The volumes that are kept for a claim.
fn volumes_of(claim: &Object, sources: &Sources) -> Vec<Key> {
    let name = format!("{}/{}", claim.namespace(), claim.name());
    sources
        .indexed(&Kind::of::<PersistentVolume>(), "claim", &name)
        .unwrap_or_default()
        .iter()
        .map(Key::of)
        .collect()
}

fn phase(snapshot: &Snapshot<PersistentVolume>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let reference = snapshot.object().spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let named = |reference: &ObjectReference| reference.uid.clone().filter(|uid| !uid.is_empty());
    let Some((reference, uid)) = reference.and_then(|reference| Some((reference, named(reference)?))) else {
        // Free, or kept for a claim that has not come.
        tell(snapshot, "Available", None, draft)?;
        return Ok(Verdict::Continue);
    };
    let claim = snapshot.get_in::<PersistentVolumeClaim>(
        reference.namespace.as_deref().unwrap_or_default(),
        reference.name.as_deref().unwrap_or_default(),
    )?;
    match claim.filter(|claim| claim.uid() == uid) {
        Some(claim) => beside(snapshot, &claim, draft),
        None => without(snapshot, draft),
    }
}

/// The claim that the volume is kept for is there.
fn beside(
    snapshot: &Snapshot<PersistentVolume>,
    claim: &Seen<PersistentVolumeClaim>,
    draft: &mut Draft<Object>,
) -> Result<Verdict, Failure> {
    let volume = snapshot.object();
    let spec = claim.spec.clone().unwrap_or_default();
    match spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) if name == snapshot.raw().name() => tell(snapshot, "Bound", None, draft)?,
        Some(_) if is_made_for_nothing(volume) => return release(snapshot, draft),
        Some(other) => {
            let reason = format!("the claim {} has volume {other}", claim.name());
            draft.put(snapshot.patch_value(snapshot.raw(), &given_back(snapshot.raw()), reason)?);
        }
        // The claim follows when it sees that the volume is bound.
        None if fit::is_usable(volume, claim) => tell(snapshot, "Bound", None, draft)?,
        None if !fit::has_mode(volume, &spec) => {
            let note = format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
                claim.name()
            );
            draft.put(snapshot.event(EventType::Warning, "VolumeMismatch", &note)?);
        }
        None => {}
    }
    Ok(Verdict::Continue)
}

/// The claim that the volume was bound to is gone, or another one has its name; or it has not been seen yet.
fn without(snapshot: &Snapshot<PersistentVolume>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let volume = snapshot.object();
    let status = volume.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if !matches!(phase, None | Some("Pending" | "Available")) {
        // It was bound, so the claim had been seen.
        return release(snapshot, draft);
    }
    let since = status
        .and_then(|status| status.last_phase_transition_time.as_ref())
        .or(volume.metadata.creation_timestamp.as_ref());
    let waited = match phase {
        Some("Pending") => since.map_or(PATIENCE, |since| elapsed(since.0, snapshot.now())),
        // From now on the time is in the status.
        _ => Duration::ZERO,
    };
    let left = PATIENCE.saturating_sub(waited);
    if left.is_zero() {
        return release(snapshot, draft);
    }
    tell(snapshot, "Pending", None, draft)?;
    Ok(Verdict::LookAgain {
        after: left,
        reason: "its claim has not been seen yet".to_owned(),
    })
}

/// Whether it was made for its claim, which has got another, and is nobody's loss.
fn is_made_for_nothing(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    annotation(&volume.metadata, PROVISIONED_BY).is_some()
        && spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete")
}

/// The volume as it is when its claim does not need it: free, or kept by name as the user had it.
fn given_back(volume: &Object) -> Value {
    let mut value = volume.value();
    let mark = value["metadata"]["annotations"]
        .as_object_mut()
        .and_then(|annotations| annotations.remove(BOUND_BY_CONTROLLER));
    if let Some(spec) = value["spec"].as_object_mut() {
        if mark.is_some() {
            spec.remove("claimRef");
        } else if let Some(reference) = spec.get_mut("claimRef").and_then(Value::as_object_mut) {
            reference.remove("uid");
        }
    }
    value
}

/// Tells that it is released and, once that has been seen, that its policy cannot be carried out, if so.
fn release(snapshot: &Snapshot<PersistentVolume>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let volume = snapshot.object();
    match volume.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Failed") => {}
        Some("Released") => {
            if let Some(hindrance) = reclaim::hindrance(snapshot.raw().name(), volume) {
                draft.put(snapshot.event(EventType::Warning, hindrance.reason, &hindrance.message)?);
                tell(snapshot, "Failed", Some(hindrance.message), draft)?;
            }
        }
        _ => tell(snapshot, "Released", None, draft)?,
    }
    Ok(Verdict::Continue)
}

fn tell(
    snapshot: &Snapshot<PersistentVolume>,
    phase: &str,
    message: Option<String>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let before = snapshot.object().status.clone().unwrap_or_default();
    if before.phase.as_deref() == Some(phase) {
        return Ok(());
    }
    let status = PersistentVolumeStatus {
        phase: Some(phase.to_owned()),
        message,
        reason: None,
        last_phase_transition_time: Some(Time(snapshot.now())),
    };
    draft.put(snapshot.status(&status, format!("it is {phase}"))?);
    Ok(())
}

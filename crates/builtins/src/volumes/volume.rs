//! Volumes: available, bound, released.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Key, Kind, Object, Planner, Snapshot, Sources, Watches};

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
    let volume = snapshot.object();
    let before = volume.status.clone().unwrap_or_default();
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
    let phase = match reference {
        None => "Available",
        Some(reference) => {
            let (namespace, name) = (
                reference.namespace.unwrap_or_default(),
                reference.name.unwrap_or_default(),
            );
            let uid = reference.uid.filter(|uid| !uid.is_empty());
            let claim = snapshot.get_in::<PersistentVolumeClaim>(&namespace, &name)?;
            match (claim, uid) {
                (Some(claim), Some(uid)) if claim.uid() == uid => {
                    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
                    if named == Some(snapshot.raw().name()) {
                        "Bound"
                    } else {
                        before.phase.as_deref().unwrap_or("Available")
                    }
                }
                // Kept for a claim that has not come, or that has not been bound yet.
                (_, None) => "Available",
                // The claim that it was bound to is gone, or another one has its name.
                (_, Some(_)) => "Released",
            }
        }
    };
    if before.phase.as_deref() == Some(phase) {
        return Ok(Verdict::Continue);
    }
    let status = PersistentVolumeStatus {
        phase: Some(phase.to_owned()),
        last_phase_transition_time: Some(Time(snapshot.now())),
        ..before
    };
    draft.put(snapshot.status(&status, format!("it is {phase}"))?);
    Ok(Verdict::Continue)
}

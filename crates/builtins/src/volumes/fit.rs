//! Which volumes a claim can have.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec,
};
use moorline_machinery::quantity::Quantity;
use moorline_machinery::selector::LabelSelector;
use moorline_plan::Failure;
use moorline_runtime::Seen;

use crate::claim::selector_of;
use crate::pods::annotation;

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The class of a claim; empty for none.
pub(super) fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let old = annotation(&claim.metadata, CLASS);
    old.or_else(|| claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()))
        .unwrap_or_default()
}

fn class_of_volume(volume: &PersistentVolume) -> &str {
    let old = annotation(&volume.metadata, CLASS);
    old.or_else(|| volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()))
        .unwrap_or_default()
}

/// Whether a volume is kept for this claim, by uid or, if it names none, by name.
pub(super) fn is_kept_for(volume: &PersistentVolume, claim: &Seen<PersistentVolumeClaim>) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return false;
    };
    reference.namespace.as_deref() == Some(claim.raw().namespace())
        && reference.name.as_deref() == Some(claim.name())
        && reference
            .uid
            .as_deref()
            .is_none_or(|uid| uid.is_empty() || uid == claim.uid())
}

/// The volume that a claim should have: one that is kept for it, or else the smallest that fits.
pub(super) fn best<'v>(
    volumes: &'v [Seen<PersistentVolume>],
    claim: &Seen<PersistentVolumeClaim>,
) -> Result<Option<&'v Seen<PersistentVolume>>, Failure> {
    let spec = claim.spec.clone().unwrap_or_default();
    let selector = spec
        .selector
        .as_ref()
        .map_or(Ok(LabelSelector::EVERYTHING), selector_of)?;
    let usable =
        |volume: &&Seen<PersistentVolume>| !volume.is_deleting() && has_room(volume, &spec) && has_modes(volume, &spec);
    let kept = volumes.iter().filter(usable).find(|volume| is_kept_for(volume, claim));
    if kept.is_some() {
        return Ok(kept);
    }
    let free = volumes.iter().filter(usable).filter(|volume| {
        volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
            && class_of_volume(volume) == class_of_claim(claim)
            && selector.matches(volume.raw())
            && volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
    });
    Ok(free.min_by(|a, b| capacity(a).cmp(&capacity(b)).then_with(|| a.name().cmp(b.name()))))
}

pub(super) fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0.parse().ok()
}

fn has_room(volume: &PersistentVolume, spec: &PersistentVolumeClaimSpec) -> bool {
    let wanted = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref())
        .and_then(|requests| requests.get("storage"));
    let wanted: Option<Quantity> = wanted.and_then(|quantity| quantity.0.parse().ok());
    wanted.is_none() || capacity(volume) >= wanted
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaimSpec) -> bool {
    let mode = |mode: Option<&str>| mode.unwrap_or("Filesystem").to_owned();
    let default = PersistentVolumeSpec::default();
    let spec = volume.spec.as_ref().unwrap_or(&default);
    let offered = spec.access_modes.as_deref().unwrap_or_default();
    mode(spec.volume_mode.as_deref()) == mode(claim.volume_mode.as_deref())
        && claim
            .access_modes
            .iter()
            .flatten()
            .all(|wanted| offered.contains(wanted))
}

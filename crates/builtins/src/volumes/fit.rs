//! Which volumes a claim can have.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec,
};
use moorline_machinery::quantity::Quantity;
use moorline_machinery::selector::LabelSelector;
use moorline_plan::Failure;
use moorline_runtime::Seen;

use super::class;
use crate::claim::selector_of;

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

/// Whether nobody has a volume, and it is kept for nobody.
pub(super) fn is_free(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
}

/// The volume that a claim should have: one that is kept for it, or else the smallest that fits, of those that offer the
/// fewest ways of access. A claim that `delays` is given no free volume: which one it gets depends on where its pod goes.
pub(super) fn best<'v>(
    volumes: &'v [Seen<PersistentVolume>],
    claim: &Seen<PersistentVolumeClaim>,
    delays: bool,
) -> Result<Option<&'v Seen<PersistentVolume>>, Failure> {
    let selector = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref())
        .map_or(Ok(LabelSelector::EVERYTHING), selector_of)?;
    let usable = |volume: &&Seen<PersistentVolume>| is_usable(volume, claim);
    let kept = volumes.iter().filter(usable).find(|volume| is_kept_for(volume, claim));
    if kept.is_some() || delays {
        return Ok(kept);
    }
    let free = volumes.iter().filter(usable).filter(|volume| {
        is_free(volume)
            && class::of_volume(volume) == class::of_claim(claim)
            && selector.matches(volume.raw())
            && volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
    });
    let modes = |volume: &PersistentVolume| {
        let spec = volume.spec.as_ref();
        spec.and_then(|spec| spec.access_modes.as_ref()).map_or(0, Vec::len)
    };
    Ok(free.min_by(|a, b| {
        let by_size = capacity(a).cmp(&capacity(b)).then_with(|| a.name().cmp(b.name()));
        modes(a).cmp(&modes(b)).then(by_size)
    }))
}

/// Whether a volume has what a claim asks of any volume, one that is kept for it too.
pub(super) fn is_usable(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let default = PersistentVolumeClaimSpec::default();
    let wanted = claim.spec.as_ref().unwrap_or(&default);
    volume.metadata.deletion_timestamp.is_none()
        && has_room(volume, wanted)
        && has_attributes(volume, wanted)
        && has_mode(volume, wanted)
        && has_access(volume, wanted)
}

/// Why a claim that asks for this very volume cannot have it, in Kubernetes' words; nothing if it can.
pub(super) fn mismatch(volume: &Seen<PersistentVolume>, claim: &PersistentVolumeClaim) -> Option<String> {
    let default = PersistentVolumeClaimSpec::default();
    let wanted = claim.spec.as_ref().unwrap_or(&default);
    if volume.is_deleting() {
        return Some(format!("the volume is marked for deletion {:?}", volume.name()));
    }
    let complaints = [
        (has_room(volume, wanted), "requested PV is too small"),
        (
            class::of_volume(volume) == class::of_claim(claim),
            "storageClassName does not match",
        ),
        (
            has_attributes(volume, wanted),
            "volumeAttributesClassName does not match",
        ),
        (has_mode(volume, wanted), "incompatible volumeMode"),
        (has_access(volume, wanted), "incompatible accessMode"),
    ];
    let complaint = complaints.into_iter().find(|(holds, _)| !holds);
    complaint.map(|(_, complaint)| complaint.to_owned())
}

/// Whether a volume is a file system, or a device, as the claim wants it.
pub(super) fn has_mode(volume: &PersistentVolume, wanted: &PersistentVolumeClaimSpec) -> bool {
    let offered = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    offered.unwrap_or("Filesystem") == wanted.volume_mode.as_deref().unwrap_or("Filesystem")
}

fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0.parse().ok()
}

fn has_room(volume: &PersistentVolume, wanted: &PersistentVolumeClaimSpec) -> bool {
    let wanted = wanted
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref())
        .and_then(|requests| requests.get("storage"));
    let wanted: Option<Quantity> = wanted.and_then(|quantity| quantity.0.parse().ok());
    wanted.is_none() || capacity(volume) >= wanted
}

fn has_attributes(volume: &PersistentVolume, wanted: &PersistentVolumeClaimSpec) -> bool {
    let offered = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_attributes_class_name.as_deref());
    offered.unwrap_or_default() == wanted.volume_attributes_class_name.as_deref().unwrap_or_default()
}

fn has_access(volume: &PersistentVolume, wanted: &PersistentVolumeClaimSpec) -> bool {
    let default = PersistentVolumeSpec::default();
    let spec = volume.spec.as_ref().unwrap_or(&default);
    let offered = spec.access_modes.as_deref().unwrap_or_default();
    let mut wanted = wanted.access_modes.iter().flatten();
    wanted.all(|wanted| offered.contains(wanted))
}

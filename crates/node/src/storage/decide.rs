//! What is to be done about a claim or a volume.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};

use super::PROVISIONER;
use crate::{amounts::amount, scheduler::volume_fits};

/// One thing to do about a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClaimStep {
    /// Give it the default class.
    SetClass(String),
    /// Write into the volume that it is this claim's.
    Reserve(String),
    /// Write into the claim that the volume is its own, and that it is bound.
    Bind(String),
    /// Make a volume, on a node if one is chosen.
    Provision { class: String, node: Option<String> },
    /// Its volume is gone.
    Lose,
    /// Say that it has more room now.
    Grow(String),
    /// Nobody uses it any more: let it go.
    Release,
    /// Say why it waits: reason and message of an event.
    Explain(&'static str, String),
}

/// One thing to do about a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VolumeStep {
    /// Say where it stands.
    SetPhase(&'static str),
    /// Delete it and what is in it.
    Destroy,
    /// Nobody has it any more: let it go.
    Release,
}

pub(super) const CLAIM_IN_USE: &str = "kubernetes.io/pvc-protection";
pub(super) const VOLUME_IN_USE: &str = "kubernetes.io/pv-protection";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// All that claims are decided from.
pub(super) struct World<'a> {
    pub(super) volumes: &'a BTreeMap<String, PersistentVolume>,
    pub(super) classes: &'a BTreeMap<String, StorageClass>,
}

/// The name of the volume that is made for a claim.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or(""))
}

/// The next step for a claim; the one after follows when the objects show it.
pub(super) fn claim(world: &World<'_>, claim: &PersistentVolumeClaim, in_use: bool) -> Option<ClaimStep> {
    let spec = claim.spec.as_ref()?;
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if claim.metadata.deletion_timestamp.is_some() {
        let held = claim
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == CLAIM_IN_USE);
        return (held && !in_use).then_some(ClaimStep::Release);
    }
    if let Some(name) = spec.volume_name.as_ref().filter(|name| !name.is_empty()) {
        return bound_to(world, claim, name, phase);
    }
    let mut fitting: Vec<_> = world
        .volumes
        .iter()
        .filter(|(_, volume)| volume_fits(volume, claim))
        .collect();
    let held = |volume: &PersistentVolume| volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_some());
    fitting.sort_by_key(|(name, volume)| (!held(volume), size(volume), (*name).clone()));
    if let Some((name, volume)) = fitting.first()
        && held(volume)
    {
        let reserved = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        return Some(if reserved.is_some_and(|holder| holder.uid == claim.metadata.uid) {
            ClaimStep::Bind((*name).clone())
        } else {
            ClaimStep::Reserve((*name).clone())
        });
    }
    let Some(class) = spec.storage_class_name.as_deref() else {
        return default_class(world).map(ClaimStep::SetClass);
    };
    let definition = world.classes.get(class);
    let waits = definition.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    let annotations = claim.metadata.annotations.as_ref();
    let node = annotations
        .and_then(|annotations| annotations.get(SELECTED_NODE))
        .cloned();
    if waits && node.is_none() {
        let message = "waiting for first consumer to be created before binding".to_owned();
        return Some(ClaimStep::Explain("WaitForFirstConsumer", message));
    }
    if let Some((name, _)) = fitting.first() {
        return Some(ClaimStep::Reserve((*name).clone()));
    }
    match definition {
        Some(definition) if definition.provisioner == PROVISIONER => Some(ClaimStep::Provision {
            class: class.to_owned(),
            node,
        }),
        Some(definition) => {
            let message = format!(
                "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system \
                 administrator. If volume creation is delayed, please verify that the provisioner is running and \
                 correctly registered.",
                definition.provisioner
            );
            Some(ClaimStep::Explain("ExternalProvisioning", message))
        }
        None if class.is_empty() => Some(ClaimStep::Explain(
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set".to_owned(),
        )),
        None => Some(ClaimStep::Explain(
            "ProvisioningFailed",
            format!("storageclass.storage.k8s.io {class:?} not found"),
        )),
    }
}

fn bound_to(world: &World<'_>, claim: &PersistentVolumeClaim, name: &str, phase: Option<&str>) -> Option<ClaimStep> {
    let Some(volume) = world.volumes.get(name) else {
        return (phase == Some("Bound")).then_some(ClaimStep::Lose);
    };
    let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    match holder {
        None if volume_fits(volume, claim) => return Some(ClaimStep::Reserve(name.to_owned())),
        Some(holder) if holder.uid.is_none() && holder.name == claim.metadata.name => {
            return Some(ClaimStep::Reserve(name.to_owned()));
        }
        Some(holder) if holder.uid == claim.metadata.uid => {}
        _ => return None,
    }
    if phase != Some("Bound") {
        return Some(ClaimStep::Bind(name.to_owned()));
    }
    let class = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_deref())
        .unwrap_or("");
    let grows = world
        .classes
        .get(class)
        .is_some_and(|class| class.provisioner == PROVISIONER && class.allow_volume_expansion == Some(true));
    let asked = asked(claim);
    let has = claim
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref())
        .and_then(|map| map.get("storage"));
    let has = has.map_or(0, |quantity| amount("storage", quantity));
    (grows && asked > has).then(|| ClaimStep::Grow(name.to_owned()))
}

fn asked(claim: &PersistentVolumeClaim) -> i64 {
    let requests = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref())
        .and_then(|all| all.requests.as_ref());
    requests
        .and_then(|requests| requests.get("storage"))
        .map_or(0, |quantity| amount("storage", quantity))
}

fn size(volume: &PersistentVolume) -> i64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity
        .and_then(|capacity| capacity.get("storage"))
        .map_or(0, |quantity| amount("storage", quantity))
}

/// The newest of the classes that are marked as the default.
fn default_class(world: &World<'_>) -> Option<String> {
    let marked = world.classes.iter().filter(|(_, class)| {
        let annotations = class.metadata.annotations.as_ref();
        annotations
            .and_then(|annotations| annotations.get(DEFAULT_CLASS))
            .is_some_and(|value| value == "true")
    });
    marked
        .max_by_key(|(_, class)| class.metadata.creation_timestamp.clone())
        .map(|(name, _)| name.clone())
}

/// The next step for a volume, given the claim that it names.
pub(super) fn volume(volume: &PersistentVolume, holder: Option<&PersistentVolumeClaim>) -> Option<VolumeStep> {
    let spec = volume.spec.as_ref()?;
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let ours = volume
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get("pv.kubernetes.io/provisioned-by"))
        .is_some_and(|by| by == PROVISIONER);
    let held = spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.uid.is_none() || holder.is_some_and(|claim| claim.metadata.uid == reference.uid)
    });
    let deletes = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    if volume.metadata.deletion_timestamp.is_some() {
        let bound = held && phase == Some("Bound");
        let protected = volume
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == VOLUME_IN_USE);
        return (protected && !bound).then_some(VolumeStep::Release);
    }
    let Some(reference) = &spec.claim_ref else {
        return (phase != Some("Available")).then_some(VolumeStep::SetPhase("Available"));
    };
    if reference.uid.is_none() {
        return (phase != Some("Available")).then_some(VolumeStep::SetPhase("Available"));
    }
    if held {
        let bound = holder
            .and_then(|claim| claim.spec.as_ref())
            .and_then(|spec| spec.volume_name.as_ref());
        let bound = bound.is_some_and(|name| Some(name) == volume.metadata.name.as_ref());
        return (bound && phase != Some("Bound")).then_some(VolumeStep::SetPhase("Bound"));
    }
    if phase != Some("Released") {
        return Some(VolumeStep::SetPhase("Released"));
    }
    (ours && deletes).then_some(VolumeStep::Destroy)
}

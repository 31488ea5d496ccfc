//! What is to be done about a claim or a volume.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::PROVISIONER;
use crate::amounts::amount;

/// One thing to do about a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClaimStep {
    /// Make a volume, on a node if one is chosen.
    Provision { class: String, node: Option<String> },
    /// Say that it has more room now.
    Grow(String),
}

/// The directory that goes with a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remains {
    /// The one that was made for it.
    Made,
    /// One that was there before, of which the policy says that it goes too.
    OfMachine(PathBuf),
}

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
const MADE_BY: &str = "pv.kubernetes.io/provisioned-by";
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

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
pub(super) fn claim(world: &World<'_>, claim: &PersistentVolumeClaim) -> Option<ClaimStep> {
    if claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let spec = claim.spec.as_ref()?;
    let name = annotation(&claim.metadata, CLASS).or(spec.storage_class_name.as_deref())?;
    let class = world
        .classes
        .get(name)
        .filter(|class| class.provisioner == PROVISIONER)?;
    match spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        Some(volume) => growth(world, claim, volume, class),
        None => provision(world, claim, name, class),
    }
}

/// Whoever binds claims has found no volume for this one, and asks for one.
fn provision(world: &World<'_>, claim: &PersistentVolumeClaim, name: &str, class: &StorageClass) -> Option<ClaimStep> {
    let is_asked = annotation(&claim.metadata, ASKED) == Some(PROVISIONER);
    if !is_asked || world.volumes.contains_key(&volume_name(claim)) {
        return None;
    }
    let node = annotation(&claim.metadata, SELECTED_NODE).map(str::to_owned);
    let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    (!waits || node.is_some()).then(|| ClaimStep::Provision {
        class: name.to_owned(),
        node,
    })
}

fn growth(world: &World<'_>, claim: &PersistentVolumeClaim, volume: &str, class: &StorageClass) -> Option<ClaimStep> {
    let status = claim.status.as_ref()?;
    let holder = world.volumes.get(volume)?.spec.as_ref()?.claim_ref.as_ref()?;
    let bound = status.phase.as_deref() == Some("Bound") && holder.uid == claim.metadata.uid;
    let has = status.capacity.as_ref().and_then(|map| map.get("storage"));
    let has = has.map_or(0, |quantity| amount("storage", quantity));
    let grows = class.allow_volume_expansion == Some(true) && asked(claim) > has;
    (bound && grows).then(|| ClaimStep::Grow(volume.to_owned()))
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

/// What is to be destroyed together with a volume, given the claim that it names; nothing if it stays, or if it is
/// somebody else's to destroy.
pub(super) fn remains(volume: &PersistentVolume, holder: Option<&PersistentVolumeClaim>) -> Option<Remains> {
    let spec = volume.spec.as_ref()?;
    let uid = spec.claim_ref.as_ref()?.uid.as_ref()?;
    let released = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released");
    let deletes = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    let held = holder.is_some_and(|claim| {
        let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
        let elsewhere = bound.is_some_and(|name| !name.is_empty() && Some(name) != volume.metadata.name.as_ref());
        claim.metadata.uid.as_ref() == Some(uid) && !elsewhere
    });
    if !released || !deletes || held || volume.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if let Some(by) = annotation(&volume.metadata, MADE_BY) {
        return (by == PROVISIONER).then_some(Remains::Made);
    }
    let path = Path::new(&spec.host_path.as_ref()?.path);
    let below = path.strip_prefix("/tmp").ok()?;
    let mut parts = below.components();
    let is_plain = parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
    is_plain.then(|| Remains::OfMachine(path.to_owned()))
}

fn annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

//! Claims: from pending to bound.

use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
};
use k8s_openapi::api::storage::v1::StorageClass;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Key, Kind, Object, Planner, Seen, Snapshot, Sources, Watches};

use super::{BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONER, PROVISIONER_BETA, SELECTED_NODE, class, fit};
use crate::pods::annotation;
use crate::template;

/// Finds claims by the volume that they name, or by the empty name if they name none.
const BY_VOLUME: &str = "volume";

/// Binds claims.
pub(crate) struct Claims;

impl Actor for Claims {
    type Object = PersistentVolumeClaim;

    fn name(&self) -> &'static str {
        "persistentvolume-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<PersistentVolumeClaim>()
            .indexes::<PersistentVolumeClaim>(BY_VOLUME, |claim| vec![volume_of(claim).to_owned()])
            .maps::<PersistentVolume>(claims_of)
            .maps::<StorageClass>(|_, sources| naming("", sources))
            // A claim that was deleted is somebody's until its pods are gone, and may lose its volume before.
            .while_deleted()
            .without_conditions()
    }

    fn plan(&self, plan: Planner<PersistentVolumeClaim>) -> Planner<PersistentVolumeClaim> {
        plan.transformer(transformer("bind", bind))
    }
}

/// The volume that a claim names; empty for none.
fn volume_of(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    spec.and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default()
}

/// The claim that a volume is kept for and those that name it; one that is free may also be for any that waits.
fn claims_of(volume: &Object, sources: &Sources) -> Vec<Key> {
    let mut claims = naming(volume.name(), sources);
    let value = volume.value();
    let reference = &value["spec"]["claimRef"];
    match (reference["namespace"].as_str(), reference["name"].as_str()) {
        (Some(namespace), Some(name)) => claims.push(Key::new(namespace, name)),
        _ => claims.extend(naming("", sources)),
    }
    claims
}

/// The claims that name a volume.
fn naming(volume: &str, sources: &Sources) -> Vec<Key> {
    let claims = sources.indexed(&Kind::of::<PersistentVolumeClaim>(), BY_VOLUME, volume);
    claims.unwrap_or_default().iter().map(Key::of).collect()
}

fn bind(snapshot: &Snapshot<PersistentVolumeClaim>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let claim = snapshot.get::<PersistentVolumeClaim>(snapshot.raw().name())?;
    let Some(claim) = claim.filter(|claim| claim.uid() == snapshot.raw().uid()) else {
        return Ok(Verdict::Continue);
    };
    let was_bound = annotation(&claim.metadata, BIND_COMPLETED).is_some();
    match volume_of(&claim) {
        "" if was_bound => {
            let note = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            lose(snapshot, "ClaimLost", note, draft)?;
        }
        "" => find(snapshot, &claim, draft)?,
        name => {
            let volume = snapshot.get::<PersistentVolume>(name)?;
            if was_bound {
                stay_with(snapshot, &claim, volume, draft)?;
            } else {
                ask_for(snapshot, &claim, volume, draft)?;
            }
        }
    }
    Ok(Verdict::Continue)
}

/// Any volume will do.
fn find(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    claim: &Seen<PersistentVolumeClaim>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let class = match class::of_claim(claim) {
        "" => None,
        name => snapshot.get::<StorageClass>(name)?,
    };
    let delays = class.as_ref().is_some_and(|class| class::delays(class));
    let volumes = snapshot.list::<PersistentVolume>(None)?;
    if let Some(volume) = fit::best(&volumes, claim, delays)? {
        return together(snapshot, claim, volume, draft);
    }
    if class::chosen(claim).is_none()
        && let Some(default) = class::default_of(&snapshot.list::<StorageClass>(None)?)
    {
        let mut desired = (**claim).clone();
        desired.spec.get_or_insert_default().storage_class_name = Some(default.name().to_owned());
        draft.put(snapshot.patch(claim, &desired, format!("{} is the default class", default.name()))?);
        return Ok(());
    }
    tell(snapshot, "Pending", None, draft)?;
    let wanted = claim.spec.clone().unwrap_or_default();
    for kept in volumes.iter().filter(|volume| is_its_own(volume, claim)) {
        if !fit::has_mode(kept, &wanted) {
            let note = format!(
                "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to incompatible volumeMode.",
                kept.name()
            );
            draft.put(snapshot.event(EventType::Warning, "VolumeMismatch", &note)?);
        }
    }
    if delays && annotation(&claim.metadata, SELECTED_NODE).is_none() {
        let note = "waiting for first consumer to be created before binding";
        draft.put(snapshot.event(EventType::Normal, "WaitForFirstConsumer", note)?);
        return Ok(());
    }
    provision(snapshot, claim, class.as_ref(), draft)
}

/// No volume fits: whoever provisions the class is asked for one.
fn provision(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    claim: &Seen<PersistentVolumeClaim>,
    class: Option<&Seen<StorageClass>>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let Some(class) = class else {
        let name = class::of_claim(claim);
        let (reason, note) = if name.is_empty() {
            (
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set".to_owned(),
            )
        } else {
            (
                "ProvisioningFailed",
                format!("storageclass.storage.k8s.io \"{name}\" not found"),
            )
        };
        let kind = if name.is_empty() {
            EventType::Normal
        } else {
            EventType::Warning
        };
        draft.put(snapshot.event(kind, reason, &note)?);
        return Ok(());
    };
    if class.provisioner == "kubernetes.io/no-provisioner" {
        let note = format!("no volume plugin matched name: {}", class.provisioner);
        draft.put(snapshot.event(EventType::Warning, "ProvisioningFailed", &note)?);
        return Ok(());
    }
    if annotation(&claim.metadata, PROVISIONER) != Some(&class.provisioner) {
        let mut desired = (**claim).clone();
        template::label(&mut desired.metadata.annotations, PROVISIONER, &class.provisioner);
        template::label(&mut desired.metadata.annotations, PROVISIONER_BETA, &class.provisioner);
        draft.put(snapshot.patch(
            claim,
            &desired,
            format!("{} is to provision a volume", class.provisioner),
        )?);
    }
    let note = format!(
        "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system administrator. \
         If volume creation is delayed, please verify that the provisioner is running and correctly registered.",
        class.provisioner
    );
    draft.put(snapshot.event(EventType::Normal, "ExternalProvisioning", &note)?);
    Ok(())
}

/// The claim asks for this very volume and has not been bound.
fn ask_for(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    claim: &Seen<PersistentVolumeClaim>,
    volume: Option<Seen<PersistentVolume>>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let Some(volume) = volume else {
        return tell(snapshot, "Pending", None, draft);
    };
    let complaint = if fit::is_free(&volume) {
        let mismatch = fit::mismatch(&volume, claim);
        mismatch.map(|why| {
            let note = format!("Cannot bind to requested volume {:?}: {why}", volume.name());
            ("VolumeMismatch", note)
        })
    } else if fit::is_kept_for(&volume, claim) {
        None
    } else {
        let note = format!("volume {:?} already bound to a different claim.", volume.name());
        Some(("FailedBinding", note))
    };
    let Some((reason, note)) = complaint else {
        return together(snapshot, claim, &volume, draft);
    };
    tell(snapshot, "Pending", None, draft)?;
    draft.put(snapshot.event(EventType::Warning, reason, &note)?);
    Ok(())
}

/// The claim was bound to this volume: it still is, or the volume is gone or somebody else's.
fn stay_with(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    claim: &Seen<PersistentVolumeClaim>,
    volume: Option<Seen<PersistentVolume>>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    match volume {
        None => {
            let note = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            lose(snapshot, "ClaimLost", note, draft)
        }
        Some(volume) if fit::is_free(&volume) || is_its_own(&volume, claim) => {
            together(snapshot, claim, &volume, draft)
        }
        Some(_) => {
            let note = "Two claims are bound to the same volume, this one is bound incorrectly";
            lose(snapshot, "ClaimMisbound", note, draft)
        }
    }
}

/// Whether a volume says that it is this very claim's.
fn is_its_own(volume: &PersistentVolume, claim: &Seen<PersistentVolumeClaim>) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.and_then(|reference| reference.uid.as_deref()) == Some(claim.uid())
}

/// Binds the two, one step a look: the volume, which then is told to be bound, the claim, and the claim's status.
fn together(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    claim: &Seen<PersistentVolumeClaim>,
    volume: &Seen<PersistentVolume>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    if !is_its_own(volume, claim) {
        let mut desired = (**volume).clone();
        let spec = desired.spec.get_or_insert_default();
        let was_kept = spec.claim_ref.is_some();
        spec.claim_ref = Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(claim.raw().namespace().to_owned()),
            name: Some(claim.name().to_owned()),
            uid: Some(claim.uid().to_owned()),
            resource_version: Some(claim.raw().version().to_string()),
            ..ObjectReference::default()
        });
        if !was_kept {
            template::label(&mut desired.metadata.annotations, BOUND_BY_CONTROLLER, "yes");
        }
        draft.put(snapshot.patch(volume, &desired, format!("it is the claim's: {}", claim.name()))?);
        return Ok(());
    }
    if volume.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        // Until then it is not protected, and could go from under the claim. That it is bound wakes the claim.
        return Ok(());
    }
    let has_name = volume_of(claim) == volume.name();
    if has_name && annotation(&claim.metadata, BIND_COMPLETED).is_some() {
        return tell(snapshot, "Bound", Some(volume), draft);
    }
    let mut desired = (**claim).clone();
    if !has_name {
        desired.spec.get_or_insert_default().volume_name = Some(volume.name().to_owned());
        template::label(&mut desired.metadata.annotations, BOUND_BY_CONTROLLER, "yes");
    }
    template::label(&mut desired.metadata.annotations, BIND_COMPLETED, "yes");
    draft.put(snapshot.patch(claim, &desired, format!("volume {} is its own", volume.name()))?);
    Ok(())
}

/// The claim's volume is no longer its own.
fn lose(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    reason: &str,
    note: &str,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    tell(snapshot, "Lost", None, draft)?;
    draft.put(snapshot.event(EventType::Warning, reason, note)?);
    Ok(())
}

fn tell(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    phase: &str,
    volume: Option<&Seen<PersistentVolume>>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let before = snapshot.object().status.clone().unwrap_or_default();
    let was = before.phase.clone();
    let mut status = PersistentVolumeClaimStatus {
        phase: Some(phase.to_owned()),
        ..before
    };
    match volume.and_then(|volume| volume.spec.as_ref()) {
        None => {
            status.access_modes = None;
            status.capacity = None;
            status.current_volume_attributes_class_name = None;
        }
        Some(spec) => {
            status.access_modes.clone_from(&spec.access_modes);
            // A volume that grows or changes its class later tells so through whoever does it, not here.
            if was.as_deref() != Some(phase) {
                status.capacity.clone_from(&spec.capacity);
                let class = &spec.volume_attributes_class_name;
                status.current_volume_attributes_class_name.clone_from(class);
            }
        }
    }
    draft.put(snapshot.status(&status, format!("it is {phase}"))?);
    Ok(())
}

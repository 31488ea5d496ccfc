//! Claims: from pending to bound.

use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
};
use k8s_openapi::api::storage::v1::StorageClass;
use moorline_plan::{Draft, Failure, StepKey, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Key, Kind, Object, Planner, Seen, Snapshot, Sources, Target, Watches};

use super::{BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONER, PROVISIONER_BETA, SELECTED_NODE, fit};
use crate::pods::annotation;
use crate::template;

/// Binds claims.
pub(crate) struct Claims;

impl Actor for Claims {
    type Object = PersistentVolumeClaim;

    fn name(&self) -> &'static str {
        "persistentvolume-binder"
    }

    fn watches(&self) -> Watches {
        Watches::of::<PersistentVolumeClaim>()
            .maps::<PersistentVolume>(claims_of)
            .maps::<StorageClass>(waiting)
            .without_conditions()
    }

    fn plan(&self, plan: Planner<PersistentVolumeClaim>) -> Planner<PersistentVolumeClaim> {
        plan.transformer(transformer("bind", bind))
    }
}

/// The claim that a volume is kept for; one that is free may be for any that waits.
fn claims_of(volume: &Object, sources: &Sources) -> Vec<Key> {
    let value = volume.value();
    let reference = &value["spec"]["claimRef"];
    match (reference["namespace"].as_str(), reference["name"].as_str()) {
        (Some(namespace), Some(name)) => vec![Key::new(namespace, name)],
        _ => waiting(volume, sources),
    }
}

/// The claims that have no volume.
fn waiting(_: &Object, sources: &Sources) -> Vec<Key> {
    let claims = sources.list(&Kind::of::<PersistentVolumeClaim>(), None).into_iter();
    claims
        .filter(|claim| {
            claim.value()["spec"]["volumeName"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
        })
        .map(|claim| Key::of(&claim))
        .collect()
}

fn bind(snapshot: &Snapshot<PersistentVolumeClaim>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    if snapshot.raw().is_deleting() {
        return Ok(Verdict::Continue);
    }
    let object = snapshot.object();
    let claim = snapshot.get::<PersistentVolumeClaim>(snapshot.raw().name())?;
    let Some(claim) = claim.filter(|claim| claim.uid() == snapshot.raw().uid()) else {
        return Ok(Verdict::Continue);
    };
    let named = object
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref())
        .filter(|name| !name.is_empty());
    if let Some(name) = named {
        let volume = snapshot.get::<PersistentVolume>(name)?;
        return to_named(snapshot, &claim, name, volume, draft);
    }
    let class = fit::class_of_claim(object);
    let class = if class.is_empty() {
        None
    } else {
        snapshot.get::<StorageClass>(class)?
    };
    let waits = class
        .as_ref()
        .is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
        && annotation(&object.metadata, SELECTED_NODE).is_none();
    let volumes = snapshot.list::<PersistentVolume>(None)?;
    let is_kept = volumes.iter().any(|volume| fit::is_kept_for(volume, &claim));
    if waits && !is_kept {
        tell(snapshot, "Pending", None, draft)?;
        let note = "waiting for first consumer to be created before binding";
        draft.put(snapshot.event(EventType::Normal, "WaitForFirstConsumer", note)?);
        return Ok(Verdict::Continue);
    }
    if let Some(volume) = fit::best(&volumes, &claim)? {
        return together(snapshot, &claim, volume, draft);
    }
    tell(snapshot, "Pending", None, draft)?;
    provision(snapshot, &claim, class.as_ref(), draft)?;
    Ok(Verdict::Continue)
}

/// No volume fits: whoever provisions the class is asked for one.
fn provision(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    claim: &Seen<PersistentVolumeClaim>,
    class: Option<&Seen<StorageClass>>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let Some(class) = class else {
        let name = fit::class_of_claim(claim);
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
        let note = "no persistent volumes available for this claim and its storage class has no provisioner";
        draft.put(snapshot.event(EventType::Normal, "FailedBinding", note)?);
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

/// The claim names its volume: the two are bound, or the volume is gone or somebody else's.
fn to_named(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    claim: &Seen<PersistentVolumeClaim>,
    name: &str,
    volume: Option<Seen<PersistentVolume>>,
    draft: &mut Draft<Object>,
) -> Result<Verdict, Failure> {
    let was_bound = annotation(&claim.metadata, BIND_COMPLETED).is_some();
    let is_free = |volume: &Seen<PersistentVolume>| volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none());
    match volume {
        Some(volume) if fit::is_kept_for(&volume, claim) || is_free(&volume) => {
            together(snapshot, claim, &volume, draft)
        }
        other => {
            if was_bound {
                tell(snapshot, "Lost", None, draft)?;
                let (reason, note) = match other {
                    None => (
                        "ClaimLost",
                        "Bound claim has lost its PersistentVolume. Data on the volume is lost!".to_owned(),
                    ),
                    Some(_) => (
                        "ClaimMisbound",
                        "Two claims are bound to the same volume, this one is bound incorrectly".to_owned(),
                    ),
                };
                draft.put(snapshot.event(EventType::Warning, reason, &note)?);
            } else {
                tell(snapshot, "Pending", None, draft)?;
                if other.is_some() {
                    let note = format!("volume \"{name}\" already bound to a different claim.");
                    draft.put(snapshot.event(EventType::Warning, "FailedBinding", &note)?);
                }
            }
            Ok(Verdict::Continue)
        }
    }
}

/// Binds the two: the volume first, then the claim, then the claim's status.
fn together(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    claim: &Seen<PersistentVolumeClaim>,
    volume: &Seen<PersistentVolume>,
    draft: &mut Draft<Object>,
) -> Result<Verdict, Failure> {
    let mut order: Option<StepKey<Target>> = None;
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if reference.and_then(|reference| reference.uid.as_deref()) != Some(claim.uid()) {
        let was_kept = reference.is_some();
        let mut desired = (**volume).clone();
        desired.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
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
        order = Some(draft.put(snapshot.patch(volume, &desired, format!("it is the claim's: {}", claim.name()))?));
    }
    let has_name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) == Some(volume.name());
    if !has_name || annotation(&claim.metadata, BIND_COMPLETED).is_none() {
        let mut desired = (**claim).clone();
        if !has_name {
            desired.spec.get_or_insert_default().volume_name = Some(volume.name().to_owned());
            template::label(&mut desired.metadata.annotations, BOUND_BY_CONTROLLER, "yes");
        }
        template::label(&mut desired.metadata.annotations, BIND_COMPLETED, "yes");
        let key = draft.put(snapshot.patch(claim, &desired, format!("volume {} is its own", volume.name()))?);
        if let Some(earlier) = order {
            draft.after(&key, &earlier)?;
        }
        // The status follows when the claim has been seen with its volume.
        return Ok(Verdict::Continue);
    }
    if order.is_none() {
        tell(snapshot, "Bound", Some(volume), draft)?;
    }
    Ok(Verdict::Continue)
}

fn tell(
    snapshot: &Snapshot<PersistentVolumeClaim>,
    phase: &str,
    volume: Option<&Seen<PersistentVolume>>,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let before = snapshot.object().status.clone().unwrap_or_default();
    let mut status = PersistentVolumeClaimStatus {
        phase: Some(phase.to_owned()),
        ..before
    };
    if let Some(spec) = volume.and_then(|volume| volume.spec.as_ref()) {
        status.access_modes.clone_from(&spec.access_modes);
        // A volume that grew tells its new size through the resizing, not here.
        if status.capacity.is_none() {
            status.capacity.clone_from(&spec.capacity);
        }
    }
    draft.put(snapshot.status(&status, format!("it is {phase}"))?);
    Ok(())
}

//! Volumes and claims stay while they are used, and claims that name no class get the default one.

use moorline_machinery::{meta, quantity::Quantity, status::ApiError, time};
use serde_json::Value;

use super::{Attributes, Operation, Reach, text};

/// Keeps a claim that pods use. Taken away by `controllers::storage`.
pub(crate) const CLAIM_IN_USE: &str = "kubernetes.io/pvc-protection";
/// Keeps a volume that is bound.
pub(crate) const VOLUME_IN_USE: &str = "kubernetes.io/pv-protection";

const CLASS_GROUP: &str = "storage.k8s.io";
const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
/// How claims named their class before there was a field.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Puts the finalizer on new volumes and claims by which they stay while they are used.
pub(super) fn protect(attributes: &Attributes<'_>, object: &mut Value) {
    if !attributes.creates() {
        return;
    }
    let finalizer = if attributes.is("", "persistentvolumeclaims", "") {
        CLAIM_IN_USE
    } else if attributes.is("", "persistentvolumes", "") {
        VOLUME_IN_USE
    } else {
        return;
    };
    if !meta::of(object).has_finalizer(finalizer) {
        super::push(&mut object["metadata"], "finalizers", finalizer.into());
    }
}

/// Writes down when a volume came into its phase.
pub(super) fn note_transition(attributes: &Attributes<'_>, volume: &mut Value) {
    let Some(old) = attributes.old else { return };
    if !attributes.is("", "persistentvolumes", "status") || attributes.operation != Operation::Update {
        return;
    }
    let (now, before) = (&volume["status"], &old["status"]);
    let told = !now["lastPhaseTransitionTime"].is_null()
        && now["lastPhaseTransitionTime"] != before["lastPhaseTransitionTime"];
    if now["phase"] == before["phase"] && now["lastPhaseTransitionTime"].is_null() {
        let since = before["lastPhaseTransitionTime"].clone();
        if !since.is_null() {
            volume["status"]["lastPhaseTransitionTime"] = since;
        }
    } else if now["phase"] != before["phase"] && !told {
        volume["status"]["lastPhaseTransitionTime"] = time::format(attributes.call.core.world.now()).into();
    }
}

/// Gives a new claim that names no class the default one, of several the newest.
pub(super) fn fill_in_class(attributes: &Attributes<'_>, claim: &mut Value) {
    let named = claim["spec"]["storageClassName"].is_string() || meta::of(claim).annotation(CLASS_ANNOTATION).is_some();
    if !attributes.is("", "persistentvolumeclaims", "") || !attributes.creates() || named {
        return;
    }
    let classes = attributes.stored(CLASS_GROUP, "storageclasses", Reach::Everywhere);
    let is_default = |class: &&Value| {
        IS_DEFAULT
            .iter()
            .any(|name| meta::of(class).annotation(name) == Some("true"))
    };
    let created = |class: &Value| meta::of(class).creation_timestamp().unwrap_or_default().to_owned();
    let newest = classes.iter().filter(is_default).min_by(|a, b| {
        let by_age = created(b).cmp(&created(a));
        by_age.then_with(|| meta::of(a).name().cmp(meta::of(b).name()))
    });
    if let Some(class) = newest {
        claim["spec"]["storageClassName"] = meta::of(class).name().into();
    }
}

/// A claim grows only where its class says that its volumes can.
pub(super) fn check_resize(attributes: &Attributes<'_>, claim: &Value) -> Result<(), ApiError> {
    if !attributes.is("", "persistentvolumeclaims", "") || attributes.operation != Operation::Update {
        return Ok(());
    }
    let Some(old) = attributes.old else { return Ok(()) };
    let size = |claim: &Value| -> Option<Quantity> {
        let size = claim.pointer("/spec/resources/requests/storage")?;
        size.as_str()?.parse().ok()
    };
    let (Some(now), Some(before)) = (size(claim), size(old)) else {
        return Ok(());
    };
    if now <= before {
        return Ok(());
    }
    if text(&old["status"], "phase") != "Bound" {
        return Err(attributes.refuse("Only bound persistent volume claims can be expanded"));
    }
    let class = text(&claim["spec"], "storageClassName");
    let class = attributes.found(CLASS_GROUP, "storageclasses", "", class);
    if class.is_some_and(|class| class["allowVolumeExpansion"] == true) {
        return Ok(());
    }
    Err(attributes.refuse(
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support \
         resize",
    ))
}

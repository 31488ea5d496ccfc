//! What becomes of a volume whose claim has gone, by its policy.

use k8s_openapi::api::core::v1::PersistentVolume;

use super::PROVISIONED_BY;
use crate::pods::annotation;

const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// Provisioners that Kubernetes itself once had. None of them is left here.
const OWN: &str = "kubernetes.io/";

/// What a policy asks for and nobody can do.
pub(super) struct Impossible {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Why the policy of a volume that was released cannot be carried out. Nothing if it can, if it asks for nothing, or if
/// it is somebody else's to carry out: whoever provisioned the volume, a driver, or the machine.
pub(super) fn hindrance(name: &str, volume: &PersistentVolume) -> Option<Impossible> {
    let spec = volume.spec.as_ref()?;
    if annotation(&volume.metadata, MIGRATED_TO).is_some_and(|to| !to.is_empty()) {
        return None;
    }
    match spec.persistent_volume_reclaim_policy.as_deref() {
        Some("Recycle") if spec.host_path.is_none() && spec.nfs.is_none() => Some(Impossible {
            reason: "VolumeFailedRecycle",
            message: "No recycler plugin found for the volume!".to_owned(),
        }),
        Some("Delete") => why_not_deleted(name, volume).map(|message| Impossible {
            reason: "VolumeFailedDelete",
            message,
        }),
        _ => None,
    }
}

fn why_not_deleted(name: &str, volume: &PersistentVolume) -> Option<String> {
    let spec = volume.spec.as_ref()?;
    if let Some(by) = annotation(&volume.metadata, PROVISIONED_BY).filter(|by| !by.is_empty()) {
        return by
            .starts_with(OWN)
            .then(|| format!("no volume plugin matched name: {by}"));
    }
    if spec.csi.is_some() {
        return None;
    }
    match &spec.host_path {
        Some(directory) if directory.path.starts_with("/tmp/") => None,
        Some(directory) => Some(format!(
            "host_path deleter only supports /tmp/.+ but received provided {}",
            directory.path
        )),
        None => Some(format!(
            "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
        )),
    }
}

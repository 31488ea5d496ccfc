//! Storage classes: which one a claim or a volume is of, and which one is the default.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use moorline_runtime::Seen;

use crate::pods::annotation;

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// The class of a claim; empty for none.
pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> &str {
    chosen(claim).unwrap_or_default()
}

/// The class that was chosen for a claim: the empty one is a choice too.
pub(super) fn chosen(claim: &PersistentVolumeClaim) -> Option<&str> {
    let old = annotation(&claim.metadata, CLASS);
    old.or_else(|| claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()))
}

/// The class of a volume; empty for none.
pub(super) fn of_volume(volume: &PersistentVolume) -> &str {
    let old = annotation(&volume.metadata, CLASS);
    old.or_else(|| volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()))
        .unwrap_or_default()
}

/// The newest of the classes that are marked as the default; of two that are equally new, the first by name.
pub(super) fn default_of(classes: &[Seen<StorageClass>]) -> Option<&Seen<StorageClass>> {
    let is_default = |class: &&Seen<StorageClass>| {
        DEFAULT
            .iter()
            .any(|mark| annotation(&class.metadata, mark) == Some("true"))
    };
    classes.iter().filter(is_default).min_by_key(|class| {
        let made = class.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(made), class.name().to_owned())
    })
}

/// Whether volumes of a class are only bound when a pod needs them, and then where the pod goes.
pub(super) fn delays(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

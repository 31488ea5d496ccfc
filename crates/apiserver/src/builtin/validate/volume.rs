//! Persistent volumes and the claims to them.

use moorline_machinery::{
    field::{ErrorKind, FieldError},
    names,
};
use serde_json::Value;

use super::{
    at::{At, Errors, IMMUTABLE, dig, internal_value, is_empty, put, quantity, same},
    pod::{self, Place},
    text,
};

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// How classes were chosen before there was a field.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// The fields of a persistent volume that say where its data is.
const SOURCES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "hostPath",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// A persistent volume.
pub(super) fn persistent_volume(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    access_modes(&spec.at("accessModes"), "", errors);
    capacity(&spec.at("capacity"), errors);
    spec.at("persistentVolumeReclaimPolicy")
        .one_of_if_set(errors, &["Delete", "Recycle", "Retain"]);
    let affinity = spec.at("nodeAffinity");
    if affinity.is_set() {
        let required = affinity.at("required");
        if required.is_set() {
            pod::node_selector(&required, errors);
        } else {
            required.missing(errors, "must specify required node constraints");
        }
    }
    let mut count = 0;
    pod::volume_sources(&spec, Place::PersistentVolume, &mut count, errors);
    let local = spec.at("local");
    if local.is_set() {
        count += 1;
        if local.at("path").require(errors) {
            local.at("path").follow(errors, text::backstepless_path);
        }
        if !affinity.is_set() {
            affinity.missing(errors, "Local volume requires node affinity");
        }
    }
    if spec.at("storageos").is_set() {
        count += 1;
    }
    if count == 0 {
        spec.missing(errors, "must specify a volume type");
    }
    let recycled = spec.at("persistentVolumeReclaimPolicy").text() == "Recycle";
    if recycled && spec.at("hostPath").at("path").text() == "/" {
        spec.at("persistentVolumeReclaimPolicy")
            .forbidden(errors, "may not be 'recycle' for a hostPath mount of '/'");
    }
    spec.at("storageClassName").follow_if_set(errors, names::dns_subdomain);
    spec.at("volumeMode").one_of_if_set(errors, &VOLUME_MODES);
    attributes_class(&spec, errors);
}

fn attributes_class(spec: &At<'_>, errors: &mut Errors) {
    let class = spec.at("volumeAttributesClassName");
    if !class.is_set() {
        return;
    }
    if class.text().is_empty() {
        class.missing(errors, "an empty string is disallowed");
    } else {
        class.follow(errors, names::dns_subdomain);
    }
    if !spec.at("csi").is_set() {
        spec.at("csi")
            .missing(errors, "has to be specified when using volumeAttributesClassName");
    }
}

fn access_modes(modes: &At<'_>, why: &str, errors: &mut Errors) {
    if modes.items().is_empty() {
        modes.missing(errors, why);
    }
    for mode in modes.items() {
        modes.with(mode).one_of(errors, &MODES);
    }
    if modes.len() > 1 && modes.items().iter().any(|mode| mode == "ReadWriteOncePod") {
        modes.forbidden(errors, "may not use ReadWriteOncePod with other access modes");
    }
}

fn capacity(capacity: &At<'_>, errors: &mut Errors) {
    if capacity.is_empty() {
        capacity.missing(errors, "");
    }
    if capacity.len() != 1 || capacity.value.get("storage").is_none() {
        errors.push(FieldError::not_supported(
            &capacity.path,
            capacity.value.clone(),
            ["storage"],
        ));
    }
    for (name, value) in capacity.entries() {
        let path = capacity.path.key(name);
        let Some(amount) = quantity(value) else { continue };
        if amount.signum() < 0 {
            errors.push(FieldError::invalid(
                &path,
                amount.value(),
                "must be a valid resource quantity",
            ));
        }
        if amount.signum() <= 0 {
            errors.push(FieldError::invalid(
                &path,
                amount.to_string(),
                "must be greater than zero",
            ));
        }
    }
}

/// A change of a persistent volume: its data stays where it is.
pub(super) fn persistent_volume_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let before = dig(old, &["spec"]);
    let moved = SOURCES
        .iter()
        .any(|name| !same(spec.at(name).value, dig(before, &[name])));
    if moved {
        let path = spec.path.child("persistentvolumesource");
        errors.push(FieldError::forbidden(
            &path,
            "spec.persistentvolumesource is immutable after creation",
        ));
    }
    volume_mode_change(new, before, errors);
    let affinity = spec.at("nodeAffinity");
    if !is_empty(dig(before, &["nodeAffinity"])) {
        affinity.unchanged(errors, dig(before, &["nodeAffinity"]));
    }
}

/// Kubernetes tells the mode's place without the spec around it.
fn volume_mode_change(new: &At<'_>, before: &Value, errors: &mut Errors) {
    let now = dig(new.value, &["spec", "volumeMode"]);
    if !same(now, dig(before, &["volumeMode"])) {
        new.at("volumeMode").invalid_as(errors, now.clone(), IMMUTABLE);
    }
}

/// The spec of a claim, on its own or in a template.
pub(super) fn claim_spec(spec: &At<'_>, errors: &mut Errors) {
    access_modes(&spec.at("accessModes"), "at least 1 access mode is required", errors);
    spec.at("selector").label_selector(errors);
    let resources = spec.at("resources");
    let path = resources.path.key("storage");
    match dig(resources.value, &["requests", "storage"]) {
        Value::Null => errors.push(FieldError::required(&path, "")),
        storage => {
            if let Some(amount) = quantity(storage).filter(|amount| amount.signum() <= 0) {
                errors.push(FieldError::invalid(
                    &path,
                    amount.to_string(),
                    "must be greater than zero",
                ));
            }
        }
    }
    spec.at("storageClassName").follow_if_set(errors, names::dns_subdomain);
    spec.at("volumeMode").one_of_if_set(errors, &VOLUME_MODES);
    data_source(spec, errors);
    spec.at("volumeAttributesClassName")
        .follow_if_set(errors, names::dns_subdomain);
}

fn data_source(spec: &At<'_>, errors: &mut Errors) {
    for name in ["dataSource", "dataSourceRef"] {
        let source = spec.at(name);
        if source.is_set() {
            source.at("name").require(errors);
            source.at("kind").require(errors);
            let is_core = source.at("apiGroup").text().is_empty();
            if is_core && !matches!(source.at("kind").text(), "" | "PersistentVolumeClaim") {
                source.invalid_as(
                    errors,
                    source.at("kind").text(),
                    "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
                );
            }
        }
    }
    let (source, reference) = (spec.at("dataSource"), spec.at("dataSourceRef"));
    if source.is_set() && reference.is_set() && dig(reference.value, &["namespace"]).is_null() {
        let both = ["apiGroup", "kind", "name"];
        if both
            .iter()
            .any(|name| !same(source.at(name).value, reference.at(name).value))
        {
            errors.push(internal_value(
                ErrorKind::Invalid,
                &spec.path,
                "{}",
                "must match dataSourceRef",
            ));
        }
    }
}

/// A change of a claim: once made, it may only ask for more.
pub(super) fn claim_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let before = dig(old, &["spec"]);
    let mut munged = spec.value.clone();
    let bound = dig(old, &["status", "phase"]) == "Bound";
    if is_empty(dig(before, &["volumeName"])) {
        put(&mut munged, &["volumeName"], before["volumeName"].clone());
    }
    if gets_class(&spec, old) {
        put(&mut munged, &["storageClassName"], Value::Null);
    }
    if bound {
        for path in [
            &["volumeAttributesClassName"][..],
            &["resources", "requests", "storage"],
        ] {
            put(&mut munged, path, dig(before, path).clone());
        }
    }
    if !same(&munged, before) {
        spec.forbidden(
            errors,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
    if bound {
        shrinking(&spec, old, errors);
    }
    volume_mode_change(new, before, errors);
}

/// Whether a claim for which no class was chosen gets one: the default may come after the claim.
fn gets_class(spec: &At<'_>, old: &Value) -> bool {
    let class = dig(spec.value, &["storageClassName"]);
    let annotated = dig(old, &["metadata", "annotations", CLASS_ANNOTATION]);
    dig(old, &["spec", "storageClassName"]).is_null() && !class.is_null() && (annotated.is_null() || annotated == class)
}

fn shrinking(spec: &At<'_>, old: &Value, errors: &mut Errors) {
    let requests = spec.at("resources").at("requests").value.clone();
    let now = quantity(dig(&requests, &["storage"]));
    let before = quantity(dig(old, &["spec", "resources", "requests", "storage"]));
    if let (Some(now), Some(before)) = (now, before)
        && now < before
    {
        let capacity = quantity(dig(old, &["status", "capacity", "storage"]));
        if capacity.is_none_or(|capacity| now <= capacity) {
            let path = spec.path.child("resources");
            errors.push(FieldError::forbidden(
                &path.child("requests").key("storage"),
                "field can not be less than status.capacity",
            ));
        }
    }
}

/// The name of a CSI driver.
pub(super) fn csi_driver_name(name: &At<'_>, errors: &mut Errors) {
    if !name.require(errors) {
        return;
    }
    name.max_length(errors, 63);
    for complaint in names::dns_subdomain(&name.text().to_lowercase()) {
        name.invalid(errors, complaint);
    }
}

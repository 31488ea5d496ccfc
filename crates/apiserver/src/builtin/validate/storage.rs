//! The kinds of the storage group.

use std::collections::HashSet;

use moorline_machinery::{
    field::{ErrorKind, FieldError},
    names,
};
use serde_json::Value;

use super::{
    at::{At, Errors, NOT_NEGATIVE, dig, internal_value, same, shown},
    volume,
};

const PARAMETERS_MAX: usize = 512;
const PARAMETERS_SIZE_MAX: usize = 256 * 1024;

/// A storage class.
pub(super) fn storage_class(object: &At<'_>, errors: &mut Errors) {
    let provisioner = object.at("provisioner");
    if provisioner.text().is_empty() {
        provisioner.missing(errors, "");
    } else {
        let lower = provisioner.text().to_lowercase();
        for complaint in names::qualified_name(&lower) {
            provisioner.invalid_as(errors, lower.as_str(), complaint);
        }
    }
    parameters(&object.at("parameters"), errors);
    object.at("reclaimPolicy").one_of_if_set(errors, &["Delete", "Retain"]);
    let mode = object.at("volumeBindingMode");
    if mode.is_set() {
        mode.one_of(errors, &["Immediate", "WaitForFirstConsumer"]);
    } else {
        mode.missing(errors, "");
    }
    topologies(&object.at("allowedTopologies"), errors);
}

fn parameters(parameters: &At<'_>, errors: &mut Errors) {
    if parameters.len() > PARAMETERS_MAX {
        errors.push(FieldError::too_many(&parameters.path, parameters.len(), PARAMETERS_MAX));
        return;
    }
    let mut size = 0;
    for (key, value) in parameters.entries() {
        if key.is_empty() {
            parameters.invalid_as(errors, key, "field can not be empty.");
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > PARAMETERS_SIZE_MAX {
        errors.push(FieldError::too_long(&parameters.path, PARAMETERS_SIZE_MAX));
    }
}

fn topologies(topologies: &At<'_>, errors: &mut Errors) {
    topologies.each(|topology| {
        let mut keys = HashSet::new();
        topology.at("matchLabelExpressions").each(|requirement| {
            let (key, values) = (requirement.at("key"), requirement.at("values"));
            if values.items().is_empty() {
                values.missing(errors, "");
            }
            let mut seen = HashSet::new();
            values.each(|value| {
                if !seen.insert(value.text().to_owned()) {
                    value.duplicate(errors, value.text());
                }
            });
            key.follow(errors, names::qualified_name);
            if !keys.insert(key.text().to_owned()) {
                key.duplicate(errors, key.text());
            }
        });
    });
}

/// A change of a storage class: volumes were made by it.
pub(super) fn storage_class_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        new.at(name).unchanged(errors, dig(old, &[name]));
    }
}

/// A CSI driver.
pub(super) fn csi_driver(object: &At<'_>, errors: &mut Errors) {
    let metadata = object.at("metadata");
    volume::csi_driver_name(&metadata.at("name"), errors);
    let spec = object.at("spec");
    for name in ["attachRequired", "podInfoOnMount", "storageCapacity"] {
        if !spec.at(name).is_set() {
            spec.at(name).missing(errors, "");
        }
    }
    spec.at("fsGroupPolicy")
        .one_of_if_set(errors, &["File", "None", "ReadWriteOnceWithFSType"]);
    let mut audiences = HashSet::new();
    spec.at("tokenRequests").each(|request| {
        let (audience, seconds) = (request.at("audience"), request.at("expirationSeconds"));
        if !audiences.insert(audience.text().to_owned()) {
            audience.duplicate(errors, audience.text());
        }
        if seconds.optional_number().is_some_and(|seconds| seconds < 600) {
            seconds.invalid(errors, "may not specify a duration less than 10 minutes");
        }
        if seconds.optional_number().is_some_and(|seconds| seconds > 1 << 32) {
            seconds.invalid(errors, "may not specify a duration larger than 2^32 seconds");
        }
    });
    let modes = spec.at("volumeLifecycleModes");
    for mode in modes.items() {
        modes.with(mode).one_of(errors, &["Persistent", "Ephemeral"]);
    }
    let period = spec.at("nodeAllocatableUpdatePeriodSeconds");
    if period.optional_number().is_some_and(|seconds| seconds < 10) {
        period.invalid(errors, "must be greater than or equal to 10 seconds");
    }
}

/// A change of a CSI driver.
pub(super) fn csi_driver_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    // Kubernetes misspells the first one.
    let attach = spec.at("attachedRequired");
    attach
        .with(spec.at("attachRequired").value)
        .unchanged(errors, dig(old, &["spec", "attachRequired"]));
    spec.at("volumeLifecycleModes")
        .unchanged(errors, dig(old, &["spec", "volumeLifecycleModes"]));
}

/// What CSI drivers there are on a node.
pub(super) fn csi_node(object: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    let spec = object.at("spec");
    spec.at("drivers").each(|driver| {
        let name = driver.at("name");
        volume::csi_driver_name(&name, errors);
        let id = driver.at("nodeID");
        if id.text().is_empty() {
            id.missing(errors, "");
        }
        if id.text().len() > 256 {
            id.invalid(errors, "must be 256 characters or less");
        }
        driver.at("allocatable").at("count").not_negative(errors);
        let mut keys = HashSet::new();
        for key in driver.at("topologyKeys").items().iter().filter_map(Value::as_str) {
            if !keys.insert(key) {
                driver.duplicate(errors, key);
            }
            for complaint in names::qualified_name(key) {
                driver.invalid_as(errors, key, complaint);
            }
        }
        if !seen.insert(name.text().to_owned()) {
            name.duplicate(errors, name.text());
        }
    });
}

/// A change of what drivers there are: a driver comes and goes, and does not change.
pub(super) fn csi_node_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let drivers = spec.at("drivers");
    for before in dig(old, &["spec", "drivers"]).as_array().into_iter().flatten() {
        let now = drivers.items().iter().find(|driver| driver["name"] == before["name"]);
        if let Some(now) = now.filter(|now| !same(now, before)) {
            let part = |name: &str| shown(dig(now, &[name]));
            let text = format!(
                "{{\"Name\":{},\"NodeID\":{},\"TopologyKeys\":{},\"Allocatable\":{}}}",
                part("name"),
                part("nodeID"),
                part("topologyKeys"),
                part("allocatable")
            );
            errors.push(internal_value(
                ErrorKind::Invalid,
                &drivers.path,
                &text,
                super::at::IMMUTABLE,
            ));
        }
    }
}

/// A volume on its way to a node.
pub(super) fn volume_attachment(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    volume::csi_driver_name(&spec.at("attacher"), errors);
    let source = spec.at("source");
    let (name, inline) = (source.at("persistentVolumeName"), source.at("inlineVolumeSpec"));
    match (name.is_set(), inline.is_set()) {
        (false, false) => {
            source.missing(
                errors,
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            );
        }
        (true, true) => {
            source.forbidden(
                errors,
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            );
        }
        (true, false) => {
            if name.text().is_empty() {
                name.missing(errors, "must specify non empty persistentVolumeName");
            }
            name.follow(errors, names::dns_subdomain);
        }
        (false, true) => {}
    }
    spec.at("nodeName").follow(errors, names::dns_subdomain);
}

/// A change of one.
pub(super) fn volume_attachment_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    if !same(spec.value, dig(old, &["spec"])) {
        let source = spec.at("source");
        let text = format!(
            "{{\"Attacher\":{},\"Source\":{{\"PersistentVolumeName\":{},\"InlineVolumeSpec\":{}}},\"NodeName\":{}}}",
            shown(spec.at("attacher").value),
            shown(source.at("persistentVolumeName").value),
            shown(source.at("inlineVolumeSpec").value),
            shown(spec.at("nodeName").value)
        );
        errors.push(internal_value(
            ErrorKind::Invalid,
            &spec.path,
            &text,
            super::at::IMMUTABLE,
        ));
    }
}

/// How much storage there is somewhere.
pub(super) fn storage_capacity(object: &At<'_>, errors: &mut Errors) {
    object.at("storageClassName").follow(errors, names::dns_subdomain);
    let capacity = object.at("capacity");
    if capacity.quantity().is_some_and(|amount| amount.signum() < 0) {
        capacity.invalid(errors, NOT_NEGATIVE);
    }
    object.at("nodeTopology").label_selector(errors);
}

/// A change of one: it is about one class at one place.
pub(super) fn storage_capacity_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let topology = new.at("nodeTopology");
    // An empty selector means all nodes, an absent one none.
    if topology.is_set() == dig(old, &["nodeTopology"]).is_null() {
        topology.invalid(errors, super::at::IMMUTABLE);
    } else {
        topology.unchanged(errors, dig(old, &["nodeTopology"]));
    }
    new.at("storageClassName")
        .unchanged(errors, dig(old, &["storageClassName"]));
}

/// A class of attributes of volumes.
pub(super) fn attributes_class(object: &At<'_>, errors: &mut Errors) {
    volume::csi_driver_name(&object.at("driverName"), errors);
    let all = object.at("parameters");
    if all.is_empty() {
        all.missing(errors, "must contain at least one key/value pair");
    }
    parameters(&all, errors);
}

/// A change of one.
pub(super) fn attributes_class_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    for name in ["driverName", "parameters"] {
        if !same(new.at(name).value, dig(old, &[name])) {
            new.at(name)
                .forbidden(errors, format!("updates to {name} are forbidden."));
        }
    }
}

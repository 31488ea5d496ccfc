//! Volumes of pods, and the sources that persistent volumes share with them.

use std::collections::{HashMap, HashSet};

use moorline_machinery::{field::FieldError, names};
use serde_json::Value;

use super::{
    super::{
        at::{At, Errors},
        text, volume,
    },
    variables::{self, VOLUME_FIELDS, Whose},
};

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Who holds a volume source: some of their fields differ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Place {
    /// A pod.
    Pod,
    /// A persistent volume.
    PersistentVolume,
}

/// The volumes of a pod, by name.
pub(super) fn volumes<'v>(volumes: &At<'v>, errors: &mut Errors) -> HashMap<&'v str, &'v Value> {
    let mut by_name = HashMap::new();
    for (index, value) in volumes.items().iter().enumerate() {
        let volume = At {
            value,
            path: volumes.path.index(index),
        };
        source_of_pod(&volume, errors);
        let name = volume.at("name");
        name.require(errors);
        if !name.text().is_empty() {
            name.follow(errors, names::dns_label);
        }
        let name = value.get("name").and_then(Value::as_str).unwrap_or_default();
        if !name.is_empty() && by_name.insert(name, value).is_some() {
            volume.at("name").duplicate(errors, name);
        }
    }
    by_name
}

/// Looks at a source.
type Check = fn(&At<'_>, &mut Errors);

fn source_of_pod(volume: &At<'_>, errors: &mut Errors) {
    let mut count = 0;
    let own: [(&str, Check); 8] = [
        ("emptyDir", empty_dir),
        ("secret", secret),
        ("configMap", config_map),
        ("downwardAPI", downward),
        ("projected", projected),
        ("persistentVolumeClaim", claim),
        ("ephemeral", ephemeral),
        ("image", image),
    ];
    for (name, check) in own {
        let source = volume.at(name);
        if source.is_set() {
            count += 1;
            if count > 1 {
                source.forbidden(errors, "may not specify more than 1 volume type");
            } else {
                check(&source, errors);
            }
        }
    }
    let git = volume.at("gitRepo");
    if git.is_set() {
        count += 1;
        git.at("repository").require(errors);
        git.at("directory").follow_if_set(errors, text::descending_path);
    }
    volume_sources(volume, Place::Pod, &mut count, errors);
    if count == 0 {
        volume.missing(errors, "must specify a volume type");
    }
}

/// The sources that pods and persistent volumes share.
pub(in super::super) fn volume_sources(holder: &At<'_>, place: Place, count: &mut usize, errors: &mut Errors) {
    let mut check = |name: &'static str, errors: &mut Errors, look: &dyn Fn(&At<'_>, &mut Errors)| {
        let source = holder.at(name);
        if source.is_set() {
            *count += 1;
            if *count > 1 {
                source.forbidden(errors, "may not specify more than 1 volume type");
            } else {
                look(&source, errors);
            }
        }
    };
    check("hostPath", errors, &|source, errors| {
        if source.at("path").require(errors) {
            source.at("path").follow(errors, text::backstepless_path);
        }
        source.at("type").one_of_if_set(errors, &HOST_PATH_TYPES);
    });
    check("nfs", errors, &|source, errors| {
        source.at("server").require(errors);
        if source.at("path").require(errors) && !source.at("path").text().starts_with('/') {
            source.at("path").invalid(errors, "must be an absolute path");
        }
    });
    check("iscsi", errors, &|source, errors| {
        source.at("targetPortal").require(errors);
        source.at("iqn").require(errors);
        if !(0..=255).contains(&source.at("lun").number()) {
            source.at("lun").invalid(errors, "must be between 0 and 255, inclusive");
        }
    });
    check("fc", errors, &|source, errors| {
        let (names, ids) = (source.at("targetWWNs"), source.at("wwids"));
        match (names.len(), ids.len()) {
            (0, 0) => names.missing(errors, "must specify either targetWWNs or wwids, but not both"),
            (0, _) => {}
            (_, 0) => {
                if !source.at("lun").is_set() {
                    source
                        .at("lun")
                        .missing(errors, "lun is required if targetWWNs is specified");
                }
            }
            _ => names.invalid(errors, "targetWWNs and wwids can not be specified simultaneously"),
        }
    });
    check("rbd", errors, &|source, errors| {
        source.at("monitors").require(errors);
        source.at("image").require(errors);
    });
    check("cephfs", errors, &|source, errors| {
        source.at("monitors").require(errors);
    });
    check("glusterfs", errors, &|source, errors| {
        source.at("endpoints").require(errors);
        source.at("path").require(errors);
    });
    check("csi", errors, &|source, errors| {
        volume::csi_driver_name(&source.at("driver"), errors);
        if place == Place::PersistentVolume {
            source.at("volumeHandle").require(errors);
        } else if source.at("nodePublishSecretRef").is_set() {
            source.at("nodePublishSecretRef").at("name").require(errors);
        }
    });
    for (name, required) in [
        ("gcePersistentDisk", &["pdName"][..]),
        ("awsElasticBlockStore", &["volumeID"]),
        ("cinder", &["volumeID"]),
        ("azureFile", &["secretName", "shareName"]),
        ("azureDisk", &["diskName", "diskURI"]),
        ("vsphereVolume", &["volumePath"]),
        ("photonPersistentDisk", &["pdID"]),
        ("portworxVolume", &["volumeID"]),
        ("quobyte", &["registry", "volume"]),
        ("flexVolume", &["driver"]),
        ("scaleIO", &["gateway", "system", "volumeName"]),
    ] {
        check(name, errors, &|source, errors| {
            for field in required {
                source.at(field).require(errors);
            }
        });
    }
    check("flocker", errors, &|source, errors| match (
        source.at("datasetName").text().is_empty(),
        source.at("datasetUUID").text().is_empty(),
    ) {
        (true, true) => source.missing(errors, "one of datasetName and datasetUUID is required"),
        (false, false) => source.invalid_as(
            errors,
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        ),
        _ => {}
    });
}

fn empty_dir(source: &At<'_>, errors: &mut Errors) {
    if source
        .at("sizeLimit")
        .quantity()
        .is_some_and(|limit| limit.signum() < 0)
    {
        source
            .at("sizeLimit")
            .forbidden(errors, "SizeLimit field must be a valid resource quantity");
    }
}

fn mode(mode: &At<'_>, errors: &mut Errors) {
    if mode.optional_number().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        mode.invalid(errors, MODE);
    }
}

fn keys_to_paths(items: &At<'_>, errors: &mut Errors) {
    items.each(|item| {
        item.at("key").require(errors);
        if item.at("path").require(errors) {
            item.at("path").follow(errors, local_path);
        }
        mode(&item.at("mode"), errors);
    });
}

/// A path to a file that a volume is to show: not to a hidden sibling of its data.
fn local_path(path: &str) -> Vec<String> {
    let mut complaints = text::descending_path(path);
    if path.starts_with("..") && !path.starts_with("../") && path != ".." {
        complaints.push("must not start with '..'".to_owned());
    }
    complaints
}

fn secret(source: &At<'_>, errors: &mut Errors) {
    source.at("secretName").require(errors);
    mode(&source.at("defaultMode"), errors);
    keys_to_paths(&source.at("items"), errors);
}

fn config_map(source: &At<'_>, errors: &mut Errors) {
    source.at("name").require(errors);
    mode(&source.at("defaultMode"), errors);
    keys_to_paths(&source.at("items"), errors);
}

fn downward(source: &At<'_>, errors: &mut Errors) {
    mode(&source.at("defaultMode"), errors);
    downward_files(source, errors);
}

/// Kubernetes tells nothing of the position of a file here.
fn downward_files(source: &At<'_>, errors: &mut Errors) {
    source.at("items").each(|file| {
        let file = &source.with(file.value);
        if file.at("path").require(errors) {
            file.at("path").follow(errors, local_path);
        }
        let (field, resource) = (file.at("fieldRef"), file.at("resourceFieldRef"));
        if field.is_set() {
            variables::field_reference(&field, &VOLUME_FIELDS, errors);
            if resource.is_set() {
                file.invalid_as(
                    errors,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
        } else if resource.is_set() {
            variables::resource_reference(&resource, Whose::Named, errors);
        } else {
            file.missing(errors, "one of fieldRef and resourceFieldRef is required");
        }
        mode(&file.at("mode"), errors);
    });
}

fn projected(source: &At<'_>, errors: &mut Errors) {
    mode(&source.at("defaultMode"), errors);
    let mut paths = HashSet::new();
    source.at("sources").each(|part| {
        const KINDS: [&str; 6] = [
            "secret",
            "configMap",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ];
        let mut count = 0;
        for name in KINDS {
            let one = part.at(name);
            if !one.is_set() {
                continue;
            }
            count += 1;
            if count > 1 {
                part.forbidden(errors, "may not specify more than 1 volume type per source");
                continue;
            }
            match name {
                "secret" | "configMap" => {
                    one.at("name").require(errors);
                    keys_to_paths(&one.at("items"), errors);
                }
                "downwardAPI" => downward_files(&one, errors),
                "serviceAccountToken" => token(&one, source, errors),
                _ => {}
            }
            repeated_paths(&one, &source.path, &mut paths, errors);
        }
    });
}

/// No two files of a projected volume may lie at the same place.
fn repeated_paths(
    one: &At<'_>,
    source: &moorline_machinery::field::Path<'_>,
    paths: &mut HashSet<String>,
    errors: &mut Errors,
) {
    let files = one.at("items").items().iter().map(|item| &item["path"]);
    for path in files
        .chain(one.value.get("path"))
        .filter_map(Value::as_str)
        .filter(|path| !path.is_empty())
    {
        if !paths.insert(path.to_owned()) {
            let name = one.at("name");
            let name = if name.is_set() {
                name.text().to_owned()
            } else {
                path.to_owned()
            };
            errors.push(FieldError::invalid(source, name, "conflicting duplicate paths"));
        }
    }
}

fn token(token: &At<'_>, source: &At<'_>, errors: &mut Errors) {
    let seconds = token.at("expirationSeconds");
    if seconds.optional_number().is_some_and(|seconds| seconds < 600) {
        seconds.invalid(errors, "may not specify a duration less than 10 minutes");
    }
    if seconds.optional_number().is_some_and(|seconds| seconds > 1 << 32) {
        seconds.invalid(errors, "may not specify a duration larger than 2^32 seconds");
    }
    let path = source.at("path");
    let path = path.with(token.at("path").value).value.as_str().unwrap_or_default();
    if path.is_empty() {
        source.at("path").missing(errors, "");
    } else {
        token.at("path").follow(errors, local_path);
    }
}

fn claim(source: &At<'_>, errors: &mut Errors) {
    source.at("claimName").require(errors);
}

fn ephemeral(source: &At<'_>, errors: &mut Errors) {
    let template = source.at("volumeClaimTemplate");
    if template.is_set() {
        volume::claim_spec(&template.at("spec"), errors);
    } else {
        template.missing(errors, "");
    }
}

/// Tokens belong to an account, so a pod without one can have none.
pub(super) fn no_tokens(volumes: &At<'_>, errors: &mut Errors) {
    volumes.each(|volume| {
        volume.at("projected").at("sources").each(|source| {
            let token = source.at("serviceAccountToken");
            if token.is_set() {
                token.forbidden(errors, "must not be specified when serviceAccountName is not set");
            }
        });
    });
}

fn image(source: &At<'_>, errors: &mut Errors) {
    source.at("reference").require(errors);
    source
        .at("pullPolicy")
        .one_of_if_set(errors, &["Always", "IfNotPresent", "Never"]);
}

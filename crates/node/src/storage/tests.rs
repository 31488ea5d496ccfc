use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use serde_json::{Value, json};

use super::decide::{ClaimStep, Remains, World, claim, remains};

#[expect(
    clippy::needless_pass_by_value,
    reason = "literals read better where they are handed in whole"
)]
fn a_claim(patch: Value) -> PersistentVolumeClaim {
    let mut value = json!({
        "metadata": { "name": "data", "namespace": "n", "uid": "u",
                      "annotations": { "volume.kubernetes.io/storage-provisioner": super::PROVISIONER } },
        "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                  "resources": { "requests": { "storage": "1Gi" } } },
    });
    merge(&mut value, &patch);
    serde_json::from_value(value).unwrap()
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "literals read better where they are handed in whole"
)]
fn a_volume(patch: Value) -> PersistentVolume {
    let mut value = json!({
        "metadata": { "name": "pv", "annotations": { "pv.kubernetes.io/provisioned-by": super::PROVISIONER } },
        "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "2Gi" },
                  "persistentVolumeReclaimPolicy": "Delete" },
        "status": { "phase": "Available" },
    });
    merge(&mut value, &patch);
    serde_json::from_value(value).unwrap()
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

fn step(claim_: &PersistentVolumeClaim, volumes: Vec<PersistentVolume>, mode: &str) -> Option<ClaimStep> {
    let volumes: BTreeMap<_, _> = volumes
        .into_iter()
        .map(|volume| (volume.metadata.name.clone().unwrap(), volume))
        .collect();
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": { "name": "local" },
        "provisioner": super::PROVISIONER, "volumeBindingMode": mode, "allowVolumeExpansion": true,
    }))
    .unwrap();
    let classes = [("local".to_owned(), class)].into();
    let world = World {
        volumes: &volumes,
        classes: &classes,
    };
    claim(&world, claim_)
}

const NOW: &str = "Immediate";
const LATER: &str = "WaitForFirstConsumer";

fn provision(node: Option<&str>) -> ClaimStep {
    ClaimStep::Provision {
        class: "local".to_owned(),
        node: node.map(str::to_owned),
    }
}

#[test]
fn a_claim_waits_for_its_first_pod_where_the_class_says_so() {
    assert_eq!(step(&a_claim(json!({})), vec![], LATER), None);
    let chosen = a_claim(json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "a" } } }));
    assert_eq!(step(&chosen, vec![], LATER), Some(provision(Some("a"))));
    assert_eq!(step(&a_claim(json!({})), vec![], NOW), Some(provision(None)));
}

#[test]
fn a_volume_is_made_once_and_only_when_somebody_asks_for_it() {
    let unasked =
        a_claim(json!({ "metadata": { "annotations": { "volume.kubernetes.io/storage-provisioner": "other" } } }));
    assert_eq!(step(&unasked, vec![], NOW), None);
    let made = a_volume(json!({ "metadata": { "name": "pvc-u" } }));
    assert_eq!(step(&a_claim(json!({})), vec![made], NOW), None);
    let deleted = a_claim(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
    assert_eq!(step(&deleted, vec![], NOW), None);
}

#[test]
fn a_free_volume_is_left_to_whoever_binds_claims() {
    let named = a_claim(json!({ "spec": { "volumeName": "pv" } }));
    let lost = a_claim(json!({ "spec": { "volumeName": "pv" }, "status": { "phase": "Bound" } }));
    assert_eq!(step(&named, vec![a_volume(json!({}))], NOW), None);
    assert_eq!(step(&lost, vec![], NOW), None);
}

#[test]
fn a_bound_claim_that_asks_for_more_grows() {
    let held = || a_volume(json!({ "spec": { "claimRef": { "namespace": "n", "name": "data", "uid": "u" } } }));
    let bound = |size: &str| {
        a_claim(json!({
            "spec": { "volumeName": "pv", "resources": { "requests": { "storage": size } } },
            "status": { "phase": "Bound", "capacity": { "storage": "2Gi" } },
        }))
    };
    assert_eq!(step(&bound("1Gi"), vec![held()], NOW), None);
    assert_eq!(
        step(&bound("3Gi"), vec![held()], NOW),
        Some(ClaimStep::Grow("pv".to_owned()))
    );
}

#[test]
fn a_volume_is_destroyed_when_it_was_released_and_its_policy_says_so() {
    let held = |phase: &str, policy: &str| {
        a_volume(json!({
            "spec": { "claimRef": { "namespace": "n", "name": "data", "uid": "u" },
                      "persistentVolumeReclaimPolicy": policy },
            "status": { "phase": phase },
        }))
    };
    let released = held("Released", "Delete");
    assert_eq!(remains(&released, None), Some(Remains::Made));
    assert_eq!(
        remains(&held("Bound", "Delete"), None),
        None,
        "nobody has said that it is released"
    );
    assert_eq!(remains(&held("Released", "Retain"), None), None);
    let waiting = a_claim(json!({}));
    assert_eq!(remains(&released, Some(&waiting)), None, "the claim is there again");
    let elsewhere = a_claim(json!({ "spec": { "volumeName": "other" } }));
    assert_eq!(remains(&released, Some(&elsewhere)), Some(Remains::Made));
    let later = a_claim(json!({ "metadata": { "uid": "v" } }));
    assert_eq!(remains(&released, Some(&later)), Some(Remains::Made));
}

#[test]
fn of_the_machine_only_what_lies_below_its_directory_for_passing_files_is_destroyed() {
    let at = |path: &str| {
        let volume = a_volume(json!({
            "metadata": { "annotations": null },
            "spec": { "claimRef": { "namespace": "n", "name": "data", "uid": "u" }, "hostPath": { "path": path } },
            "status": { "phase": "Released" },
        }));
        remains(&volume, None)
    };
    assert_eq!(at("/tmp/a/b"), Some(Remains::OfMachine("/tmp/a/b".into())));
    for path in [
        "/tmp",
        "/tmp/",
        "/tmp/../etc",
        "/tmp/a/../../etc",
        "/tmpa/b",
        "/srv/tmp/a",
    ] {
        assert_eq!(at(path), None, "{path}");
    }
}

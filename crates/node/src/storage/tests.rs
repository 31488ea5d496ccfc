use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use serde_json::{Value, json};

use super::decide::{ClaimStep, VolumeStep, World, claim, volume};

#[expect(
    clippy::needless_pass_by_value,
    reason = "literals read better where they are handed in whole"
)]
fn a_claim(patch: Value) -> PersistentVolumeClaim {
    let mut value = json!({
        "metadata": { "name": "data", "namespace": "n", "uid": "u" },
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

fn step(claim_: &PersistentVolumeClaim, volumes: Vec<PersistentVolume>, mode: &str, in_use: bool) -> Option<ClaimStep> {
    let volumes: BTreeMap<_, _> = volumes
        .into_iter()
        .map(|volume| (volume.metadata.name.clone().unwrap(), volume))
        .collect();
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": { "name": "local", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": super::PROVISIONER, "volumeBindingMode": mode, "allowVolumeExpansion": true,
    }))
    .unwrap();
    let classes = [("local".to_owned(), class)].into();
    claim(
        &World {
            volumes: &volumes,
            classes: &classes,
        },
        claim_,
        in_use,
    )
}

const NOW: &str = "Immediate";
const LATER: &str = "WaitForFirstConsumer";

#[test]
fn a_claim_waits_for_its_first_pod_where_the_class_says_so() {
    let waiting = step(&a_claim(json!({})), vec![], LATER, false);
    assert!(matches!(waiting, Some(ClaimStep::Explain("WaitForFirstConsumer", _))));
    let chosen = a_claim(json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "a" } } }));
    let provision = ClaimStep::Provision {
        class: "local".to_owned(),
        node: Some("a".to_owned()),
    };
    assert_eq!(step(&chosen, vec![], LATER, false), Some(provision));
    let provision = ClaimStep::Provision {
        class: "local".to_owned(),
        node: None,
    };
    assert_eq!(step(&a_claim(json!({})), vec![], NOW, false), Some(provision));
}

#[test]
fn a_claim_without_a_class_gets_the_default_one() {
    let claim = a_claim(json!({ "spec": { "storageClassName": null } }));
    assert_eq!(
        step(&claim, vec![], NOW, false),
        Some(ClaimStep::SetClass("local".to_owned()))
    );
}

#[test]
fn a_volume_that_is_there_is_reserved_bound_and_grown() {
    let reserve = step(&a_claim(json!({})), vec![a_volume(json!({}))], NOW, false);
    assert_eq!(reserve, Some(ClaimStep::Reserve("pv".to_owned())));
    let held = || a_volume(json!({ "spec": { "claimRef": { "namespace": "n", "name": "data", "uid": "u" } } }));
    assert_eq!(
        step(&a_claim(json!({})), vec![held()], NOW, false),
        Some(ClaimStep::Bind("pv".to_owned()))
    );
    let bound = |size: &str| {
        a_claim(json!({
            "spec": { "volumeName": "pv", "resources": { "requests": { "storage": size } } },
            "status": { "phase": "Bound", "capacity": { "storage": "2Gi" } },
        }))
    };
    assert_eq!(step(&bound("1Gi"), vec![held()], NOW, false), None);
    assert_eq!(
        step(&bound("3Gi"), vec![held()], NOW, false),
        Some(ClaimStep::Grow("pv".to_owned()))
    );
    assert_eq!(step(&bound("1Gi"), vec![], NOW, false), Some(ClaimStep::Lose));
}

#[test]
fn a_small_or_foreign_volume_is_not_taken() {
    let small = a_volume(json!({ "spec": { "capacity": { "storage": "1Mi" } } }));
    let other = a_volume(json!({ "spec": { "claimRef": { "namespace": "n", "name": "other", "uid": "x" } } }));
    for volume in [small, other] {
        assert!(matches!(
            step(&a_claim(json!({})), vec![volume], NOW, false),
            Some(ClaimStep::Provision { .. })
        ));
    }
}

#[test]
fn a_claim_that_is_in_use_stays_until_it_is_not() {
    let deleted = a_claim(json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["kubernetes.io/pvc-protection"],
    } }));
    assert_eq!(step(&deleted, vec![], NOW, true), None);
    assert_eq!(step(&deleted, vec![], NOW, false), Some(ClaimStep::Release));
}

#[test]
fn a_volume_follows_its_claim_and_its_policy() {
    let held = |phase: &str, policy: &str| {
        a_volume(json!({
            "spec": { "claimRef": { "namespace": "n", "name": "data", "uid": "u" },
                      "persistentVolumeReclaimPolicy": policy },
            "status": { "phase": phase },
        }))
    };
    let bound = a_claim(json!({ "spec": { "volumeName": "pv" } }));
    assert_eq!(
        volume(&held("Available", "Delete"), Some(&bound)),
        Some(VolumeStep::SetPhase("Bound"))
    );
    assert_eq!(volume(&held("Bound", "Delete"), Some(&bound)), None);
    assert_eq!(
        volume(&held("Bound", "Delete"), None),
        Some(VolumeStep::SetPhase("Released"))
    );
    assert_eq!(volume(&held("Released", "Delete"), None), Some(VolumeStep::Destroy));
    assert_eq!(volume(&held("Released", "Retain"), None), None);
    assert_eq!(
        volume(&a_volume(json!({ "status": { "phase": "Pending" } })), None),
        Some(VolumeStep::SetPhase("Available"))
    );
}

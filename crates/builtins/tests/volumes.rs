//! Which volume is whose.

mod world;

use std::pin::pin;

use futures_util::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use world::{Pods, World, eventually};

struct Storage {
    world: World,
    volumes: Api<PersistentVolume>,
}

impl Storage {
    async fn new() -> Self {
        let world = World::new(Pods::Wait).await;
        let volumes = Api::all(world.client.clone());
        Self { world, volumes }
    }

    async fn volume(&self, name: &str, size: &str, patch: Value) {
        let mut volume = json!({ "metadata": { "name": name }, "spec": {
            "capacity": { "storage": size }, "accessModes": ["ReadWriteOnce"],
            "hostPath": { "path": "/srv/none" }, "persistentVolumeReclaimPolicy": "Retain" } });
        merge(&mut volume, patch);
        let volume = serde_json::from_value(volume).expect("the test wrote a volume");
        let made = self.volumes.create(&PostParams::default(), &volume).await;
        made.expect("the volume is valid");
    }

    async fn claim(&self, name: &str, size: &str, patch: Value) -> PersistentVolumeClaim {
        let mut claim = json!({ "metadata": { "name": name }, "spec": { "storageClassName": "",
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } } });
        merge(&mut claim, patch);
        self.world.create(claim).await
    }

    async fn class(&self, name: &str, patch: Value) {
        let mut class = json!({ "metadata": { "name": name }, "provisioner": "example.com/disks" });
        merge(&mut class, patch);
        let class = serde_json::from_value(class).expect("the test wrote a class");
        let classes: Api<StorageClass> = Api::all(self.world.client.clone());
        let made = classes.create(&PostParams::default(), &class).await;
        made.expect("the class is valid");
    }

    async fn volume_is(&self, name: &str, phase: &str) -> PersistentVolume {
        eventually(&format!("volume {name} is {phase}"), || async {
            let volume = self.volumes.get_opt(name).await.expect("the server answers")?;
            (volume.status.as_ref()?.phase.as_deref() == Some(phase)).then_some(volume)
        })
        .await
    }

    async fn claim_is(&self, name: &str, phase: &str) -> PersistentVolumeClaim {
        eventually(&format!("claim {name} is {phase}"), || async {
            let claim: PersistentVolumeClaim = self.world.get(name).await?;
            (claim.status.as_ref()?.phase.as_deref() == Some(phase)).then_some(claim)
        })
        .await
    }

    /// Waits until an event of this reason tells this of an object.
    async fn told(&self, name: &str, reason: &str, words: &str) {
        let events: Api<Event> = Api::all(self.world.client.clone());
        eventually(&format!("{reason} of {name}: {words}"), || async {
            let events = events.list(&ListParams::default()).await.expect("the server answers");
            let mut events = events.items.into_iter();
            events.find(|event| {
                event.involved_object.name.as_deref() == Some(name)
                    && event.reason.as_deref() == Some(reason)
                    && event.message.as_deref().is_some_and(|message| message.contains(words))
            })
        })
        .await;
    }

    async fn patch_volume(&self, name: &str, patch: Value) {
        let params = PatchParams::default();
        let patched = self.volumes.patch(name, &params, &Patch::Merge(patch)).await;
        patched.expect("the patch is valid");
    }

    async fn delete_claim(&self, name: &str) {
        let claims = self.world.api::<PersistentVolumeClaim>();
        claims
            .delete(name, &DeleteParams::default())
            .await
            .expect("it is there");
    }

    async fn delete_volume(&self, name: &str) {
        self.volumes
            .delete(name, &DeleteParams::default())
            .await
            .expect("it is there");
    }
}

fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref()
}

fn kept_for(claim: &PersistentVolumeClaim) -> Value {
    json!({ "namespace": "default", "name": claim.name_any(), "uid": claim.metadata.uid })
}

#[tokio::test]
async fn a_claim_that_asks_for_a_volume_gets_it_only_if_it_fits() {
    let storage = Storage::new().await;
    storage.volume("small", "1Gi", json!({})).await;
    storage
        .volume("device", "5Gi", json!({ "spec": { "volumeMode": "Block" } }))
        .await;
    storage
        .volume("classy", "5Gi", json!({ "spec": { "storageClassName": "gold" } }))
        .await;
    let read = json!({ "spec": { "accessModes": ["ReadOnlyMany"] } });
    storage.volume("read", "5Gi", read).await;
    for (volume, why) in [
        ("small", "requested PV is too small"),
        ("device", "incompatible volumeMode"),
        ("classy", "storageClassName does not match"),
        ("read", "incompatible accessMode"),
    ] {
        let name = format!("to-{volume}");
        storage
            .claim(&name, "2Gi", json!({ "spec": { "volumeName": volume } }))
            .await;
        storage.told(&name, "VolumeMismatch", why).await;
        storage.claim_is(&name, "Pending").await;
        assert!(
            storage
                .volume_is(volume, "Available")
                .await
                .spec
                .unwrap()
                .claim_ref
                .is_none()
        );
    }
    storage.volume("fitting", "2Gi", json!({})).await;
    storage
        .claim("fits", "2Gi", json!({ "spec": { "volumeName": "fitting" } }))
        .await;
    storage.claim_is("fits", "Bound").await;
}

#[tokio::test]
async fn a_claim_that_names_a_volume_is_bound_when_that_comes_or_becomes_free() {
    let storage = Storage::new().await;
    storage
        .claim("early", "1Gi", json!({ "spec": { "volumeName": "late" } }))
        .await;
    storage.claim_is("early", "Pending").await;
    storage.volume("late", "1Gi", json!({})).await;
    storage.claim_is("early", "Bound").await;

    let other = json!({ "spec": { "claimRef": { "namespace": "default", "name": "nobody" } } });
    storage.volume("taken", "1Gi", other).await;
    storage
        .claim("second", "1Gi", json!({ "spec": { "volumeName": "taken" } }))
        .await;
    storage
        .told("second", "FailedBinding", "already bound to a different claim")
        .await;
    storage
        .patch_volume("taken", json!({ "spec": { "claimRef": null } }))
        .await;
    storage.claim_is("second", "Bound").await;
}

#[tokio::test]
async fn a_claim_that_lost_its_volume_tells_nothing_of_it_and_is_bound_when_it_comes_back() {
    let storage = Storage::new().await;
    storage.volume("disk", "3Gi", json!({})).await;
    storage.claim("data", "1Gi", json!({})).await;
    let claim = storage.claim_is("data", "Bound").await;
    assert_eq!(claim.status.unwrap().capacity.unwrap()["storage"].0, "3Gi");
    storage.delete_volume("disk").await;
    let unprotected = json!({ "metadata": { "finalizers": null } });
    storage.patch_volume("disk", unprotected).await;
    let status = storage.claim_is("data", "Lost").await.status.unwrap();
    assert_eq!((status.capacity, status.access_modes), (None, None));
    storage.volume("disk", "4Gi", json!({})).await;
    let status = storage.claim_is("data", "Bound").await.status.unwrap();
    assert_eq!(status.capacity.unwrap()["storage"].0, "4Gi");
}

#[tokio::test]
async fn a_volume_that_is_deleted_while_bound_goes_after_its_claim() {
    let storage = Storage::new().await;
    storage.volume("disk", "1Gi", json!({})).await;
    storage.claim("data", "1Gi", json!({})).await;
    storage.claim_is("data", "Bound").await;
    storage.delete_volume("disk").await;
    assert!(
        storage
            .volume_is("disk", "Bound")
            .await
            .metadata
            .deletion_timestamp
            .is_some()
    );
    storage.delete_claim("data").await;
    eventually("the volume is gone", || async {
        let volume = storage.volumes.get_opt("disk").await.expect("the server answers");
        volume.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_claim_without_a_class_gets_the_default_one_when_there_is_one() {
    let storage = Storage::new().await;
    let unclassed = json!({ "spec": { "storageClassName": null } });
    storage.claim("data", "1Gi", unclassed).await;
    storage.told("data", "FailedBinding", "no storage class is set").await;
    let classless = storage.claim("classless", "1Gi", json!({})).await;
    storage.class("plain", json!({})).await;
    let mark = json!({ "metadata": { "annotations": { "storageclass.beta.kubernetes.io/is-default-class": "true" } } });
    storage.class("default", mark).await;
    storage.told("data", "ExternalProvisioning", "example.com/disks").await;
    let claim: PersistentVolumeClaim = storage.world.get("data").await.unwrap();
    assert_eq!(claim.spec.unwrap().storage_class_name.as_deref(), Some("default"));
    assert_eq!(classless.spec.unwrap().storage_class_name.as_deref(), Some(""));
    let other = Patch::Merge(json!({ "spec": { "storageClassName": "plain" } }));
    let claims = storage.world.api::<PersistentVolumeClaim>();
    let changed = claims.patch("data", &PatchParams::default(), &other).await;
    assert!(changed.is_err(), "a class is chosen once");
}

#[tokio::test]
async fn of_two_claims_for_one_volume_one_waits() {
    let storage = Storage::new().await;
    storage.claim("a", "1Gi", json!({})).await;
    storage.claim("b", "1Gi", json!({})).await;
    storage.volume("disk", "1Gi", json!({})).await;
    let holder = storage
        .volume_is("disk", "Bound")
        .await
        .spec
        .unwrap()
        .claim_ref
        .unwrap()
        .name
        .unwrap();
    let other = if holder == "a" { "b" } else { "a" };
    storage.claim_is(&holder, "Bound").await;
    let other = storage.claim_is(other, "Pending").await;
    assert_eq!(volume_of(&other), None);
}

#[tokio::test]
async fn a_volume_is_bound_before_its_claim_names_it() {
    let storage = Storage::new().await;
    for round in 0..5 {
        let name = format!("data-{round}");
        storage.volume(&name, "1Gi", json!({})).await;
        storage.claim(&name, "1Gi", json!({})).await;
        let volume = eventually("the claim names a volume", || async {
            let claim: PersistentVolumeClaim = storage.world.get(&name).await?;
            volume_of(&claim).map(str::to_owned)
        })
        .await;
        let volume = storage.volumes.get(&volume).await.unwrap();
        assert_eq!(volume.status.unwrap().phase.as_deref(), Some("Bound"));
    }
}

#[tokio::test]
async fn a_volume_kept_for_a_claim_that_has_another_is_free_again() {
    let storage = Storage::new().await;
    storage.volume("first", "1Gi", json!({})).await;
    let claim = storage.claim("data", "1Gi", json!({})).await;
    storage.claim_is("data", "Bound").await;
    let by_controller = json!({ "metadata": { "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" } },
        "spec": { "claimRef": kept_for(&claim) } });
    storage.volume("second", "1Gi", by_controller).await;
    assert!(
        storage
            .volume_is("second", "Available")
            .await
            .spec
            .unwrap()
            .claim_ref
            .is_none()
    );
    storage
        .volume("third", "1Gi", json!({ "spec": { "claimRef": kept_for(&claim) } }))
        .await;
    let kept = storage
        .volume_is("third", "Available")
        .await
        .spec
        .unwrap()
        .claim_ref
        .unwrap();
    assert_eq!((kept.name.as_deref(), kept.uid), (Some("data"), None));
    let made = json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "example.com/disks" } },
        "spec": { "claimRef": kept_for(&claim), "persistentVolumeReclaimPolicy": "Delete" } });
    storage.volume("fourth", "1Gi", made).await;
    storage.volume_is("fourth", "Released").await;
}

#[tokio::test]
async fn a_policy_that_nobody_can_carry_out_fails_and_stays_so() {
    let storage = Storage::new().await;
    let delete = json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
    let recycle = json!({ "spec": { "persistentVolumeReclaimPolicy": "Recycle", "hostPath": null,
        "local": { "path": "/srv/none" }, "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": ["n"] } ] }] } } } });
    for (name, patch, reason, words) in [
        (
            "deleted",
            delete,
            "VolumeFailedDelete",
            "host_path deleter only supports /tmp/.+",
        ),
        (
            "recycled",
            recycle,
            "VolumeFailedRecycle",
            "No recycler plugin found for the volume!",
        ),
    ] {
        storage.volume(name, "1Gi", patch).await;
        storage
            .claim(name, "1Gi", json!({ "spec": { "volumeName": name } }))
            .await;
        storage.claim_is(name, "Bound").await;
        storage.delete_claim(name).await;
        let failed = storage.volume_is(name, "Failed").await;
        assert!(failed.status.unwrap().message.unwrap().contains(words));
        storage.told(name, reason, words).await;
        storage
            .patch_volume(name, json!({ "metadata": { "labels": { "seen": "again" } } }))
            .await;
        storage
            .patch_volume(name, json!({ "spec": { "claimRef": null } }))
            .await;
        assert_eq!(storage.volume_is(name, "Available").await.status.unwrap().message, None);
    }
}

#[tokio::test]
async fn a_claim_whose_class_waits_for_a_pod_takes_no_free_volume_by_itself() {
    let storage = Storage::new().await;
    storage
        .class("local", json!({ "volumeBindingMode": "WaitForFirstConsumer" }))
        .await;
    let of_class = json!({ "spec": { "storageClassName": "local" } });
    storage.volume("elsewhere", "1Gi", of_class.clone()).await;
    storage.volume_is("elsewhere", "Available").await;
    storage.claim("data", "1Gi", of_class).await;
    storage
        .told("data", "WaitForFirstConsumer", "waiting for first consumer")
        .await;
    let chosen = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n" } } });
    let claim: PersistentVolumeClaim = storage.world.patch("data", chosen).await;
    storage.told("data", "ExternalProvisioning", "example.com/disks").await;
    assert!(
        storage
            .volume_is("elsewhere", "Available")
            .await
            .spec
            .unwrap()
            .claim_ref
            .is_none()
    );
    let made = json!({ "spec": { "storageClassName": "local", "claimRef": kept_for(&claim) } });
    storage.volume("made", "1Gi", made).await;
    assert_eq!(volume_of(&storage.claim_is("data", "Bound").await), Some("made"));
}

#[tokio::test]
async fn a_volume_kept_for_a_claim_must_fit_it_too() {
    let storage = Storage::new().await;
    let claim = storage.claim("data", "2Gi", json!({})).await;
    let by_name = json!({ "spec": { "claimRef": { "namespace": "default", "name": "data" } } });
    storage.volume("small", "1Gi", by_name).await;
    let device = json!({ "spec": { "volumeMode": "Block", "claimRef": kept_for(&claim) } });
    storage.volume("device", "2Gi", device).await;
    storage
        .told("device", "VolumeMismatch", "due to incompatible volumeMode")
        .await;
    storage
        .told("data", "VolumeMismatch", "due to incompatible volumeMode")
        .await;
    storage.volume_is("small", "Available").await;
    assert_eq!(volume_of(&storage.claim_is("data", "Pending").await), None);
    storage.volume("fitting", "2Gi", json!({})).await;
    assert_eq!(volume_of(&storage.claim_is("data", "Bound").await), Some("fitting"));
}

#[tokio::test]
async fn a_volume_is_not_released_before_its_claim_can_have_been_seen() {
    let storage = Storage::new().await;
    let stranger = json!({ "namespace": "default", "name": "data", "uid": "00000000-0000-0000-0000-000000000000" });
    storage.volume("disk", "1Gi", json!({})).await;
    storage.volume_is("disk", "Available").await;
    let version = storage
        .volumes
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let watch = storage.volumes.watch(&WatchParams::default(), &version).await.unwrap();
    storage
        .patch_volume("disk", json!({ "spec": { "claimRef": stranger } }))
        .await;
    // Phases follow each other too fast to be asked for.
    let mut phases: Vec<(String, Timestamp)> = Vec::new();
    let mut watch = pin!(watch);
    while phases.last().is_none_or(|(phase, _)| phase != "Released") {
        let WatchEvent::Modified(volume) = watch.try_next().await.unwrap().unwrap() else {
            panic!("volumes only change here");
        };
        let status = volume.status.unwrap();
        phases.push((status.phase.unwrap(), status.last_phase_transition_time.unwrap().0));
    }
    let waiting = phases.iter().find(|(phase, _)| phase == "Pending").unwrap();
    let released = phases.last().unwrap();
    assert!(released.1 > waiting.1, "claims and volumes are not seen in step");
}

#[tokio::test]
async fn volumes_and_claims_of_different_attributes_are_not_bound() {
    let storage = Storage::new().await;
    let fast = json!({ "spec": { "volumeAttributesClassName": "fast" } });
    storage.volume("plain", "1Gi", json!({})).await;
    storage.claim("data", "1Gi", fast).await;
    storage
        .told("data", "FailedBinding", "no persistent volumes available")
        .await;
    let disk = json!({ "spec": { "volumeAttributesClassName": "fast", "hostPath": null,
        "csi": { "driver": "example.com", "volumeHandle": "1" } } });
    storage.volume("quick", "5Gi", disk).await;
    let claim = storage.claim_is("data", "Bound").await;
    assert_eq!(volume_of(&claim), Some("quick"));
    let current = claim.status.unwrap().current_volume_attributes_class_name;
    assert_eq!(current.as_deref(), Some("fast"));
}

#[tokio::test]
async fn a_claim_gets_a_volume_that_offers_no_more_ways_of_access_than_it_needs() {
    let storage = Storage::new().await;
    let both = json!({ "spec": { "accessModes": ["ReadWriteOnce", "ReadOnlyMany"] } });
    storage.volume("both", "1Gi", both).await;
    storage.volume("one", "5Gi", json!({})).await;
    storage.volume_is("both", "Available").await;
    storage.volume_is("one", "Available").await;
    storage.claim("data", "1Gi", json!({})).await;
    assert_eq!(volume_of(&storage.claim_is("data", "Bound").await), Some("one"));
}

#[tokio::test]
async fn a_claim_gets_the_smallest_volume_that_fits_and_gives_it_back_when_it_goes() {
    let storage = Storage::new().await;
    for (name, size) in [("large", "10Gi"), ("fitting", "2Gi"), ("small", "1Gi")] {
        storage.volume(name, size, json!({})).await;
        storage.volume_is(name, "Available").await;
    }
    storage.claim("data", "2Gi", json!({})).await;
    assert_eq!(volume_of(&storage.claim_is("data", "Bound").await), Some("fitting"));
    storage.volume_is("fitting", "Bound").await;
    storage.delete_claim("data").await;
    storage.volume_is("fitting", "Released").await;
}

#[tokio::test]
async fn protection_that_somebody_took_away_is_put_back() {
    let storage = Storage::new().await;
    storage.volume("disk", "1Gi", json!({})).await;
    storage
        .patch_volume("disk", json!({ "metadata": { "finalizers": null } }))
        .await;
    eventually("it is protected again", || async {
        let volume = storage.volumes.get("disk").await.expect("the server answers");
        (volume.finalizers() == ["kubernetes.io/pv-protection"]).then_some(())
    })
    .await;
}

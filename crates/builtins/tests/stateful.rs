//! Stateful sets: their instances, the claims of those, and how they move to another template.

mod world;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Value, json};
use world::{Pods, World, eventually, template};

const HASH: &str = "controller-revision-hash";

/// A set of instances with a claim each, and whatever else the test says of it.
#[expect(clippy::needless_pass_by_value, reason = "what a test writes down is nobody else's")]
fn stateful_set(replicas: i32, more: Value) -> Value {
    let mut set = json!({ "metadata": { "name": "db" }, "spec": { "replicas": replicas, "serviceName": "db",
        "selector": { "matchLabels": { "app": "db" } }, "template": template("db", "a:1"),
        "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } } } }] } });
    let spec = set["spec"].as_object_mut().expect("it was just written so");
    spec.extend(more.as_object().cloned().unwrap_or_default());
    set
}

fn image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } })
}

/// Keeps an object from going when it is deleted.
fn held() -> Value {
    json!({ "metadata": { "finalizers": ["example.com/hold"] } })
}

async fn wait_for_ready(world: &World, wanted: i32) -> StatefulSet {
    eventually("the instances are ready", || async {
        let set: StatefulSet = world.get("db").await?;
        let status = set.status.as_ref()?;
        (status.ready_replicas.unwrap_or(0) == wanted).then_some(set)
    })
    .await
}

/// The images of the instances, in their order.
async fn images(world: &World) -> Vec<String> {
    let mut pods = world.list::<Pod>().await;
    pods.sort_by_key(kube::ResourceExt::name_any);
    let images = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone());
    images.collect()
}

async fn wait_for_event(world: &World, reason: &str, words: &str) -> Event {
    eventually(&format!("an event {reason}: {words}"), || async {
        let mut events = world.list::<Event>().await.into_iter();
        events.find(|event| {
            event.reason.as_deref() == Some(reason) && event.note.as_deref().is_some_and(|note| note.contains(words))
        })
    })
    .await
}

async fn delete<K>(world: &World, name: &str)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let _ = world
        .api::<K>()
        .delete(name, &DeleteParams::background())
        .await
        .expect("it is there to be deleted");
}

/// Whoever keeps an object from going does so no longer.
async fn let_go<K>(world: &World, name: &str)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    world
        .api::<K>()
        .patch(name, &PatchParams::default(), &patch)
        .await
        .expect("the patch is valid");
}

#[tokio::test]
async fn an_instance_whose_claim_is_being_deleted_waits_for_the_claim_to_be_gone_and_says_so() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(1, json!({}))).await;
    wait_for_ready(&world, 1).await;
    let before: PersistentVolumeClaim = world.get("data-db-0").await.unwrap();
    world.patch::<PersistentVolumeClaim>("data-db-0", held()).await;
    delete::<PersistentVolumeClaim>(&world, "data-db-0").await;
    delete::<Pod>(&world, "db-0").await;
    let said = "Create Pod db-0 in StatefulSet db failed error: pvc data-db-0 is being deleted";
    wait_for_event(&world, "FailedCreate", said).await;
    eventually("the set tells that nothing is left", || async {
        let set: StatefulSet = world.get("db").await?;
        (set.status?.replicas == 0).then_some(())
    })
    .await;
    assert!(world.pod_names().await.is_empty());
    let_go::<PersistentVolumeClaim>(&world, "data-db-0").await;
    wait_for_ready(&world, 1).await;
    let after: PersistentVolumeClaim = world.get("data-db-0").await.unwrap();
    assert_ne!(before.uid(), after.uid());
}

#[tokio::test]
async fn a_claim_that_an_instance_waits_for_is_made_again_as_soon_as_it_is_gone() {
    let world = World::new(Pods::Wait).await;
    world.create::<StatefulSet>(stateful_set(1, json!({}))).await;
    eventually("the instance is pending", || async { world.get::<Pod>("db-0").await }).await;
    let before: PersistentVolumeClaim = world.get("data-db-0").await.unwrap();
    world.patch::<PersistentVolumeClaim>("data-db-0", held()).await;
    delete::<PersistentVolumeClaim>(&world, "data-db-0").await;
    let_go::<PersistentVolumeClaim>(&world, "data-db-0").await;
    eventually("another claim", || async {
        let claim: PersistentVolumeClaim = world.get("data-db-0").await?;
        (claim.uid() != before.uid()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_change_reaches_instances_that_are_all_at_once_although_one_of_them_is_ill() {
    let world = World::new(Pods::BecomeReady).await;
    world
        .create::<StatefulSet>(stateful_set(3, json!({ "podManagementPolicy": "Parallel" })))
        .await;
    wait_for_ready(&world, 3).await;
    world.make_unready("db-0").await;
    wait_for_ready(&world, 2).await;
    world.patch::<StatefulSet>("db", image("a:2")).await;
    eventually("the cure has come to all", || async {
        Some(images(&world).await).filter(|images| *images == ["a:2", "a:2", "a:2"])
    })
    .await;
    wait_for_ready(&world, 3).await;
}

#[tokio::test]
async fn an_update_waits_for_the_instance_that_is_going() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<StatefulSet>(stateful_set(3, json!({ "podManagementPolicy": "Parallel" })))
        .await;
    eventually("three", || async { (world.pod_names().await.len() == 3).then_some(()) }).await;
    world.patch::<Pod>("db-2", held()).await;
    world.patch::<StatefulSet>("db", image("a:2")).await;
    eventually("the last is going", || async {
        world.get::<Pod>("db-2").await?.metadata.deletion_timestamp.map(|_| ())
    })
    .await;
    // Each of these makes the set look once more.
    for ready in [2, 1] {
        world.make_ready(&format!("db-{}", ready - 1)).await;
        wait_for_ready(&world, 3 - ready).await;
    }
    assert_eq!(world.pod_names().await, ["db-0", "db-1"]);
    let_go::<Pod>(&world, "db-2").await;
    eventually("it is back", || async {
        Some(images(&world).await).filter(|images| *images == ["a:1", "a:1", "a:2"])
    })
    .await;
}

#[tokio::test]
async fn only_pods_with_the_name_of_an_instance_belong_to_a_set() {
    let world = World::new(Pods::BecomeReady).await;
    let mut stray = template("db", "a:1");
    stray["metadata"]["name"] = "stray".into();
    world.create::<Pod>(stray.clone()).await;
    let set: StatefulSet = world.create(stateful_set(1, json!({}))).await;
    wait_for_ready(&world, 1).await;
    let left_alone: Pod = world.get("stray").await.unwrap();
    assert!(left_alone.owner_references().is_empty());
    stray["metadata"]["name"] = "taken".into();
    stray["metadata"]["ownerReferences"] = json!([set.controller_owner_ref(&()).unwrap()]);
    world.create::<Pod>(stray).await;
    eventually("it is let go", || async {
        let taken: Pod = world.get("taken").await?;
        taken.owner_references().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_goes_with_the_set_is_controlled_by_it_unless_somebody_else_does() {
    let world = World::new(Pods::BecomeReady).await;
    let retention = json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete" } });
    world.create::<StatefulSet>(stateful_set(1, retention)).await;
    let controls = || async {
        let claim: PersistentVolumeClaim = world.get("data-db-0").await?;
        let owner = claim.owner_references().first().cloned()?;
        (owner.kind == "StatefulSet" && owner.controller == Some(true)).then_some(owner)
    };
    let mut owner = eventually("the set controls the claim", controls).await;
    owner.controller = Some(false);
    let weak = json!({ "metadata": { "ownerReferences": [owner] } });
    world.patch::<PersistentVolumeClaim>("data-db-0", weak).await;
    eventually("it does again", controls).await;

    let other: ConfigMap = world.create(json!({ "metadata": { "name": "other" } })).await;
    let other =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other.uid(), "controller": true });
    let both = json!({ "metadata": { "ownerReferences": [owner, other] } });
    world.patch::<PersistentVolumeClaim>("data-db-0", both).await;
    eventually("it yields to the other one", || async {
        let claim: PersistentVolumeClaim = world.get("data-db-0").await?;
        (claim.owner_references().len() == 1 && claim.owner_references()[0].kind == "ConfigMap").then_some(())
    })
    .await;
    wait_for_event(&world, "ConflictingController", "PersistentVolumeClaim data-db-0").await;
}

#[tokio::test]
async fn an_instance_that_is_too_many_stays_until_its_claim_can_go_with_it() {
    let world = World::new(Pods::BecomeReady).await;
    let retention = json!({ "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Delete" } });
    world.create::<StatefulSet>(stateful_set(2, retention)).await;
    wait_for_ready(&world, 2).await;
    world.patch::<PersistentVolumeClaim>("data-db-1", held()).await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client.clone());
    let policy = json!({ "metadata": { "name": "nobody-owns" }, "spec": {
        "matchConstraints": { "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["UPDATE"], "resources": ["persistentvolumeclaims"] }] },
        "validations": [{ "expression": "!has(object.metadata.ownerReferences)", "message": "nobody may own it" }] } });
    let policy = serde_json::from_value(policy).unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client.clone());
    let binding = json!({ "metadata": { "name": "nobody-owns" },
        "spec": { "policyName": "nobody-owns", "validationActions": ["Deny"] } });
    let binding = serde_json::from_value(binding).unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let other: ConfigMap = world.create(json!({ "metadata": { "name": "other" } })).await;
    let other = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other.uid() });
    let owned = Patch::Merge(json!({ "metadata": { "ownerReferences": [other] } }));
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let claims = world.api::<PersistentVolumeClaim>();
    eventually("the policy is heeded", || async {
        claims.patch("data-db-1", &dry, &owned).await.err().map(|_| ())
    })
    .await;

    world
        .patch::<StatefulSet>("db", json!({ "spec": { "replicas": 1 } }))
        .await;
    eventually("the refusal is told", || async {
        let events = world.list::<Event>().await;
        let refused = |event: &Event| {
            event
                .note
                .as_deref()
                .is_some_and(|note| note.contains("nobody may own it"))
        };
        events.iter().any(refused).then_some(())
    })
    .await;
    assert_eq!(world.pod_names().await, ["db-0", "db-1"]);

    let _ = bindings.delete("nobody-owns", &DeleteParams::default()).await.unwrap();
    eventually("the policy is heeded no more", || async {
        claims.patch("data-db-1", &dry, &owned).await.ok().map(|_| ())
    })
    .await;
    // A change of the claim makes the set look again.
    let touched = json!({ "metadata": { "annotations": { "touched": "yes" } } });
    world.patch::<PersistentVolumeClaim>("data-db-1", touched).await;
    eventually("both go", || async {
        let claim: PersistentVolumeClaim = world.get("data-db-1").await?;
        (claim.metadata.deletion_timestamp.is_some() && world.pod_names().await == ["db-0"]).then_some(())
    })
    .await;

    // One that is wanted again does not take up the old data.
    let grown: StatefulSet = world.patch("db", json!({ "spec": { "replicas": 2 } })).await;
    eventually("the set has looked at it", || async {
        let set: StatefulSet = world.get("db").await?;
        (set.status?.observed_generation == grown.metadata.generation).then_some(())
    })
    .await;
    assert_eq!(world.pod_names().await, ["db-0"]);
    let_go::<PersistentVolumeClaim>(&world, "data-db-1").await;
    wait_for_ready(&world, 2).await;
    let claim: PersistentVolumeClaim = world.get("data-db-1").await.unwrap();
    assert!(claim.metadata.deletion_timestamp.is_none() && claim.owner_references().is_empty());
}

#[tokio::test]
async fn a_revision_tells_the_cause_of_the_change() {
    let world = World::new(Pods::BecomeReady).await;
    let mut set = stateful_set(1, json!({}));
    set["metadata"]["annotations"] = json!({ "kubernetes.io/change-cause": "the first" });
    world.create::<StatefulSet>(set).await;
    let revision = eventually("a revision", || async {
        world.list::<ControllerRevision>().await.pop()
    })
    .await;
    assert_eq!(revision.annotations()["kubernetes.io/change-cause"], "the first");
    assert!(
        revision
            .name_any()
            .ends_with(&revision.labels()["controller.kubernetes.io/hash"])
    );
}

#[tokio::test]
async fn what_is_done_to_instances_and_claims_is_told() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(2, json!({}))).await;
    wait_for_ready(&world, 2).await;
    wait_for_event(
        &world,
        "SuccessfulCreate",
        "Create Pod db-1 in StatefulSet db successful",
    )
    .await;
    let claimed = "Create Claim data-db-0 Pod db-0 in StatefulSet db success";
    wait_for_event(&world, "SuccessfulCreate", claimed).await;
    let lost = json!({ "metadata": { "labels": {
        "statefulset.kubernetes.io/pod-name": null, "apps.kubernetes.io/pod-index": null } } });
    world.patch::<Pod>("db-0", lost).await;
    wait_for_event(
        &world,
        "SuccessfulUpdate",
        "Update Pod db-0 in StatefulSet db successful",
    )
    .await;
    let pod: Pod = world.get("db-0").await.unwrap();
    assert_eq!(pod.labels()["apps.kubernetes.io/pod-index"], "0");
    assert_eq!(pod.metadata.generate_name.as_deref(), Some("db-"));
    world
        .patch::<StatefulSet>("db", json!({ "spec": { "replicas": 1 } }))
        .await;
    wait_for_event(
        &world,
        "SuccessfulDelete",
        "Delete Pod db-1 in StatefulSet db successful",
    )
    .await;
}

#[tokio::test]
async fn without_settings_an_instance_that_is_lost_in_an_update_comes_back_as_it_was() {
    let world = World::new(Pods::BecomeReady).await;
    let strategy = json!({ "updateStrategy": { "type": "RollingUpdate" } });
    let set: StatefulSet = world.create(stateful_set(3, strategy)).await;
    assert_eq!(set.spec.unwrap().update_strategy.unwrap().rolling_update, None);
    wait_for_ready(&world, 3).await;
    let mut broken = image("a:2");
    broken["spec"]["template"]["metadata"] = json!({ "labels": { "hold": "yes" } });
    world.patch::<StatefulSet>("db", broken).await;
    eventually("the last is updated and does not work", || async {
        let set: StatefulSet = world.get("db").await?;
        let status = set.status?;
        let counted = (status.current_replicas, status.updated_replicas, status.ready_replicas);
        (counted == (Some(2), Some(1), Some(2)) && images(&world).await == ["a:1", "a:1", "a:2"]).then_some(())
    })
    .await;
    let lost: Pod = world.get("db-0").await.unwrap();
    delete::<Pod>(&world, "db-0").await;
    let back = eventually("the first is back", || async {
        world.get::<Pod>("db-0").await.filter(|pod| pod.uid() != lost.uid())
    })
    .await;
    assert_eq!(back.labels()[HASH], lost.labels()[HASH]);

    let mut mended = image("a:3");
    mended["spec"]["template"]["metadata"] = json!({ "labels": { "hold": null } });
    world.patch::<StatefulSet>("db", mended).await;
    delete::<Pod>(&world, "db-2").await;
    eventually("all are updated", || async {
        let set: StatefulSet = world.get("db").await?;
        let status = set.status?;
        let is_over = status.current_revision == status.update_revision && status.ready_replicas == Some(3);
        (is_over && images(&world).await == ["a:3", "a:3", "a:3"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn somebody_elses_revision_that_says_the_same_is_no_collision_and_one_that_says_otherwise_is() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(1, json!({}))).await;
    wait_for_ready(&world, 1).await;
    let mut revision = world.list::<ControllerRevision>().await.remove(0);
    delete::<StatefulSet>(&world, "db").await;
    eventually("nothing is left", || async {
        let gone = world.list::<Pod>().await.is_empty() && world.list::<ControllerRevision>().await.is_empty();
        gone.then_some(())
    })
    .await;
    let other: ConfigMap = world.create(json!({ "metadata": { "name": "other" } })).await;
    revision.metadata.resource_version = None;
    revision.metadata.uid = None;
    revision.metadata.owner_references = Some(vec![other.controller_owner_ref(&()).unwrap()]);
    let name = revision.name_any();
    let mut written = serde_json::to_value(&revision).unwrap();
    world.create::<ControllerRevision>(written.clone()).await;

    world.create::<StatefulSet>(stateful_set(1, json!({}))).await;
    let set = wait_for_ready(&world, 1).await;
    let status = set.status.unwrap();
    assert_eq!(
        (status.collision_count, status.update_revision.as_ref()),
        (Some(0), Some(&name))
    );
    let pod: Pod = world.get("db-0").await.unwrap();
    assert_eq!(pod.labels()[HASH], name);
    delete::<ControllerRevision>(&world, &name).await;
    eventually("the set has its own of that name", || async {
        let own: ControllerRevision = world.get(&name).await?;
        (own.owner_references()[0].kind == "StatefulSet").then_some(())
    })
    .await;
    assert_eq!(world.get::<Pod>("db-0").await.unwrap().uid(), pod.uid());

    delete::<StatefulSet>(&world, "db").await;
    eventually("nothing is left", || async {
        let gone = world.list::<Pod>().await.is_empty() && world.list::<ControllerRevision>().await.is_empty();
        gone.then_some(())
    })
    .await;
    written["data"]["spec"]["template"]["spec"]["hostNetwork"] = true.into();
    world.create::<ControllerRevision>(written).await;
    world.create::<StatefulSet>(stateful_set(1, json!({}))).await;
    let set = wait_for_ready(&world, 1).await;
    let status = set.status.unwrap();
    let pod: Pod = world.get("db-0").await.unwrap();
    assert_eq!(status.collision_count, Some(1));
    assert_ne!(status.update_revision.as_ref(), Some(&name));
    assert_eq!(Some(&pod.labels()[HASH]), status.update_revision.as_ref());
}

#[tokio::test]
async fn a_set_that_goes_after_its_instances_tells_how_many_are_left() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(2, json!({}))).await;
    wait_for_ready(&world, 2).await;
    world.patch::<Pod>("db-0", held()).await;
    let _ = world
        .api::<StatefulSet>()
        .delete("db", &DeleteParams::foreground())
        .await
        .unwrap();
    eventually("one is left", || async {
        let set: StatefulSet = world.get("db").await?;
        (set.metadata.deletion_timestamp.is_some() && set.status?.replicas == 1).then_some(())
    })
    .await;
    let_go::<Pod>(&world, "db-0").await;
    eventually("the set is gone", || async {
        world.get::<StatefulSet>("db").await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_instance_whose_labels_are_taken_away_is_let_go_and_taken_back_with_them() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(1, json!({}))).await;
    wait_for_ready(&world, 1).await;
    let before: Pod = world.get("db-0").await.unwrap();
    let owners = |wanted: usize| {
        let world = &world;
        async move {
            let pod: Pod = world.get("db-0").await?;
            (pod.owner_references().len() == wanted).then_some(pod)
        }
    };
    let labels = |app: Value| json!({ "metadata": { "labels": { "app": app } } });
    world.patch::<Pod>("db-0", labels(Value::Null)).await;
    eventually("it is let go", || owners(0)).await;
    world.patch::<Pod>("db-0", labels("db".into())).await;
    let after = eventually("it is taken back", || owners(1)).await;
    assert_eq!(after.uid(), before.uid());
}

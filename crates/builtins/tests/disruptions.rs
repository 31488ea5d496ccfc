//! Budgets: how many pods may be taken away, whoever controls them.

mod world;

use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use world::{Pods, World, eventually, template};

async fn pod(world: &World, name: &str, owner: Option<Value>) {
    let mut pod = template("web", "a:1");
    pod["metadata"]["name"] = name.into();
    if let Some(owner) = owner {
        pod["metadata"]["ownerReferences"] = json!([owner]);
    }
    world.create::<Pod>(pod).await;
}

async fn budget(world: &World, mut spec: Value) {
    spec["selector"] = json!({ "matchLabels": { "app": "web" } });
    let budget = json!({ "metadata": { "name": "web" }, "spec": spec });
    world.create::<PodDisruptionBudget>(budget).await;
}

/// Waits until the budget's status is that, in all that is named.
async fn status(world: &World, wanted: Value) {
    eventually(&format!("a status of {wanted}"), || async {
        let budget: PodDisruptionBudget = world.get("web").await?;
        let status = serde_json::to_value(budget.status?).ok()?;
        let same = |(field, value): (&String, &Value)| &status[field] == value;
        wanted.as_object()?.iter().all(same).then_some(())
    })
    .await;
}

async fn condition(world: &World, reason: &str, message: &str) {
    eventually(&format!("the reason {reason}"), || async {
        let budget: PodDisruptionBudget = world.get("web").await?;
        let conditions = budget.status?.conditions?;
        let ours = conditions.iter().find(|c| c.type_ == "DisruptionAllowed")?;
        (ours.reason == reason && ours.message.contains(message)).then_some(())
    })
    .await;
}

async fn event(world: &World, reason: &str) {
    eventually(&format!("an event {reason}"), || async {
        let events = world.list::<Event>().await;
        let told = |event: &Event| {
            event.reason.as_deref() == Some(reason) && event.involved_object.name.as_deref() == Some("web")
        };
        events.iter().any(told).then_some(())
    })
    .await;
}

/// Makes a kind known with a replica count at a place of its own, and tells how to reach it.
async fn troupes(world: &World) -> Api<DynamicObject> {
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let definition = serde_json::from_value(json!({
        "metadata": { "name": "troupes.stage.moorline.io" },
        "spec": {
            "group": "stage.moorline.io", "scope": "Namespaced",
            "names": { "plural": "troupes", "kind": "StatefulSet" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                "subresources": { "status": {}, "scale": {
                    "specReplicasPath": ".spec.players", "statusReplicasPath": ".status.players" } } }],
        },
    }))
    .expect("the definition is written rightly");
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .expect("the definition is good");
    let kind = ApiResource {
        group: "stage.moorline.io".into(),
        version: "v1".into(),
        api_version: "stage.moorline.io/v1".into(),
        kind: "StatefulSet".into(),
        plural: "troupes".into(),
    };
    let troupes: Api<DynamicObject> = Api::default_namespaced_with(world.client.clone(), &kind);
    eventually("the kind is served", || async {
        troupes.list(&ListParams::default()).await.ok()
    })
    .await;
    troupes
}

fn reference(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true })
}

#[tokio::test]
async fn a_budget_allows_as_many_disruptions_as_there_are_pods_to_spare() {
    let world = World::new(Pods::BecomeReady).await;
    budget(&world, json!({ "minAvailable": 2 })).await;
    event(&world, "NoPods").await;
    for name in ["a", "b", "c"] {
        pod(&world, name, None).await;
    }
    status(
        &world,
        json!({ "disruptionsAllowed": 1, "expectedPods": 3, "currentHealthy": 3, "desiredHealthy": 2 }),
    )
    .await;
    condition(&world, "SufficientPods", "").await;
    world.api::<Pod>().delete("a", &DeleteParams::default()).await.unwrap();
    status(
        &world,
        json!({ "disruptionsAllowed": 0, "expectedPods": 2, "currentHealthy": 2 }),
    )
    .await;
    condition(&world, "InsufficientPods", "").await;
}

/// The kind has the name of one of Kubernetes' own, which it is not.
#[tokio::test]
async fn a_share_of_the_pods_of_a_custom_kind_is_counted_by_its_scale() {
    let world = World::new(Pods::BecomeReady).await;
    let troupes = troupes(&world).await;
    let troupe = serde_json::from_value(json!({ "apiVersion": "stage.moorline.io/v1", "kind": "StatefulSet",
        "metadata": { "name": "t" }, "spec": { "players": 4 } }))
    .unwrap();
    let troupe = troupes.create(&PostParams::default(), &troupe).await.unwrap();
    let owner = reference("stage.moorline.io/v1", "StatefulSet", "t", &troupe.uid().unwrap());
    for name in ["a", "b", "c"] {
        pod(&world, name, Some(owner.clone())).await;
    }
    budget(&world, json!({ "minAvailable": "50%" })).await;
    status(
        &world,
        json!({ "expectedPods": 4, "desiredHealthy": 2, "currentHealthy": 3, "disruptionsAllowed": 1 }),
    )
    .await;
    // Nothing happens to the pods, and still it is seen.
    let patch = Patch::Merge(json!({ "spec": { "players": 6 } }));
    troupes.patch("t", &PatchParams::default(), &patch).await.unwrap();
    status(
        &world,
        json!({ "expectedPods": 6, "desiredHealthy": 3, "disruptionsAllowed": 0 }),
    )
    .await;
    let most = json!({ "spec": { "minAvailable": null, "maxUnavailable": 5 } });
    world.patch::<PodDisruptionBudget>("web", most).await;
    status(
        &world,
        json!({ "expectedPods": 6, "desiredHealthy": 1, "disruptionsAllowed": 2 }),
    )
    .await;
    troupes.delete("t", &DeleteParams::default()).await.unwrap();
    status(
        &world,
        json!({ "expectedPods": 0, "currentHealthy": 0, "disruptionsAllowed": 0 }),
    )
    .await;
}

#[tokio::test]
async fn a_budget_that_cannot_be_counted_allows_nothing_and_says_why() {
    let world = World::new(Pods::BecomeReady).await;
    let map = world.create::<ConfigMap>(json!({ "metadata": { "name": "m" } })).await;
    let owner = reference("v1", "ConfigMap", "m", &map.uid().unwrap());
    pod(&world, "a", Some(owner)).await;
    budget(&world, json!({ "maxUnavailable": 1 })).await;
    condition(
        &world,
        "SyncFailed",
        "configmaps does not implement the scale subresource",
    )
    .await;
    status(&world, json!({ "disruptionsAllowed": 0, "expectedPods": 0 })).await;
    event(&world, "CalculateExpectedPodCountFailed").await;
    // A number needs no count of what controllers want.
    world
        .patch::<PodDisruptionBudget>("web", json!({ "spec": { "maxUnavailable": null, "minAvailable": 0 } }))
        .await;
    status(&world, json!({ "disruptionsAllowed": 1, "expectedPods": 1 })).await;
    condition(&world, "SufficientPods", "").await;
}

#[tokio::test]
async fn pods_without_a_controller_are_not_expected_and_told_of() {
    let world = World::new(Pods::BecomeReady).await;
    pod(&world, "a", None).await;
    budget(&world, json!({ "maxUnavailable": "50%" })).await;
    status(
        &world,
        json!({ "disruptionsAllowed": 0, "expectedPods": 0, "currentHealthy": 1 }),
    )
    .await;
    event(&world, "UnmanagedPods").await;
}

#[tokio::test]
async fn a_pod_that_nobody_disrupted_after_all_says_so_no_longer() {
    let world = World::new(Pods::Wait).await;
    pod(&world, "old", None).await;
    pod(&world, "new", None).await;
    let say = async |pod: &str, ago: SignedDuration| {
        let since = (Timestamp::now() - ago).to_string();
        let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "DisruptionTarget",
            "status": "True", "reason": "EvictionByEvictionAPI", "lastTransitionTime": since }] } });
        let patched = world
            .api::<Pod>()
            .patch_status(pod, &PatchParams::default(), &Patch::Merge(status))
            .await;
        patched.unwrap();
    };
    say("new", SignedDuration::from_secs(30)).await;
    say("old", SignedDuration::from_mins(3)).await;
    let target = async |name: &str| {
        let pod: Pod = world.get(name).await?;
        let conditions = pod.status?.conditions?;
        conditions
            .into_iter()
            .find(|condition| condition.type_ == "DisruptionTarget")
    };
    eventually("the old one is taken back", || async {
        let condition = target("old").await?;
        (condition.status == "False" && condition.reason.is_none()).then_some(())
    })
    .await;
    assert_eq!(target("new").await.unwrap().status, "True");
}

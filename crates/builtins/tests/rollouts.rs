//! Replica sets and deployments where not everything goes well: refusals, pauses, ways back, what others left behind.

mod world;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use world::{Pods, World, eventually, template};

fn replica_set(replicas: i32) -> Value {
    json!({ "metadata": { "name": "web" }, "spec": { "replicas": replicas,
        "selector": { "matchLabels": { "app": "web" } }, "template": template("web", "a:1") } })
}

fn deployment(replicas: i32) -> Value {
    replica_set(replicas)
}

fn with_image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } })
}

async fn available(world: &World, replicas: i32, revision: &str) {
    eventually(&format!("revision {revision} is available"), || async {
        let deployment: Deployment = world.get("web").await?;
        let now = deployment
            .annotations()
            .get("deployment.kubernetes.io/revision")
            .cloned();
        let (generation, status) = (deployment.metadata.generation, deployment.status?);
        let settled = status.observed_generation == generation && status.updated_replicas == Some(replicas);
        let arrived = status.available_replicas == Some(replicas) && status.replicas == Some(replicas);
        (settled && arrived && now.as_deref() == Some(revision)).then_some(())
    })
    .await;
}

async fn progressing(world: &World) -> Option<DeploymentCondition> {
    let deployment: Deployment = world.get("web").await?;
    let (generation, status) = (deployment.metadata.generation, deployment.status?);
    let conditions = status.conditions.filter(|_| status.observed_generation == generation)?;
    conditions
        .into_iter()
        .find(|condition| condition.type_ == "Progressing")
}

async fn progressing_for(world: &World, reason: &str) -> DeploymentCondition {
    eventually(&format!("it progresses for the reason {reason}"), || async {
        let condition = progressing(world).await?;
        (condition.reason.as_deref() == Some(reason)).then_some(condition)
    })
    .await
}

async fn pods(world: &World, wanted: usize) {
    eventually(&format!("{wanted} pods"), || async {
        (world.pod_names().await.len() == wanted).then_some(())
    })
    .await;
}

/// The events of a reason.
async fn told(world: &World, reason: &str) -> Vec<Event> {
    let mut events = world.list::<Event>().await;
    events.retain(|event| event.reason.as_deref() == Some(reason));
    events
}

#[tokio::test]
async fn what_a_policy_refused_is_tried_again_when_the_policy_has_gone() {
    let world = World::new(Pods::BecomeReady).await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client.clone());
    let policy = json!({ "metadata": { "name": "no-pods" }, "spec": {
        "matchConstraints": { "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["pods"] }] },
        "validations": [{ "expression": "false", "message": "no pods today" }] } });
    let binding = json!({ "metadata": { "name": "no-pods" }, "spec": {
        "policyName": "no-pods", "validationActions": ["Deny"] } });
    let options = PostParams::default();
    policies
        .create(&options, &serde_json::from_value(policy).unwrap())
        .await
        .unwrap();
    bindings
        .create(&options, &serde_json::from_value(binding).unwrap())
        .await
        .unwrap();
    world.create::<ReplicaSet>(replica_set(1)).await;
    eventually("an event tells of the refusal", || async {
        let events = told(&world, "FailedCreate").await;
        let note = events.first()?.message.clone()?;
        (note.starts_with("Error creating: ") && note.contains("no pods today")).then_some(())
    })
    .await;
    assert!(told(&world, "ReconcileFailed").await.is_empty());
    bindings.delete("no-pods", &DeleteParams::default()).await.unwrap();
    pods(&world, 1).await;
}

#[tokio::test]
async fn what_happens_twice_is_told_twice() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Deployment>(deployment(1)).await;
    available(&world, 1, "1").await;
    for replicas in [3, 1, 3] {
        world
            .patch::<Deployment>("web", json!({ "spec": { "replicas": replicas } }))
            .await;
        available(&world, replicas, "1").await;
    }
    let set = world.list::<ReplicaSet>().await.remove(0);
    let note = format!("Scaled up replica set {} from 1 to 3", set.name_any());
    eventually("the event is counted twice", || async {
        let events = told(&world, "ScalingReplicaSet").await;
        let event = events
            .iter()
            .find(|event| event.message.as_deref() == Some(note.as_str()))?;
        (event.series.as_ref()?.count == Some(2)).then_some(())
    })
    .await;
    let deleted = told(&world, "SuccessfulDelete").await;
    assert_eq!(deleted.len(), 2, "each pod that went was told of");
}

#[tokio::test]
async fn a_rollout_that_is_resumed_after_its_deadline_has_its_time_again() {
    let world = World::new(Pods::BecomeReady).await;
    let mut object = deployment(2);
    // Long enough that a slow machine gets as far as the pause.
    object["spec"]["progressDeadlineSeconds"] = 8.into();
    world.create::<Deployment>(object).await;
    available(&world, 2, "1").await;
    let held = json!({ "spec": { "template": { "metadata": { "labels": { "hold": "yes" } } } } });
    world.patch::<Deployment>("web", held).await;
    progressing_for(&world, "ReplicaSetUpdated").await;
    world
        .patch::<Deployment>("web", json!({ "spec": { "paused": true } }))
        .await;
    let paused = progressing_for(&world, "DeploymentPaused").await;
    let since = paused.last_update_time.unwrap().0;
    eventually("the deadline would have passed", || async {
        (Timestamp::now().duration_since(since) > SignedDuration::from_secs(10)).then_some(())
    })
    .await;
    world
        .patch::<Deployment>("web", json!({ "spec": { "paused": false } }))
        .await;
    let first = eventually("the resumption is seen", || async {
        let condition = progressing(&world).await?;
        (condition.reason.as_deref() != Some("DeploymentPaused")).then_some(condition)
    })
    .await;
    assert_eq!(first.reason.as_deref(), Some("DeploymentResumed"));
    // It comes to nothing all the same, and a pause does not hide that.
    progressing_for(&world, "ProgressDeadlineExceeded").await;
    world
        .patch::<Deployment>("web", json!({ "spec": { "paused": true } }))
        .await;
    progressing_for(&world, "ProgressDeadlineExceeded").await;
}

#[tokio::test]
async fn a_paused_deployment_still_writes_on_its_set() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Deployment>(deployment(1)).await;
    available(&world, 1, "1").await;
    let patch =
        json!({ "metadata": { "annotations": { "team": "blue" } }, "spec": { "paused": true, "minReadySeconds": 1 } });
    world.patch::<Deployment>("web", patch).await;
    eventually("its set has both", || async {
        let set = world.list::<ReplicaSet>().await.remove(0);
        let annotated = set.annotations().get("team").is_some_and(|team| team == "blue");
        (annotated && set.spec?.min_ready_seconds == Some(1)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn old_revisions_go_while_a_deployment_is_paused_halfway() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Deployment>(deployment(1)).await;
    available(&world, 1, "1").await;
    world.patch::<Deployment>("web", with_image("a:2")).await;
    available(&world, 1, "2").await;
    let held = json!({ "spec": { "template": { "metadata": { "labels": { "hold": "yes" } } } } });
    world.patch::<Deployment>("web", held).await;
    eventually("a third set", || async {
        (world.list::<ReplicaSet>().await.len() == 3).then_some(())
    })
    .await;
    let rest = json!({ "spec": { "paused": true, "revisionHistoryLimit": 0 } });
    world.patch::<Deployment>("web", rest).await;
    eventually("the empty one is gone", || async {
        (world.list::<ReplicaSet>().await.len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_deployment_goes_back_to_the_revision_that_an_annotation_asks_for() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Deployment>(deployment(1)).await;
    available(&world, 1, "1").await;
    world.patch::<Deployment>("web", with_image("a:2")).await;
    available(&world, 1, "2").await;
    let back = |revision: &str| json!({ "metadata": { "annotations": { "deprecated.deployment.rollback.revisionTarget": revision } } });
    world.patch::<Deployment>("web", back("0")).await;
    available(&world, 1, "3").await;
    let deployment: Deployment = world.get("web").await.unwrap();
    let image = deployment
        .spec
        .as_ref()
        .unwrap()
        .template
        .spec
        .as_ref()
        .unwrap()
        .containers[0]
        .image
        .clone();
    assert_eq!(image.as_deref(), Some("a:1"));
    assert!(
        !deployment
            .annotations()
            .contains_key("deprecated.deployment.rollback.revisionTarget")
    );
    assert_eq!(told(&world, "DeploymentRollback").await.len(), 1);
    world.patch::<Deployment>("web", back("17")).await;
    eventually("that there is no such revision is told", || async {
        let events = told(&world, "DeploymentRollbackRevisionNotFound").await;
        let deployment: Deployment = world.get("web").await?;
        let asked = deployment
            .annotations()
            .contains_key("deprecated.deployment.rollback.revisionTarget");
        (!events.is_empty() && !asked).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_selector_of_everything_is_another_template_than_none() {
    let world = World::new(Pods::BecomeReady).await;
    let mut object = deployment(1);
    let term = |namespaces: Value| {
        json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1,
            "podAffinityTerm": { "topologyKey": "zone", "namespaceSelector": namespaces,
                "labelSelector": { "matchLabels": { "app": "web" } } } }] } })
    };
    object["spec"]["template"]["spec"]["affinity"] = term(Value::Null);
    world.create::<Deployment>(object).await;
    available(&world, 1, "1").await;
    let everywhere = json!({ "spec": { "template": { "spec": { "affinity": term(json!({})) } } } });
    world.patch::<Deployment>("web", everywhere).await;
    available(&world, 1, "2").await;
}

#[tokio::test]
async fn a_pod_that_names_its_set_as_an_owner_comes_under_its_control_and_one_that_has_ended_does_not() {
    let world = World::new(Pods::BecomeReady).await;
    let mut ended = template("web", "a:1");
    ended["metadata"]["name"] = "ended".into();
    ended["metadata"]["labels"]["hold"] = "yes".into();
    world.create::<Pod>(ended).await;
    world.finish("ended", 0).await;
    let set = world.create::<ReplicaSet>(replica_set(0)).await;
    eventually("the set was looked at", || async {
        world.get::<ReplicaSet>("web").await?.status?.observed_generation
    })
    .await;
    let mut pod = template("web", "a:1");
    pod["metadata"]["name"] = "owned".into();
    pod["metadata"]["finalizers"] = json!(["test.moorline.io/stay"]);
    pod["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": set.uid().unwrap() }]);
    world.create::<Pod>(pod).await;
    eventually("it is controlled", || async {
        let pod: Pod = world.get("owned").await?;
        let references = pod.owner_references();
        (references.len() == 1 && references[0].controller == Some(true)).then_some(())
    })
    .await;
    let ended: Pod = world.get("ended").await.unwrap();
    assert!(ended.owner_references().is_empty());
    world
        .patch::<Pod>("owned", json!({ "metadata": { "finalizers": null } }))
        .await;
}

#[tokio::test]
async fn what_is_being_deleted_still_counts_its_pods() {
    let world = World::new(Pods::BecomeReady).await;
    for kind in ["set", "deployment"] {
        let mut object = replica_set(2);
        object["metadata"]["finalizers"] = json!(["test.moorline.io/stay"]);
        if kind == "set" {
            world.create::<ReplicaSet>(object).await;
        } else {
            world.create::<Deployment>(object).await;
        }
        pods(&world, 2).await;
        let delete = DeleteParams::default();
        if kind == "set" {
            world.api::<ReplicaSet>().delete("web", &delete).await.unwrap();
        } else {
            world.api::<Deployment>().delete("web", &delete).await.unwrap();
        }
        for pod in world.pod_names().await {
            world.api::<Pod>().delete(&pod, &delete).await.unwrap();
            if kind == "set" {
                continue;
            }
            break;
        }
        eventually("the status follows", || async {
            if kind == "set" {
                let set: ReplicaSet = world.get("web").await?;
                let (generation, status) = (set.metadata.generation, set.status?);
                return (status.replicas == 0 && status.observed_generation == generation).then_some(());
            }
            let deployment: Deployment = world.get("web").await?;
            let (generation, status) = (deployment.metadata.generation, deployment.status?);
            (status.observed_generation == generation).then_some(())
        })
        .await;
        let free = json!({ "metadata": { "finalizers": null } });
        if kind == "set" {
            assert!(world.pod_names().await.is_empty(), "nobody makes pods for it any more");
            world.patch::<ReplicaSet>("web", free).await;
            eventually("it is gone", || async {
                world.get::<ReplicaSet>("web").await.is_none().then_some(())
            })
            .await;
        } else {
            world.patch::<Deployment>("web", free).await;
        }
    }
}

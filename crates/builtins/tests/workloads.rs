//! Sets of pods: replica sets, deployments, stateful sets, daemon sets.

mod world;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, ReplicationController, ResourceQuota};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use world::{Pods, World, eventually, template};

fn replica_set(replicas: i32) -> serde_json::Value {
    json!({ "metadata": { "name": "web" }, "spec": { "replicas": replicas,
        "selector": { "matchLabels": { "app": "web" } }, "template": template("web", "a:1") } })
}

#[expect(clippy::needless_pass_by_value, reason = "what a test writes down is nobody else's")]
fn deployment(replicas: i32, strategy: serde_json::Value) -> serde_json::Value {
    json!({ "metadata": { "name": "web" }, "spec": { "replicas": replicas, "strategy": strategy,
        "selector": { "matchLabels": { "app": "web" } }, "template": template("web", "a:1") } })
}

fn stateful_set(replicas: i32) -> serde_json::Value {
    json!({ "metadata": { "name": "db" }, "spec": { "replicas": replicas, "serviceName": "db",
        "selector": { "matchLabels": { "app": "db" } }, "template": template("db", "a:1"),
        "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } } } }] } })
}

async fn wait_for_ready_replicas(world: &World, wanted: i32) -> ReplicaSet {
    eventually("the replica set says that its pods are ready", || async {
        let set: ReplicaSet = world.get("web").await?;
        (set.status.as_ref()?.ready_replicas.unwrap_or(0) == wanted).then_some(set)
    })
    .await
}

async fn wait_for_ready_instances(world: &World, wanted: i32) {
    eventually("the stateful set says that its pods are ready", || async {
        let set: StatefulSet = world.get("db").await?;
        (set.status?.ready_replicas.unwrap_or(0) == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_replica_set_makes_as_many_pods_as_are_wanted_and_says_so() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<ReplicaSet>(replica_set(3)).await;
    let set = wait_for_ready_replicas(&world, 3).await;
    let status = set.status.unwrap();
    assert_eq!(
        (
            status.replicas,
            status.available_replicas,
            status.fully_labeled_replicas
        ),
        (3, Some(3), Some(3))
    );
    assert_eq!(status.observed_generation, set.metadata.generation);
    let pods = world.list::<Pod>().await;
    assert_eq!(pods.len(), 3);
    assert!(
        pods.iter()
            .all(|pod| pod.name_any().starts_with("web-") && pod.owner_references()[0].kind == "ReplicaSet")
    );
}

#[tokio::test]
async fn what_keeps_pods_from_being_made_is_told_by_their_set_and_its_deployment_until_it_is_over() {
    let world = World::new(Pods::BecomeReady).await;
    world
        .create::<ResourceQuota>(json!({ "metadata": { "name": "two" }, "spec": { "hard": { "pods": "2" } } }))
        .await;
    world.create::<Deployment>(deployment(3, json!(null))).await;
    let failure = eventually("the deployment tells of the failure", || async {
        let conditions = world.get::<Deployment>("web").await?.status?.conditions?;
        conditions
            .into_iter()
            .find(|condition| condition.type_ == "ReplicaFailure")
    })
    .await;
    let set = &world.list::<ReplicaSet>().await[0];
    let of_set = set.status.clone().unwrap().conditions.unwrap();
    assert_eq!(of_set[0].type_, "ReplicaFailure");
    let told = (&of_set[0].status, of_set[0].reason.as_deref(), &of_set[0].message);
    assert_eq!(told, (&failure.status, failure.reason.as_deref(), &failure.message));
    assert_eq!((told.0.as_str(), told.1), ("True", Some("FailedCreate")));
    let message = failure.message.unwrap();
    let refused = format!("pods \"{}-", set.name_any());
    assert!(message.starts_with(&refused), "{message}");
    assert!(message.contains("is forbidden: exceeded quota: two"), "{message}");
    assert_eq!(world.pod_names().await.len(), 2);

    world
        .patch::<Deployment>("web", json!({ "spec": { "replicas": 2 } }))
        .await;
    eventually("it is withdrawn", || async {
        let conditions = world.get::<Deployment>("web").await?.status?.conditions?;
        let set = world.list::<ReplicaSet>().await.remove(0);
        let told = conditions.iter().any(|condition| condition.type_ == "ReplicaFailure");
        (!told && set.status?.conditions.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_replication_controller_keeps_its_pods_and_tells_why_it_cannot() {
    let world = World::new(Pods::BecomeReady).await;
    world
        .create::<ResourceQuota>(json!({ "metadata": { "name": "one" }, "spec": { "hard": { "pods": "1" } } }))
        .await;
    let controller = json!({ "metadata": { "name": "web" }, "spec": { "replicas": 2,
        "selector": { "app": "web" }, "template": template("web", "a:1") } });
    world.create::<ReplicationController>(controller).await;
    eventually("it tells of the failure", || async {
        let status = world.get::<ReplicationController>("web").await?.status?;
        let failure = status
            .conditions?
            .into_iter()
            .find(|condition| condition.type_ == "ReplicaFailure")?;
        (status.ready_replicas == Some(1) && failure.reason.as_deref() == Some("FailedCreate")).then_some(())
    })
    .await;
    world
        .patch::<ReplicationController>("web", json!({ "spec": { "replicas": 1 } }))
        .await;
    eventually("it is withdrawn", || async {
        let status = world.get::<ReplicationController>("web").await?.status?;
        status.conditions.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_replica_set_that_shrinks_gives_up_pods_that_are_not_ready_first() {
    let world = World::new(Pods::Wait).await;
    world.create::<ReplicaSet>(replica_set(3)).await;
    let names = eventually("three pods", || async {
        Some(world.pod_names().await).filter(|names| names.len() == 3)
    })
    .await;
    world.make_ready(&names[1]).await;
    wait_for_ready_replicas(&world, 1).await;
    world
        .patch::<ReplicaSet>("web", json!({ "spec": { "replicas": 1 } }))
        .await;
    let left = eventually("one pod", || async {
        Some(world.pod_names().await).filter(|names| names.len() == 1)
    })
    .await;
    assert_eq!(left, [names[1].clone()]);
}

#[tokio::test]
async fn a_pod_whose_labels_no_longer_match_is_let_go_and_replaced() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<ReplicaSet>(replica_set(1)).await;
    wait_for_ready_replicas(&world, 1).await;
    let pod = world.pod_names().await.remove(0);
    world
        .patch::<Pod>(&pod, json!({ "metadata": { "labels": { "app": "other" } } }))
        .await;
    eventually("the pod has no owner and another one took its place", || async {
        let released: Pod = world.get(&pod).await?;
        (released.owner_references().is_empty() && world.pod_names().await.len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_orphan_that_matches_is_adopted_instead_of_making_another() {
    let world = World::new(Pods::BecomeReady).await;
    let mut orphan = template("web", "a:1");
    orphan["metadata"]["name"] = "orphan".into();
    world.create::<Pod>(orphan).await;
    world.create::<ReplicaSet>(replica_set(1)).await;
    wait_for_ready_replicas(&world, 1).await;
    assert_eq!(world.pod_names().await, ["orphan"]);
    let adopted: Pod = world.get("orphan").await.unwrap();
    assert_eq!(adopted.owner_references()[0].name, "web");
}

#[tokio::test]
async fn a_deployment_rolls_to_a_new_template_and_keeps_the_old_replica_set() {
    let world = World::new(Pods::BecomeReady).await;
    world
        .create::<Deployment>(deployment(3, json!({ "type": "RollingUpdate" })))
        .await;
    let done = |image: &'static str| {
        let world = &world;
        async move {
            let deployment: Deployment = world.get("web").await?;
            let status = deployment.status.clone()?;
            let is_done = status.updated_replicas == Some(3)
                && status.replicas == Some(3)
                && status.available_replicas == Some(3);
            let pods = world.list::<Pod>().await;
            let of_image = pods.iter().all(|pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| spec.containers[0].image.as_deref() == Some(image))
            });
            let condition = status
                .conditions?
                .into_iter()
                .find(|condition| condition.type_ == "Progressing")?;
            (is_done && of_image && condition.reason.as_deref() == Some("NewReplicaSetAvailable")).then_some(deployment)
        }
    };
    eventually("the first rollout", || done("a:1")).await;
    world
        .patch::<Deployment>("web", json!({ "spec": { "template": template("web", "a:2") } }))
        .await;
    let deployment = eventually("the second rollout", || done("a:2")).await;
    assert_eq!(
        deployment
            .annotations()
            .get("deployment.kubernetes.io/revision")
            .map(String::as_str),
        Some("2")
    );
    let mut sets = world.list::<ReplicaSet>().await;
    sets.sort_by_key(|set| set.annotations()["deployment.kubernetes.io/revision"].clone());
    let replicas: Vec<i32> = sets
        .iter()
        .map(|set| set.spec.as_ref().unwrap().replicas.unwrap())
        .collect();
    assert_eq!(replicas, [0, 3]);
    // Going back takes the old replica set up again, as the latest revision.
    world
        .patch::<Deployment>("web", json!({ "spec": { "template": template("web", "a:1") } }))
        .await;
    let deployment = eventually("the way back", || done("a:1")).await;
    assert_eq!(deployment.annotations()["deployment.kubernetes.io/revision"], "3");
    assert_eq!(world.list::<ReplicaSet>().await.len(), 2);
}

#[tokio::test]
async fn a_rollout_whose_pods_do_not_become_ready_keeps_enough_old_ones_and_times_out() {
    let world = World::new(Pods::BecomeReady).await;
    let mut object = deployment(4, json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } }));
    object["spec"]["progressDeadlineSeconds"] = 1.into();
    world.create::<Deployment>(object).await;
    eventually("four are available", || async {
        let deployment: Deployment = world.get("web").await?;
        (deployment.status?.available_replicas == Some(4)).then_some(())
    })
    .await;
    world
        .patch::<Deployment>(
            "web",
            json!({ "spec": { "template": { "metadata": { "labels": { "hold": "yes" } } } } }),
        )
        .await;
    eventually("the deadline has passed", || async {
        let deployment: Deployment = world.get("web").await?;
        let conditions = deployment.status?.conditions?;
        conditions
            .iter()
            .any(|condition| condition.reason.as_deref() == Some("ProgressDeadlineExceeded"))
            .then_some(())
    })
    .await;
    let pods = world.list::<Pod>().await;
    let (new, old): (Vec<&Pod>, Vec<&Pod>) = pods.iter().partition(|pod| pod.labels().contains_key("hold"));
    assert_eq!((new.len(), old.len()), (2, 3));
}

#[tokio::test]
async fn a_deployment_that_recreates_has_no_old_pod_when_the_first_new_one_comes() {
    let world = World::new(Pods::BecomeReady).await;
    world
        .create::<Deployment>(deployment(2, json!({ "type": "Recreate" })))
        .await;
    eventually("two pods", || async {
        (world.pod_names().await.len() == 2).then_some(())
    })
    .await;
    world
        .patch::<Deployment>(
            "web",
            json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": "a:2" }] } } } }),
        )
        .await;
    eventually("only new pods", || async {
        let images: Vec<String> = world
            .list::<Pod>()
            .await
            .iter()
            .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
            .collect();
        assert!(
            !(images.contains(&"a:1".to_owned()) && images.contains(&"a:2".to_owned())),
            "old and new at once"
        );
        (images == ["a:2", "a:2"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_paused_deployment_scales_but_does_not_roll() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Deployment>(deployment(1, json!({}))).await;
    eventually("one pod", || async {
        (world.pod_names().await.len() == 1).then_some(())
    })
    .await;
    world
        .patch::<Deployment>(
            "web",
            json!({ "spec": { "paused": true, "replicas": 3,
        "template": { "spec": { "containers": [{ "name": "main", "image": "a:2" }] } } } }),
        )
        .await;
    eventually("three pods", || async {
        (world.pod_names().await.len() == 3).then_some(())
    })
    .await;
    assert_eq!(world.list::<ReplicaSet>().await.len(), 1);
    world
        .patch::<Deployment>("web", json!({ "spec": { "paused": false } }))
        .await;
    eventually("a second replica set", || async {
        (world.list::<ReplicaSet>().await.len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stateful_set_starts_in_order_and_gives_each_its_claim() {
    let world = World::new(Pods::Wait).await;
    world.create::<StatefulSet>(stateful_set(3)).await;
    for number in 0..3 {
        let name = format!("db-{number}");
        eventually("the next instance", || async { world.get::<Pod>(&name).await }).await;
        let expected: Vec<String> = (0..=number).map(|number| format!("db-{number}")).collect();
        assert_eq!(
            world.pod_names().await,
            expected,
            "an instance waits for the one before it"
        );
        world.make_ready(&name).await;
    }
    wait_for_ready_instances(&world, 3).await;
    let claims: Vec<String> = world
        .list::<PersistentVolumeClaim>()
        .await
        .iter()
        .map(kube::ResourceExt::name_any)
        .collect();
    assert_eq!(claims, ["data-db-0", "data-db-1", "data-db-2"]);
    let pod: Pod = world.get("db-1").await.unwrap();
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(
        (spec.hostname.as_deref(), spec.subdomain.as_deref()),
        (Some("db-1"), Some("db"))
    );
    assert_eq!(pod.labels()["apps.kubernetes.io/pod-index"], "1");
}

#[tokio::test]
async fn a_stateful_set_shrinks_from_the_end_and_keeps_the_claims() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(3)).await;
    eventually("three", || async { (world.pod_names().await.len() == 3).then_some(()) }).await;
    world
        .patch::<StatefulSet>("db", json!({ "spec": { "replicas": 1 } }))
        .await;
    eventually("one", || async {
        Some(world.pod_names().await).filter(|names| *names == ["db-0"])
    })
    .await;
    assert_eq!(world.list::<PersistentVolumeClaim>().await.len(), 3);
}

#[tokio::test]
async fn a_stateful_set_that_is_not_well_does_not_shrink_until_its_last_is() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(3)).await;
    wait_for_ready_instances(&world, 3).await;
    for pod in ["db-0", "db-1", "db-2"] {
        world.make_unready(pod).await;
    }
    wait_for_ready_instances(&world, 0).await;
    let shrunk: StatefulSet = world.patch("db", json!({ "spec": { "replicas": 0 } })).await;
    eventually("the set has looked at it", || async {
        let set: StatefulSet = world.get("db").await?;
        (set.status?.observed_generation == shrunk.metadata.generation).then_some(())
    })
    .await;
    assert_eq!(world.pod_names().await, ["db-0", "db-1", "db-2"]);
    world.make_ready("db-2").await;
    eventually("the last is gone", || async {
        Some(world.pod_names().await).filter(|names| *names == ["db-0", "db-1"])
    })
    .await;
    world.make_ready("db-1").await;
    // The first that is not well goes, once it is the only one left.
    eventually("none", || async { world.pod_names().await.is_empty().then_some(()) }).await;
}

#[tokio::test]
async fn an_update_of_a_stateful_set_goes_from_the_end_down_to_the_partition() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(3)).await;
    wait_for_ready_instances(&world, 3).await;
    world
        .patch::<StatefulSet>(
            "db",
            json!({ "spec": {
        "updateStrategy": { "rollingUpdate": { "partition": 1 } },
        "template": { "spec": { "containers": [{ "name": "main", "image": "a:2" }] } } } }),
        )
        .await;
    let images = || async {
        let mut pods = world.list::<Pod>().await;
        pods.sort_by_key(kube::ResourceExt::name_any);
        pods.iter()
            .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
            .collect::<Vec<_>>()
    };
    eventually("two updated", || async {
        Some(images().await).filter(|images| *images == ["a:1", "a:2", "a:2"])
    })
    .await;
    world
        .patch::<StatefulSet>(
            "db",
            json!({ "spec": { "updateStrategy": { "rollingUpdate": { "partition": 0 } } } }),
        )
        .await;
    eventually("all updated", || async {
        let set: StatefulSet = world.get("db").await?;
        let status = set.status?;
        (images().await == ["a:2", "a:2", "a:2"]
            && status.current_revision == status.update_revision
            && status.updated_replicas == Some(3))
        .then_some(())
    })
    .await;
    assert_eq!(world.list::<ControllerRevision>().await.len(), 2);
}

#[tokio::test]
async fn an_instance_that_failed_is_made_again() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<StatefulSet>(stateful_set(1)).await;
    let first = eventually("the instance", || async { world.get::<Pod>("db-0").await }).await;
    world.finish("db-0", 1).await;
    eventually("another one of its name", || async {
        let pod: Pod = world.get("db-0").await?;
        (pod.uid() != first.uid() && pod.metadata.deletion_timestamp.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_daemon_set_runs_on_every_node_that_fits_and_follows_them() {
    let world = World::new(Pods::BecomeReady).await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    for (name, disk) in [("a", "ssd"), ("b", "ssd"), ("c", "hdd")] {
        let node = serde_json::from_value(json!({ "metadata": { "name": name, "labels": { "disk": disk } } })).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        // As a node lifecycle does for nodes that are ready.
        let untainted = json!({ "spec": { "taints": null } });
        nodes
            .patch(
                name,
                &kube::api::PatchParams::default(),
                &kube::api::Patch::Merge(untainted),
            )
            .await
            .unwrap();
    }
    let mut pods = template("agent", "a:1");
    pods["spec"]["nodeSelector"] = json!({ "disk": "ssd" });
    world
        .create::<DaemonSet>(json!({ "metadata": { "name": "agent" }, "spec": {
        "selector": { "matchLabels": { "app": "agent" } }, "template": pods } }))
        .await;
    eventually("two daemons", || async {
        let set: DaemonSet = world.get("agent").await?;
        let status = set.status?;
        (status.desired_number_scheduled == 2 && status.number_ready == 2).then_some(())
    })
    .await;
    let taint = json!({ "spec": { "taints": [{ "key": "k", "value": "v", "effect": "NoExecute" }] } });
    nodes
        .patch("b", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(taint))
        .await
        .unwrap();
    eventually("one daemon", || async {
        (world.pod_names().await.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn deleting_a_deployment_leaves_nothing_behind() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Deployment>(deployment(2, json!({}))).await;
    eventually("two pods", || async {
        (world.pod_names().await.len() == 2).then_some(())
    })
    .await;
    world
        .api::<Deployment>()
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    eventually("nothing", || async {
        (world.list::<Pod>().await.is_empty() && world.list::<ReplicaSet>().await.is_empty()).then_some(())
    })
    .await;
}

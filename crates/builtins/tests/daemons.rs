//! Daemon sets: which nodes have a pod, what becomes of those that fail, and how they move to another template.

mod world;

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use world::{Pods, World, eventually, template};

#[expect(clippy::needless_pass_by_value, reason = "what a test writes down is nobody else's")]
fn daemon_set(strategy: Value) -> Value {
    json!({ "metadata": { "name": "agent" }, "spec": { "selector": { "matchLabels": { "app": "agent" } },
        "updateStrategy": strategy, "template": template("agent", "a:1") } })
}

/// One pod may come beside another.
fn surging() -> Value {
    json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } })
}

fn image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } })
}

async fn with_nodes(world: &World, names: &[&str]) {
    let nodes: Api<Node> = Api::all(world.client.clone());
    for name in names {
        let node = serde_json::from_value(json!({ "metadata": { "name": name } })).expect("it is a node");
        nodes.create(&PostParams::default(), &node).await.expect("it is valid");
        // As a node lifecycle does for nodes that are ready.
        taint(world, name, json!(null)).await;
    }
}

async fn taint(world: &World, node: &str, taints: Value) {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
    nodes
        .patch(node, &PatchParams::default(), &patch)
        .await
        .expect("the patch is valid");
}

async fn wait_for_status(world: &World, what: &str, is_so: impl Fn(&DaemonSetStatus) -> bool) -> DaemonSetStatus {
    eventually(what, || async {
        let set: DaemonSet = world.get("agent").await?;
        let status = set.status?;
        (status.observed_generation == set.metadata.generation && is_so(&status)).then_some(status)
    })
    .await
}

/// The one pod that is there.
async fn only_pod(world: &World) -> Pod {
    eventually("one pod that is ready", || async {
        let pods = world.list::<Pod>().await;
        let is_ready = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.conditions.is_some());
        pods.first().filter(|pod| pods.len() == 1 && is_ready(pod)).cloned()
    })
    .await
}

async fn wait_for_event(world: &World, reason: &str, words: &str) {
    eventually(&format!("an event {reason}: {words}"), || async {
        let events = world.list::<Event>().await;
        let is_told = |event: &Event| {
            event.reason.as_deref() == Some(reason) && event.note.as_deref().is_some_and(|note| note.contains(words))
        };
        events.iter().any(is_told).then_some(())
    })
    .await;
}

/// Keeps a pod from going when it is deleted.
async fn hold(world: &World, pod: &str) {
    let held = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
    world.patch::<Pod>(pod, held).await;
}

/// Says that a pod is on its node, as a scheduler does.
async fn place(world: &World, pod: &str, node: &str) {
    let binding =
        json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": { "name": node } });
    world
        .api::<Pod>()
        .create_subresource::<Value, Value>("binding", pod, &PostParams::default(), &binding)
        .await
        .expect("the pod is placed");
}

#[tokio::test]
async fn a_pod_that_fails_again_is_left_for_a_while_before_the_next_one_comes() {
    let world = World::new(Pods::BecomeReady).await;
    with_nodes(&world, &["a"]).await;
    world.create::<DaemonSet>(daemon_set(json!(null))).await;
    let begun = Instant::now();
    for (failures, at_least) in [(1, Duration::ZERO), (2, Duration::from_secs(1))] {
        let failing = only_pod(&world).await;
        world.finish(&failing.name_any(), 1).await;
        eventually("another one is ready", || async {
            let pods = world.list::<Pod>().await;
            let is_next = |pod: &Pod| pod.uid() != failing.uid();
            pods.iter().find(|pod| is_next(pod)).map(|_| ())
        })
        .await;
        // The pause counts from the deletion before, which came after the beginning.
        assert!(
            begun.elapsed() >= at_least,
            "the pod after {failures} failures came too soon"
        );
        wait_for_event(&world, "FailedDaemonPod", &failing.name_any()).await;
        wait_for_event(
            &world,
            "SuccessfulDelete",
            &format!("Deleted pod: {}", failing.name_any()),
        )
        .await;
    }
    let set: DaemonSet = world.get("agent").await.unwrap();
    let told: Value = serde_json::from_str(&set.annotations()["moorline.io/failed-daemons"]).unwrap();
    assert_eq!(told["nodes"]["a"]["times"], 2);
}

#[tokio::test]
async fn a_pod_that_has_ended_well_is_told_of_and_replaced() {
    let world = World::new(Pods::BecomeReady).await;
    with_nodes(&world, &["a"]).await;
    world.create::<DaemonSet>(daemon_set(json!(null))).await;
    let first = only_pod(&world).await;
    world.finish(&first.name_any(), 0).await;
    wait_for_event(
        &world,
        "SucceededDaemonPod",
        &format!("{} on node a, will try", first.name_any()),
    )
    .await;
    eventually("another one", || async {
        let pods = world.list::<Pod>().await;
        pods.iter().any(|pod| pod.uid() != first.uid()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_node_where_an_old_pod_serves_beside_a_new_one_is_not_updated() {
    let world = World::new(Pods::BecomeReady).await;
    with_nodes(&world, &["a"]).await;
    world.create::<DaemonSet>(daemon_set(surging())).await;
    let old = only_pod(&world).await;
    place(&world, &old.name_any(), "a").await;
    wait_for_status(&world, "it serves", |status| status.number_available == Some(1)).await;
    let broken = json!({ "spec": { "template": { "metadata": { "labels": { "hold": "yes" } } } } });
    world.patch::<DaemonSet>("agent", broken).await;
    let new = eventually("a new one beside it", || async {
        let mut pods = world.list::<Pod>().await.into_iter();
        pods.find(|pod| pod.uid() != old.uid())
    })
    .await;
    world.make_unready(&new.name_any()).await;
    let status = wait_for_status(&world, "the new template is seen", |status| {
        status.number_available == Some(1) && status.current_number_scheduled == 1
    })
    .await;
    assert_eq!((status.updated_number_scheduled, status.number_ready), (None, 1));
    assert_eq!(world.pod_names().await.len(), 2);
    world.make_ready(&new.name_any()).await;
    eventually("the old one goes", || async {
        let old: Option<Pod> = world.get(&old.name_any()).await;
        old.is_none_or(|old| old.metadata.deletion_timestamp.is_some())
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_node_that_lets_a_pod_stay_does_not_count_as_one_that_wants_it() {
    let world = World::new(Pods::BecomeReady).await;
    with_nodes(&world, &["a", "b"]).await;
    world.create::<DaemonSet>(daemon_set(json!(null))).await;
    wait_for_status(&world, "two daemons", |status| status.number_available == Some(2)).await;
    taint(
        &world,
        "a",
        json!([{ "key": "k", "value": "v", "effect": "NoSchedule" }]),
    )
    .await;
    let status = wait_for_status(&world, "one is where it should not be", |status| {
        status.number_misscheduled == 1
    })
    .await;
    let counted = (
        status.desired_number_scheduled,
        status.current_number_scheduled,
        status.number_ready,
    );
    assert_eq!(counted, (1, 1, 1));
    assert_eq!(world.pod_names().await.len(), 2);
    // An update takes it away, and none comes back.
    world.patch::<DaemonSet>("agent", image("a:2")).await;
    wait_for_status(&world, "it is gone", |status| {
        status.number_misscheduled == 0 && status.updated_number_scheduled == Some(1)
    })
    .await;
    eventually("one is left", || async {
        (world.pod_names().await.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_is_going_does_not_keep_the_next_from_coming_where_two_are_allowed() {
    let world = World::new(Pods::BecomeReady).await;
    with_nodes(&world, &["a"]).await;
    world.create::<DaemonSet>(daemon_set(surging())).await;
    let first = only_pod(&world).await;
    hold(&world, &first.name_any()).await;
    let _ = world
        .api::<Pod>()
        .delete(&first.name_any(), &DeleteParams::default())
        .await
        .unwrap();
    let second = eventually("another one beside it", || async {
        let pods = world.list::<Pod>().await;
        let standing = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        (pods.len() == 2).then(|| pods.iter().find(standing).cloned())?
    })
    .await;
    let let_go = json!({ "metadata": { "finalizers": null } });
    world.patch::<Pod>(&first.name_any(), let_go).await;
    assert_eq!(only_pod(&world).await.uid(), second.uid());
    // An old one that serves nobody is replaced at once; that it stays for a while does not matter.
    hold(&world, &second.name_any()).await;
    world.make_unready(&second.name_any()).await;
    wait_for_status(&world, "the second serves nobody", |status| {
        status.number_available.is_none()
    })
    .await;
    world.patch::<DaemonSet>("agent", image("a:2")).await;
    eventually("a third one takes its place", || async {
        let pods = world.list::<Pod>().await;
        let standing = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        let standing: Vec<&Pod> = pods.iter().filter(standing).collect();
        let is_third = standing.len() == 1 && standing[0].uid() != second.uid();
        (pods.len() == 2 && is_third).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_has_ended_and_is_deleted_does_not_occupy_its_node() {
    let world = World::new(Pods::BecomeReady).await;
    with_nodes(&world, &["a"]).await;
    world.create::<DaemonSet>(daemon_set(json!(null))).await;
    let first = only_pod(&world).await;
    hold(&world, &first.name_any()).await;
    world.finish(&first.name_any(), 1).await;
    eventually("another one, while the first is still there", || async {
        let pods = world.list::<Pod>().await;
        (pods.len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_daemon_and_its_revision_tell_what_they_are_of() {
    let world = World::new(Pods::BecomeReady).await;
    with_nodes(&world, &["a"]).await;
    let mut set = daemon_set(json!(null));
    set["metadata"]["annotations"] = json!({ "kubernetes.io/change-cause": "the first" });
    world.create::<DaemonSet>(set).await;
    let pod = only_pod(&world).await;
    let revision = world.list::<ControllerRevision>().await.remove(0);
    assert_eq!(revision.annotations()["kubernetes.io/change-cause"], "the first");
    assert_eq!(
        pod.labels()["controller-revision-hash"],
        revision.labels()["controller-revision-hash"]
    );
    assert_eq!(pod.labels()["pod-template-generation"], "1");
}

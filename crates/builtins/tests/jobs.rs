//! Pods that run to their end: jobs.

mod world;

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use world::{Pods, World, eventually};

#[expect(clippy::needless_pass_by_value, reason = "what a test writes down is nobody else's")]
fn job(spec: Value) -> Value {
    let mut job = json!({ "metadata": { "name": "work" }, "spec": { "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "main", "image": "a:1" }] } } } });
    for (key, value) in spec.as_object().into_iter().flatten() {
        job["spec"][key] = value.clone();
    }
    job
}

async fn condition(world: &World, type_: &str) -> String {
    eventually(&format!("the job says {type_}"), || async {
        let job: Job = world.get("work").await?;
        let conditions = job.status?.conditions?;
        let found = conditions
            .into_iter()
            .find(|condition| condition.type_ == type_ && condition.status == "True")?;
        found.reason
    })
    .await
}

async fn pods(world: &World, count: usize) -> Vec<String> {
    eventually(&format!("{count} pods that have not ended"), || async {
        let pods = world.list::<Pod>().await.into_iter();
        let running = pods.filter(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
        });
        Some(running.map(|pod| pod.name_any()).collect::<Vec<_>>()).filter(|names| names.len() == count)
    })
    .await
}

#[tokio::test]
async fn a_job_is_complete_when_so_many_pods_have_succeeded() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<Job>(job(json!({ "completions": 3, "parallelism": 2 })))
        .await;
    for pod in pods(&world, 2).await {
        world.finish(&pod, 0).await;
    }
    let last = pods(&world, 1).await;
    world.finish(&last[0], 0).await;
    assert_eq!(condition(&world, "Complete").await, "CompletionsReached");
    let job: Job = world.get("work").await.unwrap();
    let status = job.status.unwrap();
    assert_eq!((status.succeeded, status.failed, status.active), (Some(3), None, None));
    assert!(status.completion_time.is_some() && status.start_time.is_some());
    eventually("no pod is held any more", || async {
        world
            .list::<Pod>()
            .await
            .iter()
            .all(|pod| pod.finalizers().is_empty())
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_job_fails_when_its_pods_failed_more_often_than_allowed() {
    let world = World::new(Pods::Wait).await;
    world.create::<Job>(job(json!({ "backoffLimit": 0 }))).await;
    let names = pods(&world, 1).await;
    world.finish(&names[0], 1).await;
    assert_eq!(condition(&world, "Failed").await, "BackoffLimitExceeded");
    let job: Job = world.get("work").await.unwrap();
    assert_eq!(job.status.unwrap().failed, Some(1));
}

#[tokio::test]
async fn pods_of_an_indexed_job_know_their_index_and_are_counted_by_it() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<Job>(job(
            json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed" }),
        ))
        .await;
    for name in pods(&world, 3).await {
        let pod: Pod = world.get(&name).await.unwrap();
        let index = pod.annotations()["batch.kubernetes.io/job-completion-index"].clone();
        assert!(name.starts_with(&format!("work-{index}-")));
        assert_eq!(
            pod.spec.as_ref().unwrap().hostname.as_deref(),
            Some(format!("work-{index}").as_str())
        );
        world.finish(&name, 0).await;
    }
    condition(&world, "Complete").await;
    let job: Job = world.get("work").await.unwrap();
    assert_eq!(job.status.unwrap().completed_indexes.as_deref(), Some("0-2"));
}

#[tokio::test]
async fn an_exit_code_that_a_policy_names_fails_the_job_at_once() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<Job>(job(json!({ "backoffLimit": 6, "podFailurePolicy": { "rules": [
        { "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } }] } })))
        .await;
    let names = pods(&world, 1).await;
    world.finish(&names[0], 42).await;
    assert_eq!(condition(&world, "Failed").await, "PodFailurePolicy");
}

/// The one pod of an index that has not ended.
async fn pod_of_index(world: &World, index: &str) -> String {
    eventually(&format!("a pod of index {index}"), || async {
        let pods = world.list::<Pod>().await.into_iter();
        let mut open = pods.filter(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.annotations()["batch.kubernetes.io/job-completion-index"] == index
                && !matches!(phase, Some("Succeeded" | "Failed"))
        });
        open.next().map(|pod| pod.name_any())
    })
    .await
}

#[tokio::test]
async fn an_index_that_has_failed_for_good_fails_the_job_once_the_others_are_through() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        "podFailurePolicy": { "rules": [
            { "action": "FailIndex", "onExitCodes": { "operator": "In", "values": [42] } }] } });
    world.create::<Job>(job(spec)).await;
    world.finish(&pod_of_index(&world, "0").await, 42).await;
    let ago = Duration::from_mins(1);
    world
        .finish_with(&pod_of_index(&world, "1").await, 1, ago, json!([]))
        .await;
    world.finish(&pod_of_index(&world, "2").await, 0).await;
    let second = pod_of_index(&world, "1").await;
    let failures =
        world.get::<Pod>(&second).await.unwrap().annotations()["batch.kubernetes.io/job-index-failure-count"].clone();
    assert_eq!(failures, "1");
    world.finish(&second, 1).await;
    assert_eq!(condition(&world, "Failed").await, "FailedIndexes");
    let status = world.get::<Job>("work").await.unwrap().status.unwrap();
    assert_eq!(status.failed_indexes.as_deref(), Some("0,1"));
    assert_eq!(status.completed_indexes.as_deref(), Some("2"));
}

#[tokio::test]
async fn an_index_that_waits_for_its_next_try_holds_up_no_other() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "completions": 3, "parallelism": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 1 });
    world.create::<Job>(job(spec)).await;
    world.finish(&pod_of_index(&world, "0").await, 1).await;
    world.finish(&pod_of_index(&world, "1").await, 1).await;
    let last = pod_of_index(&world, "2").await;
    assert_eq!(pods(&world, 1).await, [last], "the others wait");
}

#[tokio::test]
async fn a_job_ends_when_more_indexes_have_failed_than_may() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "backoffLimitPerIndex": 0, "maxFailedIndexes": 1 });
    world.create::<Job>(job(spec)).await;
    world.finish(&pod_of_index(&world, "0").await, 1).await;
    world.finish(&pod_of_index(&world, "2").await, 1).await;
    assert_eq!(condition(&world, "Failed").await, "MaxFailedIndexesExceeded");
    pods(&world, 0).await;
    let status = world.get::<Job>("work").await.unwrap().status.unwrap();
    assert_eq!(
        (status.failed, status.failed_indexes.as_deref()),
        (Some(3), Some("0,2")),
        "what is stopped counts, and has not failed its index"
    );
}

#[tokio::test]
async fn a_job_has_succeeded_when_its_success_policy_says_so_though_indexes_are_pending() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "successPolicy": { "rules": [{ "succeededIndexes": "0-1", "succeededCount": 1 }] } });
    world.create::<Job>(job(spec)).await;
    pods(&world, 3).await;
    world.finish(&pod_of_index(&world, "1").await, 0).await;
    assert_eq!(condition(&world, "SuccessCriteriaMet").await, "SuccessPolicy");
    assert_eq!(condition(&world, "Complete").await, "SuccessPolicy");
    pods(&world, 0).await;
    let status = world.get::<Job>("work").await.unwrap().status.unwrap();
    assert_eq!(
        (status.succeeded, status.completed_indexes.as_deref()),
        (Some(1), Some("1"))
    );
    assert_eq!(
        status.failed, None,
        "what is stopped because it is not needed has not failed"
    );
}

#[tokio::test]
async fn a_failure_that_a_policy_ignores_is_not_counted_and_the_pod_is_replaced() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "backoffLimit": 0, "podFailurePolicy": { "rules": [
        { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }] } });
    world.create::<Job>(job(spec)).await;
    let first = pods(&world, 1).await.remove(0);
    let disrupted = json!([{ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" }]);
    world.finish_with(&first, 137, Duration::from_mins(1), disrupted).await;
    let second = eventually("another pod", || async {
        pods(&world, 1).await.into_iter().find(|name| *name != first)
    })
    .await;
    world.finish(&second, 0).await;
    condition(&world, "Complete").await;
    assert_eq!(world.get::<Job>("work").await.unwrap().status.unwrap().failed, None);
}

#[tokio::test]
async fn a_job_that_somebody_else_manages_is_left_to_them() {
    let world = World::new(Pods::Wait).await;
    let mut theirs = job(json!({ "managedBy": "example.com/queue" }));
    theirs["metadata"]["name"] = "theirs".into();
    world.create::<Job>(theirs).await;
    world.create::<Job>(job(json!({}))).await;
    let made = pods(&world, 1).await;
    assert!(made[0].starts_with("work-"), "{made:?}");
    assert!(
        world
            .get::<Job>("theirs")
            .await
            .unwrap()
            .status
            .is_none_or(|status| status.start_time.is_none())
    );
}

#[tokio::test]
async fn a_suspended_job_has_no_pods_until_it_is_resumed() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<Job>(job(json!({ "parallelism": 2, "completions": 2 })))
        .await;
    pods(&world, 2).await;
    world.patch::<Job>("work", json!({ "spec": { "suspend": true } })).await;
    pods(&world, 0).await;
    assert_eq!(condition(&world, "Suspended").await, "JobSuspended");
    world
        .patch::<Job>("work", json!({ "spec": { "suspend": false } }))
        .await;
    pods(&world, 2).await;
}

#[tokio::test]
async fn pods_that_go_because_the_job_is_suspended_have_not_failed() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<Job>(job(json!({ "parallelism": 3, "completions": 3, "backoffLimit": 0 })))
        .await;
    let first = pods(&world, 3).await;
    world.patch::<Job>("work", json!({ "spec": { "suspend": true } })).await;
    eventually("all pods are gone and none is active", || async {
        let status = world.get::<Job>("work").await?.status?;
        (world.list::<Pod>().await.is_empty() && status.active.is_none()).then_some(())
    })
    .await;
    eventually("people are told", || async {
        let note = format!("Deleted pod: {}", first[0]);
        let events = world.list::<Event>().await;
        let mut deleted = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("SuccessfulDelete"));
        deleted.find(|event| event.note.as_deref() == Some(&note)).map(drop)
    })
    .await;
    world
        .patch::<Job>("work", json!({ "spec": { "suspend": false } }))
        .await;
    for pod in pods(&world, 3).await {
        world.finish(&pod, 0).await;
    }
    condition(&world, "Complete").await;
    assert_eq!(world.get::<Job>("work").await.unwrap().status.unwrap().failed, None);
}

#[tokio::test]
async fn pods_that_go_because_fewer_are_wanted_have_not_failed() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<Job>(job(json!({ "parallelism": 3, "completions": 2, "backoffLimit": 0 })))
        .await;
    pods(&world, 2).await;
    world
        .patch::<Job>("work", json!({ "spec": { "parallelism": 1 } }))
        .await;
    for _ in 0..2 {
        let left = pods(&world, 1).await;
        world.finish(&left[0], 0).await;
    }
    condition(&world, "Complete").await;
    assert_eq!(world.get::<Job>("work").await.unwrap().status.unwrap().failed, None);
}

/// A pod runs and has not been ready for so long that nobody waits any more.
async fn be_long_unready(world: &World, pod: &str) {
    let then = (Timestamp::now() - Duration::from_mins(1)).to_string();
    let status = json!({ "status": { "phase": "Running", "conditions": [
        { "type": "Ready", "status": "False", "lastTransitionTime": then }] } });
    world
        .api::<Pod>()
        .patch_status(pod, &PatchParams::default(), &Patch::Merge(status))
        .await
        .expect("the status is valid");
}

/// The pod of an index that was made after this one.
async fn successor(world: &World, index: &str, before: &str) -> Pod {
    eventually(&format!("another pod of index {index}"), || async {
        let pods = world.list::<Pod>().await.into_iter();
        let mut others = pods.filter(|pod| pod.name_any() != before);
        others.find(|pod| pod.annotations()["batch.kubernetes.io/job-completion-index"] == index)
    })
    .await
}

#[tokio::test]
async fn a_failure_that_a_policy_ignores_does_not_use_up_the_tries_of_an_index() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "completions": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        "podFailurePolicy": { "rules": [
            { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }] } });
    world.create::<Job>(job(spec)).await;
    let first = pod_of_index(&world, "0").await;
    let disrupted = json!([{ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" }]);
    world.finish_with(&first, 137, Duration::from_mins(1), disrupted).await;
    let second = successor(&world, "0", &first).await;
    let told = |key: &str| {
        second
            .annotations()
            .get(&format!("batch.kubernetes.io/job-index-{key}"))
            .cloned()
    };
    assert_eq!(told("failure-count").as_deref(), Some("0"));
    assert_eq!(told("ignored-failure-count").as_deref(), Some("1"));
    eventually("the first pod is no longer held", || async {
        world.get::<Pod>(&first).await?.finalizers().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_index_whose_pod_is_deleted_does_not_forget_that_it_has_failed() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "completions": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 1 });
    world.create::<Job>(job(spec)).await;
    for failures in ["0", "1"] {
        let pod = pods(&world, 1).await.remove(0);
        let annotations = world.get::<Pod>(&pod).await.unwrap().metadata.annotations.unwrap();
        assert_eq!(annotations["batch.kubernetes.io/job-index-failure-count"], failures);
        be_long_unready(&world, &pod).await;
        world.api::<Pod>().delete(&pod, &DeleteParams::default()).await.unwrap();
    }
    assert_eq!(condition(&world, "Failed").await, "FailedIndexes");
    assert_eq!(world.get::<Job>("work").await.unwrap().status.unwrap().failed, Some(2));
}

#[tokio::test]
async fn an_index_does_not_wait_for_a_pod_that_takes_long_to_go() {
    let world = World::new(Pods::Wait).await;
    let mut work = job(json!({ "completions": 1, "completionMode": "Indexed" }));
    work["spec"]["template"]["spec"]["nodeName"] = "far-away".into();
    world.create::<Job>(work).await;
    let first = pod_of_index(&world, "0").await;
    be_long_unready(&world, &first).await;
    world
        .api::<Pod>()
        .delete(&first, &DeleteParams::default())
        .await
        .unwrap();
    successor(&world, "0", &first).await;
    assert!(
        world.get::<Pod>(&first).await.is_some(),
        "its node has not said that it is gone"
    );
}

/// A job whose selector is written by hand, and the labels that it selects.
fn by_hand(spec: Value) -> Value {
    let mut job = job(spec);
    job["spec"]["manualSelector"] = true.into();
    job["spec"]["selector"] = json!({ "matchLabels": { "run": "by-hand" } });
    job["spec"]["template"]["metadata"] = json!({ "labels": { "run": "by-hand" } });
    job
}

fn orphan(annotations: &Value) -> Value {
    json!({ "metadata": { "name": "orphan", "labels": { "run": "by-hand" }, "annotations": annotations },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "a:1" }] } })
}

#[tokio::test]
async fn a_pod_that_is_adopted_is_counted() {
    let world = World::new(Pods::Wait).await;
    world.create::<Pod>(orphan(&json!({}))).await;
    world.create::<Job>(by_hand(json!({}))).await;
    eventually("the pod is adopted and held", || async {
        let pod: Pod = world.get("orphan").await?;
        let is_held = pod
            .finalizers()
            .iter()
            .any(|name| name == "batch.kubernetes.io/job-tracking");
        (is_held && pod.owner_references().iter().any(|owner| owner.name == "work")).then_some(())
    })
    .await;
    world.finish("orphan", 0).await;
    condition(&world, "Complete").await;
    assert_eq!(
        world.get::<Job>("work").await.unwrap().status.unwrap().succeeded,
        Some(1)
    );
    assert_eq!(world.list::<Pod>().await.len(), 1, "nobody did the work again");
}

#[tokio::test]
async fn a_pod_of_an_index_that_the_job_does_not_have_is_not_held() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<Pod>(orphan(&json!({ "batch.kubernetes.io/job-completion-index": "5" })))
        .await;
    world.finish("orphan", 0).await;
    let spec = json!({ "completions": 1, "completionMode": "Indexed" });
    world.create::<Job>(by_hand(spec)).await;
    world.finish(&pod_of_index(&world, "0").await, 0).await;
    condition(&world, "Complete").await;
    let status = world.get::<Job>("work").await.unwrap().status.unwrap();
    assert_eq!(
        (status.completed_indexes.as_deref(), status.succeeded),
        (Some("0"), Some(1))
    );
}

#[tokio::test]
async fn an_index_that_the_job_no_longer_has_is_forgotten() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "backoffLimitPerIndex": 0, "maxFailedIndexes": 1 });
    world.create::<Job>(job(spec)).await;
    world.finish(&pod_of_index(&world, "2").await, 1).await;
    let failed_indexes = async |expected: &str| {
        eventually(&format!("the failed indexes are {expected:?}"), || async {
            let status = world.get::<Job>("work").await?.status?;
            status.failed_indexes.filter(|indexes| indexes == expected)
        })
        .await
    };
    failed_indexes("2").await;
    let fewer = json!({ "spec": { "completions": 2, "parallelism": 2 } });
    world.patch::<Job>("work", fewer).await;
    failed_indexes("").await;
    for index in ["0", "1"] {
        world.finish(&pod_of_index(&world, index).await, 0).await;
    }
    condition(&world, "Complete").await;
}

#[tokio::test]
async fn a_finished_job_goes_when_its_time_is_up_whoever_managed_it() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<Job>(job(
            json!({ "managedBy": "example.com/queue", "ttlSecondsAfterFinished": 0 }),
        ))
        .await;
    let now = Timestamp::now().to_string();
    let holds = |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": now });
    let status = json!({ "status": { "startTime": now, "completionTime": now, "succeeded": 1, "ready": 0,
        "terminating": 0, "uncountedTerminatedPods": {},
        "conditions": [holds("SuccessCriteriaMet"), holds("Complete")] } });
    world
        .api::<Job>()
        .patch_status("work", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    eventually("the job is gone", || async {
        world.get::<Job>("work").await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_finished_job_goes_when_its_time_is_up() {
    let world = World::new(Pods::Wait).await;
    world.create::<Job>(job(json!({ "ttlSecondsAfterFinished": 0 }))).await;
    let names = pods(&world, 1).await;
    world.finish(&names[0], 0).await;
    eventually("the job and its pod are gone", || async {
        (world.get::<Job>("work").await.is_none() && world.list::<Pod>().await.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn pods_of_a_job_that_is_deleted_are_not_held_by_it() {
    let world = World::new(Pods::Wait).await;
    world.create::<Job>(job(json!({}))).await;
    pods(&world, 1).await;
    world
        .api::<Job>()
        .delete("work", &DeleteParams::background())
        .await
        .unwrap();
    eventually("no pod is left", || async {
        world.list::<Pod>().await.is_empty().then_some(())
    })
    .await;
}

//! Jobs at the times of a schedule: cron jobs.

mod world;

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use world::{Pods, World, eventually};

/// What a job does: it waits for the test.
fn work() -> Value {
    json!({ "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "main", "image": "a:1" }] } } })
}

/// A cron job that is due every second.
#[expect(clippy::needless_pass_by_value, reason = "what a test writes down is nobody else's")]
fn tick(spec: Value) -> Value {
    let mut cron = json!({ "metadata": { "name": "tick" }, "spec": { "schedule": "@every 1s",
        "jobTemplate": { "spec": work() } } });
    for (key, value) in spec.as_object().into_iter().flatten() {
        cron["spec"][key] = value.clone();
    }
    cron
}

/// A job that a cron job controls, though it did not make it.
fn child(cron: &CronJob, name: &str) -> Value {
    json!({ "metadata": { "name": name, "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "CronJob",
        "name": cron.name_any(), "uid": cron.uid(), "controller": true }] }, "spec": work() })
}

async fn event(world: &World, reason: &str, note: &str) {
    eventually(&format!("the event {reason}: {note}"), || async {
        let events = world.list::<Event>().await.into_iter();
        let mut told = events.filter(|event| event.reason.as_deref() == Some(reason));
        told.find(|event| event.note.as_deref().is_some_and(|told| told.contains(note)))
            .map(drop)
    })
    .await;
}

/// The names of the jobs that a cron job says are active.
async fn active(world: &World) -> Option<Vec<String>> {
    let active = world.get::<CronJob>("tick").await?.status?.active?;
    Some(active.into_iter().filter_map(|job| job.name).collect())
}

async fn active_job(world: &World) -> String {
    eventually("a job is active", || async { active(world).await?.pop() }).await
}

#[tokio::test]
async fn a_cron_job_starts_a_job_at_its_time_and_names_it_by_that() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<CronJob>(tick(json!({ "concurrencyPolicy": "Forbid" })))
        .await;
    let job = eventually("a job", || async { world.list::<Job>().await.into_iter().next() }).await;
    assert!(job.name_any().starts_with("tick-"));
    assert_eq!(job.owner_references()[0].kind, "CronJob");
    let cron = eventually("the cron job says that it is active", || async {
        let cron: CronJob = world.get("tick").await?;
        cron.status
            .as_ref()?
            .active
            .as_ref()
            .map(Vec::len)
            .filter(|active| *active == 1)
            .map(|_| cron.clone())
    })
    .await;
    assert!(cron.status.unwrap().last_schedule_time.is_some());
    assert_eq!(world.list::<Job>().await.len(), 1, "another one waits for the first");
}

#[tokio::test]
async fn a_time_whose_job_could_not_be_made_is_not_lost() {
    let world = World::new(Pods::Wait).await;
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "count/jobs.batch": "0" } } });
    world.create::<ResourceQuota>(quota).await;
    world.create::<CronJob>(tick(json!({}))).await;
    eventually("somebody is told that there is no room for a job", || async {
        let events = world.list::<Event>().await.into_iter();
        let mut notes = events.filter_map(|event| event.note);
        notes.find(|note| note.contains("exceeded quota")).map(drop)
    })
    .await;
    let status = world.get::<CronJob>("tick").await.unwrap().status;
    assert!(status.is_none_or(|status| status.last_schedule_time.is_none()));
    world
        .api::<ResourceQuota>()
        .delete("none", &DeleteParams::default())
        .await
        .unwrap();
    active_job(&world).await;
    let status = world.get::<CronJob>("tick").await.unwrap().status.unwrap();
    assert!(status.last_schedule_time.is_some());
}

#[tokio::test]
async fn a_job_that_somebody_starts_by_hand_is_no_run_of_the_schedule() {
    for policy in ["Replace", "Forbid"] {
        let world = World::new(Pods::Wait).await;
        let spec = json!({ "concurrencyPolicy": policy, "suspend": true });
        let cron: CronJob = world.create(tick(spec)).await;
        world.create::<Job>(child(&cron, "by-hand")).await;
        event(&world, "UnexpectedJob", "forgot: by-hand").await;
        world
            .patch::<CronJob>("tick", json!({ "spec": { "suspend": false } }))
            .await;
        let runs = eventually("a job is active", || active(&world)).await;
        assert!(runs.len() == 1 && runs[0].starts_with("tick-"), "{runs:?}");
        let by_hand: Job = world.get("by-hand").await.unwrap();
        assert!(by_hand.metadata.deletion_timestamp.is_none());
    }
}

#[tokio::test]
async fn people_are_told_what_becomes_of_the_jobs() {
    let world = World::new(Pods::Wait).await;
    let spec = json!({ "concurrencyPolicy": "Forbid", "successfulJobsHistoryLimit": 1 });
    world.create::<CronJob>(tick(spec)).await;
    let first = active_job(&world).await;
    world
        .api::<Job>()
        .delete(&first, &DeleteParams::background())
        .await
        .unwrap();
    event(&world, "MissingJob", &format!("Active job went missing: {first}")).await;
    let pod = eventually("a pod of the next job", || async {
        let next = world.get::<Job>(&active(&world).await?.pop()?).await?;
        let mut pods = world.list::<Pod>().await.into_iter();
        let is_next = |pod: &Pod| {
            pod.owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == next.metadata.uid.as_ref())
        };
        pods.find(is_next).map(|pod| pod.name_any())
    })
    .await;
    world.finish(&pod, 0).await;
    event(&world, "SawCompletedJob", "condition: Complete").await;
    world
        .patch::<CronJob>("tick", json!({ "spec": { "successfulJobsHistoryLimit": 0 } }))
        .await;
    event(&world, "SuccessfulDelete", "Deleted job tick-").await;
}

#[tokio::test]
async fn a_schedule_that_never_comes_is_told() {
    let world = World::new(Pods::Wait).await;
    world
        .create::<CronJob>(tick(json!({ "schedule": "59 23 31 2 *" })))
        .await;
    event(&world, "InvalidSchedule", "invalid schedule: 59 23 31 2 * : ").await;
}

#[tokio::test]
async fn the_time_of_the_last_success_never_goes_back() {
    let world = World::new(Pods::Wait).await;
    let cron: CronJob = world.create(tick(json!({ "suspend": true }))).await;
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    let earlier = now - Duration::from_hours(1);
    for (name, end) in [("late", now), ("early", earlier)] {
        let mut job = child(&cron, name);
        // Nobody runs it but the test.
        job["spec"]["managedBy"] = "example.com/test".into();
        world.create::<Job>(job).await;
        let holds = |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": end.to_string() });
        let status = json!({ "status": { "startTime": earlier.to_string(), "completionTime": end.to_string(),
            "succeeded": 1, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {},
            "conditions": [holds("SuccessCriteriaMet"), holds("Complete")] } });
        let patch = Patch::Merge(status);
        world
            .api::<Job>()
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    let last_success = async || {
        let status = world.get::<CronJob>("tick").await?.status?;
        status.last_successful_time.map(|time| time.0)
    };
    eventually("the later success is told", || async {
        last_success().await.filter(|time| *time == now)
    })
    .await;
    world
        .api::<Job>()
        .delete("late", &DeleteParams::background())
        .await
        .unwrap();
    // Jobs that are not its own show when it has looked: what the first look came to is written before the second.
    for name in ["first-look", "second-look"] {
        world.create::<Job>(child(&cron, name)).await;
        event(&world, "UnexpectedJob", &format!("forgot: {name}")).await;
    }
    assert_eq!(last_success().await, Some(now));
}

#[tokio::test]
async fn a_job_that_cannot_be_replaced_gets_no_other_beside_it() {
    let world = World::new(Pods::Wait).await;
    let policy = json!({ "metadata": { "name": "keep-jobs" }, "spec": {
        "matchConstraints": { "resourceRules": [{ "apiGroups": ["batch"], "apiVersions": ["v1"],
            "operations": ["DELETE"], "resources": ["jobs"] }] },
        "validations": [{ "expression": "false", "message": "jobs are kept" }] } });
    let binding = json!({ "metadata": { "name": "keep-jobs" }, "spec": {
        "policyName": "keep-jobs", "validationActions": ["Deny"] } });
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client.clone());
    let policy = serde_json::from_value(policy).unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let binding = serde_json::from_value(binding).unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let spec = json!({ "concurrencyPolicy": "Replace", "suspend": true });
    let cron: CronJob = world.create(tick(spec)).await;
    let mut run = child(&cron, "tick-1");
    run["metadata"]["annotations"] =
        json!({ "batch.kubernetes.io/cronjob-scheduled-timestamp": "1970-01-01T00:01:00Z" });
    world.create::<Job>(run).await;
    assert_eq!(active_job(&world).await, "tick-1");
    world
        .patch::<CronJob>("tick", json!({ "spec": { "suspend": false } }))
        .await;
    eventually("somebody is told that the job cannot be deleted", || async {
        let events = world.list::<Event>().await.into_iter();
        let mut notes = events.filter_map(|event| event.note);
        notes.find(|note| note.contains("jobs are kept")).map(drop)
    })
    .await;
    let jobs: Vec<String> = world.list::<Job>().await.iter().map(Job::name_any).collect();
    assert_eq!(jobs, ["tick-1"]);
}

//! Pods from their creation to their end.

use serde_json::json;

use crate::{
    Bench,
    bench::{IMAGE, condition, phase, shell},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_logs_tells_its_status_and_goes() {
    let Some(bench) = Bench::start(&["node-1"]).await else { return };
    bench
        .create(
            "web",
            json!({ "terminationGracePeriodSeconds": 2, "containers": [
                shell("c", "echo hello from $(hostname); trap 'exit 0' TERM; while true; do sleep 0.1; done"),
            ] }),
        )
        .await;
    let pod = bench.running("web").await;
    let status = pod.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some("node-1"));
    assert!(status.pod_ip.is_some());
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.started == Some(true));
    assert_eq!(container.image, IMAGE);
    for name in ["PodReadyToStartContainers", "Initialized", "ContainersReady", "PodScheduled"] {
        assert_eq!(condition(&pod, name), Some("True"), "{name}");
    }
    assert_eq!(bench.log("web").await, "hello from web\n");
    bench.deleted("web").await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_ends_tells_how() {
    let Some(bench) = Bench::start(&["node-1"]).await else { return };
    bench
        .create(
            "fails",
            json!({ "restartPolicy": "Never", "containers": [shell("c", "echo -n bye > /dev/termination-log; exit 3")] }),
        )
        .await;
    bench.create("works", json!({ "restartPolicy": "Never", "containers": [shell("c", "true")] })).await;
    bench
        .create(
            "nothing",
            json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": IMAGE, "command": ["/no/such"] }] }),
        )
        .await;
    let ended = |pod: &k8s_openapi::api::core::v1::Pod| {
        let statuses = pod.status.clone().unwrap().container_statuses.unwrap();
        statuses[0].state.clone().unwrap().terminated.unwrap()
    };
    let failed = bench.over("fails").await;
    assert_eq!(phase(&failed), "Failed");
    let state = ended(&failed);
    assert_eq!((state.exit_code, state.reason.as_deref()), (3, Some("Error")));
    assert_eq!(state.message.as_deref(), Some("bye"));
    let worked = bench.over("works").await;
    assert_eq!(phase(&worked), "Succeeded");
    assert_eq!(ended(&worked).reason.as_deref(), Some("Completed"));
    let nothing = bench.over("nothing").await;
    assert_eq!((phase(&nothing), ended(&nothing).reason.as_deref()), ("Failed", Some("StartError")));
    bench.finish().await;
}

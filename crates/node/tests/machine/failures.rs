//! Machines that are started again, and nodes that are made to fail.

use moorline_node::Mode;
use serde_json::json;

use crate::{
    Bench,
    bench::{phase, shell},
};

const FOREVER: &str = "while true; do sleep 0.1; done";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_starts_again_takes_its_pods_over() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    bench
        .create(
            "p",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("c", FOREVER)] }),
        )
        .await;
    let before = bench.running("p").await;
    let id = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status.clone().unwrap().container_statuses.unwrap()[0]
            .container_id
            .clone()
    };
    let bench = bench.restarted(|_| {}).await;
    let after = bench.running("p").await;
    assert_eq!(id(&before), id(&after), "it is the same container");
    bench.deleted("p").await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_node_loses_its_pods_and_brings_them_back() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    bench
        .create(
            "p",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("c", FOREVER)] }),
        )
        .await;
    bench.running("p").await;
    bench.machine.set_mode("node-1", Mode::Stopped).await.unwrap();
    assert!(bench.machine.stats("node-1").is_empty(), "nothing runs");
    assert_eq!(
        phase(&bench.pods().get("p").await.unwrap()),
        "Running",
        "nobody knows yet"
    );
    bench.machine.set_mode("node-1", Mode::Running).await.unwrap();
    bench
        .until("p", "running again", |pod| {
            let statuses = pod
                .status
                .as_ref()
                .and_then(|status| status.container_statuses.as_ref());
            statuses.is_some_and(|statuses| statuses[0].restart_count == 1 && statuses[0].ready)
        })
        .await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_keeps_its_pods_and_hears_nothing() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    bench
        .create(
            "p",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("c", FOREVER)] }),
        )
        .await;
    bench.running("p").await;
    bench.machine.set_mode("node-1", Mode::CutOff).await.unwrap();
    bench
        .pods()
        .delete("p", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(bench.machine.stats("node-1").len(), 1, "it runs on");
    bench.machine.set_mode("node-1", Mode::Running).await.unwrap();
    let gone =
        kube::runtime::wait::await_condition(bench.pods(), "p", |pod: Option<&k8s_openapi::api::core::v1::Pod>| {
            pod.is_none()
        });
    tokio::time::timeout(crate::bench::PATIENCE, gone)
        .await
        .unwrap()
        .unwrap();
    bench.finish().await;
}

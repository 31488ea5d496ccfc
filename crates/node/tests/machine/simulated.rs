//! Nodes that only seem to run pods.

use std::time::Instant;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::PostParams,
    runtime::{WatchStreamExt as _, watcher},
};
use moorline_node::{NodeConfig, SIMULATED, SimulatedConfig};
use serde_json::json;

use crate::{
    Bench,
    bench::{PATIENCE, condition, pod},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_of_pods_becomes_ready_without_containers() {
    const PODS: usize = 300;
    let none: [NodeConfig; 0] = [];
    let simulated = SimulatedConfig {
        nodes: 5,
        ..SimulatedConfig::default()
    };
    let Some(bench) = Bench::with(none.to_vec(), Some(simulated)).await else {
        return;
    };
    let begin = Instant::now();
    let api: Api<Pod> = bench.pods();
    stream::iter(0..PODS)
        .for_each_concurrent(16, |number| {
            let api = api.clone();
            async move {
                let spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
                api.create(&PostParams::default(), &pod(&format!("p{number}"), spec))
                    .await
                    .unwrap();
            }
        })
        .await;
    let mut ready = std::collections::BTreeSet::new();
    let mut events = watcher(api, watcher::Config::default()).applied_objects().boxed();
    while ready.len() < PODS {
        let pod = tokio::time::timeout(PATIENCE, events.try_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        if condition(&pod, "Ready") == Some("True") {
            assert_eq!(condition(&pod, SIMULATED), Some("True"), "it is marked as what it is");
            ready.insert(pod.metadata.name.unwrap());
        }
    }
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    bench.finish().await;
}

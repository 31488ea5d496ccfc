//! `kubectl top`.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use moorline_apiserver::streams::access::{NodeUsage, PodUsage, Usage};

use crate::harness::Cluster;

fn usage(cpu_millicores: u64, memory_mebibytes: u64) -> Usage {
    Usage {
        cpu_nanocores: cpu_millicores * 1_000_000,
        memory_bytes: memory_mebibytes << 20,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_pods_and_nodes_use_is_shown() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app", "side"]).await;
    let pod = |name: &str| PodUsage {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        taken: Timestamp::now(),
        window: Duration::from_secs(15),
        containers: BTreeMap::from([("app".to_owned(), usage(250, 64)), ("side".to_owned(), usage(5, 8))]),
    };
    // One that is deleted already is not shown.
    *cluster.pods.pod_usage.lock().unwrap() = vec![pod("web"), pod("gone")];
    *cluster.pods.node_usage.lock().unwrap() = vec![NodeUsage {
        name: "n1".to_owned(),
        taken: Timestamp::now(),
        window: Duration::from_secs(15),
        usage: usage(1500, 2048),
    }];
    for document in ["/openapi/v3/apis/metrics.k8s.io/v1beta1", "/openapi/v2"] {
        assert!(
            cluster.ok(&["get", "--raw", document]).await.contains("metrics.k8s.io"),
            "{document}"
        );
    }
    let pods = cluster.ok(&["top", "pod", "--no-headers"]).await;
    assert_eq!(pods.split_whitespace().collect::<Vec<_>>(), ["web", "255m", "72Mi"]);
    let containers = cluster.ok(&["top", "pod", "web", "--containers", "--no-headers"]).await;
    let rows: Vec<Vec<&str>> = containers.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows, [["web", "app", "250m", "64Mi"], ["web", "side", "5m", "8Mi"]]);
    let nodes = cluster.ok(&["top", "node", "--no-headers"]).await;
    assert!(
        nodes.starts_with("n1") && nodes.contains("1500m") && nodes.contains("2048Mi"),
        "{nodes}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_anyone_who_runs_pods_there_are_no_metrics() {
    let cluster = Cluster::start_unreachable().await;
    let stderr = cluster.fails(&["top", "pod"]).await;
    assert!(stderr.contains("Metrics API not available"), "{stderr}");
}

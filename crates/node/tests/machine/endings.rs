//! What is left of pods that have ended, and pods that end so that others live.

use std::{path::Path, process::Command, time::Duration};

use k8s_openapi::api::core::v1::{Event, Node};
use kube::{Api, ResourceExt as _, runtime::wait::await_condition};
use serde_json::json;

use super::{
    Bench,
    bench::{PATIENCE, condition, phase, pod, shell},
};

/// Waits until a directory has nothing in it.
async fn until_empty(directory: &Path) {
    let started = tokio::time::Instant::now();
    loop {
        let left: Vec<_> = std::fs::read_dir(directory).expect("it is there").flatten().collect();
        if left.is_empty() {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "there is still {left:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_over_keeps_nothing_but_its_log() {
    let Some(bench) = Bench::start(&["n1"]).await else {
        return;
    };
    let spec = json!({ "restartPolicy": "Never",
        "volumes": [{ "name": "v", "emptyDir": {} }],
        "containers": [{ "name": "c", "image": super::bench::IMAGE, "command": ["sh", "-c", "echo said; echo kept > /v/f"],
            "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }] });
    bench.create("done", spec).await;
    bench.over("done").await;
    let directory = bench.config.directory.clone();
    until_empty(&directory.join("pods")).await;
    until_empty(&directory.join("containers").join("pods")).await;
    assert_eq!(bench.log("done").await, "said\n");
    let before = bench.pods().get("done").await.unwrap();
    assert_eq!(condition(&before, "PodReadyToStartContainers"), Some("False"));

    let bench = bench.restarted(|_| {}).await;
    let next = json!({ "terminationGracePeriodSeconds": 0, "containers": [shell("c", "sleep 1000")] });
    bench.create("next", next).await;
    bench.running("next").await;
    let after = bench.pods().get("done").await.unwrap();
    assert_eq!(after.status, before.status, "there is nothing to say of it any more");
    assert_eq!(bench.log("done").await, "said\n");
    bench.deleted("done").await;
    bench.deleted("next").await;
    until_empty(&directory.join("logs")).await;
    bench.finish().await;
}

/// A file system in memory, until it is dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(place: &'a Path, mebibytes: u32) -> Self {
        std::fs::create_dir_all(place).expect("it can be made");
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(place)
            .status();
        assert!(mounted.expect("mount is there").success());
        Self(place)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

fn disk_pressure(node: Option<&Node>) -> Option<&str> {
    let conditions = node?.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == "DiskPressure")?;
    Some(&found.status)
}

async fn until_disk_pressure(bench: &Bench, wanted: &str) {
    let nodes: Api<Node> = Api::all(bench.client.clone());
    let said = await_condition(nodes, "n1", |node: Option<&Node>| disk_pressure(node) == Some(wanted));
    tokio::time::timeout(PATIENCE, said)
        .await
        .expect("in time")
        .expect("the watch holds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_fills_the_disk_ends_and_no_other() {
    let place = tempfile::tempdir().unwrap();
    let mut disk = None;
    let configured = Bench::configured(|config| {
        disk = Some(SmallDisk::mount(place.path(), 64));
        config.directory = place.path().join("machine");
        config.nodes = vec![moorline_node::NodeConfig::new("n1")];
        config.pressure.thresholds = "nodefs.available<30%".parse().unwrap();
        config.pressure.look = Duration::from_millis(100);
        config.pressure.hold = Duration::from_hours(1);
    });
    let Some(bench) = configured.await else { return };
    let quiet = json!({ "containers": [shell("c", "sleep 1000")] });
    bench.create("quiet", quiet.clone()).await;
    let before = bench.running("quiet").await;
    let mut greedy = json!({ "containers": [shell("c", "dd if=/dev/zero of=/v/f bs=1M; sleep 1000")],
        "volumes": [{ "name": "v", "emptyDir": {} }] });
    greedy["containers"][0]["volumeMounts"] = json!([{ "name": "v", "mountPath": "/v" }]);
    bench.create("greedy", greedy).await;
    let ended = bench.over("greedy").await.status.unwrap();
    assert_eq!(
        (ended.phase.as_deref(), ended.reason.as_deref()),
        (Some("Failed"), Some("Evicted"))
    );
    let message = ended.message.unwrap();
    assert!(
        message
            .starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: 20132659, available: "),
        "{message}"
    );
    until_disk_pressure(&bench, "True").await;

    // Nobody is let in who was sent past the scheduler, which sends nobody.
    let mut sent = quiet.clone();
    sent["nodeName"] = json!("n1");
    bench.create("sent", sent).await;
    let refused = bench.over("sent").await.status.unwrap();
    assert_eq!(refused.reason.as_deref(), Some("Evicted"));
    assert_eq!(
        refused.message.as_deref(),
        Some("Pod was rejected: The node had condition: [DiskPressure]. ")
    );
    bench.create("waits", quiet).await;
    bench
        .until("waits", "kept waiting", |pod| {
            condition(pod, "PodScheduled") == Some("False")
        })
        .await;

    // What the greedy one wrote goes when its volume does; nobody starts on a disk that is full.
    let probe = place.path().join("probe");
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while std::fs::write(&probe, vec![0; 32 << 20]).is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the disk stayed full");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::remove_file(&probe).unwrap();
    let bench = bench.restarted(|config| config.pressure.hold = Duration::ZERO).await;
    until_disk_pressure(&bench, "False").await;
    bench.running("waits").await;
    let after = bench.pods().get("quiet").await.unwrap();
    let attempts = |pod: &k8s_openapi::api::core::v1::Pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
        statuses.map(|statuses| (statuses[0].container_id.clone(), statuses[0].restart_count))
    };
    assert_eq!((phase(&after), attempts(&after)), ("Running", attempts(&before)));
    let events: Api<Event> = Api::default_namespaced(bench.client.clone());
    let events = events.list(&kube::api::ListParams::default()).await.unwrap();
    let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
    for reason in ["Evicted", "EvictionThresholdMet", "NodeHasDiskPressure"] {
        assert!(reasons.contains(&reason), "{reason} is not among {reasons:?}");
    }
    bench.finish().await;
    drop(disk);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn want_of_memory_ends_pods_and_keeps_out_who_does_not_say_what_it_needs() {
    let configured = Bench::configured(|config| {
        config.nodes = vec![moorline_node::NodeConfig::new("n1")];
        // Whatever the machine has, it is short of memory.
        config.pressure.thresholds = "memory.available<99.99%".parse().unwrap();
        config.pressure.look = Duration::from_millis(100);
    });
    let Some(bench) = configured.await else { return };
    let nodes: Api<Node> = Api::all(bench.client.clone());
    let short = |node: Option<&Node>| {
        let node = node
            .and_then(|node| node.spec.as_ref())
            .and_then(|spec| spec.taints.as_ref());
        node.is_some_and(|taints| {
            taints
                .iter()
                .any(|taint| taint.key == "node.kubernetes.io/memory-pressure")
        })
    };
    let said = await_condition(nodes, "n1", short);
    tokio::time::timeout(PATIENCE, said).await.expect("in time").unwrap();
    let on_the_node = |container| json!({ "nodeName": "n1", "containers": [container] });
    bench.create("vague", on_the_node(shell("c", "sleep 1000"))).await;
    let refused = bench.over("vague").await.status.unwrap();
    assert_eq!(
        refused.message.as_deref(),
        Some("Pod was rejected: The node had condition: [MemoryPressure]. ")
    );
    let mut modest = shell("c", "sleep 1000");
    modest["resources"] = json!({ "requests": { "memory": "1Ki" } });
    let created = pod("modest", on_the_node(modest));
    let created = bench
        .pods()
        .create(&kube::api::PostParams::default(), &created)
        .await
        .unwrap();
    assert_eq!(created.name_any(), "modest");
    let ended = bench.over("modest").await.status.unwrap();
    assert_eq!(ended.reason.as_deref(), Some("Evicted"));
    let message = ended.message.unwrap();
    assert!(
        message.starts_with("The node was low on resource: memory. "),
        "{message}"
    );
    bench.finish().await;
}

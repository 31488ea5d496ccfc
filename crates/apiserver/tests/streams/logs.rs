//! `kubectl logs`.

use serde_json::json;

use crate::harness::{Cluster, Running};

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_read_whole_in_part_and_with_times() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    cluster.pods.start("app", "printf 'one\\ntwo\\nthree\\n'");
    cluster.pods.has_said("app", 3).await;
    assert_eq!(cluster.ok(&["logs", "web"]).await, "one\ntwo\nthree\n");
    assert_eq!(cluster.ok(&["logs", "web", "--tail=1"]).await, "three\n");
    assert_eq!(cluster.ok(&["logs", "web", "--limit-bytes=5"]).await, "one\nt");
    assert_eq!(
        cluster.ok(&["logs", "web", "--since=1h", "-c", "app"]).await,
        "one\ntwo\nthree\n"
    );
    assert_eq!(
        cluster.ok(&["logs", "web", "--since-time=2100-01-01T00:00:00Z"]).await,
        ""
    );
    let timed = cluster.ok(&["logs", "web", "--timestamps"]).await;
    let (time, line) = timed.lines().next().unwrap().split_once(' ').unwrap();
    assert_eq!((line, time.len()), ("one", "2026-01-01T00:00:00.000000000Z".len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_comes_as_it_is_written_and_ends_with_its_container() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    let gate = cluster.path("gate");
    let script = format!(
        "echo before; while [ ! -e {} ]; do sleep 0.02; done; echo after",
        gate.display()
    );
    cluster.pods.start("app", &script);
    let mut logs = Running::of(cluster.kubectl(&["logs", "-f", "web"]).spawn().unwrap());
    assert_eq!(logs.line().await, "before");
    std::fs::write(gate, "").unwrap();
    assert_eq!(logs.line().await, "after");
    assert_eq!(logs.child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_not_there_says_why() {
    let cluster = Cluster::start().await;
    cluster.running_pod("pair", &["a", "b"]).await;
    let waiting = json!([{
        "name": "app", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "ContainerCreating" } },
    }]);
    cluster
        .pod_with(
            "slow",
            &["app"],
            json!({ "phase": "Pending", "containerStatuses": waiting }),
        )
        .await;
    let raw = |pod: &str, query: &str| format!("/api/v1/namespaces/default/pods/{pod}/log{query}");
    for (path, complaint) in [
        (
            raw("pair", ""),
            "a container name must be specified for pod pair, choose one of: [a b]",
        ),
        (raw("pair", "?container=c"), "container c is not valid for pod pair"),
        (
            raw("slow", ""),
            r#"container "app" in pod "slow" is waiting to start: ContainerCreating"#,
        ),
        (
            raw("pair", "?container=a&previous=true"),
            r#"previous terminated container "a" in pod "pair" not found"#,
        ),
        (raw("nobody", ""), r#"pods "nobody" not found"#),
        (raw("pair", "?container=a&tailLines=-1"), "tailLines: Invalid value"),
    ] {
        let stderr = cluster.fails(&["get", "--raw", &path]).await;
        assert!(stderr.contains(complaint), "{path}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_before_this_one_has_its_own_log() {
    let cluster = Cluster::start().await;
    let status = json!([{
        "name": "app", "image": "i", "imageID": "", "ready": true, "restartCount": 1,
        "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
        "lastState": { "terminated": { "exitCode": 1, "containerID": "test://1" } },
    }]);
    cluster
        .pod_with(
            "web",
            &["app"],
            json!({ "phase": "Running", "containerStatuses": status }),
        )
        .await;
    cluster.pods.start("app", "echo now");
    cluster.pods.start("app-previous", "echo then");
    cluster.pods.has_said("app", 1).await;
    cluster.pods.has_said("app-previous", 1).await;
    assert_eq!(cluster.ok(&["logs", "web"]).await, "now\n");
    assert_eq!(cluster.ok(&["logs", "web", "--previous"]).await, "then\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_reaches_no_node_says_so() {
    let cluster = Cluster::start_unreachable().await;
    cluster.running_pod("web", &["app"]).await;
    for arguments in [&["logs", "web"][..], &["exec", "web", "--", "true"]] {
        let stderr = cluster.fails(arguments).await;
        assert!(stderr.contains("error dialing backend"), "{arguments:?}: {stderr}");
    }
}

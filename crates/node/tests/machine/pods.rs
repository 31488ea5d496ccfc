//! Pods from their creation to their end.

use serde_json::json;

use crate::{
    Bench,
    bench::{IMAGE, condition, phase, shell},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_logs_tells_its_status_and_goes() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
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
    for name in [
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
        "PodScheduled",
    ] {
        assert_eq!(condition(&pod, name), Some("True"), "{name}");
    }
    bench.until_log("web", "hello from web\n").await;
    bench.deleted("web").await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_ends_tells_how() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    bench
        .create(
            "fails",
            json!({ "restartPolicy": "Never", "containers": [shell("c", "echo -n bye > /dev/termination-log; exit 3")] }),
        )
        .await;
    bench
        .create(
            "works",
            json!({ "restartPolicy": "Never", "containers": [shell("c", "true")] }),
        )
        .await;
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
    assert_eq!(
        (phase(&nothing), ended(&nothing).reason.as_deref()),
        ("Failed", Some("StartError"))
    );
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_containers_come_first_and_sidecars_stay() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    let mut sidecar = shell("side", "while true; do sleep 0.1; done");
    sidecar["restartPolicy"] = json!("Always");
    let mount = json!([{ "name": "v", "mountPath": "/v" }]);
    let mut first = shell("first", "echo one > /v/order");
    first["volumeMounts"] = mount.clone();
    let mut main = shell("main", "cat /v/order; while true; do sleep 0.1; done");
    main["volumeMounts"] = mount;
    bench
        .create(
            "p",
            json!({ "terminationGracePeriodSeconds": 1, "volumes": [{ "name": "v", "emptyDir": {} }],
                    "initContainers": [first, sidecar], "containers": [main] }),
        )
        .await;
    let pod = bench.running("p").await;
    let inits = pod.status.unwrap().init_container_statuses.unwrap();
    assert_eq!(
        inits[0].state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code,
        0
    );
    assert!(inits[1].state.as_ref().unwrap().running.is_some());
    bench.until_log("p", "one\n").await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_decide_about_traffic_and_restarts() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    let mut healthy = shell("c", "touch /ok; while true; do sleep 0.1; done");
    healthy["readinessProbe"] = json!({ "exec": { "command": ["cat", "/ok"] }, "periodSeconds": 1 });
    bench
        .create(
            "ready",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [healthy] }),
        )
        .await;
    let mut ill = shell("c", "while true; do sleep 0.1; done");
    ill["livenessProbe"] = json!({ "exec": { "command": ["cat", "/no"] }, "periodSeconds": 1, "failureThreshold": 1 });
    bench
        .create(
            "ill",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [ill] }),
        )
        .await;
    let mut web = shell("c", "echo ok > /tmp/index.html; httpd -f -p 8080 -h /tmp");
    web["readinessProbe"] = json!({ "httpGet": { "path": "/index.html", "port": 8080 }, "periodSeconds": 1 });
    bench
        .create(
            "web",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [web] }),
        )
        .await;
    bench.running("ready").await;
    bench.running("web").await;
    bench
        .until("ill", "restarted", |pod| {
            let statuses = pod
                .status
                .as_ref()
                .and_then(|status| status.container_statuses.as_ref());
            statuses.is_some_and(|statuses| statuses[0].restart_count > 0)
        })
        .await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_in_a_container_and_ports_lead_to_it() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    bench
        .create(
            "p",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [
                shell("c", "echo hi > /tmp/index.html; httpd -f -p 127.0.0.1:8080 -h /tmp"),
            ] }),
        )
        .await;
    bench.running("p").await;
    let key = moorline_node::Key::new("default", "p");
    let spec = moorline_node::container::ExecSpec::new(vec!["sh".into(), "-c".into(), "echo out; exit 7".into()]);
    let mut session = bench.machine.exec(&key, None, spec).await.unwrap();
    let mut output = String::new();
    session
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .await
        .unwrap();
    assert_eq!((output.as_str(), session.wait().await.unwrap().code), ("out\n", 7));
    let mut answer = String::new();
    for _ in 0..100 {
        if let Ok(mut stream) = bench.machine.port_forward(&key, 8080).await {
            stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").await.unwrap();
            stream.read_to_string(&mut answer).await.unwrap();
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(answer.ends_with("hi\n"), "{answer}");
    assert!(!bench.machine.stats("node-1").is_empty());
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_past_its_memory_is_killed_and_that_is_said() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    let mut greedy = shell("c", "tail /dev/zero");
    greedy["resources"] = json!({ "limits": { "memory": "16Mi" } });
    bench
        .create("p", json!({ "restartPolicy": "Never", "containers": [greedy] }))
        .await;
    let pod = bench.over("p").await;
    let status = &pod.status.unwrap().container_statuses.unwrap()[0];
    let ended = status.state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("OOMKilled")));
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_cannot_be_had_is_said_to_be() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    bench
        .create(
            "p",
            json!({ "containers": [{ "name": "c", "image": "127.0.0.1:9/nothing:1", "imagePullPolicy": "Never" }] }),
        )
        .await;
    let waits = |reason: &'static str| {
        move |pod: &k8s_openapi::api::core::v1::Pod| {
            let statuses = pod
                .status
                .as_ref()
                .and_then(|status| status.container_statuses.as_ref());
            let state = statuses.and_then(|statuses| statuses[0].state.clone());
            state
                .and_then(|state| state.waiting)
                .is_some_and(|waiting| waiting.reason.as_deref() == Some(reason))
        }
    };
    bench.until("p", "without an image", waits("ErrImageNeverPull")).await;
    bench
        .create(
            "q",
            json!({ "containers": [{ "name": "c", "image": "127.0.0.1:9/nothing:1" }] }),
        )
        .await;
    bench
        .until("q", "waiting for an image", waits("ImagePullBackOff"))
        .await;
    bench.deleted("p").await;
    bench.finish().await;
}

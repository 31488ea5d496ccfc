//! `moorline up` and `down` as a person types them, with the real kubectl and real processes.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "every function here belongs to a test")]

mod databases;
mod instance;
mod rootless;

use std::{fs, process::Command};

use instance::{Instance, said, wait_until};
use serde_json::{Value, json};

const TICKER: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"ticker"},"spec":{"replicas":2,
  "selector":{"matchLabels":{"app":"ticker"}},"template":{"metadata":{"labels":{"app":"ticker"}},"spec":{
  "terminationGracePeriodSeconds":0,"containers":[{"name":"main","image":"example.com/busybox:1",
  "command":["sh","-c","while true; do echo tick; sleep 1; done"]}]}}}}"#;

#[test]
fn pods_run_outlive_a_killed_moorline_and_leave_nothing_behind() {
    let Some(instance) = Instance::new() else { return };
    let up = instance.ok(&["up", "--detach", "--nodes", "2"]);
    assert!(up.starts_with("up: 2 nodes at https://127.0.0.1:"), "{up}");
    assert!(
        instance
            .ok(&["up", "--detach", "--nodes", "2"])
            .starts_with("already up: 2 nodes")
    );
    assert_eq!(instance.get(&["nodes"])["items"].as_array().unwrap().len(), 2);

    let manifest = instance.temporary.path().join("ticker.json");
    fs::write(&manifest, TICKER).unwrap();
    instance.kubectl_ok(&["apply", "-f", manifest.to_str().unwrap()]);
    instance.kubectl_ok(&["rollout", "status", "deployment/ticker", "--timeout=120s"]);
    let pods = || {
        let mut pods = instance.get(&["pods", "-l", "app=ticker"])["items"]
            .as_array()
            .unwrap()
            .clone();
        pods.sort_by_key(|pod| pod["metadata"]["name"].to_string());
        let told = |pod: &Value| {
            (
                pod["metadata"]["uid"].clone(),
                pod["status"]["containerStatuses"][0]["restartCount"].clone(),
            )
        };
        pods.iter().map(told).collect::<Vec<_>>()
    };
    let before = pods();
    assert_eq!(before.len(), 2);
    wait_until("a line in the log", || {
        instance.kubectl_ok(&["logs", "deployment/ticker"]).contains("tick")
    });
    let exit = instance.kubectl(&["exec", "deployment/ticker", "--", "sh", "-c", "exit 7"]);
    assert_eq!(exit.status.code(), Some(7));
    assert_eq!(
        instance.kubectl_ok(&["exec", "deployment/ticker", "--", "echo", "hello"]),
        "hello\n"
    );

    let process = rustix::process::Pid::from_raw(instance.process()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    wait_until("the process is gone", || {
        instance.ok(&["up", "--detach", "--nodes", "2"]).starts_with("up: ")
    });
    instance.kubectl_ok(&[
        "wait",
        "--for=condition=Ready",
        "pod",
        "-l",
        "app=ticker",
        "--timeout=120s",
    ]);
    assert_eq!(pods(), before, "the same pods, none of them started again");

    assert!(instance.ok(&["down", "--purge"]).starts_with("down; nothing is kept"));
    assert!(!instance.directory.exists());
    let tables = said("nft", &Command::new("nft").args(["list", "tables"]).output().unwrap());
    let links = said("ip", &Command::new("ip").args(["-o", "link"]).output().unwrap());
    let path = instance.directory.to_str().unwrap().to_owned();
    for (what, text) in [
        ("mounts", fs::read_to_string("/proc/self/mounts").unwrap()),
        ("nftables", tables),
        ("links", links),
    ] {
        assert!(!text.contains(&path), "{what} of it are left: {text}");
    }
    assert_eq!(
        processes_naming(&path),
        Vec::<String>::new(),
        "processes of it are left"
    );
}

/// The command lines that name a path.
fn processes_naming(path: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter(|process| process.file_name().to_string_lossy() != own)
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(path))
        .collect()
}

#[test]
fn clients_find_it_where_it_was_unless_somebody_else_is_there() {
    let Some(instance) = Instance::new() else { return };
    let up = || {
        let said = instance.ok(&["up", "--detach"]);
        let address = said.split("https://").nth(1).unwrap().split(',').next().unwrap();
        address.parse::<std::net::SocketAddr>().unwrap()
    };
    let first = up();
    instance.ok(&["down"]);
    assert_eq!(up(), first);
    instance.ok(&["down"]);
    let somebody = std::net::TcpListener::bind(first).unwrap();
    let other = up();
    assert_ne!(other, first);
    assert!(
        instance
            .kubectl_ok(&["get", "nodes", "-o", "name"])
            .contains("node/node-1")
    );
    drop(somebody);
    instance.ok(&["down"]);
    assert_eq!(up(), other, "it stays where it went");
    let taken = instance.moorline(&["up", "--detach", "--listen", &other.to_string()]);
    assert!(taken.status.success(), "it is up already");
    instance.ok(&["down", "--purge"]);
}

/// Services keep their addresses, so an instance cannot take others when somebody else has those.
#[test]
fn services_are_where_they_were_or_it_is_said_who_is_there() {
    let Some(instance) = Instance::new() else { return };
    instance.ok(&["up", "--detach", "--nodes", "1"]);
    let service = ["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"];
    let before = instance.kubectl_ok(&service);
    instance.ok(&["down"]);
    let route = |verb: &str| {
        let done = Command::new("ip").args(["route", verb, "blackhole", &before]).status();
        assert!(done.unwrap().success(), "ip route {verb} blackhole {before}");
    };
    route("add");
    let refused = instance.moorline(&["up", "--detach", "--nodes", "1"]);
    route("del");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("overlaps"), "{said}");
    instance.ok(&["up", "--detach", "--nodes", "1"]);
    assert_eq!(instance.kubectl_ok(&service), before);
    instance.ok(&["down", "--purge"]);
}

#[test]
fn a_node_can_be_stopped_and_started_again() {
    let Some(instance) = Instance::new() else { return };
    instance.ok(&["up", "--detach", "--nodes", "1"]);
    assert!(instance.ok(&["node", "stop", "node-1"]).contains("stopped"));
    let nodes: Value = serde_json::from_str(&instance.ok(&["node", "list", "-o", "json"])).unwrap();
    assert_eq!(nodes, json!([{ "name": "node-1", "mode": "stopped" }]));
    assert!(instance.ok(&["node", "start", "node-1"]).contains("running"));
    let unknown = instance.moorline(&["node", "stop", "nowhere"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no node nowhere on this machine"));
}

#[test]
fn ending_what_is_not_there_says_so_and_is_no_failure() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_moorline"));
    let output = command
        .args(["down", "--data-dir"])
        .arg(directory.path().join("none"))
        .output()
        .unwrap();
    assert!(said("down", &output).starts_with("there is nothing in "));
}

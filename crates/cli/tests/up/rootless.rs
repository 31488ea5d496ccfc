//! `moorline up` without root.

use std::{fs, path::Path, process::Command};

use serde_json::json;

use crate::instance::{Instance, PATIENCE, said, wait_until};

#[test]
fn a_plain_user_runs_pods_that_outlive_a_killed_moorline_and_leaves_nothing_behind() {
    let Some(instance) = Instance::of_plain_user() else {
        return;
    };
    let up = instance.ok(&["up", "--detach", "--nodes", "2"]);
    assert!(up.starts_with("up: 2 nodes at https://127.0.0.1:"), "{up}");
    assert!(
        up.contains("warning: without root: pods are reached by kubectl port-forward"),
        "{up}"
    );

    let pod = |name: &str, uid: u32| {
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } }, "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": { "runAsUser": uid, "fsGroup": 2000 },
            "volumes": [{ "name": "v", "emptyDir": {} }],
            "containers": [{ "name": "main", "image": moorline_fixtures::IMAGE,
                "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
                "command": ["sh", "-c", "id -u; echo hello >/v/index.html; exec httpd -f -p 8080 -h /v"] }] } })
    };
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] } });
    let manifest = instance.temporary.path().join("all.json");
    let items = json!({ "apiVersion": "v1", "kind": "List", "items": [pod("web", 1000), pod("root", 0), service] });
    fs::write(&manifest, items.to_string()).unwrap();
    instance.kubectl_ok(&["apply", "-f", manifest.to_str().unwrap()]);
    let ready = format!("--timeout={}s", PATIENCE.as_secs());
    instance.kubectl_ok(&["wait", "--for=condition=Ready", "pod", "--all", &ready]);
    wait_until("its user is told", || instance.kubectl_ok(&["logs", "web"]) == "1000\n");
    assert_eq!(instance.kubectl_ok(&["logs", "root"]), "0\n");
    // Through a name, a service and a route, all of them in the user's own network.
    let fetched = || instance.kubectl(&["exec", "root", "--", "wget", "-qO-", "http://web"]);
    wait_until("one pod reaches the other", || fetched().stdout == b"hello\n");

    let status = fs::read_to_string(format!("/proc/{}/status", instance.process())).unwrap();
    let uids = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert!(uids.contains("65534"), "it runs as the plain user: {uids}");
    let process = rustix::process::Pid::from_raw(instance.process()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    wait_until("the process is gone", || {
        instance.ok(&["up", "--detach", "--nodes", "2"]).starts_with("up: ")
    });
    instance.kubectl_ok(&["wait", "--for=condition=Ready", "pod", "--all", &ready]);
    for pod in instance.get(&["pods"])["items"].as_array().unwrap() {
        let status = &pod["status"]["containerStatuses"][0];
        assert_eq!(status["restartCount"], 0, "it was not started again: {status}");
    }
    assert_eq!(fetched().stdout, b"hello\n");

    assert!(instance.ok(&["down", "--purge"]).starts_with("down; nothing is kept"));
    assert!(!instance.directory.exists());
    for group in instance.groups() {
        let below = fs::read_dir(&group)
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir());
        assert_eq!(below.count(), 0, "{} has groups in it", group.display());
    }
    let path = instance.directory.to_str().unwrap();
    wait_until("no process is left", || {
        let table = said("ps", &Command::new("ps").args(["-eo", "args"]).output().unwrap());
        !table
            .lines()
            .any(|line| line.contains(path) && !line.contains("ps -eo"))
    });
}

#[test]
fn a_plain_user_on_a_machine_that_lacks_something_is_told_what() {
    let Some(instance) = Instance::of_plain_user() else {
        return;
    };
    // Without the ids that an administrator gives.
    fs::write(instance.temporary.path().join("ids"), "").unwrap();
    let refused = instance.moorline(&["up", "--detach"]);
    assert_eq!(refused.status.code(), Some(1));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        words.contains("subordinate ids for nobody: usermod --add-subuids"),
        "{words}"
    );
    assert!(words.contains("sudo"), "{words}");
    assert!(!Path::new(&instance.directory).join("kubeconfig").exists());
}

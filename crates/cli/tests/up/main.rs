//! `moorline up` and `down` as a person types them, with the real kubectl and real processes.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "every function here belongs to a test")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Longer than anything here takes, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_mins(2);

/// An instance of its own, which is gone when the test ends, however it ends.
struct Instance {
    directory: PathBuf,
    kubectl: PathBuf,
    temporary: tempfile::TempDir,
}

/// Why containers cannot run here, if they cannot.
fn unable() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("containers need root");
    }
    if !Path::new("/bin/busybox").exists() {
        return Some("/bin/busybox is missing (apt-get install busybox-static)");
    }
    if Command::new("nft").arg("--version").output().is_err() {
        return Some("nft is missing (apt-get install nftables)");
    }
    None
}

impl Instance {
    #[expect(clippy::print_stderr, reason = "a test that did not run has to say so")]
    fn new() -> Option<Self> {
        if let Some(reason) = unable() {
            eprintln!("SKIPPED: {reason}");
            return None;
        }
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("instance");
        let instance = Self {
            directory,
            kubectl: find_kubectl(),
            temporary,
        };
        let archive = busybox_archive(instance.temporary.path());
        instance.ok(&["image", "import", archive.to_str().unwrap()]);
        Some(instance)
    }

    fn moorline(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moorline"));
        command
            .args(arguments)
            .arg("--data-dir")
            .arg(&self.directory)
            .output()
            .unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        said(&format!("{arguments:?}"), &self.moorline(arguments))
    }

    fn kubectl(&self, arguments: &[&str]) -> Output {
        Command::new(&self.kubectl)
            .env("KUBECONFIG", self.directory.join("kubeconfig"))
            .args(arguments)
            .output()
            .unwrap()
    }

    fn kubectl_ok(&self, arguments: &[&str]) -> String {
        said(&format!("kubectl {arguments:?}"), &self.kubectl(arguments))
    }

    fn get(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["get", "-o", "json"];
        all.extend(arguments);
        serde_json::from_str(&self.kubectl_ok(&all)).unwrap()
    }

    fn process(&self) -> i32 {
        fs::read_to_string(self.directory.join("lock"))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.directory.exists() {
            self.moorline(&["down", "--purge"]);
        }
    }
}

fn said(what: &str, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what} failed: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn find_kubectl() -> PathBuf {
    if let Some(named) = std::env::var_os("KUBECTL") {
        return named.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kubectl");
    said("scripts/kubectl", &Command::new(script).output().unwrap())
        .trim()
        .into()
}

/// An archive, as docker save writes them, of one static program with a few names.
fn busybox_archive(directory: &Path) -> PathBuf {
    let root = directory.join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for name in ["sh", "sleep", "cat", "echo", "hostname"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let run = |program: &str, arguments: &[&str]| {
        said(
            program,
            &Command::new(program)
                .args(arguments)
                .current_dir(directory)
                .output()
                .unwrap(),
        )
    };
    run("tar", &["-C", "root", "--numeric-owner", "-cf", "layer.tar", "bin"]);
    let digest = run("sha256sum", &["layer.tar"])
        .split_whitespace()
        .next()
        .unwrap()
        .to_owned();
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let config = json!({ "architecture": architecture, "os": "linux", "config": { "Env": ["PATH=/bin"], "Cmd": ["sh"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] } });
    let manifest = json!([{ "Config": "config.json", "RepoTags": ["example.com/busybox:1"], "Layers": ["layer.tar"] }]);
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::write(directory.join("manifest.json"), manifest.to_string()).unwrap();
    run(
        "tar",
        &["-cf", "busybox.tar", "manifest.json", "config.json", "layer.tar"],
    );
    directory.join("busybox.tar")
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "never came about: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

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

//! A machine with an API server, for tests.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    runtime::wait::await_condition,
};
use moorline_apiserver::{core::RealWorld, server::Embedded};
use moorline_node::{Machine, MachineConfig, NodeConfig, SimulatedConfig};
use serde_json::{Value, json};

/// Longer than anything here takes, on a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The name of the image that tests run: one static program with many names.
pub(crate) const IMAGE: &str = "example.com/busybox:1";

pub(crate) struct Bench {
    pub(crate) machine: Machine,
    pub(crate) client: Client,
    pub(crate) config: MachineConfig,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) server: Embedded,
}

/// Why tests with containers cannot run here, if they cannot.
pub(crate) fn unable() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("containers need root");
    }
    if !Path::new("/bin/busybox").exists() {
        return Some("/bin/busybox is missing (apt-get install busybox-static)");
    }
    if std::process::Command::new("nft").arg("--version").output().is_err() {
        return Some("nft is missing (apt-get install nftables)");
    }
    None
}

/// A name that no other test of this or another process has.
fn instance() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Bench {
    /// A machine with these nodes; nothing where it cannot be had, which is said.
    pub(crate) async fn start(nodes: &[&str]) -> Option<Self> {
        Self::with(nodes.iter().map(|name| NodeConfig::new(*name)).collect(), None).await
    }

    pub(crate) async fn with(nodes: Vec<NodeConfig>, simulated: Option<SimulatedConfig>) -> Option<Self> {
        if let Some(reason) = unable() {
            #[expect(clippy::print_stderr, reason = "a test that did not run has to say so")]
            {
                eprintln!("skipped: {reason}");
            }
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory can be made");
        let mut config = MachineConfig::new(directory.path().join("machine"), instance());
        config.nodes = nodes;
        config.simulated = simulated;
        config.shim = Some(shim());
        config.image_options.recipes = Vec::new();
        let images = directory.path().join("images");
        config.images = Some(images.clone());
        import_busybox(&images, directory.path()).await;
        let server = Embedded::ephemeral(Arc::new(RealWorld))
            .await
            .expect("a server in memory starts");
        let client = Client::new(server.service(), "default");
        let machine = Machine::start(config.clone(), client.clone())
            .await
            .expect("a machine starts");
        let bench = Self {
            machine,
            client,
            config,
            directory,
            server,
        };
        bench.accounts_are_there().await;
        Some(bench)
    }

    async fn accounts_are_there(&self) {
        let accounts: Api<ServiceAccount> = Api::default_namespaced(self.client.clone());
        let there = await_condition(accounts, "default", |account: Option<&ServiceAccount>| {
            account.is_some()
        });
        tokio::time::timeout(PATIENCE, there)
            .await
            .expect("in time")
            .expect("the watch holds");
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) -> Pod {
        self.pods()
            .create(&PostParams::default(), &pod(name, spec))
            .await
            .expect("the pod is taken")
    }

    /// Waits until a pod is as asked for.
    pub(crate) async fn until(&self, name: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
        let wanted = |pod: Option<&Pod>| pod.is_some_and(&holds);
        if let Ok(found) = tokio::time::timeout(PATIENCE, await_condition(self.pods(), name, wanted)).await {
            return found.expect("the watch holds").expect("it is there");
        }
        let pod = self.pods().get_opt(name).await.ok().flatten();
        let status = pod.and_then(|pod| pod.status);
        panic!(
            "pod {name} never was {what}: {}",
            serde_json::to_string_pretty(&status).expect("it prints")
        );
    }

    pub(crate) async fn running(&self, name: &str) -> Pod {
        self.until(name, "ready", |pod| condition(pod, "Ready") == Some("True"))
            .await
    }

    pub(crate) async fn over(&self, name: &str) -> Pod {
        self.until(name, "over", |pod| matches!(phase(pod), "Succeeded" | "Failed"))
            .await
    }

    pub(crate) async fn deleted(&self, name: &str) {
        self.pods()
            .delete(name, &DeleteParams::default())
            .await
            .expect("it can be deleted");
        let gone = await_condition(self.pods(), name, |pod: Option<&Pod>| pod.is_none());
        tokio::time::timeout(PATIENCE, gone)
            .await
            .expect("in time")
            .expect("the watch holds");
    }

    pub(crate) async fn log(&self, name: &str) -> String {
        let key = moorline_node::Key::new("default", name);
        let query = moorline_node::LogQuery::default();
        let mut log = self.machine.logs(&key, None, query).await.expect("there is a log");
        let mut text = Vec::new();
        while let Some(entry) = log.next().await.expect("it can be read") {
            text.extend(entry.text);
        }
        String::from_utf8(text).expect("it is text")
    }

    /// Ends everything and checks that nothing is left.
    pub(crate) async fn finish(self) {
        self.machine.purge().await.expect("everything can be removed");
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "literals read better where they are handed in whole"
)]
pub(crate) fn pod(name: &str, spec: Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).expect("it is a pod")
}

/// A container of the test image that runs a line of shell.
pub(crate) fn shell(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script] })
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("")
}

pub(crate) fn condition<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == name)
        .map(|condition| condition.status.as_str())
}

/// The program that shims are made of: the container crate's own, beside the test.
fn shim() -> std::path::PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    let directory = test.parent().and_then(Path::parent).expect("tests lie in deps");
    let program = directory.join("moorline-shim");
    if !program.exists() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let built = std::process::Command::new(cargo)
            .args([
                "build",
                "--quiet",
                "-p",
                "moorline-container",
                "--bin",
                "moorline-shim",
                "--profile",
            ])
            .arg(if directory.ends_with("release") {
                "release"
            } else {
                "test"
            })
            .env(
                "CARGO_TARGET_DIR",
                directory.parent().expect("the profile lies in the target directory"),
            )
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the shim can be built");
    }
    program
}

/// An image of one layer with one static program and its names.
async fn import_busybox(store: &Path, scratch: &Path) {
    let root = scratch.join("busybox");
    std::fs::create_dir_all(root.join("bin")).expect("directories can be made");
    for part in ["etc", "tmp", "proc", "dev", "sys", "root"] {
        std::fs::create_dir_all(root.join(part)).expect("directories can be made");
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).expect("it can be read");
    for name in [
        "sh", "cat", "sleep", "ls", "id", "env", "hostname", "echo", "nc", "wget", "stat", "test", "kill", "touch",
        "dd", "mount", "httpd", "nslookup", "true", "false", "seq", "rm", "mkdir", "tail", "head",
    ] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).expect("links can be made");
    }
    std::fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n",
    )
    .expect("it can be written");
    std::fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n").expect("it can be written");
    let image = scratch.join("image");
    std::fs::create_dir_all(image.join("l")).expect("directories can be made");
    let tar = |arguments: &[&str], at: &Path| {
        let done = std::process::Command::new("tar")
            .args(arguments)
            .current_dir(at)
            .status();
        assert!(done.is_ok_and(|status| status.success()), "tar works");
    };
    let layer = image.join("l/layer.tar");
    tar(
        &[
            "--owner=0",
            "--group=0",
            "-cf",
            layer.to_str().expect("it is text"),
            ".",
        ],
        &root,
    );
    let digest = std::process::Command::new("sha256sum")
        .arg(&layer)
        .output()
        .expect("there is sha256sum")
        .stdout;
    let digest = String::from_utf8(digest).expect("it is text");
    let digest = digest.split_whitespace().next().expect("it is the first word");
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": { "Cmd": ["/bin/sh"], "Env": ["PATH=/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    std::fs::write(image.join("config.json"), config.to_string()).expect("it can be written");
    let manifest = json!([{ "Config": "config.json", "RepoTags": [IMAGE], "Layers": ["l/layer.tar"] }]);
    std::fs::write(image.join("manifest.json"), manifest.to_string()).expect("it can be written");
    let archive = scratch.join("image.tar");
    tar(
        &[
            "-cf",
            archive.to_str().expect("it is text"),
            "manifest.json",
            "config.json",
            "l/layer.tar",
        ],
        &image,
    );
    let store = moorline_image::ImageStore::open(
        store,
        moorline_image::Options {
            recipes: Vec::new(),
            ..Default::default()
        },
    )
    .await
    .expect("a store opens");
    store.import(&archive, None).await.expect("the archive is an image");
}

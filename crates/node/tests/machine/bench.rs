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
use moorline_builtins::Builtins;
pub(crate) use moorline_fixtures::IMAGE;
use moorline_node::{Machine, MachineConfig, NodeConfig, SimulatedConfig};
use moorline_runtime::{Ground, Settings};
use serde_json::{Value, json};

/// Longer than anything here takes, on a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Bench {
    pub(crate) machine: Machine,
    pub(crate) client: Client,
    pub(crate) config: MachineConfig,
    _directory: tempfile::TempDir,
    _server: Embedded,
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
        Self::configured(|config| {
            config.nodes = nodes;
            config.simulated = simulated;
        })
        .await
    }

    /// A machine of which this is changed before it starts.
    pub(crate) async fn configured(change: impl FnOnce(&mut MachineConfig)) -> Option<Self> {
        if let Some(reason) = moorline_fixtures::why_no_containers() {
            #[expect(clippy::print_stderr, reason = "a test that did not run has to say so")]
            {
                eprintln!("skipped: {reason}");
            }
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory can be made");
        let mut config = MachineConfig::new(directory.path().join("machine"), instance());
        config.shim = Some(shim());
        config.image_options.recipes = Vec::new();
        let images = directory.path().join("images");
        config.images = Some(images.clone());
        import_busybox(&images, directory.path()).await;
        change(&mut config);
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
            _directory: directory,
            _server: server,
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

    /// Waits until a pod has said this, and nothing else: that it runs is known before its first word is.
    pub(crate) async fn until_log(&self, name: &str, expected: &str) {
        let started = tokio::time::Instant::now();
        loop {
            let log = self.log(name).await;
            if log == expected {
                return;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "pod {name} said {log:?}, not {expected:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts those who bind claims, as an instance does. They work as long as what is returned.
    pub(crate) async fn controllers(&self) -> Builtins {
        moorline_builtins::start(&Ground::new(self.client.clone()), &Settings::default()).await
    }

    /// Ends the machine and starts it anew, with this changed. Its pods are taken over.
    pub(crate) async fn restarted(mut self, change: impl FnOnce(&mut MachineConfig)) -> Self {
        self.machine.stop().await;
        change(&mut self.config);
        let started = Machine::start(self.config.clone(), self.client.clone()).await;
        self.machine = started.expect("the machine starts again");
        self
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

/// Takes the image that tests run into a store.
async fn import_busybox(store: &Path, scratch: &Path) {
    let options = moorline_image::Options {
        recipes: Vec::new(),
        ..Default::default()
    };
    let store = moorline_image::ImageStore::open(store, options)
        .await
        .expect("a store opens");
    let archive = moorline_fixtures::busybox_archive(scratch);
    store.import(&archive, None).await.expect("the archive is an image");
}

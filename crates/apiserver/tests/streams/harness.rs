//! A server whose pods are local processes, and kubectl run against it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, LazyLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use moorline_apiserver::server::{ApiServer, Config};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::local_pods::LocalPods;

/// How long anything may take before a test calls it stuck. Far more than needed, because test machines are busy.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A server with one node.
pub(crate) struct Cluster {
    pub(crate) pods: Arc<LocalPods>,
    pub(crate) server: ApiServer,
    directory: tempfile::TempDir,
}

/// How a kubectl ended, and what it said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Cluster {
    /// A server in memory whose pods are reached.
    pub(crate) async fn start() -> Self {
        let cluster = Self::start_unreachable().await;
        cluster.server.set_pod_access(cluster.pods.clone());
        cluster
    }

    /// A server in memory whose node nobody runs.
    pub(crate) async fn start_unreachable() -> Self {
        let server = ApiServer::start(Config::ephemeral()).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        server.write_kubeconfig(&directory.path().join("kubeconfig")).unwrap();
        let cluster = Self {
            pods: Arc::default(),
            server,
            directory,
        };
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
        let nodes: Api<Node> = Api::all(cluster.client());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        cluster
    }

    /// A client without a socket.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.server.service(), "default")
    }

    /// A client over TLS, which can change protocols.
    pub(crate) async fn socket_client(&self) -> Client {
        let kubeconfig = kube::config::Kubeconfig::read_from(self.path("kubeconfig")).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        Client::try_from(config).unwrap()
    }

    /// A file of this test's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A pod on the node whose containers run, as far as its status says.
    pub(crate) async fn running_pod(&self, name: &str, containers: &[&str]) {
        let statuses: Vec<Value> = containers
            .iter()
            .map(|container| {
                json!({
                    "name": container, "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                    "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
                })
            })
            .collect();
        self.pod_with(
            name,
            containers,
            json!({ "phase": "Running", "containerStatuses": statuses }),
        )
        .await;
    }

    /// A pod on the node with some status.
    pub(crate) async fn pod_with(&self, name: &str, containers: &[&str], status: Value) {
        let pods: Api<Pod> = Api::default_namespaced(self.client());
        let containers: Vec<Value> = containers
            .iter()
            .map(|container| json!({ "name": container, "image": "i", "stdin": true }))
            .collect();
        let pod = json!({ "metadata": { "name": name }, "spec": { "nodeName": "n1", "containers": containers } });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let status = json!({ "status": status });
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
    }

    /// A kubectl that is not yet running.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Command {
        static KUBECTL: LazyLock<PathBuf> = LazyLock::new(find_kubectl);
        let home = self.directory.path();
        let mut kubectl = Command::new(&*KUBECTL);
        kubectl
            .args(arguments)
            .env("HOME", home)
            .env("KUBECONFIG", home.join("kubeconfig"))
            .env("KUBECACHEDIR", home.join("cache"))
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        kubectl
    }

    /// Runs kubectl to its end.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Outcome {
        finish(self.kubectl(arguments).spawn().unwrap(), "").await
    }

    /// What kubectl prints, which must exit 0.
    pub(crate) async fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments).await;
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome.stdout
    }

    /// What kubectl complains, which must not exit 0.
    pub(crate) async fn fails(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments).await;
        assert_ne!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome.stderr
    }
}

/// Waits for a kubectl's end.
pub(crate) async fn finish(mut child: Child, input: &str) -> Outcome {
    if let Some(mut stdin) = child.stdin.take() {
        // A command that reads no input may end before it is written.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = timeout(PATIENCE, child.wait_with_output())
        .await
        .expect("kubectl ends in time")
        .unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The lines that a kubectl prints as it goes on. It is killed when this is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn of(mut child: Child) -> Self {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads on in what it complains until a line has `text` in it, and returns that line.
    pub(crate) async fn error_with(&mut self, text: &str) -> String {
        let mut lines = BufReader::new(self.child.stderr.take().unwrap()).lines();
        loop {
            let line = timeout(PATIENCE, lines.next_line()).await.expect("a line in time");
            let line = line.unwrap().expect("there is another line");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The next line.
    pub(crate) async fn line(&mut self) -> String {
        let line = timeout(PATIENCE, self.lines.next_line()).await.expect("a line in time");
        line.unwrap().expect("there is another line")
    }
}

fn find_kubectl() -> PathBuf {
    if let Some(named) = env::var_os("KUBECTL") {
        return named.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kubectl");
    let found = std::process::Command::new(script)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(found.status.success(), "there is no kubectl");
    String::from_utf8(found.stdout).unwrap().trim().into()
}

//! Pods on this machine, from `moorline up` as a person starts it: real containers, and simulated nodes.
//!
//! There is no peer: a kubelet with its container runtime cannot be had beside us in one command. The bars are absolute.

use std::{
    collections::HashMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use moorline_apiserver::certificates::Certificates;
use moorline_fixtures::IMAGE;
use moorline_reference::client::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{runtime::Builder, sync::mpsc, task::JoinSet, time::timeout};

use crate::{
    process::{binary, median, resident},
    report::Row,
};

const SINGLE_PODS: usize = 21;
const PODS_AT_ONCE: usize = 50;
const SIMULATED_NODES: usize = 50;
const SIMULATED_PODS: usize = 3000;
/// How many create pods at the same time.
const CREATORS: usize = 32;
/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) fn rows() -> Vec<Row> {
    if let Some(why) = moorline_fixtures::why_no_containers() {
        let row = |work: &str, unit, limit| Row {
            peer_name: Some(format!("not measured: {why}")),
            ..row(work, unit, f64::NAN, limit)
        };
        return vec![
            row("pod created to running, warm image, p50", "ms", 150.0),
            row("3,000 simulated pods created until all are ready", "s", 20.0),
        ];
    }
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be started");
    let mut rows = runtime.block_on(real_pods());
    rows.push(runtime.block_on(simulated_pods()));
    rows
}

fn row(work: &str, unit: &'static str, ours: f64, limit: f64) -> Row {
    Row {
        krate: "node",
        work: work.to_owned(),
        unit,
        ours,
        peer: None,
        peer_name: None,
        ratio: None,
        bar: format!("< {limit} {unit}"),
        holds: ours < limit,
    }
}

async fn real_pods() -> Vec<Row> {
    let instance = Instance::up(&["--nodes", "1"]);
    let mut pods = Pods::follow(&instance.client).await;

    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for number in 0..SINGLE_PODS {
        // A number of seconds that no other process sleeps, by which the process of the container is known.
        let seconds = 7_000_000 + number;
        let name = format!("single-{number}");
        let created = Instant::now();
        create(&instance.client, &name, &sleeping(seconds)).await;
        starts.push(milliseconds(pods.until(&name, Stage::Running).await - created));
        let process = sleeper(seconds);
        let killed = Instant::now();
        kill(process);
        ends.push(milliseconds(pods.until(&name, Stage::Over).await - killed));
    }

    let created = Instant::now();
    let mut creating = JoinSet::new();
    for number in 0..PODS_AT_ONCE {
        let client = instance.client.clone();
        creating.spawn(async move { create(&client, &format!("many-{number}"), &sleeping(1_000_000)).await });
    }
    creating.join_all().await;
    let mut last = created;
    for number in 0..PODS_AT_ONCE {
        last = last.max(pods.until(&format!("many-{number}"), Stage::Running).await);
    }
    let shims = instance.shims_at_rest().await;
    assert!(
        shims.len() >= PODS_AT_ONCE,
        "{} shims for {PODS_AT_ONCE} pods",
        shims.len()
    );
    let largest = shims.iter().copied().fold(0.0, f64::max);

    vec![
        row("pod created to running, warm image, p50", "ms", median(starts), 150.0),
        row(
            "50 pods created at once until all are running",
            "s",
            (last - created).as_secs_f64(),
            10.0,
        ),
        row("resident memory of a pod's shim, the largest of 50", "MB", largest, 4.0),
        row(
            "container killed to its end in the status, p50",
            "ms",
            median(ends),
            100.0,
        ),
    ]
}

async fn simulated_pods() -> Row {
    let instance = Instance::up(&["--nodes", "0", "--simulated", &SIMULATED_NODES.to_string()]);
    let mut pods = Pods::follow(&instance.client).await;
    let created = Instant::now();
    let mut creating = JoinSet::new();
    for creator in 0..CREATORS {
        let client = instance.client.clone();
        creating.spawn(async move {
            for number in (creator..SIMULATED_PODS).step_by(CREATORS) {
                create(&client, &format!("seeming-{number}"), &sleeping(1)).await;
            }
        });
    }
    creating.join_all().await;
    let mut last = created;
    for number in 0..SIMULATED_PODS {
        last = last.max(pods.until(&format!("seeming-{number}"), Stage::Ready).await);
    }
    row(
        "3,000 simulated pods created until all are ready",
        "s",
        (last - created).as_secs_f64(),
        20.0,
    )
}

/// An instance in the background, which is gone with everything when this is dropped.
struct Instance {
    client: Client,
    directory: PathBuf,
    _temporary: TempDir,
}

impl Instance {
    fn up(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("a folder can be made");
        let directory = temporary.path().join("instance");
        let archive = moorline_fixtures::busybox_archive(temporary.path());
        moorline(&directory, &["image", "import", &archive.to_string_lossy()]);
        let said = moorline(&directory, &[&["up", "--detach"], arguments].concat());
        let address = said
            .split_whitespace()
            .find_map(|word| word.strip_prefix("https://"))
            .and_then(|address| address.trim_end_matches(',').parse::<SocketAddr>().ok())
            .unwrap_or_else(|| panic!("no address in {said:?}"));
        let certificates = Certificates::open(&directory.join("api/pki"), &[], Timestamp::now())
            .expect("the server has made its certificates");
        Self {
            client: Client::new(address, &certificates),
            directory,
            _temporary: temporary,
        }
    }

    /// The resident memory of each shim, in megabytes, when it has stopped changing: at rest they give back what
    /// starting took.
    async fn shims_at_rest(&self) -> Vec<f64> {
        let mut before = self.shims();
        let started = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.shims();
            if now == before || started.elapsed() > PATIENCE {
                return now;
            }
            before = now;
        }
    }

    /// The resident memory of each shim, in megabytes.
    fn shims(&self) -> Vec<f64> {
        let own = self.directory.to_string_lossy().into_owned();
        processes()
            .filter(|(_, line)| {
                let mut words = line.split('\0').skip(1);
                words.next() == Some(SHIM) && words.next().is_some_and(|path| path.starts_with(&own))
            })
            .map(|(process, _)| resident(&[process]))
            .collect()
    }
}

/// What a process that keeps a pod is called by.
const SHIM: &str = "__moorline-shim";

impl Drop for Instance {
    fn drop(&mut self) {
        moorline(&self.directory, &["down", "--purge"]);
    }
}

fn moorline(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(binary())
        .args(arguments)
        .arg("--data-dir")
        .arg(directory)
        .output()
        .expect("the moorline binary starts; `make bench` builds it");
    assert!(
        output.status.success(),
        "moorline {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn sleeping(seconds: usize) -> Value {
    json!({ "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        "containers": [{ "name": "main", "image": IMAGE, "command": ["sleep", seconds.to_string()] }] })
}

async fn create(client: &Client, name: &str, spec: &Value) {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec });
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    let answer = client
        .send(
            Method::POST,
            "/api/v1/namespaces/default/pods",
            &headers,
            pod.to_string().into(),
        )
        .await
        .unwrap_or_else(|error| panic!("create {name}: {error}"));
    assert_eq!(
        answer.status.as_u16(),
        201,
        "create {name}: {}",
        String::from_utf8_lossy(&answer.body)
    );
}

/// How far a pod has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Running,
    Ready,
    Over,
}

/// When each pod was first seen at each stage.
struct Pods {
    seen: HashMap<(String, Stage), Instant>,
    news: mpsc::UnboundedReceiver<(String, Stage, Instant)>,
    _watch: JoinSet<()>,
}

impl Pods {
    async fn follow(client: &Client) -> Self {
        let path = "/api/v1/namespaces/default/pods?watch=true&timeoutSeconds=600";
        let response = client
            .open(Method::GET, path, &[], Bytes::new())
            .await
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        let (sender, news) = mpsc::unbounded_channel();
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            let mut body = response.into_body();
            let mut rest = Vec::new();
            while let Some(Ok(frame)) = body.frame().await {
                let arrived = Instant::now();
                rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    let event: Value = serde_json::from_slice(&line).expect("a watch sends one object a line");
                    let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                    for stage in stages(&event["object"]["status"]) {
                        if sender.send((name.to_owned(), stage, arrived)).is_err() {
                            return;
                        }
                    }
                }
            }
        });
        Self {
            seen: HashMap::new(),
            news,
            _watch: watch,
        }
    }

    /// When a pod came to a stage; waits for it.
    async fn until(&mut self, name: &str, stage: Stage) -> Instant {
        let wanted = (name.to_owned(), stage);
        loop {
            if let Some(when) = self.seen.get(&wanted) {
                return *when;
            }
            let news = timeout(PATIENCE, self.news.recv()).await;
            let news = news.unwrap_or_else(|_| panic!("pod {name} never was {stage:?}"));
            let (name, stage, when) = news.expect("the watch goes on");
            self.seen.entry((name, stage)).or_insert(when);
        }
    }
}

fn stages(status: &Value) -> Vec<Stage> {
    let state = &status["containerStatuses"][0]["state"];
    let is_ready = status["conditions"].as_array().is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    });
    let mut stages = Vec::new();
    if state["running"].is_object() {
        stages.push(Stage::Running);
    }
    if is_ready {
        stages.push(Stage::Ready);
    }
    if state["terminated"].is_object() {
        stages.push(Stage::Over);
    }
    stages
}

/// Every process with its command line, whose words end in zero bytes.
fn processes() -> impl Iterator<Item = (u32, String)> {
    let all = fs::read_dir("/proc").expect("there is /proc");
    all.filter_map(Result::ok).filter_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some((process, String::from_utf8_lossy(&line).into_owned()))
    })
}

fn sleeper(seconds: usize) -> u32 {
    let line = format!("sleep\0{seconds}\0");
    let found = processes().find(|(_, words)| *words == line);
    found.unwrap_or_else(|| panic!("no process sleeps {seconds} s")).0
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(process.cast_signed()).expect("a process has a number");
    let killed: io::Result<()> =
        rustix::process::kill_process(process, rustix::process::Signal::KILL).map_err(Into::into);
    killed.expect("root may end a process");
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

//! Nodes that only seem to run pods: for fleets that no machine could hold.
//!
//! A pod on such a node becomes ready after a delay and ends when it is deleted, without any container. Node and pods
//! are marked as what they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use tokio::{
    sync::{Semaphore, watch},
    task::AbortHandle,
};

use crate::{
    events::{Recorder, seconds},
    key::Key,
    mirror::{Change, Mirror},
    pod::{Attempt, Ended, Memory, Sandbox, Shape, State, status},
    registration::{self, Identity, MachineFacts},
};

/// The label and condition by which simulated things are known.
pub const SIMULATED: &str = "moorline.io/simulated";
/// The annotation by which a pod asks for a delay of its own before it is ready, as in `1500ms` or `3s`.
pub const READY_AFTER: &str = "moorline.io/simulated-ready-after";
/// The annotation by which a pod asks to fail, with this exit code.
pub const FAIL_WITH: &str = "moorline.io/simulated-exit-code";

/// Nodes that only seem to run pods.
#[derive(Debug, Clone)]
pub struct SimulatedConfig {
    /// How many.
    pub nodes: usize,
    /// How long a pod takes to become ready.
    pub ready_after: Duration,
    /// How long it takes to end.
    pub end_after: Duration,
    /// How many of a thousand pods fail instead of becoming ready, chosen by their names.
    pub failing_per_mille: u16,
    /// How many pods fit on a node.
    pub pods_per_node: u32,
}

impl Default for SimulatedConfig {
    fn default() -> Self {
        Self {
            nodes: 1,
            ready_after: Duration::ZERO,
            end_after: Duration::ZERO,
            failing_per_mille: 0,
            pods_per_node: 1000,
        }
    }
}

/// How many pods are written at the same time.
const AT_ONCE: usize = 16;

/// Simulated nodes at work, until this is dropped.
pub(crate) struct SimulatedNodes {
    tasks: Vec<AbortHandle>,
}

impl Drop for SimulatedNodes {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Registers the nodes and begins to take pods.
pub(crate) async fn start(
    client: Client,
    config: SimulatedConfig,
    pods: Arc<Mirror<Pod>>,
    recorder: Recorder,
) -> kube::Result<SimulatedNodes> {
    let mut tasks = Vec::new();
    for number in 1..=config.nodes {
        let identity = identity(number, &config);
        // Nodes that only seem to run pods never run short of anything.
        let short = watch::channel(BTreeSet::new()).1;
        registration::register(&client, &identity, &BTreeSet::new()).await?;
        let alive = registration::keep_alive(client.clone(), identity, BTreeSet::new(), short, recorder.clone());
        tasks.push(tokio::spawn(alive).abort_handle());
    }
    tasks.push(tokio::spawn(run(client, config, pods)).abort_handle());
    Ok(SimulatedNodes { tasks })
}

fn name(number: usize) -> String {
    format!("simulated-{number}")
}

fn identity(number: usize, config: &SimulatedConfig) -> Identity {
    let name = name(number);
    let amounts: BTreeMap<String, String> = [
        ("cpu", "1000".to_owned()),
        ("memory", "4Ti".to_owned()),
        ("ephemeral-storage", "100Ti".to_owned()),
        ("pods", config.pods_per_node.to_string()),
    ]
    .map(|(name, amount)| (name.to_owned(), amount))
    .into();
    let labels = [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", registration::architecture()),
        (SIMULATED, "true"),
    ];
    Identity {
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        taints: Vec::new(),
        addresses: vec![address(number)],
        pod_range: None,
        allocatable: amounts.clone(),
        capacity: amounts,
        runtime: "simulated://1".to_owned(),
        machine: MachineFacts {
            os_image: "simulated".to_owned(),
            ..MachineFacts::default()
        },
        name,
    }
}

/// Addresses that lead nowhere: those of the range for documentation.
fn address(number: usize) -> IpAddr {
    let low = u8::try_from(number % 254 + 1).unwrap_or(1);
    Ipv4Addr::new(192, 0, 2, low).into()
}

async fn run(client: Client, config: SimulatedConfig, pods: Arc<Mirror<Pod>>) {
    let mut changes = pods.subscribe();
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let ours: BTreeMap<String, IpAddr> = (1..=config.nodes)
        .map(|number| (name(number), address(number)))
        .collect();
    let config = Arc::new(config);
    while let Some(change) = changes.recv().await {
        let Change::Applied(pod) = change else { continue };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let Some(host) = node.and_then(|node| ours.get(node)).copied() else {
            continue;
        };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let begins = phase.is_none_or(|phase| phase == "Pending") && !is_told(&pod);
        let ends = pod.metadata.deletion_timestamp.is_some();
        if !begins && !ends {
            continue;
        }
        let (client, config, room) = (client.clone(), config.clone(), room.clone());
        tokio::spawn(async move {
            let wait = if ends {
                config.end_after
            } else {
                ready_after(&pod, &config)
            };
            tokio::time::sleep(wait).await;
            // The semaphore is never closed.
            let Ok(_turn) = room.acquire_owned().await else { return };
            let outcome = if ends {
                end(&client, &pod).await
            } else {
                begin(&client, &pod, &config, host).await
            };
            if let Err(error) = outcome {
                tracing::debug!(pod = %Key::of(&*pod), %error, "a simulated pod could not be written");
            }
        });
    }
}

fn is_told(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == SIMULATED)
}

fn ready_after(pod: &Pod, config: &SimulatedConfig) -> Duration {
    let asked = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(READY_AFTER));
    let asked = asked.and_then(|text| match text.strip_suffix("ms") {
        Some(number) => number.parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s')?.parse().ok().map(Duration::from_secs_f64),
    });
    asked.unwrap_or(config.ready_after)
}

/// The exit code of a pod that is to fail.
fn fails(pod: &Pod, config: &SimulatedConfig) -> Option<i32> {
    let asked = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(FAIL_WITH));
    if let Some(code) = asked.and_then(|code| code.parse().ok()) {
        return Some(code);
    }
    let name = Key::of(pod).to_string();
    let hash = name
        .bytes()
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    (hash % 1000 < u32::from(config.failing_per_mille)).then_some(1)
}

/// The status of a pod whose containers all seem to run, or to have ended.
fn seeming(pod: &Pod, config: &SimulatedConfig, host: IpAddr, now: Timestamp) -> k8s_openapi::api::core::v1::PodStatus {
    let shape = Shape::of(pod);
    let mut memory = Memory::new(now);
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let hash = uid
        .bytes()
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    let [_, high, middle, low] = hash.to_be_bytes();
    memory.sandbox = Some(Sandbox {
        ips: vec![Ipv4Addr::new(198, 18 + high % 2, middle, low).into()],
    });
    memory.had_sandbox = true;
    let failing = fails(pod, config);
    for (kind, container) in &shape.containers {
        let id = format!("simulated://{uid}_{}_0", container.name);
        let ends = match (kind, failing) {
            (crate::pod::Kind::Init, _) => Some(0),
            (crate::pod::Kind::Main, code) => code,
            _ => None,
        };
        let state = match ends {
            None => State::Running { since: now },
            Some(exit_code) => State::Ended(Ended {
                id: id.clone(),
                exit_code,
                signal: None,
                reason: if exit_code == 0 { "Completed" } else { "Error" }.to_owned(),
                message: None,
                started: Some(now),
                finished: now,
            }),
        };
        let known = memory.container_mut(&container.name);
        known.startup = Some(true);
        known.readiness = Some(true);
        known.current = Some(Attempt {
            id,
            image: container.image.clone().unwrap_or_default(),
            image_id: container.image.clone().unwrap_or_default(),
            state,
        });
    }
    let mut made = status(pod, &shape, &memory, &[host], now);
    made.conditions.get_or_insert_default().push(PodCondition {
        type_: SIMULATED.to_owned(),
        status: "True".to_owned(),
        reason: Some("NoContainers".to_owned()),
        message: Some("this pod is simulated: it has no containers".to_owned()),
        last_transition_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now)),
        ..PodCondition::default()
    });
    made
}

async fn begin(client: &Client, pod: &Pod, config: &SimulatedConfig, host: IpAddr) -> kube::Result<()> {
    let status = seeming(pod, config, host, seconds(Timestamp::now()));
    let key = Key::of(pod);
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let patch = Patch::Strategic(json!({ "metadata": { "uid": pod.metadata.uid }, "status": status }));
    api.patch_status(&key.name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn end(client: &Client, pod: &Pod) -> kube::Result<()> {
    let key = Key::of(pod);
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let options = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&key.name, &options).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

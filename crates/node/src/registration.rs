//! A node of the API: what it is, that it lives, and how it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Node, NodeCondition},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use tokio::sync::watch;

use crate::{
    events::{Recorder, Severity, seconds},
    pressure::Condition,
};

/// How often a node says that it lives.
pub(crate) const RENEW: Duration = Duration::from_secs(10);
/// For how long that counts.
const LEASE: i32 = 40;
/// How often it says how it is, if nothing changed.
const REPORT: Duration = Duration::from_mins(1);
/// Where leases of nodes are.
pub(crate) const LEASES: &str = "kube-node-lease";

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<k8s_openapi::api::core::v1::Taint>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) pod_range: Option<String>,
    pub(crate) capacity: BTreeMap<String, String>,
    pub(crate) allocatable: BTreeMap<String, String>,
    /// How it names what runs its containers.
    pub(crate) runtime: String,
    /// What is told of the machine.
    pub(crate) machine: MachineFacts,
}

/// What a node tells of the machine it is on.
#[derive(Debug, Clone, Default)]
pub(crate) struct MachineFacts {
    pub(crate) machine_id: String,
    pub(crate) boot_id: String,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
}

impl MachineFacts {
    /// Reads them; what cannot be read is left out.
    pub(crate) fn read() -> Self {
        let read = |path: &str| {
            std::fs::read_to_string(path)
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        };
        let release = read("/etc/os-release");
        let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        Self {
            machine_id: read("/etc/machine-id"),
            boot_id: read("/proc/sys/kernel/random/boot_id"),
            kernel: read("/proc/sys/kernel/osrelease"),
            os_image: name.map(|name| name.trim_matches('"').to_owned()).unwrap_or_default(),
        }
    }
}

impl Identity {
    fn status(&self, now: Timestamp, before: Option<&Node>, short: &BTreeSet<Condition>) -> Value {
        let mut addresses: Vec<Value> = self
            .addresses
            .iter()
            .map(|ip| json!({ "type": "InternalIP", "address": ip }))
            .collect();
        addresses.push(json!({ "type": "Hostname", "address": self.name }));
        json!({
            "capacity": self.capacity,
            "allocatable": self.allocatable,
            "conditions": conditions(now, before, short),
            "addresses": addresses,
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 0 } },
            "nodeInfo": {
                "machineID": self.machine.machine_id, "systemUUID": self.machine.machine_id,
                "bootID": self.machine.boot_id, "kernelVersion": self.machine.kernel,
                "osImage": self.machine.os_image, "containerRuntimeVersion": self.runtime,
                "kubeletVersion": "v1.36.0", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": architecture(),
            },
        })
    }
}

/// The architecture in Go's words.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn conditions(now: Timestamp, before: Option<&Node>, short: &BTreeSet<Condition>) -> Vec<NodeCondition> {
    let told = before
        .and_then(|node| node.status.as_ref())
        .and_then(|status| status.conditions.as_deref());
    let told = told.unwrap_or_default();
    let memory = if short.contains(&Condition::Memory) {
        (
            "True",
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
        )
    } else {
        (
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        )
    };
    let disk = if short.contains(&Condition::Disk) {
        ("True", "KubeletHasDiskPressure", "kubelet has disk pressure")
    } else {
        ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
    };
    let texts = [
        (Condition::Memory.name(), memory.0, memory.1, memory.2),
        (Condition::Disk.name(), disk.0, disk.1, disk.2),
        (
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    let conditions = texts.map(|(type_, status, reason, message)| {
        let old = told
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == status);
        let since = old.and_then(|old| old.last_transition_time.clone());
        NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        }
    });
    conditions.into()
}

/// Registers a node, or finds it registered. Labels and taints that others set stay.
pub(crate) async fn register(client: &Client, identity: &Identity, short: &BTreeSet<Condition>) -> kube::Result<Node> {
    let nodes: Api<Node> = Api::all(client.clone());
    let existing = nodes.get_opt(&identity.name).await?;
    if existing.is_none() {
        let node = serde_json::from_value(json!({
            "metadata": {
                "name": identity.name, "labels": identity.labels,
                "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
            },
            "spec": {
                "taints": identity.taints,
                "podCIDR": identity.pod_range,
                "podCIDRs": identity.pod_range.iter().collect::<Vec<_>>(),
            },
        }));
        let node: Node = node.map_err(kube::Error::SerdeError)?;
        match nodes.create(&PostParams::default(), &node).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(error),
        }
    } else {
        let patch = Patch::Merge(json!({ "metadata": { "labels": identity.labels } }));
        nodes.patch(&identity.name, &PatchParams::default(), &patch).await?;
    }
    report(client, identity, short).await
}

/// Says how a node is.
async fn report(client: &Client, identity: &Identity, short: &BTreeSet<Condition>) -> kube::Result<Node> {
    let nodes: Api<Node> = Api::all(client.clone());
    let before = nodes.get_opt(&identity.name).await?;
    let status = identity.status(seconds(Timestamp::now()), before.as_ref(), short);
    let patch = Patch::Strategic(json!({ "status": status }));
    nodes
        .patch_status(&identity.name, &PatchParams::default(), &patch)
        .await
}

/// Keeps a node alive in the API until it is dropped, and says there what the machine runs short of; when it registered,
/// that was what is `said`.
pub(crate) async fn keep_alive(
    client: Client,
    identity: Identity,
    mut said: BTreeSet<Condition>,
    mut short: watch::Receiver<BTreeSet<Condition>>,
    recorder: Recorder,
) {
    let mut ticks = tokio::time::interval(RENEW);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reported = tokio::time::Instant::now();
    let mut registered = true;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Ok(()) = short.changed() => {}
        }
        let now = short.borrow_and_update().clone();
        if let Err(error) = renew(&client, &identity.name).await {
            tracing::debug!(node = identity.name, %error, "a node's lease could not be renewed");
        }
        if !registered || now != said || reported.elapsed() >= REPORT {
            match register(&client, &identity, &now).await {
                Ok(node) => {
                    for condition in Condition::ALL {
                        let (before, after) = (said.contains(&condition), now.contains(&condition));
                        if before != after {
                            let reason = news(condition, after);
                            let message = format!("Node {} status is now: {reason}", identity.name);
                            recorder.tell(&node, Severity::Normal, reason, message);
                        }
                    }
                    said = now;
                    registered = true;
                    reported = tokio::time::Instant::now();
                }
                Err(error) => {
                    registered = false;
                    tracing::debug!(node = identity.name, %error, "a node could not say how it is");
                }
            }
        }
    }
}

/// What is told when a node begins or ceases to be short of something.
fn news(condition: Condition, short: bool) -> &'static str {
    match (condition, short) {
        (Condition::Memory, true) => "NodeHasInsufficientMemory",
        (Condition::Memory, false) => "NodeHasSufficientMemory",
        (Condition::Disk, true) => "NodeHasDiskPressure",
        (Condition::Disk, false) => "NodeHasNoDiskPressure",
    }
}

async fn renew(client: &Client, name: &str) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let now = MicroTime(Timestamp::now());
    let patch = Patch::Merge(json!({ "spec": { "holderIdentity": name, "renewTime": now } }));
    match leases.patch(name, &PatchParams::default(), &patch).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => return Err(error),
    }
    let node = Api::<Node>::all(client.clone()).get_opt(name).await?;
    let owner = node.and_then(|node| node.metadata.uid).map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid,
        ..OwnerReference::default()
    });
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(LEASES.to_owned()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(LEASE),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    leases.create(&PostParams::default(), &lease).await?;
    Ok(())
}

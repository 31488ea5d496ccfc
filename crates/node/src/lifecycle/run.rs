//! Carrying out what follows from silence and taints.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, NodeCondition, Pod, PodCondition},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::decide::{is_silent, leaves_at, taints};
use crate::{
    events::{Recorder, Severity, seconds},
    key::Key,
    mirror::Mirror,
    registration::LEASES,
};

/// What it reads.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) pods: Arc<Mirror<Pod>>,
    pub(crate) nodes: Arc<Mirror<Node>>,
    pub(crate) leases: Arc<Mirror<Lease>>,
}

/// How often nodes are looked at, if nothing changes.
const LOOK: Duration = Duration::from_secs(5);
/// How often pods without a node are.
const COLLECT: Duration = Duration::from_secs(20);
/// How long a pod may name a node that is not there, before it is taken to be gone.
const QUARANTINE: Duration = Duration::from_secs(40);

/// Looks after nodes and their pods until it is dropped.
pub(crate) async fn run(client: Client, sources: Sources, recorder: Recorder) {
    sources.nodes.synced().await;
    sources.pods.synced().await;
    sources.leases.synced().await;
    let mut nodes = sources.nodes.subscribe();
    let mut pods = sources.pods.subscribe();
    let mut keeper = Keeper {
        client,
        sources,
        recorder: recorder.on_behalf_of("taint-eviction-controller", None),
        heard: HashMap::new(),
        leaving: HashMap::new(),
        missing: HashMap::new(),
        collected: tokio::time::Instant::now(),
        started: seconds(Timestamp::now()),
    };
    loop {
        let wake = keeper.look().await;
        tokio::select! {
            change = nodes.recv() => if change.is_none() { return },
            change = pods.recv(), if keeper.has_tainted() => if change.is_none() { return },
            () = tokio::time::sleep(wake) => {}
        }
        while nodes.try_recv().is_ok() || pods.try_recv().is_ok() {}
    }
}

struct Keeper {
    client: Client,
    sources: Sources,
    recorder: Recorder,
    /// The last sign of life of each node, and when it was seen here.
    heard: HashMap<String, (Option<Timestamp>, Timestamp)>,
    /// Pods that leave, by UID, and when.
    leaving: HashMap<String, Timestamp>,
    /// Nodes that pods name and that are not there, since when.
    missing: HashMap<String, Timestamp>,
    collected: tokio::time::Instant,
    started: Timestamp,
}

impl Keeper {
    fn has_tainted(&self) -> bool {
        !self.leaving.is_empty() || self.sources.nodes.all().iter().any(|node| has_no_execute(node))
    }

    /// Does what is due. Says how long nothing is, unless something changes.
    async fn look(&mut self) -> Duration {
        let now = seconds(Timestamp::now());
        let nodes = self.sources.nodes.all();
        for node in &nodes {
            self.listen(node, now).await;
            if let Some(taints) = taints(node, now) {
                let api: Api<Node> = Api::all(self.client.clone());
                let patch = Patch::Merge(json!({
                    "metadata": { "resourceVersion": node.metadata.resource_version }, "spec": { "taints": taints },
                }));
                let name = Key::of(&**node).name;
                if let Err(error) = api.patch(&name, &PatchParams::default(), &patch).await {
                    tracing::debug!(node = name, %error, "a node's taints could not be written");
                }
            }
        }
        let next = self.evict(&nodes, now).await;
        if self.collected.elapsed() >= COLLECT {
            self.collected = tokio::time::Instant::now();
            self.collect(&nodes, now).await;
        }
        next.map_or(LOOK, |at| {
            let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
            left.clamp(Duration::from_millis(50), LOOK)
        })
    }

    /// Hears whether a node lives; marks it when it has been silent for too long.
    async fn listen(&mut self, node: &Node, now: Timestamp) {
        let name = Key::of(node).name;
        let lease = self.sources.leases.get(&Key::new(LEASES, &name));
        let renewed = lease
            .and_then(|lease| lease.spec.as_ref()?.renew_time.clone())
            .map(|time| time.0);
        let reported = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref())
            .and_then(|conditions| {
                conditions
                    .iter()
                    .filter_map(|condition| condition.last_heartbeat_time.as_ref().map(|time| time.0))
                    .max()
            });
        let sign = renewed.max(reported);
        let entry = self.heard.entry(name.clone()).or_insert((None, self.started.max(now)));
        if entry.0 != sign {
            *entry = (sign, now);
        }
        let heard = entry.1;
        // A node that nobody keeps alive by a lease is somebody else's business, as in tests of the API.
        if sign.is_some() && is_silent(node, heard, now) {
            self.mark_unknown(&name, node, now).await;
        }
    }

    async fn mark_unknown(&self, name: &str, node: &Node, now: Timestamp) {
        let told = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(|type_| {
            let old = told.iter().find(|condition| condition.type_ == type_);
            NodeCondition {
                type_: type_.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusUnknown".to_owned()),
                message: Some("Kubelet stopped posting node status.".to_owned()),
                last_heartbeat_time: old.and_then(|old| old.last_heartbeat_time.clone()),
                last_transition_time: Some(Time(now)),
            }
        });
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Strategic(json!({ "status": { "conditions": conditions } }));
        if let Err(error) = api.patch_status(name, &PatchParams::default(), &patch).await {
            tracing::debug!(node = name, %error, "a silent node could not be marked");
            return;
        }
        let recorder = self.recorder.on_behalf_of("node-controller", None);
        let message = format!("Node {name} status is now: NodeNotReady");
        recorder.tell(node, Severity::Normal, "NodeNotReady", message);
        for pod in self.sources.pods.all() {
            if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name) {
                self.mark_unready(&pod, now).await;
                let message = "Node is not ready".to_owned();
                recorder.tell(&*pod, Severity::Warning, "NodeNotReady", message);
            }
        }
    }

    async fn mark_unready(&self, pod: &Pod, now: Timestamp) {
        let ready = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref())
            .and_then(|conditions| {
                conditions
                    .iter()
                    .find(|condition| condition.type_ == "Ready" && condition.status == "True")
            });
        if ready.is_some() {
            let condition = condition(pod, "Ready", "False", None, None, now);
            self.patch_status(pod, condition).await;
        }
    }

    async fn patch_status(&self, pod: &Pod, condition: PodCondition) {
        let key = Key::of(pod);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let patch = json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "conditions": [condition] } });
        if let Err(error) = api
            .patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
        {
            tracing::debug!(pod = %key, %error, "a pod's condition could not be written");
        }
    }

    /// Deletes pods whose patience with a taint is over. Gives the moment when the next one's is.
    async fn evict(&mut self, nodes: &[Arc<Node>], now: Timestamp) -> Option<Timestamp> {
        let tainted: HashMap<String, &Arc<Node>> = nodes
            .iter()
            .filter(|node| has_no_execute(node))
            .map(|node| (Key::of(&**node).name, node))
            .collect();
        if tainted.is_empty() && self.leaving.is_empty() {
            return None;
        }
        let mut next: Option<Timestamp> = None;
        let mut seen = HashSet::new();
        for pod in self.sources.pods.all() {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let node = pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.as_ref())
                .and_then(|name| tainted.get(name));
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let taints = node
                .and_then(|node| node.spec.as_ref())
                .and_then(|spec| spec.taints.as_deref());
            let at = taints.and_then(|taints| leaves_at(&pod, taints, now));
            let key = Key::of(&*pod);
            match at {
                None => {
                    if self.leaving.remove(&uid).is_some() {
                        let message = format!("Cancelling deletion of Pod {key}");
                        self.recorder
                            .tell(&*pod, Severity::Normal, "TaintManagerEviction", message);
                    }
                }
                Some(at) => {
                    // Once it is to leave, it leaves when it was told to.
                    let at = *self.leaving.entry(uid.clone()).or_insert(at);
                    seen.insert(uid);
                    if at <= now {
                        let message = format!("Marking for deletion Pod {key}");
                        self.recorder
                            .tell(&*pod, Severity::Normal, "TaintManagerEviction", message);
                        let words = "Taint manager: deleting due to NoExecute taint";
                        self.delete(&pod, "DeletionByTaintManager", words, None, now).await;
                    } else {
                        next = Some(next.map_or(at, |before| before.min(at)));
                    }
                }
            }
        }
        self.leaving.retain(|uid, _| seen.contains(uid));
        next
    }

    async fn delete(&self, pod: &Pod, reason: &str, message: &str, grace: Option<u32>, now: Timestamp) {
        let disrupted = condition(
            pod,
            "DisruptionTarget",
            "True",
            Some(reason.to_owned()),
            Some(message.to_owned()),
            now,
        );
        self.patch_status(pod, disrupted).await;
        let key = Key::of(pod);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let options = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        if let Err(error) = api.delete(&key.name, &options).await {
            tracing::debug!(pod = %key, %error, "a pod that has to leave its node could not be deleted");
        }
    }

    /// Deletes pods whose node is gone, and those that were deleted before they had one.
    async fn collect(&mut self, nodes: &[Arc<Node>], now: Timestamp) {
        let names: HashSet<String> = nodes.iter().map(|node| Key::of(&**node).name).collect();
        let mut absent = HashSet::new();
        for pod in self.sources.pods.all() {
            let node = pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .filter(|name| !name.is_empty());
            let Some(node) = node else {
                if pod.metadata.deletion_timestamp.is_some() {
                    let words = "PodGC: unscheduled terminating pod";
                    self.delete(&pod, "DeletionByPodGC", words, Some(0), now).await;
                }
                continue;
            };
            if names.contains(&node) {
                continue;
            }
            absent.insert(node.clone());
            let since = *self.missing.entry(node.clone()).or_insert(now);
            if Duration::try_from(now.duration_since(since)).unwrap_or_default() < QUARANTINE {
                continue;
            }
            // Nothing is destroyed on the word of a watch alone.
            let api: Api<Node> = Api::all(self.client.clone());
            if matches!(api.get_opt(&node).await, Ok(None)) {
                let words = "PodGC: node no longer exists";
                self.delete(&pod, "DeletionByPodGC", words, Some(0), now).await;
            }
        }
        self.missing.retain(|name, _| absent.contains(name));
    }
}

fn has_no_execute(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.effect == "NoExecute")
}

fn condition(
    pod: &Pod,
    type_: &str,
    status: &str,
    reason: Option<String>,
    message: Option<String>,
    now: Timestamp,
) -> PodCondition {
    PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        observed_generation: pod.metadata.generation,
        last_transition_time: Some(Time(now)),
        last_probe_time: None,
    }
}

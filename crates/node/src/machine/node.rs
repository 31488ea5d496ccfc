//! One virtual node, and how it can be made to fail.

use std::{net::IpAddr, sync::Arc};

use kube::Client;
use moorline_network as net;
use tokio::{sync::watch, task::AbortHandle};

use super::{Error, Machine, NodeConfig, capacity, network_result};
use crate::{
    amounts::Amounts,
    gate,
    kubelet::{Kubelet, NodeContext, known_labels},
    registration::{self, Identity, MachineFacts, architecture},
};

/// How a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It works.
    Running,
    /// Its pods were killed as a power loss would, and it says nothing.
    Stopped,
    /// Its pods and itself stand still.
    Frozen,
    /// Its pods run, with no way to the API, to names or to pods of other nodes.
    CutOff,
}

pub(super) struct VirtualNode {
    mode: Mode,
    context: Arc<NodeContext>,
    identity: Identity,
    reachable: watch::Sender<bool>,
    work: Option<Work>,
}

/// What a node does while it lives.
struct Work {
    kubelet: Kubelet,
    heartbeat: Heartbeat,
}

struct Heartbeat(AbortHandle);

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Work {
    async fn end(self) {
        drop(self.heartbeat);
        self.kubelet.end().await;
    }
}

impl VirtualNode {
    pub(super) async fn start(machine: &Machine, config: &NodeConfig) -> Result<Self, Error> {
        let network_name = net::NodeName::new(config.name.clone()).map_err(|source| Error::Network {
            attempted: "use the node's name".to_owned(),
            source: source.into(),
        })?;
        let (network, name) = (machine.context.network.clone(), network_name.clone());
        let added = tokio::task::spawn_blocking(move || network.add_node(&name)).await;
        let place = network_result(added, "add a node to the network")?;
        let capacity = capacity::measure(&machine.context.data);
        let amounts = {
            let quantities = capacity.iter().map(|(name, amount)| {
                (
                    name.clone(),
                    k8s_openapi::apimachinery::pkg::api::resource::Quantity(amount.clone()),
                )
            });
            Amounts::of(Some(&quantities.collect()))
        };
        let mut labels = config.labels.clone();
        let mut label = |name: &str, value: &str| {
            labels.insert(name.to_owned(), value.to_owned());
        };
        label("kubernetes.io/hostname", &config.name);
        label("kubernetes.io/os", "linux");
        label("kubernetes.io/arch", architecture());
        if let Some(zone) = &config.zone {
            label("topology.kubernetes.io/zone", zone);
        }
        let addresses = vec![IpAddr::V4(place.address)];
        let identity = Identity {
            name: config.name.clone(),
            labels,
            taints: config.taints.clone(),
            addresses: addresses.clone(),
            pod_range: Some(place.range.to_string()),
            allocatable: capacity.clone(),
            capacity,
            runtime: format!("moorline://{}", env!("CARGO_PKG_VERSION")),
            machine: MachineFacts::read(),
        };
        let (reachable, receiver) = watch::channel(true);
        let client: Client = gate::client(machine.client.clone(), receiver);
        let context = Arc::new(NodeContext {
            shared: machine.context.clone(),
            client,
            name: config.name.clone(),
            network_name,
            addresses,
            memory: amounts.get("memory"),
            allocatable: amounts,
            recorder: machine.recorder.on_behalf_of("kubelet", Some(&config.name)),
        });
        let mut node = Self {
            mode: Mode::Running,
            context,
            identity,
            reachable,
            work: None,
        };
        if machine.context.network.is_partitioned(&node.context.network_name) {
            node.heal(machine).await?;
        }
        node.begin(machine).await?;
        Ok(node)
    }

    pub(super) fn network_name(&self) -> net::NodeName {
        self.context.network_name.clone()
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    async fn begin(&mut self, machine: &Machine) -> Result<(), Error> {
        let short = self.context.shared.pressure.conditions();
        let now = short.borrow().clone();
        registration::register(&self.context.client, &self.identity, &now)
            .await
            .map_err(|source| Error::Api {
                attempted: format!("register node {}", self.identity.name),
                source: source.into(),
            })?;
        let heartbeat = tokio::spawn(registration::keep_alive(
            self.context.client.clone(),
            self.identity.clone(),
            now,
            short,
            self.context.recorder.clone(),
        ));
        let kubelet = Kubelet::start(
            self.context.clone(),
            machine.sources.objects(),
            self.reachable.subscribe(),
        );
        self.work = Some(Work {
            kubelet,
            heartbeat: Heartbeat(heartbeat.abort_handle()),
        });
        Ok(())
    }

    pub(super) async fn set_mode(&mut self, machine: &Machine, mode: Mode) -> Result<(), Error> {
        if self.mode == mode {
            return Ok(());
        }
        if self.mode != Mode::Running {
            self.resume(machine).await?;
        }
        match mode {
            Mode::Running => {}
            Mode::Stopped => {
                self.end().await;
                for pod in self.pods() {
                    self.context
                        .shared
                        .runtime
                        .remove_pod(&pod)
                        .await
                        .map_err(|source| Error::Containers {
                            attempted: format!("end pod {pod} of node {}", self.identity.name),
                            source: source.into(),
                        })?;
                }
            }
            Mode::Frozen => {
                self.end().await;
                for pod in self.pods() {
                    if let Err(error) = self.context.shared.runtime.freeze(&pod) {
                        tracing::warn!(%pod, %error, "a pod could not be frozen");
                    }
                }
            }
            Mode::CutOff => {
                self.reachable.send_replace(false);
                let (network, name) = (self.context.shared.network.clone(), self.context.network_name.clone());
                let cut = tokio::task::spawn_blocking(move || network.partition(&name)).await;
                network_result(cut, "cut a node off")?;
            }
        }
        self.mode = mode;
        Ok(())
    }

    async fn resume(&mut self, machine: &Machine) -> Result<(), Error> {
        match self.mode {
            Mode::Running => {}
            Mode::Stopped => self.begin(machine).await?,
            Mode::Frozen => {
                for pod in self.pods() {
                    if let Err(error) = self.context.shared.runtime.thaw(&pod) {
                        tracing::warn!(%pod, %error, "a pod could not be thawed");
                    }
                }
                self.begin(machine).await?;
            }
            Mode::CutOff => {
                self.heal(machine).await?;
                self.reachable.send_replace(true);
            }
        }
        self.mode = Mode::Running;
        Ok(())
    }

    /// Ends what the node does; its pods stay as they are.
    pub(super) async fn end(&mut self) {
        if let Some(work) = self.work.take() {
            work.end().await;
        }
    }

    async fn heal(&self, machine: &Machine) -> Result<(), Error> {
        let (network, name) = (machine.context.network.clone(), self.context.network_name.clone());
        network_result(
            tokio::task::spawn_blocking(move || network.heal(&name)).await,
            "reconnect a node",
        )
    }

    fn pods(&self) -> Vec<moorline_container::PodId> {
        let all = self.context.shared.runtime.list().into_iter();
        let ours = all.filter(|pod| pod.spec.labels.get(known_labels::NODE) == Some(&self.identity.name));
        ours.map(|pod| pod.spec.id).collect()
    }
}

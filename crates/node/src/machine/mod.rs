//! Everything that runs beside the API server on one machine, started and stopped as one.

mod capacity;
mod config;
mod node;
mod sources;
mod stream;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

pub use config::{MachineConfig, NodeConfig};
use futures_util::future::BoxFuture;
use kube::Client;
use moorline_container as run;
use moorline_network as net;
pub use node::Mode;
use node::VirtualNode;
use sources::Sources;
pub use stream::{ContainerUsage, LogQuery, PodUsage, StreamError};
use tokio::task::AbortHandle;

use crate::{
    events::Recorder,
    kubelet::Context,
    lifecycle, pressure, scheduler, service,
    simulated::{self, SimulatedNodes},
    storage,
};

/// Why a machine does not start, stop or do as it is told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something of the API.
    #[error("cannot {attempted} at the API")]
    Api {
        /// What was attempted, on what.
        attempted: String,
        /// What the API said.
        #[source]
        source: Box<kube::Error>,
    },
    /// Containers.
    #[error("cannot {attempted}")]
    Containers {
        /// What was attempted.
        attempted: String,
        /// Why not.
        #[source]
        source: Box<run::Error>,
    },
    /// Images.
    #[error("cannot open the image store")]
    Images(#[source] Box<moorline_image::Error>),
    /// Network.
    #[error("cannot {attempted}")]
    Network {
        /// What was attempted.
        attempted: String,
        /// Why not.
        #[source]
        source: Box<net::Error>,
    },
    /// A file or directory.
    #[error("cannot {attempted}")]
    Files {
        /// What was attempted, on what.
        attempted: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Something still works with the network, a stream for instance.
    #[error("cannot remove the network: something still uses it; end its streams and purge again")]
    StillInUse,
    /// There is no such node.
    #[error("there is no node {0} on this machine")]
    NoNode(String),
}

/// A machine whose nodes run pods.
///
/// Dropping it, or [`Machine::stop`], ends its work and leaves the pods running; the next start takes them over.
pub struct Machine {
    context: Arc<Context>,
    client: Client,
    sources: Sources,
    recorder: Recorder,
    nodes: Mutex<BTreeMap<String, VirtualNode>>,
    tasks: Vec<AbortHandle>,
    _names: net::dns::DnsServer,
    _simulated: Option<SimulatedNodes>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Machine {
    /// Opens the network alone, for those who must know its addresses before there is an API.
    pub fn open_network(config: &MachineConfig) -> BoxFuture<'_, Result<net::Network, Error>> {
        Box::pin(async move {
            prepare_directories(config)?;
            open_network(config).await
        })
    }

    /// Starts nodes, scheduler, names, services and volumes over an API.
    pub fn start(config: MachineConfig, client: Client) -> BoxFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            let network = Self::open_network(&config).await?;
            Self::start_on(config, network, client).await
        })
    }

    /// The same on a network that is open already.
    pub fn start_on(
        config: MachineConfig,
        network: net::Network,
        client: Client,
    ) -> BoxFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            let runtime = run::Runtime::open(config.containers()).await;
            let runtime = runtime.map_err(|source| Error::Containers {
                attempted: "open the container runtime".to_owned(),
                source: source.into(),
            })?;
            let images = moorline_image::ImageStore::open(config.images(), config.image_options.clone())
                .await
                .map_err(|source| Error::Images(source.into()))?;
            let ranges = network.ranges();
            let names = Arc::new(net::dns::Names::new(
                &config.domain,
                [ranges.pods().into(), ranges.services().into()],
            ));
            let upstream = net::files::Resolvers::of_machine().nameservers;
            let server = net::dns::DnsServer::start(net::dns::DnsConfig::of(&ranges, upstream), names.clone())
                .await
                .map_err(|source| Error::Network {
                    attempted: "start the name server".to_owned(),
                    source: source.into(),
                })?;
            let sources = Sources::follow(&client);
            let context = Arc::new(Context {
                runtime,
                images,
                network: Arc::new(network),
                services: sources.services.clone(),
                pods: sources.pods.clone(),
                nodes: sources.nodes.clone(),
                pressure: Arc::default(),
                data: config.directory.clone(),
                private: config.private(),
                domain: config.domain.clone(),
                nameserver: ranges.dns_address().into(),
            });
            let recorder = Recorder::new(client.clone(), "kubelet", None);
            storage::ensure_class(&client).await.map_err(|source| Error::Api {
                attempted: "make the default storage class".to_owned(),
                source: source.into(),
            })?;
            let mut tasks = Vec::new();
            let mut spawn = |task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
                tasks.push(tokio::spawn(task).abort_handle());
            };
            spawn(Box::pin(scheduler::run(
                client.clone(),
                sources.scheduler(),
                recorder.clone(),
            )));
            let volumes = config.directory.join("volumes");
            spawn(Box::pin(storage::run(
                client.clone(),
                sources.storage(),
                volumes,
                recorder.clone(),
            )));
            spawn(Box::pin(lifecycle::run(
                client.clone(),
                sources.lifecycle(),
                recorder.clone(),
            )));
            spawn(Box::pin(pressure::run(context.clone(), config.pressure.clone())));
            spawn(Box::pin(service::run(
                sources.service(),
                context.network.clone(),
                names,
            )));
            let simulated = match config.simulated {
                None => None,
                Some(settings) => {
                    let nodes =
                        simulated::start(client.clone(), settings, sources.pods.clone(), recorder.clone()).await;
                    Some(nodes.map_err(|source| Error::Api {
                        attempted: "register simulated nodes".to_owned(),
                        source: source.into(),
                    })?)
                }
            };
            let machine = Self {
                context,
                client,
                sources,
                recorder,
                nodes: Mutex::default(),
                tasks,
                _names: server,
                _simulated: simulated,
            };
            for node in &config.nodes {
                machine.add_node(node).await?;
            }
            Ok(machine)
        })
    }

    /// Starts one more node, or finds it running.
    pub fn add_node<'a>(&'a self, config: &'a NodeConfig) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if self.nodes().contains_key(&config.name) {
                return Ok(());
            }
            let node = VirtualNode::start(self, config).await?;
            self.nodes().insert(config.name.clone(), node);
            Ok(())
        })
    }

    /// The names of the nodes that run containers.
    pub fn node_names(&self) -> Vec<String> {
        self.nodes().keys().cloned().collect()
    }

    /// How a node is.
    pub fn mode(&self, node: &str) -> Result<Mode, Error> {
        self.nodes()
            .get(node)
            .map(VirtualNode::mode)
            .ok_or_else(|| Error::NoNode(node.to_owned()))
    }

    /// Stops a node as a power loss would, freezes it, cuts it off, or starts it again.
    pub fn set_mode<'a>(&'a self, node: &'a str, mode: Mode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let taken = self.nodes().remove(node);
            let Some(mut taken) = taken else {
                return Err(Error::NoNode(node.to_owned()));
            };
            let result = taken.set_mode(self, mode).await;
            self.nodes().insert(node.to_owned(), taken);
            result
        })
    }

    /// Tries whether packets of pods pass the other firewalls of the machine. An error names the rule that is missing.
    pub async fn verify_network(&self) -> Result<(), Error> {
        let Some(node) = self.nodes().values().next().map(VirtualNode::network_name) else {
            return Ok(());
        };
        let network = self.context.network.clone();
        let verified = tokio::task::spawn_blocking(move || network.verify(&node)).await;
        network_result(verified, "send packets between pods")
    }

    /// Ends all work. Pods keep running, and are taken over by the next start.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let context = self.end().await;
            released(context).await;
        })
    }

    /// Ends what the nodes and everything beside them do.
    async fn end(self) -> Arc<Context> {
        let nodes = std::mem::take(&mut *self.nodes());
        for (_, mut node) in nodes {
            node.end().await;
        }
        self.context.clone()
    }

    /// Ends all work and removes everything of this machine's instance but its directory: pods, networks, cgroups.
    pub fn purge(self) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            let context = self.end().await;
            context.runtime.purge().await.map_err(|source| Error::Containers {
                attempted: "remove all pods".to_owned(),
                source: source.into(),
            })?;
            let Some(context) = released(context).await else {
                return Err(Error::StillInUse);
            };
            // Not before: whoever still held on to it may have been writing there.
            remove(&context.private)?;
            match Arc::try_unwrap(context.network) {
                Ok(network) => purge_network(network).await,
                Err(_) => Err(Error::StillInUse),
            }
        })
    }

    /// Removes everything of an instance that is not running, however it ended.
    pub fn purge_stopped(config: &MachineConfig) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let settings = config.containers();
            if config.directory.join("containers").exists() {
                let runtime = run::Runtime::open(settings).await.map_err(|source| Error::Containers {
                    attempted: "open the container runtime".to_owned(),
                    source: source.into(),
                })?;
                runtime.purge().await.map_err(|source| Error::Containers {
                    attempted: "remove all pods".to_owned(),
                    source: source.into(),
                })?;
            }
            remove(&config.private())?;
            let (instance, directory) = (config.instance_name()?, config.directory.join("network"));
            let purged = tokio::task::spawn_blocking(move || net::Network::purge_closed(&instance, &directory)).await;
            network_result(purged, "remove the network")
        })
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, VirtualNode>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until nobody else holds on to what all share: tasks that were ended do for a moment.
async fn released(context: Arc<Context>) -> Option<Context> {
    const LOOKS: u32 = 3000;
    let mut context = context;
    for _ in 0..LOOKS {
        context = match Arc::try_unwrap(context) {
            Ok(context) if Arc::strong_count(&context.network) == 1 => return Some(context),
            Ok(context) => Arc::new(context),
            Err(context) => context,
        };
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    None
}

fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::Files {
            attempted: format!("remove {}", path.display()),
            source,
        }),
        _ => Ok(()),
    }
}

async fn purge_network(network: net::Network) -> Result<(), Error> {
    let purged = tokio::task::spawn_blocking(move || network.purge()).await;
    network_result(purged, "remove the network")
}

fn network_result<T>(result: Result<net::Result<T>, tokio::task::JoinError>, attempted: &str) -> Result<T, Error> {
    let attempted = || attempted.to_owned();
    match result {
        Ok(result) => result.map_err(|source| Error::Network {
            attempted: attempted(),
            source: source.into(),
        }),
        Err(error) => Err(Error::Files {
            attempted: attempted(),
            source: std::io::Error::other(error),
        }),
    }
}

async fn open_network(config: &MachineConfig) -> Result<net::Network, Error> {
    let settings = net::Config {
        instance: config.instance_name()?,
        directory: config.directory.join("network"),
        ranges: config.ranges,
        outside: config.outside,
    };
    network_result(
        tokio::task::spawn_blocking(move || net::Network::open(settings)).await,
        "open the network",
    )
}

fn prepare_directories(config: &MachineConfig) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let made = |path: &Path, mode: u32| {
        std::fs::create_dir_all(path)
            .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
            .map_err(|source| Error::Files {
                attempted: format!("make {}", path.display()),
                source,
            })
    };
    made(&config.directory, 0o711)?;
    for part in ["pods", "logs", "volumes"] {
        made(&config.directory.join(part), 0o711)?;
    }
    made(&config.private(), 0o711)
}

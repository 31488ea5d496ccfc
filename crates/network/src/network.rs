//! One instance's network: what callers hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::firewall::{self, Layout, OpenHostPort, Ruleset, UdpTargets, nft};
use crate::netlink::{LOOPBACK, Netlink};
use crate::record::{Directory, Lock, PodRecord, Progress};
use crate::state::{Begin, State};
use crate::upkeep::{claim, machine_addresses, remove_all, remove_from_machine, take_over};
use crate::wiring::{self, POD_LINK};
use crate::{
    Error, InstanceName, NodeName, NodeNetwork, PodId, Protocol, Ranges, Result, ServiceRules, conntrack, namespace,
};

/// How long a connection into a pod may take to be made.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Which instance, where it keeps its records, and how it stands to the world.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the instance, unique on the machine.
    pub instance: InstanceName,
    /// A directory of the network's own. It must not move while pods are attached.
    pub directory: PathBuf,
    /// The addresses to use; without, free ones are chosen the first time and remembered.
    pub ranges: Option<Ranges>,
    /// Whether pods and the world outside the machine reach each other.
    pub outside: Outside,
}

/// Whether pods and the world outside the machine reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// They do not: pods reach the machine and each other, and are told at once that anything else is prohibited.
    Closed,
    /// Pods reach out under the machine's address, and node ports and host ports are open to the outside. Switches
    /// forwarding on for the links of the machine's default routes.
    Open,
}

/// What a pod's network is to be.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The node the pod is on.
    pub node: NodeName,
    /// Ports of the machine that lead to it.
    pub host_ports: Vec<HostPort>,
    /// Kernel settings inside, as `net.…` names with values.
    pub sysctls: Vec<(String, String)>,
}

/// A port of the machine that leads to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// The one address of the machine where the port is open. Without one it is open at the address of the pod's node;
    /// and at the machine's other addresses, loopback included, for the first pod that asked for it.
    pub address: Option<Ipv4Addr>,
    /// The port of the machine.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port in the pod.
    pub pod_port: u16,
}

/// A pod's network, made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// The network namespace, as a file that a process can enter by.
    pub namespace: PathBuf,
    /// The pod's address.
    pub address: Ipv4Addr,
    /// The pod's interface.
    pub interface: &'static str,
    /// The other end of it, on the machine.
    pub host_interface: String,
    /// The node.
    pub node: NodeName,
    /// The address of the node.
    pub node_address: Ipv4Addr,
}

/// The network of one instance. Dropping it leaves everything in place for the next [`Network::open`].
#[derive(Debug)]
pub struct Network {
    config: Config,
    ranges: Ranges,
    directory: Directory,
    /// Taken before `state` where both are needed, never after. Held while rules are handed to the kernel, so that they
    /// reach it in the order in which they were made.
    rules: Mutex<Rules>,
    /// Held for moments, never while the kernel works.
    state: Mutex<State>,
    /// Held while the instance's record is written, so that the last one written is the newest. Taken before `state`.
    saving: Mutex<()>,
    _lock: Lock,
}

#[derive(Debug)]
struct Rules {
    services: Vec<ServiceRules>,
    /// What the kernel has, as far as we know.
    applied: Option<Ruleset>,
    udp: UdpTargets,
}

impl Network {
    /// Opens an instance: chooses its ranges the first time, takes over the pods that are whole, cleans up after what was
    /// interrupted.
    pub fn open(config: Config) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Error::NotPermitted);
        }
        let directory = Directory::open(&config.directory)?;
        let lock = directory.lock()?;
        let mut netlink = Netlink::open()?;
        // Up already, but in a network that a plain user has just made.
        netlink.set_up(LOOPBACK)?;
        let instance = claim(&config, &directory, &mut netlink)?;
        let ranges = instance.ranges;
        let mut state = State::new(instance);
        take_over(&config, &directory, &mut netlink, &mut state)?;
        let rules = Rules {
            services: directory.read_services()?,
            applied: None,
            udp: UdpTargets::default(),
        };
        let network = Self {
            config,
            ranges,
            directory,
            rules: Mutex::new(rules),
            state: Mutex::new(state),
            saving: Mutex::new(()),
            _lock: lock,
        };
        network.refresh()?;
        Ok(network)
    }

    /// The addresses of this instance.
    pub fn ranges(&self) -> Ranges {
        self.ranges
    }

    /// Adds a node, or finds it, with its part of the pod range.
    pub fn add_node(&self, node: &NodeName) -> Result<NodeNetwork> {
        let network = self.state().add_node(node)?;
        self.save()?;
        Netlink::open()?.add_address(LOOPBACK, network.address)?;
        self.refresh()?;
        Ok(network)
    }

    /// The nodes and their parts of the pod range.
    pub fn nodes(&self) -> BTreeMap<NodeName, NodeNetwork> {
        self.state().nodes()
    }

    /// Removes a node that has no pods; one that is gone is fine.
    pub fn remove_node(&self, node: &NodeName) -> Result<()> {
        let Some(network) = self.state().remove_node(node)? else {
            return Ok(());
        };
        self.refresh()?;
        Netlink::open()?.delete_address(LOOPBACK, network.address)?;
        self.save()
    }

    /// Gives a pod its network: a namespace, an address, a wire. A pod that has one keeps it as it is.
    pub fn attach(&self, pod: &PodId, wanted: &Attachment) -> Result<PodNetwork> {
        let unfinished = |address| PodRecord {
            id: pod.clone(),
            node: wanted.node.clone(),
            address,
            link: wiring::link_name(self.config.instance.tag(), address),
            host_ports: wanted.host_ports.clone(),
            progress: Progress::Unfinished,
        };
        let begun = self
            .state()
            .begin_attach(pod, &wanted.node, &wanted.host_ports, unfinished)?;
        let mut record = match begun {
            Begin::Attached(record) => return self.describe(&record),
            Begin::Make(address) => unfinished(address),
        };
        let made = self.make(&mut record, &wanted.sysctls);
        if let Err(error) = made {
            self.unmake(&record)?;
            return Err(error);
        }
        self.describe(&record)
    }

    /// Takes a pod's network away; one that has none is fine.
    pub fn detach(&self, pod: &PodId) -> Result<()> {
        let Some(mut record) = self.state().begin_detach(pod)? else {
            return Ok(());
        };
        record.progress = Progress::Unfinished;
        let unmade = self
            .directory
            .write_pod(&record)
            .and_then(|()| {
                if record.host_ports.is_empty() {
                    Ok(())
                } else {
                    self.refresh()
                }
            })
            .and_then(|()| self.unmake(&record));
        if unmade.is_err() {
            // So that the next attempt finds it.
            self.state().settle(record);
        }
        unmade
    }

    /// The network of a pod.
    pub fn pod(&self, pod: &PodId) -> Result<PodNetwork> {
        let record = self.state().attached(pod)?.clone();
        self.describe(&record)
    }

    /// Every pod that has a network.
    pub fn pods(&self) -> Vec<PodId> {
        self.state()
            .all_attached()
            .into_iter()
            .map(|record| record.id.clone())
            .collect()
    }

    /// Makes these the services of the instance, and no others. Only what differs is changed, all at once.
    pub fn set_services(&self, services: Vec<ServiceRules>) -> Result<()> {
        let mut rules = self.rules();
        if rules.services == services && rules.applied.is_some() {
            return Ok(());
        }
        self.directory.write_services(&services)?;
        rules.services = services;
        self.apply(&mut rules)
    }

    /// Cuts a node off: its pods keep each other, and lose everything else on the machine and beyond. What the machine
    /// itself sends to them under the node's address still passes, as if it came from the node.
    pub fn partition(&self, node: &NodeName) -> Result<()> {
        self.change_cut(node, |cut| cut.insert(node.clone()))
    }

    /// Ends [`Network::partition`].
    pub fn heal(&self, node: &NodeName) -> Result<()> {
        self.change_cut(node, |cut| cut.remove(node))
    }

    /// Whether a node is cut off.
    pub fn is_partitioned(&self, node: &NodeName) -> bool {
        self.state().instance.cut.contains(node)
    }

    /// Connects to a port inside a pod: at its loopback first, as a process in it would, then at its address.
    pub fn dial(&self, pod: &PodId, port: u16) -> Result<TcpStream> {
        let PodNetwork { namespace, address, .. } = self.pod(pod)?;
        let dialled = namespace::enter(&namespace, || {
            let targets = [
                Ipv4Addr::LOCALHOST.into(),
                Ipv6Addr::LOCALHOST.into(),
                IpAddr::V4(address),
            ];
            let mut first = None;
            for target in targets {
                match TcpStream::connect_timeout(&SocketAddr::new(target, port), DIAL_TIMEOUT) {
                    Ok(stream) => return Ok(Ok(stream)),
                    Err(error) => {
                        first.get_or_insert(error);
                    }
                }
            }
            Ok(Err(first.expect("there was a target")))
        })?;
        dialled.map_err(|source| Error::Dial {
            pod: pod.clone(),
            port,
            source,
        })
    }

    /// Runs something on a thread that is inside a pod's network namespace, such as opening a socket there.
    pub fn inside<T: Send>(&self, pod: &PodId, work: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = self.pod(pod)?.namespace;
        namespace::enter(&namespace, || Ok(work()))
    }

    /// Removes everything of the instance from the machine and its records from the disk.
    pub fn purge(self) -> Result<()> {
        remove_all(&self.config.instance, &self.directory)
    }

    /// The same for an instance that is not open, however damaged its records are.
    pub fn purge_closed(instance: &InstanceName, directory: &Path) -> Result<()> {
        if !directory.exists() {
            return remove_from_machine(instance, None);
        }
        let directory = Directory::open(directory)?;
        let _lock = directory.lock()?;
        remove_all(instance, &directory)
    }

    /// What the names of this instance's links on the machine begin with.
    pub fn link_prefix(&self) -> String {
        self.config.instance.tag().link_prefix()
    }

    fn make(&self, record: &mut PodRecord, sysctls: &[(String, String)]) -> Result<()> {
        let path = self.directory.namespace(&record.id);
        self.directory.write_pod(record)?;
        let node = self.state().node(&record.node)?.address;
        wiring::connect(record, node, &path, sysctls)?;
        record.progress = Progress::Attached;
        self.directory.write_pod(record)?;
        self.state().settle(record.clone());
        if record.host_ports.is_empty() {
            Ok(())
        } else {
            self.refresh()
        }
    }

    fn unmake(&self, record: &PodRecord) -> Result<()> {
        wiring::disconnect(
            &mut Netlink::open()?,
            &record.link,
            &self.directory.namespace(&record.id),
        )?;
        self.directory.remove_pod(&record.id)?;
        self.state().forget(&record.id);
        Ok(())
    }

    fn describe(&self, record: &PodRecord) -> Result<PodNetwork> {
        Ok(PodNetwork {
            namespace: self.directory.namespace(&record.id),
            address: record.address,
            interface: POD_LINK,
            host_interface: record.link.clone(),
            node: record.node.clone(),
            node_address: self.state().node(&record.node)?.address,
        })
    }

    fn change_cut(&self, node: &NodeName, change: impl FnOnce(&mut BTreeSet<NodeName>) -> bool) -> Result<()> {
        {
            let mut state = self.state();
            state.node(node)?;
            change(&mut state.instance.cut);
        }
        self.save()?;
        self.refresh()
    }

    /// Writes the instance's record as it is now.
    fn save(&self) -> Result<()> {
        let _turn = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let record = self.state().instance.clone();
        self.directory.write_instance(&record)
    }

    /// Brings the kernel's rules to what the instance has now.
    fn refresh(&self) -> Result<()> {
        self.apply(&mut self.rules())
    }

    fn apply(&self, rules: &mut Rules) -> Result<()> {
        let machine_addresses = machine_addresses()?;
        let (nodes, cut, host_ports) = {
            let state = self.state();
            let nodes = state.nodes();
            let cut = state
                .instance
                .cut
                .iter()
                .filter_map(|node| nodes.get(node))
                .map(|node| node.range)
                .collect();
            let host_ports = state
                .all_attached()
                .into_iter()
                .flat_map(|pod| {
                    let node = nodes[&pod.node].address;
                    pod.host_ports.iter().map(move |port| OpenHostPort {
                        node,
                        pod: pod.address,
                        port: port.clone(),
                    })
                })
                .collect();
            (nodes, cut, host_ports)
        };
        let prefix = self.link_prefix();
        let (wanted, udp) = firewall::render(&Layout {
            ranges: self.ranges,
            link_prefix: &prefix,
            outside: self.config.outside,
            nodes: &nodes,
            cut,
            host_ports,
            services: &rules.services,
            machine_addresses,
        });
        let table = self.config.instance.table();
        let script = match rules.applied.take() {
            Some(applied) => wanted.script_from(&applied, &table),
            None => wanted.script(&table),
        };
        nft::run(&table, &script)?;
        rules.applied = Some(wanted);
        rules.forget_stale_flows(udp, self.ranges);
        Ok(())
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rules {
    fn forget_stale_flows(&mut self, udp: UdpTargets, ranges: Ranges) {
        if udp == self.udp {
            return;
        }
        let before = std::mem::replace(&mut self.udp, udp);
        let stale = self.udp.without_former(&before);
        match conntrack::forget_stale(&stale, ranges.pods()) {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "forgot flows of UDP that lead nowhere"),
            // New flows go the right way; old ones end when they pause.
            Err(error) => tracing::warn!(%error, "cannot forget flows of UDP that lead to former endpoints"),
        }
    }
}

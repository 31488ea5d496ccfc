//! Who has which address: the part of an instance that is in memory, without any I/O.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::Ipv4Addr;

use crate::record::{InstanceRecord, PodRecord};
use crate::{Error, HostPort, NodeName, NodeNetwork, PodId, Ranges, Result};

/// Nodes, pods and the addresses they have.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) instance: InstanceRecord,
    pods: HashMap<PodId, Standing>,
    taken: HashSet<Ipv4Addr>,
    /// The address that each node gave last.
    last: HashMap<NodeName, Ipv4Addr>,
}

/// Where a pod stands. One that is not attached is not stored.
#[derive(Debug)]
enum Standing {
    /// Being made or taken down by a call that is under way. Left by `settle` or `forget`.
    Changing(PodRecord),
    /// Whole. Left by `begin_detach`.
    Attached(PodRecord),
}

impl Standing {
    fn record(&self) -> &PodRecord {
        match self {
            Self::Changing(record) | Self::Attached(record) => record,
        }
    }
}

/// What attaching a pod means at this moment.
pub(crate) enum Begin {
    /// It is there already.
    Attached(PodRecord),
    /// It has been given this address and is to be made.
    Make(Ipv4Addr),
}

impl State {
    pub(crate) fn new(instance: InstanceRecord) -> Self {
        Self {
            instance,
            pods: HashMap::new(),
            taken: HashSet::new(),
            last: HashMap::new(),
        }
    }

    pub(crate) fn ranges(&self) -> Ranges {
        self.instance.ranges
    }

    pub(crate) fn node(&self, node: &NodeName) -> Result<NodeNetwork> {
        let number = self
            .instance
            .nodes
            .get(node)
            .ok_or_else(|| Error::UnknownNode(node.clone()))?;
        Ok(self
            .ranges()
            .node(*number)
            .expect("a node is remembered with a part that exists"))
    }

    pub(crate) fn nodes(&self) -> BTreeMap<NodeName, NodeNetwork> {
        let named = |node: &NodeName| (node.clone(), self.node(node).expect("taken from the list of nodes"));
        self.instance.nodes.keys().map(named).collect()
    }

    /// Gives a node the first free part of the pod range.
    pub(crate) fn add_node(&mut self, node: &NodeName) -> Result<NodeNetwork> {
        if self.instance.nodes.contains_key(node) {
            return self.node(node);
        }
        let used: HashSet<u32> = self.instance.nodes.values().copied().collect();
        let range = self.ranges().pods();
        let (number, network) = (1..)
            .map_while(|number| Some((number, self.ranges().node(number)?)))
            .find(|(number, _)| !used.contains(number))
            .ok_or_else(|| Error::NoNodeRange {
                node: node.clone(),
                range,
            })?;
        self.instance.nodes.insert(node.clone(), number);
        Ok(network)
    }

    /// Takes a node's part back.
    pub(crate) fn remove_node(&mut self, node: &NodeName) -> Result<Option<NodeNetwork>> {
        if let Some(pod) = self.pods.values().map(Standing::record).find(|pod| pod.node == *node) {
            return Err(Error::NodeInUse {
                node: node.clone(),
                pod: pod.id.clone(),
            });
        }
        let network = self.node(node).ok();
        self.instance.nodes.remove(node);
        self.instance.cut.remove(node);
        self.last.remove(node);
        Ok(network)
    }

    /// Begins to attach a pod. `record` makes what is to be remembered from the address that was chosen.
    pub(crate) fn begin_attach(
        &mut self,
        pod: &PodId,
        node: &NodeName,
        host_ports: &[HostPort],
        record: impl FnOnce(Ipv4Addr) -> PodRecord,
    ) -> Result<Begin> {
        let network = self.node(node)?;
        match self.pods.get(pod) {
            Some(Standing::Changing(_)) => return Err(Error::Busy(pod.clone())),
            Some(Standing::Attached(there)) if there.node == *node => return Ok(Begin::Attached(there.clone())),
            Some(Standing::Attached(there)) => {
                return Err(Error::AttachedElsewhere {
                    pod: pod.clone(),
                    node: there.node.clone(),
                });
            }
            None => {}
        }
        self.check_host_ports(network.address, host_ports)?;
        let address = self.free_address(node, &network)?;
        self.taken.insert(address);
        self.last.insert(node.clone(), address);
        self.pods.insert(pod.clone(), Standing::Changing(record(address)));
        Ok(Begin::Make(address))
    }

    /// Takes over a pod that is whole.
    pub(crate) fn settle(&mut self, record: PodRecord) {
        self.taken.insert(record.address);
        let last = self.last.entry(record.node.clone()).or_insert(record.address);
        *last = (*last).max(record.address);
        self.pods.insert(record.id.clone(), Standing::Attached(record));
    }

    /// Begins to detach a pod; nothing if it is not there.
    pub(crate) fn begin_detach(&mut self, pod: &PodId) -> Result<Option<PodRecord>> {
        let record = match self.pods.get(pod) {
            None => return Ok(None),
            Some(Standing::Changing(_)) => return Err(Error::Busy(pod.clone())),
            Some(Standing::Attached(record)) => record.clone(),
        };
        self.pods.insert(pod.clone(), Standing::Changing(record.clone()));
        Ok(Some(record))
    }

    /// Forgets a pod of which nothing is left.
    pub(crate) fn forget(&mut self, pod: &PodId) {
        if let Some(standing) = self.pods.remove(pod) {
            self.taken.remove(&standing.record().address);
        }
    }

    /// A pod that is whole.
    pub(crate) fn attached(&self, pod: &PodId) -> Result<&PodRecord> {
        match self.pods.get(pod) {
            Some(Standing::Attached(record)) => Ok(record),
            Some(Standing::Changing(_)) => Err(Error::Busy(pod.clone())),
            None => Err(Error::UnknownPod(pod.clone())),
        }
    }

    /// Every pod that is whole, by its id.
    pub(crate) fn all_attached(&self) -> Vec<&PodRecord> {
        let mut pods: Vec<&PodRecord> = self
            .pods
            .values()
            .filter_map(|standing| match standing {
                Standing::Attached(record) => Some(record),
                Standing::Changing(_) => None,
            })
            .collect();
        pods.sort_by(|a, b| a.id.cmp(&b.id));
        pods
    }

    /// The next free address after the one that was given last: one that was given back is tried again after all others.
    fn free_address(&self, node: &NodeName, network: &NodeNetwork) -> Result<Ipv4Addr> {
        let all = Ranges::pod_addresses(network);
        let last = self.last.get(node).copied().unwrap_or(Ipv4Addr::UNSPECIFIED);
        let (after, before) = (
            all.clone().filter(|address| *address > last),
            all.filter(|address| *address <= last),
        );
        after
            .chain(before)
            .find(|address| !self.taken.contains(address))
            .ok_or_else(|| Error::NoAddress {
                node: node.clone(),
                range: network.range,
            })
    }

    fn check_host_ports(&self, node: Ipv4Addr, wanted: &[HostPort]) -> Result<()> {
        for port in wanted {
            let address = port.address.unwrap_or(node);
            for holder in self.pods.values().map(Standing::record) {
                let there = self.node(&holder.node)?.address;
                let same = |other: &HostPort| {
                    (other.protocol, other.port) == (port.protocol, port.port)
                        && other.address.unwrap_or(there) == address
                };
                if holder.host_ports.iter().any(same) {
                    return Err(Error::HostPortTaken {
                        address,
                        port: port.port,
                        protocol: port.protocol,
                        holder: holder.id.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;
    use crate::record::Progress;

    fn state() -> (State, NodeName) {
        let ranges = Ranges::new("10.64.0.0/16".parse().unwrap(), "10.65.0.0/16".parse().unwrap()).unwrap();
        let instance = InstanceRecord {
            ranges,
            nodes: BTreeMap::new(),
            cut: std::collections::BTreeSet::new(),
        };
        let mut state = State::new(instance);
        let node = NodeName::new("n1").unwrap();
        state.add_node(&node).unwrap();
        (state, node)
    }

    fn attach(state: &mut State, pod: &str, node: &NodeName, host_ports: &[HostPort]) -> Result<Ipv4Addr> {
        let pod = PodId::new(pod).unwrap();
        let record = |address| PodRecord {
            id: pod.clone(),
            node: node.clone(),
            address,
            link: String::new(),
            host_ports: host_ports.to_vec(),
            progress: Progress::Unfinished,
        };
        match state.begin_attach(&pod, node, host_ports, record)? {
            Begin::Attached(record) => Ok(record.address),
            Begin::Make(address) => {
                state.settle(record(address));
                Ok(address)
            }
        }
    }

    #[test]
    fn an_address_that_was_given_back_is_the_last_to_be_given_again() {
        let (mut state, node) = state();
        let first = attach(&mut state, "first", &node, &[]).unwrap();
        state.forget(&PodId::new("first").unwrap());
        for number in 0..252 {
            let pod = format!("p{number}");
            assert_ne!(attach(&mut state, &pod, &node, &[]).unwrap(), first, "{pod}");
        }
        assert_eq!(attach(&mut state, "last", &node, &[]).unwrap(), first);
        assert!(matches!(
            attach(&mut state, "more", &node, &[]),
            Err(Error::NoAddress { .. })
        ));
    }

    #[test]
    fn attaching_again_gives_the_same_address_and_elsewhere_is_refused() {
        let (mut state, node) = state();
        let address = attach(&mut state, "p", &node, &[]).unwrap();
        assert_eq!(attach(&mut state, "p", &node, &[]).unwrap(), address);
        let other = NodeName::new("n2").unwrap();
        assert!(matches!(
            attach(&mut state, "p", &other, &[]),
            Err(Error::UnknownNode(_))
        ));
        state.add_node(&other).unwrap();
        assert!(matches!(
            attach(&mut state, "p", &other, &[]),
            Err(Error::AttachedElsewhere { .. })
        ));
    }

    #[test]
    fn a_host_port_is_taken_once_an_address_and_protocol() {
        let (mut state, node) = state();
        let port = HostPort {
            address: None,
            port: 8080,
            protocol: Protocol::Tcp,
            pod_port: 80,
        };
        attach(&mut state, "a", &node, std::slice::from_ref(&port)).unwrap();
        let udp = HostPort {
            protocol: Protocol::Udp,
            ..port.clone()
        };
        attach(&mut state, "b", &node, &[udp]).unwrap();
        let loopback = HostPort {
            address: Some(Ipv4Addr::LOCALHOST),
            ..port.clone()
        };
        attach(&mut state, "c", &node, &[loopback]).unwrap();
        let taken = attach(&mut state, "d", &node, std::slice::from_ref(&port)).unwrap_err();
        assert_eq!(taken.to_string(), "host port 10.64.1.1:8080/tcp is taken by pod a");
        let elsewhere = NodeName::new("n2").unwrap();
        state.add_node(&elsewhere).unwrap();
        attach(&mut state, "e", &elsewhere, &[port]).unwrap();
    }

    #[test]
    fn a_node_with_pods_keeps_its_range_and_a_freed_one_is_given_again() {
        let (mut state, node) = state();
        let network = state.node(&node).unwrap();
        attach(&mut state, "p", &node, &[]).unwrap();
        assert!(matches!(state.remove_node(&node), Err(Error::NodeInUse { .. })));
        state.forget(&PodId::new("p").unwrap());
        assert_eq!(state.remove_node(&node).unwrap(), Some(network));
        assert_eq!(state.add_node(&NodeName::new("n9").unwrap()).unwrap(), network);
    }
}

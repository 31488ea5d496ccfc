//! From services and host ports to chains and the maps that lead to them.
//!
//! One look-up finds the chain of a service, one rule deals out its endpoints: nothing grows with the number of services
//! but the maps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::ruleset::{Ruleset, Set};
use super::{Layout, OpenHostPort, address_key, port_key};
use crate::names::fnv1a;
use crate::{Affinity, Endpoint, Protocol, ServicePort, ServiceRules, TrafficPolicy};

/// What leads to the chains of services and host ports.
#[derive(Default)]
pub(super) struct Translation {
    pub(super) by_address: BTreeMap<String, String>,
    pub(super) node_ports: BTreeMap<String, String>,
    pub(super) host_ports: BTreeMap<String, String>,
    pub(super) shared_host_ports: BTreeMap<String, String>,
    /// External addresses that nobody answers for.
    pub(super) refused: BTreeSet<String>,
    /// Who may be led to itself.
    pub(super) hairpin: BTreeSet<Ipv4Addr>,
    pub(super) udp: UdpTargets,
}

/// Where flows of UDP may lead. A flow that leads elsewhere was translated by rules that are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UdpTargets {
    pub(crate) by_address: HashMap<(Ipv4Addr, u16), HashSet<(Ipv4Addr, u16)>>,
    pub(crate) by_node_port: HashMap<u16, HashSet<(Ipv4Addr, u16)>>,
}

impl Translation {
    pub(super) fn of(layout: &Layout<'_>, rules: &mut Ruleset) -> Self {
        let mut translation = Self::default();
        let mut services: Vec<&ServiceRules> = layout.services.iter().collect();
        services.sort_by(|a, b| a.name.cmp(&b.name));
        for service in services {
            // Port zero is nobody's, and one rule that nft refuses would hold all the others up.
            for port in service.ports.iter().filter(|port| port.port != 0) {
                translation.add_port(layout, service, port, rules);
            }
        }
        for open in layout
            .host_ports
            .iter()
            .filter(|open| open.port.port != 0 && open.port.pod_port != 0)
        {
            translation.add_host_port(open, rules);
        }
        translation
    }

    fn add_port(&mut self, layout: &Layout<'_>, service: &ServiceRules, port: &ServicePort, rules: &mut Ruleset) {
        let mut endpoints = port.endpoints.clone();
        endpoints.retain(|endpoint| endpoint.port != 0);
        endpoints.sort();
        endpoints.dedup_by_key(|endpoint| (endpoint.address, endpoint.port));
        if port.protocol == Protocol::Udp {
            let targets: HashSet<_> = endpoints
                .iter()
                .map(|endpoint| (endpoint.address, endpoint.port))
                .collect();
            for address in service.addresses.iter().chain(&service.external_addresses) {
                self.udp.by_address.insert((*address, port.port), targets.clone());
            }
            if let Some(node_port) = port.node_port {
                self.udp.by_node_port.insert(node_port, targets);
            }
        }
        if endpoints.is_empty() {
            let keys = service
                .external_addresses
                .iter()
                .map(|address| address_key(*address, port.protocol, port.port));
            self.refused.extend(keys);
            return;
        }
        self.hairpin.extend(endpoints.iter().map(|endpoint| endpoint.address));

        let mut dealer = Dealer {
            service,
            port,
            stem: stem(service, port),
            rules,
        };
        let all = dealer.deal("all", &endpoints);
        let internal = match service.internal_policy {
            TrafficPolicy::Cluster => all.clone(),
            TrafficPolicy::Local => dealer.by_node(layout, "inside", "ip saddr", &endpoints, &all),
        };
        for address in &service.addresses {
            self.lead(service, address_key(*address, port.protocol, port.port), &internal);
        }
        if !service.external_addresses.is_empty() {
            let external = dealer.for_allowed_sources(&all);
            for address in &service.external_addresses {
                self.lead(service, address_key(*address, port.protocol, port.port), &external);
            }
        }
        if let Some(node_port) = port.node_port {
            let external = match service.external_policy {
                TrafficPolicy::Cluster => all,
                TrafficPolicy::Local => dealer.by_node(layout, "outside", "ip daddr", &endpoints, &all),
            };
            let key = port_key(port.protocol, node_port);
            if let Some(other) = self.node_ports.get(&key) {
                tracing::warn!(
                    service = service.name,
                    node_port,
                    other,
                    "the node port belongs to another service"
                );
            } else {
                self.node_ports.insert(key, format!("goto {external}"));
            }
        }
    }

    fn lead(&mut self, service: &ServiceRules, key: String, chain: &str) {
        if let Some(other) = self.by_address.get(&key) {
            tracing::warn!(
                service = service.name,
                address = key,
                other,
                "the address belongs to another service"
            );
        } else {
            self.by_address.insert(key, format!("goto {chain}"));
        }
    }

    fn add_host_port(&mut self, open: &OpenHostPort, rules: &mut Ruleset) {
        let OpenHostPort { node, pod, port } = open;
        let chain = format!("host_port_{pod}_{}_{}", port.protocol, port.pod_port);
        rules.chain(&chain, vec![to_endpoint(port.protocol, *pod, port.pod_port)]);
        self.hairpin.insert(*pod);
        let verdict = format!("goto {chain}");
        self.host_ports
            .entry(address_key(port.address.unwrap_or(*node), port.protocol, port.port))
            .or_insert_with(|| verdict.clone());
        if port.address.is_none() {
            self.shared_host_ports
                .entry(port_key(port.protocol, port.port))
                .or_insert(verdict);
        }
    }
}

/// Makes the chains of one port of one service.
struct Dealer<'a> {
    service: &'a ServiceRules,
    port: &'a ServicePort,
    stem: String,
    rules: &'a mut Ruleset,
}

impl Dealer<'_> {
    /// A chain that deals connections out to these endpoints, of which there is at least one.
    fn deal(&mut self, suffix: &str, endpoints: &[Endpoint]) -> String {
        let name = format!("{}_{suffix}", self.stem);
        let rules = match self.service.affinity {
            Affinity::None => vec![self.to_any(endpoints)],
            Affinity::ClientAddress { timeout } => self.back_to_the_same(endpoints, timeout.as_secs().max(1)),
        };
        self.rules.chain(&name, rules);
        name
    }

    fn to_any(&self, endpoints: &[Endpoint]) -> String {
        let protocol = self.port.protocol;
        if let [only] = endpoints {
            return to_endpoint(protocol, only.address, only.port);
        }
        let choices: Vec<String> = endpoints
            .iter()
            .enumerate()
            .map(|(number, endpoint)| format!("{number} : {} . {}", endpoint.address, endpoint.port))
            .collect();
        let (count, choices) = (endpoints.len(), choices.join(", "));
        format!("meta l4proto {protocol} dnat ip to numgen random mod {count} map {{ {choices} }}")
    }

    fn back_to_the_same(&mut self, endpoints: &[Endpoint], timeout: u64) -> Vec<String> {
        let mut rules = Vec::new();
        let mut choices = Vec::new();
        for (number, endpoint) in endpoints.iter().enumerate() {
            let chain = format!("{}_{}_{}", self.stem, endpoint.address, endpoint.port);
            let clients = format!("clients_{chain}");
            let declaration = format!("type ipv4_addr; flags dynamic,timeout; timeout {timeout}s; size 65535;");
            self.rules.set(&clients, Set::of(declaration, []));
            let target = to_endpoint(self.port.protocol, endpoint.address, endpoint.port);
            self.rules
                .chain(&chain, vec![format!("update @{clients} {{ ip saddr }}"), target]);
            rules.push(format!("ip saddr @{clients} goto {chain}"));
            choices.push(format!("{number} : goto {chain}"));
        }
        rules.push(format!(
            "numgen random mod {} vmap {{ {} }}",
            endpoints.len(),
            choices.join(", ")
        ));
        rules
    }

    /// A chain that keeps connections on their node, told by `field`: the source of those within, the destination of
    /// those from outside.
    fn by_node(&mut self, layout: &Layout<'_>, suffix: &str, field: &str, endpoints: &[Endpoint], all: &str) -> String {
        let mut rules = Vec::new();
        for (node, network) in layout.nodes {
            let local: Vec<Endpoint> = endpoints
                .iter()
                .filter(|endpoint| endpoint.node.as_ref() == Some(node))
                .cloned()
                .collect();
            if !local.is_empty() {
                let chain = self.deal(&format!("node_{}", network.address), &local);
                rules.push(format!("{field} {} goto {chain}", network.range));
            }
        }
        rules.push(format!("{field} {} goto {all}", layout.ranges.host_address()));
        rules.push(format!("{field} {} drop", layout.ranges.pods()));
        rules.push(format!("goto {all}"));
        let name = format!("{}_{suffix}", self.stem);
        self.rules.chain(&name, rules);
        name
    }

    fn for_allowed_sources(&mut self, all: &str) -> String {
        if self.service.allowed_sources.is_empty() {
            return all.to_owned();
        }
        // Joined, because nft takes no ranges that overlap.
        let sources = self.service.allowed_sources.iter().map(Ipv4Net::trunc).collect();
        let sources: Vec<String> = Ipv4Net::aggregate(&sources).iter().map(ToString::to_string).collect();
        let name = format!("{}_allowed", self.stem);
        let rules = vec![
            format!("ip saddr {{ {} }} goto {all}", sources.join(", ")),
            "drop".into(),
        ];
        self.rules.chain(&name, rules);
        name
    }
}

fn to_endpoint(protocol: Protocol, address: Ipv4Addr, port: u16) -> String {
    format!("meta l4proto {protocol} dnat ip to {address}:{port}")
}

/// What the chains of a service port begin with: readable, unique, and within what nftables takes.
fn stem(service: &ServiceRules, port: &ServicePort) -> String {
    let readable: String = service
        .name
        .chars()
        .take(48)
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/') {
                c
            } else {
                '_'
            }
        })
        .collect();
    format!(
        "svc_{:08x}_{readable}_{}_{}",
        fnv1a(service.name.as_bytes()),
        port.protocol,
        port.port
    )
}

impl UdpTargets {
    /// These, with what led somewhere `before` and does not any more leading nowhere.
    pub(crate) fn without_former(&self, before: &Self) -> Self {
        let mut targets = self.clone();
        for key in before.by_address.keys() {
            targets.by_address.entry(*key).or_default();
        }
        for key in before.by_node_port.keys() {
            targets.by_node_port.entry(*key).or_default();
        }
        targets
    }
}

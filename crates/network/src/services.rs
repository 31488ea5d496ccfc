//! What the caller says about services: the complete desired state, in plain types.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::NodeName;

/// One service: where it is reached and who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRules {
    /// Its name, such as `default/web`. It shows in the names of chains, and orders services that want the same address.
    pub name: String,
    /// Addresses of its own in the service range. Ports without endpoints refuse connections here.
    pub addresses: Vec<Ipv4Addr>,
    /// Addresses from elsewhere that lead to it: external addresses and those of a load balancer.
    pub external_addresses: Vec<Ipv4Addr>,
    /// Who may use the external addresses; empty for everybody.
    pub allowed_sources: Vec<Ipv4Net>,
    /// Whether a client comes back to the endpoint it had.
    pub affinity: Affinity,
    /// Which endpoints serve clients that use `addresses`.
    pub internal_policy: TrafficPolicy,
    /// Which endpoints serve clients that use a node port. An address from elsewhere belongs to no node here: it leads
    /// to all endpoints.
    pub external_policy: TrafficPolicy,
    /// Its ports.
    pub ports: Vec<ServicePort>,
}

impl ServiceRules {
    /// A service without affinity, external addresses or policies: the common case, to be changed field by field.
    pub fn new(name: impl Into<String>, address: Ipv4Addr, ports: Vec<ServicePort>) -> Self {
        Self {
            name: name.into(),
            addresses: vec![address],
            external_addresses: Vec::new(),
            allowed_sources: Vec::new(),
            affinity: Affinity::None,
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            ports,
        }
    }
}

/// One port of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The port at the service's addresses.
    pub port: u16,
    /// The port at the addresses of the nodes and of the machine.
    pub node_port: Option<u16>,
    /// Who answers. The order does not matter.
    pub endpoints: Vec<Endpoint>,
}

/// One who answers for a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// A pod's address, or one of the machine's that is not in 127.0.0.0/8 (which no pod can be led to); for what
    /// listens on the machine take [`Ranges::host_address`](crate::Ranges::host_address).
    pub address: Ipv4Addr,
    /// The port there.
    pub port: u16,
    /// The node it is on, where a policy asks.
    pub node: Option<NodeName>,
}

/// A transport that services and host ports can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP. Translated; whether it can be spoken is up to the kernel.
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// Whether a client comes back to the endpoint it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Affinity {
    /// Every connection is dealt anew.
    None,
    /// Connections from one address go to one endpoint until it has been away for the timeout.
    ClientAddress {
        /// How long the choice is remembered after the last connection.
        timeout: Duration,
    },
}

/// Which endpoints may serve a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// All of them.
    Cluster,
    /// Those of the node that the client is on, or whose address it used. With none there, packets are dropped. The
    /// machine itself is on no node, and is served by all.
    Local,
}

//! The network of pods on one machine: addresses, routes, service translation and names.
//!
//! ```text
//!    pod ── eth0 ─┐                           ┌─ lo: address of the machine, of each node, of the name server
//!    pod ── eth0 ─┤  routed, one /32 each     │
//!    pod ── eth0 ─┴──────────► the machine ───┤
//!                                   │         └─ unreachable: whatever is left of our ranges
//!                    table inet moorline_<instance>:
//!                    services · host ports · node ports · cut-off nodes
//! ```
//!
//! An instance is a name and a directory. Several live side by side on one machine.
//!
//! # Guarantees
//! - A packet for a pod or a service that is gone never leaves the machine.
//! - Nothing of the machine is changed but what carries the instance's mark: its links, its routes, its addresses on the
//!   loopback link, its own table. Global forwarding stays as it is; packets are forwarded from our own links only.
//!   The one exception is [`Outside::Open`], which switches forwarding on for the links of the machine's default routes;
//!   [`Network::purge`] puts back what was there.
//! - [`Network::attach`] and [`Network::detach`] can be repeated, and a crash in the middle of either is cleaned up by
//!   the next [`Network::open`], which takes over what was whole.
//! - Services change in one transaction: a new connection meets the old rules or the new ones.
//! - An address that a pod gave back is the last of its node's to be given again.
//! - A pod cannot send under another address than its own, nor reach the machine's loopback.
//!
//! # Assumptions
//! - The right to administer the network, a kernel with nftables and veth, and the program `nft`
//!   (`apt-get install nftables`).
//! - One process at a time has an instance open.
//! - No other firewall of the machine drops our packets, as those of Docker and ufw do by default;
//!   [`Network::verify`] tries, and says what to allow.
//!
//! Calls of [`Network`] block, for milliseconds; call them where blocking is fine. The name server ([`dns`]) is
//! asynchronous.

mod conntrack;
pub mod dns;
mod error;
pub mod files;
mod firewall;
mod machine;
mod names;
mod namespace;
mod netlink;
mod network;
mod ranges;
mod record;
mod services;
mod state;
mod upkeep;
mod verify;
mod wiring;

pub use error::{Error, Result};
pub use ipnet::Ipv4Net;
pub use names::{InstanceName, NodeName, PodId};
pub use network::{Attachment, Config, HostPort, Network, Outside, PodNetwork};
pub use ranges::{NodeNetwork, Ranges};
pub use services::{Affinity, Endpoint, Protocol, ServicePort, ServiceRules, TrafficPolicy};

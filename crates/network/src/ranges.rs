//! Which addresses an instance may use.
//!
//! ```text
//! pods      10.64.0.0/16   .0.0/24  the machine itself: .0.1 is its address
//!                          .1.0/24  first node: .1.1 is its address, .1.2 … its pods
//!                          .2.0/24  second node …
//! services  10.65.0.0/16   .0.10    the name server
//! ```

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The addresses of one instance: its pods and its services. They do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    pods: Ipv4Net,
    services: Ipv4Net,
}

/// A part of the pod range that belongs to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeNetwork {
    /// The range of the node's pods.
    pub range: Ipv4Net,
    /// The address of the node itself, the first of its range. It lies on the machine's loopback link, and it is what
    /// the machine's own connections to the node's pods come from.
    pub address: Ipv4Addr,
}

/// How many bits tell the addresses of one node apart.
const NODE_PREFIX: u8 = 24;

/// Where instances look for ranges: parts of the private and shared blocks that home and office networks use least.
pub(crate) const POOLS: [Ipv4Net; 3] = [
    Ipv4Net::new_assert(Ipv4Addr::new(10, 64, 0, 0), 10),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
];

impl Ranges {
    /// Ranges of one's own choice.
    pub fn new(pods: Ipv4Net, services: Ipv4Net) -> Result<Self> {
        let bad = |reason| Err(Error::BadRanges { pods, services, reason });
        if pods.trunc() != pods || services.trunc() != services {
            return bad("a range must begin at its first address");
        }
        if pods.contains(&services) || services.contains(&pods) {
            return bad("they overlap");
        }
        if pods.prefix_len() > NODE_PREFIX - 1 || services.prefix_len() > 27 {
            return bad("pods need at least a /23, services at least a /27");
        }
        Ok(Self { pods, services })
    }

    /// The addresses of all pods and nodes.
    pub fn pods(&self) -> Ipv4Net {
        self.pods
    }

    /// The addresses of services.
    pub fn services(&self) -> Ipv4Net {
        self.services
    }

    /// The machine's own address in the instance: where pods find what listens on the machine.
    pub fn host_address(&self) -> Ipv4Addr {
        offset(self.pods, 1)
    }

    /// Where the name server listens.
    pub fn dns_address(&self) -> Ipv4Addr {
        offset(self.services, 10)
    }

    /// The part of the pod range with this number, counted from one; nothing past the last.
    pub(crate) fn node(&self, number: u32) -> Option<NodeNetwork> {
        let parts = 1_u32 << (NODE_PREFIX - self.pods.prefix_len());
        if number == 0 || number >= parts {
            return None;
        }
        let range = Ipv4Net::new(offset(self.pods, number << (32 - NODE_PREFIX)), NODE_PREFIX).ok()?;
        Some(NodeNetwork {
            range,
            address: offset(range, 1),
        })
    }

    /// The addresses that a node may give to pods.
    pub(crate) fn pod_addresses(node: &NodeNetwork) -> impl Iterator<Item = Ipv4Addr> + Clone + use<> {
        let range = node.range;
        (2..255).map(move |number| offset(range, number))
    }
}

/// Finds a pair of ranges that nothing in `taken` overlaps, beginning at a place that `seed` decides, so that instances
/// that do not run at the same time are unlikely to meet either.
pub(crate) fn choose(seed: u32, taken: &[Ipv4Net]) -> Result<Ranges> {
    for pool in POOLS {
        let pairs = 1_u32 << (15 - pool.prefix_len());
        for step in 0..pairs {
            let number = (seed % pairs + step) % pairs;
            let both = Ipv4Net::new(offset(pool, number << 17), 15).expect("15 is a prefix length");
            if taken.iter().any(|other| overlap(both, *other)) {
                continue;
            }
            let pods = Ipv4Net::new(both.network(), 16).expect("16 is a prefix length");
            let services = Ipv4Net::new(offset(both, 1 << 16), 16).expect("16 is a prefix length");
            return Ranges::new(pods, services);
        }
    }
    Err(Error::NoFreeRange)
}

/// Whether two ranges have an address in common.
pub(crate) fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

fn offset(range: Ipv4Net, by: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(range.network()).wrapping_add(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_avoid_whatever_the_machine_routes() {
        let first = choose(0, &[]).unwrap();
        assert_eq!(
            (first.pods(), first.services()),
            (net("10.64.0.0/16"), net("10.65.0.0/16"))
        );
        let second = choose(0, &[net("10.65.3.0/24")]).unwrap();
        assert_eq!(second.pods(), net("10.66.0.0/16"));
        let elsewhere = choose(7, &[net("10.0.0.0/8")]).unwrap();
        assert!(net("100.64.0.0/10").contains(&elsewhere.pods()), "{elsewhere:?}");
        let nowhere = choose(7, &[net("10.0.0.0/8"), net("100.64.0.0/10"), net("172.16.0.0/12")]);
        assert!(matches!(nowhere, Err(Error::NoFreeRange)));
    }

    #[test]
    fn every_node_has_a_part_of_its_own_and_the_machine_has_the_first() {
        let ranges = Ranges::new(net("10.64.0.0/22"), net("10.65.0.0/24")).unwrap();
        assert_eq!(ranges.host_address(), Ipv4Addr::new(10, 64, 0, 1));
        assert_eq!(ranges.node(0), None);
        let third = ranges.node(3).unwrap();
        assert_eq!(
            (third.range, third.address),
            (net("10.64.3.0/24"), Ipv4Addr::new(10, 64, 3, 1))
        );
        assert_eq!(ranges.node(4), None);
        assert_eq!(Ranges::pod_addresses(&third).next(), Some(Ipv4Addr::new(10, 64, 3, 2)));
        assert_eq!(
            Ranges::pod_addresses(&third).last(),
            Some(Ipv4Addr::new(10, 64, 3, 254))
        );
    }

    #[test]
    fn ranges_that_overlap_or_are_too_small_are_refused() {
        assert!(Ranges::new(net("10.64.0.0/16"), net("10.64.128.0/17")).is_err());
        assert!(Ranges::new(net("10.64.0.0/24"), net("10.65.0.0/24")).is_err());
        assert!(Ranges::new(net("10.64.0.0/16"), net("10.65.0.0/28")).is_err());
        assert!(Ranges::new(net("10.64.3.0/16"), net("10.65.0.0/24")).is_err());
    }
}

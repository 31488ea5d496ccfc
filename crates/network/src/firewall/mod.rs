//! Our table of nftables: a function of what the instance has.
//!
//! ```text
//!            ┌ guard ┐   ┌ arriving ┐             ┌ forward ┐   ┌ leaving ┐
//!  packet ──►│ spoof │──►│ translate│──► route ──►│ cut off │──►│ hairpin │──►
//!            └───────┘   └──────────┘      │      │ refuse  │   │ outside │
//!                                          ▼      └─────────┘   └─────────┘
//!  the machine ──► sending: translate ──► output, input: cut off, refuse
//! ```

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::ranges::POOLS;
use crate::{HostPort, NodeName, NodeNetwork, Outside, Protocol, Ranges, ServiceRules};

pub(crate) mod nft;
mod ruleset;
mod translate;

pub(crate) use ruleset::Ruleset;
use ruleset::Set;
use translate::Translation;
pub(crate) use translate::UdpTargets;

/// Everything that the table is made from.
pub(crate) struct Layout<'a> {
    pub(crate) ranges: Ranges,
    /// What the names of this instance's links begin with.
    pub(crate) link_prefix: &'a str,
    pub(crate) outside: Outside,
    pub(crate) nodes: &'a BTreeMap<NodeName, NodeNetwork>,
    /// The ranges of the nodes that are cut off.
    pub(crate) cut: Vec<Ipv4Net>,
    pub(crate) host_ports: Vec<OpenHostPort>,
    pub(crate) services: &'a [ServiceRules],
    /// Addresses of the machine that lie where instances take their ranges from.
    pub(crate) machine_addresses: Vec<Ipv4Addr>,
}

/// A port of the machine that leads to a pod.
#[derive(Clone, Debug)]
pub(crate) struct OpenHostPort {
    pub(crate) node: Ipv4Addr,
    pub(crate) pod: Ipv4Addr,
    pub(crate) port: HostPort,
}

/// The key of a translation by address, as the maps have it.
fn address_key(address: Ipv4Addr, protocol: Protocol, port: u16) -> String {
    format!("{address} . {protocol} . {port}")
}

/// The key of a translation by port alone.
fn port_key(protocol: Protocol, port: u16) -> String {
    format!("{protocol} . {port}")
}

const BY_ADDRESS: &str = "type ipv4_addr . inet_proto . inet_service : verdict;";
const BY_PORT: &str = "type inet_proto . inet_service : verdict;";

/// The table, and where UDP flows may lead according to it.
pub(crate) fn render(layout: &Layout<'_>) -> (Ruleset, UdpTargets) {
    let mut rules = Ruleset::default();
    let translation = Translation::of(layout, &mut rules);
    let links = format!("\"{}*\"", layout.link_prefix);
    let (pods, services) = (layout.ranges.pods(), layout.ranges.services());
    let host = layout.ranges.host_address();

    rules.set("services", Set::map(BY_ADDRESS, translation.by_address));
    rules.set("host_ports", Set::map(BY_ADDRESS, translation.host_ports));
    rules.set("shared_host_ports", Set::map(BY_PORT, translation.shared_host_ports));
    rules.set("node_ports", Set::map(BY_PORT, translation.node_ports));
    rules.set(
        "refused",
        Set::of("type ipv4_addr . inet_proto . inet_service;", translation.refused),
    );
    let hairpin = translation
        .hairpin
        .iter()
        .map(|address| format!("{address} . {address}"));
    rules.set("hairpin", Set::of("type ipv4_addr . ipv4_addr;", hairpin));
    rules.set(
        "cut",
        Set::of(
            "type ipv4_addr; flags interval;",
            layout.cut.iter().map(ToString::to_string),
        ),
    );
    let inside = layout.cut.iter().map(|range| format!("{range} . {range}"));
    rules.set(
        "cut_inside",
        Set::of("type ipv4_addr . ipv4_addr; flags interval;", inside),
    );

    rules.base_chain(
        "guard",
        "type filter hook prerouting priority -300; policy accept;",
        vec![
            format!("iifname {links} ip saddr 127.0.0.0/8 drop"),
            format!("iifname {links} ip daddr 127.0.0.0/8 drop"),
            // A pod speaks with its own address: the way back to the sender must be the way it came.
            format!("iifname {links} fib saddr . iif oif missing drop"),
            format!("iifname != \"lo\" iifname != {links} ip daddr {{ {pods}, {services} }} drop"),
        ],
    );
    rules.base_chain(
        "arriving",
        "type nat hook prerouting priority -100; policy accept;",
        vec!["jump translate".into()],
    );
    rules.base_chain(
        "sending",
        "type nat hook output priority -100; policy accept;",
        vec!["jump translate".into()],
    );
    rules.chain("translate", translate_rules(layout));
    rules.chain(
        "machine_ports",
        vec![
            "meta l4proto . th dport vmap @shared_host_ports".into(),
            "goto own_ports".into(),
        ],
    );
    rules.chain("own_ports", vec!["meta l4proto . th dport vmap @node_ports".into()]);

    let among_themselves = "ip saddr . ip daddr @cut_inside accept".to_owned();
    let from_cut = "ip saddr @cut drop".to_owned();
    let to_cut = "ip daddr @cut drop".to_owned();
    let refused = "ip daddr . meta l4proto . th dport @refused goto refuse".to_owned();
    let mut forward = vec![
        among_themselves.clone(),
        from_cut.clone(),
        to_cut.clone(),
        refused.clone(),
        format!("ip daddr {services} goto refuse"),
        format!("iifname {links} oifname {links} accept"),
        format!("oifname {links} ct state established,related accept"),
    ];
    match layout.outside {
        Outside::Closed => forward.push(format!("iifname {links} reject with icmp admin-prohibited")),
        Outside::Open => forward.push(format!("oifname {links} ct status dnat accept")),
    }
    forward.push(format!("oifname {links} drop"));
    rules.base_chain(
        "forward",
        "type filter hook forward priority 0; policy accept;",
        forward,
    );
    rules.base_chain(
        "input",
        "type filter hook input priority 0; policy accept;",
        vec![among_themselves.clone(), from_cut],
    );
    rules.base_chain(
        "output",
        "type filter hook output priority 0; policy accept;",
        vec![
            among_themselves,
            to_cut,
            refused,
            format!("ip daddr {services} fib daddr type != local goto refuse"),
        ],
    );
    rules.chain(
        "refuse",
        vec![
            "meta l4proto tcp reject with tcp reset".into(),
            "reject with icmp port-unreachable".into(),
        ],
    );

    let mut leaving = vec![
        // From the machine's loopback no answer would find back, and a pod does not take its own packets from outside.
        format!("oifname {links} ip saddr 127.0.0.0/8 snat ip to {host}"),
        format!("ct status dnat ip saddr . ip daddr @hairpin snat ip to {host}"),
    ];
    if layout.outside == Outside::Open {
        leaving.push(format!(
            "ip saddr {pods} oifname != {links} oifname != \"lo\" masquerade"
        ));
    }
    rules.base_chain(
        "leaving",
        "type nat hook postrouting priority 100; policy accept;",
        leaving,
    );
    (rules, translation.udp)
}

fn translate_rules(layout: &Layout<'_>) -> Vec<String> {
    let by_address = "ip daddr . meta l4proto . th dport vmap";
    let mut rules = vec![
        format!("{by_address} @services"),
        format!("{by_address} @host_ports"),
        format!("ip daddr {} fib daddr type local goto own_ports", layout.ranges.pods()),
    ];
    for address in &layout.machine_addresses {
        rules.push(format!("ip daddr {address} goto machine_ports"));
    }
    // The addresses of other instances are the machine's too, and none of our business.
    let pools: Vec<String> = POOLS.iter().map(ToString::to_string).collect();
    rules.push(format!("ip daddr {{ {} }} return", pools.join(", ")));
    rules.push("fib daddr type local goto machine_ports".into());
    rules
}

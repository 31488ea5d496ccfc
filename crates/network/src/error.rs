use std::net::Ipv4Addr;
use std::path::PathBuf;

use ipnet::Ipv4Net;

use crate::{NodeName, PodId, Protocol};

/// What can go wrong between a pod and its network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a change to a link, an address, a route or a neighbour.
    #[error("{attempt}")]
    Netlink {
        /// What was attempted, on what.
        attempt: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// A file, a directory or a mount of the instance could not be read or written.
    #[error("{attempt} {}", path.display())]
    File {
        /// What was attempted.
        attempt: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// A record of the instance does not read as what it should be.
    #[error("{} is damaged; purge the instance's network, or restore the file", path.display())]
    Damaged {
        /// The record.
        path: PathBuf,
        /// Where it is damaged.
        #[source]
        source: serde_json::Error,
    },
    /// The process may not administer the network.
    #[error("a network for pods needs the rights of root: run it as root, or in a user namespace of its own")]
    NotPermitted,
    /// Another process has the instance open.
    #[error("the network in {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The `nft` program is not there.
    #[error(
        "services need the program `nft`, which is not on this machine: install nftables (apt-get install nftables)"
    )]
    NftMissing,
    /// `nft` refused the rules that were handed to it.
    #[error("nft refused the rules of table {table}: {message}")]
    Nft {
        /// The table of this instance.
        table: String,
        /// What `nft` wrote.
        message: String,
    },
    /// `nft` could not be run.
    #[error("cannot run nft")]
    NftRun(#[source] std::io::Error),
    /// None of the candidates is free of the machine's own routes.
    #[error(
        "no free range for pods and services: every candidate overlaps a route or an address of this machine; name ranges of your own"
    )]
    NoFreeRange,
    /// The ranges of this instance overlap what the machine already routes.
    #[error(
        "the range {range} of instance {instance} overlaps {taken_by} of this machine; purge the instance's network or name other ranges"
    )]
    RangeTaken {
        /// This instance.
        instance: String,
        /// Its range.
        range: Ipv4Net,
        /// The route, address or resolver in the way.
        taken_by: String,
    },
    /// The ranges that were asked for cannot be used.
    #[error("ranges {pods} for pods and {services} for services cannot be used: {reason}")]
    BadRanges {
        /// The pod range.
        pods: Ipv4Net,
        /// The service range.
        services: Ipv4Net,
        /// Why not.
        reason: &'static str,
    },
    /// More nodes than the pod range has parts.
    #[error("no part of the pod range {range} is left for node {node}")]
    NoNodeRange {
        /// The node.
        node: NodeName,
        /// The pod range of the instance.
        range: Ipv4Net,
    },
    /// Every address of the node is taken.
    #[error("no address is left in {range} of node {node}")]
    NoAddress {
        /// The node.
        node: NodeName,
        /// Its range.
        range: Ipv4Net,
    },
    /// A node that was never added.
    #[error("node {0} is not known to the network")]
    UnknownNode(NodeName),
    /// A node that still has pods.
    #[error("node {node} still has pods attached, among them {pod}")]
    NodeInUse {
        /// The node.
        node: NodeName,
        /// One of its pods.
        pod: PodId,
    },
    /// A pod that is not attached.
    #[error("pod {0} is not attached to the network")]
    UnknownPod(PodId),
    /// The same pod is being attached or detached by somebody else at this moment.
    #[error("pod {0} is being attached or detached; try again")]
    Busy(PodId),
    /// The pod is attached already, and differently.
    #[error("pod {pod} is attached to node {node}; detach it first")]
    AttachedElsewhere {
        /// The pod.
        pod: PodId,
        /// Where it is.
        node: NodeName,
    },
    /// Two pods want the same port of the same address of this machine.
    #[error("host port {address}:{port}/{protocol} is taken by pod {holder}")]
    HostPortTaken {
        /// The address of the machine.
        address: Ipv4Addr,
        /// The port.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
        /// Who has it.
        holder: PodId,
    },
    /// A kernel setting inside the pod could not be made.
    #[error("cannot set sysctl {name} to {value:?} in the pod")]
    Sysctl {
        /// Its name, with dots.
        name: String,
        /// The value.
        value: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// Nothing in the pod takes connections at that port.
    #[error("cannot connect to port {port} in pod {pod}")]
    Dial {
        /// The pod.
        pod: PodId,
        /// The port.
        port: u16,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// Another firewall of the machine drops our packets.
    #[error("packets {way} do not pass: another firewall of this machine drops them; allow them there, as by `{rule}`")]
    Blocked {
        /// Which packets.
        way: &'static str,
        /// A command that allows them.
        rule: String,
        /// What came of the attempt.
        #[source]
        source: std::io::Error,
    },
    /// A name that cannot be used.
    #[error("{what} {value:?} cannot be used: {rule}")]
    BadName {
        /// What it would name.
        what: &'static str,
        /// The name.
        value: String,
        /// What a name must look like.
        rule: &'static str,
    },
    /// The name server could not be started.
    #[error("cannot start the name server on {address}")]
    DnsBind {
        /// The address.
        address: std::net::SocketAddr,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// What this crate answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says of an I/O error what was attempted on which file.
pub(crate) fn on_file(attempt: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.into();
    move |source| Error::File { attempt, path, source }
}

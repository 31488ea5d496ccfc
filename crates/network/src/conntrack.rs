//! Forgetting flows of UDP that lead where no rule leads any more.
//!
//! A flow keeps its translation for as long as packets come. A client of UDP that never pauses would go on talking to an
//! endpoint that is gone, or to nobody because there was none when it began.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol, Tuple};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::firewall::UdpTargets;
use crate::netlink::{connected, exchange};

/// Forgets the flows that lead elsewhere than `targets` says. Node ports are told from the ports of others by where they
/// lead: to `pods`. How many there were.
pub(crate) fn forget_stale(targets: &UdpTargets, pods: Ipv4Net) -> io::Result<usize> {
    let socket = connected(NETLINK_NETFILTER)?;
    let all = exchange(&socket, 1, message(ConntrackMessage::Get(Vec::new())), NLM_F_DUMP)?;
    let mut forgotten = 0;
    for (number, flow) in all.into_iter().filter_map(Flow::read).enumerate() {
        if flow.is_stale(targets, pods) && forget(&socket, flow, u32::try_from(number + 2).unwrap_or(u32::MAX))? {
            forgotten += 1;
        }
    }
    Ok(forgotten)
}

/// A flow of UDP: where the client sent it, and who answers.
struct Flow {
    original: Vec<Tuple>,
    sent_to: (Ipv4Addr, u16),
    answered_by: (Ipv4Addr, u16),
}

impl Flow {
    fn read(message: NetfilterMessage) -> Option<Self> {
        let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = message.inner else {
            return None;
        };
        let (mut original, mut answer) = (None, None);
        for attribute in attributes {
            match attribute {
                ConntrackAttribute::CtaTupleOrig(tuple) => original = Some(tuple),
                ConntrackAttribute::CtaTupleReply(tuple) => answer = Some(tuple),
                _ => {}
            }
        }
        let original = original?;
        let sent_to = ends(&original)?.1;
        let answered_by = ends(&answer?)?.0;
        Some(Self {
            original,
            sent_to,
            answered_by,
        })
    }

    fn is_stale(&self, targets: &UdpTargets, pods: Ipv4Net) -> bool {
        let by_node_port = || {
            targets
                .by_node_port
                .get(&self.sent_to.1)
                .filter(|_| pods.contains(&self.answered_by.0))
        };
        let wanted = targets.by_address.get(&self.sent_to).or_else(by_node_port);
        wanted.is_some_and(|wanted| !wanted.contains(&self.answered_by))
    }
}

/// Source and destination of one direction of a flow of UDP.
fn ends(tuple: &[Tuple]) -> Option<((Ipv4Addr, u16), (Ipv4Addr, u16))> {
    let (mut from, mut to, mut from_port, mut to_port, mut udp) = (None, None, None, None, false);
    for part in tuple {
        match part {
            Tuple::Ip(addresses) => {
                for address in addresses {
                    match address {
                        IPTuple::SourceAddress(IpAddr::V4(address)) => from = Some(*address),
                        IPTuple::DestinationAddress(IpAddr::V4(address)) => to = Some(*address),
                        _ => {}
                    }
                }
            }
            Tuple::Proto(ports) => {
                for port in ports {
                    match port {
                        ProtoTuple::Protocol(protocol) => udp = *protocol == Protocol::Udp,
                        ProtoTuple::SourcePort(port) => from_port = Some(*port),
                        ProtoTuple::DestinationPort(port) => to_port = Some(*port),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    udp.then_some(((from?, from_port?), (to?, to_port?)))
}

fn forget(socket: &Socket, flow: Flow, sequence: u32) -> io::Result<bool> {
    let delete = ConntrackMessage::Delete(vec![ConntrackAttribute::CtaTupleOrig(flow.original)]);
    match exchange(socket, sequence, message(delete), NLM_F_ACK) {
        Ok(_) => Ok(true),
        // It ended by itself in the meantime.
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn message(inner: ConntrackMessage) -> NetfilterMessage {
    NetfilterMessage::new(NetfilterHeader::new(NetfilterProtoFamily::IPv4, 0, 0), inner)
}

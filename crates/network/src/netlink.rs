//! Links, addresses, routes and neighbours, by netlink and without a runtime.
//!
//! A socket belongs to the network namespace of the thread that opened it, whichever thread uses it later. So one thread
//! can arrange both ends of a pair of links.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::Ipv4Net;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::{Error, Result};

/// The origin that our routes carry, so that they are told from the machine's own. Free in the kernel's list.
pub(crate) const ROUTE_ORIGIN: RouteProtocol = RouteProtocol::Other(109);

/// Where the kernel keeps the routes to local addresses by itself.
const LOCAL_TABLE: u8 = nix::libc::RT_TABLE_LOCAL;

/// How often a list is asked for again because something changed meanwhile.
const MOST_ATTEMPTS: u32 = 20;

/// Index of the loopback link, the same in every namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// Replacing what is there, or making it.
const REPLACE: u16 = NLM_F_CREATE | NLM_F_REPLACE;

/// A conversation with the kernel about the links and routes of one network namespace.
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// A link's hardware address.
pub(crate) type HardwareAddress = [u8; 6];

/// A pair of links to be made, this end in the namespace of the socket, the other elsewhere.
pub(crate) struct VethPair<'a> {
    pub(crate) name: &'a str,
    pub(crate) hardware: HardwareAddress,
    pub(crate) peer_name: &'a str,
    pub(crate) peer_hardware: HardwareAddress,
    pub(crate) peer_namespace: BorrowedFd<'a>,
}

/// A route, as far as we care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: Ipv4Net,
    pub(crate) way: Way,
    pub(crate) origin: RouteProtocol,
    pub(crate) metric: Option<u32>,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nowhere; the sender is told.
    Unreachable,
    /// To a neighbour on a link.
    Link { index: u32, source: Option<Ipv4Addr> },
    /// Through a gateway on a link.
    Gateway { index: u32, gateway: Ipv4Addr },
    /// Something that we never make.
    Foreign,
}

/// An address on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkAddress {
    pub(crate) index: u32,
    pub(crate) net: Ipv4Net,
}

impl Netlink {
    /// Opens a conversation about the namespace of the calling thread.
    pub(crate) fn open() -> Result<Self> {
        Ok(Self {
            socket: connected(NETLINK_ROUTE).map_err(failed(|| "open a netlink socket".into()))?,
            sequence: 0,
        })
    }

    /// Makes a pair of links, this end up. The other comes up by itself only once both are there.
    pub(crate) fn add_veth(&mut self, pair: &VethPair<'_>) -> Result<()> {
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(pair.peer_name.into()),
            LinkAttribute::Address(pair.peer_hardware.to_vec()),
            LinkAttribute::NetNsFd(pair.peer_namespace.as_raw_fd()),
        ];
        let mut link = LinkMessage::default();
        up(&mut link);
        link.attributes = vec![
            LinkAttribute::IfName(pair.name.into()),
            LinkAttribute::Address(pair.hardware.to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        self.change(&RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(failed(|| format!("make link {}", pair.name)))
    }

    /// The index of a link, if it is there.
    pub(crate) fn link_index(&mut self, name: &str) -> Result<Option<u32>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        match self.ask(&RouteNetlinkMessage::GetLink(message), 0) {
            Ok(answers) => Ok(answers.into_iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(link) => Some(link.header.index),
                _ => None,
            })),
            Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => Ok(None),
            Err(error) => Err(failed(|| format!("find link {name}"))(error)),
        }
    }

    /// Every link's index and name.
    pub(crate) fn links(&mut self) -> Result<Vec<(u32, String)>> {
        let answers = self
            .ask(&RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)
            .map_err(failed(|| "list links".into()))?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(link) => {
                    let index = link.header.index;
                    link.attributes.into_iter().find_map(|attribute| match attribute {
                        LinkAttribute::IfName(name) => Some((index, name)),
                        _ => None,
                    })
                }
                _ => None,
            })
            .collect())
    }

    /// Brings a link up.
    pub(crate) fn set_up(&mut self, index: u32) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        up(&mut message);
        self.change(&RouteNetlinkMessage::SetLink(message), 0)
            .map_err(failed(|| format!("bring link {index} up")))
    }

    /// Removes a link and its peer; one that is gone is fine.
    pub(crate) fn delete_link(&mut self, name: &str) -> Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        gone_is_fine(self.change(&RouteNetlinkMessage::DelLink(message), 0))
            .map_err(failed(|| format!("remove link {name}")))
    }

    /// Puts an address on a link; one that is there is fine.
    pub(crate) fn add_address(&mut self, index: u32, address: Ipv4Addr) -> Result<()> {
        self.change(
            &RouteNetlinkMessage::NewAddress(address_message(index, address)),
            REPLACE,
        )
        .map_err(failed(|| format!("add address {address} to link {index}")))
    }

    /// Takes an address from a link; one that is gone is fine.
    pub(crate) fn delete_address(&mut self, index: u32, address: Ipv4Addr) -> Result<()> {
        gone_is_fine(self.change(&RouteNetlinkMessage::DelAddress(address_message(index, address)), 0))
            .map_err(failed(|| format!("remove address {address} from link {index}")))
    }

    /// Every IPv4 address of the namespace.
    pub(crate) fn addresses(&mut self) -> Result<Vec<LinkAddress>> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        let answers = self
            .ask(&RouteNetlinkMessage::GetAddress(message), NLM_F_DUMP)
            .map_err(failed(|| "list addresses".into()))?;
        Ok(answers.into_iter().filter_map(read_address).collect())
    }

    /// Makes a route, or replaces the one with the same destination and metric.
    pub(crate) fn set_route(&mut self, route: &Route) -> Result<()> {
        self.change(&RouteNetlinkMessage::NewRoute(route_message(route)), REPLACE)
            .map_err(failed(|| format!("route {}", route.to)))
    }

    /// Removes a route; one that is gone is fine.
    pub(crate) fn delete_route(&mut self, route: &Route) -> Result<()> {
        gone_is_fine(self.change(&RouteNetlinkMessage::DelRoute(route_message(route)), 0))
            .map_err(failed(|| format!("remove the route to {}", route.to)))
    }

    /// Every IPv4 route, of all tables but the kernel's own of local addresses.
    pub(crate) fn routes(&mut self) -> Result<Vec<Route>> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        let answers = self
            .ask(&RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP)
            .map_err(failed(|| "list routes".into()))?;
        Ok(answers.into_iter().filter_map(read_route).collect())
    }

    /// Says for good which hardware address a neighbour has, so that nobody has to ask.
    pub(crate) fn set_neighbour(&mut self, index: u32, address: Ipv4Addr, hardware: HardwareAddress) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(hardware.to_vec()),
        ];
        self.change(&RouteNetlinkMessage::NewNeighbour(message), REPLACE)
            .map_err(failed(|| format!("make {address} a neighbour on link {index}")))
    }

    fn change(&mut self, message: &RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.ask(message, flags | NLM_F_ACK).map(drop)
    }

    fn ask(&mut self, message: &RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut attempts = 0;
        loop {
            self.sequence = self.sequence.wrapping_add(1);
            match exchange(&self.socket, self.sequence, message.clone(), flags) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted && attempts < MOST_ATTEMPTS => attempts += 1,
                other => return other,
            }
        }
    }
}

/// A socket of one of netlink's protocols, connected to the kernel.
pub(crate) fn connected(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Sends one request and gathers its answers up to the last. A list during which something changed is refused as
/// interrupted: it may lack what was there all the time.
pub(crate) fn exchange<M>(socket: &Socket, sequence: u32, message: M, flags: u16) -> io::Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable,
    NetlinkPayload<M>: From<M>,
{
    let mut packet = NetlinkMessage::from(message);
    packet.header.flags = flags | NLM_F_REQUEST;
    packet.header.sequence_number = sequence;
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let many = flags & NLM_F_DUMP == NLM_F_DUMP;
    let acknowledged = flags & NLM_F_ACK != 0;
    let mut answers = Vec::new();
    let mut interrupted = false;
    loop {
        let (received, _) = socket.recv_from_full()?;
        let mut rest = received.as_slice();
        while !rest.is_empty() {
            let answer = NetlinkMessage::<M>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            let length = (answer.header.length as usize).next_multiple_of(4).min(rest.len());
            rest = &rest[length..];
            if answer.header.sequence_number != sequence {
                continue;
            }
            interrupted |= many && answer.header.flags & NLM_F_DUMP_INTR != 0;
            match answer.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) if interrupted => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(answers),
                NetlinkPayload::InnerMessage(inner) => {
                    answers.push(inner);
                    if !many && !acknowledged {
                        return Ok(answers);
                    }
                }
                _ => {}
            }
        }
    }
}

fn failed(attempt: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Netlink {
        attempt: format!("cannot {}", attempt()),
        source,
    }
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    use nix::libc::{EADDRNOTAVAIL, ENODEV, ENOENT, ESRCH};
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(ENODEV | ESRCH | EADDRNOTAVAIL | ENOENT)) => Ok(()),
        other => other,
    }
}

fn up(message: &mut LinkMessage) {
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
}

fn address_message(index: u32, address: Ipv4Addr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = 32;
    // Those on the loopback link are for who names them: the machine's own connections elsewhere never take them.
    message.header.scope = if index == LOOPBACK {
        AddressScope::Host
    } else {
        AddressScope::Universe
    };
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address.into()),
        AddressAttribute::Address(address.into()),
    ];
    message
}

fn read_address(answer: RouteNetlinkMessage) -> Option<LinkAddress> {
    let RouteNetlinkMessage::NewAddress(message) = answer else {
        return None;
    };
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(std::net::IpAddr::V4(address)) => Some(*address),
        _ => None,
    })?;
    let net = Ipv4Net::new(address, message.header.prefix_len).ok()?;
    Some(LinkAddress {
        index: message.header.index,
        net,
    })
}

fn route_message(route: &Route) -> RouteMessage {
    let (kind, scope) = match route.way {
        Way::Unreachable => (RouteType::Unreachable, RouteScope::Universe),
        Way::Link { .. } => (RouteType::Unicast, RouteScope::Link),
        Way::Gateway { .. } | Way::Foreign => (RouteType::Unicast, RouteScope::Universe),
    };
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = route.to.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = route.origin;
    message.header.scope = scope;
    message.header.kind = kind;
    if route.to.prefix_len() > 0 {
        message
            .attributes
            .push(RouteAttribute::Destination(RouteAddress::Inet(route.to.network())));
    }
    message.attributes.extend(route.metric.map(RouteAttribute::Priority));
    match route.way {
        Way::Unreachable | Way::Foreign => {}
        Way::Link { index, source } => {
            message.attributes.push(RouteAttribute::Oif(index));
            message
                .attributes
                .extend(source.map(|source| RouteAttribute::PrefSource(RouteAddress::Inet(source))));
        }
        Way::Gateway { index, gateway } => {
            message.attributes.push(RouteAttribute::Oif(index));
            message
                .attributes
                .push(RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
        }
    }
    message
}

fn read_route(answer: RouteNetlinkMessage) -> Option<Route> {
    let RouteNetlinkMessage::NewRoute(message) = answer else {
        return None;
    };
    if message.header.table == LOCAL_TABLE {
        return None;
    }
    let (mut to, mut index, mut gateway, mut source, mut metric) = (Ipv4Addr::UNSPECIFIED, None, None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => to = *address,
            RouteAttribute::Oif(oif) => index = Some(*oif),
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = Some(*address),
            RouteAttribute::PrefSource(RouteAddress::Inet(address)) => source = Some(*address),
            RouteAttribute::Priority(priority) => metric = Some(*priority),
            _ => {}
        }
    }
    let way = match (message.header.kind, index, gateway) {
        (RouteType::Unreachable, ..) => Way::Unreachable,
        (RouteType::Unicast, Some(index), None) => Way::Link { index, source },
        (RouteType::Unicast, Some(index), Some(gateway)) => Way::Gateway { index, gateway },
        _ => Way::Foreign,
    };
    let to = Ipv4Net::new(to, message.header.destination_prefix_length).ok()?;
    Some(Route {
        to,
        way,
        origin: message.header.protocol,
        metric,
    })
}

impl Way {
    /// The link it leads over, if any.
    pub(crate) fn link(self) -> Option<u32> {
        match self {
            Self::Link { index, .. } | Self::Gateway { index, .. } => Some(index),
            Self::Unreachable | Self::Foreign => None,
        }
    }
}

//! The wire between a pod and the machine.
//!
//! ```text
//!   machine                                  pod
//!   ml…  02:…:01 ◄──────── veth ────────► eth0  02:…:<address>
//!   route <address>/32 dev ml…             <address>/32, default via 169.254.1.1
//! ```
//!
//! There is no bridge: every packet is routed, so that a translated answer never takes a short cut past its
//! translation. Both ends know each other's hardware address for good, so nobody waits for an answer to ARP.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;

use crate::error::on_file;
use crate::names::Tag;
use crate::netlink::{HardwareAddress, LOOPBACK, Netlink, ROUTE_ORIGIN, Route, VethPair, Way};
use crate::record::PodRecord;
use crate::{Error, Result, namespace};

/// What pods see as their interface.
pub(crate) const POD_LINK: &str = "eth0";

/// What pods send everything to. Link-local, so that it cannot be anybody else.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The machine's end of every wire. Locally administered; the same everywhere, for no two of them meet.
const MACHINE_HARDWARE: HardwareAddress = [0x02, 0x6d, 0x6c, 0x00, 0x00, 0x01];

/// The name of the machine's end of a wire: unique in the instance, because addresses are.
pub(crate) fn link_name(tag: Tag, address: Ipv4Addr) -> String {
    format!("{}{:08x}", tag.link_prefix(), u32::from(address))
}

/// Makes the namespace of a pod and its wire. What is left of an earlier attempt must be gone.
pub(crate) fn connect(pod: &PodRecord, node: Ipv4Addr, path: &Path, sysctls: &[(String, String)]) -> Result<()> {
    let mut inside = namespace::create(path, || {
        set_inside(sysctls)?;
        Netlink::open()
    })?;
    let file = fs::File::open(path).map_err(on_file("cannot open", path))?;
    let mut outside = Netlink::open()?;
    outside.add_veth(&VethPair {
        name: &pod.link,
        hardware: MACHINE_HARDWARE,
        peer_name: POD_LINK,
        peer_hardware: pod_hardware(pod.address),
        peer_namespace: file.as_fd(),
    })?;
    inside.set_up(LOOPBACK)?;
    let link = index_of(&mut inside, POD_LINK)?;
    inside.set_up(link)?;
    inside.add_address(link, pod.address)?;
    inside.set_neighbour(link, GATEWAY, MACHINE_HARDWARE)?;
    inside.set_route(&route(
        host_net(GATEWAY),
        Way::Link {
            index: link,
            source: None,
        },
    ))?;
    inside.set_route(&route(
        Ipv4Net::default(),
        Way::Gateway {
            index: link,
            gateway: GATEWAY,
        },
    ))?;
    arrange(&mut outside, pod, node)
}

/// The machine's side of a wire: settings, neighbour, route. Can be repeated.
pub(crate) fn arrange(outside: &mut Netlink, pod: &PodRecord, node: Ipv4Addr) -> Result<()> {
    let link = index_of(outside, &pod.link)?;
    // Packets from pods may go on to other links; those of other links are not our business. And what the machine sends
    // from its loopback to a port of its own may end here.
    for (setting, value) in [
        ("ipv4", "forwarding"),
        ("ipv4", "route_localnet"),
        ("ipv6", "disable_ipv6"),
    ]
    .map(|(family, name)| (setting_path(family, &pod.link, name), "1"))
    {
        match fs::write(&setting, value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_ipv6(&setting) => {}
            other => other.map_err(on_file("cannot write", setting))?,
        }
    }
    outside.set_neighbour(link, pod.address, pod_hardware(pod.address))?;
    outside.set_route(&route(
        host_net(pod.address),
        Way::Link {
            index: link,
            source: Some(node),
        },
    ))
}

/// Takes the wire and the namespace down. What is gone is fine.
pub(crate) fn disconnect(outside: &mut Netlink, link: &str, path: &Path) -> Result<()> {
    // The kernel takes a namespace apart when it finds the time; the wire is to be gone now.
    outside.delete_link(link)?;
    namespace::remove(path)
}

/// Where a setting of a link lives.
pub(crate) fn setting_path(family: &str, link: &str, name: &str) -> PathBuf {
    ["/proc/sys/net", family, "conf", link, name].iter().collect()
}

/// Settings inside a new namespace. Links made later take the defaults; loopback keeps IPv6.
fn set_inside(sysctls: &[(String, String)]) -> Result<()> {
    let ours = [
        ("net.ipv6.conf.default.disable_ipv6", "1"),
        ("net.ipv4.ip_unprivileged_port_start", "0"),
        ("net.ipv4.ping_group_range", "0 2147483647"),
    ];
    for (name, value) in ours {
        // A kernel without one of them is no reason to run no pods.
        if let Err(error) = fs::write(sysctl_path(name), value) {
            tracing::debug!(name, %error, "setting not available in pods");
        }
    }
    for (name, value) in sysctls {
        let refused = |source| Error::Sysctl {
            name: name.clone(),
            value: value.clone(),
            source,
        };
        // Anything else belongs to the machine, or to another namespace than the one that this thread is in.
        let spelled = name.replace('/', ".");
        if !spelled.starts_with("net.") || spelled.contains("..") {
            return Err(refused(io::Error::new(
                io::ErrorKind::InvalidInput,
                "only net.* belongs to a pod's network",
            )));
        }
        fs::write(sysctl_path(&spelled), value).map_err(refused)?;
    }
    Ok(())
}

fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name.replace('.', "/"))
}

fn is_ipv6(path: &Path) -> bool {
    path.starts_with("/proc/sys/net/ipv6")
}

fn index_of(netlink: &mut Netlink, link: &str) -> Result<u32> {
    netlink.link_index(link)?.ok_or_else(|| Error::Netlink {
        attempt: format!("cannot find link {link}"),
        source: io::Error::from_raw_os_error(nix::libc::ENODEV),
    })
}

fn route(to: Ipv4Net, way: Way) -> Route {
    Route {
        to,
        way,
        origin: ROUTE_ORIGIN,
        metric: None,
    }
}

pub(crate) fn host_net(address: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::new(address, 32).expect("32 is a prefix length")
}

fn pod_hardware(address: Ipv4Addr) -> HardwareAddress {
    let [a, b, c, d] = address.octets();
    [0x02, 0x6d, a, b, c, d]
}

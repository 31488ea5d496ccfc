//! Beginning and ending: what an instance has on the machine besides its pods and rules, and what a crash left of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::firewall::nft;
use crate::machine::{self, Turn};
use crate::netlink::{LOOPBACK, Netlink, ROUTE_ORIGIN, Route, Way};
use crate::ranges::{self, POOLS, overlap};
use crate::record::{Directory, InstanceRecord, Progress};
use crate::state::State;
use crate::wiring;
use crate::{Config, Error, InstanceName, Outside, Ranges, Result, namespace};

/// The ranges of the instance, chosen or remembered, with the routes that keep their packets on the machine.
pub(crate) fn claim(config: &Config, directory: &Directory, netlink: &mut Netlink) -> Result<InstanceRecord> {
    let tag = config.instance.tag();
    let turn = Turn::take()?;
    let remembered = directory.read_instance()?;
    let wanted = config.ranges.or(remembered.as_ref().map(|record| record.ranges));
    let taken = machine::taken(netlink, tag, wanted)?;
    let record = match (remembered, wanted) {
        (Some(record), Some(ranges)) if record.ranges == ranges => record,
        (Some(record), _) => {
            return Err(Error::BadRanges {
                pods: record.ranges.pods(),
                services: record.ranges.services(),
                reason: "the instance was made with others; purge its network to change them",
            });
        }
        (None, wanted) => {
            let ranges = match wanted {
                Some(ranges) => ranges,
                None => ranges::choose(tag.metric(), &taken.iter().map(|taken| taken.range).collect::<Vec<_>>())?,
            };
            InstanceRecord {
                ranges,
                nodes: BTreeMap::new(),
                cut: BTreeSet::new(),
            }
        }
    };
    for range in [record.ranges.pods(), record.ranges.services()] {
        if let Some(taken) = taken.iter().find(|taken| overlap(range, taken.range)) {
            return Err(Error::RangeTaken {
                instance: config.instance.to_string(),
                range,
                taken_by: taken.by.clone(),
            });
        }
    }
    directory.write_instance(&record)?;
    netlink.set_up(LOOPBACK)?;
    for address in own_addresses(&record) {
        netlink.add_address(LOOPBACK, address)?;
    }
    for route in covering_routes(config.instance.tag().metric(), record.ranges) {
        netlink.set_route(&route)?;
    }
    match config.outside {
        Outside::Open => turn.forward_from_outside(&config.instance, netlink)?,
        Outside::Closed => turn.put_back(&config.instance)?,
    }
    Ok(record)
}

/// The routes that keep everything of our ranges on the machine. What is for a service has to get as far as the
/// translation, so its way is the loopback link; there, what was not translated is refused.
fn covering_routes(metric: u32, ranges: Ranges) -> [Route; 2] {
    let route = |to, way| Route {
        to,
        way,
        origin: ROUTE_ORIGIN,
        metric: Some(metric),
    };
    let source = Some(ranges.host_address());
    [
        route(ranges.pods(), Way::Unreachable),
        route(
            ranges.services(),
            Way::Link {
                index: LOOPBACK,
                source,
            },
        ),
    ]
}

/// The addresses on the machine's loopback link: of the machine, of the name server, of each node.
fn own_addresses(record: &InstanceRecord) -> Vec<Ipv4Addr> {
    let ranges = record.ranges;
    let nodes = record.nodes.values().filter_map(|number| ranges.node(*number));
    [ranges.host_address(), ranges.dns_address()]
        .into_iter()
        .chain(nodes.map(|node| node.address))
        .collect()
}

/// Takes over the pods that are whole, and removes what is left of others.
pub(crate) fn take_over(
    config: &Config,
    directory: &Directory,
    netlink: &mut Netlink,
    state: &mut State,
) -> Result<()> {
    let prefix = config.instance.tag().link_prefix();
    let links: BTreeSet<String> = netlink
        .links()?
        .into_iter()
        .map(|(_, name)| name)
        .filter(|name| name.starts_with(&prefix))
        .collect();
    let mut kept_links = BTreeSet::new();
    let mut kept_paths = BTreeSet::new();
    for record in directory.read_pods()? {
        let path = directory.namespace(&record.id);
        let whole = record.progress == Progress::Attached
            && links.contains(&record.link)
            && namespace::is_namespace(&path)
            && state.node(&record.node).is_ok();
        if !whole {
            tracing::info!(pod = %record.id, "cleaning up a pod network that is not whole");
            wiring::disconnect(netlink, &record.link, &path)?;
            directory.remove_pod(&record.id)?;
            continue;
        }
        wiring::arrange(netlink, &record, state.node(&record.node)?.address)?;
        kept_links.insert(record.link.clone());
        kept_paths.insert(path);
        state.settle(record);
    }
    for link in links.difference(&kept_links) {
        netlink.delete_link(link)?;
    }
    for path in directory.namespaces()? {
        if !kept_paths.contains(&path) {
            namespace::remove(&path)?;
        }
    }
    Ok(())
}

/// The addresses of the machine's other links that lie where instances take their ranges from.
pub(crate) fn machine_addresses() -> Result<Vec<Ipv4Addr>> {
    let mut addresses: Vec<Ipv4Addr> = Netlink::open()?
        .addresses()?
        .into_iter()
        .filter(|address| address.index != LOOPBACK)
        .map(|address| address.net.addr())
        .filter(|address| POOLS.iter().any(|pool| pool.contains(address)))
        .collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

pub(crate) fn remove_all(instance: &InstanceName, directory: &Directory) -> Result<()> {
    // Damaged records do not keep anybody from cleaning up.
    let ranges = directory.read_instance().ok().flatten().map(|record| record.ranges);
    for path in directory.namespaces()? {
        namespace::remove(&path)?;
    }
    remove_from_machine(instance, ranges)?;
    directory.remove()
}

pub(crate) fn remove_from_machine(instance: &InstanceName, ranges: Option<Ranges>) -> Result<()> {
    let tag = instance.tag();
    let prefix = tag.link_prefix();
    let mut netlink = Netlink::open()?;
    for (_, link) in netlink.links()?.iter().filter(|(_, name)| name.starts_with(&prefix)) {
        netlink.delete_link(link)?;
    }
    let covering: Vec<Route> = netlink
        .routes()?
        .into_iter()
        .filter(|route| route.origin == ROUTE_ORIGIN && route.metric == Some(tag.metric()))
        .collect();
    // The covering routes tell the ranges, should the record be lost.
    let ours = |address: Ipv4Addr| {
        covering.iter().any(|route| route.to.contains(&address))
            || ranges.is_some_and(|ranges| ranges.pods().contains(&address) || ranges.services().contains(&address))
    };
    for address in netlink
        .addresses()?
        .into_iter()
        .filter(|address| address.index == LOOPBACK)
    {
        if ours(address.net.addr()) {
            netlink.delete_address(LOOPBACK, address.net.addr())?;
        }
    }
    for route in &covering {
        netlink.delete_route(route)?;
    }
    nft::delete(&instance.table())?;
    Turn::take()?.put_back(instance)
}

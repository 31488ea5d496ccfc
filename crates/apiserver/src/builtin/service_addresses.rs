//! The addresses and node ports of services: who has which, and who gets the next.
//!
//! Guarantees: no two services hold an address or a node port at the same time, not even while neither is stored yet;
//! what a write took and did not keep is free again; finding a free one does not look at the services there are.
//! Assumes: every service goes through here, and [`ServiceAddresses::rebuild`] ran over the stored ones first.
//!
//! ```text
//!   assign ──► Reservation ──► keep      the service is stored: what it no longer has is freed
//!                   └────────► (drop)    it is not: what was taken for it is freed
//! ```

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr},
    sync::{Mutex, MutexGuard, PoisonError},
};

use moorline_machinery::field::{FieldError, Path};
use serde_json::{Value, json};

/// Where services get their addresses from.
pub const SERVICE_RANGE: &str = "10.96.0.0/16";

const FIRST_NODE_PORT: u16 = 30_000;
const LAST_NODE_PORT: u16 = 32_767;

/// Which addresses and node ports are taken.
pub(crate) struct ServiceAddresses {
    written: String,
    range: Range,
    taken: Mutex<Taken>,
}

/// The range of addresses, without its first and last, which name the network and everybody in it.
#[derive(Clone, Copy)]
struct Range {
    first: u32,
    last: u32,
    /// From here on addresses are given out; those before are left to services that ask for one, as long as there are
    /// others.
    free_from: u32,
}

struct Taken {
    addresses: HashSet<u32>,
    node_ports: HashSet<u16>,
    /// Where the search for the next begins, so that one that was just freed is not given to somebody else at once.
    next_address: u32,
    next_node_port: u16,
}

/// A range that addresses cannot be given out of.
#[derive(Debug, thiserror::Error)]
#[error("reading the service range {0:?}: it is no IPv4 range of 2 to 2^24 addresses such as 10.96.0.0/16")]
pub(crate) struct RangeError(String);

/// Why a service does not get what it needs.
#[derive(Debug)]
pub(crate) enum AssignError {
    /// It asks for what it cannot have.
    Invalid(Vec<FieldError>),
    /// There is nothing left.
    Exhausted(&'static str),
}

/// What was taken for a service that is about to be stored.
#[must_use = "what is reserved is freed at once unless it is kept"]
pub(crate) struct Reservation<'a> {
    addresses: &'a ServiceAddresses,
    taken: Holding,
    /// What the service had before and has no more.
    left: Holding,
}

/// What a service holds.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
struct Holding {
    address: Option<u32>,
    node_ports: HashSet<u16>,
}

impl ServiceAddresses {
    /// Gives out addresses of a range such as `10.96.0.0/16`.
    pub(crate) fn new(range: &str) -> Result<Self, RangeError> {
        let wrong = || RangeError(range.to_owned());
        let (base, bits) = range.split_once('/').ok_or_else(wrong)?;
        let base: Ipv4Addr = base.parse().map_err(|_| wrong())?;
        let bits: u32 = bits
            .parse()
            .ok()
            .filter(|bits| (8..=30).contains(bits))
            .ok_or_else(wrong)?;
        let size = 1_u32 << (32 - bits);
        let first = u32::from(base);
        if first % size != 0 {
            return Err(wrong());
        }
        let free_from = first + (size / 16).clamp(16, 256).min(size / 2);
        let written = range.to_owned();
        let range = Range {
            first: first + 1,
            last: first + size - 2,
            free_from,
        };
        Ok(Self {
            written,
            range,
            taken: Mutex::new(Taken {
                addresses: HashSet::new(),
                node_ports: HashSet::new(),
                next_address: range.free_from,
                next_node_port: FIRST_NODE_PORT,
            }),
        })
    }

    /// The range, as text.
    pub(crate) fn range(&self) -> &str {
        &self.written
    }

    /// The first address, which is that of the server itself.
    pub(crate) fn first(&self) -> Ipv4Addr {
        self.range.first.into()
    }

    /// Forgets everything, and takes what these services hold.
    pub(crate) fn rebuild<'s>(&self, services: impl IntoIterator<Item = &'s Value>) {
        let mut taken = self.lock();
        taken.addresses.clear();
        taken.node_ports.clear();
        for service in services {
            let holding = self.holding(service);
            taken.addresses.extend(holding.address);
            taken.node_ports.extend(holding.node_ports);
        }
    }

    /// Gives a service what it needs and does not have, and writes it into the service. `old` is the service as stored,
    /// if it is.
    pub(crate) fn assign(&self, service: &mut Value, old: Option<&Value>) -> Result<Reservation<'_>, AssignError> {
        let before = old.map(|old| self.holding(old)).unwrap_or_default();
        let mut reservation = Reservation {
            addresses: self,
            taken: Holding::default(),
            left: Holding::default(),
        };
        families(service)?;
        self.assign_address(service, &before, &mut reservation)?;
        self.assign_node_ports(service, &before, &mut reservation)?;
        let after = self.holding(service);
        reservation.left = Holding {
            address: before.address.filter(|address| Some(*address) != after.address),
            node_ports: before.node_ports.difference(&after.node_ports).copied().collect(),
        };
        Ok(reservation)
    }

    /// Frees what a deleted service held.
    pub(crate) fn release(&self, service: &Value) {
        self.free(&self.holding(service));
    }

    fn assign_address(
        &self,
        service: &mut Value,
        before: &Holding,
        reservation: &mut Reservation<'_>,
    ) -> Result<(), AssignError> {
        if type_of(service) == "ExternalName" {
            return Ok(());
        }
        let wanted = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
        if wanted == "None" {
            service["spec"]["clusterIPs"] = json!(["None"]);
            return Ok(());
        }
        let address = if wanted.is_empty() {
            self.lock()
                .address(self.range)
                .ok_or(AssignError::Exhausted("failed to allocate a serviceIP: range is full"))?
        } else {
            let address = self.asked(&wanted)?;
            if before.address == Some(address) {
                return Ok(());
            }
            if !self.lock().addresses.insert(address) {
                return Err(refused_address(&wanted, "provided IP is already allocated"));
            }
            address
        };
        reservation.taken.address = Some(address);
        let text = Ipv4Addr::from(address).to_string();
        service["spec"]["clusterIPs"] = json!([text]);
        service["spec"]["clusterIP"] = text.into();
        Ok(())
    }

    /// The address that a service asks for, if it is one of ours.
    fn asked(&self, wanted: &str) -> Result<u32, AssignError> {
        match wanted.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) if self.range.contains(address.into()) => Ok(address.into()),
            Ok(IpAddr::V6(_)) => {
                let list = spec_field("clusterIPs");
                let error = FieldError::invalid(
                    &list.index(0),
                    json!([wanted]),
                    "IPv6 is not configured on this cluster",
                );
                Err(AssignError::Invalid(vec![error]))
            }
            _ => Err(refused_address(
                wanted,
                "the provided network does not match the current range",
            )),
        }
    }

    fn assign_node_ports(
        &self,
        service: &mut Value,
        before: &Holding,
        reservation: &mut Reservation<'_>,
    ) -> Result<(), AssignError> {
        let kind = type_of(service).to_owned();
        let gives = match kind.as_str() {
            "NodePort" => true,
            "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"] != json!(false),
            _ => return Ok(()),
        };
        let mut errors = Vec::new();
        let count = service["spec"]["ports"].as_array().map_or(0, Vec::len);
        let list = spec_field("ports");
        for position in 0..count {
            let at = list.index(position);
            let asked = service["spec"]["ports"][position]["nodePort"].as_i64().unwrap_or(0);
            if asked == 0 {
                if gives {
                    let port = shared_port(service, position).map_or_else(|| self.next_port(reservation), Ok)?;
                    service["spec"]["ports"][position]["nodePort"] = port.into();
                }
            } else {
                self.take_port(&at.child("nodePort"), asked, before, reservation, &mut errors);
            }
        }
        let checked = kind == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local";
        if checked {
            match service["spec"]["healthCheckNodePort"].as_i64().unwrap_or(0) {
                0 => service["spec"]["healthCheckNodePort"] = self.next_port(reservation)?.into(),
                asked => {
                    let at = spec_field("healthCheckNodePort");
                    self.take_port(&at, asked, before, reservation, &mut errors);
                }
            }
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(AssignError::Invalid(errors))
        }
    }

    fn take_port(
        &self,
        at: &Path<'_>,
        asked: i64,
        before: &Holding,
        reservation: &mut Reservation<'_>,
        errors: &mut Vec<FieldError>,
    ) {
        let port = u16::try_from(asked)
            .ok()
            .filter(|port| (FIRST_NODE_PORT..=LAST_NODE_PORT).contains(port));
        let Some(port) = port else {
            let why = format!(
                "provided port is not in the valid range. The range of valid ports is {FIRST_NODE_PORT}-{LAST_NODE_PORT}"
            );
            errors.push(FieldError::invalid(at, asked, why));
            return;
        };
        // Ports of one service may share a number when their protocols differ.
        if before.node_ports.contains(&port) || reservation.taken.node_ports.contains(&port) {
            return;
        }
        if self.lock().node_ports.insert(port) {
            reservation.taken.node_ports.insert(port);
        } else {
            errors.push(FieldError::invalid(at, asked, "provided port is already allocated"));
        }
    }

    fn next_port(&self, reservation: &mut Reservation<'_>) -> Result<u16, AssignError> {
        let port = self.lock().node_port();
        let port = port.ok_or(AssignError::Exhausted("failed to allocate a nodePort: range is full"))?;
        reservation.taken.node_ports.insert(port);
        Ok(port)
    }

    fn holding(&self, service: &Value) -> Holding {
        let spec = &service["spec"];
        let address = spec["clusterIP"]
            .as_str()
            .and_then(|text| text.parse::<Ipv4Addr>().ok())
            .map(u32::from);
        let ports = spec["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|port| &port["nodePort"]);
        let node_ports = ports.chain([&spec["healthCheckNodePort"]]);
        Holding {
            address: address.filter(|address| self.range.contains(*address)),
            node_ports: node_ports
                .filter_map(|port| u16::try_from(port.as_u64()?).ok())
                .filter(|port| (FIRST_NODE_PORT..=LAST_NODE_PORT).contains(port))
                .collect(),
        }
    }

    fn free(&self, holding: &Holding) {
        let mut taken = self.lock();
        if let Some(address) = holding.address {
            taken.addresses.remove(&address);
        }
        for port in &holding.node_ports {
            taken.node_ports.remove(port);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that is done under the lock can leave half of a change behind.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation<'_> {
    /// The service is stored: what it has is its own, what it had before is free.
    pub(crate) fn keep(mut self) {
        let left = std::mem::take(&mut self.left);
        self.taken = Holding::default();
        self.addresses.free(&left);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.taken != Holding::default() {
            self.addresses.free(&self.taken);
        }
    }
}

impl Range {
    fn contains(self, address: u32) -> bool {
        (self.first..=self.last).contains(&address)
    }
}

impl Taken {
    fn address(&mut self, range: Range) -> Option<u32> {
        let upper = (self.next_address..=range.last).chain(range.free_from..self.next_address);
        let lower = range.first..range.free_from;
        let found = upper.chain(lower).find(|address| !self.addresses.contains(address))?;
        self.addresses.insert(found);
        self.next_address = if (range.free_from..range.last).contains(&found) {
            found + 1
        } else {
            range.free_from
        };
        Some(found)
    }

    fn node_port(&mut self) -> Option<u16> {
        let all = (self.next_node_port..=LAST_NODE_PORT).chain(FIRST_NODE_PORT..self.next_node_port);
        let found = all.into_iter().find(|port| !self.node_ports.contains(port))?;
        self.node_ports.insert(found);
        self.next_node_port = if found < LAST_NODE_PORT {
            found + 1
        } else {
            FIRST_NODE_PORT
        };
        Some(found)
    }
}

/// The node port of the same port under another protocol.
fn shared_port(service: &Value, position: usize) -> Option<u16> {
    let ports = service["spec"]["ports"].as_array()?;
    let own = &ports[position];
    let twin = ports[..position]
        .iter()
        .find(|port| port["port"] == own["port"] && port["protocol"] != own["protocol"])?;
    let number = twin["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok())?;
    let clashes = ports
        .iter()
        .any(|port| port["nodePort"] == number && port["protocol"] == own["protocol"]);
    (!clashes).then_some(number)
}

/// Says that the service speaks IPv4, the only family here.
fn families(service: &mut Value) -> Result<(), AssignError> {
    if type_of(service) == "ExternalName" {
        return Ok(());
    }
    let headless = service["spec"]["clusterIP"] == "None";
    let selects = service["spec"]["selector"]
        .as_object()
        .is_some_and(|selector| !selector.is_empty());
    let policy = service["spec"]["ipFamilyPolicy"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if headless && !selects && policy != "SingleStack" {
        // Whoever writes the endpoints of such a service decides, so everything is allowed.
        service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
        if policy.is_empty() {
            service["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
        }
        return Ok(());
    }
    let mut errors = Vec::new();
    let list = spec_field("ipFamilies");
    for (position, family) in service["spec"]["ipFamilies"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        if family == "IPv6" {
            errors.push(FieldError::invalid(
                &list.index(position),
                "IPv6",
                "not configured on this cluster",
            ));
        }
    }
    if policy == "RequireDualStack" {
        let why = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(&spec_field("ipFamilyPolicy"), policy.as_str(), why));
    }
    if !errors.is_empty() {
        return Err(AssignError::Invalid(errors));
    }
    service["spec"]["ipFamilies"] = json!(["IPv4"]);
    if policy.is_empty() {
        service["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    }
    Ok(())
}

fn type_of(service: &Value) -> &str {
    service["spec"]["type"].as_str().unwrap_or("ClusterIP")
}

fn spec_field(name: &str) -> Path<'_> {
    const SPEC: &Path<'static> = &Path::root("spec");
    SPEC.child(name)
}

fn refused_address(wanted: &str, why: &str) -> AssignError {
    let why = format!("failed to allocate IP {wanted}: {why}");
    AssignError::Invalid(vec![FieldError::invalid(
        &spec_field("clusterIPs"),
        json!([wanted]),
        why,
    )])
}

#[cfg(test)]
mod tests;

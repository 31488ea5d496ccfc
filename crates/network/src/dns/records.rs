//! From a service to the records it has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SRV};
use hickory_proto::rr::{Name, RData};

use crate::Protocol;

/// A service, as far as names go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNames {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What the name leads to.
    pub addresses: ServiceAddresses,
}

/// What the name of a service leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAddresses {
    /// Addresses of its own.
    Cluster {
        /// The addresses.
        addresses: Vec<IpAddr>,
        /// The ports that have names.
        ports: Vec<NamedPort>,
    },
    /// Its endpoints, each by itself.
    Headless(Vec<HeadlessEndpoint>),
    /// Another name, here or elsewhere.
    External(String),
}

/// One endpoint of a headless service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadlessEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its name under the service; without one it is named by its address.
    pub hostname: Option<String>,
    /// Its ports that have names.
    pub ports: Vec<NamedPort>,
}

/// A port that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// Its name.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// A name, in lower case and without the last dot, and one thing that it has.
pub(super) type Entry = (String, RData);

impl ServiceNames {
    /// What tells this service from others.
    pub(super) fn key(&self) -> (String, String) {
        (self.namespace.to_ascii_lowercase(), self.name.to_ascii_lowercase())
    }

    /// All records of the service. Parts that are no names are passed over: nobody could ask for them.
    pub(super) fn entries(&self, domain: &str) -> Vec<Entry> {
        let own = format!("{}.{}.svc.{domain}", self.name, self.namespace).to_ascii_lowercase();
        let mut entries = Vec::new();
        match &self.addresses {
            ServiceAddresses::Cluster { addresses, ports } => {
                for address in addresses {
                    entries.push((own.clone(), address_data(*address)));
                    entries.extend(reverse(*address, &own));
                }
                for port in ports {
                    add_port(&mut entries, &own, port, &own);
                }
            }
            ServiceAddresses::Headless(endpoints) => {
                for endpoint in endpoints {
                    let label = endpoint.hostname.clone().unwrap_or_else(|| dashed(endpoint.address));
                    let host = format!("{label}.{own}").to_ascii_lowercase();
                    entries.push((own.clone(), address_data(endpoint.address)));
                    entries.push((host.clone(), address_data(endpoint.address)));
                    entries.extend(reverse(endpoint.address, &host));
                    for port in &endpoint.ports {
                        add_port(&mut entries, &own, port, &host);
                    }
                }
            }
            ServiceAddresses::External(target) => {
                entries.extend(name(target).map(|target| (own, RData::CNAME(CNAME(target)))));
            }
        }
        entries
    }
}

fn add_port(entries: &mut Vec<Entry>, own: &str, port: &NamedPort, target: &str) {
    let Some(target) = name(target) else { return };
    let srv = RData::SRV(SRV::new(0, 100, port.port, target));
    // Asked for by port, and for all ports at the service itself.
    if !port.name.is_empty() {
        let by_port = format!("_{}._{}.{own}", port.name, port.protocol).to_ascii_lowercase();
        entries.push((by_port, srv.clone()));
    }
    entries.push((own.to_owned(), srv));
}

/// A full name from its text; nothing if it is none.
pub(super) fn name(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

pub(super) fn address_data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}

fn reverse(address: IpAddr, target: &str) -> Option<Entry> {
    let mut name_of_address = Name::from(address).to_ascii();
    if name_of_address.ends_with('.') {
        name_of_address.pop();
    }
    Some((name_of_address.to_ascii_lowercase(), RData::PTR(PTR(name(target)?))))
}

/// An address as one label of a name.
fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// The address that a label made by [`dashed`] stands for.
pub(super) fn undashed(label: &str) -> Option<IpAddr> {
    let four: Option<Ipv4Addr> = label.replace('-', ".").parse().ok();
    let six: Option<Ipv6Addr> = label.replace('-', ":").parse().ok();
    four.map(IpAddr::V4).or(six.map(IpAddr::V6))
}

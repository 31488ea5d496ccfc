//! Where a proxied request goes.

use std::net::{IpAddr, SocketAddr};

use moorline_machinery::{gvk::GroupResource, status::ApiError};
use moorline_store::{Key, List, Scope};
use serde_json::Value;

use super::super::pod::Pod;
use crate::{builtin, core::Core, wire};

/// What is spoken to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

/// Where a request goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) scheme: Scheme,
    pub(super) address: SocketAddr,
}

/// A name in a path: `name`, `name:port` or `scheme:name:port`.
pub(super) struct Named<'n> {
    pub(super) scheme: Scheme,
    pub(super) name: &'n str,
    pub(super) port: &'n str,
}

impl<'n> Named<'n> {
    /// Takes a name apart.
    pub(super) fn parse(id: &'n str) -> Option<Self> {
        let parts: Vec<&str> = id.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let scheme = match scheme {
            "" | "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        (!name.is_empty()).then_some(Self { scheme, name, port })
    }
}

/// The pod that is meant.
pub(super) fn pod(core: &Core, namespace: &str, id: &str) -> Result<Target, ApiError> {
    let named = Named::parse(id).ok_or_else(|| ApiError::bad_request(format!("invalid pod request {id:?}")))?;
    let pod = Pod::find(core, namespace, named.name)?;
    let address = pod
        .address()
        .and_then(|address| address.parse().ok())
        .filter(is_reachable);
    let address = address.ok_or_else(|| ApiError::bad_request("address not allowed"))?;
    let port = match (named.port, pod.first_port(), named.scheme) {
        ("", Some(declared), _) => u16::try_from(declared).ok(),
        ("", None, Scheme::Http) => Some(80),
        ("", None, Scheme::Https) => Some(443),
        (port, ..) => port.parse().ok(),
    };
    let port = port.ok_or_else(|| ApiError::bad_request(format!("invalid pod request {id:?}")))?;
    Ok(Target {
        scheme: named.scheme,
        address: SocketAddr::new(address, port),
    })
}

/// Whether an address can be a pod's. The loopback and its like would be the server's own.
fn is_reachable(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// One of the pods behind the service that is meant.
pub(super) fn service(core: &Core, namespace: &str, id: &str) -> Result<Target, ApiError> {
    let named = Named::parse(id).ok_or_else(|| ApiError::bad_request(format!("invalid service request {id:?}")))?;
    let port_name = match named.port.parse::<u16>() {
        Ok(number) => declared_port(core, namespace, named.name, number)?,
        Err(_) => named.port.to_owned(),
    };
    let none = || ApiError::service_unavailable(format!("no endpoints available for service {id:?}"));
    let mut found: Vec<SocketAddr> = endpoints(core, namespace, named.name, &port_name)?
        .into_iter()
        .filter(|endpoint| is_pod(core, namespace, endpoint))
        .map(|endpoint| endpoint.address)
        .collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Err(none());
    }
    let choice = core.world.random() % found.len() as u64;
    let address = found[usize::try_from(choice).expect("it is smaller than a length")];
    Ok(Target {
        scheme: named.scheme,
        address,
    })
}

/// What a service calls a port.
fn declared_port(core: &Core, namespace: &str, name: &str, number: u16) -> Result<String, ApiError> {
    let record = core
        .store
        .get(&Key::new(&builtin::storage("", "services"), namespace, name))
        .ok_or_else(|| ApiError::not_found(&GroupResource::new("", "services"), name))?;
    let service = wire::from_stored(record.value(), "v1", "Service");
    let ports = service["spec"]["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let port = ports.iter().find(|port| port["port"] == number);
    let port = port
        .ok_or_else(|| ApiError::service_unavailable(format!("no service port {number} found for service {name:?}")))?;
    Ok(port["name"].as_str().unwrap_or_default().to_owned())
}

/// An address behind a service, and the pod that it is said to be.
struct Endpoint {
    address: SocketAddr,
    pod: String,
}

/// The ready addresses behind a port of a service.
fn endpoints(core: &Core, namespace: &str, service: &str, port_name: &str) -> Result<Vec<Endpoint>, ApiError> {
    let slices = List::all(Scope::Namespace(
        builtin::storage("discovery.k8s.io", "endpointslices"),
        namespace.into(),
    ));
    let slices = core.store.list(&slices).map(|page| page.records).unwrap_or_default();
    let slices: Vec<Value> = slices
        .iter()
        .map(|record| wire::from_stored(record.value(), "discovery.k8s.io/v1", "EndpointSlice"))
        .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == service)
        .collect();
    if !slices.is_empty() {
        return Ok(slices.iter().flat_map(|slice| of_slice(slice, port_name)).collect());
    }
    let record = core
        .store
        .get(&Key::new(&builtin::storage("", "endpoints"), namespace, service))
        .ok_or_else(|| ApiError::not_found(&GroupResource::new("", "endpoints"), service))?;
    let object = wire::from_stored(record.value(), "v1", "Endpoints");
    let subsets = object["subsets"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(subsets.iter().flat_map(|subset| of_subset(subset, port_name)).collect())
}

fn of_slice(slice: &Value, port_name: &str) -> Vec<Endpoint> {
    let Some(port) = port_named(&slice["ports"], port_name) else {
        return Vec::new();
    };
    let endpoints = slice["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
    let ready = endpoints
        .iter()
        .filter(|endpoint| endpoint["conditions"]["ready"] != false);
    ready
        .filter_map(|endpoint| endpoint_of(&endpoint["addresses"][0], &endpoint["targetRef"], port))
        .collect()
}

fn of_subset(subset: &Value, port_name: &str) -> Vec<Endpoint> {
    let Some(port) = port_named(&subset["ports"], port_name) else {
        return Vec::new();
    };
    let addresses = subset["addresses"].as_array().map_or(&[][..], Vec::as_slice);
    addresses
        .iter()
        .filter_map(|address| endpoint_of(&address["ip"], &address["targetRef"], port))
        .collect()
}

fn port_named(ports: &Value, name: &str) -> Option<u16> {
    let found = ports
        .as_array()?
        .iter()
        .find(|port| port["name"].as_str().unwrap_or_default() == name)?;
    u16::try_from(found["port"].as_u64()?).ok()
}

fn endpoint_of(address: &Value, target: &Value, port: u16) -> Option<Endpoint> {
    let address = address.as_str()?.parse().ok()?;
    Some(Endpoint {
        address: SocketAddr::new(address, port),
        pod: target["name"].as_str()?.to_owned(),
    })
}

/// Whether an endpoint is a pod of the namespace. Who may write endpoints could reach anything otherwise.
fn is_pod(core: &Core, namespace: &str, endpoint: &Endpoint) -> bool {
    Pod::find(core, namespace, &endpoint.pod).is_ok_and(|pod| pod.has_address(endpoint.address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_carry_scheme_and_port() {
        let parse = |id| Named::parse(id).map(|named| (named.scheme, named.name.to_owned(), named.port.to_owned()));
        let is = |scheme, name: &str, port: &str| Some((scheme, name.to_owned(), port.to_owned()));
        assert_eq!(parse("a"), is(Scheme::Http, "a", ""));
        assert_eq!(parse("a:80"), is(Scheme::Http, "a", "80"));
        assert_eq!(parse("https:a:443"), is(Scheme::Https, "a", "443"));
        assert_eq!(parse("https:a:"), is(Scheme::Https, "a", ""));
        for wrong in ["", ":80", "ftp:a:80", "http:a:1:2"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn the_servers_own_addresses_are_no_pods() {
        for (address, reachable) in [
            ("10.1.2.3", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("0.0.0.0", false),
            ("169.254.169.254", false),
            ("224.0.0.1", false),
        ] {
            assert_eq!(is_reachable(&address.parse().unwrap()), reachable, "{address}");
        }
    }
}

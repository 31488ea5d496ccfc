//! Subsets of `Endpoints`: which addresses have which ports, told in one way only.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset};

use super::ResolvedPort;

/// An address and the pod behind it: two pods may share an address.
type Place = (String, String);

/// Subsets of which each address has all the ports, and no port is in two with the same addresses. An address that is
/// ready in one and not in another is not ready.
pub(super) fn repack(subsets: &[EndpointSubset]) -> Vec<EndpointSubset> {
    let mut addresses: BTreeMap<Place, &EndpointAddress> = BTreeMap::new();
    let mut by_port: BTreeMap<Option<ResolvedPort>, BTreeMap<Place, bool>> = BTreeMap::new();
    for subset in subsets {
        // Addresses without ports are kept under no port at all.
        let mut ports: Vec<_> = subset.ports.iter().flatten().map(|port| Some(resolved(port))).collect();
        if ports.is_empty() {
            ports.push(None);
        }
        for (address, ready) in addresses_of(subset) {
            let place = place(address);
            addresses.entry(place.clone()).or_insert(address);
            for port in &ports {
                let is_ready = by_port.entry(port.clone()).or_default().entry(place.clone());
                *is_ready.or_insert(ready) &= ready;
            }
        }
    }
    let mut by_addresses: BTreeMap<Vec<(Place, bool)>, Vec<ResolvedPort>> = BTreeMap::new();
    for (port, places) in by_port {
        let ports = by_addresses.entry(places.into_iter().collect()).or_default();
        ports.extend(port);
    }
    let mut packed: Vec<(Vec<ResolvedPort>, EndpointSubset)> = Vec::new();
    for (places, ports) in by_addresses {
        let those = |wanted: bool| {
            let places = places.iter().filter(|(_, ready)| *ready == wanted);
            let found: Vec<_> = places
                .filter_map(|(place, _)| addresses.get(place).copied().cloned())
                .collect();
            (!found.is_empty()).then_some(found)
        };
        let subset = EndpointSubset {
            addresses: those(true),
            not_ready_addresses: those(false),
            ports: (!ports.is_empty()).then(|| ports.iter().map(port).collect()),
        };
        packed.push((ports, subset));
    }
    packed.sort_by(|(a, _), (b, _)| a.cmp(b));
    packed.into_iter().map(|(_, subset)| subset).collect()
}

/// The addresses of a subset, those first that are ready.
pub(super) fn addresses_of(subset: &EndpointSubset) -> impl Iterator<Item = (&EndpointAddress, bool)> {
    let ready = subset.addresses.iter().flatten().map(|address| (address, true));
    let not_ready = subset.not_ready_addresses.iter().flatten();
    ready.chain(not_ready.map(|address| (address, false)))
}

/// The ports of a subset, sorted.
pub(super) fn ports_of(subset: &EndpointSubset) -> Vec<ResolvedPort> {
    let mut ports: Vec<_> = subset.ports.iter().flatten().map(resolved).collect();
    ports.sort();
    ports
}

/// A port as subsets have it.
pub(super) fn port(resolved: &ResolvedPort) -> EndpointPort {
    EndpointPort {
        name: (!resolved.name.is_empty()).then(|| resolved.name.clone()),
        protocol: Some(resolved.protocol.clone()),
        port: resolved.port,
        app_protocol: resolved.app_protocol.clone(),
    }
}

fn resolved(port: &EndpointPort) -> ResolvedPort {
    ResolvedPort {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        port: port.port,
        app_protocol: port.app_protocol.clone(),
    }
}

fn place(address: &EndpointAddress) -> Place {
    let pod = address.target_ref.as_ref().and_then(|reference| reference.uid.clone());
    (address.ip.clone(), pod.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn repacked(subsets: Value) -> Value {
        let subsets: Vec<EndpointSubset> = serde_json::from_value(subsets).unwrap();
        serde_json::to_value(repack(&subsets)).unwrap()
    }

    fn port(number: i32) -> Value {
        json!({ "port": number, "protocol": "TCP" })
    }

    #[test]
    fn ports_of_the_same_addresses_are_in_one_subset() {
        let [one, two] = [port(1), port(2)];
        let given = json!([
            { "addresses": [{ "ip": "1.0.0.1" }], "ports": [one] },
            { "addresses": [{ "ip": "1.0.0.2" }], "ports": [one] },
            { "addresses": [{ "ip": "1.0.0.2" }, { "ip": "1.0.0.1" }], "ports": [two] },
        ]);
        let both = json!([{ "addresses": [{ "ip": "1.0.0.1" }, { "ip": "1.0.0.2" }], "ports": [one, two] }]);
        assert_eq!(repacked(given), both);
    }

    #[test]
    fn an_address_that_is_ready_and_is_not_is_not() {
        let given = json!([
            { "addresses": [{ "ip": "1.0.0.1" }], "ports": [port(1)] },
            { "notReadyAddresses": [{ "ip": "1.0.0.1" }], "ports": [port(1)] },
            { "addresses": [{ "ip": "1.0.0.2" }] },
        ]);
        let packed = json!([
            { "addresses": [{ "ip": "1.0.0.2" }] },
            { "notReadyAddresses": [{ "ip": "1.0.0.1" }], "ports": [port(1)] },
        ]);
        assert_eq!(repacked(given), packed);
    }
}

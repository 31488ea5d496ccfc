//! Ports of slices.

use k8s_openapi::api::discovery::v1::{EndpointPort, EndpointSlice};

use super::ResolvedPort;

/// A port as slices have it.
pub(super) fn in_slice(resolved: &ResolvedPort) -> EndpointPort {
    EndpointPort {
        name: Some(resolved.name.clone()),
        protocol: Some(resolved.protocol.clone()),
        port: Some(resolved.port),
        app_protocol: resolved.app_protocol.clone(),
    }
}

/// The ports of a slice, sorted.
pub(super) fn of_slice(slice: &EndpointSlice) -> Vec<ResolvedPort> {
    let mut ports: Vec<ResolvedPort> = slice
        .ports
        .iter()
        .flatten()
        .map(|port| ResolvedPort {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_default(),
            port: port.port.unwrap_or(0),
            app_protocol: port.app_protocol.clone(),
        })
        .collect();
    ports.sort();
    ports
}

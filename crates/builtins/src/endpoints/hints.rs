//! For whom an endpoint is meant first, as the service wishes.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{EndpointHints, ForNode, ForZone};

use super::Backend;
use crate::pods::annotation;

/// Those who ask for hints by annotation mean others, which are dealt out by the size of zones.
const BY_SIZE: [&str; 2] = [
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];

/// The zone and the node for which a pod is meant; nothing if it is for everybody.
pub(super) fn of(backend: &Backend, service: &Service) -> Option<EndpointHints> {
    let by_size = BY_SIZE.iter().find_map(|name| annotation(&service.metadata, name));
    if matches!(by_size, Some("Auto" | "auto")) {
        return None;
    }
    let wish = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let for_nodes = match wish {
        "PreferSameNode" => backend.node().map(|name| vec![ForNode { name }]),
        "PreferClose" | "PreferSameZone" => None,
        _ => return None,
    };
    let for_zones = backend.zone.clone().map(|name| vec![ForZone { name }]);
    (for_nodes.is_some() || for_zones.is_some()).then_some(EndpointHints { for_nodes, for_zones })
}

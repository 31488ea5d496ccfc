//! Services of the API as rules and names of this machine's network.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Service, ServiceSpec},
    discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice},
};
use moorline_network::{
    self as net, Affinity, Endpoint, Network, Protocol, ServicePort, ServiceRules, TrafficPolicy,
    dns::{HeadlessEndpoint, NamedPort, Names, ServiceAddresses, ServiceNames},
};

use crate::{key::Key, kubelet::protocol, mirror::Mirror};

/// What it reads.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) services: Arc<Mirror<Service>>,
    pub(crate) slices: Arc<Mirror<EndpointSlice>>,
}

/// Changes that come together are carried out together.
const GATHER: Duration = Duration::from_millis(20);
/// After a failure.
const AGAIN: Duration = Duration::from_secs(2);

/// Keeps rules and names in step with the API until it is dropped.
pub(crate) async fn run(sources: Sources, network: Arc<Network>, names: Arc<Names>) {
    sources.services.synced().await;
    sources.slices.synced().await;
    let mut services = sources.services.subscribe();
    let mut slices = sources.slices.subscribe();
    loop {
        let (rules, told) = render(&sources.services.all(), &sources.slices.all(), &network);
        names.set_services(&told);
        let setting = network.clone();
        let set = tokio::task::spawn_blocking(move || setting.set_services(rules)).await;
        let failed = match set {
            Ok(Ok(())) => false,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the rules of services could not be set");
                true
            }
            Err(error) => {
                tracing::error!(%error, "setting the rules of services panicked");
                true
            }
        };
        tokio::select! {
            change = services.recv() => if change.is_none() { return },
            change = slices.recv() => if change.is_none() { return },
            () = tokio::time::sleep(AGAIN), if failed => {}
        }
        tokio::time::sleep(GATHER).await;
        while services.try_recv().is_ok() || slices.try_recv().is_ok() {}
    }
}

fn render(
    services: &[Arc<Service>],
    slices: &[Arc<EndpointSlice>],
    network: &Network,
) -> (Vec<ServiceRules>, Vec<ServiceNames>) {
    let mut by_service: BTreeMap<Key, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in slices {
        let labels = slice.metadata.labels.as_ref();
        let Some(service) = labels.and_then(|labels| labels.get("kubernetes.io/service-name")) else {
            continue;
        };
        if slice.address_type != "IPv4" {
            continue;
        }
        let namespace = slice.metadata.namespace.clone().unwrap_or_default();
        by_service.entry(Key::new(namespace, service)).or_default().push(slice);
    }
    let host = network.ranges().host_address();
    let mut rules = Vec::new();
    let mut names = Vec::new();
    let mut sorted: Vec<_> = services.iter().collect();
    sorted.sort_by_key(|service| Key::of(&***service));
    for service in sorted {
        let key = Key::of(&**service);
        let Some(spec) = &service.spec else { continue };
        let slices = by_service.get(&key).map(Vec::as_slice).unwrap_or_default();
        if let Some(made) = rules_of(&key, service, spec, slices, host) {
            rules.push(made);
        }
        names.push(ServiceNames {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            addresses: names_of(spec, slices),
        });
    }
    (rules, names)
}

/// The addresses of a service in the service range; none for a headless one.
fn cluster_ips(spec: &ServiceSpec) -> Vec<Ipv4Addr> {
    let all = spec
        .cluster_ips
        .clone()
        .unwrap_or_else(|| spec.cluster_ip.clone().into_iter().collect());
    all.iter().filter_map(|ip| ip.parse().ok()).collect()
}

fn rules_of(
    key: &Key,
    service: &Service,
    spec: &ServiceSpec,
    slices: &[&EndpointSlice],
    host: Ipv4Addr,
) -> Option<ServiceRules> {
    let addresses = cluster_ips(spec);
    if addresses.is_empty() || spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let balanced = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let balanced = balanced
        .into_iter()
        .flat_map(|balancer| balancer.ingress.iter().flatten());
    let balanced = balanced.filter_map(|ingress| ingress.ip.as_ref());
    let external = spec.external_ips.iter().flatten().chain(balanced);
    let affinity = match spec.session_affinity.as_deref() {
        Some("ClientIP") => {
            let config = spec
                .session_affinity_config
                .as_ref()
                .and_then(|config| config.client_ip.as_ref());
            let seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(10800);
            Affinity::ClientAddress {
                timeout: Duration::from_secs(u64::try_from(seconds).unwrap_or(10800)),
            }
        }
        _ => Affinity::None,
    };
    let policy = |text: Option<&str>| match text {
        Some("Local") => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    };
    let ports = spec.ports.iter().flatten().map(|port| ServicePort {
        protocol: protocol(port.protocol.as_deref()),
        port: u16::try_from(port.port).unwrap_or(0),
        node_port: port
            .node_port
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0),
        endpoints: endpoints(
            slices,
            port.name.as_deref().unwrap_or(""),
            protocol(port.protocol.as_deref()),
            host,
        ),
    });
    Some(ServiceRules {
        name: key.to_string(),
        addresses,
        external_addresses: external.filter_map(|ip| ip.parse().ok()).collect(),
        allowed_sources: spec
            .load_balancer_source_ranges
            .iter()
            .flatten()
            .filter_map(|range| range.trim().parse().ok())
            .collect(),
        affinity,
        internal_policy: policy(spec.internal_traffic_policy.as_deref()),
        external_policy: policy(spec.external_traffic_policy.as_deref()),
        ports: ports.collect(),
    })
}

/// Who serves: those who are ready; where nobody is, those who are ending but still serve.
fn endpoints(slices: &[&EndpointSlice], name: &str, protocol_: Protocol, host: Ipv4Addr) -> Vec<Endpoint> {
    let mut ready = BTreeSet::new();
    let mut serving = BTreeSet::new();
    for slice in slices {
        let port =
            slice.ports.iter().flatten().find(|port| {
                port.name.as_deref().unwrap_or("") == name && protocol(port.protocol.as_deref()) == protocol_
            });
        let Some(port) = port.and_then(|port| u16::try_from(port.port?).ok()) else {
            continue;
        };
        for endpoint in slice.endpoints.iter().flatten() {
            let node = endpoint
                .node_name
                .as_ref()
                .and_then(|name| net::NodeName::new(name.clone()).ok());
            for address in endpoint.addresses.iter().filter_map(|ip| ip.parse::<Ipv4Addr>().ok()) {
                // Packets of pods cannot be led to the machine's loopback.
                let address = if address.is_loopback() { host } else { address };
                let made = Endpoint {
                    address,
                    port,
                    node: node.clone(),
                };
                if is_ready(endpoint) {
                    ready.insert(made);
                } else if is_serving(endpoint) {
                    serving.insert(made);
                }
            }
        }
    }
    let chosen = if ready.is_empty() { serving } else { ready };
    chosen.into_iter().collect()
}

fn is_ready(endpoint: &ApiEndpoint) -> bool {
    endpoint
        .conditions
        .as_ref()
        .is_none_or(|conditions| conditions.ready != Some(false))
}

fn is_serving(endpoint: &ApiEndpoint) -> bool {
    endpoint
        .conditions
        .as_ref()
        .is_some_and(|conditions| conditions.serving == Some(true))
}

fn names_of(spec: &ServiceSpec, slices: &[&EndpointSlice]) -> ServiceAddresses {
    if spec.type_.as_deref() == Some("ExternalName") {
        return ServiceAddresses::External(spec.external_name.clone().unwrap_or_default());
    }
    let addresses = cluster_ips(spec);
    if !addresses.is_empty() {
        let ports = spec.ports.iter().flatten().filter_map(|port| {
            Some(NamedPort {
                name: port.name.clone().filter(|name| !name.is_empty())?,
                protocol: protocol(port.protocol.as_deref()),
                port: u16::try_from(port.port).ok()?,
            })
        });
        return ServiceAddresses::Cluster {
            addresses: addresses.into_iter().map(IpAddr::V4).collect(),
            ports: ports.collect(),
        };
    }
    let mut found = Vec::new();
    for slice in slices {
        let ports: Vec<NamedPort> = slice
            .ports
            .iter()
            .flatten()
            .filter_map(|port| {
                Some(NamedPort {
                    name: port.name.clone().filter(|name| !name.is_empty())?,
                    protocol: protocol(port.protocol.as_deref()),
                    port: u16::try_from(port.port?).ok()?,
                })
            })
            .collect();
        for endpoint in slice.endpoints.iter().flatten().filter(|endpoint| is_ready(endpoint)) {
            for address in endpoint.addresses.iter().filter_map(|ip| ip.parse().ok()) {
                found.push(HeadlessEndpoint {
                    address,
                    hostname: endpoint.hostname.clone(),
                    ports: ports.clone(),
                });
            }
        }
    }
    ServiceAddresses::Headless(found)
}

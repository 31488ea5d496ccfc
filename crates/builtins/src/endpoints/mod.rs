//! `Endpoints` and `EndpointSlice`: which addresses stand behind a service.

mod hints;
mod legacy;
mod mirror;
mod pack;
mod ports;
mod slices;
mod subsets;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use moorline_plan::Failure;
use moorline_runtime::{Key, Kind, Object, Seen, Snapshot, Sources};

pub(crate) use self::{legacy::EndpointsOfServices, mirror::MirroredEndpoints, slices::SlicesOfServices};
use crate::claim::selector_of_labels;
use crate::{pods, wake};

const ZONE: &str = "topology.kubernetes.io/zone";
const HEADLESS: &str = "service.kubernetes.io/headless";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// A pod behind a service.
struct Backend {
    pod: Seen<Pod>,
    address: String,
    /// Every port of the service as this pod has it: named ports may differ between pods.
    ports: Vec<ResolvedPort>,
    zone: Option<String>,
}

/// A port of a service, resolved for one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ResolvedPort {
    name: String,
    protocol: String,
    port: i32,
    app_protocol: Option<String>,
}

/// The services whose pods a pod is, or may have been.
fn services_of_pod(pod: &Object, sources: &Sources) -> Vec<Key> {
    let services = sources.list(&Kind::of::<Service>(), Some(pod.namespace())).into_iter();
    services
        .filter(|service| wake::selects(&service.value()["spec"]["selector"], pod))
        .map(|service| Key::of(&service))
        .collect()
}

/// Whether somebody else says which endpoints a service has.
fn is_left_alone(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    !has_selector(service) || spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName")
}

fn has_selector(service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| !selector.is_empty())
}

fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

/// The labels that a service passes on, and the one that tells whether it is headless.
fn labels_of(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    } else {
        labels.remove(HEADLESS);
    }
    labels
}

/// The pods behind a service that have an address, sorted by name.
fn backends(snapshot: &Snapshot<Service>) -> Result<Vec<Backend>, Failure> {
    let spec = snapshot.object().spec.clone().unwrap_or_default();
    let selector = selector_of_labels(spec.selector.iter().flatten())?;
    let mut backends = Vec::new();
    for pod in snapshot.select::<Pod>(&selector)? {
        let address = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.clone())
            .filter(|address| !address.is_empty());
        let Some(address) = address.filter(|_| !pods::has_ended(&pod)) else {
            continue;
        };
        let ports = spec
            .ports
            .iter()
            .flatten()
            .filter_map(|port| resolve(port, &pod))
            .collect();
        let zone = match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            Some(node) => snapshot
                .get::<Node>(node)?
                .and_then(|node| node.raw().label(ZONE).map(str::to_owned)),
            None => None,
        };
        backends.push(Backend {
            pod,
            address,
            ports,
            zone,
        });
    }
    Ok(backends)
}

fn resolve(port: &ServicePort, pod: &Pod) -> Option<ResolvedPort> {
    let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let number = match &port.target_port {
        None => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => named_port(pod, name, &protocol)?,
    };
    Some(ResolvedPort {
        name: port.name.clone().unwrap_or_default(),
        protocol,
        port: number,
        app_protocol: port.app_protocol.clone(),
    })
}

/// A named port of a pod: of its containers, or of its sidecars.
fn named_port(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let spec = pod.spec.as_ref()?;
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    spec.containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten())
        .find(|port| port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol)
        .map(|port| port.container_port)
}

impl Backend {
    fn reference(&self) -> ObjectReference {
        ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(self.pod.raw().namespace().to_owned()),
            name: Some(self.pod.name().to_owned()),
            uid: Some(self.pod.uid().to_owned()),
            ..ObjectReference::default()
        }
    }

    fn node(&self) -> Option<String> {
        self.pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
    }

    /// The name under which a headless service knows this pod, if it is of its subdomain.
    fn hostname(&self, service: &str) -> Option<String> {
        let spec = self.pod.spec.as_ref()?;
        (spec.subdomain.as_deref() == Some(service))
            .then(|| spec.hostname.clone())
            .flatten()
            .filter(|name| !name.is_empty())
    }

    /// When it became ready, or ceased to be.
    fn turned(&self) -> Option<Timestamp> {
        let conditions = self.pod.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
        ready.last_transition_time.as_ref().map(|time| time.0)
    }

    fn is_ready(&self, service: &Service) -> bool {
        publishes_not_ready(service) || (pods::is_ready(&self.pod) && !self.pod.is_deleting())
    }
}

fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

//! `Endpoints` of services that select pods: one object a service, for those who still read it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Key, Object, Planner, Snapshot, Watches};

use super::{Backend, ResolvedPort, backends, is_left_alone, services_of_pod};
use crate::template;

const HEADLESS: &str = "service.kubernetes.io/headless";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// More addresses than this do not fit into one object.
const MOST: usize = 1000;

/// Keeps the endpoints of services.
pub(crate) struct EndpointsOfServices;

impl Actor for EndpointsOfServices {
    type Object = Service;

    fn name(&self) -> &'static str {
        "endpoint-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Service>()
            .maps::<Pod>(services_of_pod)
            .maps::<Endpoints>(|endpoints, _| vec![Key::of(endpoints)])
            .sees::<Node>()
            .without_conditions()
    }

    fn plan(&self, plan: Planner<Service>) -> Planner<Service> {
        plan.transformer(transformer("endpoints", keep_endpoints))
    }
}

fn keep_endpoints(snapshot: &Snapshot<Service>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let service = snapshot.object();
    if is_left_alone(service) || snapshot.raw().is_deleting() {
        return Ok(Verdict::Continue);
    }
    let mut backends = backends(snapshot)?;
    let is_over = backends.len() > MOST;
    backends.truncate(MOST);
    let subsets = subsets(&backends, service);
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(MANAGED_BY.to_owned(), "endpoint-controller".to_owned());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let name = snapshot.raw().name();
    let existing = snapshot.get::<Endpoints>(name)?;
    let mut desired = existing.as_ref().map_or_else(
        || Endpoints {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            subsets: None,
        },
        |existing| (**existing).clone(),
    );
    desired.subsets = Some(subsets);
    desired.metadata.labels = Some(labels);
    let annotations = desired.metadata.annotations.get_or_insert_default();
    if is_over {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    match existing {
        None => drop(draft.put(snapshot.create(&desired, "the service has no endpoints object")?)),
        Some(existing) if differs(&existing, &desired) => {
            draft.put(snapshot.patch(&existing, &desired, "the pods of the service changed")?);
        }
        Some(_) => {}
    }
    Ok(Verdict::Continue)
}

fn differs(before: &Endpoints, after: &Endpoints) -> bool {
    let normal = |endpoints: &Endpoints| {
        let parts = (
            &endpoints.subsets,
            &endpoints.metadata.labels,
            &endpoints.metadata.annotations,
        );
        let mut value = serde_json::to_value(parts).unwrap_or_default();
        template::leave_out_empty(&mut value);
        if value[0].as_array().is_some_and(Vec::is_empty) {
            value[0].take();
        }
        value
    };
    normal(before) != normal(after)
}

/// The addresses, gathered by the ports that they have in common.
fn subsets(backends: &[Backend], service: &Service) -> Vec<EndpointSubset> {
    let mut by_ports: BTreeMap<Vec<ResolvedPort>, (Vec<EndpointAddress>, Vec<EndpointAddress>)> = BTreeMap::new();
    for backend in backends {
        let mut ports = backend.ports.clone();
        ports.sort();
        let headless = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None");
        if ports.is_empty() && !headless {
            continue;
        }
        let (ready, not_ready) = by_ports.entry(ports).or_default();
        let address = EndpointAddress {
            ip: backend.address.clone(),
            hostname: backend.hostname(service.metadata.name.as_deref().unwrap_or_default()),
            node_name: backend.node(),
            target_ref: Some(backend.reference()),
        };
        if backend.is_ready(service) {
            ready.push(address);
        } else {
            not_ready.push(address);
        }
    }
    let some = |mut addresses: Vec<EndpointAddress>| {
        addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
        (!addresses.is_empty()).then_some(addresses)
    };
    by_ports
        .into_iter()
        .map(|(ports, (ready, not_ready))| EndpointSubset {
            addresses: some(ready),
            not_ready_addresses: some(not_ready),
            ports: (!ports.is_empty()).then(|| ports.iter().map(port).collect()),
        })
        .collect()
}

fn port(resolved: &ResolvedPort) -> EndpointPort {
    EndpointPort {
        name: (!resolved.name.is_empty()).then(|| resolved.name.clone()),
        protocol: Some(resolved.protocol.clone()),
        port: resolved.port,
        app_protocol: resolved.app_protocol.clone(),
    }
}

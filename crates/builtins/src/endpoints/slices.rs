//! `EndpointSlice`s of services that select pods: in pieces of a hundred, changed as little as possible.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Object, Planner, Seen, Snapshot, Watches};

use super::{Backend, ResolvedPort, backends, is_left_alone, publishes_not_ready, services_of_pod};
use crate::{pods, template};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const MOST: usize = 100;

/// Keeps the slices of services.
pub(crate) struct SlicesOfServices;

impl Actor for SlicesOfServices {
    type Object = Service;

    fn name(&self) -> &'static str {
        "endpointslice-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Service>()
            .owns::<EndpointSlice>()
            .maps::<Pod>(services_of_pod)
            .sees::<Node>()
            .without_conditions()
    }

    fn plan(&self, plan: Planner<Service>) -> Planner<Service> {
        plan.transformer(transformer("slices", keep_slices))
    }
}

fn keep_slices(snapshot: &Snapshot<Service>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let service = snapshot.object();
    let ours = snapshot
        .owned::<EndpointSlice>()?
        .into_iter()
        .filter(|slice| slice.raw().label(MANAGED_BY) == Some(CONTROLLER));
    let ours: Vec<Seen<EndpointSlice>> = ours.filter(|slice| !slice.is_deleting()).collect();
    if is_left_alone(service) || snapshot.raw().is_deleting() {
        return Ok(Verdict::Continue);
    }
    let mut wanted: BTreeMap<Vec<ResolvedPort>, Vec<Endpoint>> = BTreeMap::new();
    for backend in backends(snapshot)? {
        let mut ports = backend.ports.clone();
        ports.sort();
        wanted.entry(ports).or_default().push(endpoint(&backend, service));
    }
    if wanted.is_empty() {
        // A service without pods has one slice without endpoints, which tells that somebody looked.
        wanted.insert(Vec::new(), Vec::new());
    }
    let mut existing: HashMap<Vec<ResolvedPort>, Vec<Seen<EndpointSlice>>> = HashMap::new();
    for slice in ours {
        existing.entry(ports_of(&slice)).or_default().push(slice);
    }
    let mut fresh = 0;
    for (ports, endpoints) in wanted {
        let slices = existing.remove(&ports).unwrap_or_default();
        place(snapshot, &ports, endpoints, slices, &mut fresh, draft)?;
    }
    for slice in existing.into_values().flatten() {
        draft.put(snapshot.delete(slice.raw(), "no pod of the service has its ports"));
    }
    Ok(Verdict::Continue)
}

/// Puts the endpoints of one set of ports into slices. Those that are in one already stay there.
fn place(
    snapshot: &Snapshot<Service>,
    ports: &[ResolvedPort],
    endpoints: Vec<Endpoint>,
    slices: Vec<Seen<EndpointSlice>>,
    fresh: &mut usize,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let mut by_address: HashMap<String, Endpoint> = endpoints
        .iter()
        .map(|endpoint| (identity(endpoint), endpoint.clone()))
        .collect();
    let mut kept: Vec<(Seen<EndpointSlice>, Vec<Endpoint>)> = Vec::new();
    for slice in slices {
        let stay = slice
            .endpoints
            .iter()
            .flatten()
            .filter_map(|endpoint| by_address.remove(&identity(endpoint)))
            .collect();
        kept.push((slice, stay));
    }
    let unplaced: HashSet<String> = by_address.into_keys().collect();
    let mut unplaced: Vec<Endpoint> = endpoints
        .into_iter()
        .filter(|endpoint| unplaced.contains(&identity(endpoint)))
        .collect();
    for (_, stay) in &mut kept {
        let room = MOST.saturating_sub(stay.len()).min(unplaced.len());
        stay.extend(unplaced.drain(..room));
    }
    let mut is_first = true;
    for (slice, stay) in kept {
        if stay.is_empty() && !(is_first && unplaced.is_empty() && ports.is_empty()) {
            draft.put(snapshot.delete(slice.raw(), "none of its endpoints is left"));
            continue;
        }
        is_first = false;
        let mut desired = (*slice).clone();
        desired.endpoints = Some(stay);
        desired.metadata.labels = Some(labels(snapshot.object()));
        if differs(&slice, &desired) {
            draft.put(snapshot.patch(&slice, &desired, "the pods of the service changed")?);
        }
    }
    let mut rest = unplaced.into_iter().peekable();
    while rest.peek().is_some() || is_first {
        is_first = false;
        let piece: Vec<Endpoint> = rest.by_ref().take(MOST).collect();
        let prefix = format!("{}-", snapshot.raw().name());
        let slice = EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(prefix.clone()),
                name: Some(snapshot.fresh_name(&prefix, *fresh)),
                labels: Some(labels(snapshot.object())),
                annotations: Some(BTreeMap::from([(TRIGGER_TIME.to_owned(), snapshot.now().to_string())])),
                ..ObjectMeta::default()
            },
            address_type: address_type(snapshot.object()),
            endpoints: Some(piece),
            ports: Some(ports.iter().map(port).collect()),
        };
        *fresh += 1;
        draft.put(snapshot.create(&slice, "endpoints of the service have no slice")?);
    }
    Ok(())
}

fn differs(before: &EndpointSlice, after: &EndpointSlice) -> bool {
    let normal = |slice: &EndpointSlice| {
        let mut value = serde_json::to_value((&slice.endpoints, &slice.metadata.labels)).unwrap_or_default();
        template::leave_out_empty(&mut value);
        value
    };
    normal(before) != normal(after)
}

/// What makes an endpoint the same as before: its pod, and the address of that.
fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint
        .target_ref
        .as_ref()
        .and_then(|reference| reference.uid.as_deref())
        .unwrap_or_default();
    format!("{uid} {}", endpoint.addresses.join(","))
}

fn endpoint(backend: &Backend, service: &Service) -> Endpoint {
    let serving = pods::is_ready(&backend.pod);
    let terminating = backend.pod.is_deleting();
    Endpoint {
        addresses: vec![backend.address.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(publishes_not_ready(service) || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: backend.hostname(service.metadata.name.as_deref().unwrap_or_default()),
        node_name: backend.node(),
        target_ref: Some(backend.reference()),
        zone: backend.zone.clone(),
        ..Endpoint::default()
    }
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(
        SERVICE_NAME.to_owned(),
        service.metadata.name.clone().unwrap_or_default(),
    );
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

fn address_type(service: &Service) -> String {
    let families = service
        .spec
        .as_ref()
        .and_then(|spec| spec.ip_families.clone())
        .unwrap_or_default();
    families.into_iter().next().unwrap_or_else(|| "IPv4".to_owned())
}

fn port(resolved: &ResolvedPort) -> EndpointPort {
    EndpointPort {
        name: Some(resolved.name.clone()),
        protocol: Some(resolved.protocol.clone()),
        port: Some(resolved.port),
        app_protocol: resolved.app_protocol.clone(),
    }
}

fn ports_of(slice: &EndpointSlice) -> Vec<ResolvedPort> {
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

//! `EndpointSlice`s of services that select pods: changed as little as possible.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use moorline_plan::{Draft, Failure, StepKey, Verdict, transformer};
use moorline_runtime::{Actor, Key, Object, Planner, Seen, Snapshot, Target, Watches};

use super::{
    Backend, MANAGED_BY, ResolvedPort, SERVICE_NAME, backends, hints, is_left_alone, labels_of, pack, ports,
    publishes_not_ready, services_of_pod,
};
use crate::claim::selector_of_labels;
use crate::{pods, template};

const CONTROLLER: &str = "endpointslice-controller.k8s.io";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

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
            .maps::<EndpointSlice>(|slice, _| {
                let service = slice.label(SERVICE_NAME);
                service
                    .map(|name| Key::new(slice.namespace(), name))
                    .into_iter()
                    .collect()
            })
            .maps::<Pod>(services_of_pod)
            .sees::<Node>()
            // A service that waits for a finalizer is still used.
            .while_deleted()
            .without_conditions()
    }

    fn plan(&self, plan: Planner<Service>) -> Planner<Service> {
        plan.transformer(transformer("slices", keep_slices))
    }
}

type Slices = Vec<Seen<EndpointSlice>>;

/// What shall be in a slice.
struct Content {
    ports: Vec<ResolvedPort>,
    endpoints: Vec<Endpoint>,
}

/// What becomes of the slices of a service.
#[derive(Default)]
struct Arrangement {
    kept: Vec<(Seen<EndpointSlice>, Content)>,
    fresh: Vec<Content>,
    unneeded: Slices,
}

fn keep_slices(snapshot: &Snapshot<Service>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let service = snapshot.object();
    if is_left_alone(service) {
        return Ok(Verdict::Continue);
    }
    let backends = backends(snapshot)?;
    let mut wanted: BTreeMap<Vec<ResolvedPort>, Vec<Endpoint>> = BTreeMap::new();
    for backend in &backends {
        let mut ports = backend.ports.clone();
        ports.sort();
        wanted.entry(ports).or_default().push(endpoint(backend, service));
    }
    let (ours, strangers) = slices_of(snapshot)?;
    let is_new = ours.is_empty();
    let mut arrangement = arrange(wanted, ours);
    reuse(&mut arrangement, &address_type(service));
    let moments = Moments::of(snapshot, &backends, is_new);
    write(snapshot, arrangement, strangers, &moments, draft)?;
    Ok(Verdict::Continue)
}

/// The slices that carry the service's name: its own, and those that some service of its name has left behind.
fn slices_of(snapshot: &Snapshot<Service>) -> Result<(Slices, Slices), Failure> {
    let labels = BTreeMap::from([
        (SERVICE_NAME.to_owned(), snapshot.raw().name().to_owned()),
        (MANAGED_BY.to_owned(), CONTROLLER.to_owned()),
    ]);
    let slices = snapshot.select::<EndpointSlice>(&selector_of_labels(&labels)?)?;
    let slices = slices.into_iter().filter(|slice| !slice.is_deleting());
    let is_own = |slice: &Seen<EndpointSlice>| {
        let mut owners = slice.raw().owners().iter();
        owners.any(|owner| *owner.uid == *snapshot.raw().uid())
    };
    Ok(slices.partition(is_own))
}

fn arrange(wanted: BTreeMap<Vec<ResolvedPort>, Vec<Endpoint>>, ours: Slices) -> Arrangement {
    let mut existing: BTreeMap<Vec<ResolvedPort>, Slices> = BTreeMap::new();
    for slice in ours {
        existing.entry(ports::of_slice(&slice)).or_default().push(slice);
    }
    let mut arrangement = Arrangement::default();
    for (ports, endpoints) in wanted {
        let content = |endpoints| Content {
            ports: ports.clone(),
            endpoints,
        };
        let existing = existing.remove(&ports).unwrap_or_default().into_iter();
        let existing = existing.map(|slice| {
            let endpoints = slice.endpoints.clone().unwrap_or_default();
            (slice, endpoints)
        });
        let packed = pack::pack(endpoints, existing.collect());
        let kept = packed.kept.into_iter();
        arrangement
            .kept
            .extend(kept.map(|(slice, endpoints)| (slice, content(endpoints))));
        arrangement.fresh.extend(packed.fresh.into_iter().map(content));
        arrangement.unneeded.extend(packed.emptied);
    }
    arrangement.unneeded.extend(existing.into_values().flatten());
    if arrangement.kept.is_empty() && arrangement.fresh.is_empty() {
        // A service without pods has one slice without endpoints, which tells that somebody looked.
        arrangement.fresh.push(Content {
            ports: Vec::new(),
            endpoints: Vec::new(),
        });
    }
    arrangement
}

/// Has slices that nobody needs hold what would be in new ones, so that a service is never without.
fn reuse(arrangement: &mut Arrangement, address_type: &str) {
    let (mut usable, unusable): (Vec<_>, Vec<_>) = std::mem::take(&mut arrangement.unneeded)
        .into_iter()
        .partition(|slice| slice.address_type == address_type);
    while !usable.is_empty() && !arrangement.fresh.is_empty() {
        arrangement.kept.push((usable.remove(0), arrangement.fresh.remove(0)));
    }
    arrangement.unneeded = usable;
    arrangement.unneeded.extend(unusable);
}

fn write(
    snapshot: &Snapshot<Service>,
    arrangement: Arrangement,
    strangers: Slices,
    moments: &Moments,
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let service = snapshot.object();
    let mut written: Vec<StepKey<Target>> = Vec::new();
    for (slice, content) in arrangement.kept {
        let mut desired = (*slice).clone();
        let changed = changed(&slice, &content.endpoints);
        let moment = moments.earliest(&changed);
        desired.ports = Some(content.ports.iter().map(ports::in_slice).collect());
        desired.endpoints = Some(content.endpoints);
        desired.metadata.labels = Some(labels(service));
        if differs(&slice, &desired) {
            let annotations = desired.metadata.annotations.get_or_insert_default();
            annotations.remove(TRIGGER_TIME);
            annotations.extend(moment);
            written.push(draft.put(snapshot.patch(&slice, &desired, "the pods of the service changed")?));
        }
    }
    // Whoever collects what the service owned would meet a slice that comes after.
    let fresh = if snapshot.raw().is_deleting() {
        Vec::new()
    } else {
        arrangement.fresh
    };
    for (nth, content) in fresh.into_iter().enumerate() {
        let prefix = format!("{}-", snapshot.raw().name());
        let moment = moments.earliest(&content.endpoints);
        let slice = EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(prefix.clone()),
                name: Some(snapshot.fresh_name(&prefix, nth)),
                labels: Some(labels(service)),
                annotations: Some(moment.into_iter().collect()),
                ..ObjectMeta::default()
            },
            address_type: address_type(service),
            endpoints: Some(content.endpoints),
            ports: Some(content.ports.iter().map(ports::in_slice).collect()),
        };
        written.push(draft.put(snapshot.create(&slice, "endpoints of the service have no slice")?));
    }
    for slice in arrangement.unneeded.into_iter().chain(strangers) {
        let gone = draft.put(snapshot.delete(slice.raw(), "no endpoint of the service is in it"));
        for earlier in &written {
            draft.after(&gone, earlier)?;
        }
    }
    Ok(())
}

fn differs(before: &EndpointSlice, after: &EndpointSlice) -> bool {
    let normal = |slice: &EndpointSlice| {
        // No endpoints and an empty list of them are the same.
        let endpoints = slice.endpoints.as_deref().unwrap_or_default();
        let mut value = serde_json::to_value((endpoints, &slice.metadata.labels)).unwrap_or_default();
        template::leave_out_empty(&mut value);
        (value, ports::of_slice(slice))
    };
    normal(before) != normal(after)
}

/// The endpoints that a slice does not have, or has otherwise.
fn changed(slice: &EndpointSlice, endpoints: &[Endpoint]) -> Vec<Endpoint> {
    let before: HashMap<String, &Endpoint> = slice
        .endpoints
        .iter()
        .flatten()
        .map(|endpoint| (pack::identity(endpoint), endpoint))
        .collect();
    let is_as_before = |endpoint: &&Endpoint| {
        let before = before.get(&pack::identity(endpoint));
        before.is_some_and(|before| pack::is_same(before, endpoint))
    };
    endpoints
        .iter()
        .filter(|endpoint| !is_as_before(endpoint))
        .cloned()
        .collect()
}

/// When what is told in slices came about, by which proxies measure how late they are.
struct Moments {
    /// By the pod's uid, when it became ready or ceased to be.
    pods: HashMap<String, Timestamp>,
    /// When the service was made, if nothing has been told of it before.
    service: Option<Timestamp>,
}

impl Moments {
    fn of(snapshot: &Snapshot<Service>, backends: &[Backend], is_new: bool) -> Self {
        let pods = backends
            .iter()
            .filter_map(|backend| Some((backend.pod.uid().to_owned(), backend.turned()?)));
        let made = snapshot.object().metadata.creation_timestamp.as_ref();
        Self {
            pods: pods.collect(),
            service: made.filter(|_| is_new).map(|made| made.0),
        }
    }

    /// The annotation that tells the earliest of the moments that concern these endpoints.
    fn earliest(&self, endpoints: &[Endpoint]) -> Option<(String, String)> {
        let pods: HashSet<&str> = endpoints
            .iter()
            .filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.as_deref())
            .collect();
        let moments = pods.into_iter().filter_map(|pod| self.pods.get(pod));
        let earliest = moments.chain(&self.service).min()?;
        Some((TRIGGER_TIME.to_owned(), earliest.to_string()))
    }
}

fn endpoint(backend: &Backend, service: &Service) -> Endpoint {
    let serving = pods::is_ready(&backend.pod);
    let terminating = backend.pod.is_deleting();
    let ready = publishes_not_ready(service) || (serving && !terminating);
    Endpoint {
        addresses: vec![backend.address.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: hints::of(backend, service).filter(|_| ready),
        hostname: backend.hostname(service.metadata.name.as_deref().unwrap_or_default()),
        node_name: backend.node(),
        target_ref: Some(backend.reference()),
        zone: backend.zone.clone(),
        ..Endpoint::default()
    }
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = labels_of(service);
    let name = service.metadata.name.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name);
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
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

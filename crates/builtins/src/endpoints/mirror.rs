//! `EndpointSlice`s of `Endpoints` that somebody wrote by hand, for services without a selector.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use moorline_plan::{Draft, Failure, StepKey, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Key, Object, Planner, Seen, Snapshot, Target, Watches};

use super::{MANAGED_BY, ResolvedPort, SERVICE_NAME, has_selector, ports, subsets};
use crate::template;

const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that are about the endpoints object alone.
const OWN: [&str; 2] = [
    "endpoints.kubernetes.io/last-change-trigger-time",
    "kubectl.kubernetes.io/last-applied-configuration",
];
/// More addresses of one subset than this are not mirrored: they would not fit into one slice.
const MOST: usize = 1000;

/// Mirrors endpoints into slices.
pub(crate) struct MirroredEndpoints;

impl Actor for MirroredEndpoints {
    type Object = Endpoints;

    fn name(&self) -> &'static str {
        "endpointslicemirroring-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Endpoints>()
            .owns::<EndpointSlice>()
            .maps::<Service>(|service, _| vec![Key::of(service)])
            .without_conditions()
    }

    fn plan(&self, plan: Planner<Endpoints>) -> Planner<Endpoints> {
        plan.transformer(transformer("mirror", mirror))
    }
}

/// What tells slices apart: the family of their addresses, and their ports.
type Family = (String, Vec<ResolvedPort>);

fn mirror(snapshot: &Snapshot<Endpoints>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let endpoints = snapshot.object();
    let service = snapshot.get::<Service>(snapshot.raw().name())?;
    let wants = service.is_some_and(|service| !has_selector(&service))
        && snapshot.raw().label(SKIP) != Some("true")
        && crate::pods::annotation(&endpoints.metadata, LEADER).is_none();
    let (wanted, skipped) = if wants { gather(endpoints) } else { Default::default() };
    let mut existing: BTreeMap<Family, Vec<Seen<EndpointSlice>>> = BTreeMap::new();
    for slice in snapshot.owned::<EndpointSlice>()? {
        if slice.raw().label(MANAGED_BY) == Some(CONTROLLER) && !slice.is_deleting() {
            let family = (slice.address_type.clone(), ports::of_slice(&slice));
            existing.entry(family).or_default().push(slice);
        }
    }
    let (mut pairs, mut fresh) = (Vec::new(), Vec::new());
    for (family, endpoints) in wanted {
        match existing.get_mut(&family).filter(|slices| !slices.is_empty()) {
            Some(slices) => pairs.push((slices.remove(0), family, endpoints)),
            None => fresh.push((family, endpoints)),
        }
    }
    let mut unneeded: Vec<Seen<EndpointSlice>> = existing.into_values().flatten().collect();
    // A slice that nobody needs holds what would be in a new one, so that the addresses are never gone.
    fresh.retain(|(family, endpoints)| {
        let reused = unneeded.iter().position(|slice| slice.address_type == family.0);
        let reused = reused.map(|nth| unneeded.remove(nth));
        let Some(slice) = reused else { return true };
        pairs.push((slice, family.clone(), endpoints.clone()));
        false
    });
    let mut written: Vec<StepKey<Target>> = Vec::new();
    for (slice, family, endpoints) in pairs {
        let mut desired = slice_of(snapshot, family, endpoints);
        desired.metadata = ObjectMeta {
            labels: desired.metadata.labels,
            annotations: desired.metadata.annotations,
            ..slice.metadata.clone()
        };
        if differs(&slice, &desired) {
            written.push(draft.put(snapshot.patch(&slice, &desired, "the endpoints changed")?));
        }
    }
    for (nth, (family, endpoints)) in fresh.into_iter().enumerate() {
        let prefix = format!("{}-", snapshot.raw().name());
        let mut slice = slice_of(snapshot, family, endpoints);
        slice.metadata.name = Some(snapshot.fresh_name(&prefix, nth));
        slice.metadata.generate_name = Some(prefix);
        written.push(draft.put(snapshot.create(&slice, "endpoints written by hand have no slice")?));
    }
    for slice in unneeded {
        let gone = draft.put(snapshot.delete(slice.raw(), "nothing is to be mirrored into it"));
        for earlier in &written {
            draft.after(&gone, earlier)?;
        }
    }
    if skipped > 0 {
        let note = format!(
            "A max of {MOST} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were skipped"
        );
        draft.put(snapshot.event(EventType::Warning, "TooManyAddressesToMirror", &note)?);
    }
    Ok(Verdict::Continue)
}

/// What is to be in slices, and how many addresses are in none.
fn gather(endpoints: &Endpoints) -> (BTreeMap<Family, Vec<Endpoint>>, usize) {
    let mut gathered: BTreeMap<Family, Vec<Endpoint>> = BTreeMap::new();
    let mut skipped = 0;
    for subset in subsets::repack(endpoints.subsets.as_deref().unwrap_or_default()) {
        let ports = subsets::ports_of(&subset);
        for (nth, (address, ready)) in subsets::addresses_of(&subset).enumerate() {
            if nth >= MOST {
                skipped += 1;
                continue;
            }
            let family = if address.ip.contains(':') { "IPv6" } else { "IPv4" };
            let slice = gathered.entry((family.to_owned(), ports.clone())).or_default();
            slice.push(endpoint(address, ready));
        }
    }
    // Subsets of the same ports and different addresses are one slice, which has its own limit.
    for endpoints in gathered.values_mut() {
        skipped += endpoints.len().saturating_sub(MOST);
        endpoints.truncate(MOST);
    }
    (gathered, skipped)
}

fn slice_of(snapshot: &Snapshot<Endpoints>, (address_type, ports): Family, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let metadata = &snapshot.object().metadata;
    let mut labels = metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), snapshot.raw().name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    let mut annotations = metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| !OWN.contains(&name.as_str()));
    EndpointSlice {
        metadata: ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        address_type,
        endpoints: Some(endpoints),
        ports: Some(ports.iter().map(ports::in_slice).collect()),
    }
}

fn differs(before: &EndpointSlice, after: &EndpointSlice) -> bool {
    let normal = |slice: &EndpointSlice| {
        let metadata = &slice.metadata;
        let parts = (&slice.endpoints, &metadata.labels, &metadata.annotations);
        let mut value = serde_json::to_value(parts).unwrap_or_default();
        template::leave_out_empty(&mut value);
        // No annotations and an empty map of them are the same.
        if value[2].as_object().is_some_and(serde_json::Map::is_empty) {
            value[2].take();
        }
        (value, ports::of_slice(slice))
    };
    normal(before) != normal(after)
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    // Addresses can be written in several ways, of which slices take one.
    let ip: Result<IpAddr, _> = address.ip.parse();
    Endpoint {
        addresses: vec![ip.map_or_else(|_| address.ip.clone(), |ip| ip.to_string())],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

//! `EndpointSlice`s of `Endpoints` that somebody wrote by hand, for services without a selector.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Key, Object, Planner, Seen, Snapshot, Watches};

use super::is_left_alone;
use crate::template;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

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

fn mirror(snapshot: &Snapshot<Endpoints>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let endpoints = snapshot.object();
    let ours = snapshot
        .owned::<EndpointSlice>()?
        .into_iter()
        .filter(|slice| slice.raw().label(MANAGED_BY) == Some(CONTROLLER));
    let ours: Vec<Seen<EndpointSlice>> = ours.filter(|slice| !slice.is_deleting()).collect();
    let service = snapshot.get::<Service>(snapshot.raw().name())?;
    let external =
        |service: &Seen<Service>| service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
    let wants = service
        .as_ref()
        .is_some_and(|service| is_left_alone(service) && !external(service))
        && snapshot.raw().label(SKIP) != Some("true")
        && crate::pods::annotation(&endpoints.metadata, LEADER).is_none();
    let wanted = if wants { slices(snapshot) } else { Vec::new() };
    let mut ours = ours.into_iter();
    let mut fresh = 0;
    for wanted in wanted {
        match ours.next() {
            Some(slice) if slice.address_type == wanted.address_type => {
                let mut desired = (*slice).clone();
                desired.endpoints = wanted.endpoints;
                desired.ports = wanted.ports;
                desired.metadata.labels = wanted.metadata.labels;
                if differs(&slice, &desired) {
                    draft.put(snapshot.patch(&slice, &desired, "the endpoints changed")?);
                }
            }
            other => {
                if let Some(slice) = other {
                    draft.put(snapshot.delete(slice.raw(), "its addresses are of another family"));
                }
                let prefix = format!("{}-", snapshot.raw().name());
                let mut slice = wanted;
                slice.metadata.generate_name = Some(prefix.clone());
                slice.metadata.name = Some(snapshot.fresh_name(&prefix, fresh));
                fresh += 1;
                draft.put(snapshot.create(&slice, "endpoints written by hand have no slice")?);
            }
        }
    }
    for slice in ours {
        draft.put(snapshot.delete(slice.raw(), "nothing is to be mirrored into it"));
    }
    Ok(Verdict::Continue)
}

fn differs(before: &EndpointSlice, after: &EndpointSlice) -> bool {
    let normal = |slice: &EndpointSlice| {
        let mut value =
            serde_json::to_value((&slice.endpoints, &slice.ports, &slice.metadata.labels)).unwrap_or_default();
        template::leave_out_empty(&mut value);
        value
    };
    normal(before) != normal(after)
}

fn slices(snapshot: &Snapshot<Endpoints>) -> Vec<EndpointSlice> {
    let mut labels = snapshot.object().metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), snapshot.raw().name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    let mut slices = Vec::new();
    for subset in snapshot.object().subsets.iter().flatten() {
        let mut families: BTreeMap<&str, Vec<Endpoint>> = BTreeMap::new();
        for (address, ready) in addresses(subset) {
            let family = if address.ip.contains(':') { "IPv6" } else { "IPv4" };
            families.entry(family).or_default().push(endpoint(address, ready));
        }
        for (family, endpoints) in families {
            slices.push(EndpointSlice {
                metadata: ObjectMeta {
                    labels: Some(labels.clone()),
                    ..ObjectMeta::default()
                },
                address_type: family.to_owned(),
                endpoints: Some(endpoints),
                ports: Some(subset.ports.iter().flatten().map(port).collect()),
            });
        }
    }
    slices
}

fn addresses(subset: &EndpointSubset) -> impl Iterator<Item = (&EndpointAddress, bool)> {
    let ready = subset.addresses.iter().flatten().map(|address| (address, true));
    ready.chain(
        subset
            .not_ready_addresses
            .iter()
            .flatten()
            .map(|address| (address, false)),
    )
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
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

fn port(port: &k8s_openapi::api::core::v1::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        protocol: port.protocol.clone(),
        port: Some(port.port),
        app_protocol: port.app_protocol.clone(),
    }
}

//! `Endpoints` of services that select pods: one object a service, for those who still read it.

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use moorline_plan::{Draft, Failure, Step, Verdict, transformer};
use moorline_runtime::{Actor, Key, Object, Planner, Snapshot, Watches};

use super::{Backend, backends, is_headless, is_left_alone, labels_of, publishes_not_ready, services_of_pod, subsets};
use crate::template;

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
            // A service that waits for a finalizer is still used.
            .while_deleted()
            .without_conditions()
    }

    fn plan(&self, plan: Planner<Service>) -> Planner<Service> {
        plan.transformer(transformer("endpoints", keep_endpoints))
    }
}

fn keep_endpoints(snapshot: &Snapshot<Service>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let service = snapshot.object();
    if is_left_alone(service) {
        return Ok(Verdict::Continue);
    }
    let mut backends = backends(snapshot)?;
    // One that ends has no place here: whether it still serves cannot be told.
    backends.retain(|backend| publishes_not_ready(service) || !backend.pod.is_deleting());
    backends.sort_by_key(|backend| !backend.is_ready(service));
    let is_over = backends.len() > MOST;
    backends.truncate(MOST);
    let mut labels = labels_of(service);
    labels.insert(MANAGED_BY.to_owned(), "endpoint-controller".to_owned());
    let name = snapshot.raw().name();
    let existing = snapshot.get::<Endpoints>(name)?;
    let mut desired = existing.as_ref().map_or_else(
        || Endpoints {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(snapshot.raw().namespace().to_owned()),
                ..ObjectMeta::default()
            },
            subsets: None,
        },
        |existing| (**existing).clone(),
    );
    desired.subsets = Some(subsets_of(&backends, service));
    desired.metadata.labels = Some(labels);
    // They go with the service, but not because it owns them: those who orphan what it owns do not mean them.
    if let Some(owners) = &mut desired.metadata.owner_references {
        owners.retain(|owner| owner.uid != snapshot.raw().uid());
    }
    let annotations = desired.metadata.annotations.get_or_insert_default();
    if is_over {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    match existing {
        None if snapshot.raw().is_deleting() => {}
        None => {
            let desired = Object::of(&desired).map_err(|error| Failure::terminal(error.to_string()))?;
            draft.put(Step::create(desired, "the service has no endpoints object"));
        }
        Some(existing) if differs(&existing, &desired) => {
            draft.put(snapshot.patch(&existing, &desired, "the pods of the service changed")?);
        }
        Some(_) => {}
    }
    Ok(Verdict::Continue)
}

fn differs(before: &Endpoints, after: &Endpoints) -> bool {
    let normal = |endpoints: &Endpoints| {
        let owners = endpoints.metadata.owner_references.iter().flatten();
        let parts = (
            &endpoints.subsets,
            &endpoints.metadata.labels,
            &endpoints.metadata.annotations,
            owners.collect::<Vec<_>>(),
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

fn subsets_of(backends: &[Backend], service: &Service) -> Vec<EndpointSubset> {
    let has_ports = service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.ports.iter().flatten().next().is_some());
    let with_ports = backends.iter().filter(|backend| {
        // Without ports of the service the names of its pods are all that there is to it.
        if has_ports {
            !backend.ports.is_empty()
        } else {
            is_headless(service)
        }
    });
    let each: Vec<EndpointSubset> = with_ports
        .map(|backend| {
            let address = vec![EndpointAddress {
                ip: backend.address.clone(),
                hostname: backend.hostname(service.metadata.name.as_deref().unwrap_or_default()),
                node_name: backend.node(),
                target_ref: Some(backend.reference()),
            }];
            let (addresses, not_ready_addresses) = if backend.is_ready(service) {
                (Some(address), None)
            } else {
                (None, Some(address))
            };
            EndpointSubset {
                addresses,
                not_ready_addresses,
                ports: (!backend.ports.is_empty()).then(|| backend.ports.iter().map(subsets::port).collect()),
            }
        })
        .collect();
    subsets::repack(&each)
}

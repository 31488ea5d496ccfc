//! What a new server brings along: its namespaces, roles, classes of priority, and the service by which pods find it.

use std::{net::SocketAddr, sync::Arc};

use moorline_machinery::{meta, status::ApiError, time};
use serde_json::{Value, json};

use crate::{
    auth::rbac::{self, RbacKind, Reconciled},
    controllers::{roles, service_accounts},
    core::Core,
    rest::internal,
};

/// The service of the server itself, and whatever else goes by its name.
const OWN_SERVICE: &str = "kubernetes";
/// Classes that the parts of a cluster itself are in.
const PRIORITIES: [(&str, u32, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Makes what is missing. Everything goes the way of a client's request, so that it looks like a client's.
pub(crate) async fn run(core: &Arc<Core>) -> Result<(), ApiError> {
    for name in NAMESPACES {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        internal::ensure(core, "v1", "namespaces", "", namespace).await?;
    }
    for name in NAMESPACES {
        service_accounts::provide(core, name).await;
    }
    for (name, value, description) in PRIORITIES {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name },
            "value": value, "description": description,
        });
        internal::ensure(core, "scheduling.k8s.io/v1", "priorityclasses", "", class).await?;
    }
    serve_services(core).await?;
    for (kind, object) in rbac::default_objects() {
        let resource = plural(kind);
        let meta = meta::of(&object);
        let existing = internal::get(core, roles::API_VERSION, resource, meta.namespace(), meta.name());
        match rbac::reconcile(&object, existing.as_ref()) {
            Reconciled::Keep => {}
            Reconciled::Create => create(core, resource, object).await?,
            Reconciled::Update(object) => internal::replace(core, roles::API_VERSION, resource, object).await?,
            Reconciled::Replace => {
                internal::delete(core, roles::API_VERSION, resource, meta.namespace(), meta.name()).await?;
                create(core, resource, object).await?;
            }
        }
    }
    Ok(())
}

/// The range of the services' addresses, and the service of the server itself.
async fn serve_services(core: &Arc<Core>) -> Result<(), ApiError> {
    const NETWORKING: &str = "networking.k8s.io/v1";
    let range = json!({
        "apiVersion": NETWORKING, "kind": "ServiceCIDR", "metadata": { "name": OWN_SERVICE },
        "spec": { "cidrs": [core.addresses.range()] },
    });
    internal::ensure(core, NETWORKING, "servicecidrs", "", range).await?;
    if let Some(mut range) = internal::get(core, NETWORKING, "servicecidrs", "", OWN_SERVICE)
        && range["status"]["conditions"].is_null()
    {
        range["status"]["conditions"] = json!([{
            "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready",
            "lastTransitionTime": time::format(core.world.now()),
        }]);
        internal::replace_status(core, NETWORKING, "servicecidrs", range).await?;
    }
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": OWN_SERVICE, "namespace": "default", "labels": { "component": "apiserver", "provider": "kubernetes" },
        },
        "spec": {
            "clusterIP": core.addresses.first(), "type": "ClusterIP", "sessionAffinity": "None",
            "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443 }],
        },
    });
    internal::ensure(core, "v1", "services", "default", service).await
}

/// Says where the server can be reached, for those who ask for its service.
pub(crate) async fn advertise(core: &Arc<Core>, address: SocketAddr) -> Result<(), ApiError> {
    let port = json!({ "name": "https", "port": address.port(), "protocol": "TCP" });
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": OWN_SERVICE, "namespace": "default", "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" },
        },
        "subsets": [{ "addresses": [{ "ip": address.ip() }], "ports": [port] }],
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": OWN_SERVICE, "namespace": "default", "labels": { "kubernetes.io/service-name": OWN_SERVICE },
        },
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{ "addresses": [address.ip()], "conditions": { "ready": true } }], "ports": [port],
    });
    for (api_version, plural, object) in [
        ("v1", "endpoints", endpoints),
        ("discovery.k8s.io/v1", "endpointslices", slice),
    ] {
        match internal::get(core, api_version, plural, "default", OWN_SERVICE) {
            None => internal::ensure(core, api_version, plural, "default", object).await?,
            Some(mut stored) => {
                for field in ["subsets", "addressType", "endpoints", "ports"] {
                    if let Some(value) = object.get(field) {
                        stored[field] = value.clone();
                    }
                }
                internal::replace(core, api_version, plural, stored).await?;
            }
        }
    }
    let Some(mut service) = internal::get(core, "v1", "services", "default", OWN_SERVICE) else {
        return Ok(());
    };
    service["spec"]["ports"][0]["targetPort"] = address.port().into();
    internal::replace(core, "v1", "services", service).await
}

async fn create(core: &Arc<Core>, resource: &str, object: Value) -> Result<(), ApiError> {
    let namespace = meta::of(&object).namespace().to_owned();
    internal::ensure(core, roles::API_VERSION, resource, &namespace, object).await
}

pub(super) fn plural(kind: RbacKind) -> &'static str {
    match kind {
        RbacKind::Role => "roles",
        RbacKind::ClusterRole => "clusterroles",
        RbacKind::RoleBinding => "rolebindings",
        RbacKind::ClusterRoleBinding => "clusterrolebindings",
    }
}

//! What a server says of itself.

use fastrand::Rng;

use super::Place;
use crate::step::Step;

const GROUPS: [&str; 20] = [
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apiregistration.k8s.io/v1",
    "apps/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "autoscaling/v1",
    "autoscaling/v2",
    "batch/v1",
    "certificates.k8s.io/v1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1",
    "events.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "networking.k8s.io/v1",
    "node.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
];

pub(super) fn steps(_: &mut Rng, _: &Place) -> Vec<Step> {
    let mut steps: Vec<Step> = ["/api", "/apis", "/api/v1", "/version", "/healthz", "/livez", "/readyz"]
        .map(Step::get)
        .into();
    for group in GROUPS {
        steps.push(Step::get(format!("/apis/{group}")));
        let name = group.split('/').next().unwrap_or_default();
        steps.push(Step::get(format!("/apis/{name}")));
    }
    for aggregated in [
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
    ] {
        steps.push(Step::get("/api").header("accept", aggregated));
        steps.push(Step::get("/apis").header("accept", aggregated));
    }
    steps
}

//! Pods and the templates that pods are made from.

mod change;
mod container;
mod dns;
mod handler;
mod resources;
mod scheduling;
mod security;
mod variables;
mod volumes;

use std::collections::HashSet;

use moorline_machinery::{
    field::{ErrorKind, FieldError},
    names,
};
use serde_json::Value;

pub(super) use self::{
    change::{change, ephemeral_containers, resize},
    resources::{amount, container_resource_name, overhead, plain_resource_name},
    scheduling::{node_selector, tolerations},
    volumes::{Place, volume_sources},
};
use super::{
    at::{At, Errors, internal_value, shown},
    text,
};

/// Where a pod spec stands, which decides what it may say.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// In a pod.
    Pod,
    /// In a template of another kind.
    Template,
}

/// A pod.
pub(super) fn pod(object: &At<'_>, errors: &mut Errors) {
    annotations(&object.at("metadata").at("annotations"), errors);
    let spec = object.at("spec");
    self::spec(&spec, Holder::Pod, errors);
    if super::is_new(object) && !spec.at("ephemeralContainers").items().is_empty() {
        spec.at("ephemeralContainers")
            .forbidden(errors, "cannot be set on create");
    }
    if spec.at("serviceAccountName").text().is_empty() {
        volumes::no_tokens(&spec.at("volumes"), errors);
    }
}

/// A pod template.
pub(super) fn template(template: &At<'_>, errors: &mut Errors) {
    template_metadata(template, errors);
    annotations(&template.at("metadata").at("annotations"), errors);
    let spec = template.at("spec");
    self::spec(&spec, Holder::Template, errors);
    if !spec.at("ephemeralContainers").items().is_empty() {
        spec.at("ephemeralContainers")
            .forbidden(errors, "ephemeral containers not allowed in pod template");
    }
}

/// Labels and annotations of a template. Kubernetes reports them as if they stood in the template itself.
pub(super) fn template_metadata(template: &At<'_>, errors: &mut Errors) {
    let metadata = template.at("metadata");
    template.at("labels").with(metadata.at("labels").value).labels(errors);
    super::annotations(
        &template.at("annotations").with(metadata.at("annotations").value),
        errors,
    );
}

fn annotations(annotations: &At<'_>, errors: &mut Errors) {
    let cost = annotations
        .value
        .get("controller.kubernetes.io/pod-deletion-cost")
        .and_then(Value::as_str);
    if let Some(cost) = cost
        && (cost.parse::<i32>().is_err() || (cost.len() > 1 && cost.starts_with(['0', '+'])))
    {
        let at = annotations.path.key("controller.kubernetes.io/pod-deletion-cost");
        errors.push(FieldError::invalid(&at, cost, "must be a 32bit integer"));
    }
}

/// The spec of a pod.
pub(super) fn spec(spec: &At<'_>, holder: Holder, errors: &mut Errors) {
    let host_network = spec.at("hostNetwork").flag();
    let volumes = volumes::volumes(&spec.at("volumes"), errors);
    container::containers(spec, &volumes, host_network, errors);
    spec.at("restartPolicy")
        .require_one_of(errors, &["Always", "OnFailure", "Never"]);
    dns::policy(spec, errors);
    spec.at("nodeSelector").labels(errors);
    security::pod(&spec.at("securityContext"), spec, errors);
    references(spec, errors);
    scheduling::affinity(&spec.at("affinity"), errors);
    dns::config(&spec.at("dnsConfig"), spec.at("dnsPolicy").text(), errors);
    gates(spec, errors);
    scheduling::spread_constraints(&spec.at("topologySpreadConstraints"), errors);
    lifetime(spec, errors);
    names_of_host(spec, errors);
    scheduling::tolerations(&spec.at("tolerations"), errors);
    dns::host_aliases(&spec.at("hostAliases"), errors);
    priority(spec, errors);
    resources::overhead(&spec.at("overhead"), errors);
    resources::of_pod(spec, errors);
    if holder == Holder::Pod || spec.at("os").is_set() {
        system(&spec.at("os"), errors);
    }
}

fn references(spec: &At<'_>, errors: &mut Errors) {
    spec.at("serviceAccountName")
        .follow_if_set(errors, names::dns_subdomain);
    spec.at("nodeName").follow_if_set(errors, names::dns_subdomain);
    spec.at("runtimeClassName").follow_if_set(errors, names::dns_subdomain);
    let mut seen = HashSet::new();
    spec.at("resourceClaims").each(|claim| {
        let name = claim.at("name");
        name.require_following(errors, names::dns_label);
        if !name.text().is_empty() && !seen.insert(name.text().to_owned()) {
            name.duplicate(errors, name.text());
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"].map(|source| claim.at(source).is_set());
        match sources {
            [false, false] => {
                internal_claim(
                    claim,
                    "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
                    errors,
                );
            }
            [true, true] => internal_claim(
                claim,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
                errors,
            ),
            _ => {}
        }
        claim
            .at("resourceClaimName")
            .follow_if_set(errors, names::dns_subdomain);
        claim
            .at("resourceClaimTemplateName")
            .follow_if_set(errors, names::dns_subdomain);
    });
}

fn internal_claim(claim: &At<'_>, why: &str, errors: &mut Errors) {
    let text = format!(
        "{{\"Name\":{},\"ResourceClaimName\":{},\"ResourceClaimTemplateName\":{}}}",
        shown(claim.at("name").value),
        shown(claim.at("resourceClaimName").value),
        shown(claim.at("resourceClaimTemplateName").value)
    );
    errors.push(internal_value(ErrorKind::Invalid, &claim.path, &text, why));
}

fn gates(spec: &At<'_>, errors: &mut Errors) {
    spec.at("readinessGates")
        .each(|gate| gate.at("conditionType").follow(errors, names::qualified_name));
    let gates = spec.at("schedulingGates");
    let mut seen = HashSet::new();
    gates.each(|gate| {
        let name = gate.at("name");
        for complaint in names::qualified_name(name.text()) {
            gate.invalid_as(errors, name.text(), complaint);
        }
        if !seen.insert(name.text().to_owned()) {
            gate.duplicate(errors, name.text());
        }
    });
    if !gates.items().is_empty() && !spec.at("nodeName").text().is_empty() {
        spec.at("nodeName")
            .forbidden(errors, "cannot be set until all schedulingGates have been cleared");
    }
}

fn lifetime(spec: &At<'_>, errors: &mut Errors) {
    let deadline = spec.at("activeDeadlineSeconds");
    if deadline.is_set() {
        deadline.within(errors, 1, i64::from(i32::MAX));
    }
}

fn names_of_host(spec: &At<'_>, errors: &mut Errors) {
    spec.at("hostname").follow_if_set(errors, names::dns_label);
    spec.at("subdomain").follow_if_set(errors, names::dns_label);
    spec.at("hostnameOverride").follow_if_set(errors, names::dns_subdomain);
    let users = spec.at("hostUsers");
    if users.is_set() && !users.flag() && spec.at("hostNetwork").flag() {
        spec.at("hostNetwork").forbidden(errors, "when `hostUsers` is false");
    }
}

fn priority(spec: &At<'_>, errors: &mut Errors) {
    spec.at("priorityClassName").follow_if_set(errors, names::dns_subdomain);
    let policy = spec.at("preemptionPolicy");
    policy.one_of_if_set(errors, &["PreemptLowerPriority", "Never"]);
}

fn system(os: &At<'_>, errors: &mut Errors) {
    if os.is_set() {
        let name = os.at("name").text();
        match name {
            "" => os.at("name").missing(errors, ""),
            "linux" | "windows" => {}
            _ => errors.push(FieldError::not_supported(&os.path, name, ["linux", "windows"])),
        }
    }
}

/// A number or a name of a port.
pub(super) fn port_or_name(port: &At<'_>, errors: &mut Errors) {
    match port.value {
        Value::String(_) => port.follow(errors, text::port_name),
        _ => port.port(errors),
    }
}

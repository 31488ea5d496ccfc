//! The columns of kinds that few look at: policies, flow control, storage drivers, addresses.

use serde_json::Value;

use super::{
    Cell, Column,
    columns::{Kind, age, at, boolean, integer, name, text},
    subject::{self, Subject},
};

const POLICY_BINDINGS: &[Column] = &[
    name(),
    at("PolicyName", "spec.policyName"),
    text("ParamRef", Cell::Computed(param_reference)),
    age(),
];

pub(super) const KINDS: &[Kind] = &[
    (
        "v1",
        "ComponentStatus",
        &[
            name(),
            text("Status", Cell::Computed(component_health)),
            text("Message", Cell::Computed(component_message)),
            text("Error", Cell::Computed(component_error)),
        ],
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
        &[
            name(),
            integer("Validations", Cell::Count("spec.validations")),
            text("ParamKind", Cell::Computed(param_kind)),
            age(),
        ],
    ),
    (
        "admissionregistration.k8s.io/v1",
        "MutatingAdmissionPolicy",
        &[
            name(),
            integer("Mutations", Cell::Count("spec.mutations")),
            text("ParamKind", Cell::Computed(param_kind)),
            age(),
        ],
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        POLICY_BINDINGS,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "MutatingAdmissionPolicyBinding",
        POLICY_BINDINGS,
    ),
    (
        "flowcontrol.apiserver.k8s.io/v1",
        "FlowSchema",
        &[
            name(),
            at("PriorityLevel", "spec.priorityLevelConfiguration.name"),
            text("MatchingPrecedence", Cell::Integer("spec.matchingPrecedence")),
            text(
                "DistinguisherMethod",
                Cell::Optional("spec.distinguisherMethod.type", "<none>"),
            ),
            age(),
            text("MissingPL", Cell::Computed(missing_priority_level)),
        ],
    ),
    (
        "flowcontrol.apiserver.k8s.io/v1",
        "PriorityLevelConfiguration",
        &[
            name(),
            at("Type", "spec.type"),
            text("NominalConcurrencyShares", Cell::Computed(concurrency_shares)),
            text("Queues", Cell::Computed(queues)),
            text("HandSize", Cell::Computed(hand_size)),
            text("QueueLengthLimit", Cell::Computed(queue_length)),
            age(),
        ],
    ),
    (
        "networking.k8s.io/v1",
        "IPAddress",
        &[name(), text("ParentRef", Cell::Computed(parent_reference))],
    ),
    (
        "storage.k8s.io/v1",
        "CSIDriver",
        &[
            name(),
            boolean("AttachRequired", Cell::Boolean("spec.attachRequired", true)),
            boolean("PodInfoOnMount", Cell::Boolean("spec.podInfoOnMount", false)),
            boolean("StorageCapacity", Cell::Boolean("spec.storageCapacity", false)),
            text("TokenRequests", Cell::Computed(token_audiences)),
            boolean("RequiresRepublish", Cell::Boolean("spec.requiresRepublish", false)),
            text("Modes", Cell::Computed(lifecycle_modes)),
            age(),
        ],
    ),
    (
        "storage.k8s.io/v1",
        "CSIStorageCapacity",
        &[
            name(),
            at("StorageClassName", "storageClassName"),
            text("Capacity", Cell::Optional("capacity", "<unset>")),
        ],
    ),
];

fn or(text: String, otherwise: &str) -> Value {
    if text.is_empty() { otherwise.into() } else { text.into() }
}

fn joined<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.collect::<Vec<_>>().join(",")
}

fn healthy<'a>(component: &Subject<'a>, field: &str) -> &'a str {
    let conditions = component.at("conditions").and_then(Value::as_array);
    let found = conditions.and_then(|conditions| conditions.iter().find(|one| one["type"] == "Healthy"));
    found.map_or("", |condition| subject::text(condition, field))
}

fn component_health(component: &Subject<'_>) -> Value {
    match healthy(component, "status") {
        "True" => "Healthy".into(),
        _ => "Unhealthy".into(),
    }
}

fn component_message(component: &Subject<'_>) -> Value {
    healthy(component, "message").into()
}

fn component_error(component: &Subject<'_>) -> Value {
    healthy(component, "error").into()
}

fn param_kind(policy: &Subject<'_>) -> Value {
    match policy.at("spec.paramKind").filter(|kind| kind.is_object()) {
        Some(kind) => format!("{}/{}", subject::text(kind, "apiVersion"), subject::text(kind, "kind")).into(),
        None => "<unset>".into(),
    }
}

fn param_reference(binding: &Subject<'_>) -> Value {
    let Some(reference) = binding.at("spec.paramRef").filter(|reference| reference.is_object()) else {
        return "<unset>".into();
    };
    match (subject::text(reference, "namespace"), subject::text(reference, "name")) {
        (_, "") if subject::at(reference, "selector").is_some() => binding.selector("spec.paramRef.selector").into(),
        (_, "") => "<unset>".into(),
        // Whether parameters of this kind live in namespaces cannot be seen from here.
        ("", name) => format!("*/{name}").into(),
        (namespace, name) => format!("{namespace}/{name}").into(),
    }
}

fn missing_priority_level(schema: &Subject<'_>) -> Value {
    let dangling = schema.condition("Dangling");
    dangling
        .map_or("?", |condition| subject::text(condition, "status"))
        .into()
}

fn limited(level: &Subject<'_>, path: &str) -> Value {
    let limited = level.at("spec.limited").and_then(|limited| subject::at(limited, path));
    limited
        .filter(|value| !value.is_null())
        .cloned()
        .unwrap_or_else(|| "<none>".into())
}

fn concurrency_shares(level: &Subject<'_>) -> Value {
    limited(level, "nominalConcurrencyShares")
}

fn queues(level: &Subject<'_>) -> Value {
    limited(level, "limitResponse.queuing.queues")
}

fn hand_size(level: &Subject<'_>) -> Value {
    limited(level, "limitResponse.queuing.handSize")
}

fn queue_length(level: &Subject<'_>) -> Value {
    limited(level, "limitResponse.queuing.queueLengthLimit")
}

fn parent_reference(address: &Subject<'_>) -> Value {
    let Some(parent) = address.at("spec.parentRef").filter(|parent| parent.is_object()) else {
        return "<none>".into();
    };
    let resource = match subject::text(parent, "group") {
        "" => subject::text(parent, "resource").to_lowercase(),
        group => format!("{}.{group}", subject::text(parent, "resource")).to_lowercase(),
    };
    let parts = [
        resource.as_str(),
        subject::text(parent, "namespace"),
        subject::text(parent, "name"),
    ];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("/").into()
}

fn token_audiences(driver: &Subject<'_>) -> Value {
    match driver.at("spec.tokenRequests") {
        None | Some(Value::Null) => "<unset>".into(),
        Some(_) => joined(
            driver
                .items("spec.tokenRequests")
                .iter()
                .map(|token| subject::text(token, "audience")),
        )
        .into(),
    }
}

fn lifecycle_modes(driver: &Subject<'_>) -> Value {
    let modes = driver.items("spec.volumeLifecycleModes").iter();
    or(joined(modes.filter_map(Value::as_str)), "<none>")
}

//! Which objects a quota counts.

use serde_json::Value;

use super::{is_pod, usage};
use crate::{builtin::states::quality_of_service, resource::ResourceType};

/// Whether an object counts for a quota: the quota limits something of it, and it lies within all of its scopes.
pub(super) fn covers(quota: &Value, resource: &ResourceType, object: &Value) -> bool {
    let hard = quota["spec"]["hard"].as_object();
    if !hard.is_some_and(|hard| hard.keys().any(|name| usage::concerns(name, resource))) {
        return false;
    }
    let named = quota["spec"]["scopes"].as_array().into_iter().flatten();
    let mut within_named = named
        .filter_map(Value::as_str)
        .map(|scope| within(scope, "Exists", &[], resource, object));
    let selectors = quota
        .pointer("/spec/scopeSelector/matchExpressions")
        .and_then(Value::as_array);
    let mut within_selected = selectors.into_iter().flatten().map(|selector| {
        let text = |field: &str| selector[field].as_str().unwrap_or_default();
        let values = selector["values"].as_array().map(Vec::as_slice).unwrap_or_default();
        within(text("scopeName"), text("operator"), values, resource, object)
    });
    within_named.all(|within| within) && within_selected.all(|within| within)
}

fn within(scope: &str, operator: &str, values: &[Value], resource: &ResourceType, object: &Value) -> bool {
    let spec = &object["spec"];
    let chosen = |own: Option<&str>| {
        let listed = own.is_some_and(|own| values.iter().any(|value| value == own));
        match operator {
            "In" => listed,
            "NotIn" => !listed,
            "DoesNotExist" => own.is_none(),
            _ => own.is_some(),
        }
    };
    let text = |field: &str| spec[field].as_str().filter(|text| !text.is_empty());
    if scope == "VolumeAttributesClass" {
        return &*resource.gvr.resource == "persistentvolumeclaims" && chosen(text("volumeAttributesClassName"));
    }
    if !is_pod(resource) {
        return false;
    }
    let ends = spec["activeDeadlineSeconds"]
        .as_i64()
        .is_some_and(|seconds| seconds >= 0);
    let best_effort = || quality_of_service(spec) == "BestEffort";
    match scope {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => chosen(text("priorityClassName")),
        "CrossNamespacePodAffinity" => reaches_out(&spec["affinity"]),
        _ => false,
    }
}

/// Whether a pod wants to be near or far from pods of other namespaces.
fn reaches_out(affinity: &Value) -> bool {
    let terms = ["podAffinity", "podAntiAffinity"].into_iter().flat_map(|sort| {
        let hard = affinity[sort]["requiredDuringSchedulingIgnoredDuringExecution"].as_array();
        let soft = affinity[sort]["preferredDuringSchedulingIgnoredDuringExecution"].as_array();
        let soft = soft.into_iter().flatten().map(|weighted| &weighted["podAffinityTerm"]);
        hard.into_iter().flatten().chain(soft)
    });
    let mut terms = terms;
    terms.any(|term| {
        let names = term["namespaces"].as_array().is_some_and(|names| !names.is_empty());
        names || !term["namespaceSelector"].is_null()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin;

    fn resource(plural: &str) -> std::sync::Arc<ResourceType> {
        let mut all = builtin::resource_types().into_iter();
        all.find(|resource| &*resource.gvr.resource == plural).unwrap()
    }

    #[test]
    fn scopes_choose_pods_by_what_they_are() {
        let pods = resource("pods");
        let quota = |scopes: Value| json!({ "spec": { "hard": { "pods": "1" }, "scopes": scopes } });
        let plain = json!({ "spec": { "containers": [{}] } });
        let ending = json!({ "spec": { "activeDeadlineSeconds": 5, "containers": [{ "resources": { "requests": { "cpu": "1" } } }] } });
        for (scopes, covers_plain, covers_ending) in [
            (json!([]), true, true),
            (json!(["BestEffort"]), true, false),
            (json!(["NotBestEffort"]), false, true),
            (json!(["Terminating"]), false, true),
            (json!(["NotTerminating", "BestEffort"]), true, false),
        ] {
            assert_eq!(covers(&quota(scopes.clone()), &pods, &plain), covers_plain, "{scopes}");
            assert_eq!(
                covers(&quota(scopes.clone()), &pods, &ending),
                covers_ending,
                "{scopes}"
            );
        }
        assert!(!covers(&quota(json!([])), &resource("secrets"), &plain));
    }

    #[test]
    fn priority_classes_are_chosen_by_name() {
        let quota = |operator: &str, values: Value| {
            json!({ "spec": { "hard": { "pods": "1" }, "scopeSelector": { "matchExpressions": [
                { "scopeName": "PriorityClass", "operator": operator, "values": values },
            ] } } })
        };
        let pods = resource("pods");
        let high = json!({ "spec": { "priorityClassName": "high", "containers": [] } });
        let none = json!({ "spec": { "containers": [] } });
        assert!(covers(&quota("In", json!(["high"])), &pods, &high));
        assert!(!covers(&quota("In", json!(["high"])), &pods, &none));
        assert!(covers(&quota("NotIn", json!(["high"])), &pods, &none));
        assert!(covers(&quota("Exists", json!([])), &pods, &high));
        assert!(!covers(&quota("DoesNotExist", json!([])), &pods, &high));
    }
}

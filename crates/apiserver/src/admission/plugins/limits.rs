//! Limit ranges: what containers get that ask for nothing, and what is too little or too much.

use std::collections::BTreeMap;

use moorline_machinery::{quantity::Quantity, status::ApiError};
use serde_json::Value;

use super::{
    Attributes, Operation, Reach, containers_mut, items,
    resources::{self, Amounts, amounts},
    text,
};

/// Where a pod says what was filled in.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Fills in what the containers of a new pod leave out.
pub(super) fn fill_in(attributes: &Attributes<'_>, pod: &mut Value) {
    if !attributes.is_pod() || !attributes.creates() {
        return;
    }
    for range in attributes.stored("", "limitranges", Reach::Namespace) {
        fill_in_from(&range, pod);
    }
}

fn fill_in_from(range: &Value, pod: &mut Value) {
    let mut requests = BTreeMap::new();
    let mut limits = BTreeMap::new();
    for limit in items(&range["spec"], "limits").filter(|limit| text(limit, "type") == "Container") {
        let all = |field: &str| limit[field].as_object().cloned().unwrap_or_default();
        requests.extend(all("defaultRequest"));
        limits.extend(all("default"));
    }
    let mut said = Vec::new();
    for (word, list) in [("container", "containers"), ("init container", "initContainers")] {
        for container in containers_mut(pod, list) {
            for (what, defaults) in [("request", &requests), ("limit", &limits)] {
                let own = &mut container["resources"][format!("{what}s")];
                let missing: Vec<&String> = defaults.keys().filter(|name| own[name.as_str()].is_null()).collect();
                for name in &missing {
                    own[name.as_str()] = defaults[*name].clone();
                }
                if own.is_null() {
                    *own = serde_json::json!({});
                }
                if !missing.is_empty() {
                    let missing: Vec<&str> = missing.into_iter().map(String::as_str).collect();
                    said.push(format!(
                        "{} {what} for {word} {}",
                        missing.join(", "),
                        text(container, "name")
                    ));
                }
            }
        }
    }
    if !said.is_empty() {
        pod["metadata"]["annotations"][ANNOTATION] = format!("LimitRanger plugin set: {}", said.join("; ")).into();
    }
}

/// Refuses what is outside a range.
pub(super) fn check(attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
    let resized = attributes.is("", "pods", "resize") && attributes.operation == Operation::Update;
    let pod = resized || (attributes.is_pod() && attributes.creates());
    let claim = attributes.is("", "persistentvolumeclaims", "")
        && matches!(attributes.operation, Operation::Create | Operation::Update);
    let leaving = attributes
        .old
        .is_some_and(|old| moorline_machinery::meta::of(old).is_deleting());
    if !(pod || claim) || leaving {
        return Ok(());
    }
    for range in attributes.stored("", "limitranges", Reach::Namespace) {
        let mut faults = Vec::new();
        for limit in items(&range["spec"], "limits") {
            let sort = text(limit, "type");
            match sort {
                "Container" if pod => {
                    for container in ["containers", "initContainers"]
                        .iter()
                        .flat_map(|list| items(&object["spec"], list))
                    {
                        let of = |which: &str| amounts(&container["resources"][which]);
                        hold_against(limit, sort, &of("requests"), &of("limits"), &mut faults);
                    }
                }
                "Pod" if pod => {
                    let of = |which: &str| resources::of_pod(&object["spec"], which);
                    hold_against(limit, sort, &of("requests"), &of("limits"), &mut faults);
                }
                "PersistentVolumeClaim" if claim => {
                    let requests = amounts(&object["spec"]["resources"]["requests"]);
                    for (name, least) in amounts(&limit["min"]) {
                        faults.extend(too_little(sort, &name, &least, &requests, &Amounts::new()));
                    }
                    for (name, most) in amounts(&limit["max"]) {
                        faults.extend(too_much_asked(sort, &name, &most, &requests));
                    }
                }
                _ => {}
            }
        }
        if !faults.is_empty() {
            return Err(attributes.refuse(aggregate(&faults)));
        }
    }
    Ok(())
}

fn hold_against(limit: &Value, sort: &str, requests: &Amounts, limits: &Amounts, faults: &mut Vec<String>) {
    for (name, least) in amounts(&limit["min"]) {
        faults.extend(too_little(sort, &name, &least, requests, limits));
    }
    for (name, most) in amounts(&limit["max"]) {
        faults.extend(too_much(sort, &name, &most, requests, limits));
    }
    for (name, ratio) in amounts(&limit["maxLimitRequestRatio"]) {
        faults.extend(too_wide(sort, &name, &ratio, requests, limits));
    }
}

fn too_little(sort: &str, name: &str, least: &Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let said = |what: String| Some(format!("minimum {name} usage per {sort} is {least}{what}"));
    match (requests.get(name), limits.get(name)) {
        (None, _) => said(".  No request is specified".to_owned()),
        (Some(request), _) if request < least => said(format!(", but request is {request}")),
        (_, Some(limit)) if limit < least => said(format!(", but limit is {limit}")),
        _ => None,
    }
}

fn too_much(sort: &str, name: &str, most: &Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let said = |what: String| Some(format!("maximum {name} usage per {sort} is {most}{what}"));
    match (requests.get(name), limits.get(name)) {
        (_, None) => said(".  No limit is specified".to_owned()),
        (_, Some(limit)) if limit > most => said(format!(", but limit is {limit}")),
        (Some(request), _) if request > most => said(format!(", but request is {request}")),
        _ => None,
    }
}

fn too_much_asked(sort: &str, name: &str, most: &Quantity, requests: &Amounts) -> Option<String> {
    let said = |what: String| Some(format!("maximum {name} usage per {sort} is {most}{what}"));
    match requests.get(name) {
        None => said(".  No request is specified".to_owned()),
        Some(request) if request > most => said(format!(", but request is {request}")),
        Some(_) => None,
    }
}

fn too_wide(sort: &str, name: &str, most: &Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let said = |what: String| {
        Some(format!(
            "{name} max limit to request ratio per {sort} is {most}, but {what}"
        ))
    };
    let request = requests.get(name).filter(|amount| !amount.is_zero());
    let limit = limits.get(name).filter(|amount| !amount.is_zero());
    match (request, limit) {
        (None, _) => said("no request is specified or request is 0".to_owned()),
        (_, None) => said("no limit is specified or limit is 0".to_owned()),
        (Some(request), Some(limit)) => {
            let ratio = limit.as_f64() / request.as_f64();
            (ratio > most.as_f64()).then(|| said(format!("provided ratio is {ratio:.6}")))?
        }
    }
}

/// Several faults as one, each said once.
fn aggregate(faults: &[String]) -> String {
    let mut once: Vec<&str> = Vec::new();
    for fault in faults {
        if !once.contains(&fault.as_str()) {
            once.push(fault);
        }
    }
    match once.as_slice() {
        [only] => (*only).to_owned(),
        several => format!("[{}]", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_get_what_they_leave_out_and_keep_what_they_say() {
        let range = json!({ "spec": { "limits": [{
            "type": "Container", "default": { "cpu": "2", "memory": "1Gi" }, "defaultRequest": { "cpu": "1" },
        }] } });
        let mut pod = json!({ "metadata": {}, "spec": { "containers": [
            { "name": "a", "resources": { "limits": { "cpu": "3" } } },
        ] } });
        fill_in_from(&range, &mut pod);
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({ "limits": { "cpu": "3", "memory": "1Gi" }, "requests": { "cpu": "1" } })
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; memory limit for container a"
        );
    }

    #[test]
    fn what_is_outside_a_range_is_told_with_what_was_asked_for() {
        let limit = json!({ "min": { "cpu": "1" }, "max": { "cpu": "2" }, "maxLimitRequestRatio": { "cpu": "2" } });
        let told = |requests: Value, limits: Value| {
            let mut faults = Vec::new();
            hold_against(&limit, "Container", &amounts(&requests), &amounts(&limits), &mut faults);
            faults
        };
        assert_eq!(told(json!({ "cpu": "1" }), json!({ "cpu": "2" })), Vec::<String>::new());
        assert_eq!(
            told(json!({ "cpu": "500m" }), json!({ "cpu": "3" })),
            [
                "minimum cpu usage per Container is 1, but request is 500m",
                "maximum cpu usage per Container is 2, but limit is 3",
                "cpu max limit to request ratio per Container is 2, but provided ratio is 6.000000",
            ]
        );
        assert_eq!(told(json!({}), json!({})).len(), 3);
    }
}

//! Quotas and ranges of what may be asked for.

use std::collections::HashSet;

use moorline_machinery::{field::FieldError, names, quantity::Quantity};
use serde_json::Value;

use super::{
    at::{At, Errors, dig, quantity},
    pod,
};

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// A resource quota.
pub(super) fn resource_quota(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let hard = spec.at("hard");
    for (name, value) in hard.entries() {
        let path = hard.path.key(name);
        pod::plain_resource_name(name, &path, errors);
        if !name.contains('/') && !is_quota_resource(name) {
            errors.push(FieldError::invalid(
                &path,
                name,
                "must be a standard resource for quota",
            ));
        }
        pod::amount(name, value, &path, errors);
    }
    scopes(&spec, errors);
    scope_selector(&spec, errors);
}

fn is_quota_resource(name: &str) -> bool {
    const NAMES: [&str; 18] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
    ];
    NAMES.contains(&name)
        || name == "services.loadbalancers"
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

fn scopes(spec: &At<'_>, errors: &mut Errors) {
    let scopes = spec.at("scopes");
    if scopes.items().is_empty() {
        return;
    }
    let set: HashSet<&str> = scopes.items().iter().filter_map(Value::as_str).collect();
    let hard = spec.at("hard");
    for scope in scopes.items().iter().filter_map(Value::as_str) {
        if !SCOPES.contains(&scope) {
            scopes.invalid(errors, "unsupported scope");
        }
        for (name, _) in hard.entries() {
            let standard = is_quota_resource(name);
            let applies = match scope {
                "BestEffort" => name == "pods",
                _ => matches!(
                    name,
                    "pods"
                        | "cpu"
                        | "memory"
                        | "ephemeral-storage"
                        | "requests.cpu"
                        | "requests.memory"
                        | "requests.ephemeral-storage"
                        | "limits.cpu"
                        | "limits.memory"
                        | "limits.ephemeral-storage"
                ),
            };
            if standard && SCOPES.contains(&scope) && !applies {
                scopes.invalid(errors, "unsupported scope applied to resource");
            }
        }
    }
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if set.contains(one) && set.contains(other) {
            scopes.invalid(errors, "conflicting scopes");
        }
    }
}

fn scope_selector(spec: &At<'_>, errors: &mut Errors) {
    let selector = spec.at("scopeSelector");
    let list = selector.at("matchExpressions");
    for requirement in list.items() {
        let requirement = list.with(requirement);
        let (scope, operator, values) = (
            requirement.at("scopeName"),
            requirement.at("operator"),
            requirement.at("values"),
        );
        if !SCOPES.contains(&scope.text()) {
            scope.invalid(errors, "unsupported scope");
        }
        if matches!(
            scope.text(),
            "BestEffort" | "NotBestEffort" | "Terminating" | "NotTerminating"
        ) && operator.text() != "Exists"
        {
            operator.invalid(
                errors,
                "must be 'Exist' only operator when scope is any of ResourceQuotaScopeTerminating, \
                 ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                 ResourceQuotaScopeCrossNamespacePodAffinity",
            );
        }
        match operator.text() {
            "In" | "NotIn" => {
                if values.items().is_empty() {
                    values.missing(
                        errors,
                        "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                    );
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.items().is_empty() {
                    values.invalid(
                        errors,
                        "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
                    );
                }
            }
            _ => operator.invalid(errors, "not a valid selector operator"),
        }
    }
}

/// A change of a quota: it stays about the same objects.
pub(super) fn resource_quota_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let scopes = new.at("spec");
    let scopes = scopes.at("scopes");
    let set = |scopes: &Value| -> HashSet<String> {
        scopes
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    if set(scopes.value) != set(dig(old, &["spec", "scopes"])) {
        scopes.invalid(errors, super::at::IMMUTABLE);
    }
}

/// A limit range.
pub(super) fn limit_range(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let mut seen = HashSet::new();
    spec.at("limits").each(|limit| {
        let kind = limit.at("type");
        let complaints = names::qualified_name(kind.text());
        let standard = matches!(kind.text(), "Pod" | "Container" | "PersistentVolumeClaim");
        if complaints.is_empty() && !kind.text().contains('/') && !standard {
            kind.invalid(errors, "must be a standard limit type or fully qualified");
        }
        for complaint in complaints {
            kind.invalid_as(errors, kind.text(), complaint);
        }
        if !seen.insert(kind.text().to_owned()) {
            kind.duplicate(errors, kind.text());
        }
        limits(limit, errors);
    });
}

fn limits(limit: &At<'_>, errors: &mut Errors) {
    let kind = limit.at("type").text();
    let lists = if kind == "Pod" {
        &["max", "min", "maxLimitRequestRatio"][..]
    } else {
        &["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"][..]
    };
    let mut all: Vec<&str> = Vec::new();
    for name in lists {
        let amounts = limit.at(name);
        for (resource, _) in amounts.entries().filter(|_| *name != "maxLimitRequestRatio") {
            resource_name(kind, resource, &amounts.path.key(resource), errors);
        }
    }
    if kind == "Pod" {
        for name in ["default", "defaultRequest"] {
            let amounts = limit.at(name);
            if !amounts.is_empty() {
                amounts.forbidden(errors, "may not be specified when `type` is 'Pod'");
            }
        }
    }
    if kind == "PersistentVolumeClaim" {
        let storage = |name: &str| limit.value[name].get("storage").is_some();
        if !storage("min") && !storage("max") {
            limit.at("limits").missing(
                errors,
                "either minimum or maximum storage value is required, but neither was provided",
            );
        }
    }
    for name in lists {
        for (resource, _) in limit.value[*name].as_object().into_iter().flatten() {
            if !all.contains(&resource.as_str()) {
                all.push(resource);
            }
        }
    }
    for resource in all {
        one_resource(limit, resource, errors);
    }
}

fn resource_name(kind: &str, resource: &str, path: &moorline_machinery::field::Path<'_>, errors: &mut Errors) {
    if matches!(kind, "Pod" | "Container") {
        pod::container_resource_name(resource, path, errors);
    } else {
        pod::plain_resource_name(resource, path, errors);
    }
}

fn one_resource(limit: &At<'_>, resource: &str, errors: &mut Errors) {
    let amount = |list: &str| -> Option<Quantity> { quantity(limit.value.get(list)?.get(resource)?) };
    let (max, min, default, request) = (
        amount("max"),
        amount("min"),
        amount("default"),
        amount("defaultRequest"),
    );
    let mut report = |list: &str, shown: &Quantity, why: String| {
        let list = limit.at(list);
        errors.push(FieldError::invalid(&list.path.key(resource), shown.to_string(), why));
    };
    if let (Some(min), Some(max)) = (&min, &max)
        && min > max
    {
        report("min", min, format!("min value {min} is greater than max value {max}"));
    }
    if let (Some(min), Some(request)) = (&min, &request)
        && min > request
    {
        report(
            "defaultRequest",
            request,
            format!("min value {min} is greater than default request value {request}"),
        );
    }
    if let (Some(max), Some(request)) = (&max, &request)
        && request > max
    {
        report(
            "defaultRequest",
            request,
            format!("default request value {request} is greater than max value {max}"),
        );
    }
    if let (Some(request), Some(default)) = (&request, &default)
        && request > default
    {
        let why = format!("default request value {request} is greater than default limit value {default}");
        report("defaultRequest", request, why);
    }
    if let (Some(min), Some(default)) = (&min, &default)
        && min > default
    {
        report(
            "default",
            min,
            format!("min value {min} is greater than default value {default}"),
        );
    }
    if let (Some(max), Some(default)) = (&max, &default)
        && default > max
    {
        report(
            "default",
            max,
            format!("default value {default} is greater than max value {max}"),
        );
    }
    if let Some(ratio) = amount("maxLimitRequestRatio") {
        if ratio.as_f64() < 1.0 {
            report("maxLimitRequestRatio", &ratio, format!("ratio {ratio} is less than 1"));
        }
        if let (Some(min), Some(max)) = (&min, &max) {
            let most = max.as_f64() / min.as_f64();
            if ratio.as_f64() > most {
                report(
                    "maxLimitRequestRatio",
                    &ratio,
                    format!("ratio {ratio} is greater than max/min = {most:.6}"),
                );
            }
        }
    }
}

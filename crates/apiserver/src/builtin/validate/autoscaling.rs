//! Autoscalers. Both versions are checked by the rules of the newer one.

use moorline_machinery::gvk::split_api_version;

use super::at::{At, Errors, quantity};

const SOURCES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
const WINDOW_MAX: i64 = 3600;
const PERIOD_MAX: i64 = 1800;

/// An autoscaler.
pub(super) fn autoscaler(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let (least, most) = (spec.at("minReplicas"), spec.at("maxReplicas"));
    if least.optional_number().is_some_and(|least| least < 1) {
        least.invalid(errors, "must be greater than or equal to 1");
    }
    if most.number() < 1 {
        most.missing(errors, "must be set and greater than 0");
    }
    if least.optional_number().is_some_and(|least| most.number() < least) {
        most.invalid_as(errors, most.number(), "must be greater than or equal to `minReplicas`");
    }
    let target = spec.at("scaleTargetRef");
    reference(&target, errors);
    let version = target.at("apiVersion");
    match split_api_version(version.text()) {
        Some(("", given)) => version.invalid_as(errors, given, "apiVersion must specify API group"),
        Some(_) => {}
        None => version.invalid(errors, format!("unexpected GroupVersion string: {}", version.text())),
    }
    metrics(&spec, errors);
    for name in ["scaleUp", "scaleDown"] {
        let rules = spec.at("behavior");
        let rules = rules.at(name);
        if rules.is_set() {
            scaling_rules(&rules, errors);
        }
    }
}

fn reference(target: &At<'_>, errors: &mut Errors) {
    for name in ["kind", "name"] {
        let part = target.at(name);
        if part.text().is_empty() {
            part.missing(errors, "");
        } else {
            part.follow(errors, |text| {
                moorline_machinery::names::path_segment(text, moorline_machinery::names::NamePart::Whole)
            });
        }
    }
}

fn metrics(spec: &At<'_>, errors: &mut Errors) {
    let list = spec.at("metrics");
    if spec
        .at("targetCPUUtilizationPercentage")
        .optional_number()
        .is_some_and(|share| share < 1)
    {
        let share = spec.at("targetCPUUtilizationPercentage").number();
        let first = list.path.index(0);
        let resource = first.child("resource");
        let target = resource.child("target");
        let at = At {
            value: spec.value,
            path: target.child("averageUtilization"),
        };
        at.invalid_as(errors, share, "must be greater than 0");
    }
    let mut outside = false;
    list.each(|metric| {
        outside |= matches!(metric.at("type").text(), "Object" | "External");
        self::metric(metric, errors);
    });
    if spec.at("minReplicas").optional_number() == Some(0) && !outside {
        list.forbidden(
            errors,
            "must specify at least one Object or External metric to support scaling to zero replicas",
        );
    }
}

fn metric(metric: &At<'_>, errors: &mut Errors) {
    let kind = metric.at("type");
    if kind.text().is_empty() {
        kind.missing(errors, "must specify a metric source type");
    }
    let field = match kind.text() {
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "External" => "external",
        _ => {
            // Reported once as a type and once as a source.
            kind.one_of(errors, &SOURCES);
            kind.one_of(errors, &SOURCES);
            return;
        }
    };
    let source = metric.at(field);
    if !source.is_set() {
        source.missing(errors, "must populate information for the given metric source");
        return;
    }
    match field {
        "object" => {
            reference(&source.at("describedObject"), errors);
            metric_name(&source.at("metric"), errors);
            target(&source.at("target"), errors);
            let at = source.at("target");
            if !at.at("value").is_set() && !at.at("averageValue").is_set() {
                at.at("averageValue")
                    .missing(errors, "must set either a target value or averageValue");
            }
        }
        "pods" => {
            metric_name(&source.at("metric"), errors);
            target(&source.at("target"), errors);
            let at = source.at("target");
            if quantity(at.at("averageValue").value).is_none_or(|value| value.signum() <= 0) {
                at.at("averageValue")
                    .missing(errors, "must specify a positive target averageValue");
            }
        }
        "external" => {
            metric_name(&source.at("metric"), errors);
            target(&source.at("target"), errors);
            let at = source.at("target");
            if !at.at("value").is_set() && !at.at("averageValue").is_set() {
                at.at("averageValue")
                    .missing(errors, "must set either a target value for metric or a per-pod target");
            }
            if at.at("value").is_set() && at.at("averageValue").is_set() {
                at.at("value").forbidden(
                    errors,
                    "may not set both a target value for metric and a per-pod target",
                );
            }
        }
        _ => resource_metric(&source, field, errors),
    }
}

fn resource_metric(source: &At<'_>, field: &str, errors: &mut Errors) {
    if source.at("name").text().is_empty() {
        source.at("name").missing(errors, "must specify a resource name");
    }
    if field == "containerResource" && source.at("container").text().is_empty() {
        source.at("container").missing(errors, "must specify a container");
    }
    let at = source.at("target");
    target(&at, errors);
    if !at.at("averageUtilization").is_set() && !at.at("averageValue").is_set() {
        at.at("averageUtilization")
            .missing(errors, "must set either a target raw value or a target utilization");
    }
    if at.at("averageUtilization").is_set() && at.at("averageValue").is_set() {
        at.at("averageValue")
            .forbidden(errors, "may not set both a target raw value and a target utilization");
    }
}

fn metric_name(metric: &At<'_>, errors: &mut Errors) {
    let name = metric.at("name");
    if name.text().is_empty() {
        name.missing(errors, "must specify a metric name");
        return;
    }
    name.follow(errors, |text| {
        moorline_machinery::names::path_segment(text, moorline_machinery::names::NamePart::Whole)
    });
}

fn target(target: &At<'_>, errors: &mut Errors) {
    let kind = target.at("type");
    if kind.text().is_empty() {
        kind.missing(errors, "must specify a metric target type");
    }
    if !matches!(kind.text(), "Utilization" | "Value" | "AverageValue") {
        kind.invalid_as(
            errors,
            kind.text(),
            "must be either Utilization, Value, or AverageValue",
        );
    }
    for name in ["value", "averageValue"] {
        let at = target.at(name);
        if quantity(at.value).is_some_and(|value| value.signum() <= 0) {
            at.invalid(errors, "must be positive");
        }
    }
    let share = target.at("averageUtilization");
    if share.optional_number().is_some_and(|share| share < 1) {
        share.invalid(errors, "must be greater than 0");
    }
}

fn scaling_rules(rules: &At<'_>, errors: &mut Errors) {
    let window = rules.at("stabilizationWindowSeconds");
    if let Some(seconds) = window.optional_number() {
        if seconds < 0 {
            window.invalid(errors, "must be greater than or equal to zero");
        }
        if seconds > WINDOW_MAX {
            window.invalid(errors, format!("must be less than or equal to {WINDOW_MAX}"));
        }
    }
    rules
        .at("selectPolicy")
        .one_of_if_set(errors, &["Disabled", "Max", "Min"]);
    let policies = rules.at("policies");
    if policies.items().is_empty() {
        policies.missing(errors, "must specify at least one Policy");
    }
    policies.each(|policy| {
        policy.at("type").one_of(errors, &["Percent", "Pods"]);
        for name in ["value", "periodSeconds"] {
            let at = policy.at(name);
            if at.number() <= 0 {
                at.invalid_as(errors, at.number(), "must be greater than zero");
            }
        }
        if policy.at("periodSeconds").number() > PERIOD_MAX {
            policy
                .at("periodSeconds")
                .invalid(errors, format!("must be less than or equal to {PERIOD_MAX}"));
        }
    });
}

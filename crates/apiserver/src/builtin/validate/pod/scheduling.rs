//! Where a pod may run: affinity, tolerations, spreading.

use std::collections::HashSet;

use moorline_machinery::{field::FieldError, names};
use serde_json::Value;

use super::super::at::{At, Errors};

pub(super) fn affinity(affinity: &At<'_>, errors: &mut Errors) {
    let node = affinity.at("nodeAffinity");
    let required = node.at("requiredDuringSchedulingIgnoredDuringExecution");
    if required.is_set() {
        node_selector(&required, errors);
    }
    node.at("preferredDuringSchedulingIgnoredDuringExecution").each(|term| {
        weight(&term.at("weight"), errors);
        node_selector_term(&term.at("preference"), errors);
    });
    for name in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.at(name);
        pods.at("requiredDuringSchedulingIgnoredDuringExecution")
            .each(|term| pod_affinity_term(term, errors));
        pods.at("preferredDuringSchedulingIgnoredDuringExecution").each(|term| {
            weight(&term.at("weight"), errors);
            pod_affinity_term(&term.at("podAffinityTerm"), errors);
        });
    }
}

fn weight(weight: &At<'_>, errors: &mut Errors) {
    if !(1..=100).contains(&weight.number()) {
        weight.invalid(errors, "must be in the range 1-100");
    }
}

/// Terms of which one must match.
pub(in super::super) fn node_selector(selector: &At<'_>, errors: &mut Errors) {
    let terms = selector.at("nodeSelectorTerms");
    if terms.items().is_empty() {
        terms.missing(errors, "must have at least one node selector term");
        return;
    }
    terms.each(|term| node_selector_term(term, errors));
}

fn node_selector_term(term: &At<'_>, errors: &mut Errors) {
    term.at("matchExpressions").each(|requirement| {
        let values = requirement.at("values");
        match requirement.at("operator").text() {
            "In" | "NotIn" => {
                if values.items().is_empty() {
                    values.missing(errors, "must be specified when `operator` is 'In' or 'NotIn'");
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.items().is_empty() {
                    values.forbidden(
                        errors,
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                    );
                }
            }
            "Gt" | "Lt" => {
                if values.len() != 1 {
                    values.missing(errors, "must be specified single value when `operator` is 'Lt' or 'Gt'");
                }
            }
            _ => requirement
                .at("operator")
                .invalid(errors, "not a valid selector operator"),
        }
        requirement.at("key").follow(errors, names::qualified_name);
        values.each(|value| {
            for complaint in names::label_value(value.text()) {
                value.invalid(errors, complaint);
            }
        });
    });
    term.at("matchFields").each(|requirement| {
        let values = requirement.at("values");
        match requirement.at("operator").text() {
            "In" | "NotIn" => {
                if values.len() != 1 {
                    values.missing(
                        errors,
                        "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                    );
                }
            }
            _ => requirement
                .at("operator")
                .invalid(errors, "not a valid selector operator"),
        }
        let key = requirement.at("key");
        if key.text() == "metadata.name" {
            values.each(|value| value.follow(errors, names::dns_subdomain));
        } else {
            key.invalid(errors, "not a valid field selector key");
        }
    });
}

fn pod_affinity_term(term: &At<'_>, errors: &mut Errors) {
    term.at("labelSelector").label_selector(errors);
    term.at("namespaceSelector").label_selector(errors);
    term.at("namespaces").each(|namespace| {
        for complaint in names::dns_label(namespace.text()) {
            let list = term.at("namespace");
            list.invalid_as(errors, namespace.text(), complaint);
        }
    });
    label_keys(term, errors);
    let key = term.at("topologyKey");
    key.require_for(errors, "can not be empty");
    key.follow(errors, names::qualified_name);
}

fn label_keys(term: &At<'_>, errors: &mut Errors) {
    for name in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = term.at(name);
        if !keys.items().is_empty() && !term.at("labelSelector").is_set() {
            keys.forbidden(errors, "must not be specified when labelSelector is not set");
        }
        keys.each(|key| key.follow(errors, names::qualified_name));
    }
    let own: HashSet<&str> = term.value["matchLabelKeys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|k| k.as_str())
        .collect();
    term.at("mismatchLabelKeys").each(|key| {
        if own.contains(key.text()) {
            key.invalid(errors, "exists in both matchLabelKeys and mismatchLabelKeys");
        }
    });
}

/// What a pod puts up with.
pub(in super::super) fn tolerations(tolerations: &At<'_>, errors: &mut Errors) {
    tolerations.each(|toleration| {
        let (key, operator, effect) = (toleration.at("key"), toleration.at("operator"), toleration.at("effect"));
        key.follow_if_set(errors, names::qualified_name);
        if key.text().is_empty() && operator.text() != "Exists" {
            operator.invalid_as(
                errors,
                operator.text(),
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if toleration.at("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
            effect.invalid_as(
                errors,
                effect.text(),
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        let value = toleration.at("value");
        match operator.text() {
            "Equal" | "" => {
                for complaint in names::label_value(value.text()) {
                    operator.invalid_as(errors, value.text(), complaint);
                }
            }
            "Exists" => {
                if !value.text().is_empty() {
                    operator.invalid_as(errors, value.text(), "value must be empty when `operator` is 'Exists'");
                }
            }
            _ => operator.one_of(errors, &["Equal", "Exists"]),
        }
        if !effect.text().is_empty() {
            effect.one_of(errors, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    });
}

pub(super) fn spread_constraints(constraints: &At<'_>, errors: &mut Errors) {
    let pair = |constraint: &Value| {
        let text = |name: &str| constraint[name].as_str().unwrap_or_default().to_owned();
        format!("{{{}, {}}}", text("topologyKey"), text("whenUnsatisfiable"))
    };
    let mut position = 0;
    constraints.each(|constraint| {
        position += 1;
        let skew = constraint.at("maxSkew");
        if skew.number() <= 0 {
            skew.invalid_as(errors, skew.number(), "must be greater than zero");
        }
        let (key, unsatisfiable) = (constraint.at("topologyKey"), constraint.at("whenUnsatisfiable"));
        if key.require_for(errors, "can not be empty") {
            key.follow(errors, names::qualified_name);
        }
        unsatisfiable.one_of(errors, &["DoNotSchedule", "ScheduleAnyway"]);
        let own = pair(constraint.value);
        if constraints.items()[position..].iter().any(|later| pair(later) == own) {
            constraint.at("{topologyKey, whenUnsatisfiable}").duplicate(errors, own);
        }
        min_domains(constraint, errors);
        for name in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.at(name).one_of_if_set(errors, &["Honor", "Ignore"]);
        }
        constraint.at("labelSelector").label_selector(errors);
        match_label_keys(constraint, errors);
    });
}

fn min_domains(constraint: &At<'_>, errors: &mut Errors) {
    let domains = constraint.at("minDomains");
    let Some(number) = domains.optional_number() else {
        return;
    };
    if number <= 0 {
        domains.invalid(errors, "must be greater than zero");
    }
    let unsatisfiable = constraint.at("whenUnsatisfiable").text();
    if unsatisfiable != "DoNotSchedule" {
        domains.invalid(
            errors,
            format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {unsatisfiable}"),
        );
    }
}

fn match_label_keys(constraint: &At<'_>, errors: &mut Errors) {
    let keys = constraint.at("matchLabelKeys");
    let selector = constraint.at("labelSelector");
    if !keys.items().is_empty() && !selector.is_set() {
        keys.forbidden(errors, "must not be specified when labelSelector is not set");
        return;
    }
    keys.each(|key| {
        key.follow(errors, names::qualified_name);
        let named = selector.at("matchLabels").value.get(key.text()).is_some()
            || selector
                .at("matchExpressions")
                .items()
                .iter()
                .any(|e| e["key"].as_str() == Some(key.text()));
        if named {
            errors.push(FieldError::invalid(
                &key.path,
                key.text(),
                "exists in both matchLabelKeys and labelSelector",
            ));
        }
    });
}

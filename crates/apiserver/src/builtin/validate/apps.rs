//! The kinds that keep pods running.

use std::collections::HashSet;

use moorline_machinery::{
    field::{ErrorKind, FieldError},
    names,
    selector::LabelSelector,
};
use serde_json::{Map, Value};

use super::{
    at::{At, Errors, dig, internal_value, is_empty, put, same, shown},
    pod, text, volume,
};

/// A deployment.
pub(super) fn deployment(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    spec.at("replicas").not_negative(errors);
    required_selector(&spec, "deployment", "invalid label selector", errors);
    template_for(&spec, "ReplicaSet", errors);
    deployment_strategy(&spec.at("strategy"), errors);
    spec.at("minReadySeconds").not_negative(errors);
    spec.at("revisionHistoryLimit").not_negative(errors);
    let deadline = spec.at("progressDeadlineSeconds");
    if let Some(seconds) = deadline.optional_number() {
        deadline.not_negative(errors);
        if seconds <= spec.at("minReadySeconds").number() {
            deadline.invalid(errors, "must be greater than minReadySeconds");
        }
    }
}

fn deployment_strategy(strategy: &At<'_>, errors: &mut Errors) {
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").text() {
        "Recreate" => {
            if rolling.is_set() {
                rolling.forbidden(errors, "may not be specified when strategy `type` is 'Recreate'");
            }
        }
        "RollingUpdate" => {
            if !rolling.is_set() {
                rolling.missing(errors, "this should be defaulted and never be nil");
                return;
            }
            let (surge, unavailable) = (rolling.at("maxSurge"), rolling.at("maxUnavailable"));
            count_or_share(&unavailable, errors);
            count_or_share(&surge, errors);
            if is_zero(unavailable.value) && is_zero(surge.value) {
                unavailable.invalid(errors, "may not be 0 when `maxSurge` is 0");
            }
            at_most_all(&unavailable, errors);
        }
        _ => {
            let text = internal_strategy(strategy);
            let why = "supported values: \"Recreate\", \"RollingUpdate\"";
            errors.push(internal_value(ErrorKind::NotSupported, &strategy.path, &text, why));
        }
    }
}

fn internal_strategy(strategy: &At<'_>) -> String {
    format!(
        "{{\"Type\":\"{}\",\"RollingUpdate\":{}}}",
        strategy.at("type").text(),
        shown(strategy.at("rollingUpdate").value)
    )
}

/// A number, or a share in percent.
pub(super) fn count_or_share(at: &At<'_>, errors: &mut Errors) {
    match at.value {
        Value::String(_) => at.follow(errors, text::percentage),
        _ => at.not_negative(errors),
    }
}

/// A share must not exceed the whole.
pub(super) fn at_most_all(at: &At<'_>, errors: &mut Errors) {
    if share(at.value).is_some_and(|share| share > 100) {
        at.invalid(errors, "must not be greater than 100%");
    }
}

fn share(value: &Value) -> Option<u64> {
    value
        .as_str()
        .filter(|text| text::is_percentage(text))?
        .trim_end_matches('%')
        .parse()
        .ok()
}

/// Text that is no share counts as nothing, as in Kubernetes.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(_) => share(value).unwrap_or(0) == 0,
        _ => value.as_i64().unwrap_or(0) == 0,
    }
}

fn required_selector(spec: &At<'_>, kind: &str, wrong: &str, errors: &mut Errors) {
    let selector = spec.at("selector");
    if selector.is_set() {
        selector.label_selector(errors);
        if is_match_all(selector.value) {
            selector.invalid(errors, format!("empty selector is invalid for {kind}"));
        }
    } else {
        selector.missing(errors, "");
    }
    match LabelSelector::from_json(Some(selector.value)) {
        Err(_) => selector.invalid(errors, wrong),
        Ok(selects) => matching_template(spec, &selects, selector.value, errors),
    }
}

fn is_match_all(selector: &Value) -> bool {
    is_empty(dig(selector, &["matchLabels"])) && is_empty(dig(selector, &["matchExpressions"]))
}

fn matching_template(spec: &At<'_>, selector: &LabelSelector, value: &Value, errors: &mut Errors) {
    if !value.is_null() && is_match_all(value) {
        return;
    }
    let template = spec.at("template");
    let metadata = template.at("metadata");
    let labels = metadata.at("labels");
    let none = Map::new();
    if !selector.matches(labels.value.as_object().unwrap_or(&none)) {
        labels.invalid(errors, "`selector` does not match template `labels`");
    }
}

/// The pods of these kinds run for ever.
fn template_for(spec: &At<'_>, kind: &str, errors: &mut Errors) {
    let template = spec.at("template");
    pod::template(&template, errors);
    runs_for_ever(&template, kind, errors);
}

fn runs_for_ever(template: &At<'_>, kind: &str, errors: &mut Errors) {
    let pod = template.at("spec");
    let policy = pod.at("restartPolicy");
    if matches!(policy.text(), "Never" | "OnFailure") {
        policy.one_of(errors, &["Always"]);
    }
    if pod.at("activeDeadlineSeconds").is_set() {
        pod.at("activeDeadlineSeconds")
            .forbidden(errors, format!("activeDeadlineSeconds in {kind} is not Supported"));
    }
}

/// A replica set.
pub(super) fn replica_set(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    spec.at("replicas").not_negative(errors);
    spec.at("minReadySeconds").not_negative(errors);
    required_selector(&spec, "deployment", "invalid label selector", errors);
    template_for(&spec, "ReplicaSet", errors);
}

/// A replication controller, whose selector is plain labels.
pub(super) fn replication_controller(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    spec.at("minReadySeconds").not_negative(errors);
    let selector = spec.at("selector");
    if selector.is_empty() {
        selector.missing(errors, "");
    }
    spec.at("replicas").not_negative(errors);
    let template = spec.at("template");
    if !template.is_set() {
        template.missing(errors, "");
        return;
    }
    let metadata = template.at("metadata");
    let labels = metadata.at("labels");
    if selector
        .entries()
        .any(|(key, value)| labels.value.get(key) != Some(value))
    {
        labels.invalid(errors, "`selector` does not match template `labels`");
    }
    pod::template(&template, errors);
    runs_for_ever(&template, "ReplicationController", errors);
}

/// A change of one of these kinds: it stays responsible for the same pods.
pub(super) fn selector_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    new.at("spec")
        .at("selector")
        .unchanged(errors, dig(old, &["spec", "selector"]));
}

/// A daemon set.
pub(super) fn daemon_set(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let selector = spec.at("selector");
    selector.label_selector(errors);
    if let Ok(selects) = LabelSelector::from_json(Some(selector.value))
        && !(selector.is_set() && is_match_all(selector.value))
    {
        matching_template(&spec, &selects, selector.value, errors);
    }
    if selector.is_set() && is_match_all(selector.value) {
        selector.invalid(errors, "empty selector is invalid for daemonset");
    }
    template_for(&spec, "DaemonSet", errors);
    spec.at("minReadySeconds").not_negative(errors);
    daemon_strategy(&spec.at("updateStrategy"), errors);
    spec.at("revisionHistoryLimit").not_negative(errors);
}

fn daemon_strategy(strategy: &At<'_>, errors: &mut Errors) {
    match strategy.at("type").text() {
        "OnDelete" => {}
        "RollingUpdate" => {
            let rolling = strategy.at("rollingUpdate");
            let (surge, unavailable) = (rolling.at("maxSurge"), rolling.at("maxUnavailable"));
            for at in [&unavailable, &surge] {
                if at.is_set() {
                    count_or_share(at, errors);
                    at_most_all(at, errors);
                }
            }
            let (some_surge, some_unavailable) = (!is_zero(surge.value), !is_zero(unavailable.value));
            if some_surge && some_unavailable {
                surge.invalid(errors, "may not be set when maxUnavailable is non-zero");
            } else if !some_surge && !some_unavailable {
                unavailable.missing(errors, "cannot be 0 when maxSurge is 0");
            }
        }
        _ => {
            let text = internal_strategy(strategy);
            let why = "supported values: \"RollingUpdate\", \"OnDelete\"";
            errors.push(internal_value(ErrorKind::NotSupported, &strategy.path, &text, why));
        }
    }
}

/// A stateful set.
pub(super) fn stateful_set(object: &At<'_>, errors: &mut Errors) {
    let name = object.at("metadata");
    let name = name.at("name");
    // Its pods are named after it, and names of pods become host names.
    if names::dns_subdomain(name.text()).is_empty() {
        name.follow(errors, names::dns_label);
    }
    let spec = object.at("spec");
    let policy = spec.at("podManagementPolicy");
    match policy.text() {
        "" => policy.missing(errors, ""),
        "OrderedReady" | "Parallel" => {}
        _ => policy.invalid(errors, "must be 'OrderedReady' or 'Parallel'"),
    }
    stateful_strategy(&spec.at("updateStrategy"), errors);
    let retention = spec.at("persistentVolumeClaimRetentionPolicy");
    for name in ["whenDeleted", "whenScaled"] {
        if retention.is_set() {
            retention.at(name).one_of(errors, &["Retain", "Delete"]);
        }
    }
    spec.at("replicas").not_negative(errors);
    spec.at("minReadySeconds").not_negative(errors);
    spec.at("ordinals").at("start").not_negative(errors);
    spec.at("serviceName").follow_if_set(errors, names::dns_label);
    required_selector(&spec, "statefulset", "", errors);
    // Pods that nothing can select are not looked at.
    if LabelSelector::from_json(Some(spec.at("selector").value)).is_err() {
        claim_templates(&spec.at("volumeClaimTemplates"), errors);
        return;
    }
    let template = with_claims(&spec);
    let template = At {
        value: &template,
        path: spec.path.child("template"),
    };
    // Kubernetes looks at the metadata of this template twice.
    pod::template_metadata(&template, errors);
    pod::template(&template, errors);
    claim_templates(&spec.at("volumeClaimTemplates"), errors);
    runs_for_ever(&template, "StatefulSet", errors);
}

/// The template as its pods will be: with a volume for every claim.
fn with_claims(spec: &At<'_>) -> Value {
    let mut template = spec.at("template").value.clone();
    let claims = spec.at("volumeClaimTemplates");
    if claims.items().is_empty() || !template["spec"].is_object() {
        return template;
    }
    let names: HashSet<&str> = claims
        .items()
        .iter()
        .filter_map(|claim| claim["metadata"]["name"].as_str())
        .collect();
    let volumes = template["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let mut all: Vec<Value> = claims
        .items()
        .iter()
        .map(|claim| {
            let name = &claim["metadata"]["name"];
            serde_json::json!({ "name": name, "persistentVolumeClaim": { "claimName": name } })
        })
        .collect();
    all.extend(
        volumes
            .into_iter()
            .filter(|volume| !volume["name"].as_str().is_some_and(|name| names.contains(name))),
    );
    put(&mut template, &["spec", "volumes"], Value::Array(all));
    template
}

fn claim_templates(claims: &At<'_>, errors: &mut Errors) {
    claims.each(|claim| volume::claim_spec(&claim.at("spec"), errors));
}

fn stateful_strategy(strategy: &At<'_>, errors: &mut Errors) {
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").text() {
        "" => strategy.missing(errors, ""),
        "OnDelete" => {
            if rolling.is_set() {
                let text = format!(
                    "{{\"Partition\":{},\"MaxUnavailable\":{}}}",
                    rolling.at("partition").number(),
                    shown(rolling.at("maxUnavailable").value)
                );
                let why = "only allowed for updateStrategy 'RollingUpdate'";
                errors.push(internal_value(ErrorKind::Invalid, &rolling.path, &text, why));
            }
        }
        "RollingUpdate" => {
            if rolling.is_set() {
                rolling.at("partition").not_negative(errors);
            }
        }
        _ => {
            let why = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(internal_value(
                ErrorKind::Invalid,
                &strategy.path,
                &internal_strategy(strategy),
                why,
            ));
        }
    }
}

/// A change of a stateful set.
pub(super) fn stateful_set_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    const FREE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let without = |spec: &Value| {
        let mut spec = spec.clone();
        if let Some(fields) = spec.as_object_mut() {
            fields.retain(|name, _| !FREE.contains(&name.as_str()));
        }
        spec
    };
    let spec = new.at("spec");
    if !same(&without(spec.value), &without(dig(old, &["spec"]))) {
        spec.forbidden(
            errors,
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
             'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        );
    }
}

/// A controller revision.
pub(super) fn controller_revision(object: &At<'_>, errors: &mut Errors) {
    let (data, revision) = (object.at("data"), object.at("revision"));
    match data.value {
        Value::Null => data.missing(errors, "data is mandatory"),
        Value::Object(_) => {}
        _ => data.missing(errors, "data must be a valid JSON object"),
    }
    revision.not_negative(errors);
}

/// A change of a controller revision: it is history.
pub(super) fn controller_revision_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let data = new.at("data");
    if data.value != dig(old, &["data"]) {
        errors.push(FieldError::invalid(
            &data.path,
            data.value.clone(),
            super::at::IMMUTABLE,
        ));
    }
}

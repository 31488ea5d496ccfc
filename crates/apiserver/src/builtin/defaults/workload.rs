//! The defaults of the kinds that make pods.

use serde_json::{Map, Value, json};

use super::{absent, dig, each, empty, is, object_at, part, pod};
use crate::builtin::states::TEMPLATE_GENERATION;

fn spec_with_template(fields: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    let spec = part(fields, "spec")?;
    if let Some(template) = part(spec, "template") {
        pod::template(template);
    }
    Some(spec)
}

/// Kinds of the first days take labels and selector from their template.
pub(super) fn replication_controller(fields: &mut Map<String, Value>) {
    let labels = dig(fields, &["spec", "template", "metadata", "labels"])
        .cloned()
        .unwrap_or_default();
    if let Some(labels) = labels.as_object().filter(|labels| !labels.is_empty()) {
        let spec = object_at(fields, "spec");
        let selector = object_at(spec, "selector");
        if selector.is_empty() {
            selector.clone_from(labels);
        }
        let metadata = object_at(fields, "metadata");
        let own = object_at(metadata, "labels");
        if own.is_empty() {
            own.clone_from(labels);
        }
    }
    if let Some(spec) = spec_with_template(fields) {
        absent(spec, "replicas", || json!(1));
    }
}

pub(super) fn replica_set(fields: &mut Map<String, Value>) {
    if let Some(spec) = spec_with_template(fields) {
        absent(spec, "replicas", || json!(1));
    }
}

pub(super) fn deployment(fields: &mut Map<String, Value>) {
    let Some(spec) = spec_with_template(fields) else { return };
    absent(spec, "replicas", || json!(1));
    absent(spec, "revisionHistoryLimit", || json!(10));
    absent(spec, "progressDeadlineSeconds", || json!(600));
    let strategy = object_at(spec, "strategy");
    empty(strategy, "type", || json!("RollingUpdate"));
    if is(strategy, "type", "RollingUpdate") {
        let rolling = object_at(strategy, "rollingUpdate");
        absent(rolling, "maxUnavailable", || json!("25%"));
        absent(rolling, "maxSurge", || json!("25%"));
    }
}

pub(super) fn stateful_set(fields: &mut Map<String, Value>) {
    let Some(spec) = spec_with_template(fields) else { return };
    absent(spec, "replicas", || json!(1));
    absent(spec, "revisionHistoryLimit", || json!(10));
    empty(spec, "podManagementPolicy", || json!("OrderedReady"));
    let strategy = object_at(spec, "updateStrategy");
    let is_given = strategy
        .get("type")
        .is_some_and(|given| !given.is_null() && given != "");
    // Who names the strategy and gives it no settings has none: that is another way of updating than a partition of 0.
    if !is_given {
        strategy.insert("type".to_owned(), json!("RollingUpdate"));
        object_at(strategy, "rollingUpdate");
    }
    if is(strategy, "type", "RollingUpdate")
        && let Some(rolling) = part(strategy, "rollingUpdate")
    {
        absent(rolling, "partition", || json!(0));
    }
    let retention = object_at(spec, "persistentVolumeClaimRetentionPolicy");
    empty(retention, "whenDeleted", || json!("Retain"));
    empty(retention, "whenScaled", || json!("Retain"));
    for claim in each(spec, "volumeClaimTemplates") {
        empty(claim, "apiVersion", || json!("v1"));
        empty(claim, "kind", || json!("PersistentVolumeClaim"));
        absent(object_at(claim, "spec"), "volumeMode", || json!("Filesystem"));
        absent(object_at(claim, "status"), "phase", || json!("Pending"));
    }
}

pub(super) fn daemon_set(fields: &mut Map<String, Value>) {
    let annotations = object_at(object_at(fields, "metadata"), "annotations");
    empty(annotations, TEMPLATE_GENERATION, || json!("0"));
    let Some(spec) = spec_with_template(fields) else { return };
    absent(spec, "revisionHistoryLimit", || json!(10));
    let strategy = object_at(spec, "updateStrategy");
    empty(strategy, "type", || json!("RollingUpdate"));
    if is(strategy, "type", "RollingUpdate") {
        let rolling = object_at(strategy, "rollingUpdate");
        absent(rolling, "maxUnavailable", || json!(1));
        absent(rolling, "maxSurge", || json!(0));
    }
}

pub(super) fn job(fields: &mut Map<String, Value>) {
    let labels = dig(fields, &["spec", "template", "metadata", "labels"])
        .cloned()
        .unwrap_or_default();
    if let Some(labels) = labels.as_object().filter(|labels| !labels.is_empty()) {
        let own = object_at(object_at(fields, "metadata"), "labels");
        if own.is_empty() {
            own.clone_from(labels);
        }
    }
    if let Some(spec) = part(fields, "spec") {
        job_spec(spec);
    }
}

fn job_spec(spec: &mut Map<String, Value>) {
    if let Some(template) = part(spec, "template") {
        pod::template(template);
    }
    if spec.get("completions").is_none_or(Value::is_null) && spec.get("parallelism").is_none_or(Value::is_null) {
        spec.insert("completions".to_owned(), json!(1));
    }
    absent(spec, "parallelism", || json!(1));
    let by_index = spec.get("backoffLimitPerIndex").is_some_and(|limit| !limit.is_null());
    absent(
        spec,
        "backoffLimit",
        || if by_index { json!(i32::MAX) } else { json!(6) },
    );
    absent(spec, "completionMode", || json!("NonIndexed"));
    absent(spec, "suspend", || json!(false));
    absent(spec, "manualSelector", || json!(false));
    if let Some(policy) = part(spec, "podFailurePolicy") {
        for rule in each(policy, "rules") {
            for condition in each(rule, "onPodConditions") {
                empty(condition, "status", || json!("True"));
            }
        }
    }
    let by_policy = spec.get("podFailurePolicy").is_some_and(|policy| !policy.is_null());
    absent(spec, "podReplacementPolicy", || {
        if by_policy {
            json!("Failed")
        } else {
            json!("TerminatingOrFailed")
        }
    });
}

pub(super) fn cron_job(fields: &mut Map<String, Value>) {
    let Some(spec) = part(fields, "spec") else { return };
    empty(spec, "concurrencyPolicy", || json!("Allow"));
    absent(spec, "suspend", || json!(false));
    absent(spec, "successfulJobsHistoryLimit", || json!(3));
    absent(spec, "failedJobsHistoryLimit", || json!(1));
    if let Some(template) = part(spec, "jobTemplate")
        .and_then(|job| part(job, "spec"))
        .and_then(|job| part(job, "template"))
    {
        pod::template(template);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stateful_set_that_names_its_strategy_is_given_no_settings_for_it() {
        let strategy = |given: Value| {
            let mut fields = Map::from_iter([("spec".to_owned(), json!({ "updateStrategy": given }))]);
            stateful_set(&mut fields);
            fields["spec"]["updateStrategy"].take()
        };
        let filled_in = json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } });
        assert_eq!(strategy(json!(null)), filled_in);
        assert_eq!(strategy(json!({ "type": "" })), filled_in);
        assert_eq!(strategy(json!({ "rollingUpdate": {} })), filled_in);
        assert_eq!(
            strategy(json!({ "type": "RollingUpdate", "rollingUpdate": {} })),
            filled_in
        );
        assert_eq!(
            strategy(json!({ "type": "RollingUpdate" })),
            json!({ "type": "RollingUpdate" })
        );
        assert_eq!(strategy(json!({ "type": "OnDelete" })), json!({ "type": "OnDelete" }));
    }
}

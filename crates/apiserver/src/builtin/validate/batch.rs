//! Jobs and cron jobs.

use std::collections::HashSet;

use moorline_machinery::{
    field::{ErrorKind, FieldError},
    names,
    selector::LabelSelector,
};
use serde_json::{Map, Value};

use super::{
    at::{At, Errors, IMMUTABLE, NOT_NEGATIVE, dig, internal_value, items_mut, put, same, shown},
    cron, networking, pod,
};

const PARALLEL_INDEXES_MAX: i64 = 100_000;
const INDEXES_MAX: i64 = 1_000_000;

/// A job.
pub(super) fn job(object: &At<'_>, errors: &mut Errors) {
    generated_selector(object, errors);
    selecting_spec(&object.at("spec"), errors);
}

fn selecting_spec(spec: &At<'_>, errors: &mut Errors) {
    job_spec(spec, errors);
    let selector = spec.at("selector");
    if selector.is_set() {
        selector.label_selector(errors);
    } else {
        selector.missing(errors, "");
    }
    let template = spec.at("template");
    let metadata = template.at("metadata");
    let labels = metadata.at("labels");
    let none = Map::new();
    if let Ok(selects) = LabelSelector::from_json(Some(selector.value))
        && !selects.matches(labels.value.as_object().unwrap_or(&none))
    {
        labels.invalid(errors, "`selector` does not match template `labels`");
    }
}

/// Unless its writer takes care of it, the selector is the server's.
fn generated_selector(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    if spec.at("manualSelector").flag() {
        return;
    }
    let uid = dig(object.value, &["metadata", "uid"]);
    let selector = spec.at("selector");
    if !selector.is_set() {
        return;
    }
    let own = dig(selector.value, &["matchLabels", "batch.kubernetes.io/controller-uid"]);
    let former = dig(selector.value, &["matchLabels", "controller-uid"]);
    let labels = dig(selector.value, &["matchLabels"]).as_object().map_or(0, Map::len);
    let expressions = dig(selector.value, &["matchExpressions"])
        .as_array()
        .map_or(0, Vec::len);
    let generated = (own == uid || former == uid) && labels <= 2 && expressions == 0;
    if !generated || (labels == 2 && (own != uid || former != uid)) {
        selector.invalid(errors, "`selector` not auto-generated");
    }
}

fn job_spec(spec: &At<'_>, errors: &mut Errors) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ] {
        spec.at(name).not_negative(errors);
    }
    by_index(spec, errors);
    let manager = spec.at("managedBy");
    if manager.is_set() {
        networking::domain_prefixed_path(&manager, errors);
        manager.max_length(errors, 63);
    }
    let mode = spec.at("completionMode");
    if mode.is_set() {
        mode.one_of(errors, &["NonIndexed", "Indexed"]);
        if mode.text() == "Indexed" {
            if !spec.at("completions").is_set() {
                spec.at("completions")
                    .missing(errors, "when completion mode is Indexed");
            }
            let parallelism = spec.at("parallelism");
            if parallelism.number() > PARALLEL_INDEXES_MAX {
                parallelism.invalid(
                    errors,
                    format!("must be less than or equal to {PARALLEL_INDEXES_MAX} when completion mode is Indexed"),
                );
            }
        }
    }
    let replacement = spec.at("podReplacementPolicy");
    if replacement.is_set() {
        let failing = spec.at("podFailurePolicy").is_set();
        replacement.one_of(
            errors,
            if failing {
                &["Failed"]
            } else {
                &["Failed", "TerminatingOrFailed"]
            },
        );
    }
    failure_policy(spec, errors);
    success_policy(spec, errors);
    let template = spec.at("template");
    pod::template(&template, errors);
    let pod = template.at("spec");
    let policy = pod.at("restartPolicy");
    match policy.text() {
        "" | "Always" => policy.missing(errors, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.at("podFailurePolicy").is_set() => {
            policy.invalid(errors, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        _ => policy.one_of(errors, &["OnFailure", "Never"]),
    }
}

fn by_index(spec: &At<'_>, errors: &mut Errors) {
    let indexed = spec.at("completionMode").text() == "Indexed";
    let (limit, most) = (spec.at("backoffLimitPerIndex"), spec.at("maxFailedIndexes"));
    limit.not_negative(errors);
    if most.is_set() {
        most.not_negative(errors);
        if !limit.is_set() {
            limit.missing(errors, "when maxFailedIndexes is specified");
        }
    }
    if !indexed {
        for at in [&limit, &most] {
            if at.is_set() {
                at.invalid(errors, "requires indexed completion mode");
            }
        }
        return;
    }
    let (completions, failed) = (spec.at("completions").optional_number(), most.optional_number());
    if let (Some(completions), Some(failed)) = (completions, failed) {
        if failed > completions {
            most.invalid(errors, "must be less than or equal to completions");
        }
        if failed > PARALLEL_INDEXES_MAX {
            most.invalid(errors, format!("must be less than or equal to {PARALLEL_INDEXES_MAX}"));
        }
    }
    if limit.is_set() && completions.is_some_and(|completions| completions > INDEXES_MAX) {
        spec.at("completions")
            .invalid(errors, format!("must be less than or equal to {INDEXES_MAX}"));
    }
}

fn failure_policy(spec: &At<'_>, errors: &mut Errors) {
    let policy = spec.at("podFailurePolicy");
    if !policy.is_set() {
        return;
    }
    let template = dig(spec.value, &["template", "spec"]);
    let containers: HashSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| template[*list].as_array().into_iter().flatten())
        .filter_map(|container| container["name"].as_str())
        .collect();
    let rules = policy.at("rules");
    if rules.len() > 20 {
        errors.push(FieldError::too_many(&rules.path, rules.len(), 20));
    }
    rules.each(|rule| {
        let action = rule.at("action");
        action.require_one_of(errors, &["Count", "FailIndex", "FailJob", "Ignore"]);
        if action.text() == "FailIndex" && !spec.at("backoffLimitPerIndex").is_set() {
            action.invalid(errors, "requires the backoffLimitPerIndex to be set");
        }
        let (codes, conditions) = (rule.at("onExitCodes"), rule.at("onPodConditions"));
        if codes.is_set() {
            exit_codes(&codes, &containers, errors);
        }
        if !conditions.items().is_empty() {
            pod_conditions(&conditions, errors);
        }
        let either = match (codes.is_set(), !conditions.items().is_empty()) {
            (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => return,
        };
        errors.push(internal_value(ErrorKind::Invalid, &rule.path, either, ""));
    });
}

fn exit_codes(codes: &At<'_>, containers: &HashSet<&str>, errors: &mut Errors) {
    let operator = codes.at("operator");
    operator.require_one_of(errors, &["In", "NotIn"]);
    let name = codes.at("containerName");
    if name.is_set() && !containers.contains(name.text()) {
        name.invalid(
            errors,
            "must be one of the container or initContainer names in the pod template",
        );
    }
    let values = codes.at("values");
    if values.items().is_empty() {
        values.invalid_as(errors, Value::Array(Vec::new()), "at least one value is required");
    } else if values.len() > 255 {
        errors.push(FieldError::too_many(&values.path, values.len(), 255));
    }
    let mut seen = HashSet::new();
    values.each(|value| {
        if operator.text() == "In" && value.number() == 0 {
            value.invalid(errors, "must not be 0 for the In operator");
        }
        if !seen.insert(value.number()) {
            value.duplicate(errors, value.number());
        }
    });
    if !values.items().is_sorted_by_key(Value::as_i64) {
        values.invalid(errors, "must be ordered");
    }
}

fn pod_conditions(conditions: &At<'_>, errors: &mut Errors) {
    if conditions.len() > 20 {
        errors.push(FieldError::too_many(&conditions.path, conditions.len(), 20));
    }
    conditions.each(|condition| {
        condition.at("type").follow(errors, names::qualified_name);
        condition
            .at("status")
            .require_one_of(errors, &["False", "True", "Unknown"]);
    });
}

fn success_policy(spec: &At<'_>, errors: &mut Errors) {
    let policy = spec.at("successPolicy");
    if !policy.is_set() {
        return;
    }
    if spec.at("completionMode").text() != "Indexed" {
        let rules: Vec<String> = policy
            .at("rules")
            .items()
            .iter()
            .map(|rule| {
                let (indexes, count) = (
                    shown(dig(rule, &["succeededIndexes"])),
                    shown(dig(rule, &["succeededCount"])),
                );
                format!("{{\"SucceededIndexes\":{indexes},\"SucceededCount\":{count}}}")
            })
            .collect();
        let text = format!("{{\"Rules\":[{}]}}", rules.join(","));
        errors.push(internal_value(
            ErrorKind::Invalid,
            &policy.path,
            &text,
            "requires indexed completion mode",
        ));
        return;
    }
    let rules = policy.at("rules");
    if rules.items().is_empty() {
        rules.missing(
            errors,
            "at least one rules must be specified when the successPolicy is specified",
        );
    } else if rules.len() > 20 {
        errors.push(FieldError::too_many(&rules.path, rules.len(), 20));
    }
    let completions = spec.at("completions").number();
    rules.each(|rule| success_rule(rule, completions, errors));
}

fn success_rule(rule: &At<'_>, completions: i64, errors: &mut Errors) {
    let (indexes, count) = (rule.at("succeededIndexes"), rule.at("succeededCount"));
    if !indexes.is_set() && !count.is_set() {
        rule.missing(
            errors,
            "at least one of succeededCount or succeededIndexes must be specified",
        );
    }
    let mut total = None;
    if indexes.is_set() {
        match index_count(indexes.text(), completions) {
            Ok(number) => total = Some(number),
            Err(error) => {
                indexes.invalid(errors, format!("error parsing succeededIndexes: {error}"));
                return;
            }
        }
    }
    if let Some(number) = count.optional_number() {
        if number < 0 {
            count.invalid(errors, NOT_NEGATIVE);
        }
        if number > completions {
            count.invalid(
                errors,
                format!("must be less than or equal to {completions} (the number of specified completions)"),
            );
        }
        if let Some(total) = total.filter(|total| number > *total) {
            count.invalid(
                errors,
                format!("must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"),
            );
        }
    }
}

/// How many indexes a text such as `0,2-4` names.
fn index_count(text: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0, None::<i64>);
    if text.is_empty() {
        return Ok(0);
    }
    let index = |text: &str| -> Result<i64, String> {
        let number = text.parse::<i64>().map_err(|_| {
            format!(
                "cannot convert string to integer for index: {}",
                moorline_machinery::field::quote(text)
            )
        })?;
        if number >= completions {
            return Err(format!("too large index: {}", moorline_machinery::field::quote(text)));
        }
        Ok(number)
    };
    for interval in text.split(',') {
        let parts: Vec<&str> = interval.split('-').collect();
        if parts.len() > 2 {
            let quoted = moorline_machinery::field::quote(interval);
            return Err(format!(
                "the fragment {quoted} violates the requirement that an index interval can have at most two parts separated by '-'"
            ));
        }
        let first = index(parts[0])?;
        if let Some(last) = last.filter(|last| first <= *last) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        let end = if parts.len() == 2 { index(parts[1])? } else { first };
        if end < first || (parts.len() == 2 && end == first) {
            return Err(format!("non-increasing order, previous: {first}, current: {end}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// A change of a job: what it is about stays.
pub(super) fn job_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    // The object was looked at already; a real server looks again and says all of it twice.
    selecting_spec(&spec, errors);
    let before = dig(old, &["spec"]);
    let indexed = spec.at("completionMode").text() == "Indexed";
    let completions = spec.at("completions");
    if !same(completions.value, dig(before, &["completions"])) {
        if indexed && completions.is_set() && dig(before, &["completions"]).is_number() {
            if completions.value != spec.at("parallelism").value {
                completions.invalid(errors, "can only be modified in tandem with spec.parallelism");
            }
        } else {
            completions.invalid(errors, IMMUTABLE);
        }
    }
    spec.at("selector").unchanged(errors, dig(before, &["selector"]));
    template_change(&spec, old, errors);
    for name in [
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        spec.at(name).unchanged(errors, dig(before, &[name]));
    }
}

/// While a job is suspended and never ran, where its pods may run can still be decided.
fn template_change(spec: &At<'_>, old: &Value, errors: &mut Errors) {
    let before = dig(old, &["spec", "template"]);
    let mut munged = spec.at("template").value.clone();
    let suspended = dig(old, &["spec", "suspend"]) == &Value::Bool(true);
    if suspended && dig(old, &["status", "startTime"]).is_null() {
        for name in ["labels", "annotations"] {
            put(
                &mut munged,
                &["metadata", name],
                dig(before, &["metadata", name]).clone(),
            );
        }
        for name in ["nodeSelector", "tolerations", "schedulingGates"] {
            put(&mut munged, &["spec", name], dig(before, &["spec", name]).clone());
        }
        let affinity = ["spec", "affinity", "nodeAffinity"];
        put(&mut munged, &affinity, dig(before, &affinity).clone());
        let spec = munged.get_mut("spec").into_iter();
        for (position, container) in spec.flat_map(|spec| items_mut(spec, "containers")).enumerate() {
            let resources = before["spec"]["containers"][position]["resources"].clone();
            put(container, &["resources"], resources);
        }
    }
    if !same(&munged, before) {
        spec.at("template").invalid(errors, IMMUTABLE);
    }
}

/// A cron job.
pub(super) fn cron_job(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let schedule = spec.at("schedule");
    if schedule.text().is_empty() {
        schedule.missing(errors, "");
    } else {
        if let Err(error) = cron::check(schedule.text()) {
            schedule.invalid(errors, error);
        }
        if schedule.text().contains("TZ") && !schedule.text().starts_with("TZ=") {
            schedule.invalid(errors, cron::NO_ZONE);
        }
    }
    if spec.at("startingDeadlineSeconds").is_set() {
        spec.at("startingDeadlineSeconds").not_negative(errors);
    }
    let zone = spec.at("timeZone");
    if zone.is_set() {
        time_zone(&zone, errors);
    }
    spec.at("concurrencyPolicy")
        .require_one_of(errors, &["Allow", "Forbid", "Replace"]);
    let template = spec.at("jobTemplate");
    let job = template.at("spec");
    job_spec(&job, errors);
    if job.at("manualSelector").flag() {
        errors.push(FieldError::not_supported(
            &job.at("manualSelector").path,
            true,
            ["nil", "false"],
        ));
    }
    if job.at("selector").is_set() {
        job.at("selector").invalid(errors, "`selector` will be auto-generated");
    }
    spec.at("successfulJobsHistoryLimit").not_negative(errors);
    spec.at("failedJobsHistoryLimit").not_negative(errors);
    let metadata = object.at("metadata");
    let name = metadata.at("name");
    // A suffix of eleven characters makes the name of each job.
    if name.text().len() > 52 {
        name.invalid(errors, "must be no more than 52 characters");
    }
}

fn time_zone(zone: &At<'_>, errors: &mut Errors) {
    match zone.text() {
        "" => zone.invalid(errors, "timeZone must be nil or non-empty string"),
        text if text.eq_ignore_ascii_case("local") => zone.invalid(
            errors,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        ),
        text if !cron::is_time_zone(text) => zone.invalid(errors, format!("unknown time zone {text}")),
        _ => {}
    }
}

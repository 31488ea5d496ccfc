//! The cells of what makes pods.

use serde_json::Value;

use super::subject::{Subject, items, text};
use crate::{gvk::GroupKind, selector::LabelSelector, time};

/// Where the pod template of the object is.
fn template(subject: &Subject<'_>) -> &'static str {
    if subject.at("spec.jobTemplate").is_some() {
        "spec.jobTemplate.spec.template"
    } else if subject.at("template").is_some() {
        "template"
    } else {
        "spec.template"
    }
}

fn of_containers(subject: &Subject<'_>, key: &str) -> Value {
    let containers = subject
        .at(template(subject))
        .map_or(&[][..], |template| items(template, "spec.containers"));
    containers
        .iter()
        .map(|container| text(container, key))
        .collect::<Vec<_>>()
        .join(",")
        .into()
}

pub(super) fn container_names(subject: &Subject<'_>) -> Value {
    of_containers(subject, "name")
}

pub(super) fn container_images(subject: &Subject<'_>) -> Value {
    of_containers(subject, "image")
}

pub(super) fn template_labels(subject: &Subject<'_>) -> Value {
    subject.labels("template.metadata.labels").into()
}

pub(super) fn node_selector(subject: &Subject<'_>) -> Value {
    subject.labels("spec.template.spec.nodeSelector").into()
}

/// A replication controller selects by a plain map, the others by a selector.
pub(super) fn selector(subject: &Subject<'_>) -> Value {
    let path = if subject.at("spec.jobTemplate").is_some() {
        "spec.jobTemplate.spec.selector"
    } else {
        "spec.selector"
    };
    let structured = subject.at(path).is_none_or(|selector| {
        selector.get("matchLabels").is_some_and(Value::is_object) || selector.get("matchExpressions").is_some()
    });
    if structured {
        subject.selector(path).into()
    } else {
        subject.labels(path).into()
    }
}

pub(super) fn deployment_selector(deployment: &Subject<'_>) -> Value {
    LabelSelector::from_json(deployment.at("spec.selector"))
        .map_or("<invalid>".to_owned(), |it| it.to_string())
        .into()
}

pub(super) fn ready_of_desired(subject: &Subject<'_>) -> Value {
    format!(
        "{}/{}",
        subject.integer("status.readyReplicas"),
        subject.integer("spec.replicas")
    )
    .into()
}

pub(super) fn controller(subject: &Subject<'_>) -> Value {
    match subject.meta().controller() {
        None => "<none>".into(),
        Some(owner) => {
            let kind = GroupKind::new(owner.group(), owner.kind).to_string().to_lowercase();
            format!("{kind}/{}", owner.name).into()
        }
    }
}

pub(super) fn job_status(job: &Subject<'_>) -> Value {
    let reached = |name: &'static str| job.condition_is_true(name).then_some(name);
    reached("Complete")
        .or_else(|| reached("Failed"))
        .or_else(|| job.meta().is_deleting().then_some("Terminating"))
        .or_else(|| reached("Suspended"))
        .or_else(|| reached("FailureTarget"))
        .or_else(|| reached("SuccessCriteriaMet"))
        .unwrap_or("Running")
        .into()
}

pub(super) fn job_completions(job: &Subject<'_>) -> Value {
    let succeeded = job.integer("status.succeeded");
    let wanted = job.at("spec.completions").and_then(Value::as_i64);
    match (wanted, job.integer("spec.parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
    .into()
}

pub(super) fn job_duration(job: &Subject<'_>) -> Value {
    let Ok(start) = time::parse(job.text("status.startTime")) else {
        return "".into();
    };
    let end = time::parse(job.text("status.completionTime")).unwrap_or(job.now);
    time::age(start, end).into()
}

pub(super) fn cron_job_suspended(cron_job: &Subject<'_>) -> Value {
    match cron_job.at("spec.suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    }
    .into()
}

pub(super) fn cron_job_last_schedule(cron_job: &Subject<'_>) -> Value {
    match cron_job.at("status.lastScheduleTime").and_then(Value::as_str) {
        None => "<none>".into(),
        then => cron_job.since(then).into(),
    }
}

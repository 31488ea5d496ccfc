//! Whether a webhook is asked about a write, and in which version it is told of it.

use std::{borrow::Cow, sync::Arc};

use moorline_machinery::{
    field::quote,
    gvk::{GroupResource, GroupVersionKind},
    meta,
    selector::LabelSelector,
    status::ApiError,
};
use moorline_store::Key;
use serde_json::Value;

use super::{
    review,
    roster::{MatchPolicy, OnFailure, Webhook},
    rule::Asked,
    subject::Subject,
};
use crate::{builtin, resource::ResourceType, wire};

/// A question to a webhook.
pub(super) struct Invocation<'i> {
    /// The resource in the version that the webhook knows.
    pub(super) resource: Arc<ResourceType>,
    pub(super) uid: String,
    /// What it is asked, but for the objects.
    pub(super) request: Value,
    pub(super) object: Cow<'i, Value>,
    pub(super) old: Option<Cow<'i, Value>>,
}

/// What a webhook is to be asked about an object; nothing when the write is none of its concern.
pub(super) async fn invocation<'i>(
    webhook: &Webhook,
    subject: &'i Subject<'_>,
    object: &'i Value,
) -> Result<Option<Invocation<'i>>, ApiError> {
    // What is wrong with the selection is only told to those whom the webhook's rules concern.
    let in_namespace = selects_namespace(webhook, subject, object);
    if matches!(in_namespace, Ok(false)) {
        return Ok(None);
    }
    let selected = selects_object(webhook, subject, object);
    if matches!(selected, Ok(false)) {
        return Ok(None);
    }
    let Some((resource, kind)) = version_for(webhook, subject) else {
        return Ok(None);
    };
    in_namespace?;
    selected?;
    let from = subject.resource();
    let (object, old) = if resource.gvr == from.gvr {
        (Cow::Borrowed(object), subject.old.as_deref().map(Cow::Borrowed))
    } else {
        let old = match subject.old.as_deref() {
            Some(old) => Some(Cow::Owned(subject.convert(old.clone(), from, &resource).await?)),
            None => None,
        };
        (Cow::Owned(subject.convert(object.clone(), from, &resource).await?), old)
    };
    let uid = subject.attributes.call.core.world.uid();
    let request = review::request(subject, &resource, &kind, &uid);
    let invocation = Invocation {
        resource,
        uid,
        request,
        object,
        old,
    };
    Ok(meets_conditions(webhook, subject, &invocation)?.then_some(invocation))
}

/// The version of the resource that a rule of the webhook names, the requested one first, with the kind that travels.
fn version_for(webhook: &Webhook, subject: &Subject<'_>) -> Option<(Arc<ResourceType>, GroupVersionKind)> {
    let matches = |rule: &super::rule::Rule, resource: &ResourceType| {
        rule.matches(&Asked {
            operation: subject.operation,
            resource: &resource.gvr,
            subresource: subject.subresource,
            namespaced: !subject.namespace.is_empty() && !subject.is_namespace(),
        })
    };
    let requested = subject.resource();
    if webhook.rules.iter().any(|rule| matches(rule, requested)) {
        return Some((Arc::clone(requested), subject.kind.clone()));
    }
    if webhook.policy == MatchPolicy::Exact {
        return None;
    }
    let equivalents = |rule| subject.equivalents.iter().find(move |other| matches(rule, other));
    let other = webhook.rules.iter().find_map(equivalents)?;
    let kind = other
        .subresource(subject.subresource)
        .map_or(&other.gvk, |subresource| &subresource.gvk);
    Some((Arc::clone(other), kind.clone()))
}

fn selects_namespace(webhook: &Webhook, subject: &Subject<'_>, object: &Value) -> Result<bool, ApiError> {
    if subject.namespace.is_empty() && !subject.is_namespace() {
        return Ok(true);
    }
    let selector = webhook.namespaces.as_ref().map_err(ApiError::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    // What a namespace becomes counts, not what it is.
    if subject.is_namespace() && subject.subresource.is_empty() && object.is_object() {
        return Ok(selector.matches(&Subject::labels(object)));
    }
    let key = Key::new(&builtin::namespaces_storage(), "", subject.namespace);
    let Some(record) = subject.attributes.call.core.store.get(&key) else {
        return Err(ApiError::not_found(
            &GroupResource::from("namespaces"),
            subject.namespace,
        ));
    };
    let namespace = wire::from_stored(record.value(), "v1", "Namespace");
    Ok(selector.matches(&meta::of(&namespace).labels()))
}

fn selects_object(webhook: &Webhook, subject: &Subject<'_>, object: &Value) -> Result<bool, ApiError> {
    let selector = webhook.objects.as_ref().map_err(ApiError::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    let selects =
        |selector: &LabelSelector, object: &Value| object.is_object() && selector.matches(&Subject::labels(object));
    let old = subject.old.as_deref();
    Ok(selects(selector, object) || old.is_some_and(|old| selects(selector, old)))
}

/// Whether all conditions hold. One that does not settles it, whatever is wrong with the others.
fn meets_conditions(webhook: &Webhook, subject: &Subject<'_>, invocation: &Invocation<'_>) -> Result<bool, ApiError> {
    let mut problems = Vec::new();
    let bindings = [
        ("object", &*invocation.object),
        ("oldObject", invocation.old.as_deref().unwrap_or(&Value::Null)),
        ("request", &invocation.request),
    ];
    for condition in &webhook.conditions {
        let result = match &condition.program {
            Ok(program) => program.matches(&bindings).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match result {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(problem) => {
                let problem = problem.strip_prefix("evaluation failed: ").unwrap_or(&problem);
                problems.push(format!(
                    "expression '{}' resulted in error: {problem}",
                    condition.expression
                ));
            }
        }
    }
    if problems.is_empty() {
        return Ok(true);
    }
    if webhook.on_failure == OnFailure::Ignore {
        return Ok(false);
    }
    let why = match problems.as_slice() {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    tracing::warn!(
        webhook = quote(&webhook.name),
        problem = why,
        "match conditions cannot be evaluated"
    );
    Err(ApiError::forbidden(
        &subject.resource().group_resource(),
        subject.name,
        why,
    ))
}

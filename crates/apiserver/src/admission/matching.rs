//! Whether a webhook is asked about a write, and in which version it is told of it.

use std::{borrow::Cow, sync::Arc};

use moorline_machinery::{field::quote, status::ApiError};
use serde_json::Value;

use super::{
    criteria::Criteria,
    review,
    roster::{Condition, OnFailure, Webhook},
    subject::Subject,
};
use crate::resource::ResourceType;

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
    let Some(invocation) = told(&webhook.criteria, subject, object).await? else {
        return Ok(None);
    };
    let met = meets_conditions(
        &webhook.name,
        &webhook.conditions,
        webhook.on_failure,
        subject,
        &invocation.bindings(),
    );
    Ok(met?.then_some(invocation))
}

/// A write as one is told of it who has asked for such writes; nothing for others.
pub(super) async fn told<'i>(
    criteria: &Criteria,
    subject: &'i Subject<'_>,
    object: &'i Value,
) -> Result<Option<Invocation<'i>>, ApiError> {
    let Some((resource, kind)) = criteria.version(subject, object)? else {
        return Ok(None);
    };
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
    Ok(Some(Invocation {
        resource,
        uid,
        request,
        object,
        old,
    }))
}

impl Invocation<'_> {
    /// The variables that match conditions speak of.
    pub(super) fn bindings(&self) -> Vec<(&str, &Value)> {
        vec![
            ("object", &*self.object),
            ("oldObject", self.old.as_deref().unwrap_or(&Value::Null)),
            ("request", &self.request),
        ]
    }
}

/// Whether all conditions hold. One that does not settles it, whatever is wrong with the others.
pub(super) fn meets_conditions(
    name: &str,
    conditions: &[Condition],
    on_failure: OnFailure,
    subject: &Subject<'_>,
    bindings: &[(&str, &Value)],
) -> Result<bool, ApiError> {
    let mut problems = Vec::new();
    for condition in conditions {
        let result = match &condition.program {
            Ok(program) => program.matches(bindings).map_err(|error| error.to_string()),
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
    if on_failure == OnFailure::Ignore {
        return Ok(false);
    }
    let why = match problems.as_slice() {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    tracing::warn!(by = quote(name), problem = why, "match conditions cannot be evaluated");
    Err(ApiError::forbidden(
        &subject.resource().group_resource(),
        subject.name,
        why,
    ))
}

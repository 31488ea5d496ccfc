//! Delete: at once, or by marking the object until nothing keeps it.

use std::{sync::Arc, time::Duration};

use http::{Response, StatusCode};
use moorline_machinery::{
    field::{FieldError, Path},
    gvk::GroupKind,
    meta,
    status::{ApiError, Status},
};
use moorline_store::{Record, WriteError};
use serde_json::{Value, json};

use super::{Call, options, update::is_free, write};
use crate::{
    admission::{Attributes, Operation},
    body::Body,
    custom, respond,
    strategy::Propagation,
};

/// The finalizer by which an object waits for what it owns to go first.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer by which an object waits for what it owns to be let go of.
pub(crate) const ORPHAN: &str = "orphan";

/// How an object is to be deleted.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<Duration>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) dry_run: bool,
    /// As they came, for admission.
    pub(crate) given: Value,
}

impl DeleteOptions {
    /// Reads them from the body or, where there is none, from the query.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Self, ApiError> {
        let mut given = if call.body.is_empty() {
            json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1" })
        } else {
            options::decode_options(call.headers, &call.body, "DeleteOptions")?
        };
        for name in ["gracePeriodSeconds", "propagationPolicy", "orphanDependents"] {
            if let Some(value) = call.query.get(name) {
                given[name] = value.parse().map_or_else(|_| json!(value), |number: i64| json!(number));
            }
        }
        let mut options = Self::from_value(&given)?;
        options.dry_run |= call
            .query
            .dry_run(&GroupKind::new("meta.k8s.io", call.verb.options_kind()))?;
        Ok(options)
    }

    /// Reads them from an object of the API.
    pub(crate) fn from_value(given: &Value) -> Result<Self, ApiError> {
        let dry_body = given["dryRun"]
            .as_array()
            .is_some_and(|dry| dry.iter().any(|value| value == "All"));
        // A negative time means the shortest one.
        let grace = given["gracePeriodSeconds"].as_i64();
        let grace = grace.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(1)));
        let orphan = match &given["orphanDependents"] {
            Value::Bool(orphan) => Some(*orphan),
            Value::String(text) => Some(text == "true"),
            _ => None,
        };
        let propagation = match (given["propagationPolicy"].as_str(), orphan) {
            (Some("Background"), None) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), None) => Some(Propagation::Foreground),
            (Some("Orphan"), None) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(policy), Some(_)) => {
                let why = "orphanDependents and deletionPropagation cannot be both set";
                return Err(invalid(FieldError::invalid(
                    &Path::root("propagationPolicy"),
                    policy,
                    why,
                )));
            }
            (Some(other), None) => {
                let path = Path::root("propagationPolicy");
                let known = ["Foreground", "Background", "Orphan", "nil"];
                return Err(invalid(FieldError::not_supported(&path, other, known)));
            }
        };
        let text = |name: &str| given["preconditions"][name].as_str().map(str::to_owned);
        Ok(Self {
            grace,
            propagation,
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            dry_run: dry_body,
            given: given.clone(),
        })
    }
}

fn invalid(error: FieldError) -> ApiError {
    ApiError::invalid(&GroupKind::new("meta.k8s.io", "DeleteOptions"), "", &[error])
}

/// DELETE of one object.
pub(crate) async fn delete(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::parse(call)?;
    let warning = call.resource.strategy.warnings_on_delete(options.propagation.is_some());
    let mut warnings: Vec<String> = warning.map(str::to_owned).into_iter().collect();
    let deleted = delete_object(call, &call.path.name, &options, &mut warnings).await;
    let deleted = call.asides.keep(deleted, &mut warnings)?;
    let mut response = match deleted {
        Deleted::Gone(object) if !call.resource.strategy.returns_deleted() => {
            let meta = meta::of(&object);
            let status = Status::deleted(&call.resource.group_resource(), meta.name(), meta.uid());
            respond::value(StatusCode::OK, &status.to_value(), call.answer.encoding)
        }
        Deleted::Gone(object) | Deleted::Marked(object) => call.answer_object(StatusCode::OK, object),
    };
    for warning in &warnings {
        respond::warn(&mut response, warning);
    }
    Ok(response)
}

/// What became of an object that was to be deleted.
pub(crate) enum Deleted {
    /// It is gone; this is how it was.
    Gone(Value),
    /// It goes when nothing keeps it any more; this is how it is until then.
    Marked(Value),
}

/// Deletes one object of the call's resource and namespace.
pub(crate) async fn delete_object(
    call: &Call<'_>,
    name: &str,
    options: &DeleteOptions,
    warnings: &mut Vec<String>,
) -> Result<Deleted, ApiError> {
    let (core, resource) = (call.core, &call.resource);
    let key = resource.key(&call.path.namespace, name);
    loop {
        let Some(record) = core.store.get(&key) else {
            return Err(ApiError::not_found(&resource.group_resource(), name));
        };
        let old = core.object_of(resource, &record).await?;
        check_preconditions(call, &old, options)?;
        let attributes = Attributes {
            call,
            operation: Operation::Delete,
            name: name.to_owned(),
            old: Some(&old),
            dry_run: options.dry_run,
            options: options.given.clone(),
        };
        let mut nothing = Value::Null;
        core.admission.mutate(&attributes, &mut nothing, warnings).await?;
        drop(core.admission.validate(&attributes, &nothing, warnings).await?);
        let marked = mark(call, &old, options);
        // What may be given time to end is answered with the end of that time, also when it got none.
        let graceful = resource.strategy.default_grace(&old).is_some();
        let free = is_free(resource, &marked);
        if options.dry_run {
            return Ok(if free {
                Deleted::Gone(if graceful { marked } else { old })
            } else {
                Deleted::Marked(marked)
            });
        }
        let result = store(call, &record, marked, old, free).await?;
        match result {
            Err(WriteError::Conflict { .. }) if options.resource_version.is_none() => {}
            Err(error) => return Err(write::refused(resource, name, &error)),
            Ok(deleted) => return Ok(deleted),
        }
    }
}

async fn store(
    call: &Call<'_>,
    record: &Arc<Record>,
    marked: Value,
    old: Value,
    free: bool,
) -> Result<Result<Deleted, WriteError>, ApiError> {
    let (key, seen) = (record.key().clone(), record.mod_revision());
    if free {
        if let Err(error) = call.core.store.delete_at(key, seen).await {
            return Ok(Err(error));
        }
        call.release(&old).await;
        let graceful = call.resource.strategy.default_grace(&old).is_some();
        return Ok(Ok(Deleted::Gone(if graceful { marked } else { old })));
    }
    if marked == old {
        return Ok(Ok(Deleted::Marked(old)));
    }
    let value = custom::to_stored(&call.resource, &marked).await?;
    match call.core.store.update(key, value, seen).await {
        Ok(committed) => {
            let stored = call.core.object_of(&call.resource, &committed.into_record()).await?;
            Ok(Ok(Deleted::Marked(stored)))
        }
        Err(error) => Ok(Err(error)),
    }
}

fn check_preconditions(call: &Call<'_>, object: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let meta = meta::of(object);
    let kind = call.resource.group_kind();
    if call.resource.strategy.is_deleted_by_controller() {
        let resource = call.resource.group_resource();
        for (field, wanted, found) in [
            ("UID", &options.uid, meta.uid()),
            ("ResourceVersion", &options.resource_version, meta.resource_version()),
        ] {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                return Err(ApiError::precondition_failed(
                    &resource,
                    meta.name(),
                    field,
                    wanted,
                    found,
                ));
            }
        }
        return Ok(());
    }
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != meta.uid()) {
        return Err(ApiError::uid_precondition(&kind, meta.name(), wanted, meta.uid()));
    }
    if let Some(wanted) = options
        .resource_version
        .as_deref()
        .filter(|wanted| *wanted != meta.resource_version())
    {
        return Err(ApiError::resource_version_precondition(
            &kind,
            meta.name(),
            wanted,
            meta.resource_version(),
        ));
    }
    Ok(())
}

/// The object with the marks of its deletion. An object that is already being deleted may get a shorter grace.
fn mark(call: &Call<'_>, old: &Value, options: &DeleteOptions) -> Value {
    let strategy = &call.resource.strategy;
    let mut object = old.clone();
    let meta = meta::of(old);
    let grace = match strategy.default_grace(old) {
        Some(_) if strategy.goes_at_once(old) => Duration::ZERO,
        Some(default) => options.grace.unwrap_or(default),
        None => Duration::ZERO,
    };
    let finalizers = finalizers(old, options.propagation, strategy.default_propagation());
    if let Some(finalizers) = finalizers {
        object["metadata"]["finalizers"] = json!(finalizers);
    }
    let shorter = meta
        .deletion_grace_period_seconds()
        .is_some_and(|seconds| grace.as_secs() < seconds.unsigned_abs());
    if !meta.is_deleting() || shorter {
        let grace = (!strategy.is_deleted_by_controller()).then_some(grace);
        meta::mark_deleted(&mut object, call.core.world.now(), grace);
    }
    strategy.prepare_delete(&mut object);
    object
}

/// The finalizers that the wished propagation asks for; nothing when they are as they are.
fn finalizers(object: &Value, wished: Option<Propagation>, default: Propagation) -> Option<Vec<String>> {
    let meta = meta::of(object);
    let has = |name| meta.has_finalizer(name);
    let propagation = match wished {
        Some(wished) => wished,
        // Without a word in the request, what a former one asked for stands.
        None if has(ORPHAN) => Propagation::Orphan,
        None if has(FOREGROUND) => Propagation::Foreground,
        None => default,
    };
    let wanted = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    };
    let mut finalizers: Vec<String> = meta
        .finalizers()
        .filter(|name| *name != FOREGROUND && *name != ORPHAN)
        .map(str::to_owned)
        .collect();
    finalizers.extend(wanted.map(str::to_owned));
    let before: Vec<&str> = meta.finalizers().collect();
    (finalizers != before).then_some(finalizers)
}

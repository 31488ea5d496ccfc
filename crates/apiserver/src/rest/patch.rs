//! PATCH in its four kinds.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::{Response, StatusCode};
use moorline_machinery::{
    apply::Force,
    decode::{self, Limits, StrictProblem},
    field::{FieldError, Path},
    gvk::{GroupKind, split_api_version},
    meta,
    patch::{self, PatchError},
    status::{ApiError, Reason},
};
use serde_json::Value;

use super::{
    Call, WriteOptions,
    options::content_type,
    update::{Changed, change_object},
    write::{self, Managed},
};
use crate::{admission::Operation, body::Body};

pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
pub(crate) const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// PATCH of an object or of its status.
pub(crate) async fn patch(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(call)?;
    let options = WriteOptions::parse(call)?;
    check_options(call)?;
    if kind == APPLY_PATCH {
        return apply(call, &options).await;
    }
    let mut warnings = Vec::new();
    let mut document = parse(&call.body, kind)?;
    if kind == JSON_PATCH {
        for problem in &mut document.duplicates {
            if let StrictProblem::DuplicateField(path) = problem {
                *problem = StrictProblem::DuplicatePatchField(std::mem::take(path));
            }
        }
    }
    let said = Mutex::new(Vec::new());
    let patched = |old: &Value| {
        let mut object = old.clone();
        match kind {
            JSON_PATCH => patch::json_patch(&mut object, &document.value),
            MERGE_PATCH => patch::merge_patch(&mut object, &document.value),
            _ => patch::strategic_merge_patch(old, &document.value, call.resource.schema.get())
                .map(|patched| object = patched),
        }
        .map_err(|error| refused(&error))?;
        Ok::<Value, ApiError>(object)
    };
    let change = |old: &Value| {
        let mut object = patched(old)?;
        check_identity(&object, old)?;
        let mut problems = document.duplicates.clone();
        let unknown = call.resource.unknown_fields(&mut object).or_else(|error| {
            let why = error.to_string();
            let (_, why) = why.split_once(" cannot be handled as a ").unwrap_or(("", &why));
            let why = why.split_once(": ").map_or(why, |(_, why)| why);
            Err(invalid_patch(patched(old)?.to_string(), why))
        });
        problems.extend(unknown?);
        let judged = match options.validation.judge(problems) {
            Ok(judged) => judged,
            Err(error) => return Err(invalid_patch(patched(old)?.to_string(), error)),
        };
        *said.lock().unwrap_or_else(PoisonError::into_inner) = judged;
        Ok(Changed {
            object,
            managed: Managed::NotYet,
        })
    };
    let written = change_object(call, &options, Operation::Update, &mut warnings, change).await;
    warnings.extend(said.into_inner().unwrap_or_else(PoisonError::into_inner));
    let written = call.asides.keep(written, &mut warnings)?;
    call.answer_written(StatusCode::OK, written, &warnings).await
}

/// What kind of patch a request carries.
pub(crate) fn kind_of<'c>(call: &'c Call<'_>) -> Result<&'c str, ApiError> {
    let kind = content_type(call.headers);
    let strategic = call.resource.strategy.takes_strategic_patches();
    match kind {
        JSON_PATCH | MERGE_PATCH | APPLY_PATCH => Ok(kind),
        STRATEGIC_PATCH if strategic => Ok(kind),
        _ if strategic => Err(ApiError::not_consumed()),
        _ => Err(ApiError::unsupported_media_type(&[
            JSON_PATCH,
            MERGE_PATCH,
            APPLY_PATCH,
        ])),
    }
}

/// A server-side apply: the object is made if it is not there.
async fn apply(call: &Call<'_>, options: &WriteOptions) -> Result<Response<Body>, ApiError> {
    let mut warnings = Vec::new();
    let decoded = decode::yaml(&call.body, &Limits::default()).map_err(|error| {
        ApiError::bad_request(format!("error decoding YAML: error converting YAML to JSON: {error}"))
    })?;
    let wanted = match decoded.value {
        Value::Null => serde_json::json!({}),
        Value::Object(fields) => Value::Object(fields),
        other => {
            return Err(ApiError::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go \
                 value of type map[string]interface {{}}",
                decode::json_type(&other)
            )));
        }
    };
    check_applied(call, &wanted)?;
    // What no schema knows cannot be owned, whatever the request wants done about such fields.
    write::check_applied(call, &wanted)?;
    let judged = options.validation.judge(decoded.duplicates).map_err(|error| {
        ApiError::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: {}",
            error.problems()
        ))
    });
    warnings.extend(judged?);
    let force = if call.query.flag("force") {
        Force::Yes
    } else {
        Force::No
    };
    loop {
        if call.core.store.get(&call.key()).is_none() {
            if !call.path.subresource.is_empty() {
                return Err(ApiError::not_found(&call.resource.group_resource(), &call.path.name));
            }
            let object = write::applied(call, None, &wanted, options, force)?;
            let written = write::create_object(call, object, Managed::Already, options, &mut warnings).await;
            match written {
                // Somebody else made it meanwhile; apply to that.
                Err(error) if error.reason() == Reason::AlreadyExists => continue,
                written => {
                    let written = call.asides.keep(written, &mut warnings)?;
                    return call.answer_written(StatusCode::CREATED, written, &warnings).await;
                }
            }
        }
        let change = |old: &Value| {
            let object = write::applied(call, Some(old), &wanted, options, force)?;
            Ok(Changed {
                object,
                managed: Managed::Already,
            })
        };
        let written = change_object(call, options, Operation::Update, &mut warnings, change).await;
        match written {
            // Somebody else deleted it meanwhile; make it.
            Err(error) if error.code() == 404 && call.path.subresource.is_empty() => {}
            written => {
                let written = call.asides.keep(written, &mut warnings)?;
                return call.answer_written(StatusCode::OK, written, &warnings).await;
            }
        }
    }
}

/// A JSON or merge patch of something that is no object of a resource, such as a scale.
pub(crate) fn patched_plainly(kind: &str, body: &Bytes, old: &Value) -> Result<Value, ApiError> {
    let document = parse(body, kind)?.value;
    let mut patched = old.clone();
    match kind {
        JSON_PATCH => patch::json_patch(&mut patched, &document),
        // A scale has no lists, so both kinds of merge come to the same.
        _ => patch::merge_patch(&mut patched, &document),
    }
    .map_err(|error| refused(&error))?;
    Ok(patched)
}

fn parse(body: &Bytes, kind: &str) -> Result<decode::Decoded, ApiError> {
    decode::json(body, &Limits::default()).map_err(|error| {
        ApiError::bad_request(match kind {
            STRATEGIC_PATCH => error.to_string(),
            _ => format!("error decoding patch: {error}"),
        })
    })
}

fn refused(error: &PatchError) -> ApiError {
    match error.code() {
        400 => ApiError::bad_request(error.to_string()),
        413 => ApiError::request_entity_too_large(patch::MAX_OPERATIONS),
        // A real API server says neither which operation failed nor on what, and clients compare these words.
        422 => ApiError::new(
            422,
            Reason::Invalid,
            "the server rejected our request due to an error in our request",
        )
        .with_details(moorline_machinery::status::Details::default()),
        _ => ApiError::internal(error),
    }
}

fn invalid_patch(patched: String, why: impl std::fmt::Display) -> ApiError {
    let error = FieldError::invalid(&Path::root("patch"), patched, why.to_string());
    ApiError::invalid(&GroupKind::new("", ""), "", &[error])
}

fn check_identity(object: &Value, old: &Value) -> Result<(), ApiError> {
    let (new, old) = (meta::of(object), meta::of(old));
    if new.name() != old.name() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            new.name(),
            old.name()
        )));
    }
    if new.namespace() != old.namespace() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

fn check_options(call: &Call<'_>) -> Result<(), ApiError> {
    let kind = GroupKind::new("meta.k8s.io", "PatchOptions");
    let applying = content_type(call.headers) == APPLY_PATCH;
    if applying && call.query.get("fieldManager").unwrap_or_default().is_empty() {
        let error = FieldError::required(&Path::root("fieldManager"), "is required for apply patch");
        return Err(ApiError::invalid(&kind, "", &[error]));
    }
    if !applying && call.query.get("force").is_some() {
        let error = FieldError::forbidden(&Path::root("force"), "may not be specified for non-apply patch");
        return Err(ApiError::invalid(&kind, "", &[error]));
    }
    Ok(())
}

/// What a server-side apply must say of itself, and may not say.
fn check_applied(call: &Call<'_>, wanted: &Value) -> Result<(), ApiError> {
    let kind = &call.resource.gvk;
    if wanted["apiVersion"].as_str() != Some(&kind.api_version()) || wanted["kind"].as_str() != Some(&kind.kind) {
        let given = |name: &str| wanted[name].as_str().unwrap_or_default();
        let (group, version) = split_api_version(given("apiVersion")).unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "invalid object type: {group}/{version}, Kind={}",
            given("kind")
        )));
    }
    if !wanted["metadata"]["managedFields"].is_null() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let name = meta::of(wanted).name();
    if !name.is_empty() && name != call.path.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.path.name
        )));
    }
    Ok(())
}

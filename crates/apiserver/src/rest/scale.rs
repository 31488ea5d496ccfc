//! The scale of an object: how many of it there shall be, whatever kind it is.

use http::{Response, StatusCode};
use moorline_machinery::{
    field::{FieldError, Path},
    gvk::GroupKind,
    meta,
    status::ApiError,
};
use serde_json::{Value, json};

use super::{
    Call, WriteOptions, options, patch, read,
    update::{Changed, change_object},
    write::Managed,
};
use crate::{admission::Operation, body::Body, path::Verb, respond, strategy::ScalePaths};

/// GET, PUT and PATCH of a scale.
pub(crate) async fn handle(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let Some(paths) = call.resource.strategy.scale() else {
        return Err(ApiError::path_not_found());
    };
    if call.verb == Verb::Get {
        let record = read::get(call, None)?;
        let object = call.core.object_of(&call.resource, &record).await?;
        if call.resource.strategy.as_custom().is_some() && object.pointer(&paths.spec).is_none_or(Value::is_null) {
            let path = paths.spec.replace('/', ".");
            return Err(ApiError::internal(format!(
                "the spec replicas field {path:?} does not exist"
            )));
        }
        let scale = scale_of(&object, &paths);
        return Ok(respond::value(StatusCode::OK, &scale, call.answer.encoding));
    }
    let wish = match call.verb {
        Verb::Update => Wish::Whole(options::decode(call.headers, &call.body, "Scale")?.value),
        _ => Wish::Patch(patch::kind_of(call)?),
    };
    let options = WriteOptions::parse(call)?;
    let mut warnings = Vec::new();
    let change = |old: &Value| {
        let scale = scale_of(old, &paths);
        let wanted = match &wish {
            Wish::Whole(scale) => scale.clone(),
            Wish::Patch(kind) => patch::patched_plainly(kind, &call.body, &scale)?,
        };
        rescaled(old, &wanted, &paths).map(|object| Changed {
            object,
            managed: Managed::NotYet,
        })
    };
    let written = change_object(call, &options, Operation::Update, &mut warnings, change).await?;
    let object = match written {
        super::write::Written::Stored(record) => call.core.object_of(&call.resource, &record).await?,
        super::write::Written::Only(object) => object,
    };
    let mut response = respond::value(StatusCode::OK, &scale_of(&object, &paths), call.answer.encoding);
    for warning in &warnings {
        respond::warn(&mut response, warning);
    }
    Ok(response)
}

enum Wish<'c> {
    Whole(Value),
    /// By a patch of this kind.
    Patch(&'c str),
}

/// The object with the wished number.
pub(crate) fn rescaled(old: &Value, scale: &Value, paths: &ScalePaths) -> Result<Value, ApiError> {
    let kind = GroupKind::new("autoscaling", "Scale");
    let name = meta::of(old).name();
    if meta::of(scale).name() != name {
        let message = format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            meta::of(scale).name()
        );
        return Err(ApiError::bad_request(message));
    }
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        let spec = Path::root("spec");
        let error = FieldError::invalid(&spec.child("replicas"), replicas, "must be greater than or equal to 0");
        return Err(ApiError::invalid(&kind, name, &[error]));
    }
    let mut object = old.clone();
    set(&mut object, &paths.spec, json!(replicas));
    let (wanted, current) = (meta::of(scale).resource_version(), meta::of(old).resource_version());
    meta::set_resource_version(&mut object, if wanted.is_empty() { current } else { wanted });
    Ok(object)
}

/// An object's scale.
pub(crate) fn scale_of(object: &Value, paths: &ScalePaths) -> Value {
    let meta = meta::of(object);
    let mut metadata = json!({});
    for (name, text) in [
        ("name", meta.name()),
        ("namespace", meta.namespace()),
        ("uid", meta.uid()),
        ("resourceVersion", meta.resource_version()),
        ("creationTimestamp", meta.creation_timestamp().unwrap_or_default()),
    ] {
        if !text.is_empty() {
            metadata[name] = text.into();
        }
    }
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut status = json!({ "replicas": number(&paths.status) });
    let selector = paths
        .selector
        .as_deref()
        .and_then(|pointer| object.pointer(pointer))
        .map(selector_text);
    if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
        status["selector"] = selector.into();
    }
    let replicas = number(&paths.spec);
    let spec = if replicas == 0 {
        json!({})
    } else {
        json!({ "replicas": replicas })
    };
    json!({ "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status })
}

/// A selector as text, however the kind writes it.
fn selector_text(selector: &Value) -> String {
    use moorline_machinery::selector::LabelSelector;
    match selector {
        Value::String(text) => text.clone(),
        Value::Object(fields) if fields.contains_key("matchLabels") || fields.contains_key("matchExpressions") => {
            LabelSelector::from_json(Some(selector))
                .map(|selector| selector.to_string())
                .unwrap_or_default()
        }
        Value::Object(_) => LabelSelector::from_json(Some(&json!({ "matchLabels": selector })))
            .map(|selector| selector.to_string())
            .unwrap_or_default(),
        _ => String::new(),
    }
}

fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut place = object;
    for name in pointer.split('/').skip(1) {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[name];
    }
    *place = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_scales_by_its_replicas() {
        let deployment = json!({
            "metadata": { "name": "d", "namespace": "n", "uid": "u", "resourceVersion": "5" },
            "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "d" } } }, "status": { "replicas": 2 },
        });
        let paths = ScalePaths::workload();
        let scale = scale_of(&deployment, &paths);
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"], json!({ "replicas": 2, "selector": "app=d" }));
        let wanted = json!({ "metadata": { "name": "d" }, "spec": { "replicas": 5 } });
        assert_eq!(rescaled(&deployment, &wanted, &paths).unwrap()["spec"]["replicas"], 5);
        let negative = json!({ "metadata": { "name": "d" }, "spec": { "replicas": -1 } });
        assert_eq!(rescaled(&deployment, &negative, &paths).unwrap_err().code(), 422);
    }
}

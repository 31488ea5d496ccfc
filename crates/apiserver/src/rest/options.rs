//! The options of a write, and the decoding of what is written.

use bytes::Bytes;
use http::{HeaderMap, header};
use moorline_machinery::{
    decode::{self, DecodeError, Decoded, FieldValidation, Limits},
    field::Path,
    gvk::{GroupKind, GroupVersionKind},
    meta,
    status::ApiError,
};
use serde_json::{Value, json};

use super::Call;
use crate::{builtin::schema, core::Core, resource::ResourceType};

/// The options that all writes share.
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    pub(crate) validation: FieldValidation,
}

impl WriteOptions {
    pub(crate) fn parse(call: &Call<'_>) -> Result<Self, ApiError> {
        let user_agent = call
            .headers
            .get(header::USER_AGENT)
            .and_then(|agent| agent.to_str().ok());
        let validation = call.query.get("fieldValidation").unwrap_or_default();
        let kind = GroupKind::new("meta.k8s.io", call.verb.options_kind());
        let mut errors = Vec::new();
        let given = call.query.get("fieldManager").unwrap_or_default();
        meta::validate_field_manager(given, &Path::root("fieldManager"), &mut errors);
        if !errors.is_empty() {
            return Err(ApiError::invalid(&kind, "", &errors));
        }
        Ok(Self {
            dry_run: call.query.dry_run(&kind)?,
            manager: call.query.field_manager(user_agent),
            validation: FieldValidation::parse(validation).map_err(|error| ApiError::invalid(&kind, "", &[error]))?,
        })
    }

    /// As an object of the API, for webhooks.
    pub(crate) fn as_object(&self, kind: &str) -> Value {
        let mut options = json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1", "fieldManager": self.manager });
        if self.dry_run {
            options["dryRun"] = json!(["All"]);
        }
        options
    }
}

/// The media type of a request's body, without parameters.
pub(crate) fn content_type(headers: &HeaderMap) -> &str {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// How the body of a request that carries an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    Json,
    Yaml,
    Protobuf,
}

impl Writing {
    const KNOWN: [(&str, Self); 3] = [
        ("application/json", Self::Json),
        ("application/yaml", Self::Yaml),
        ("application/vnd.kubernetes.protobuf", Self::Protobuf),
    ];

    /// As the request says. One that says nothing means JSON.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let given = content_type(headers);
        if given.is_empty() {
            return Ok(Self::Json);
        }
        let known = Self::KNOWN.iter().find(|(name, _)| name.eq_ignore_ascii_case(given));
        known
            .map(|(_, writing)| *writing)
            .ok_or_else(|| ApiError::unsupported_media_type(&Self::KNOWN.map(|(name, _)| name)))
    }
}

/// Why a body is no object.
pub(crate) enum Unreadable {
    /// It cannot be read, for a reason in words.
    Body(String),
    /// The request is refused for something else.
    Refused(ApiError),
}

impl From<DecodeError> for Unreadable {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::TooLong { limit } => Self::Refused(ApiError::request_entity_too_large(limit)),
            DecodeError::Yaml(_) => Self::Body(error.to_string()),
            _ => Self::Body(format!("couldn't get version/kind; json parse error: {error}")),
        }
    }
}

/// A body of any content type that is understood, as JSON, that says of itself what kind it is if it says so at all.
fn read(headers: &HeaderMap, body: &Bytes) -> Result<Decoded, Unreadable> {
    let decoded = match Writing::of(headers).map_err(Unreadable::Refused)? {
        Writing::Json => decode::json(body, &Limits::default())?,
        Writing::Yaml => decode::yaml(body, &Limits::default())?,
        Writing::Protobuf => Decoded {
            value: Core::protobuf(body).map_err(|error| Unreadable::Body(error.to_string()))?,
            duplicates: Vec::new(),
        },
    };
    match decode::type_fault(&decoded.value) {
        None => Ok(decoded),
        Some(fault) => Err(Unreadable::Body(fault)),
    }
}

/// A body of any content type that is understood, as JSON. `expected` names the kind in complaints.
pub(crate) fn decode(headers: &HeaderMap, body: &Bytes, expected: &str) -> Result<Decoded, ApiError> {
    read(headers, body).map_err(|error| match error {
        Unreadable::Body(why) => decode::unrecognized(expected, why, body),
        Unreadable::Refused(error) => error,
    })
}

/// The body of a request that carries options, of which no more is told than what is wrong.
pub(crate) fn decode_options(headers: &HeaderMap, body: &Bytes, expected: &str) -> Result<Value, ApiError> {
    let decoded = read(headers, body).map_err(|error| match error {
        Unreadable::Body(why) => ApiError::bad_request(why),
        Unreadable::Refused(error) => error,
    })?;
    let options = decoded.value;
    match options["kind"].as_str() {
        Some(kind) if !kind.is_empty() && kind != expected => {
            let version = options["apiVersion"].as_str().filter(|version| !version.is_empty());
            let version = version.unwrap_or("meta.k8s.io/v1");
            Err(ApiError::bad_request(unregistered(version, kind)))
        }
        _ => Ok(options),
    }
}

/// The object that a write carries: decoded, of the right kind, in the right place, without fields that nobody knows.
pub(crate) fn object(call: &Call<'_>, options: &WriteOptions, warnings: &mut Vec<String>) -> Result<Value, ApiError> {
    let kind = &call.resource.gvk;
    let Decoded {
        value: mut object,
        duplicates,
    } = decode(call.headers, &call.body, &kind.kind)?;
    if object.is_null() {
        object = json!({});
    }
    check_type(&object, &call.resource)?;
    let given = meta::of(&object).namespace();
    if !given.is_empty() && call.resource.namespaced && given != call.path.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let mut problems = duplicates;
    problems.extend(call.resource.unknown_fields(&mut object)?);
    if call.resource.strategy.as_custom().is_none() && Writing::of(call.headers)? == Writing::Json {
        decode::in_text_order(&call.body, &mut problems);
    }
    let said = options.validation.judge(problems);
    warnings.extend(said.map_err(|error| decode::cannot_be_handled(kind, &kind.kind, error))?);
    Ok(object)
}

/// An object may leave out its type; if it names one, it must be the one of the path.
fn check_type(object: &Value, resource: &ResourceType) -> Result<(), ApiError> {
    let expected = &resource.gvk;
    let (version, kind) = (object["apiVersion"].as_str(), object["kind"].as_str());
    let (Some(version), Some(kind)) = (version.filter(|v| !v.is_empty()), kind.filter(|k| !k.is_empty())) else {
        return Ok(());
    };
    let (group, number) = version.split_once('/').unwrap_or(("", version));
    let given = GroupVersionKind::new(group, number, kind);
    let custom = resource.strategy.as_custom().is_some();
    if given == *expected {
        return Ok(());
    }
    if !custom && schema::facts().kind(version, kind).is_none() {
        return Err(decode::cannot_be_handled(
            &given,
            &expected.kind,
            unregistered(version, kind),
        ));
    }
    if !custom && kind != &*expected.kind {
        let types = (go_type(&given), resource.go_type(&expected.kind));
        return Err(decode::cannot_be_handled(
            &given,
            &expected.kind,
            format_args!("converting ({}) to ({}): unknown conversion", types.0, types.1),
        ));
    }
    if version != expected.api_version() {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({})",
            expected.api_version()
        )));
    }
    if kind != &*expected.kind {
        return Err(decode::cannot_be_handled(
            &given,
            &expected.kind,
            format_args!("converting ({kind}) to ({}): unknown conversion", expected.kind),
        ));
    }
    Ok(())
}

/// What is said of a kind that nobody knows.
fn unregistered(version: &str, kind: &str) -> String {
    format!("no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\"")
}

/// What a real API server calls the type of a kind in one of its versions.
fn go_type(kind: &GroupVersionKind) -> String {
    format!("{}.{}", kind.version, kind.kind)
}

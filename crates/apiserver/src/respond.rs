//! Answers: bytes, values, events and errors as HTTP responses.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use moorline_machinery::status::ApiError;
use serde_json::Value;

use crate::{body::Body, negotiate::Encoding};

/// An answer of JSON bytes, rewritten as YAML for those who want that.
pub(crate) fn json(status: StatusCode, bytes: Bytes, encoding: Encoding) -> Response<Body> {
    match encoding {
        Encoding::Json => typed(status, "application/json", bytes),
        Encoding::Yaml => {
            let parsed: Value = serde_json::from_slice(&bytes).expect("what is answered is JSON");
            value(status, &parsed, encoding)
        }
    }
}

/// An answer of a JSON value.
pub(crate) fn value(status: StatusCode, value: &Value, encoding: Encoding) -> Response<Body> {
    match encoding {
        Encoding::Json => {
            let mut bytes = serde_json::to_vec(value).expect("a JSON value can be written");
            bytes.push(b'\n');
            typed(status, "application/json", bytes.into())
        }
        Encoding::Yaml => {
            let text = serde_saphyr::to_string(value).expect("every JSON value has a YAML text");
            typed(status, "application/yaml", text.into())
        }
    }
}

/// A stream of watch events.
pub(crate) fn events(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    no_store(&mut response);
    response
}

/// The answer to a request that failed.
pub(crate) fn error(error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // In the order of Go's fields: there are clients that compare the text.
    let mut bytes = serde_json::to_vec(error.status()).expect("a status can be written");
    bytes.push(b'\n');
    let mut response = typed(status, "application/json", bytes.into());
    let retry = error
        .status()
        .details
        .as_ref()
        .map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, retry.into());
    }
    response
}

/// An answer of plain text.
pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let mut response = typed(status, "text/plain; charset=utf-8", text.into().into());
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Adds a warning for people, as kubectl prints them.
pub(crate) fn warn(response: &mut Response<Body>, warning: &str) {
    let quoted = warning
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace(['\n', '\r'], " ");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
        response.headers_mut().append(header::WARNING, value);
    }
}

fn typed(status: StatusCode, content_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::whole(bytes));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    no_store(&mut response);
    response
}

fn no_store(response: &mut Response<Body>) {
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
}

//! Requests to the API as bytes, so that objects are decoded once and by us.

use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::{
    kind::Kind,
    object::{Object, Target},
};

/// What RFC 3986 leaves as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A query string.
pub(crate) fn query(parameters: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, ENCODED)))
        .collect();
    pairs.join("&")
}

/// Why a request did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The server answered and refused.
    #[error("{message}")]
    Refused {
        status: StatusCode,
        reason: String,
        message: String,
    },
    /// No answer came: whether the request took effect is not known.
    #[error("no answer: {0}")]
    Unanswered(String),
    /// The answer cannot be read: whether the request took effect is not known.
    #[error("an unreadable answer: {0}")]
    Unreadable(String),
}

impl RequestError {
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Refused { reason, .. } => reason,
            _ => "",
        }
    }

    pub(crate) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the request may have taken effect all the same.
    pub(crate) fn is_uncertain(&self) -> bool {
        match self {
            Self::Refused { status, .. } => status.is_server_error(),
            Self::Unanswered(_) | Self::Unreadable(_) => true,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    reason: String,
    message: String,
}

/// Sends a request; gives the bytes of a good answer.
pub(crate) async fn send(
    client: &kube::Client,
    method: Method,
    path: &str,
    content: Option<(&str, Vec<u8>)>,
) -> Result<Vec<u8>, RequestError> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, "application/json");
    let body = match content {
        Some((kind, bytes)) => {
            request = request.header(header::CONTENT_TYPE, kind);
            Body::from(bytes)
        }
        None => Body::empty(),
    };
    let request = request
        .body(body)
        .map_err(|error| RequestError::Unreadable(error.to_string()))?;
    let response = client
        .send(request)
        .await
        .map_err(|error| RequestError::Unanswered(chain(&error)))?;
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| RequestError::Unanswered(chain(&error)))?;
    let bytes = body.to_bytes();
    if status.is_success() {
        return Ok(bytes.to_vec());
    }
    let problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
    let message = if problem.message.is_empty() {
        status.to_string()
    } else {
        problem.message
    };
    Err(RequestError::Refused {
        status,
        reason: problem.reason,
        message,
    })
}

/// An error with everything that caused it, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.contains(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = error.source();
    }
    text
}

/// The path of one object.
pub(crate) fn path_of(target: &Target) -> String {
    let namespace = (!target.namespace.is_empty()).then_some(&*target.namespace);
    let name = utf8_percent_encode(&target.name, ENCODED);
    format!("{}/{name}", target.kind.path(namespace))
}

/// Reads one object from the server itself.
pub(crate) async fn get(client: &kube::Client, target: &Target) -> Result<Option<Object>, RequestError> {
    match send(client, Method::GET, &path_of(target), None).await {
        Ok(bytes) => read(&target.kind, &bytes).map(Some),
        Err(RequestError::Refused {
            status: StatusCode::NOT_FOUND,
            ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn read(kind: &Kind, bytes: &[u8]) -> Result<Object, RequestError> {
    Object::read(kind, bytes, &[]).map_err(|error| RequestError::Unreadable(error.to_string()))
}

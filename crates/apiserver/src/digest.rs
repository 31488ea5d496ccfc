//! Documents that clients keep: each is tagged with a digest of its content, and not sent again to one who has it.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use sha2::{Digest as _, Sha512};

use crate::body::Body;

/// Bytes with the digest of their content.
#[derive(Clone, Debug)]
pub(crate) struct Tagged {
    pub(crate) bytes: Bytes,
    /// In hexadecimal digits, without the quotes of an entity tag.
    pub(crate) digest: String,
}

impl Tagged {
    pub(crate) fn new(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let digest = digest(&bytes);
        Self { bytes, digest }
    }

    pub(crate) fn json(content: &impl Serialize) -> Self {
        Self::new(serde_json::to_vec(content).expect("a description of the API can be written as JSON"))
    }
}

/// The digest of a content, in the form in which Kubernetes writes it.
pub(crate) fn digest(content: &[u8]) -> String {
    Sha512::digest(content)
        .iter()
        .fold(String::with_capacity(128), |mut text, byte| {
            let _ = write!(text, "{byte:02X}");
            text
        })
}

/// Answers with a document, or with 304 when the client has it already.
pub(crate) fn answer(document: &Tagged, content_type: HeaderValue, request: &HeaderMap) -> Response<Body> {
    let tag = format!("\"{}\"", document.digest);
    let known = request
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| {
            value
                .split(',')
                .map(str::trim)
                .any(|known| known == "*" || known.trim_start_matches("W/") == tag)
        });
    let mut response = Response::new(if known {
        Body::empty()
    } else {
        Body::whole(document.bytes.clone())
    });
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::ETAG, tag.parse().expect("digits and quotes are a header value"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

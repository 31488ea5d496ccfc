//! Requests to the API as bytes, so that objects are decoded once and by us.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::Instant;

use crate::{
    kind::Kind,
    object::{Object, Target},
};

/// What RFC 3986 leaves as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// How long an answer may take. A webhook may take thirty seconds, and what it says then should still be heard.
///
/// A list or a watch is bounded by itself: see the reflector.
const ANSWER_WITHIN: Duration = Duration::from_secs(35);

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
    /// The member is known not to answer, so that nothing was sent.
    #[error("the cluster does not answer: {0}")]
    NotSent(String),
    /// The member turned out not to answer: whether the request took effect is not known.
    #[error("the cluster does not answer: {0}")]
    GivenUp(String),
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
            Self::NotSent(_) => false,
            Self::Unanswered(_) | Self::GivenUp(_) | Self::Unreadable(_) => true,
        }
    }

    /// Whether a member is away, so that whoever asked is woken when it is back.
    pub(crate) fn is_of_absence(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::GivenUp(_))
    }
}

/// Where a request is: with the server, or still in a line of our own, which says nothing about the server.
///
/// It travels with the request, for whoever keeps the line.
#[derive(Clone, Debug)]
pub(crate) struct Whereabouts(Arc<Mutex<Place>>);

#[derive(Clone, Copy, Debug)]
enum Place {
    /// Waiting for its turn. Left by `leave`.
    InLine,
    /// Sent at this moment, as far as we can tell.
    Sent(Instant),
}

impl Whereabouts {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Place::Sent(Instant::now()))))
    }

    /// It has to wait for its turn.
    pub(crate) fn enter(&self) {
        self.set(Place::InLine);
    }

    /// Its turn has come.
    pub(crate) fn leave(&self) {
        self.set(Place::Sent(Instant::now()));
    }

    fn set(&self, place: Place) {
        *self.0.lock().expect("nothing panics while it holds this") = place;
    }

    /// Until when an answer is waited for, as things stand.
    fn deadline(&self) -> Instant {
        match *self.0.lock().expect("nothing panics while it holds this") {
            Place::InLine => Instant::now() + ANSWER_WITHIN,
            Place::Sent(at) => at + ANSWER_WITHIN,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    reason: String,
    message: String,
}

/// Sends a request; gives the bytes of a good answer, if it comes in time.
pub(crate) async fn send(
    client: &kube::Client,
    method: Method,
    path: &str,
    content: Option<(&str, Vec<u8>)>,
) -> Result<Vec<u8>, RequestError> {
    let whereabouts = Whereabouts::new();
    let mut asking = pin!(ask(client, method, path, content, whereabouts.clone()));
    let mut deadline = whereabouts.deadline();
    loop {
        if let Ok(answer) = tokio::time::timeout_at(deadline, &mut asking).await {
            return answer;
        }
        deadline = whereabouts.deadline();
        if deadline <= Instant::now() {
            return Err(RequestError::Unanswered(format!("none came within {ANSWER_WITHIN:?}")));
        }
    }
}

async fn ask(
    client: &kube::Client,
    method: Method,
    path: &str,
    content: Option<(&str, Vec<u8>)>,
    whereabouts: Whereabouts,
) -> Result<Vec<u8>, RequestError> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .extension(whereabouts)
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

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::Pending,
        task::{Context, Poll},
    };

    use super::*;

    /// A server that takes everything and answers nothing; requests stand in line before it for some time.
    #[derive(Clone)]
    struct Silent {
        line: Duration,
    }

    impl tower_service::Service<Request<Body>> for Silent {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Pending<Result<http::Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let whereabouts = request.extensions().get::<Whereabouts>().unwrap().clone();
            whereabouts.enter();
            let line = self.line;
            tokio::spawn(async move {
                tokio::time::sleep(line).await;
                whereabouts.leave();
            });
            std::future::pending()
        }
    }

    /// How long it takes until a request to a silent server is given up, and in which words.
    async fn given_up_after(line: Duration) -> (Duration, String) {
        let client = kube::Client::new(Silent { line }, "default");
        let started = Instant::now();
        let error = send(&client, Method::GET, "/version", None).await.unwrap_err();
        assert!(error.is_uncertain());
        (started.elapsed(), error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_answered_is_given_up() {
        let (after, words) = given_up_after(Duration::ZERO).await;
        assert!(after < ANSWER_WITHIN + Duration::from_secs(1), "{after:?}");
        assert_eq!(words, "no answer: none came within 35s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_in_our_own_line_is_not_the_servers() {
        let line = Duration::from_mins(3);
        let (after, _) = given_up_after(line).await;
        assert!(after >= line + ANSWER_WITHIN, "{after:?}");
        assert!(after < line + ANSWER_WITHIN + Duration::from_secs(1), "{after:?}");
    }
}

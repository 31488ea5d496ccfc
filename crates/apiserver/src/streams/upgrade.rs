//! From a request to a connection that speaks something else.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, request::Parts};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use moorline_machinery::status::ApiError;
use tokio::time::sleep;

use super::{Streams, websocket};
use crate::{body::Body, respond, serve::Stopping};

/// The connection underneath, once it is ours.
pub(super) type Io = TokioIo<Upgraded>;

/// How long a session may take for its last word when the server stops.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How SPDY is called in an upgrade.
pub(super) const SPDY: &str = "SPDY/3.1";

/// What SPDY clients name the protocol above it in.
pub(super) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// What a refused SPDY client is told in.
const ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// What a client wants to speak, and the protocols above that it knows, the best first.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// WebSocket, with its challenge.
    WebSocket { key: Bytes, protocols: Vec<String> },
    /// SPDY/3.1.
    Spdy { protocols: Vec<String> },
}

impl Asked {
    /// What a request asks for; nothing when it is an ordinary one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let upgrading = words(headers, &header::CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"));
        if !upgrading {
            return None;
        }
        let wanted = headers.get(header::UPGRADE)?.to_str().ok()?;
        if wanted.eq_ignore_ascii_case("websocket") {
            let key = headers.get(header::SEC_WEBSOCKET_KEY);
            let protocols = words(headers, &header::SEC_WEBSOCKET_PROTOCOL);
            return Some(Self::WebSocket {
                key: key.map_or_else(Bytes::new, |key| Bytes::copy_from_slice(key.as_bytes())),
                protocols: protocols.map(str::to_owned).collect(),
            });
        }
        wanted.eq_ignore_ascii_case(SPDY).then(|| Self::Spdy {
            protocols: words(headers, &STREAM_PROTOCOL).map(str::to_owned).collect(),
        })
    }

    /// What a request asks for, which must be a change of protocol.
    pub(super) fn required(headers: &HeaderMap) -> Result<Self, ApiError> {
        Self::of(headers).ok_or_else(|| ApiError::bad_request("Upgrade request required"))
    }
}

/// The words of a header that holds a list of them.
fn words<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// The first protocol of the client that the server speaks too.
pub(super) fn choose<'p>(offered: &'p [String], spoken: &[&str]) -> Option<&'p str> {
    offered.iter().map(String::as_str).find(|offer| spoken.contains(offer))
}

/// Agrees to WebSocket. A client that names no protocol gets none.
pub(super) fn websocket_answer(
    headers: &HeaderMap,
    key: &[u8],
    protocol: &str,
) -> Result<Response<Body>, Box<Response<Body>>> {
    let refuse = |why: &str| Box::new(respond::text(StatusCode::BAD_REQUEST, why));
    if headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != "13")
    {
        let mut refused = refuse("unable to upgrade: only version 13 of WebSocket is spoken");
        refused
            .headers_mut()
            .insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(refused);
    }
    if key.is_empty() {
        return Err(refuse("unable to upgrade: Sec-WebSocket-Key is missing"));
    }
    let mut response = switching("websocket");
    let accept = HeaderValue::from_str(&websocket::accept_key(key)).expect("base64 is a header value");
    response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if !protocol.is_empty() {
        let protocol = HeaderValue::from_str(protocol).expect("the protocols spoken are header values");
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(response)
}

/// Tells a WebSocket client that none of its protocols is spoken.
pub(super) fn websocket_refusal(offered: &[String], spoken: &[&str]) -> Response<Body> {
    let why = format!(
        "requested protocol(s) are not supported: [{}]; supports [{}]",
        offered.join(" "),
        spoken.join(" ")
    );
    respond::text(StatusCode::FORBIDDEN, why)
}

/// Agrees to SPDY with the first of the client's protocols that is spoken, or says which are.
pub(super) fn spdy_answer<'p>(
    offered: &'p [String],
    spoken: &[&str],
) -> Result<(&'p str, Response<Body>), Box<Response<Body>>> {
    let name = "X-Stream-Protocol-Version";
    if offered.is_empty() {
        let why = format!("unable to upgrade: header {name} does not exist in request");
        return Err(Box::new(respond::text(StatusCode::BAD_REQUEST, why)));
    }
    let Some(protocol) = choose(offered, spoken) else {
        let why = format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
            offered.join(" "),
            spoken.join(" ")
        );
        let mut refused = respond::text(StatusCode::FORBIDDEN, why);
        for protocol in spoken {
            let protocol = HeaderValue::from_str(protocol).expect("the protocols spoken are header values");
            refused.headers_mut().append(ACCEPTED_PROTOCOLS, protocol);
        }
        return Err(Box::new(refused));
    };
    let mut response = switching(SPDY);
    let value = HeaderValue::from_str(protocol).expect("it came in a header");
    response.headers_mut().insert(STREAM_PROTOCOL, value);
    Ok((protocol, response))
}

/// An answer after which the connection speaks something else.
pub(super) fn switching(protocol: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(protocol));
    response
}

/// A connection that will be ours once the answer has been sent.
pub(super) struct Switch {
    connection: OnUpgrade,
    stopping: Option<Stopping>,
    place: tokio::sync::OwnedSemaphorePermit,
}

impl Switch {
    /// Takes the connection of a request, if there is one and a place for it.
    pub(super) fn of(parts: &mut Parts, streams: &Streams) -> Result<Self, ApiError> {
        let Some(connection) = parts.extensions.remove::<OnUpgrade>() else {
            let why = "unable to upgrade: this connection cannot change its protocol; use HTTP/1.1 over a socket";
            return Err(ApiError::bad_request(why));
        };
        let place = streams.place()?;
        let stopping = parts.extensions.get::<Stopping>().cloned();
        Ok(Self {
            connection,
            stopping,
            place,
        })
    }

    /// Runs `talk` on the connection once it is there. It is given a future that is ready when the server stops.
    pub(super) fn then<F>(self, talk: impl FnOnce(Io, Stop) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let Self {
            connection,
            stopping,
            place,
        } = self;
        tokio::spawn(async move {
            match connection.await {
                Ok(upgraded) => talk(TokioIo::new(upgraded), Stop(stopping)).await,
                Err(error) => tracing::debug!(%error, "a client left before its connection changed its protocol"),
            }
            drop(place);
        });
    }
}

/// Tells when the server stops; never, where there is no server to stop.
#[derive(Clone, Debug)]
pub(super) struct Stop(Option<Stopping>);

impl Stop {
    /// For what ends by itself.
    #[cfg(test)]
    pub(super) fn never() -> Self {
        Self(None)
    }

    /// Waits until the server is about to stop.
    pub(super) async fn wait(&mut self) {
        match &mut self.0 {
            Some(stopping) => stopping.wait().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the server is about to stop and whoever heard of it had time for a last word.
    pub(super) async fn wait_longer(&mut self) {
        self.wait().await;
        sleep(LAST_WORD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }

    #[test]
    fn an_upgrade_is_what_both_headers_say() {
        let asked = Asked::of(&headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "k"),
            ("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io"),
        ]));
        let expected = Asked::WebSocket {
            key: Bytes::from_static(b"k"),
            protocols: vec!["v5.channel.k8s.io".to_owned(), "v4.channel.k8s.io".to_owned()],
        };
        assert_eq!(asked, Some(expected));
        let spdy = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert_eq!(Asked::of(&spdy), Some(Asked::Spdy { protocols: vec![] }));
        assert_eq!(Asked::of(&headers(&[("upgrade", "websocket")])), None);
        assert_eq!(
            Asked::of(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])),
            None
        );
    }

    #[test]
    fn a_spdy_client_is_told_what_is_spoken() {
        let offered = ["v9.channel.k8s.io".to_owned()];
        let refused = spdy_answer(&offered, &["v4.channel.k8s.io", "channel.k8s.io"])
            .err()
            .unwrap();
        assert_eq!(refused.status(), 403);
        let accepted: Vec<_> = refused.headers().get_all(ACCEPTED_PROTOCOLS).iter().collect();
        assert_eq!(accepted, ["v4.channel.k8s.io", "channel.k8s.io"]);
        assert_eq!(spdy_answer(&[], &["channel.k8s.io"]).err().unwrap().status(), 400);
    }
}

//! `pods/proxy`, `services/proxy` and `nodes/proxy`: HTTP through the server to what runs in the cluster.
//!
//! A request goes on as it came, without what is meant for this hop alone; links back to the server's own host are led
//! through the proxy again. A connection that changes its protocol is passed through from then on.

mod node;
mod rewrite;
mod target;
mod tls;

use std::{net::SocketAddr, pin::Pin, task, task::Poll, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body::Body as _;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use moorline_machinery::status::ApiError;
use tokio::time::timeout;

use super::{
    RequestBody, StreamCall,
    access::Duplex,
    multiplex::{Pulse, copy},
    upgrade::Switch,
};
use crate::{
    body::{self, Body},
    core::Core,
};
use rewrite::Links;
use target::{Scheme, Target};

/// How long a target may take to be connected to.
const CONNECTING: Duration = Duration::from_secs(30);

/// Headers that are meant for one hop.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Answers a request to a proxy.
pub(super) async fn answer(mut call: StreamCall<'_>) -> Result<Response<Body>, ApiError> {
    let uri = call.parts.uri.clone();
    let (prefix, rest) = split(uri.path());
    let target = match call.path.resource.as_str() {
        "nodes" => return node::answer(call.core, &call.path.name, &call.parts.method, rest).await,
        "services" => target::service(call.core, &call.path.namespace, &call.path.name)?,
        _ => target::pod(call.core, &call.path.namespace, &call.path.name)?,
    };
    let upgrading = is_upgrade(&call.parts.headers);
    if rest.is_empty() && !upgrading && matches!(call.parts.method, Method::GET | Method::HEAD) {
        // Relative links of the page behind would lead astray otherwise.
        return Ok(moved(&uri));
    }
    // Taken first, so that nothing is begun that has no place.
    let switch = if upgrading {
        Some(Switch::of(&mut call.parts, &call.core.streams)?)
    } else {
        None
    };
    let host = call.parts.headers.get(header::HOST).cloned();
    let body = std::mem::take(&mut call.body);
    let request = request(&call, &target, rest, body)?;
    let mut response = send(call.core, &target, request)
        .await
        .map_err(|why| ApiError::service_unavailable(format!("error trying to reach service: {why}")))?;
    let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    let links = Links {
        prefix: prefix.to_owned(),
        target: target.address,
        host: host.to_owned(),
    };
    match switch {
        Some(switch) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            pass_through(switch, &mut response);
            Ok(forwarded(response, links, true))
        }
        Some(_) if response.status().as_u16() < 400 => Err(ApiError::internal(format!(
            "invalid upgrade response: status code {}",
            response.status().as_u16()
        ))),
        _ => Ok(forwarded(response, links, false)),
    }
}

/// A path in two: up to the proxy, and what lies behind it, both as they were written.
fn split(path: &str) -> (&str, &str) {
    // Behind the first segments a name follows, which may itself be `proxy`.
    let mut slashes = path.match_indices('/').map(|(at, _)| at);
    let named = match path.strip_prefix("/api/v1/") {
        Some(rest) if rest.starts_with("namespaces/") => 6,
        _ => 4,
    };
    let end = slashes
        .nth(named)
        .map(|at| path[at + 1..].find('/').map_or(path.len(), |after| at + 1 + after));
    path.split_at(end.unwrap_or(path.len()))
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    headers.contains_key(header::UPGRADE)
        && values
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

fn moved(uri: &Uri) -> Response<Body> {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&format!("{}/{query}", uri.path())) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The request as it goes on.
fn request(
    call: &StreamCall<'_>,
    target: &Target,
    rest: &str,
    body: RequestBody,
) -> Result<Request<RequestBody>, ApiError> {
    let parts = &call.parts;
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = if rest.is_empty() { "/" } else { rest };
    let uri: Uri = format!("{path}{query}")
        .parse()
        .map_err(|error| ApiError::bad_request(format!("cannot go on to {path:?}: {error}")))?;
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    let mut headers = parts.headers.clone();
    let upgrade = is_upgrade(&headers)
        .then(|| headers.get(header::UPGRADE).cloned())
        .flatten();
    without_this_hop(&mut headers);
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    if !headers.contains_key(header::HOST) {
        let authority = parts
            .uri
            .authority()
            .map_or_else(|| target.address.to_string(), ToString::to_string);
        if let Ok(host) = HeaderValue::from_str(&authority) {
            headers.insert(header::HOST, host);
        }
    }
    if let Some(peer) = parts.extensions.get::<SocketAddr>() {
        let before = headers.get(&FORWARDED_FOR).and_then(|value| value.to_str().ok());
        let all = match before {
            Some(before) => format!("{before}, {}", peer.ip()),
            None => peer.ip().to_string(),
        };
        if let Ok(all) = HeaderValue::from_str(&all) {
            headers.insert(FORWARDED_FOR, all);
        }
    }
    if let Ok(original) = HeaderValue::from_str(parts.uri.path()) {
        headers.insert(FORWARDED_URI, original);
    }
    *request.headers_mut() = headers;
    Ok(request)
}

/// Takes out what is meant for one hop, and what its connection names as such.
fn without_this_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|word| word.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP).chain([&header::UPGRADE]) {
        headers.remove(name);
    }
}

/// Sends a request to its target, over a connection of its own.
async fn send(core: &Core, target: &Target, request: Request<RequestBody>) -> Result<Response<Incoming>, String> {
    let access = core.streams.access().map_err(|error| error.to_string())?;
    let connecting = async {
        let connection = access.dial(target.address).await.map_err(|error| error.to_string())?;
        match target.scheme {
            Scheme::Http => Ok(connection),
            Scheme::Https => tls::over(connection, target.address.ip())
                .await
                .map_err(|error| error.to_string()),
        }
    };
    let connection = timeout(CONNECTING, connecting)
        .await
        .map_err(|_| format!("dial tcp {}: i/o timeout", target.address))??;
    exchange(connection, request).await.map_err(|error| error.to_string())
}

async fn exchange(connection: Box<dyn Duplex>, request: Request<RequestBody>) -> hyper::Result<Response<Incoming>> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(async move {
        if let Err(error) = driver.with_upgrades().await {
            tracing::debug!(%error, "a proxied connection broke");
        }
    });
    sender.send_request(request).await
}

/// The answer as it goes back.
fn forwarded(response: Response<Incoming>, links: Links, switching: bool) -> Response<Body> {
    let (mut parts, incoming) = response.into_parts();
    let upgrade = parts.headers.get(header::UPGRADE).filter(|_| switching).cloned();
    without_this_hop(&mut parts.headers);
    if let Some(protocol) = upgrade {
        parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
    }
    // Who may read answers of the server is not for a pod to say.
    let shared: Vec<HeaderName> = parts
        .headers
        .keys()
        .filter(|name| name.as_str().starts_with("access-control-"))
        .cloned()
        .collect();
    for name in shared {
        parts.headers.remove(name);
    }
    let location = parts
        .headers
        .get(header::LOCATION)
        .and_then(|location| location.to_str().ok());
    if let Some(location) = location.and_then(|location| HeaderValue::from_str(&links.rewrite(location)).ok()) {
        parts.headers.insert(header::LOCATION, location);
    }
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    let body = if switching {
        Body::empty()
    } else if is_page(&parts.headers) && !incoming.is_end_stream() {
        parts.headers.remove(header::CONTENT_LENGTH);
        Body::stream(Page {
            passing: Passing(incoming),
            links,
            read: Some(Vec::new()),
        })
    } else {
        Body::stream(Passing(incoming))
    };
    Response::from_parts(parts, body)
}

/// Whether an answer has links that can be read: one that is compressed keeps them.
fn is_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_html = text(header::CONTENT_TYPE).is_some_and(|kind| kind.trim_start().starts_with("text/html"));
    is_html && text(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity")
}

/// A page on its way back, with links that lead through the proxy again. It is held until it is whole; one that is longer
/// than any page goes on as it is.
struct Page {
    passing: Passing,
    links: Links,
    /// What has come of it, until it goes on.
    read: Option<Vec<u8>>,
}

impl Page {
    const LONGEST: usize = 4 << 20;
}

impl body::Stream for Page {
    fn poll_piece(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let piece = task::ready!(Pin::new(&mut self.passing).poll_piece(context));
            let Some(mut read) = self.read.take() else {
                return Poll::Ready(piece);
            };
            let Some(piece) = piece else {
                let page = match String::from_utf8(read) {
                    Ok(page) => self.links.rewrite_page(&page).into(),
                    Err(other) => other.into_bytes(),
                };
                return Poll::Ready(Some(page.into()).filter(|page: &Bytes| !page.is_empty()));
            };
            read.extend_from_slice(&piece);
            if read.len() > Self::LONGEST {
                return Poll::Ready(Some(read.into()));
            }
            self.read = Some(read);
        }
    }
}

/// A body on its way back.
struct Passing(Incoming);

impl body::Stream for Passing {
    fn poll_piece(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match task::ready!(Pin::new(&mut self.0).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Poll::Ready(Some(bytes));
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "a proxied answer broke off");
                    return Poll::Ready(None);
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Copies between client and target from now on, until either ends.
fn pass_through(switch: Switch, response: &mut Response<Incoming>) {
    let target = hyper::upgrade::on(response);
    switch.then(move |client, mut stop| async move {
        let Ok(target) = target.await else { return };
        let (client_reader, client_writer) = tokio::io::split(client);
        let (target_reader, target_writer) = tokio::io::split(TokioIo::new(target));
        let pulse = Pulse::new();
        tokio::select! {
            () = copy(client_reader, target_writer, &pulse) => {}
            () = copy(target_reader, client_writer, &pulse) => {}
            () = stop.wait() => {}
            () = pulse.stopped() => {}
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_behind_its_proxy() {
        for (path, prefix, rest) in [
            (
                "/api/v1/namespaces/n/pods/p:80/proxy/a/proxy/b%20c/",
                "/api/v1/namespaces/n/pods/p:80/proxy",
                "/a/proxy/b%20c/",
            ),
            (
                "/api/v1/namespaces/n/services/proxy/proxy",
                "/api/v1/namespaces/n/services/proxy/proxy",
                "",
            ),
            (
                "/api/v1/namespaces/n/pods/p/proxy/",
                "/api/v1/namespaces/n/pods/p/proxy",
                "/",
            ),
            ("/api/v1/nodes/a/proxy/healthz", "/api/v1/nodes/a/proxy", "/healthz"),
        ] {
            assert_eq!(split(path), (prefix, rest), "{path}");
        }
    }

    #[test]
    fn what_is_meant_for_one_hop_goes_no_further() {
        let mut headers: HeaderMap = [
            (header::CONNECTION, "close, X-Mine"),
            (HeaderName::from_static("x-mine"), "1"),
            (HeaderName::from_static("x-theirs"), "2"),
            (header::TRANSFER_ENCODING, "chunked"),
        ]
        .map(|(name, value)| (name, HeaderValue::from_static(value)))
        .into_iter()
        .collect();
        without_this_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-theirs"]);
    }
}

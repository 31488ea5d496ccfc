//! `/healthz`, `/readyz` and `/metrics`.
//!
//! They are open to whoever reaches the port, without a secret and without encryption, because the kubelet's probes and
//! most scrapers have neither, and because nothing secret is told: no contents of objects, and of names only those of
//! kinds, controllers and hosts. So that a caller cannot do harm either, a connection carries one request, lives for ten
//! seconds at most, and only so many are open at once. Whoever wants less listens at `localhost:8080`, behind a proxy
//! that asks for a token, or nowhere.

use std::{
    convert::Infallible,
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore};

use crate::metrics::Metrics;

/// What callers may take of this process, at one address.
struct Limits {
    /// How many connections are open at once. The others wait, and cost no file descriptor that the client of the API
    /// server needs.
    connections: usize,
    /// How long a connection may take, until the last byte of its answer.
    time: Duration,
}

const LIMITS: Limits = Limits {
    connections: 64,
    time: Duration::from_secs(10),
};

/// Where to listen: `:8080`, `127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// At every address of the machine, of both families where it has both.
    Everywhere(u16),
    /// At one address.
    At(SocketAddr),
    /// At the first address of a name that can be listened on.
    Named(String, u16),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::At(address)
    }
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "is not an address and a port";
        if let Ok(address) = text.parse() {
            return Ok(Self::At(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(WRONG)?;
        let port = port.parse().map_err(|_| WRONG)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        match host {
            "" => Ok(Self::Everywhere(port)),
            _ if host.chars().all(is_name) => Ok(Self::Named(host.to_owned(), port)),
            _ => Err(WRONG),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everywhere(port) => write!(f, ":{port}"),
            Self::At(address) => address.fmt(f),
            Self::Named(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// What is served where.
#[derive(Clone)]
pub(crate) enum Pages {
    /// Health and readiness; the function tells what is not ready.
    Health(Arc<dyn Fn() -> Result<(), String> + Send + Sync>),
    Metrics(Box<Metrics>),
}

/// Serves for as long as the future is polled.
pub(crate) async fn serve(listener: TcpListener, pages: Pages) {
    serve_within(listener, pages, LIMITS).await;
}

async fn serve_within(listener: TcpListener, pages: Pages, limits: Limits) {
    let room = Arc::new(Semaphore::new(limits.connections));
    loop {
        let place = Arc::clone(&room).acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let answer = answer(&request, &pages);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answer);
            // A client that goes away in the middle, or is too slow, is its own affair.
            let _ = tokio::time::timeout(limits.time, connection).await;
            drop(place);
        });
    }
}

pub(crate) async fn listen(address: &Address) -> std::io::Result<TcpListener> {
    match address {
        // The IPv6 one takes both families. A machine may have been made without that family.
        Address::Everywhere(port) => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).await {
            Ok(listener) => Ok(listener),
            Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).await,
        },
        Address::At(address) => TcpListener::bind(address).await,
        Address::Named(host, port) => TcpListener::bind((host.as_str(), *port)).await,
    }
}

fn answer(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
    let only_asks = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, body) = match (request.uri().path(), pages) {
        _ if !only_asks => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET".to_owned()),
        ("/healthz" | "/livez", Pages::Health(_)) => (StatusCode::OK, "text/plain", "ok".to_owned()),
        ("/readyz", Pages::Health(ready)) => match ready() {
            Ok(()) => (StatusCode::OK, "text/plain", "ok".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", why),
        },
        ("/metrics", Pages::Metrics(metrics)) => (
            StatusCode::OK,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            metrics.to_text(),
        ),
        _ => (StatusCode::NOT_FOUND, "text/plain", "not found".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        time::Instant,
    };

    use super::*;

    /// Serves on a free port.
    async fn serving(address: &str) -> u16 {
        let listener = listen(&address.parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(serve(listener, Pages::Health(Arc::new(|| Ok(())))));
        port
    }

    async fn ask(mut stream: TcpStream, request: &str) -> String {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    const PROBE: &str = "GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n";

    #[tokio::test]
    async fn a_port_without_an_address_answers_in_both_families() {
        let port = serving(":0").await;
        let ipv4 = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        assert!(ask(ipv4, PROBE).await.starts_with("HTTP/1.1 200"));
        // A machine without this family has nobody who could ask by it.
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok() {
            let ipv6 = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
            assert!(ask(ipv6, PROBE).await.starts_with("HTTP/1.1 200"));
        }
    }

    #[tokio::test]
    async fn a_name_is_listened_on_and_what_is_no_address_refused() {
        let port = serving("localhost:0").await;
        let stream = TcpStream::connect(("localhost", port)).await.unwrap();
        assert!(ask(stream, PROBE).await.starts_with("HTTP/1.1 200"));
        for wrong in ["here", "8080", ":eighty", "a b:80", "::1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn only_reading_is_answered() {
        let port = serving("127.0.0.1:0").await;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let answer = ask(
            stream,
            "POST /healthz HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    }

    #[tokio::test]
    async fn silent_connections_are_closed_and_more_than_there_is_room_for_wait() {
        let listener = listen(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits {
            connections: 3,
            time: Duration::from_millis(300),
        };
        let began = Instant::now();
        tokio::spawn(serve_within(listener, Pages::Health(Arc::new(|| Ok(()))), limits));
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let one_more = TcpStream::connect(address).await.unwrap();
        assert!(ask(one_more, PROBE).await.starts_with("HTTP/1.1 200"));
        assert!(began.elapsed() >= Duration::from_millis(300), "there was room for it");
        for mut stream in silent {
            assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0, "it is closed");
        }
    }
}

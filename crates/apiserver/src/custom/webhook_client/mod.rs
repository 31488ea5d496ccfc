//! Calls to webhooks, for conversion and admission alike: JSON there, JSON back, over HTTPS, in time.
//!
//! A webhook is named by a URL or by a service of the cluster. A service `hook` in `system` is called as
//! `hook.system.svc`: that name its certificate must have, whatever address the service is found at.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use moorline_machinery::field::quote;
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::Value;
use tokio::net::TcpStream;
use tower_service::Service;

/// The most bytes that an answer may have: as much as the largest batch of objects that is sent.
const ANSWER_LIMIT: usize = 64 << 20;
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(90);
/// The most sets of certificates for which connections are kept.
const POOLS: usize = 64;

/// Where a webhook is, and whom to trust there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    uri: Uri,
    /// Certificates as PEM; empty for those that the system trusts.
    bundle: Bytes,
}

/// Finds the address behind a service.
pub(crate) trait FindService: Send + Sync {
    /// Where connections to a port of a service go, or why there is no such place.
    fn find(&self, namespace: &str, name: &str, port: u16) -> Result<SocketAddr, String>;
}

/// Why a webhook gave no answer, or none that can be read.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum WebhookError {
    /// The webhook is not described in a way that it could be called.
    #[error("{0}")]
    Configuration(String),
    /// It could not be reached, or fell silent.
    #[error("Post {}: {reason}", quote(url))]
    Unreachable {
        /// What was called.
        url: String,
        /// Why it failed.
        reason: String,
    },
    /// It took too long.
    #[error("Post {}: context deadline exceeded", quote(url))]
    TooSlow {
        /// What was called.
        url: String,
    },
    /// It answered, but not with success.
    #[error("{}", refusal(*status, body))]
    Refused {
        /// The status of the answer.
        status: StatusCode,
        /// The beginning of its body.
        body: String,
    },
    /// What it answered is too long or no JSON.
    #[error("{0}")]
    Unreadable(String),
}

/// What Kubernetes says of an answer that is no success and says nothing itself.
fn refusal(status: StatusCode, body: &str) -> String {
    match status.as_u16() {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => body.to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        406 => "the server was unable to respond with a content type that the client supports".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        500.. => format!(
            "an error on the server ({}) has prevented the request from succeeding",
            quote(body)
        ),
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}

impl Hook {
    /// Reads the `clientConfig` of a webhook.
    pub(crate) fn read(config: &Value) -> Result<Self, WebhookError> {
        let wrong = |what: String| WebhookError::Configuration(what);
        let address = match (config["url"].as_str(), &config["service"]) {
            (Some(url), _) => url.to_owned(),
            (None, service) if service.is_object() => {
                let text = |key: &str| service[key].as_str().unwrap_or_default();
                let port = service["port"].as_u64().unwrap_or(443);
                format!(
                    "https://{}.{}.svc:{port}/{}",
                    text("name"),
                    text("namespace"),
                    text("path").trim_start_matches('/')
                )
            }
            _ => {
                return Err(wrong(
                    "webhook configuration must have either service or URL".to_owned(),
                ));
            }
        };
        let uri: Uri = address
            .parse()
            .map_err(|error| wrong(format!("Unparsable URL: {error}")))?;
        let bundle = config["caBundle"].as_str().unwrap_or_default();
        let bundle = STANDARD
            .decode(bundle)
            .map_err(|error| wrong(format!("caBundle is not base 64: {error}")))?;
        Ok(Self {
            uri,
            bundle: bundle.trim_ascii().to_vec().into(),
        })
    }
}

/// Calls webhooks, and keeps connections to them. Shared by all who call.
pub(crate) struct WebhookClient {
    services: Arc<dyn FindService>,
    /// By the certificates that are trusted: a connection that one webhook trusts is nothing to another.
    pools: Mutex<HashMap<Bytes, Pool>>,
}

type Pool = Client<HttpsConnector<Dial>, Full<Bytes>>;

impl WebhookClient {
    /// A client that finds services through `services`.
    pub(crate) fn new(services: Arc<dyn FindService>) -> Self {
        Self {
            services,
            pools: Mutex::default(),
        }
    }

    /// Sends a body and waits for the answer, at most for `patience`. The query is added to the address.
    pub(crate) async fn post(
        &self,
        hook: &Hook,
        query: Option<&str>,
        body: &Value,
        patience: Duration,
    ) -> Result<Value, WebhookError> {
        let url = match query {
            Some(query) => format!("{}?{query}", hook.uri),
            None => hook.uri.to_string(),
        };
        let pool = self.pool(hook)?;
        match tokio::time::timeout(patience, exchange(&pool, &url, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(WebhookError::TooSlow { url }),
        }
    }

    fn pool(&self, hook: &Hook) -> Result<Pool, WebhookError> {
        // A pool is complete or not there: one who panicked while holding the lock has spoilt nothing.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&hook.bundle) {
            return Ok(pool.clone());
        }
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(trusting(&hook.bundle)?)
            .https_only()
            .enable_http1()
            .wrap_connector(Dial {
                services: Arc::clone(&self.services),
            });
        let pool = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        if pools.len() >= POOLS {
            pools.clear();
        }
        pools.insert(hook.bundle.clone(), pool.clone());
        Ok(pool)
    }
}

async fn exchange(pool: &Pool, url: &str, body: &Value) -> Result<Value, WebhookError> {
    let body = serde_json::to_vec(body).expect("a JSON value can be written");
    let request = Request::builder()
        .method(Method::POST)
        .uri(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, */*")
        .header(header::USER_AGENT, "kube-apiserver-admission")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| WebhookError::Configuration(error.to_string()))?;
    let unreachable = |reason: String| WebhookError::Unreachable {
        url: url.to_owned(),
        reason,
    };
    let response = pool
        .request(request)
        .await
        .map_err(|error| unreachable(deepest(&error)))?;
    let status = response.status();
    let bytes = match Limited::new(response.into_body(), ANSWER_LIMIT).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(WebhookError::Unreadable(format!(
                "the answer is longer than {ANSWER_LIMIT} bytes"
            )));
        }
        Err(error) => return Err(unreachable(error.to_string())),
    };
    if !status.is_success() {
        let shown = &bytes[..bytes.len().min(2048)];
        let body = String::from_utf8_lossy(shown).trim().to_owned();
        return Err(WebhookError::Refused { status, body });
    }
    serde_json::from_slice(&bytes).map_err(|error| WebhookError::Unreadable(error.to_string()))
}

/// The cause behind all causes, which is the one that says something.
fn deepest(error: &hyper_util::client::legacy::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn trusting(bundle: &Bytes) -> Result<ClientConfig, WebhookError> {
    let mut roots = RootCertStore::empty();
    if bundle.is_empty() {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
    }
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        let added = certificate
            .ok()
            .is_some_and(|certificate| roots.add(certificate).is_ok());
        if !added {
            let reason = "unable to load root certificates: failed to parse certificate";
            return Err(WebhookError::Configuration(reason.to_owned()));
        }
    }
    if !bundle.is_empty() && roots.is_empty() {
        let reason = "unable to load root certificates: unable to parse bytes as PEM block";
        return Err(WebhookError::Configuration(reason.to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| WebhookError::Configuration(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Connects to hosts, and to services by where they are found.
#[derive(Clone)]
struct Dial {
    services: Arc<dyn FindService>,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let services = Arc::clone(&self.services);
        Box::pin(async move {
            let host = uri
                .host()
                .unwrap_or_default()
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned();
            let port = uri.port_u16().unwrap_or(443);
            let (stream, address) = match service_of(&host) {
                Some((name, namespace)) => {
                    let address = services.find(namespace, name, port).map_err(io::Error::other)?;
                    (TcpStream::connect(address).await, address.to_string())
                }
                None => (
                    TcpStream::connect((host.as_str(), port)).await,
                    format!("{host}:{port}"),
                ),
            };
            let stream = stream.map_err(|error| {
                let reason = match error.kind() {
                    io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
                    _ => error.to_string(),
                };
                io::Error::new(error.kind(), format!("dial tcp {address}: connect: {reason}"))
            })?;
            // Reviews are small and each is waited for.
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Name and namespace of a service, from the name that it has within the cluster.
fn service_of(host: &str) -> Option<(&str, &str)> {
    let (name, namespace) = host.strip_suffix(".svc")?.split_once('.')?;
    (!namespace.contains('.')).then_some((name, namespace))
}

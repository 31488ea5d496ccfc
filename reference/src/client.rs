//! A plain client of an API server, by certificate: what is sent is what was written, to the byte.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use moorline_apiserver::certificates::Certificates;
use rustls::{ClientConfig, RootCertStore};

/// How long an answer may take; watches end by themselves long before.
const PATIENCE: Duration = Duration::from_mins(1);

/// One administrator of one server. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// What a server said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The code.
    pub status: StatusCode,
    /// All headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// What was to be sent is no HTTP request.
    #[error("cannot write the request")]
    Request(#[from] http::Error),
    /// The server could not be reached, or broke off.
    #[error("cannot reach the server")]
    Send(#[from] legacy::Error),
    /// The answer broke off.
    #[error("the answer broke off")]
    Body(#[from] hyper::Error),
    /// The answer took too long.
    #[error("no answer came in time")]
    Late,
}

impl Client {
    /// The administrator that the certificates name, at the server that they name.
    pub fn new(address: SocketAddr, certificates: &Certificates) -> Self {
        let mut roots = RootCertStore::empty();
        roots
            .add(certificates.authority.certificate().clone())
            .expect("the authority was made by the same library");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring speaks the protocols of rustls")
            .with_root_certificates(roots);
        let admin = &certificates.admin;
        let config = builder
            .with_client_auth_cert(vec![admin.certificate().clone()], admin.key())
            .expect("a certificate and its own key");
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_only()
            .enable_http1()
            .wrap_connector(connector);
        Self {
            address,
            http: legacy::Client::builder(TokioExecutor::new()).build(connector),
        }
    }

    /// Sends a request and takes the whole answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Result<Answer, ClientError> {
        let whole = async {
            let response = self.open(method, path, headers, body).await?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(Answer {
                status: parts.status,
                headers: parts.headers,
                body,
            })
        };
        tokio::time::timeout(PATIENCE, whole)
            .await
            .unwrap_or(Err(ClientError::Late))
    }

    /// Sends a request and returns as soon as the head of the answer is there: how a watch is followed.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Result<http::Response<Incoming>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        Ok(self.http.request(request.body(Full::new(body))?).await?)
    }
}

//! A server without a socket, and webhooks with one.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, crypto::ring};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::server::{ApiServer, Config};

/// What a webhook says to the request of a review; null keeps it waiting for ever.
type Judge = dyn Fn(&Value) -> Value + Send + Sync;

/// A webhook at work, and the requests that it was asked about.
pub(super) struct Webhook {
    pub(super) url: String,
    bundle: String,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Webhook {
    pub(super) async fn start(judge: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
            .unwrap()
            .signed_by(&key, &authority)
            .unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/admit", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (judge, seen): (Arc<Judge>, _) = (Arc::new(judge), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let (judge, seen) = (Arc::clone(&judge), Arc::clone(&seen));
                let service = service_fn(move |request| answer(request, Arc::clone(&judge), Arc::clone(&seen)));
                let serving =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serving);
            }
        });
        Self {
            url,
            bundle: STANDARD.encode(authority.pem()),
            asked,
        }
    }

    /// Its entry in a configuration: about config maps, unless `more` says otherwise.
    pub(super) fn entry(&self, name: &str, more: Value) -> Value {
        let mut entry = json!({
            "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": self.url, "caBundle": self.bundle },
            "rules": [{
                "operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
            }],
        });
        let Value::Object(more) = more else { panic!("an object") };
        entry.as_object_mut().unwrap().extend(more);
        entry
    }

    /// What it was asked about, but for the config map that the server itself puts into every namespace.
    pub(super) fn asked(&self) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|request| request["name"] != "kube-root-ca.crt")
            .cloned()
            .collect()
    }
}

async fn answer(
    request: Request<Incoming>,
    judge: Arc<Judge>,
    seen: Arc<Mutex<Vec<Value>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    let asked = review["request"].take();
    seen.lock().unwrap().push(asked.clone());
    let mut response = judge(&asked);
    if response.is_null() {
        return std::future::pending().await;
    }
    response["uid"] = asked["uid"].clone();
    review["response"] = response;
    review.as_object_mut().unwrap().remove("request");
    let mut answer = Response::new(Full::new(Bytes::from(review.to_string())));
    let json = header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(answer)
}

/// What a server answered.
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) warnings: Vec<String>,
    pub(super) body: Value,
}

impl Answered {
    pub(super) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

pub(super) struct Cluster(ApiServer);

impl Cluster {
    pub(super) async fn start() -> Self {
        Self::with(Config::ephemeral()).await
    }

    pub(super) async fn with(config: Config) -> Self {
        Self(ApiServer::start(config).await.unwrap())
    }

    pub(super) async fn stop(self) {
        self.0.stop(Duration::from_secs(5)).await;
    }

    pub(super) async fn send(&self, method: Method, path: &str, body: &Value) -> Answered {
        let kind = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let bytes = if body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(body.to_string())
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .body(Full::new(bytes))
            .unwrap();
        let response = self.0.service().answer(request).await;
        let warnings = response.headers().get_all(header::WARNING).iter();
        let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Answered {
            status,
            warnings,
            // Where nothing is served yet, the answer is no JSON.
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        }
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answered {
        self.send(Method::POST, path, body).await
    }

    pub(super) async fn configure(&self, sort: &str, name: &str, webhooks: Value) {
        let path = format!(
            "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations",
            sort.to_lowercase()
        );
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{sort}WebhookConfiguration"),
            "metadata": { "name": name }, "webhooks": webhooks,
        });
        let answered = self.post(&path, &configuration).await;
        assert_eq!(answered.status, StatusCode::CREATED, "{}", answered.body);
    }
}

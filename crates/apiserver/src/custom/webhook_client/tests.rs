use std::convert::Infallible;

use http::Response;
use hyper::{body::Incoming, service::service_fn};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;

use super::*;

/// A webhook on this machine that has a certificate for some names.
struct Webhook {
    address: SocketAddr,
    bundle: String,
    /// How many connections were made to it.
    connections: Arc<std::sync::atomic::AtomicUsize>,
}

async fn webhook(names: &[&str]) -> Webhook {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names)
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
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let serving =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(serving);
        }
    });
    Webhook {
        address,
        bundle: STANDARD.encode(authority.pem()),
        connections,
    }
}

/// Says what it was asked, or fails as the path wants.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut response = Response::new(Full::new(body.clone()));
    match parts.uri.path() {
        "/silent" => std::future::pending::<()>().await,
        "/broken" => *response.body_mut() = Full::new(Bytes::from_static(b"no json")),
        "/refusing" => {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            *response.body_mut() = Full::new(Bytes::from_static(b"out of order\n"));
        }
        _ => {
            let asked: Value = serde_json::from_slice(&body).unwrap();
            let said = json!({ "asked": asked, "at": parts.uri.path_and_query().unwrap().as_str() });
            *response.body_mut() = Full::new(Bytes::from(said.to_string()));
        }
    }
    Ok(response)
}

struct At(SocketAddr);

impl FindService for At {
    fn find(&self, namespace: &str, name: &str, port: u16) -> Result<SocketAddr, String> {
        match (namespace, name, port) {
            ("system", "hook", 8443) => Ok(self.0),
            _ => Err(format!("service \"{name}\" not found")),
        }
    }
}

const LONG: Duration = Duration::from_secs(20);

async fn ask(client: &WebhookClient, config: &Value) -> Result<Value, String> {
    let hook = Hook::read(config).map_err(|error| error.to_string())?;
    client
        .post(&hook, Some("timeout=20s"), &json!(["question"]), LONG)
        .await
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_webhook_is_called_by_its_url_and_connections_are_kept() {
    let webhook = webhook(&["127.0.0.1"]).await;
    let client = WebhookClient::new(Arc::new(At(webhook.address)));
    let config = json!({ "url": format!("https://{}/convert", webhook.address), "caBundle": webhook.bundle });
    for _ in 0..3 {
        let said = ask(&client, &config).await.unwrap();
        assert_eq!(said, json!({ "asked": ["question"], "at": "/convert?timeout=20s" }));
    }
    assert_eq!(webhook.connections.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_service_is_found_where_it_is_and_known_by_its_name() {
    let webhook = webhook(&["hook.system.svc"]).await;
    let client = WebhookClient::new(Arc::new(At(webhook.address)));
    let service = json!({ "namespace": "system", "name": "hook", "port": 8443, "path": "/admit" });
    let said = ask(&client, &json!({ "service": service, "caBundle": webhook.bundle }))
        .await
        .unwrap();
    assert_eq!(said["at"], "/admit?timeout=20s");
    let service = json!({ "namespace": "system", "name": "other", "port": 8443 });
    let said = ask(&client, &json!({ "service": service, "caBundle": webhook.bundle }))
        .await
        .unwrap_err();
    assert_eq!(
        said,
        "Post \"https://other.system.svc:8443/?timeout=20s\": service \"other\" not found"
    );
}

#[tokio::test]
async fn a_webhook_with_another_name_or_of_another_authority_is_not_trusted() {
    let webhook = webhook(&["elsewhere.example.com"]).await;
    let client = WebhookClient::new(Arc::new(At(webhook.address)));
    let url = format!("https://{}/", webhook.address);
    let said = ask(&client, &json!({ "url": url, "caBundle": webhook.bundle }))
        .await
        .unwrap_err();
    assert!(said.contains("certificate not valid for name"), "{said}");
    let stranger = self::webhook(&["127.0.0.1"]).await;
    let url = format!("https://{}/", stranger.address);
    let said = ask(&client, &json!({ "url": url, "caBundle": webhook.bundle }))
        .await
        .unwrap_err();
    assert!(said.contains("invalid peer certificate"), "{said}");
}

#[tokio::test]
async fn a_webhook_that_fails_is_told_of_as_kubernetes_does() {
    let webhook = webhook(&["127.0.0.1"]).await;
    let client = WebhookClient::new(Arc::new(At(webhook.address)));
    let config =
        |path: &str| json!({ "url": format!("https://{}{path}", webhook.address), "caBundle": webhook.bundle });
    assert_eq!(
        ask(&client, &config("/refusing")).await.unwrap_err(),
        "an error on the server (\"out of order\") has prevented the request from succeeding"
    );
    assert!(
        ask(&client, &config("/broken"))
            .await
            .unwrap_err()
            .contains("expected ident")
    );
    let hook = Hook::read(&config("/silent")).unwrap();
    let said = client
        .post(&hook, None, &json!({}), Duration::from_millis(1))
        .await
        .unwrap_err();
    let url = format!("https://{}/silent", webhook.address);
    assert_eq!(said.to_string(), format!("Post \"{url}\": context deadline exceeded"));
    // Taken, so that nobody else gets it, and not listened on.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = taken.local_addr().unwrap();
    let said = ask(
        &client,
        &json!({ "url": format!("https://{closed}/"), "caBundle": webhook.bundle }),
    )
    .await;
    let expected = format!("Post \"https://{closed}/?timeout=20s\": dial tcp {closed}: connect: connection refused");
    assert_eq!(said.unwrap_err(), expected);
}

#[test]
fn a_webhook_that_says_neither_where_nor_who_it_is_cannot_be_called() {
    let said = Hook::read(&json!({})).unwrap_err().to_string();
    assert_eq!(said, "webhook configuration must have either service or URL");
    assert!(Hook::read(&json!({ "url": "https://h", "caBundle": "?" })).is_err());
}

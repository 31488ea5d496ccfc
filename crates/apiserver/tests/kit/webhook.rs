//! A webhook on this machine that converts objects.

use std::{convert::Infallible, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, crypto::ring};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Starts a webhook that makes of each object what `convert` makes of it, given the wanted version; the client
/// configuration that leads to it.
pub(crate) async fn converting(convert: fn(&mut Value, &str)) -> Value {
    let mut authority = CertificateParams::new(Vec::new()).expect("no names are fine");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = || KeyPair::generate().expect("keys can be made");
    let authority = CertifiedIssuer::self_signed(authority, key()).expect("an authority signs itself");
    let key = key();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .and_then(|parameters| parameters.signed_by(&key, &authority))
        .expect("a certificate can be made");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider knows them")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .expect("the key is the certificate's");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let answer = service_fn(move |request| answer(request, convert));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    json!({ "url": format!("https://{address}/convert"), "caBundle": STANDARD.encode(authority.pem()) })
}

async fn answer(
    request: Request<Incoming>,
    convert: fn(&mut Value, &str),
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request
        .into_body()
        .collect()
        .await
        .expect("the server sends it whole")
        .to_bytes();
    let mut review: Value = serde_json::from_slice(&body).expect("a review is JSON");
    let wanted = review["request"]["desiredAPIVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut objects = review["request"]["objects"].take();
    for object in objects.as_array_mut().into_iter().flatten() {
        convert(object, &wanted);
        object["apiVersion"] = wanted.as_str().into();
    }
    review["response"] = json!({
        "uid": review["request"]["uid"], "result": { "status": "Success" }, "convertedObjects": objects,
    });
    Ok(Response::new(Full::new(Bytes::from(review.to_string()))))
}

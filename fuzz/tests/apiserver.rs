//! What the API server reads of requests, tokens and certificates.

use std::{panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use jiff::{SignedDuration, Timestamp};
use moorline_apiserver::{
    auth::{ClientCertificates, Lookup, ServiceAccountTokens},
    certificates::{Certificates, ClientName, ServiceAccountKey},
    core::RealWorld,
    server::Embedded,
};
use moorline_fuzz::{Draft, target};
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// A server in memory. A panic in it ends the test, so nobody sees what it left behind.
fn server() -> (AssertUnwindSafe<Runtime>, AssertUnwindSafe<Embedded>) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be started");
    let server = runtime
        .block_on(Embedded::ephemeral(Arc::new(RealWorld)))
        .expect("a server in memory starts");
    (AssertUnwindSafe(runtime), AssertUnwindSafe(server))
}

/// The answer's status, unless the draft is no request that could be sent at all.
fn ask(
    runtime: &Runtime,
    server: &Embedded,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Option<u16> {
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).ok()?)
        .uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).ok()?;
    let service = server.service();
    runtime.block_on(async {
        let response = service.answer(request).await;
        let status = response.status().as_u16();
        if status == 500 {
            // Some are meant, where a real server takes the client's fault for its own: those give no reason.
            let body = response
                .into_body()
                .collect()
                .await
                .expect("an error has an end")
                .to_bytes();
            let words = String::from_utf8_lossy(&body).into_owned();
            assert!(!words.contains("InternalError"), "{method} {path}: {words}");
            return Some(status);
        }
        // A watch has no end; everything else is read to its own.
        if !path.contains("watch") {
            response.into_body().collect().await.expect("an answer has an end");
        }
        Some(status)
    })
}

const PATHS: [&str; 10] = [
    "/api/v1/namespaces/default/secrets?limit=1&labelSelector=a%3Db&fieldSelector=metadata.name%3Dx",
    "/api/v1/namespaces/default/secrets?limit=2&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0",
    "/api/v1/secrets?resourceVersion=0&resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
    "/api/v1/namespaces/default/secrets/a?dryRun=All&fieldManager=m&fieldValidation=Strict&force=true",
    "/apis/apps/v1/namespaces/default/deployments/d/scale",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/view?pretty=true",
    "/apis?x=%00%ff&y=+",
    "/openapi/v3/apis/apps/v1?hash=5",
    "/api/v1/namespaces/default/serviceaccounts/default/token",
    "/readyz?verbose&exclude=ping",
];

const BODIES: [&str; 6] = [
    r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","generateName":"b"},"data":{"a":"Yg=="}}"#,
    r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
    r#"[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]"#,
    r#"{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"x"},"propagationPolicy":"Foreground","gracePeriodSeconds":5}"#,
    "metadata:\n  name: a\n  labels: {a: b}\n",
    r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"ks.e.io"},"spec":{"group":"e.io","scope":"Namespaced","names":{"plural":"ks","kind":"K"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}"#,
];

const TYPES: [&str; 7] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

#[test]
fn paths_queries_and_continue_tokens() {
    let (runtime, server) = server();
    target!(|draft| ask(
        &runtime,
        &server,
        "GET",
        &draft.text(&PATHS).replace("watch", "wach"),
        &[],
        Vec::new()
    ));
}

#[test]
fn watch_options() {
    let (runtime, server) = server();
    let watches = [
        "/api/v1/secrets?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "/api/v1/watch/namespaces/default/secrets?resourceVersion=1&timeoutSeconds=1&labelSelector=a",
    ];
    target!(|draft| {
        let path = draft.text(&watches);
        path.contains("watch")
            .then(|| ask(&runtime, &server, "GET", &path, &[], Vec::new()))
    });
}

#[test]
fn bodies_of_writes() {
    let (runtime, server) = server();
    let places = [
        ("POST", "/api/v1/namespaces/default/secrets"),
        ("PUT", "/api/v1/namespaces/default/secrets/a"),
        ("PATCH", "/api/v1/namespaces/default/secrets/a?fieldManager=m"),
        ("DELETE", "/api/v1/namespaces/default/secrets/none"),
        ("POST", "/apis/apps/v1/namespaces/default/deployments?dryRun=All"),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/default/deployments/d?fieldManager=m&dryRun=All",
        ),
        (
            "POST",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All",
        ),
    ];
    bolero::check!()
        .with_iterations(moorline_fuzz::INPUTS)
        .with_type::<(Draft, u8, u8)>()
        .for_each(|(draft, place, content_type)| {
            let (method, path) = places[usize::from(*place) % places.len()];
            let content_type = TYPES[usize::from(*content_type) % TYPES.len()];
            moorline_fuzz::in_time(|| {
                ask(
                    &runtime,
                    &server,
                    method,
                    path,
                    &[("content-type", content_type)],
                    draft.of(&BODIES),
                )
            });
        });
}

#[test]
fn headers_that_ask_for_a_form() {
    let (runtime, server) = server();
    let accepts = [
        "application/json;as=Table;g=meta.k8s.io;v=v1,application/json;q=0.5",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList, */*",
    ];
    target!(|draft| ask(
        &runtime,
        &server,
        "GET",
        "/api/v1/namespaces",
        &[("accept", &draft.text(&accepts))],
        Vec::new()
    ));
}

struct Nothing;

impl Lookup for Nothing {
    fn object(&self, _: &str, _: &str, _: &str) -> Option<Value> {
        None
    }
}

#[test]
fn tokens() {
    let key = ServiceAccountKey::new().expect("a key can be made");
    let tokens = ServiceAccountTokens::new("issuer", &["issuer"], key.pkcs8()).expect("a key of the right kind");
    let tokens = AssertUnwindSafe(tokens);
    let samples = [
        "eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.eyJhdWQiOlsiYSJdLCJleHAiOjE3MDAwMDAwMDAsImlhdCI6MSwiaXNzIjoiaXNzdWVyIiwic3ViIjoicyJ9.AAAA",
        "..",
        "eyJhbGciOiJub25lIn0.e30.",
    ];
    let wanted = ["issuer".to_owned()];
    target!(|draft| assert!(
        tokens
            .check(&draft.text(&samples), &wanted, Timestamp::now(), &Nothing)
            .is_err()
    ));
}

#[test]
fn certificates_and_signing_requests() {
    let now = Timestamp::now();
    let authority = Certificates::ephemeral(&[], now)
        .expect("certificates can be made")
        .authority;
    let name = ClientName {
        user: "jane".to_owned(),
        group: Some("people".to_owned()),
    };
    let jane = authority
        .client(&name, now, now + SignedDuration::from_hours(1))
        .expect("it signs");
    let trust = ClientCertificates::signed_by(authority.certificate()).expect("an authority of the right kind");
    let (trust, authority) = (AssertUnwindSafe(trust), AssertUnwindSafe(authority));
    let request = include_str!("request.pem");
    target!(|draft| {
        let certificate = CertificateDer::from(draft.of(&[jane.certificate().as_ref()]));
        let _ = trust.judge(&[certificate], now);
        let _ = authority.sign_client(&draft.text(&[request]), now, now + SignedDuration::from_hours(1));
    });
}

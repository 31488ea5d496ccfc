//! A server without a socket, and requests as plain JSON.

#![allow(dead_code, reason = "each test binary uses what it needs")]

pub(crate) mod webhook;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use moorline_apiserver::{body::Body, core::RealWorld, server::Embedded};
use serde_json::{Value, json};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How often something that takes its time is looked at.
const AGAIN: Duration = Duration::from_millis(10);

pub(crate) struct Cluster(pub(crate) Embedded);

/// What a request was answered with.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

impl Answer {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// The object that came back, the request having gone well.
    #[track_caller]
    pub(crate) fn object(self) -> Value {
        assert!(self.status.is_success(), "{}: {}", self.status, self.body);
        self.body
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let server = Embedded::ephemeral(Arc::new(RealWorld)).await;
        Self(server.expect("a server in memory starts"))
    }

    pub(crate) async fn send(&self, method: Method, path: &str, content_type: &str, body: impl Into<Bytes>) -> Answer {
        let response = self.open(method, path, content_type, body).await;
        let status = response.status();
        let warnings = response.headers().get_all(header::WARNING).iter();
        let warnings = warnings
            .map(|warning| warning.to_str().expect("it is text").to_owned())
            .collect();
        let bytes = response.into_body().collect().await.expect("it cannot fail").to_bytes();
        Answer {
            status,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            warnings,
        }
    }

    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> http::Response<Body> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body.into()))
            .expect("it is a request");
        self.0.service().answer(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, "", Bytes::new()).await
    }

    pub(crate) async fn create(&self, path: &str, object: &Value) -> Answer {
        self.send(Method::POST, path, "application/json", object.to_string())
            .await
    }

    pub(crate) async fn merge(&self, path: &str, change: &Value) -> Answer {
        self.send(Method::PATCH, path, "application/merge-patch+json", change.to_string())
            .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, "", Bytes::new()).await
    }

    pub(crate) async fn delete_with(&self, path: &str, options: &Value) -> Answer {
        self.send(Method::DELETE, path, "application/json", options.to_string())
            .await
    }

    /// Waits until what is found at a path is as it should be.
    pub(crate) async fn until(&self, path: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
        let found = async {
            loop {
                let answer = self.get(path).await;
                if is_so(&answer) {
                    return answer;
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("{path} did not come to be as it should"))
    }

    pub(crate) async fn until_gone(&self, path: &str) {
        self.until(path, |answer| answer.status == StatusCode::NOT_FOUND).await;
    }
}

/// A pod of one container.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "i:1" }] },
    })
}

/// A definition of a kind `Thing` in `example.com`.
pub(crate) fn things() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "things.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "properties": { "spec": {
                    "type": "object", "properties": { "a": { "type": "string" } },
                } },
            } } }],
        },
    })
}

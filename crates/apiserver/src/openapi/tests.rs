use std::{collections::BTreeSet, sync::Arc};

use http::{HeaderMap, Response, StatusCode, header};
use jiff::Timestamp;
use serde_json::Value;
use serde_json::json;

use super::{Asked, OpenApi, fixtures, written_schema};
use crate::{
    body::Body,
    query::Query,
    resource::{Registry, ResourceType},
};

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

struct Server {
    registry: Registry,
    openapi: Arc<OpenApi>,
    /// The definition of the custom kind.
    definition: Value,
}

fn definition() -> Value {
    let schema = json!({
        "type": "object",
        "description": "a database",
        "properties": {
            "spec": {"type": "object", "properties": {"replicas": {"type": "integer", "minimum": 1}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    });
    json!({"spec": {"versions": [
        {"name": "v1", "schema": {"openAPIV3Schema": schema}},
        {"name": "v1beta1", "schema": {"openAPIV3Schema": schema}},
    ]}})
}

impl Server {
    fn new() -> Self {
        Self {
            registry: fixtures::registry(),
            openapi: Arc::default(),
            definition: definition(),
        }
    }

    async fn get(&self, url: &str, headers: &[(header::HeaderName, &str)]) -> Response<Body> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect();
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let definition = self.definition.clone();
        let written = move |resource: &ResourceType| {
            (&*resource.gvr.group == "db.example.com").then(|| written_schema(&definition, resource))?
        };
        let asked = Asked {
            path,
            query: &Query::parse(query),
            headers: &headers,
            now: Timestamp::UNIX_EPOCH,
        };
        self.openapi
            .answer(self.registry.served(), Box::new(written), asked)
            .await
    }

    async fn json(&self, url: &str) -> Value {
        let response = self.get(url, &[]).await;
        assert_eq!(response.status(), StatusCode::OK, "{url}");
        serde_json::from_slice(response.body().as_whole().unwrap()).unwrap()
    }

    async fn index(&self, key: &str) -> String {
        self.json("/openapi/v3").await["paths"][key]["serverRelativeURL"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

/// Every reference in a document, by what it refers to.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                found.insert(reference.clone());
            }
            // A property may be called that, as those of a custom resource's definition are.
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

fn assert_complete(document: &Value) {
    let mut found = BTreeSet::new();
    references(document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

#[tokio::test]
async fn the_index_leads_to_documents_by_their_digests() {
    let server = Server::new();
    for key in [
        "api/v1",
        "apis/apps/v1",
        "apis/autoscaling/v2",
        "apis/db.example.com/v1beta1",
    ] {
        let url = server.index(key).await;
        let (path, digest) = url.split_once("?hash=").unwrap();
        assert_eq!(path, format!("/openapi/v3/{key}"));
        let response = server.get(&url, &[]).await;
        assert_eq!(response.status(), StatusCode::OK, "{url}");
        assert_eq!(response.headers()[header::ETAG], format!("\"{digest}\""));
        assert_eq!(response.headers()[header::CACHE_CONTROL], "public, immutable");
        assert_eq!(response.headers()[header::EXPIRES], "Fri, 01 Jan 1971 00:00:00 GMT");
    }
}

#[tokio::test]
async fn one_who_has_the_document_is_not_sent_it_again() {
    let server = Server::new();
    for url in ["/openapi/v3", "/openapi/v3/apis/apps/v1", "/openapi/v2"] {
        let tag = server.get(url, &[]).await.headers()[header::ETAG]
            .to_str()
            .unwrap()
            .to_owned();
        let again = server.get(url, &[(header::IF_NONE_MATCH, &tag)]).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{url}");
        assert_eq!(again.body().as_whole(), Some(&b""[..]));
    }
}

#[tokio::test]
async fn one_who_names_an_old_digest_is_sent_on_to_the_new_one() {
    let server = Server::new();
    let response = server.get("/openapi/v3/apis/apps/v1?hash=0123", &[]).await;
    assert_eq!(response.status(), StatusCode::MOVED_PERMANENTLY);
    assert_eq!(response.headers()[header::LOCATION], server.index("apis/apps/v1").await);
}

#[tokio::test]
async fn what_is_not_served_has_no_document() {
    let server = Server::new();
    for url in [
        "/openapi/v3/apis/apps/v2",
        "/openapi/v3/apis/no.such/v1",
        "/openapi/v3/api",
        "/openapi/v4",
    ] {
        assert_eq!(server.get(url, &[]).await.status(), StatusCode::NOT_FOUND, "{url}");
    }
}

#[tokio::test]
async fn a_form_that_there_is_not_is_refused() {
    let server = Server::new();
    let v3 = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    let refused = server.get("/openapi/v3/api/v1", &[(header::ACCEPT, v3)]).await;
    assert_eq!(refused.status(), StatusCode::NOT_ACCEPTABLE);
    let refused = server.get("/openapi/v2", &[(header::ACCEPT, "text/html")]).await;
    assert_eq!(refused.status(), StatusCode::NOT_ACCEPTABLE);
}

#[tokio::test]
async fn every_reference_leads_to_a_definition() {
    let server = Server::new();
    let index = server.json("/openapi/v3").await;
    for url in index["paths"].as_object().unwrap().values() {
        assert_complete(&server.json(url["serverRelativeURL"].as_str().unwrap()).await);
    }
    assert_complete(&server.json("/openapi/v2").await);
}

#[tokio::test]
async fn kubectl_finds_what_a_patch_takes() {
    let server = Server::new();
    let v2 = server.json("/openapi/v2").await;
    for (url, path) in [
        (
            "/openapi/v3/apis/apps/v1",
            "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
        ),
        (
            "/openapi/v3/apis/db.example.com/v1",
            "/apis/db.example.com/v1/namespaces/{namespace}/databases/{name}",
        ),
    ] {
        for document in [&server.json(url).await, &v2] {
            let patch = &document["paths"][path]["patch"];
            assert_eq!(patch["x-kubernetes-action"], "patch", "{path}");
            assert!(patch["x-kubernetes-group-version-kind"]["kind"].is_string(), "{path}");
            let names: Vec<_> = patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p["name"].as_str())
                .collect();
            for wanted in ["dryRun", "fieldValidation"] {
                assert!(names.contains(&Some(wanted)), "{path} takes {names:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_built_in_kind_is_published_with_its_texts_and_facts() {
    let document = Server::new().json("/openapi/v3/api/v1").await;
    let schemas = &document["components"]["schemas"];
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert!(
        pod["description"]
            .as_str()
            .unwrap()
            .starts_with("Pod is a collection of containers")
    );
    assert_eq!(
        pod["x-kubernetes-group-version-kind"],
        json!([{"group": "", "kind": "Pod", "version": "v1"}])
    );
    assert_eq!(pod.get("required"), None);
    let ports = &schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"];
    assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["port", "protocol"]));
    assert_eq!(ports["x-kubernetes-patch-merge-key"], "port");
    let protocol = &schemas["io.k8s.api.core.v1.ServicePort"]["properties"]["protocol"];
    assert_eq!(protocol["default"], "TCP");
    assert!(schemas["io.k8s.api.core.v1.PodList"]["properties"]["items"].is_object());
}

#[tokio::test]
async fn a_definition_of_custom_resources_may_hold_any_default() {
    let document = Server::new().json("/openapi/v3/apis/apiextensions.k8s.io/v1").await;
    let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";
    assert_eq!(document["components"]["schemas"][name].get("type"), None);
}

#[tokio::test]
async fn a_custom_kind_is_published_as_its_author_wrote_it() {
    let server = Server::new();
    let document = server.json("/openapi/v3/apis/db.example.com/v1").await;
    let schema = &document["components"]["schemas"]["com.example.db.v1.Database"];
    assert_eq!(schema["description"], "a database");
    assert_eq!(schema["properties"]["spec"]["properties"]["replicas"]["minimum"], 1);
    assert_eq!(schema["x-kubernetes-group-version-kind"][0]["kind"], "Database");
    assert!(document["components"]["schemas"]["com.example.db.v1.DatabaseList"].is_object());
    let v2 = server.json("/openapi/v2").await;
    assert_eq!(
        v2["definitions"]["com.example.db.v1.Database"]["properties"]["spec"]["type"],
        "object"
    );
}

#[tokio::test]
async fn a_change_of_a_custom_kind_leaves_the_documents_of_others_as_they_were() {
    let mut server = Server::new();
    let documents = ["apis/apps/v1", "apis/db.example.com/v1", "apis/db.example.com/v1beta1"];
    let before = [
        server.index(documents[0]).await,
        server.index(documents[1]).await,
        server.index(documents[2]).await,
    ];
    server.definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "a better one".into();
    let changed = Arc::new(fixtures::custom("db.example.com/v1"));
    let gvr = changed.gvr.clone();
    server.registry.change(|resource| resource.gvr == gvr, &[changed]);
    assert_eq!(server.index(documents[0]).await, before[0]);
    assert_ne!(server.index(documents[1]).await, before[1]);
    assert_eq!(server.index(documents[2]).await, before[2]);
}

#[tokio::test]
async fn what_is_no_longer_served_is_no_longer_published() {
    let server = Server::new();
    assert!(
        server.json("/openapi/v2").await["definitions"]
            .get("com.example.db.v1beta1.Database")
            .is_some()
    );
    server
        .registry
        .change(|resource| &*resource.gvr.version == "v1beta1", &[]);
    assert!(
        server.json("/openapi/v2").await["definitions"]
            .get("com.example.db.v1beta1.Database")
            .is_none()
    );
    assert!(
        server.json("/openapi/v3").await["paths"]
            .get("apis/db.example.com/v1beta1")
            .is_none()
    );
}

/// The fields of a protobuf message: number, and the bytes of those that have a length.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = bytes.split_first().expect("a number ends");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
            shift += 7;
        }
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let length = match tag & 7 {
            0 => {
                varint(&mut bytes);
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)).unwrap(),
            other => panic!("wire type {other} is not written"),
        };
        let (content, rest) = bytes.split_at(length);
        found.push((tag >> 3, content));
        bytes = rest;
    }
    found
}

fn field(message: &[u8], number: u64) -> &[u8] {
    fields(message)
        .into_iter()
        .find(|(found, _)| *found == number)
        .expect("the field is there")
        .1
}

#[tokio::test]
async fn go_clients_read_v2_as_protobuf() {
    let server = Server::new();
    let json = server.json("/openapi/v2").await;
    let response = server.get("/openapi/v2", &[(header::ACCEPT, PROTOBUF)]).await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    let document = response.body().as_whole().unwrap();
    assert_eq!(field(document, 1), b"2.0");
    let paths = fields(field(document, 8));
    assert_eq!(paths.len(), json["paths"].as_object().unwrap().len());
    let definitions = fields(field(document, 9));
    assert_eq!(definitions.len(), json["definitions"].as_object().unwrap().len());
    let (_, database) = definitions
        .into_iter()
        .find(|(_, entry)| field(entry, 1) == b"com.example.db.v1.Database")
        .unwrap();
    let schema = field(database, 2);
    assert_eq!(field(schema, 4), b"a database");
    assert_eq!(field(field(schema, 22), 1), b"object");
    let extension = field(schema, 31);
    assert_eq!(field(extension, 1), b"x-kubernetes-group-version-kind");
    let yaml: Value = serde_json::from_slice(field(field(extension, 2), 2)).unwrap();
    assert_eq!(
        yaml,
        json["definitions"]["com.example.db.v1.Database"]["x-kubernetes-group-version-kind"]
    );
}

#[tokio::test]
async fn a_definition_that_keeps_every_field_has_no_schema_to_publish() {
    let mut server = Server::new();
    server.definition["spec"]["preserveUnknownFields"] = true.into();
    let document = server.json("/openapi/v3/apis/db.example.com/v1").await;
    let schema = &document["components"]["schemas"]["com.example.db.v1.Database"];
    assert_eq!((&schema["type"], schema.get("properties")), (&json!("object"), None));
}

#[test]
fn every_built_in_kind_is_published() {
    for resource in crate::builtin::resource_types() {
        assert!(
            super::names::definition(&resource.gvk).is_some(),
            "nothing is known of {}",
            resource.gvk
        );
    }
}

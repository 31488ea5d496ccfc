//! What Kubernetes' conformance suite asks of a server, the parts that are quick to try.

mod kit;

use std::pin::pin;

use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use kit::{Cluster, PATIENCE, pod, things};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test]
async fn a_cluster_brings_along_its_service_its_range_and_its_classes() {
    let cluster = Cluster::start().await;
    let service = cluster
        .get("/api/v1/namespaces/default/services/kubernetes")
        .await
        .object();
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    let range = cluster
        .get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        .await
        .object();
    assert_eq!(range["spec"]["cidrs"], json!(["10.96.0.0/16"]));
    let class = cluster
        .get("/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical")
        .await;
    assert_eq!(class.object()["value"], 2_000_001_000);
    let devices = cluster.get("/apis/resource.k8s.io/v1/deviceclasses").await.object();
    assert_eq!(devices["kind"], "DeviceClassList");
}

#[tokio::test]
async fn a_write_of_the_status_may_annotate() {
    let cluster = Cluster::start().await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "n" } });
    cluster.create("/api/v1/namespaces", &namespace).await.object();
    let patch = json!({ "metadata": { "annotations": { "a": "b" } }, "status": { "phase": "Active" } });
    let patched = cluster.merge("/api/v1/namespaces/n/status", &patch).await.object();
    assert_eq!(patched["metadata"]["annotations"], json!({ "a": "b" }));
}

#[tokio::test]
async fn problems_of_a_typed_object_are_told_in_the_order_of_its_text() {
    let cluster = Cluster::start().await;
    let body =
        r#"{"kind":"ConfigMap","apiVersion":"v1","zed":1,"metadata":{"name":"m"},"data":{"a":"1","a":"2"},"alpha":1}"#;
    let path = format!("{MAPS}?fieldValidation=Strict");
    let refused = cluster.send(Method::POST, &path, "application/json", body).await;
    assert_eq!(
        refused.message(),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"zed\", \
         duplicate field \"data.a\", unknown field \"alpha\""
    );
}

#[tokio::test]
async fn what_no_schema_knows_cannot_be_applied() {
    let cluster = Cluster::start().await;
    let path = format!("{MAPS}/m?fieldManager=me");
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\nnonsense: 1\n";
    let refused = cluster.send(Method::PATCH, &path, APPLY, body).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        refused.message(),
        "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .nonsense: field not declared in schema"
    );
}

#[tokio::test]
async fn a_name_that_is_applied_twice_is_told_with_its_line() {
    let cluster = Cluster::start().await;
    let path = format!("{MAPS}/m?fieldManager=me&fieldValidation=Strict");
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  a: x\n  a: z\n";
    let refused = cluster.send(Method::PATCH, &path, APPLY, body).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        refused.message(),
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 7: key \"a\" already \
         set in map"
    );
}

#[tokio::test]
async fn a_member_that_is_not_there_is_copied_as_nothing() {
    let cluster = Cluster::start().await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" }, "data": { "a": "1" } });
    cluster.create(MAPS, &map).await.object();
    let change = json!([{ "op": "copy", "from": "/data/nope", "path": "/data/b" }]).to_string();
    let path = format!("{MAPS}/m");
    let patched = cluster
        .send(Method::PATCH, &path, "application/json-patch+json", change)
        .await;
    assert_eq!(patched.object()["data"], json!({ "a": "1", "b": "" }));
}

#[tokio::test]
async fn a_refusal_is_written_in_the_order_in_which_clients_compare_it() {
    let cluster = Cluster::start().await;
    let refused = cluster.open(Method::GET, &format!("{MAPS}/m"), "", "").await;
    let text = refused.into_body().collect().await.expect("it cannot fail").to_bytes();
    assert_eq!(
        std::str::from_utf8(&text).unwrap(),
        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"configmaps \\\"m\\\" not \
         found\",\"reason\":\"NotFound\",\"details\":{\"name\":\"m\",\"kind\":\"configmaps\"},\"code\":404}\n"
    );
}

#[tokio::test]
async fn a_circle_of_owners_is_collected() {
    let cluster = Cluster::start().await;
    let mut uids = Vec::new();
    for name in ["one", "two", "three"] {
        let made = cluster.create(PODS, &pod(name)).await.object();
        uids.push((name, made["metadata"]["uid"].clone()));
    }
    for (position, (name, _)) in uids.iter().enumerate() {
        let (owner, uid) = &uids[(position + 2) % 3];
        let patch = json!({ "metadata": { "ownerReferences": [{
            "apiVersion": "v1", "kind": "Pod", "name": owner, "uid": uid, "controller": true, "blockOwnerDeletion": true,
        }] } });
        cluster.merge(&format!("{PODS}/{name}"), &patch).await.object();
    }
    let options = json!({ "propagationPolicy": "Foreground" });
    cluster.delete_with(&format!("{PODS}/one"), &options).await.object();
    for (name, _) in uids {
        cluster.until_gone(&format!("{PODS}/{name}")).await;
    }
}

#[tokio::test]
async fn a_namespace_goes_once_its_last_object_is_let_go() {
    let cluster = Cluster::start().await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "n" } });
    cluster.create("/api/v1/namespaces", &namespace).await.object();
    let kept = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m", "finalizers": ["example.com/f"] },
    });
    cluster.create("/api/v1/namespaces/n/configmaps", &kept).await.object();
    cluster.delete("/api/v1/namespaces/n").await.object();
    let says = |namespace: &kit::Answer| {
        namespace.body["status"]["conditions"]
            .to_string()
            .contains("example.com/f")
    };
    cluster.until("/api/v1/namespaces/n", says).await;
    let free = json!({ "metadata": { "finalizers": null } });
    cluster.merge("/api/v1/namespaces/n/configmaps/m", &free).await.object();
    cluster.until_gone("/api/v1/namespaces/n").await;
}

#[tokio::test]
async fn a_watch_of_a_custom_kind_ends_with_its_definition() {
    let cluster = Cluster::start().await;
    cluster.create(DEFINITIONS, &things()).await.object();
    cluster.until(THINGS, |list| list.status == StatusCode::OK).await;
    let thing = json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": { "name": "t", "finalizers": ["example.com/f"] }, "spec": { "a": "b" },
    });
    cluster.create(THINGS, &thing).await.object();
    let watch = cluster.open(Method::GET, &format!("{THINGS}?watch=true"), "", "").await;
    let definition = format!("{DEFINITIONS}/things.example.com");
    cluster.delete(&definition).await.object();
    // While it waits for its last object, nothing new can be made.
    let verbs = |list: &kit::Answer| list.body["resources"][0]["verbs"].clone();
    let closing = json!(["delete", "deletecollection", "get", "list", "watch"]);
    cluster
        .until("/apis/example.com/v1", |list| verbs(list) == closing)
        .await;
    let free = json!({ "metadata": { "finalizers": null } });
    cluster.merge(&format!("{THINGS}/t"), &free).await.object();
    cluster.until_gone(&definition).await;
    let events = tokio::time::timeout(PATIENCE, pin!(watch.into_body().collect())).await;
    let events = events.expect("the watch ends").expect("it cannot fail").to_bytes();
    let last = String::from_utf8(events.to_vec()).unwrap();
    let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    assert_eq!(last["type"], "DELETED");
}

#[tokio::test]
async fn an_autoscaler_is_the_same_in_both_versions() {
    let cluster = Cluster::start().await;
    let first = json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": { "name": "h" },
        "spec": {
            "maxReplicas": 3, "targetCPUUtilizationPercentage": 70,
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" },
        },
    });
    let path = |version: &str| format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers");
    cluster.create(&path("v1"), &first).await.object();
    let second = cluster.get(&format!("{}/h", path("v2"))).await.object();
    assert_eq!(
        second["spec"]["metrics"],
        json!([{ "type": "Resource", "resource": {
            "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 70 },
        } }])
    );
    let first = cluster.get(&format!("{}/h", path("v1"))).await.object();
    assert_eq!(first["spec"]["targetCPUUtilizationPercentage"], 70);
    assert_eq!(first["spec"].get("metrics"), None);
}

#[tokio::test]
async fn a_volume_tells_since_when_it_is_in_its_phase() {
    let cluster = Cluster::start().await;
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "v" },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/v" } },
    });
    let made = cluster.create("/api/v1/persistentvolumes", &volume).await.object();
    assert!(made["status"]["lastPhaseTransitionTime"].is_string());
    let phase = json!({ "status": { "phase": "Available" } });
    let changed = cluster
        .merge("/api/v1/persistentvolumes/v/status", &phase)
        .await
        .object();
    assert!(changed["status"]["lastPhaseTransitionTime"].is_string());
    cluster.delete("/api/v1/persistentvolumes/v").await.object();
    cluster.until_gone("/api/v1/persistentvolumes/v").await;
}

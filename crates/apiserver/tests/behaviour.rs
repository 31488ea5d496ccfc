//! What Kubernetes' conformance suite asks of a server, the parts that are quick to try.

mod kit;
mod writes;

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
async fn a_pod_is_of_the_same_generation_wherever_it_is_bound() {
    let cluster = Cluster::start().await;
    cluster.create(PODS, &pod("p")).await.object();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "n1" },
    });
    cluster.create(&format!("{PODS}/p/binding"), &binding).await.object();
    let bound = cluster.get(&format!("{PODS}/p")).await.object();
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["generation"], 1);
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

/// The first `count` events of a watch.
async fn events(watch: http::Response<moorline_apiserver::body::Body>, count: usize) -> Vec<Value> {
    let mut body = watch.into_body();
    let mut text = Vec::new();
    let read = async {
        while text.split(|byte| *byte == b'\n').count() <= count {
            let frame = body.frame().await.expect("the watch goes on").expect("it cannot fail");
            text.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the events come");
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).expect("an event is JSON"))
        .collect()
}

/// A kind whose text is `a` in its first version, which is stored, and `b` in its second, into which a webhook converts it;
/// the path of the second.
async fn things_in_two_versions(cluster: &Cluster) -> String {
    let hook = kit::webhook::converting(|object, wanted| {
        let (from, to) = if wanted.ends_with("/v2") {
            ("a", "b")
        } else {
            ("b", "a")
        };
        let value = object["spec"][from].take();
        object["spec"] = json!({ to: value });
    })
    .await;
    let mut definition = things();
    let mut second = definition["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    second["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] = json!({ "b": { "type": "string" } });
    second["selectableFields"] = json!([{ "jsonPath": ".spec.b" }]);
    definition["spec"]["versions"]
        .as_array_mut()
        .expect("it is a list")
        .push(second);
    definition["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": hook,
    } });
    cluster.create(DEFINITIONS, &definition).await.object();
    let newer = THINGS.replace("/v1/", "/v2/");
    cluster.until(&newer, |list| list.status == StatusCode::OK).await;
    newer
}

#[tokio::test]
async fn fields_are_looked_for_in_the_version_that_is_asked_for() {
    let cluster = Cluster::start().await;
    let newer = things_in_two_versions(&cluster).await;
    let thing = |name: &str, a: &str| json!({ "apiVersion": "example.com/v1", "kind": "Thing", "metadata": { "name": name }, "spec": { "a": a } });
    cluster.create(THINGS, &thing("t", "one")).await.object();
    cluster.create(THINGS, &thing("u", "two")).await.object();
    let names = async |query: &str| {
        let path = format!("{newer}?{query}");
        let list = cluster
            .until(&path, |list| list.status == StatusCode::OK)
            .await
            .object();
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("fieldSelector=spec.b%3Done").await, ["t"]);
    assert_eq!(names("fieldSelector=spec.b%21%3Done").await, ["u"]);
    let path = format!("{newer}?watch=true&fieldSelector=spec.b%3Done");
    let watch = cluster.open(Method::GET, &path, "", "").await;
    for (name, a) in [("u", "three"), ("t", "four"), ("u", "one")] {
        let change = json!({ "spec": { "a": a } });
        cluster.merge(&format!("{THINGS}/{name}"), &change).await.object();
    }
    cluster
        .merge(
            &format!("{THINGS}/u"),
            &json!({ "metadata": { "labels": { "x": "y" } } }),
        )
        .await
        .object();
    cluster
        .delete(&format!("{newer}?fieldSelector=spec.b%3Done"))
        .await
        .object();
    let told: Vec<(Value, Value, Value)> = events(watch, 5)
        .await
        .into_iter()
        .map(|mut event| {
            let name = event["object"]["metadata"]["name"].take();
            (event["type"].take(), name, event["object"]["spec"]["b"].take())
        })
        .collect();
    let expected = [
        ("ADDED", "t"),
        ("DELETED", "t"),
        ("ADDED", "u"),
        ("MODIFIED", "u"),
        ("DELETED", "u"),
    ];
    let expected = expected.map(|(kind, name)| (json!(kind), json!(name), json!("one")));
    assert_eq!(told, expected);
    assert_eq!(names("").await, ["t"]);
}

#[tokio::test]
async fn a_watch_sees_what_a_webhook_makes_of_each_change() {
    let cluster = Cluster::start().await;
    let newer = things_in_two_versions(&cluster).await;
    let thing = |a: &str| json!({ "apiVersion": "example.com/v1", "kind": "Thing", "metadata": { "name": "t" }, "spec": { "a": a } });
    cluster.create(THINGS, &thing("one")).await.object();
    let watch = cluster.open(Method::GET, &format!("{newer}?watch=true"), "", "").await;
    cluster
        .merge(&format!("{THINGS}/t"), &json!({ "spec": { "a": "two" } }))
        .await
        .object();
    cluster
        .merge(&format!("{newer}/t"), &json!({ "spec": { "b": "three" } }))
        .await
        .object();
    cluster.delete(&format!("{THINGS}/t")).await.object();
    let told: Vec<(Value, Value, Value)> = events(watch, 4)
        .await
        .into_iter()
        .map(|mut event| {
            let (version, spec) = (event["object"]["apiVersion"].take(), event["object"]["spec"].take());
            (event["type"].take(), version, spec)
        })
        .collect();
    let expected = [
        ("ADDED", "one"),
        ("MODIFIED", "two"),
        ("MODIFIED", "three"),
        ("DELETED", "three"),
    ];
    let expected = expected.map(|(kind, b)| (json!(kind), json!("example.com/v2"), json!({ "b": b })));
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_watch_tells_the_columns_of_its_tables_once() {
    let cluster = Cluster::start().await;
    let map = |name: &str| json!({ "metadata": { "name": name } });
    for name in ["a", "b"] {
        cluster.create(MAPS, &map(name)).await.object();
    }
    let request = http::Request::builder()
        .uri(format!("{MAPS}?watch=true"))
        .header("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
        .body(http_body_util::Empty::new())
        .unwrap();
    let told = events(cluster.0.service().answer(request).await, 2).await;
    assert!(told[0]["object"]["columnDefinitions"].is_array());
    assert_eq!(told[1]["object"]["columnDefinitions"], Value::Null);
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

/// The fields that an entry says its manager owns.
fn owned<'o>(object: &'o Value, manager: &str) -> &'o Value {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let mut entries = entries.filter(|entry| entry["manager"] == manager);
    entries.next().map_or(&Value::Null, |entry| &entry["fieldsV1"])
}

#[tokio::test]
async fn nobody_comes_to_own_what_the_server_adds_to_an_object() {
    let cluster = Cluster::start().await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "n" } });
    let made = cluster
        .create("/api/v1/namespaces?fieldManager=me", &namespace)
        .await
        .object();
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(owned(&made, "me")["f:spec"], Value::Null);
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" }, "spec": {
        "ports": [{ "port": 80 }] } });
    let made = cluster
        .create("/api/v1/namespaces/n/services?fieldManager=me", &service)
        .await
        .object();
    assert!(made["spec"]["clusterIP"].is_string());
    assert_eq!(owned(&made, "me")["f:spec"]["f:clusterIP"], Value::Null);
    assert_eq!(owned(&made, "me")["f:spec"]["f:type"], json!({}));
    let found = cluster
        .get("/api/v1/namespaces/n/services?fieldSelector=spec.type%3DClusterIP")
        .await
        .object();
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1));
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "a": "b" } });
    let made = cluster
        .create("/api/v1/namespaces/n/secrets?fieldManager=me", &secret)
        .await
        .object();
    assert_eq!(owned(&made, "me")["f:data"], json!({ ".": {}, "f:a": {} }));
}

#[tokio::test]
async fn an_applied_amount_is_compared_as_it_is_written() {
    let cluster = Cluster::start().await;
    let applied = |cpu: &str| {
        let mut pod = pod("p");
        pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": cpu } });
        pod.to_string()
    };
    let path = |manager: &str| format!("{PODS}/p?fieldManager={manager}");
    let made = cluster
        .send(Method::PATCH, &path("alice"), APPLY, applied("1000m"))
        .await
        .object();
    assert_eq!(made["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1");
    let refused = cluster.send(Method::PATCH, &path("bob"), APPLY, applied("1000m")).await;
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"alice\": \
         .spec.containers[name=\"c\"].resources.limits.cpu"
    );
}

#[tokio::test]
async fn who_scales_owns_the_number_only_if_somebody_did_before() {
    let cluster = Cluster::start().await;
    let all = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = |replicas: Value| {
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" }, "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "a": "b" } },
            "template": { "metadata": { "labels": { "a": "b" } }, "spec": pod("p")["spec"] } } })
    };
    let path = format!("{all}/d?fieldManager=alice");
    let mut body = deployment(Value::Null);
    body["spec"].as_object_mut().unwrap().remove("replicas");
    cluster
        .send(Method::PATCH, &path, APPLY, body.to_string())
        .await
        .object();
    let scale = |replicas: u8| json!({ "spec": { "replicas": replicas } });
    cluster
        .merge(&format!("{all}/d/scale?fieldManager=carol"), &scale(3))
        .await
        .object();
    let found = cluster.get(&format!("{all}/d")).await.object();
    assert_eq!(owned(&found, "carol"), &Value::Null);
    let body = deployment(json!(3)).to_string();
    cluster.send(Method::PATCH, &path, APPLY, body).await.object();
    cluster
        .merge(&format!("{all}/d/scale?fieldManager=carol"), &scale(4))
        .await
        .object();
    let found = cluster.get(&format!("{all}/d")).await.object();
    assert_eq!(owned(&found, "carol"), &json!({ "f:spec": { "f:replicas": {} } }));
    assert_eq!(owned(&found, "alice")["f:spec"]["f:replicas"], Value::Null);
}

#[tokio::test]
async fn what_is_not_there_says_so_whatever_is_done_to_it() {
    let cluster = Cluster::start().await;
    for method in [Method::GET, Method::POST, Method::PUT, Method::OPTIONS] {
        let nothing = cluster.open(method.clone(), "/nothing", "", "").await;
        assert_eq!(nothing.status(), StatusCode::NOT_FOUND);
        assert_eq!(nothing.headers()["content-type"], "text/plain; charset=utf-8");
        let resource = cluster.send(method.clone(), "/api/v1/nothings", "", "").await;
        assert_eq!(resource.status, StatusCode::NOT_FOUND, "{method}");
        assert_eq!(resource.message(), "the server could not find the requested resource");
        assert_eq!(cluster.send(method, "/healthz", "", "").await.status, StatusCode::OK);
    }
    for path in ["/api/v2", "/api/v1/pods/p", "/api/v1/namespaces/default/pods/a%2Fb"] {
        let answer = cluster.get(path).await;
        assert_eq!(
            answer.message(),
            "the server could not find the requested resource",
            "{path}"
        );
    }
    assert_eq!(
        cluster.create("/api/v1/pods", &pod("p")).await.status,
        StatusCode::METHOD_NOT_ALLOWED
    );
}

#[tokio::test]
async fn a_body_of_a_kind_that_a_path_does_not_take_is_refused_before_it_is_looked_at() {
    let cluster = Cluster::start().await;
    let path = format!("{MAPS}/m?fieldValidation=Nonsense");
    let refused = cluster.send(Method::PATCH, &path, "application/json", "{").await;
    assert_eq!(refused.message(), "415: Unsupported Media Type");
    assert_eq!(refused.body["details"], json!({}));
    let path = format!("{MAPS}?fieldValidation=Nonsense");
    let refused = cluster.send(Method::POST, &path, "text/plain", "{").await;
    assert_eq!(refused.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let map = json!({ "metadata": { "name": "m" } }).to_string();
    cluster.send(Method::POST, MAPS, "APPLICATION/JSON", map).await.object();
    for (body, why) in [
        (
            "5",
            "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go value",
        ),
        (
            "{\"kind\": 5}",
            "cannot unmarshal number into Go struct field .kind of type string",
        ),
        (
            "{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}",
            "no kind \"Pod\" is registered for version \"v1\"",
        ),
    ] {
        let refused = cluster
            .send(Method::DELETE, &format!("{MAPS}/m"), "application/json", body)
            .await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.message().contains(why), "{}", refused.message());
    }
}

#[tokio::test]
async fn what_will_hardly_be_meant_is_warned_of() {
    let cluster = Cluster::start().await;
    let mut pod = pod("p");
    pod["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80 }, { "containerPort": 80, "hostPort": 80 }]);
    let made = cluster.create(PODS, &pod).await;
    assert_eq!(
        made.warnings,
        ["299 - \"spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]\""]
    );
    let endpoints = cluster.get("/api/v1/endpoints").await;
    assert_eq!(
        endpoints.warnings,
        ["299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\""]
    );
}

#[tokio::test]
async fn the_issuer_leads_to_its_keys_under_the_name_by_which_it_was_reached() {
    let cluster = Cluster::start().await;
    // As HTTP/2 has it: without a header that names the host.
    let path = "https://api.example:6443/.well-known/openid-configuration";
    let document = cluster
        .until(path, |found| found.status == StatusCode::OK)
        .await
        .object();
    assert_eq!(document["jwks_uri"], "https://api.example:6443/openid/v1/jwks");
}

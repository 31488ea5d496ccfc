//! A whole server, and webhooks on this machine that it calls over TLS.

mod fixture;

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::server::Config;
use fixture::{Cluster, Webhook};

fn allow(_: &Value) -> Value {
    json!({ "allowed": true })
}

fn deny(_: &Value) -> Value {
    json!({ "allowed": false, "status": { "code": 403, "reason": "Forbidden", "message": "not today" } })
}

fn patched(patch: &Value) -> Value {
    json!({ "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()) })
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "a": "1" } })
}

fn labelled(name: &str, labels: Value) -> Value {
    let mut map = map(name);
    map["metadata"]["labels"] = labels;
    map
}

#[tokio::test]
async fn a_validating_webhook_denies_in_its_own_words() {
    let (cluster, webhook) = (Cluster::start().await, Webhook::start(deny).await);
    cluster
        .configure("Validating", "v", json!([webhook.entry("deny.example.com", json!({}))]))
        .await;
    let answered = cluster.post(MAPS, &map("m")).await;
    assert_eq!(answered.status, StatusCode::FORBIDDEN);
    assert_eq!(answered.body["reason"], "Forbidden");
    assert_eq!(
        answered.message(),
        "admission webhook \"deny.example.com\" denied the request: not today"
    );
    let path = format!("{MAPS}/m");
    assert_eq!(
        cluster.send(Method::GET, &path, &Value::Null).await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_webhook_is_told_everything_about_a_write() {
    let (cluster, webhook) = (Cluster::start().await, Webhook::start(allow).await);
    cluster
        .configure("Validating", "v", json!([webhook.entry("see.example.com", json!({}))]))
        .await;
    cluster.post(MAPS, &map("m")).await;
    let path = format!("{MAPS}/m?dryRun=All&fieldManager=someone");
    cluster
        .send(Method::PATCH, &path, &json!({ "data": { "a": "2" } }))
        .await;
    cluster.send(Method::DELETE, &format!("{MAPS}/m"), &Value::Null).await;
    let asked = webhook.asked();
    let operations: Vec<_> = asked
        .iter()
        .map(|request| request["operation"].as_str().unwrap())
        .collect();
    assert_eq!(operations, ["CREATE", "UPDATE", "DELETE"]);
    let update = &asked[1];
    assert_eq!(
        update["kind"],
        json!({ "group": "", "version": "v1", "kind": "ConfigMap" })
    );
    assert_eq!(
        update["resource"],
        json!({ "group": "", "version": "v1", "resource": "configmaps" })
    );
    assert_eq!(
        (&update["requestKind"], &update["requestResource"]),
        (&update["kind"], &update["resource"])
    );
    assert_eq!(
        (&update["name"], &update["namespace"]),
        (&json!("m"), &json!("default"))
    );
    assert_eq!(update["userInfo"]["username"], "system:apiserver");
    assert_eq!(update["dryRun"], true);
    assert_eq!(update["options"]["kind"], "PatchOptions");
    assert_eq!(update["options"]["fieldManager"], "someone");
    assert_eq!(
        (&update["object"]["data"]["a"], &update["oldObject"]["data"]["a"]),
        (&json!("2"), &json!("1"))
    );
    assert_eq!(asked[0]["oldObject"], Value::Null);
    assert_eq!(asked[2]["object"], Value::Null);
    assert_eq!(asked[2]["oldObject"]["kind"], "ConfigMap");
    assert_eq!(asked[2]["options"]["kind"], "DeleteOptions");
}

#[tokio::test]
async fn mutating_webhooks_build_on_each_other_in_the_order_of_their_names() {
    let cluster = Cluster::start().await;
    let first = Webhook::start(|_| {
        patched(&json!([
            { "op": "add", "path": "/data/b", "value": "from the first" },
            { "op": "add", "path": "/unheard", "value": "of" },
        ]))
    })
    .await;
    let second = Webhook::start(|request| {
        patched(&json!([
            { "op": "add", "path": "/data/c", "value": request["object"]["data"]["b"] },
        ]))
    })
    .await;
    cluster
        .configure("Mutating", "z", json!([second.entry("second.example.com", json!({}))]))
        .await;
    cluster
        .configure("Mutating", "a", json!([first.entry("first.example.com", json!({}))]))
        .await;
    let answered = cluster.post(MAPS, &map("m")).await;
    assert_eq!(answered.status, StatusCode::CREATED, "{}", answered.body);
    assert_eq!(
        answered.body["data"],
        json!({ "a": "1", "b": "from the first", "c": "from the first" })
    );
    assert_eq!(answered.body.get("unheard"), None);
}

#[tokio::test]
async fn a_webhook_that_wants_to_see_later_changes_is_asked_once_more() {
    let cluster = Cluster::start().await;
    let curious = Webhook::start(allow).await;
    let content = Webhook::start(allow).await;
    let changing = Webhook::start(|_| patched(&json!([{ "op": "add", "path": "/data/late", "value": "yes" }]))).await;
    let again = json!({ "reinvocationPolicy": "IfNeeded" });
    cluster
        .configure(
            "Mutating",
            "m",
            json!([
                curious.entry("curious.example.com", again.clone()),
                content.entry("content.example.com", json!({})),
                changing.entry("changing.example.com", again),
            ]),
        )
        .await;
    assert_eq!(cluster.post(MAPS, &map("m")).await.status, StatusCode::CREATED);
    let late = |request: &Value| request["object"]["data"]["late"].clone();
    let seen: Vec<_> = curious.asked().iter().map(late).collect();
    assert_eq!(seen, [Value::Null, json!("yes")]);
    assert_eq!((content.asked().len(), changing.asked().len()), (1, 1));
}

#[tokio::test]
async fn a_patch_of_a_delete_or_one_that_breaks_the_object_ends_the_write() {
    let cluster = Cluster::start().await;
    cluster.post(MAPS, &map("m")).await;
    let breaking = Webhook::start(|_| patched(&json!([{ "op": "remove", "path": "/metadata" }]))).await;
    cluster
        .configure(
            "Mutating",
            "m",
            json!([breaking.entry("breaking.example.com", json!({}))]),
        )
        .await;
    let answered = cluster.send(Method::DELETE, &format!("{MAPS}/m"), &Value::Null).await;
    assert_eq!(answered.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        answered.message().contains("attempted to modify the object"),
        "{}",
        answered.message()
    );
    let answered = cluster.post(MAPS, &map("n")).await;
    assert_eq!(answered.status, StatusCode::INTERNAL_SERVER_ERROR, "{}", answered.body);
}

#[tokio::test]
async fn a_webhook_that_does_not_answer_in_time_fails_or_is_passed_over_as_its_policy_says() {
    let cluster = Cluster::start().await;
    let silent = Webhook::start(|_| Value::Null).await;
    let selected = |policy: &str| {
        json!({
            "timeoutSeconds": 1, "failurePolicy": policy,
            "objectSelector": { "matchLabels": { "policy": policy } },
        })
    };
    cluster
        .configure(
            "Validating",
            "v",
            json!([
                silent.entry("fail.example.com", selected("Fail")),
                silent.entry("ignore.example.com", selected("Ignore")),
            ]),
        )
        .await;
    let (fail, ignore) = (
        labelled("f", json!({ "policy": "Fail" })),
        labelled("i", json!({ "policy": "Ignore" })),
    );
    let both = async { tokio::join!(cluster.post(MAPS, &fail), cluster.post(MAPS, &ignore)) };
    let (failed, ignored) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
    assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(failed.body["reason"], "InternalError");
    let expected = format!(
        "Internal error occurred: failed calling webhook \"fail.example.com\": failed to call webhook: Post \
         \"{}?timeout=1s\": context deadline exceeded",
        silent.url
    );
    assert_eq!(failed.message(), expected);
    assert_eq!(ignored.status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_webhook_that_is_not_there_can_be_unconfigured() {
    let (cluster, webhook) = (Cluster::start().await, Webhook::start(allow).await);
    // Taken, so that nobody else gets it, and not listened on.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nowhere = taken.local_addr().unwrap();
    let mut entry = webhook.entry("gone.example.com", json!({}));
    entry["clientConfig"]["url"] = format!("https://{nowhere}/").into();
    entry["rules"][0] = json!({
        "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"],
    });
    cluster.configure("Validating", "v", json!([entry])).await;
    let answered = cluster.post(MAPS, &map("m")).await;
    assert_eq!(answered.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        answered.message().contains("connection refused"),
        "{}",
        answered.message()
    );
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/v";
    assert_eq!(
        cluster.send(Method::DELETE, path, &Value::Null).await.status,
        StatusCode::OK
    );
    assert_eq!(cluster.post(MAPS, &map("m")).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn selectors_leave_out_other_namespaces_and_objects() {
    let (cluster, webhook) = (Cluster::start().await, Webhook::start(deny).await);
    let strict = json!({ "matchLabels": { "strict": "yes" } });
    cluster
        .configure(
            "Validating",
            "v",
            json!([
                webhook.entry("namespace.example.com", json!({ "namespaceSelector": strict })),
                webhook.entry("object.example.com", json!({ "objectSelector": strict })),
            ]),
        )
        .await;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "n", "labels": { "strict": "yes" } },
    });
    assert_eq!(
        cluster.post("/api/v1/namespaces", &namespace).await.status,
        StatusCode::CREATED
    );
    let denied = cluster.post("/api/v1/namespaces/n/configmaps", &map("m")).await;
    assert!(denied.message().contains("namespace.example.com"), "{}", denied.body);
    assert_eq!(cluster.post(MAPS, &map("m")).await.status, StatusCode::CREATED);
    let denied = cluster.post(MAPS, &labelled("o", json!({ "strict": "yes" }))).await;
    assert!(denied.message().contains("object.example.com"), "{}", denied.body);
}

#[tokio::test]
async fn match_conditions_decide_who_is_asked_and_their_errors_fall_under_the_failure_policy() {
    let (cluster, webhook) = (Cluster::start().await, Webhook::start(deny).await);
    let condition = |expression: &str| json!([{ "name": "only", "expression": expression }]);
    let on =
        |policy: &str, expression: &str| json!({ "failurePolicy": policy, "matchConditions": condition(expression) });
    let asked = "request.operation == 'CREATE' && object.data.a == '9'";
    cluster
        .configure(
            "Validating",
            "v",
            json!([
                webhook.entry("asked.example.com", on("Fail", asked)),
                webhook.entry("ignored.example.com", on("Ignore", "object.data.missing == 'x'")),
            ]),
        )
        .await;
    assert_eq!(cluster.post(MAPS, &map("m")).await.status, StatusCode::CREATED);
    assert_eq!(webhook.asked().len(), 0);
    let mut nine = map("nine");
    nine["data"]["a"] = "9".into();
    assert!(cluster.post(MAPS, &nine).await.message().contains("asked.example.com"));
    let broken = on("Fail", "object.data.missing == 'x'");
    cluster
        .configure("Validating", "w", json!([webhook.entry("broken.example.com", broken)]))
        .await;
    let refused = cluster.post(MAPS, &map("o")).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let expected = "configmaps \"o\" is forbidden: expression 'object.data.missing == 'x'' resulted in error: ";
    assert!(refused.message().starts_with(expected), "{}", refused.message());
}

#[tokio::test]
async fn a_condition_that_nobody_could_evaluate_is_refused_when_it_is_written() {
    let (cluster, webhook) = (Cluster::start().await, Webhook::start(deny).await);
    let configured = async |entry: Value| {
        let configuration = json!({ "metadata": { "name": "v" }, "webhooks": [entry] });
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?dryRun=All";
        cluster.post(path, &configuration).await
    };
    for expression in ["... [] bad expression", "params.a == 1"] {
        let conditions = json!([{ "name": "bad", "expression": expression }]);
        let entry = webhook.entry("v.example.com", json!({ "matchConditions": conditions }));
        let refused = configured(entry).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{expression}");
        let expected =
            format!("webhooks[0].matchConditions[0].expression: Invalid value: \"{expression}\": compilation failed: ");
        assert!(refused.message().contains(&expected), "{}", refused.message());
    }
    let mut entry = webhook.entry("v.example.com", json!({}));
    let service = json!({ "namespace": "n", "name": "s", "path": "" });
    entry["clientConfig"] = json!({ "service": service, "caBundle": entry["clientConfig"]["caBundle"] });
    assert_eq!(
        configured(entry).await.status,
        StatusCode::CREATED,
        "no path is the root"
    );
}

#[tokio::test]
async fn a_connection_into_a_pod_can_be_denied() {
    let (cluster, webhook) = (Cluster::start().await, Webhook::start(deny).await);
    let mut entry = webhook.entry("v.example.com", json!({}));
    entry["rules"][0] = json!({
        "operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/attach"],
    });
    cluster.configure("Validating", "v", json!([entry])).await;
    let pod = "/api/v1/namespaces/default/pods/p";
    let answered = cluster
        .post(&format!("{pod}/attach?container=c&stdin=true"), &Value::Null)
        .await;
    assert_eq!(answered.status, StatusCode::FORBIDDEN, "{}", answered.body);
    assert_eq!(
        answered.message(),
        "admission webhook \"v.example.com\" denied the request: not today"
    );
    let asked = &webhook.asked()[0];
    assert_eq!(
        (&asked["operation"], &asked["subResource"]),
        (&json!("CONNECT"), &json!("attach"))
    );
    assert_eq!(
        asked["object"],
        json!({ "kind": "PodAttachOptions", "apiVersion": "v1", "stdin": true, "container": "c" })
    );
    assert_eq!(asked["options"], Value::Null);
    let other = cluster.post(&format!("{pod}/exec?command=a"), &Value::Null).await;
    assert!(!other.message().contains("v.example.com"), "{}", other.body);
}

#[tokio::test]
async fn warnings_of_webhooks_reach_the_client_once() {
    let cluster = Cluster::start().await;
    let webhook = Webhook::start(|_| json!({ "allowed": true, "warnings": ["mind the gap", "and \"this\""] })).await;
    let webhooks = json!([
        webhook.entry("one.example.com", json!({})),
        webhook.entry("two.example.com", json!({})),
    ]);
    cluster.configure("Validating", "v", webhooks).await;
    let answered = cluster.post(MAPS, &map("m")).await;
    assert_eq!(
        answered.warnings,
        ["299 - \"mind the gap\"", "299 - \"and \\\"this\\\"\""]
    );
}

#[tokio::test]
async fn a_rule_about_one_version_means_the_others_unless_it_is_exact() {
    let cluster = Cluster::start().await;
    let (equivalent, exact) = (
        Webhook::start(|_| patched(&json!([{ "op": "add", "path": "/reason", "value": "Changed" }]))).await,
        Webhook::start(allow).await,
    );
    let rules = json!([{
        "operations": ["CREATE"], "apiGroups": ["events.k8s.io"], "apiVersions": ["v1"], "resources": ["events"],
    }]);
    cluster
        .configure(
            "Mutating",
            "m",
            json!([
                equivalent.entry("equivalent.example.com", json!({ "rules": rules })),
                exact.entry("exact.example.com", json!({ "rules": rules, "matchPolicy": "Exact" })),
            ]),
        )
        .await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "e" }, "reason": "Given", "message": "hello",
        "involvedObject": { "kind": "Pod", "namespace": "default", "name": "p" },
    });
    let answered = cluster.post("/api/v1/namespaces/default/events", &event).await;
    assert_eq!(answered.status, StatusCode::CREATED, "{}", answered.body);
    assert_eq!(
        (&answered.body["reason"], &answered.body["message"]),
        (&json!("Changed"), &json!("hello"))
    );
    assert_eq!(exact.asked().len(), 0);
    let request = &equivalent.asked()[0];
    assert_eq!(request["kind"]["group"], "events.k8s.io");
    assert_eq!(request["requestKind"]["group"], "");
    assert_eq!(request["object"]["note"], "hello");
    assert_eq!(request["object"]["apiVersion"], "events.k8s.io/v1");
}

#[tokio::test]
async fn a_scale_travels_as_a_scale_and_comes_back_into_the_object() {
    let cluster = Cluster::start().await;
    let webhook =
        Webhook::start(|_| patched(&json!([{ "op": "replace", "path": "/spec/replicas", "value": 3 }]))).await;
    let rules = json!([{
        "operations": ["UPDATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments/scale"],
    }]);
    cluster
        .configure(
            "Mutating",
            "m",
            json!([webhook.entry("scale.example.com", json!({ "rules": rules }))]),
        )
        .await;
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app": "d" } },
            "template": {
                "metadata": { "labels": { "app": "d" } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            },
        },
    });
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let answered = cluster.post(path, &deployment).await;
    assert_eq!(answered.status, StatusCode::CREATED, "{}", answered.body);
    let nine = json!({ "spec": { "replicas": 9 } });
    let answered = cluster.send(Method::PATCH, &format!("{path}/d/scale"), &nine).await;
    assert_eq!(answered.body["spec"]["replicas"], 3, "{}", answered.body);
    let request = &webhook.asked()[0];
    assert_eq!(
        request["kind"],
        json!({ "group": "autoscaling", "version": "v1", "kind": "Scale" })
    );
    assert_eq!(
        (&request["subResource"], &request["object"]["spec"]["replicas"]),
        (&json!("scale"), &json!(9))
    );
    assert_eq!(request["oldObject"]["spec"]["replicas"], 1);
}

#[tokio::test]
async fn a_custom_object_is_shown_in_the_version_that_the_webhook_knows() {
    let cluster = Cluster::start().await;
    let webhook = Webhook::start(|_| {
        patched(&json!([{ "op": "add", "path": "/spec/added", "value": "yes" }, { "op": "add", "path": "/odd", "value": 1 }]))
    })
    .await;
    let rules = json!([{
        "operations": ["CREATE"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["things"],
    }]);
    cluster
        .configure(
            "Mutating",
            "m",
            json!([webhook.entry("thing.example.com", json!({ "rules": rules }))]),
        )
        .await;
    let text = json!({ "type": "string" });
    let spec = json!({ "type": "object", "properties": { "given": text, "added": text } });
    let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "things.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList" },
            "versions": [
                { "name": "v1", "served": true, "storage": true, "schema": schema },
                { "name": "v2", "served": true, "storage": false, "schema": schema },
            ],
        },
    });
    let answered = cluster
        .post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition)
        .await;
    assert_eq!(answered.status, StatusCode::CREATED, "{}", answered.body);
    let path = "/apis/example.com/v2/namespaces/default/things";
    let served = async {
        while cluster.send(Method::GET, path, &Value::Null).await.status != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served).await.unwrap();
    let thing = json!({
        "apiVersion": "example.com/v2", "kind": "Thing", "metadata": { "name": "t" }, "spec": { "given": "yes" },
    });
    let answered = cluster.post(path, &thing).await;
    assert_eq!(answered.body["apiVersion"], "example.com/v2", "{}", answered.body);
    assert_eq!(answered.body["spec"], json!({ "given": "yes", "added": "yes" }));
    assert_eq!(answered.body.get("odd"), None);
    let request = &webhook.asked()[0];
    assert_eq!(request["object"]["apiVersion"], "example.com/v1");
    assert_eq!(
        (&request["resource"]["version"], &request["requestResource"]["version"]),
        (&json!("v1"), &json!("v2"))
    );
}

#[tokio::test]
async fn a_server_starts_whatever_its_webhooks_would_say_to_what_it_brings_along() {
    let folder = std::env::temp_dir().join(format!("moorline-admission-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let config = || Config {
        directory: Some(folder.clone()),
        ..Config::ephemeral()
    };
    let (cluster, webhook) = (Cluster::with(config()).await, Webhook::start(deny).await);
    let rules = json!([{
        "operations": ["CREATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["clusterroles"],
    }]);
    cluster
        .configure(
            "Validating",
            "v",
            json!([webhook.entry("roles.example.com", json!({ "rules": rules }))]),
        )
        .await;
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view";
    assert_eq!(
        cluster.send(Method::DELETE, path, &Value::Null).await.status,
        StatusCode::OK
    );
    cluster.stop().await;
    let cluster = Cluster::with(config()).await;
    assert_eq!(
        cluster.send(Method::GET, path, &Value::Null).await.status,
        StatusCode::OK
    );
    cluster.stop().await;
    std::fs::remove_dir_all(&folder).unwrap();
}

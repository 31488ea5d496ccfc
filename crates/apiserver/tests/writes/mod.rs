//! Writes of built-in objects, answered as they were recorded from kube-apiserver 1.36.4.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{MAPS, PODS, kit};
use kit::{Answer, Cluster, pod};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

async fn put(cluster: &Cluster, path: &str, object: &Value) -> Answer {
    cluster
        .send(Method::PUT, path, "application/json", object.to_string())
        .await
}

fn map(metadata: &Value) -> Value {
    let mut map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" } });
    for (name, value) in metadata.as_object().into_iter().flatten() {
        map["metadata"][name] = value.clone();
    }
    map
}

fn fields(answer: &Answer) -> Vec<&str> {
    let causes = answer.body["details"]["causes"].as_array();
    let causes = causes.into_iter().flatten();
    causes.filter_map(|cause| cause["field"].as_str()).collect()
}

#[tokio::test]
async fn a_fault_of_the_metadata_is_told_as_often_as_the_kind_looks() {
    let cluster = Cluster::start().await;
    cluster.create(MAPS, &map(&json!({}))).await.object();
    let path = format!("{MAPS}/m");
    let refused = put(&cluster, &path, &map(&json!({ "finalizers": ["bare"] }))).await;
    assert_eq!(
        fields(&refused),
        ["metadata.finalizers[0]", "metadata.finalizers[0]"],
        "{}",
        refused.body
    );
    assert_eq!(
        refused.message(),
        "ConfigMap \"m\" is invalid: metadata.finalizers[0]: Invalid value: \"bare\": name is neither a standard \
         finalizer name nor is it fully qualified"
    );
    let refused = put(&cluster, &path, &map(&json!({ "labels": { "-": "" } }))).await;
    assert_eq!(fields(&refused), ["metadata.labels"; 4]);
    let refused = cluster.create(MAPS, &map(&json!({ "labels": { "-": "" } }))).await;
    assert_eq!(fields(&refused), ["metadata.labels"]);
}

#[tokio::test]
async fn a_put_names_its_version_and_its_uid_before_anything_is_written() {
    let cluster = Cluster::start().await;
    let odd = map(&json!({ "resourceVersion": "odd" }));
    cluster.create(MAPS, &map(&json!({}))).await.object();
    let path = format!("{MAPS}/m");
    let refused = put(&cluster, &path, &odd).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(refused.message(), "strconv.ParseUint: parsing \"odd\": invalid syntax");
    let refused = cluster.get(&format!("{path}?resourceVersion=odd")).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    let endpoints = "/api/v1/namespaces/default/endpoints/e";
    let other = json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": "e", "uid": "u" } });
    let refused = put(&cluster, endpoints, &other).await;
    assert_eq!(
        refused.message(),
        "Operation cannot be fulfilled on endpoints \"e\": StorageError: invalid object, Code: 4, Key: \
         /registry/services/endpoints/default/e, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in \
         precondition: u, UID in object meta: "
    );
}

#[tokio::test]
async fn a_body_of_an_unknown_kind_is_told_from_one_of_another_kind() {
    let cluster = Cluster::start().await;
    let body = |version: &str, kind: &str| json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "m" } });
    let refused = cluster.create(MAPS, &body("v1", "Other")).await;
    assert_eq!(
        refused.message(),
        "Other in version \"v1\" cannot be handled as a ConfigMap: no kind \"Other\" is registered for version \"v1\" in \
         scheme \"pkg/runtime/scheme.go:111\""
    );
    let refused = cluster.create(MAPS, &body("v1", "Secret")).await;
    assert_eq!(
        refused.message(),
        "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown \
         conversion"
    );
}

#[tokio::test]
async fn a_patch_that_breaks_the_type_is_invalid() {
    let cluster = Cluster::start().await;
    cluster.create(MAPS, &map(&json!({}))).await.object();
    let refused = cluster
        .merge(&format!("{MAPS}/m"), &json!({ "metadata": { "labels": { "a": 5 } } }))
        .await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused
            .message()
            .ends_with("json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn a_job_keeps_its_selector_only_if_the_update_says_it() {
    let cluster = Cluster::start().await;
    let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "j" }, "spec": { "template": {
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i:1" }] } } } });
    let made = cluster.create(JOBS, &job).await.object();
    let uid = &made["metadata"]["uid"];
    assert_eq!(&made["metadata"]["labels"]["controller-uid"], uid);
    assert_eq!(
        made["spec"]["selector"],
        json!({ "matchLabels": { "batch.kubernetes.io/controller-uid": uid } })
    );
    let path = format!("{JOBS}/j");
    let refused = put(&cluster, &path, &job).await;
    assert_eq!(
        fields(&refused),
        [
            "spec.selector",
            "spec.template.metadata.labels",
            "spec.selector",
            "spec.template.metadata.labels",
            "spec.selector",
            "spec.template"
        ]
    );
    let deleted = cluster.delete(&path).await;
    assert!(
        deleted.warnings[0].contains("child pods are preserved by default"),
        "{:?}",
        deleted.warnings
    );
}

#[tokio::test]
async fn a_daemon_set_counts_the_changes_of_its_template() {
    let cluster = Cluster::start().await;
    let sets = "/apis/apps/v1/namespaces/default/daemonsets";
    let set = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "d" }, "spec": {
        "selector": { "matchLabels": { "a": "b" } }, "template": { "metadata": { "labels": { "a": "b" } },
        "spec": { "containers": [{ "name": "c", "image": "i:1" }] } } } });
    let count = |set: &Value| set["metadata"]["annotations"]["deprecated.daemonset.template.generation"].clone();
    assert_eq!(count(&cluster.create(sets, &set).await.object()), "1");
    let path = format!("{sets}/d");
    assert_eq!(count(&put(&cluster, &path, &set).await.object()), "1");
    let mut changed = set.clone();
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let changed = put(&cluster, &path, &changed).await.object();
    assert_eq!(
        (count(&changed), &changed["metadata"]["generation"]),
        (json!("2"), &json!(2))
    );
}

#[tokio::test]
async fn a_deleted_pod_is_answered_with_the_marks_of_its_deletion() {
    let cluster = Cluster::start().await;
    cluster.create(PODS, &pod("p")).await.object();
    let path = format!("{PODS}/p");
    let tried = cluster.delete_with(&path, &json!({ "dryRun": ["All"] })).await.object();
    assert_eq!(tried["metadata"]["deletionGracePeriodSeconds"], 0);
    let deleted = cluster.delete(&path).await.object();
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(deleted["metadata"]["generation"], 2);
}

#[tokio::test]
async fn the_options_of_a_delete_are_refused_with_a_cause() {
    let cluster = Cluster::start().await;
    let options = json!({ "propagationPolicy": "Sideways" });
    let refused = cluster.delete_with(&format!("{MAPS}/m"), &options).await;
    assert_eq!(fields(&refused), ["propagationPolicy"]);
    assert_eq!(
        refused.message(),
        "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Sideways\": supported values: \
         \"Foreground\", \"Background\", \"Orphan\", \"nil\""
    );
}

#[tokio::test]
async fn an_event_lies_where_what_it_is_about_lies() {
    let cluster = Cluster::start().await;
    let events = "/api/v1/namespaces/kube-system/events";
    let event = |namespace: &str| {
        json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": "e" },
            "involvedObject": { "kind": "Pod", "name": "p", "namespace": namespace } })
    };
    for elsewhere in ["", "default"] {
        let refused = cluster.create(events, &event(elsewhere)).await;
        assert_eq!(fields(&refused), ["involvedObject.namespace"], "{}", refused.body);
    }
    cluster.create(events, &event("kube-system")).await.object();
}

#[tokio::test]
async fn fields_that_cannot_be_selected_by_are_told_in_the_words_of_the_kind() {
    let cluster = Cluster::start().await;
    for (path, message) in [
        (PODS, "field label not supported: odd"),
        (JOBS, "field label \"odd\" not supported for Job"),
        (
            "/api/v1/persistentvolumes",
            "\"odd\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
    ] {
        let refused = cluster.get(&format!("{path}?fieldSelector=odd%3D1")).await;
        assert_eq!(refused.message(), message);
    }
}

//! Volumes of pods.

use k8s_openapi::api::{
    core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;

use crate::{
    Bench,
    bench::{PATIENCE, shell},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_reach_a_pod_as_files_and_variables_and_files_follow() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    let maps: Api<ConfigMap> = Api::default_namespaced(bench.client.clone());
    let map = serde_json::from_value(json!({ "metadata": { "name": "m" }, "data": { "key": "one" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let mut container = shell(
        "c",
        "echo $VALUE; cat /m/key; echo; cat /d/labels; echo; while ! grep -q two /m/key; do sleep 0.1; done; echo followed",
    );
    container["command"][2] = json!(
        "echo $VALUE; cat /m/key; echo; cat /d/labels; echo; while [ $(cat /m/key) != two ]; do sleep 0.1; done; echo followed"
    );
    container["env"] = json!([{ "name": "VALUE", "valueFrom": { "configMapKeyRef": { "name": "m", "key": "key" } } }]);
    container["volumeMounts"] = json!([{ "name": "m", "mountPath": "/m" }, { "name": "d", "mountPath": "/d" }]);
    let mut pod = crate::bench::pod(
        "p",
        json!({ "restartPolicy": "Never", "containers": [container], "volumes": [
            { "name": "m", "configMap": { "name": "m" } },
            { "name": "d", "downwardAPI": { "items": [
                { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
            ] } },
        ] }),
    );
    pod.metadata.labels = Some([("app".to_owned(), "a".to_owned())].into());
    bench.pods().create(&PostParams::default(), &pod).await.unwrap();
    bench.running("p").await;
    bench.until_log("p", "one\none\napp=\"a\"\n").await;
    let patch = Patch::Merge(json!({ "data": { "key": "two" } }));
    maps.patch("m", &PatchParams::default(), &patch).await.unwrap();
    bench.over("p").await;
    assert_eq!(bench.log("p").await, "one\none\napp=\"a\"\nfollowed\n");
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_for_an_object_that_is_missing() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    let mut container = shell("c", "cat /m/key");
    container["volumeMounts"] = json!([{ "name": "m", "mountPath": "/m" }]);
    bench
        .create(
            "p",
            json!({ "restartPolicy": "Never", "containers": [container],
                    "volumes": [{ "name": "m", "configMap": { "name": "m" } }] }),
        )
        .await;
    bench
        .until("p", "taken by its node", |pod| {
            pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
        })
        .await;
    let maps: Api<ConfigMap> = Api::default_namespaced(bench.client.clone());
    let map = serde_json::from_value(json!({ "metadata": { "name": "m" }, "data": { "key": "here" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    bench.over("p").await;
    assert_eq!(bench.log("p").await, "here");
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_keeps_data_from_one_pod_to_the_next() {
    let Some(bench) = Bench::start(&["node-1", "node-2"]).await else {
        return;
    };
    let _controllers = bench.controllers().await;
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(bench.client.clone());
    let claim = serde_json::from_value(json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }))
    .unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let with_claim = |script: &str| {
        let mut container = shell("c", script);
        container["volumeMounts"] = json!([{ "name": "v", "mountPath": "/data" }]);
        json!({ "restartPolicy": "Never", "containers": [container],
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }] })
    };
    bench.create("first", with_claim("echo kept > /data/file")).await;
    let first = bench.over("first").await;
    bench.create("second", with_claim("cat /data/file")).await;
    let second = bench.over("second").await;
    assert_eq!(bench.log("second").await, "kept\n");
    let node = |pod: k8s_openapi::api::core::v1::Pod| pod.spec.unwrap().node_name;
    assert_eq!(node(first), node(second), "a volume lies on one node");
    let volumes: Api<PersistentVolume> = Api::all(bench.client.clone());
    let volume = claims.get("data").await.unwrap().spec.unwrap().volume_name.unwrap();
    claims
        .delete("data", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    bench.deleted("first").await;
    assert!(
        claims.get_opt("data").await.unwrap().is_some(),
        "a pod that has ended may be looked into as long as it is there"
    );
    bench.deleted("second").await;
    let gone = await_condition(claims, "data", |claim: Option<&PersistentVolumeClaim>| claim.is_none());
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();
    let gone = await_condition(volumes, &volume, |volume: Option<&PersistentVolume>| volume.is_none());
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();
    assert!(!bench.config.directory.join("volumes").join(&volume).exists());
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_goes_where_the_volume_of_its_claim_lies_and_brings_claims_along() {
    let Some(bench) = Bench::start(&["node-1", "node-2"]).await else {
        return;
    };
    let _controllers = bench.controllers().await;
    let classes: Api<StorageClass> = Api::all(bench.client.clone());
    let class = serde_json::from_value(json!({
        "metadata": { "name": "by-hand" }, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }));
    classes.create(&PostParams::default(), &class.unwrap()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "by hand\n").unwrap();
    let volumes: Api<PersistentVolume> = Api::all(bench.client.clone());
    let volume = serde_json::from_value(json!({ "metadata": { "name": "there" }, "spec": {
        "capacity": { "storage": "2Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand",
        "persistentVolumeReclaimPolicy": "Retain", "local": { "path": directory.path() },
        "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2"] } ] }] } },
    } }));
    volumes.create(&PostParams::default(), &volume.unwrap()).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(bench.client.clone());
    let asked = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    let mut claim = json!({ "metadata": { "name": "data" }, "spec": asked });
    claim["spec"]["storageClassName"] = "by-hand".into();
    let claim = serde_json::from_value(claim).unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let mut container = shell("c", "cat /data/file; echo own > /own/file; cat /own/file");
    container["volumeMounts"] = json!([{ "name": "v", "mountPath": "/data" }, { "name": "own", "mountPath": "/own" }]);
    let volumes_of_pod = json!([
        { "name": "v", "persistentVolumeClaim": { "claimName": "data" } },
        { "name": "own", "ephemeral": { "volumeClaimTemplate": { "spec": asked } } },
    ]);
    let spec = json!({ "restartPolicy": "Never", "containers": [container], "volumes": volumes_of_pod });
    bench.create("p", spec).await;
    let pod = bench.over("p").await;
    assert_eq!(bench.log("p").await, "by hand\nown\n");
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("node-2"));
    let bound = claims.get("data").await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name.as_deref(), Some("there"));
    let own = claims.get("p-own").await.unwrap();
    assert_eq!(own.spec.unwrap().storage_class_name.as_deref(), Some("local"));
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variable_comes_from_a_file_that_another_container_wrote() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    let mut first = shell("first", "printf \"A='one two'\\n\" >/v/env");
    first["volumeMounts"] = json!([{ "name": "v", "mountPath": "/v" }]);
    let from = |key: &str, optional: bool| json!({ "fileKeyRef": { "volumeName": "v", "path": "env", "key": key, "optional": optional } });
    let mut second = shell("c", "echo \"$A, ${B-nothing}\"");
    second["env"] =
        json!([{ "name": "A", "valueFrom": from("A", false) }, { "name": "B", "valueFrom": from("B", true) }]);
    let spec = |main: &serde_json::Value| {
        json!({ "restartPolicy": "Never", "initContainers": [first], "containers": [main],
        "volumes": [{ "name": "v", "emptyDir": {} }] })
    };
    bench.create("p", spec(&second)).await;
    bench.over("p").await;
    assert_eq!(bench.log("p").await, "one two, nothing\n");
    second["env"][1]["valueFrom"]["fileKeyRef"]["optional"] = json!(false);
    bench.create("q", spec(&second)).await;
    let waiting = |pod: &k8s_openapi::api::core::v1::Pod| {
        let status = pod
            .status
            .as_ref()?
            .container_statuses
            .as_ref()?
            .first()?
            .state
            .as_ref()?;
        status.waiting.as_ref()?.message.clone()
    };
    let refused = |pod: &k8s_openapi::api::core::v1::Pod| waiting(pod).is_some_and(|message| message.contains("\"B\""));
    bench.until("q", "told what its file lacks", refused).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_is_removed_stays_for_the_pod_that_runs_it_and_no_longer() {
    let Some(bench) = Bench::start(&["node-1"]).await else {
        return;
    };
    let images = bench.config.images.clone().unwrap();
    let images = moorline_image::ImageStore::open(
        images,
        moorline_image::Options {
            recipes: Vec::new(),
            ..Default::default()
        },
    )
    .await
    .unwrap();
    let layer = images.get(crate::bench::IMAGE).await.unwrap().layers[0].clone();
    bench
        .create("p", json!({ "containers": [shell("c", "sleep 1000")] }))
        .await;
    bench.running("p").await;
    images.remove(crate::bench::IMAGE).await.unwrap();
    assert!(images.get(crate::bench::IMAGE).await.is_err());
    assert!(layer.join("bin/busybox").exists(), "the pod still needs it");
    bench.deleted("p").await;
    assert!(images.pins().await.unwrap().is_empty());
    images.collect_garbage().await.unwrap();
    assert!(!layer.exists(), "nobody needs it any more");
    bench.finish().await;
}

//! The `kube` client sits on the server without a socket between them.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
    },
    core::GroupVersionKind,
    runtime::{conditions, wait::await_condition, watcher},
};
use moorline_apiserver::{core::RealWorld, server::Embedded};
use serde_json::json;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn server() -> (Embedded, Client) {
    let server = Embedded::ephemeral(Arc::new(RealWorld))
        .await
        .expect("a server in memory starts");
    let client = Client::new(server.service(), "default");
    (server, client)
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "key": value } }))
        .expect("it is a config map")
}

#[tokio::test]
async fn a_new_server_has_its_namespaces() {
    let (_server, client) = server().await;
    let namespaces = Api::<Namespace>::all(client)
        .list(&ListParams::default())
        .await
        .unwrap();
    let names: Vec<_> = namespaces
        .items
        .into_iter()
        .filter_map(|namespace| namespace.metadata.name)
        .collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"]);
}

#[tokio::test]
async fn an_object_is_created_read_replaced_patched_and_deleted() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let created = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert!(created.metadata.uid.is_some());
    let mut read = api.get("a").await.unwrap();
    read.data.as_mut().unwrap().insert("key".to_owned(), "2".to_owned());
    let replaced = api.replace("a", &PostParams::default(), &read).await.unwrap();
    assert_ne!(replaced.metadata.resource_version, created.metadata.resource_version);
    let stale = api.replace("a", &PostParams::default(), &read).await.unwrap_err();
    assert!(matches!(stale, kube::Error::Api(status) if status.is_conflict()));
    let patch = Patch::Merge(json!({ "data": { "key": null, "other": "3" } }));
    let patched = api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(
        patched.data.unwrap().into_iter().collect::<Vec<_>>(),
        [("other".to_owned(), "3".to_owned())]
    );
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let gone = api.get("a").await.unwrap_err();
    assert!(matches!(gone, kube::Error::Api(status) if status.is_not_found()));
}

#[tokio::test]
async fn server_side_apply_creates_owns_and_conflicts() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let apply = |manager, value| {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": { "key": value },
        });
        let api = api.clone();
        async move {
            api.patch("a", &PatchParams::apply(manager), &Patch::Apply(object))
                .await
        }
    };
    let first = apply("one", "1").await.unwrap();
    assert_eq!(first.metadata.managed_fields.unwrap().len(), 1);
    let same = apply("one", "1").await.unwrap();
    assert_eq!(
        same.metadata.resource_version, first.metadata.resource_version,
        "nothing changed"
    );
    let conflict = apply("two", "2").await.unwrap_err();
    assert!(matches!(conflict, kube::Error::Api(status) if status.is_conflict()));
}

#[tokio::test]
async fn a_watch_sees_every_change_in_order() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let list = api.list(&ListParams::default()).await.unwrap();
    let version = list.metadata.resource_version.unwrap();
    let watch = WatchParams::default().fields("metadata.name=a");
    let mut events = api.watch(&watch, &version).await.unwrap().boxed();
    api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    api.create(&PostParams::default(), &config_map("b", "1")).await.unwrap();
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({ "data": { "key": "2" } })),
    )
    .await
    .unwrap();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let event = tokio::time::timeout(PATIENCE, events.try_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        seen.push(match event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => "deleted",
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => "other",
        });
    }
    assert_eq!(seen, ["added", "modified", "deleted"]);
}

#[tokio::test]
async fn the_watcher_of_kube_runtime_syncs_by_lists_and_by_streaming_lists() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    for number in 0..12 {
        api.create(&PostParams::default(), &config_map(&format!("c{number}"), "1"))
            .await
            .unwrap();
    }
    for config in [
        watcher::Config::default().page_size(5),
        watcher::Config::default().streaming_lists(),
    ] {
        let mut events = watcher(api.clone(), config.fields("metadata.name!=kube-root-ca.crt")).boxed();
        let mut initial = 0;
        loop {
            match tokio::time::timeout(PATIENCE, events.try_next())
                .await
                .unwrap()
                .unwrap()
                .unwrap()
            {
                watcher::Event::Init => {}
                watcher::Event::InitApply(_) => initial += 1,
                watcher::Event::InitDone => break,
                other => panic!("{other:?} before the initial list was through"),
            }
        }
        assert_eq!(initial, 12);
    }
}

#[tokio::test]
async fn a_custom_kind_is_served_once_it_is_established() {
    let (_server, client) = server().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "kind": "Widget", "plural": "widgets" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object",
                "properties": { "spec": { "type": "object", "properties": { "size": { "type": "integer", "default": 3 } } } },
            } } }],
        },
    }))
    .unwrap();
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let established = await_condition(definitions, "widgets.example.com", conditions::is_crd_established());
    tokio::time::timeout(PATIENCE, established).await.unwrap().unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    let widgets: Api<DynamicObject> = Api::default_namespaced_with(client, &resource);
    let widget = DynamicObject::new("w", &resource).data(json!({ "spec": { "unknown": true } }));
    let stored = widgets.create(&PostParams::default(), &widget).await.unwrap();
    assert_eq!(stored.data["spec"], json!({ "size": 3 }), "pruned and filled in");
}

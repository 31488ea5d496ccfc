//! The cache through everything that a watch goes through.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use moorline_runtime::{Cache, Kind, Selection};
use serde_json::json;

use crate::{
    scene::{eventually, read, server},
    wire::{Accident, Wire},
};

fn map(name: &str, label: &str) -> ConfigMap {
    read(json!({ "metadata": { "name": name, "labels": { "side": label } }, "data": { "key": name } }))
}

#[tokio::test(start_paused = true)]
async fn a_collection_follows_what_comes_changes_and_goes() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), &map("before", "left"))
        .await
        .unwrap();
    let cache = Cache::new(client);
    let all = cache.collection(&Selection::all(Kind::of::<ConfigMap>()).labelled("side"));
    all.synced().await;
    assert_eq!(
        all.get("default", "before")
            .unwrap()
            .decode::<ConfigMap>()
            .unwrap()
            .data
            .as_ref()
            .unwrap()["key"],
        "before"
    );
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let _listening = all.listen(move |event| {
        let what = match (event.old, event.new) {
            (None, Some(_)) => "came",
            (Some(_), Some(_)) => "changed",
            (Some(_), None) => "went",
            (None, None) => "nothing",
        };
        listener.lock().unwrap().push(format!(
            "{} {what}{}",
            event.key(),
            if event.initial { " before" } else { "" }
        ));
    });
    api.create(&PostParams::default(), &map("a", "left")).await.unwrap();
    let patch = Patch::Merge(json!({ "data": { "key": "other" } }));
    api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    eventually("all is told", || async {
        (told.lock().unwrap().len() == 4).then_some(())
    })
    .await;
    let wanted = [
        "default/before came before",
        "default/a came",
        "default/a changed",
        "default/a went",
    ];
    assert_eq!(*told.lock().unwrap(), wanted);
    assert!(all.get("default", "a").is_none());
    cache.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_a_selector_leaves_the_collection() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let cache = Cache::new(client);
    let left = cache.collection(&Selection::all(Kind::of::<ConfigMap>()).labelled("side=left"));
    left.synced().await;
    api.create(&PostParams::default(), &map("a", "left")).await.unwrap();
    eventually("it is there", || async { left.get("default", "a") }).await;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "side": "right" } } }));
    api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    eventually("it is gone", || async { left.is_empty().then_some(()) }).await;
    cache.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_watch_serves_everybody_who_asks_for_the_same() {
    let (_server, client) = server().await;
    let cache = Cache::new(client);
    let selection = Selection::all(Kind::of::<ConfigMap>());
    let (one, two) = (cache.collection(&selection), cache.collection(&selection));
    assert!(Arc::ptr_eq(&one, &two));
    one.synced().await;
    let object = one
        .get("kube-system", "kube-root-ca.crt")
        .or_else(|| one.list().pop())
        .unwrap();
    let (first, second) = (
        object.decode::<ConfigMap>().unwrap(),
        object.decode::<ConfigMap>().unwrap(),
    );
    assert!(Arc::ptr_eq(&first, &second), "it is decoded once");
    cache.stop().await;
}

#[tokio::test(start_paused = true)]
async fn metadata_alone_brings_no_contents() {
    let (_server, client) = server().await;
    let api: Api<Secret> = Api::default_namespaced(client.clone());
    let secret: Secret = read(json!({ "metadata": { "name": "s" }, "stringData": { "password": "hush" } }));
    api.create(&PostParams::default(), &secret).await.unwrap();
    let cache = Cache::new(client);
    let secrets = cache.collection(&Selection::all(Kind::of::<Secret>()).metadata());
    secrets.synced().await;
    let object = secrets.get("default", "s").unwrap();
    assert!(
        !String::from_utf8_lossy(object.json()).contains("\"data\""),
        "{object:?}"
    );
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "new": "label" } } }));
    api.patch("s", &PatchParams::default(), &patch).await.unwrap();
    eventually("its metadata is followed", || async {
        secrets.get("default", "s")?.label("new").map(drop)
    })
    .await;
    cache.stop().await;
}

#[tokio::test(start_paused = true)]
async fn managed_fields_do_not_come_in() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), &map("a", "left")).await.unwrap();
    assert!(api.get("a").await.unwrap().metadata.managed_fields.is_some());
    let cache = Cache::new(client);
    let maps = cache.collection(&Selection::all(Kind::of::<ConfigMap>()));
    maps.synced().await;
    assert!(!String::from_utf8_lossy(maps.get("default", "a").unwrap().json()).contains("managedFields"));
    cache.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_while_the_watch_was_away_is_found_by_difference() {
    let (server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for name in ["stays", "changes", "goes"] {
        api.create(&PostParams::default(), &map(name, "left")).await.unwrap();
    }
    let wire = Wire::new(server.service(), Accident::None);
    let cache = Cache::new(wire.client());
    let maps = cache.collection(&Selection::all(Kind::of::<ConfigMap>()).labelled("side"));
    maps.synced().await;
    let stays = maps.get("default", "stays").unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let _listening = maps.listen(move |event| {
        if !event.initial {
            listener.lock().unwrap().push(event.key().to_string());
        }
    });
    // The watch breaks and the server has forgotten where it was: everything is listed anew.
    wire.hold("configmaps");
    let patch = Patch::Merge(json!({ "data": { "key": "other" } }));
    api.patch("changes", &PatchParams::default(), &patch).await.unwrap();
    api.delete("goes", &DeleteParams::default()).await.unwrap();
    wire.expire_watches();
    wire.release();
    eventually("the difference is told", || async {
        (told.lock().unwrap().len() == 2).then_some(())
    })
    .await;
    let mut told = told.lock().unwrap().clone();
    told.sort();
    assert_eq!(told, ["default/changes", "default/goes"]);
    let still = maps.get("default", "stays").unwrap();
    assert!(Arc::ptr_eq(
        &stays.decode::<ConfigMap>().unwrap(),
        &still.decode::<ConfigMap>().unwrap()
    ));
    cache.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_streams_no_lists_is_asked_for_pages() {
    let (server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for nth in 0..7 {
        api.create(&PostParams::default(), &map(&format!("m{nth}"), "left"))
            .await
            .unwrap();
    }
    let wire = Wire::new(server.service(), Accident::None);
    wire.refuse_streaming_lists();
    let cache = Cache::new(wire.client());
    let maps = cache.collection(&Selection::all(Kind::of::<ConfigMap>()).labelled("side"));
    maps.synced().await;
    assert_eq!(maps.len(), 7);
    api.delete("m3", &DeleteParams::default()).await.unwrap();
    eventually("changes are followed", || async { (maps.len() == 6).then_some(()) }).await;
    cache.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_is_asked_for_ever_more_rarely() {
    let (server, _client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    wire.refuse_streaming_lists();
    wire.fail_lists();
    let cache = Cache::new(wire.client());
    let maps = cache.collection(&Selection::all(Kind::of::<ConfigMap>()));
    tokio::time::sleep(std::time::Duration::from_hours(1)).await;
    let asked = wire.reads().len();
    assert!((60..300).contains(&asked), "asked {asked} times in an hour");
    assert!(!maps.progress().synced);
    cache.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_who_listens_or_indexes_hurts_one_object_only() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let cache = Cache::new(client);
    let maps = cache.collection(&Selection::all(Kind::of::<ConfigMap>()).labelled("side"));
    maps.synced().await;
    maps.declare_index(
        "side",
        Arc::new(|object| {
            assert_ne!(object.name(), "bad", "nobody can index this");
            vec![object.label("side").unwrap_or_default().to_owned()]
        }),
    );
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let _listening = maps.listen(move |event| {
        assert_ne!(event.object().name(), "bad", "nobody can bear this");
        listener.lock().unwrap().push(event.object().name().to_owned());
    });
    for name in ["bad", "good"] {
        api.create(&PostParams::default(), &map(name, "left")).await.unwrap();
    }
    eventually("the good one is told of", || async {
        told.lock().unwrap().contains(&"good".to_owned()).then_some(())
    })
    .await;
    assert_eq!(maps.len(), 2);
    api.delete("bad", &DeleteParams::default()).await.unwrap();
    eventually("the bad one is gone", || async { (maps.len() == 1).then_some(()) }).await;
    cache.stop().await;
}

//! Acting on fresh evidence only, and not twice on the same.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use moorline_machinery::selector::LabelSelector;
use moorline_runtime::{
    Actor, Controller, Draft, Failure, Ground, Key, Planner, Running, Selection, Settings, Snapshot, Verdict, Watches,
    transformer,
};
use serde_json::json;

use crate::{
    scene::{Page, eventually, page, read, server},
    wire::{Accident, Wire},
};

/// Adopts every config map that carries its name, and deletes those that say so.
struct Collector;

impl Actor for Collector {
    type Object = Page;

    fn name(&self) -> &'static str {
        "collector"
    }

    fn watches(&self) -> Watches {
        let kind = moorline_runtime::Kind::of::<ConfigMap>();
        Watches::of::<Page>()
            .owns::<ConfigMap>()
            .selecting(Selection::all(kind).labelled("page"))
            .maps::<ConfigMap>(|map, _| vec![Key::new(map.namespace(), map.label("page").unwrap_or_default())])
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("collect", collect))
    }
}

fn collect(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let selector: LabelSelector = format!("page={}", seen.raw().name())
        .parse()
        .expect("a name is a value");
    for map in seen.select::<ConfigMap>(&selector)? {
        if map.raw().label("unwanted").is_some() {
            draft.put(seen.delete(map.raw(), "it says that it is unwanted"));
        } else if map.raw().controller().is_none() {
            draft.put(seen.adopt(map.raw(), "it carries the name")?);
        }
    }
    Ok(Verdict::Continue)
}

struct Collection {
    ground: Ground,
    _server: moorline_apiserver::server::Embedded,
    wire: Wire,
    pages: Api<Page>,
    maps: Api<ConfigMap>,
    _running: Running,
}

impl Collection {
    async fn new() -> Self {
        Self::within(&[]).await
    }

    async fn within(namespaces: &[&str]) -> Self {
        let (server, client) = server().await;
        let wire = Wire::new(server.service(), Accident::None);
        let ground = Ground::new(wire.client());
        let settings = Settings {
            namespaces: namespaces.iter().map(ToString::to_string).collect(),
            ..Settings::default()
        };
        let running = Controller::warm_up(&Collector, &ground, settings).start();
        let client: Client = client;
        let collection = Self {
            ground,
            _server: server,
            wire,
            pages: Api::default_namespaced(client.clone()),
            maps: Api::default_namespaced(client),
            _running: running,
        };
        let created = collection
            .pages
            .create(&PostParams::default(), &page("a", "one", 0))
            .await;
        created.expect("the page is good");
        eventually("the page was looked at", || async {
            collection.pages.get("a").await.ok().filter(Page::is_ready)
        })
        .await;
        collection
    }

    async fn create(&self, name: &str, more: serde_json::Value) {
        let mut map = json!({ "metadata": { "name": name, "labels": { "page": "a" } } });
        map["metadata"]["finalizers"] = more["finalizers"].clone();
        if more["unwanted"] == true {
            map["metadata"]["labels"]["unwanted"] = "yes".into();
        }
        let created = self.maps.create(&PostParams::default(), &read(map)).await;
        created.expect("the config map is good");
    }

    async fn owners(&self, name: &str) -> usize {
        let map = self.maps.get(name).await.expect("it is there");
        map.metadata.owner_references.unwrap_or_default().len()
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_adopted_by_one_who_has_been_deleted_unseen() {
    let collection = Collection::new().await;
    collection.create("before", json!({})).await;
    eventually("the first is adopted", || async {
        (collection.owners("before").await == 1).then_some(())
    })
    .await;
    // The page goes, and nobody here is told.
    collection.wire.hold("pages");
    collection.pages.delete("a", &DeleteParams::orphan()).await.unwrap();
    collection.create("after", json!({})).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(collection.owners("after").await, 0, "its owner is gone");
    let adopted = |line: &String| line.starts_with("PATCH") && line.contains("/configmaps/after");
    assert!(
        !collection.wire.log().iter().any(adopted),
        "{:?}",
        collection.wire.log()
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_being_deleted_is_not_deleted_again() {
    let collection = Collection::new().await;
    let stays = json!({ "unwanted": true, "finalizers": ["test.moorline.io/stay"] });
    collection.create("slow", stays).await;
    eventually("it is being deleted", || async {
        let map = collection.maps.get("slow").await.ok()?;
        map.metadata.deletion_timestamp
    })
    .await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let deletes = collection
        .wire
        .log()
        .into_iter()
        .filter(|line| line.starts_with("DELETE"));
    assert_eq!(deletes.count(), 1);
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    collection
        .maps
        .patch("slow", &PatchParams::default(), &free)
        .await
        .unwrap();
}

impl Collection {
    /// How often the gate said so.
    fn gated(&self, result: &str) -> usize {
        let text = self.ground.metrics.to_text();
        let counted = format!("moorline_read_your_writes_total{{controller=\"collector\",result=\"{result}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&counted));
        line.map_or(0, |count| count.parse().expect("a count is a number"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_in_one_namespace_is_not_waited_for_in_another() {
    let collection = Collection::within(&["another", "default"]).await;
    collection.create("orphan", json!({})).await;
    eventually("it is adopted", || async {
        (collection.owners("orphan").await == 1).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(collection.gated("seen") > 0);
    assert_eq!(collection.gated("late"), 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_cache_is_late_for_is_read_from_the_server_until_it_is_seen() {
    let collection = Collection::new().await;
    let map = json!({ "metadata": { "name": "orphan", "labels": { "page": "b" } } });
    collection
        .maps
        .create(&PostParams::default(), &read(map))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // From here on the cache hears of no config map, and so not of the adoption.
    collection.wire.hold("configmaps");
    let created = collection
        .pages
        .create(&PostParams::default(), &page("b", "one", 0))
        .await;
    created.unwrap();
    for text in ["two", "three", "four"] {
        tokio::time::sleep(Duration::from_mins(1)).await;
        let text = Patch::Merge(json!({ "spec": { "text": text } }));
        collection
            .pages
            .patch("b", &PatchParams::default(), &text)
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(collection.owners("orphan").await, 1);
    assert!(collection.gated("late") > 0);
    let adoptions = |line: &&String| line.starts_with("PATCH") && line.contains("/configmaps/orphan");
    let log = collection.wire.log();
    assert_eq!(log.iter().filter(adoptions).count(), 1, "{log:?}");
}

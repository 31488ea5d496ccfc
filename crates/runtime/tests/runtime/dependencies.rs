//! Dependencies on the relying side: pages rely on stores.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, CustomResource, CustomResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use moorline_machinery::selector::LabelSelector;
use moorline_runtime::{
    Actor, Controller, Dependency, Draft, Failure, Farewell, Ground, Key, Planner, Running, Settings, Snapshot,
    Verdict, Watches, transformer,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::scene::{Page, PageSpec, define, eventually, read, server};

/// Where pages are kept. Others write its status.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "test.moorline.io",
    version = "v1",
    kind = "Store",
    namespaced,
    status = "StoreStatus"
)]
pub(crate) struct StoreSpec {}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoreStatus {
    #[serde(default)]
    pub address: Option<String>,
    /// A quorum is enough for those who rely on it.
    #[serde(default)]
    pub available: bool,
    #[serde(default)]
    pub fully_ready: bool,
    #[serde(default)]
    pub blocked_by: Option<String>,
}

/// Writes the store's address into its copies.
struct Shelves;

impl Actor for Shelves {
    type Object = Page;

    fn name(&self) -> &'static str {
        "shelves"
    }

    fn watches(&self) -> Watches {
        let store = Dependency::on::<Page, Store>(
            "store",
            |page| {
                let namespace = page.metadata.namespace.as_deref().unwrap_or_default();
                page.spec.store.iter().map(|name| Key::new(namespace, name)).collect()
            },
            |store| match &store.status {
                Some(status) if status.available => Ok(()),
                _ => Err("is not available".to_owned()),
            },
        );
        Watches::of::<Page>().owns_exactly::<ConfigMap>().depends_on(store)
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("shelves", shelves))
    }
}

fn shelves(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let spec = &seen.object().spec;
    let store = match &spec.store {
        Some(name) => seen.get::<Store>(name)?,
        None => None,
    };
    let address = store
        .and_then(|store| store.status.as_ref()?.address.clone())
        .unwrap_or_default();
    for nth in 0..spec.copies {
        let name = format!("{}-{nth}", seen.raw().name());
        let there = seen.get::<ConfigMap>(&name)?;
        let address = match &there {
            // What is there goes on with what it has while the store is away.
            Some(there) if address.is_empty() => there
                .data
                .as_ref()
                .map(|data| data["address"].clone())
                .unwrap_or_default(),
            _ => address.clone(),
        };
        let shelf: ConfigMap = read(json!({
            "metadata": { "name": name }, "data": { "text": spec.text, "address": address },
        }));
        let shelf = draft.put(seen.apply(&shelf, "a shelf is wanted")?);
        if there.is_none() {
            seen.require(draft, "store", &shelf)?;
        }
    }
    Ok(Verdict::Continue)
}

/// Lets nobody go who is relied on.
struct Keeper;

impl Actor for Keeper {
    type Object = Store;

    fn name(&self) -> &'static str {
        "keeper"
    }

    fn watches(&self) -> Watches {
        let users = |page: &moorline_runtime::Object, _: &moorline_runtime::Sources| {
            let page = page.decode::<Page>().ok();
            let store = page.and_then(|page| {
                Some(Key::new(
                    page.metadata.namespace.as_deref()?,
                    page.spec.store.as_deref()?,
                ))
            });
            store.into_iter().collect()
        };
        Watches::of::<Store>().maps::<Page>(users).without_conditions()
    }

    fn plan(&self, plan: Planner<Store>) -> Planner<Store> {
        plan.transformer(transformer("note", |seen: &Snapshot<Store>, draft: &mut Draft| {
            // An effect, so that there is something to take leave of.
            if seen.object().status.is_none() {
                draft.put(seen.status(&StoreStatus::default(), "begin")?);
            }
            let mut named = seen.raw().value();
            named["metadata"]["labels"]["kept"] = "yes".into();
            draft.put(seen.patch_value(seen.raw(), &named, "it is kept")?);
            Ok(Verdict::Continue)
        }))
    }

    fn farewell(&self, plan: Planner<Store>) -> Farewell<Store> {
        let plan = plan.transformer(transformer("users", |seen: &Snapshot<Store>, draft: &mut Draft| {
            let pages = seen.select::<Page>(&LabelSelector::EVERYTHING)?;
            let users: Vec<_> = pages
                .iter()
                .filter(|page| page.spec.store.as_deref() == Some(seen.raw().name()))
                .map(|page| page.name().to_owned())
                .collect();
            if users.is_empty() {
                return Ok(Verdict::Continue);
            }
            let words = format!("Pages rely on it: {}", users.join(", "));
            let mut status = seen.object().status.clone().unwrap_or_default();
            status.blocked_by = Some(words.clone());
            draft.put(seen.status(&status, "tell who is in the way")?);
            Err(Failure::waiting(words))
        }));
        Farewell::Finalizer {
            name: "test.moorline.io/store",
            plan,
        }
    }
}

struct Scene {
    _server: moorline_apiserver::server::Embedded,
    ground: Ground,
    pages: Api<Page>,
    stores: Api<Store>,
    maps: Api<ConfigMap>,
}

impl Scene {
    async fn new() -> Self {
        let (server, client) = server().await;
        define(&client, Store::crd()).await;
        Self {
            pages: Api::default_namespaced(client.clone()),
            stores: Api::default_namespaced(client.clone()),
            maps: Api::default_namespaced(client.clone()),
            ground: Ground::new(client),
            _server: server,
        }
    }

    fn start(&self) -> Running {
        Controller::warm_up(&Shelves, &self.ground, Settings::default()).start()
    }

    async fn page(&self, copies: usize, store: Option<&str>) {
        let spec = PageSpec {
            text: "one".to_owned(),
            copies,
            store: store.map(str::to_owned),
        };
        self.pages
            .create(&PostParams::default(), &Page::new("a", spec))
            .await
            .expect("the server does what it is asked");
    }

    async fn store(&self) {
        self.stores
            .create(&PostParams::default(), &Store::new("main", StoreSpec {}))
            .await
            .expect("the server does what it is asked");
    }

    async fn say(&self, status: serde_json::Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.stores
            .patch_status("main", &PatchParams::default(), &patch)
            .await
            .expect("the server does what it is asked");
    }

    async fn addresses(&self) -> Vec<String> {
        let selected = kube::api::ListParams::default().labels("moorline.io/managed-by=moorline");
        let maps = self
            .maps
            .list(&selected)
            .await
            .expect("the server does what it is asked")
            .items;
        maps.into_iter().filter_map(|map| map.data?.remove("address")).collect()
    }

    async fn has(&self, wanted: &[&str]) {
        eventually(&format!("the addresses are {wanted:?}"), || async {
            (self.addresses().await == wanted).then_some(())
        })
        .await;
    }

    async fn condition(&self, name: &str, status: &str) -> String {
        eventually(&format!("{name} is {status}"), || async {
            let (is, _, message) = self.pages.get("a").await.ok()?.condition(name)?;
            (is == status).then_some(message)
        })
        .await
    }

    fn errors(&self) -> bool {
        let text = self.ground.metrics.to_text();
        let mut counts = text
            .lines()
            .filter(|line| line.starts_with("controller_runtime_reconcile_errors_total{"));
        counts.any(|line| !line.ends_with(" 0"))
    }
}

#[tokio::test(start_paused = true)]
async fn a14_a_missing_dependency_is_named_at_once_and_nothing_is_made_or_counted_as_failed() {
    let scene = Scene::new().await;
    let running = scene.start();
    scene.page(2, Some("main")).await;
    let message = scene.condition("DependenciesReady", "False").await;
    assert_eq!(message, "Store default/main does not exist");
    scene.store().await;
    eventually("the unmet predicate is named", || async {
        let (_, _, message) = scene.pages.get("a").await.ok()?.condition("DependenciesReady")?;
        (message == "Store default/main is not available").then_some(())
    })
    .await;
    assert_eq!(scene.addresses().await, [] as [String; 0]);
    assert!(!scene.errors(), "waiting is not an error");
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a15_a_dependency_that_becomes_ready_wakes_its_dependant_by_watch() {
    let scene = Scene::new().await;
    let running = scene.start();
    scene.page(2, Some("main")).await;
    scene.store().await;
    scene.condition("DependenciesReady", "False").await;
    let told = tokio::time::Instant::now();
    scene.say(json!({ "available": true, "address": "10.0.0.1" })).await;
    scene.has(&["10.0.0.1", "10.0.0.1"]).await;
    assert!(told.elapsed() < Duration::from_secs(1), "{:?}", told.elapsed());
    scene.condition("DependenciesReady", "True").await;
    scene.condition("Ready", "True").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a16_a_dependency_that_changes_its_address_has_its_dependant_rendered_anew() {
    let scene = Scene::new().await;
    let running = scene.start();
    scene.store().await;
    scene.say(json!({ "available": true, "address": "10.0.0.1" })).await;
    scene.page(1, Some("main")).await;
    scene.has(&["10.0.0.1"]).await;
    scene.say(json!({ "address": "10.0.0.2" })).await;
    scene.has(&["10.0.0.2"]).await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a17_an_unready_dependency_blocks_neither_scaling_in_nor_rolling_back_nor_deleting() {
    let scene = Scene::new().await;
    let running = scene.start();
    scene.store().await;
    scene.say(json!({ "available": true, "address": "10.0.0.1" })).await;
    scene.page(3, Some("main")).await;
    scene.has(&["10.0.0.1"; 3]).await;
    scene.say(json!({ "available": false, "address": null })).await;
    scene.condition("DependenciesReady", "False").await;

    let patch = |spec: serde_json::Value| Patch::Merge(json!({ "spec": spec }));
    scene
        .pages
        .patch("a", &PatchParams::default(), &patch(json!({ "copies": 2 })))
        .await
        .unwrap();
    scene.has(&["10.0.0.1"; 2]).await;
    scene
        .pages
        .patch("a", &PatchParams::default(), &patch(json!({ "text": "zero" })))
        .await
        .unwrap();
    eventually("what is there is rolled back", || async {
        let map = scene.maps.get("a-1").await.ok()?;
        (map.data?["text"] == "zero").then_some(())
    })
    .await;
    scene
        .pages
        .patch("a", &PatchParams::default(), &patch(json!({ "copies": 4 })))
        .await
        .unwrap();
    let message = scene.condition("Progressing", "True").await;
    assert_eq!(
        message, "Store default/main is not available",
        "only what needs it waits"
    );
    scene.has(&["10.0.0.1"; 2]).await;
    scene.pages.delete("a", &DeleteParams::default()).await.unwrap();
    scene.has(&[]).await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a18_dependants_go_on_with_a_quorum_of_what_they_rely_on() {
    let scene = Scene::new().await;
    let running = scene.start();
    scene.store().await;
    scene
        .say(json!({ "available": true, "fullyReady": false, "address": "10.0.0.1" }))
        .await;
    scene.page(1, Some("main")).await;
    scene.has(&["10.0.0.1"]).await;
    let patch = Patch::Merge(json!({ "spec": { "copies": 2 } }));
    scene.pages.patch("a", &PatchParams::default(), &patch).await.unwrap();
    scene.has(&["10.0.0.1"; 2]).await;
    scene.condition("Ready", "True").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a21_what_is_relied_on_waits_with_its_leave_and_tells_for_whom() {
    let scene = Scene::new().await;
    let shelves = scene.start();
    let keeper = Controller::warm_up(&Keeper, &scene.ground, Settings::default()).start();
    scene.store().await;
    eventually("the store is kept", || async {
        let finalizers = scene.stores.get("main").await.ok()?.metadata.finalizers?;
        finalizers.contains(&"test.moorline.io/store".to_owned()).then_some(())
    })
    .await;
    scene.say(json!({ "available": true, "address": "10.0.0.1" })).await;
    scene.page(1, Some("main")).await;
    scene.has(&["10.0.0.1"]).await;
    scene.stores.delete("main", &DeleteParams::default()).await.unwrap();
    eventually("it tells who is in the way", || async {
        let status = scene.stores.get("main").await.ok()?.status?;
        (status.blocked_by? == "Pages rely on it: a").then_some(())
    })
    .await;
    scene.pages.delete("a", &DeleteParams::default()).await.unwrap();
    eventually("it goes once nobody relies on it", || async {
        scene.stores.get_opt("main").await.ok()?.is_none().then_some(())
    })
    .await;
    assert!(shelves.stop(Duration::from_secs(5)).await);
    assert!(keeper.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a22_an_object_without_a_reference_relies_on_nothing() {
    let scene = Scene::new().await;
    let running = scene.start();
    scene.page(1, None).await;
    scene.has(&[""]).await;
    scene.condition("DependenciesReady", "True").await;
    scene.condition("Ready", "True").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

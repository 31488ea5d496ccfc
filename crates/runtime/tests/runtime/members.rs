//! Several clusters: pages placed in members.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use moorline_apiserver::server::Embedded;
use moorline_runtime::{
    Actor, Controller, Draft, Failure, Ground, Planner, Settings, Snapshot, Verdict, Watches, transformer,
};
use serde_json::json;

use crate::{
    scene::{Page, eventually, page, read, server},
    wire::{Accident, Wire},
};

/// The text names the members that a page is placed in.
struct Placed;

impl Actor for Placed {
    type Object = Page;

    fn name(&self) -> &'static str {
        "placed"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().spreads::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("place", |seen: &Snapshot<Page>, draft: &mut Draft| {
            for cluster in seen.object().spec.text.split(',').filter(|name| !name.is_empty()) {
                let map: ConfigMap =
                    read(json!({ "metadata": { "name": seen.raw().name() }, "data": { "at": cluster } }));
                draft.put(seen.apply_in(cluster, &map, "it is placed there")?);
            }
            Ok::<_, Failure>(Verdict::Continue)
        }))
    }
}

struct Member {
    _server: Embedded,
    wire: Wire,
    maps: Api<ConfigMap>,
}

async fn member() -> Member {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    Member {
        maps: Api::default_namespaced(client),
        wire,
        _server: server,
    }
}

impl Member {
    async fn has(&self, wanted: &[&str]) {
        eventually(&format!("the member has {wanted:?}"), || async {
            let list = self
                .maps
                .list(&ListParams::default().labels("moorline.io/owner-uid"))
                .await
                .expect("the server does what it is asked")
                .items;
            let names: Vec<_> = list.into_iter().filter_map(|map| map.metadata.name).collect();
            (names == wanted).then_some(())
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn pages_are_placed_moved_and_taken_back() {
    let (_home, client) = server().await;
    let (east, west) = (member().await, member().await);
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages: Api<Page> = Api::default_namespaced(client);
    pages
        .create(&PostParams::default(), &page("a", "east", 0))
        .await
        .unwrap();
    east.has(&["a"]).await;
    // What somebody takes away there comes back.
    east.maps.delete("a", &DeleteParams::default()).await.unwrap();
    east.has(&["a"]).await;
    // A member that is not known is waited for, and placed in when it comes.
    let patch = Patch::Merge(json!({ "spec": { "text": "west" } }));
    pages.patch("a", &PatchParams::default(), &patch).await.unwrap();
    eventually("it tells what it waits for", || async {
        let (_, reason, message) = pages.get("a").await.ok()?.condition("Progressing")?;
        (reason == "Waiting" && message == "the cluster west is not known here").then_some(())
    })
    .await;
    east.has(&["a"]).await;
    ground.clusters.add("west", west.wire.client());
    west.has(&["a"]).await;
    east.has(&[]).await;
    pages.delete("a", &DeleteParams::default()).await.unwrap();
    west.has(&[]).await;
    eventually("it is gone", || async {
        pages.get_opt("a").await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_away_degrades_only_what_is_placed_there() {
    let (_home, client) = server().await;
    let (here, away) = (member().await, member().await);
    away.wire.cut();
    let ground = Ground::new(client.clone());
    ground.clusters.add("here", here.wire.client());
    ground.clusters.add("away", away.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages: Api<Page> = Api::default_namespaced(client);
    pages
        .create(&PostParams::default(), &page("lost", "away", 0))
        .await
        .unwrap();
    pages
        .create(&PostParams::default(), &page("fine", "here", 0))
        .await
        .unwrap();
    here.has(&["fine"]).await;
    eventually("what is placed well is ready", || async {
        pages.get("fine").await.ok().filter(Page::is_ready)
    })
    .await;
    eventually("the other tells what it waits for", || async {
        let (_, _, message) = pages.get("lost").await.ok()?.condition("Progressing")?;
        (message == "the cluster away has not been reached yet").then_some(())
    })
    .await;
    ground.clusters.remove("away").await;
    running.abandon().await;
}

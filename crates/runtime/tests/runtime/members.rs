//! Several clusters: pages placed in members.

use std::{collections::BTreeSet, time::Duration};

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
pub(crate) struct Placed;

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
                let copies = seen.object().spec.copies.to_string();
                let map: ConfigMap = read(json!({
                    "metadata": { "name": seen.raw().name() }, "data": { "at": cluster, "copies": copies },
                }));
                draft.put(seen.apply_in(cluster, &map, "it is placed there")?);
            }
            Ok::<_, Failure>(Verdict::Continue)
        }))
    }
}

/// What becomes of pages, as the test sees it.
pub(crate) struct Pages(pub(crate) Api<Page>);

impl Pages {
    pub(crate) async fn create(&self, name: &str, place: &str) {
        let created = self.0.create(&PostParams::default(), &page(name, place, 0)).await;
        created.expect("the server does what it is asked");
    }

    async fn place(&self, name: &str, place: &str) {
        let patch = Patch::Merge(json!({ "spec": { "text": place } }));
        let patched = self.0.patch(name, &PatchParams::default(), &patch).await;
        patched.expect("the server does what it is asked");
    }

    /// Gives a page something to write wherever it is placed.
    async fn change(&self, name: &str) {
        let patch = Patch::Merge(json!({ "spec": { "copies": 1 } }));
        let patched = self.0.patch(name, &PatchParams::default(), &patch).await;
        patched.expect("the server does what it is asked");
    }

    async fn delete(&self, name: &str) {
        let deleted = self.0.delete(name, &DeleteParams::default()).await;
        deleted.expect("the server does what it is asked");
    }

    pub(crate) async fn is_ready(&self, name: &str) {
        eventually(&format!("{name} is ready"), || async {
            self.0.get(name).await.ok().filter(Page::is_ready)
        })
        .await;
    }

    async fn is_gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), || async {
            let there = self.0.get_opt(name).await.expect("the server does what it is asked");
            there.is_none().then_some(())
        })
        .await;
    }

    /// Waits until a page that is not ready tells what it waits for.
    pub(crate) async fn tells(&self, name: &str, words: &str) {
        eventually(&format!("{name} tells {words:?}"), || async {
            let page = self.0.get(name).await.ok()?;
            let (_, _, message) = page.condition("Progressing")?;
            (!page.is_ready() && message.contains(words)).then_some(())
        })
        .await;
    }

    /// The members in which a page says that something of it is or may be.
    async fn places(&self, name: &str) -> Option<String> {
        let page = self.0.get(name).await.expect("the server does what it is asked");
        page.metadata.annotations?.remove("placed-in.moorline.io/placed")
    }
}

pub(crate) struct Member {
    _server: Embedded,
    pub(crate) wire: Wire,
    maps: Api<ConfigMap>,
}

pub(crate) async fn member() -> Member {
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
            let names: BTreeSet<_> = list.into_iter().filter_map(|map| map.metadata.name).collect();
            names
                .iter()
                .map(String::as_str)
                .eq(wanted.iter().copied())
                .then_some(())
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
    let pages = Pages(Api::default_namespaced(client));
    pages.create("lost", "away").await;
    pages.create("fine", "here").await;
    here.has(&["fine"]).await;
    pages.is_ready("fine").await;
    assert_eq!(pages.places("fine").await.as_deref(), Some("here"));
    pages.tells("lost", "the cluster away has not been reached yet").await;
    pages
        .tells("lost", "the cluster away does not answer: no answer within 3s")
        .await;
    // Neither has anything in the member that is away, so neither waits for it.
    pages.delete("fine").await;
    here.has(&[]).await;
    pages.is_gone("fine").await;
    pages.delete("lost").await;
    pages.is_gone("lost").await;
    ground.clusters.remove("away").await;
    running.abandon().await;
}

#[tokio::test(start_paused = true)]
async fn what_may_be_left_in_a_member_that_is_not_known_is_waited_for() {
    let (_home, client) = server().await;
    let (east, west) = (member().await, member().await);
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    ground.clusters.add("west", west.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    for name in ["goes", "moves", "stays"] {
        pages.create(name, "east").await;
        pages.is_ready(name).await;
    }
    east.has(&["goes", "moves", "stays"]).await;
    ground.clusters.remove("east").await;
    pages.tells("stays", "the cluster east is not known here").await;
    pages.delete("goes").await;
    pages.tells("goes", "the cluster east is not known here").await;
    pages.place("moves", "west").await;
    west.has(&["moves"]).await;
    pages.tells("moves", "the cluster east is not known here").await;
    assert_eq!(pages.places("moves").await.as_deref(), Some("east,west"));
    ground.clusters.add("east", east.wire.client());
    east.has(&["stays"]).await;
    pages.is_gone("goes").await;
    for name in ["moves", "stays"] {
        pages.is_ready(name).await;
    }
    assert_eq!(pages.places("moves").await.as_deref(), Some("west"));
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn what_is_in_a_member_survives_a_restart_that_does_not_know_it_yet() {
    let (_home, client) = server().await;
    let east = member().await;
    let pages = Pages(Api::default_namespaced(client.clone()));
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    pages.create("a", "east").await;
    pages.is_ready("a").await;
    assert!(running.stop(Duration::from_secs(5)).await);
    pages.delete("a").await;
    let ground = Ground::new(client);
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    pages.tells("a", "the cluster east is not known here").await;
    ground.clusters.add("east", east.wire.client());
    east.has(&[]).await;
    pages.is_gone("a").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_forgotten_is_waited_for_by_nobody() {
    let (_home, client) = server().await;
    let (east, west) = (member().await, member().await);
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    ground.clusters.add("west", west.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    for name in ["goes", "moves"] {
        pages.create(name, "east").await;
        pages.is_ready(name).await;
    }
    ground.clusters.remove("east").await;
    pages.delete("goes").await;
    pages.place("moves", "west").await;
    pages.tells("goes", "the cluster east is not known here").await;
    pages.tells("moves", "the cluster east is not known here").await;
    ground.clusters.forget("east").await;
    pages.is_gone("goes").await;
    pages.is_ready("moves").await;
    assert_eq!(pages.places("moves").await.as_deref(), Some("west"));
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_note_of_places_that_somebody_took_away_is_written_anew() {
    let (_home, client) = server().await;
    let (east, west) = (member().await, member().await);
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    ground.clusters.add("west", west.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "east").await;
    pages.is_ready("a").await;
    west.wire.cut();
    pages.create("b", "west").await;
    pages.tells("b", "the cluster west does not answer").await;
    let patch = Patch::Merge(json!({ "metadata": { "annotations": null } }));
    pages.0.patch("a", &PatchParams::default(), &patch).await.unwrap();
    eventually("it is noted again", || async {
        // Whether something is in the one that is away, nobody can tell.
        (pages.places("a").await.as_deref() == Some("east,west")).then_some(())
    })
    .await;
    west.wire.mend();
    eventually("it is noted rightly", || async {
        (pages.places("a").await.as_deref() == Some("east")).then_some(())
    })
    .await;
    running.abandon().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_stops_answering_holds_no_worker_and_its_pages_tell() {
    let (_home, client) = server().await;
    let (here, away) = (member().await, member().await);
    let ground = Ground::new(client.clone());
    ground.clusters.add("here", here.wire.client());
    ground.clusters.add("away", away.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    let numbers = ["0", "1", "2", "3", "4", "5"];
    for number in numbers {
        pages.create(&format!("lost-{number}"), "away").await;
        pages.create(&format!("fine-{number}"), "here").await;
    }
    for number in numbers {
        pages.is_ready(&format!("lost-{number}")).await;
        pages.is_ready(&format!("fine-{number}")).await;
    }
    away.wire.cut();
    let cut = tokio::time::Instant::now();
    // Each has something to write where it is, the lost ones first.
    for name in ["lost", "fine"] {
        for number in numbers {
            pages.change(&format!("{name}-{number}")).await;
        }
    }
    for number in numbers {
        pages.is_ready(&format!("fine-{number}")).await;
    }
    assert!(cut.elapsed() < Duration::from_secs(10), "{:?}", cut.elapsed());
    for number in numbers {
        pages.tells(&format!("lost-{number}"), "does not answer").await;
    }
    away.wire.mend();
    for number in numbers {
        pages.is_ready(&format!("lost-{number}")).await;
        let there = away.maps.get(&format!("lost-{number}")).await.unwrap();
        assert_eq!(there.data.unwrap()["copies"], "1");
    }
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn pages_that_need_nothing_tell_all_the_same_that_their_member_is_away() {
    let (_home, client) = server().await;
    let (here, away) = (member().await, member().await);
    let ground = Ground::new(client.clone());
    ground.clusters.add("here", here.wire.client());
    ground.clusters.add("away", away.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("lost", "away").await;
    pages.create("fine", "here").await;
    pages.is_ready("lost").await;
    pages.is_ready("fine").await;
    away.wire.cut();
    pages
        .tells("lost", "the cluster away does not answer: no answer within 3s")
        .await;
    pages.is_ready("fine").await;
    // What was changed there meanwhile is seen when it is back, though the old watch never tells.
    away.maps.delete("lost", &DeleteParams::default()).await.unwrap();
    away.wire.mend();
    away.has(&["lost"]).await;
    pages.is_ready("lost").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_nobody_has_seen_since_is_not_forgotten_when_its_member_is_back() {
    let (_home, client) = server().await;
    let away = member().await;
    let ground = Ground::new(client.clone());
    ground.clusters.add("away", away.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "").await;
    pages.is_ready("a").await;
    // The part is made, and before the cache has seen it the member is gone.
    away.wire.hold("configmaps");
    pages.place("a", "away").await;
    away.has(&["a"]).await;
    away.wire.cut();
    pages.delete("a").await;
    pages.tells("a", "does not answer").await;
    away.wire.mend();
    away.has(&[]).await;
    pages.is_gone("a").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn pages_tell_that_what_is_placed_can_no_longer_be_watched() {
    let (_home, client) = server().await;
    let east = member().await;
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "east").await;
    pages.is_ready("a").await;
    east.wire.forbid("configmaps");
    let words = "objects of kind ConfigMap cannot be watched in the cluster east: the server refused: 403 Forbidden";
    pages.tells("a", words).await;
    east.wire.allow();
    pages.is_ready("a").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_replaced_is_followed_where_it_is_now() {
    let (_home, client) = server().await;
    let (first, second) = (member().await, member().await);
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", first.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "east").await;
    first.has(&["a"]).await;
    pages.is_ready("a").await;
    ground.clusters.add("east", second.wire.client());
    second.has(&["a"]).await;
    pages.is_ready("a").await;
    second.maps.delete("a", &DeleteParams::default()).await.unwrap();
    second.has(&["a"]).await;
    // One that is removed and added at once is another one too.
    ground.clusters.remove("east").await;
    ground.clusters.add("east", first.wire.client());
    first.maps.delete("a", &DeleteParams::default()).await.unwrap();
    first.has(&["a"]).await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn what_belongs_to_somebody_else_in_a_member_is_left_alone() {
    let (_home, client) = server().await;
    let east = member().await;
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    let foreign: ConfigMap = read(json!({ "metadata": { "name": "a" }, "data": { "whose": "theirs" } }));
    east.maps.create(&PostParams::default(), &foreign).await.unwrap();
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "east").await;
    let words = "cannot apply ConfigMap east:default/a: it exists and belongs to somebody else";
    pages.tells("a", words).await;
    pages.delete("a").await;
    pages.is_gone("a").await;
    let there = east.maps.get("a").await.unwrap();
    assert_eq!(there.data, foreign.data);
    assert_eq!(there.metadata.labels, None);
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_part_in_a_member_that_lost_its_label_is_found_again() {
    let (_home, client) = server().await;
    let east = member().await;
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "east").await;
    pages.is_ready("a").await;
    let patch = Patch::Merge(json!({ "metadata": { "labels": null }, "data": { "at": "nowhere" } }));
    east.maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    east.has(&["a"]).await;
    pages.is_ready("a").await;
    assert_eq!(east.maps.get("a").await.unwrap().data.unwrap()["at"], "east");
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn only_the_namespaces_that_are_given_are_watched_in_members() {
    let (_home, client) = server().await;
    let east = member().await;
    let ground = Ground::new(client.clone());
    ground.clusters.add("east", east.wire.client());
    let settings = Settings {
        namespaces: vec!["default".to_owned()],
        ..Settings::default()
    };
    let running = Controller::warm_up(&Placed, &ground, settings).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "east").await;
    pages.is_ready("a").await;
    let watched = east.wire.reads();
    assert!(
        watched.contains(&"WATCH /api/v1/namespaces/default/configmaps".to_owned()),
        "{watched:?}"
    );
    assert!(!watched.contains(&"WATCH /api/v1/configmaps".to_owned()), "{watched:?}");
    assert!(running.stop(Duration::from_secs(5)).await);
}

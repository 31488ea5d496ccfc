//! How objects of any kind are scaled: asked once, again when they change, and not at all when nobody wants to know.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use moorline_apiserver::server::Embedded;
use moorline_runtime::{
    Actor, Controller, Draft, Failure, Ground, Planner, Recorder, Replayers, Ring, Running, Settings, Snapshot,
    Verdict, Watches, transformer,
};
use serde_json::json;

use crate::{
    scene::{Page, PageStatus, define, eventually, page, read, server},
    wire::{Accident, Wire},
};

/// As many copies as the troupe of the name has players.
struct Casting;

impl Actor for Casting {
    type Object = Page;

    fn name(&self) -> &'static str {
        "casting"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().sees_scales()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("cast", cast))
    }
}

fn cast(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let Some(troupe) = &seen.object().spec.store else {
        return Ok(Verdict::Continue);
    };
    let scale = seen.scale_of("stage.moorline.io/v1", "Troupe", troupe)?;
    let copies = scale.and_then(|scale| usize::try_from(scale.spec.as_ref()?.replicas?).ok());
    let status = PageStatus {
        copies,
        observed_generation: seen.raw().generation().into(),
        conditions: Vec::new(),
    };
    draft.put(seen.status(&status, "tell how many play")?);
    Ok(Verdict::Continue)
}

fn troupes_definition() -> CustomResourceDefinition {
    read(json!({
        "metadata": { "name": "troupes.stage.moorline.io" },
        "spec": {
            "group": "stage.moorline.io", "scope": "Namespaced", "names": { "plural": "troupes", "kind": "Troupe" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                "subresources": { "status": {}, "scale": {
                    "specReplicasPath": ".spec.players", "statusReplicasPath": ".status.players" } } }],
        },
    }))
}

fn troupes(client: &Client) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "stage.moorline.io".into(),
        version: "v1".into(),
        api_version: "stage.moorline.io/v1".into(),
        kind: "Troupe".into(),
        plural: "troupes".into(),
    };
    Api::default_namespaced_with(client.clone(), &kind)
}

fn troupe(players: u32) -> DynamicObject {
    read(
        json!({ "apiVersion": "stage.moorline.io/v1", "kind": "Troupe", "metadata": { "name": "t" },
        "spec": { "players": players } }),
    )
}

struct Stage {
    _server: Embedded,
    client: Client,
    wire: Wire,
    pages: Api<Page>,
    _running: Running,
}

impl Stage {
    async fn new(recorder: Option<Recorder>) -> Self {
        let (server, client) = server().await;
        let wire = Wire::new(server.service(), Accident::None);
        let ground = Ground {
            recorder,
            ..Ground::new(wire.client())
        };
        let running = Controller::warm_up(&Casting, &ground, Settings::default()).start();
        Self {
            _server: server,
            pages: Api::default_namespaced(client.clone()),
            client,
            wire,
            _running: running,
        }
    }

    async fn create_page(&self) {
        let mut page = page("a", "one", 0);
        page.spec.store = Some("t".to_owned());
        let created = self.pages.create(&PostParams::default(), &page).await;
        created.expect("the page is good");
    }

    /// Waits until the last page that was written has so many copies.
    async fn sees(&self, copies: Option<usize>) {
        eventually("the page tells the scale", || async {
            let page = self.pages.get("a").await.ok()?;
            let status = page.status?;
            (status.copies == copies && status.observed_generation == page.metadata.generation).then_some(())
        })
        .await;
    }

    /// Makes the controller look at the page once more.
    async fn touch(&self, text: &str, copies: Option<usize>) {
        let patch = Patch::Merge(json!({ "spec": { "text": text } }));
        let patched = self.pages.patch("a", &PatchParams::default(), &patch).await;
        patched.expect("the patch is good");
        self.sees(copies).await;
    }

    fn count(&self, read: &str) -> usize {
        self.wire.reads().iter().filter(|line| *line == read).count()
    }

    fn scales_read(&self) -> usize {
        self.count("GET /apis/stage.moorline.io/v1/namespaces/default/troupes/t/scale")
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_is_asked_for_once_and_again_when_it_may_have_changed() {
    let stage = Stage::new(None).await;
    define(&stage.client, troupes_definition()).await;
    let troupes = troupes(&stage.client);
    troupes.create(&PostParams::default(), &troupe(3)).await.unwrap();
    stage.create_page().await;
    stage.sees(Some(3)).await;
    assert_eq!(stage.scales_read(), 1, "{:?}", stage.wire.reads());
    stage.touch("two", Some(3)).await;
    assert_eq!(stage.scales_read(), 1, "a look that needs nothing new asks nothing");

    // What is not of the specification says nothing of the scale.
    let patch = Patch::Merge(json!({ "status": { "players": 1 } }));
    troupes
        .patch_status("t", &PatchParams::default(), &patch)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.touch("three", Some(3)).await;
    assert_eq!(stage.scales_read(), 1, "a change of the status is none of the scale");

    let patch = Patch::Merge(json!({ "spec": { "players": 5 } }));
    troupes.patch("t", &PatchParams::default(), &patch).await.unwrap();
    stage.sees(Some(5)).await;
    assert_eq!(stage.scales_read(), 2);

    troupes.delete("t", &DeleteParams::default()).await.unwrap();
    stage.sees(None).await;
    troupes.create(&PostParams::default(), &troupe(7)).await.unwrap();
    stage.sees(Some(7)).await;
}

#[tokio::test(start_paused = true)]
async fn the_watch_of_a_kind_ends_when_nobody_asks_for_its_scales() {
    let stage = Stage::new(None).await;
    define(&stage.client, troupes_definition()).await;
    let troupes = troupes(&stage.client);
    troupes.create(&PostParams::default(), &troupe(3)).await.unwrap();
    let watched = || stage.count("WATCH /apis/stage.moorline.io/v1/troupes");
    stage.create_page().await;
    stage.sees(Some(3)).await;
    assert_eq!(watched(), 1);
    stage.pages.delete("a", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Nobody follows it, so what changes now is only known when somebody asks.
    let patch = Patch::Merge(json!({ "spec": { "players": 4 } }));
    troupes.patch("t", &PatchParams::default(), &patch).await.unwrap();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(
        watched(),
        1,
        "a watch that had not ended would have been opened anew by now"
    );
    stage.create_page().await;
    stage.sees(Some(4)).await;
    assert_eq!(watched(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_has_no_scale_is_told_and_found_when_it_comes() {
    let stage = Stage::new(None).await;
    stage.create_page().await;
    let tells = |wanted: &'static str| {
        let pages = &stage.pages;
        async move {
            let (_, _, message) = pages.get("a").await.ok()?.condition("Ready")?;
            message.contains(wanted).then_some(())
        }
    };
    eventually("that the group is unknown is told", || {
        tells("no kind of stage.moorline.io/v1 is served")
    })
    .await;
    let mut definition = troupes_definition();
    definition.spec.versions[0].subresources = None;
    define(&stage.client, definition).await;
    eventually("that it has no scale is told", || {
        tells("troupes.stage.moorline.io does not implement the scale subresource")
    })
    .await;
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let scale = json!({ "spec": { "versions": troupes_definition().spec.versions } });
    definitions
        .patch(
            "troupes.stage.moorline.io",
            &PatchParams::default(),
            &Patch::Merge(scale),
        )
        .await
        .unwrap();
    let troupes = troupes(&stage.client);
    troupes.create(&PostParams::default(), &troupe(2)).await.unwrap();
    stage.sees(Some(2)).await;
}

#[tokio::test]
async fn a_reconcile_that_asked_for_scales_is_planned_once_more_from_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let ring = Ring {
        directory: directory.path().to_owned(),
        records: 100,
    };
    let stage = Stage::new(Some(Recorder::start(ring).unwrap())).await;
    stage.create_page().await;
    eventually("that the kind is unknown is told", || async {
        let (_, _, message) = stage.pages.get("a").await.ok()?.condition("Ready")?;
        message.contains("no kind of").then_some(())
    })
    .await;
    define(&stage.client, troupes_definition()).await;
    troupes(&stage.client)
        .create(&PostParams::default(), &troupe(3))
        .await
        .unwrap();
    stage.sees(Some(3)).await;
    let replayers = Replayers::default().with(Casting);
    let told = |text: &str| text.contains("stage.moorline.io/v1") && text.contains("refusals");
    eventually(
        "reconciles with and without an answer are on disk, and come out the same",
        || async {
            let mut kept = Vec::new();
            for entry in std::fs::read_dir(directory.path()).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "json") {
                    let replayed = replayers.replay_file(&path).unwrap();
                    assert!(replayed.is_same(), "{replayed}");
                    kept.push(std::fs::read_to_string(&path).unwrap());
                }
            }
            let refused = kept.iter().any(|text| told(text));
            let answered = kept.iter().any(|text| text.contains("\"replicas\": 3"));
            (refused && answered).then_some(())
        },
    )
    .await;
}

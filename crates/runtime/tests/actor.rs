//! An actor from end to end, on the embedded API server.

mod scene;

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use moorline_runtime::{Actor, Controller, Draft, Failure, Ground, Planner, Settings, Snapshot, Verdict, Watches, transformer};
use serde_json::json;

use scene::{Page, eventually, page, read, server};

struct Copies;

impl Actor for Copies {
    type Object = Page;

    fn name(&self) -> &str {
        "copies"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().owns_exactly::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("copies", copies))
    }
}

fn copies(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let spec = &seen.object().spec;
    for nth in 0..spec.copies {
        let copy: ConfigMap = read(json!({
            "metadata": { "name": format!("{}-{nth}", seen.raw().name()) }, "data": { "text": spec.text },
        }));
        draft.put(seen.apply(&copy, "a copy is wanted")?);
    }
    draft.put(seen.status(&json!({ "copies": spec.copies }), "tell the copies")?);
    Ok(Verdict::Continue)
}

#[tokio::test]
async fn an_actor_makes_changes_and_prunes_what_it_owns() {
    let (_server, client) = server().await;
    let ground = Ground::new(client.clone());
    let running = Controller::warm_up(Copies, &ground, Settings::default()).start();
    let pages: Api<Page> = Api::default_namespaced(client.clone());
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    pages.create(&PostParams::default(), &page("a", "one", 3)).await.unwrap();
    let ready = || async { pages.get("a").await.ok().filter(Page::is_ready) };
    let made = eventually("the page is ready", ready).await;
    assert_eq!(made.status.unwrap().copies, Some(3));
    let texts = || async {
        let selected = ListParams::default().labels("moorline.io/managed-by=moorline");
        let list = maps.list(&selected).await.unwrap();
        list.items.iter().map(|map| map.data.as_ref().unwrap()["text"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts().await, ["one", "one", "one"]);

    let change = json!({ "spec": { "text": "two", "copies": 2 } });
    pages.patch("a", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    eventually("the change is made", || async { (texts().await == ["two", "two"]).then_some(()) }).await;
    eventually("the page is ready again", ready).await;

    maps.delete("a-1", &DeleteParams::default()).await.unwrap();
    eventually("what was taken away is back", || async { (texts().await.len() == 2).then_some(()) }).await;
    let ready = eventually("the page is ready again", ready).await;

    // Nothing more is written once everything is as it shall be.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(pages.get("a").await.unwrap().metadata.resource_version, ready.metadata.resource_version);
    assert!(running.stop(Duration::from_secs(5)).await);
}

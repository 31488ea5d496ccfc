//! Whatever happens on the way, the end is that of a run in which nothing happens: no duplicate, no orphan.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use moorline_apiserver::server::Embedded;
use moorline_runtime::{
    Actor, Controller, Draft, Failure, Farewell, Ground, Planner, Running, Selection, Settings, Snapshot, Verdict,
    Watches, transformer,
};
use serde_json::json;

use crate::{
    scene::{Page, PageSpec, eventually, read, server},
    wire::{Accident, Wire},
};

/// Every sort of step: creates with fresh names, deletes, an apply, something outside that only a finalizer removes.
struct Library;

const ROLE: &str = "role";

impl Actor for Library {
    type Object = Page;

    fn name(&self) -> &'static str {
        "library"
    }

    fn watches(&self) -> Watches {
        let maps = Selection::all(moorline_runtime::Kind::of::<ConfigMap>()).labelled(ROLE);
        Watches::of::<Page>().owns_exactly::<ConfigMap>().selecting(maps)
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("copies", copies))
            .transformer(transformer("index", index))
    }

    fn farewell(&self, plan: Planner<Page>) -> Farewell<Page> {
        Farewell::Finalizer {
            name: "test.moorline.io/vault",
            plan: plan.transformer(transformer("vault", empty_vault)),
        }
    }
}

fn copies(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let wanted = seen.object().spec.copies;
    let mine: Vec<_> = seen
        .owned::<ConfigMap>()?
        .into_iter()
        .filter(|map| map.raw().label(ROLE) == Some("copy") && !map.is_deleting())
        .collect();
    for nth in mine.len()..wanted {
        let copy: ConfigMap = read(json!({
            "metadata": { "name": seen.fresh_name("copy-", nth), "labels": { ROLE: "copy" } },
        }));
        draft.put(seen.create(&copy, "a copy is missing")?);
    }
    for (nth, copy) in mine.iter().enumerate() {
        if nth < wanted {
            draft.put(moorline_runtime::Step::no_op(
                copy.raw().target(),
                Some(copy.raw().clone()),
                "a copy",
            ));
        } else {
            draft.put(seen.delete(copy.raw(), "a copy too many"));
        }
    }
    Ok(Verdict::Continue)
}

fn index(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let name = format!("{}-index", seen.raw().name());
    let entry: ConfigMap = read(json!({
        "metadata": { "name": name, "labels": { ROLE: "index" } }, "data": { "text": seen.object().spec.text },
    }));
    let index = draft.put(seen.apply(&entry, "there is an index")?);
    let vault: ConfigMap = read(json!({
        "metadata": { "name": vault_name(seen), "namespace": "kube-public", "labels": { ROLE: "vault" } },
        "data": { "text": seen.object().spec.text },
    }));
    let vault = draft.put(seen.apply(&vault, "it is in the vault")?);
    draft.after(&index, &vault)?;
    Ok(Verdict::Continue)
}

fn vault_name(seen: &Snapshot<Page>) -> String {
    format!("{}-{}", seen.raw().namespace(), seen.raw().name())
}

fn empty_vault(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    if let Some(vault) = seen.get_in::<ConfigMap>("kube-public", &vault_name(seen))? {
        draft.put(seen.delete(vault.raw(), "nobody needs it in the vault any more"));
    }
    Ok(Verdict::Continue)
}

/// Everything that there is in the end, without what is left to chance.
#[derive(Debug, PartialEq, Eq, Default)]
struct Ending {
    copies: usize,
    index: Vec<String>,
    vault: Vec<String>,
    ready: bool,
}

struct Run {
    client: kube::Client,
    namespace: String,
    pages: Api<Page>,
    maps: Api<ConfigMap>,
}

impl Run {
    async fn new(server: &Embedded, namespace: &str) -> Self {
        let client = kube::Client::new(server.service(), "default");
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = read(json!({ "metadata": { "name": namespace } }));
        namespaces
            .create(&PostParams::default(), &object)
            .await
            .expect("the server does what it is asked");
        Self {
            pages: Api::namespaced(client.clone(), namespace),
            maps: Api::namespaced(client.clone(), namespace),
            client,
            namespace: namespace.to_owned(),
        }
    }

    async fn ending(&self) -> Ending {
        let of_role = |role: &str| ListParams::default().labels(&format!("{ROLE}={role}"));
        let texts = |maps: Vec<ConfigMap>| {
            maps.into_iter()
                .filter_map(|map| map.data?.remove("text"))
                .collect::<Vec<String>>()
        };
        let vault: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-public");
        let name = format!("{}-a", self.namespace);
        Ending {
            copies: self
                .maps
                .list(&of_role("copy"))
                .await
                .expect("the server does what it is asked")
                .items
                .len(),
            index: texts(
                self.maps
                    .list(&of_role("index"))
                    .await
                    .expect("the server does what it is asked")
                    .items,
            ),
            vault: texts(
                vault
                    .get_opt(&name)
                    .await
                    .expect("the server does what it is asked")
                    .into_iter()
                    .collect(),
            ),
            ready: self
                .pages
                .get_opt("a")
                .await
                .expect("the server does what it is asked")
                .is_some_and(|page| page.is_ready()),
        }
    }

    async fn ends_as(&self, wanted: &Ending, what: &str) {
        let deadline = tokio::time::Instant::now() + crate::scene::PATIENCE;
        loop {
            let ending = self.ending().await;
            if ending == *wanted {
                return;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{what}: {ending:?} instead of {wanted:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn start(&self, wire: &Wire) -> Running {
        let settings = Settings {
            namespaces: vec![self.namespace.clone(), "kube-public".to_owned()],
            ..brisk()
        };
        Controller::warm_up(&Library, &Ground::new(wire.client()), settings).start()
    }

    async fn create(&self, text: &str, copies: usize) {
        let page = Page::new(
            "a",
            PageSpec {
                text: text.to_owned(),
                copies,
                store: None,
            },
        );
        self.pages
            .create(&PostParams::default(), &page)
            .await
            .expect("the server does what it is asked");
    }

    async fn change(&self, text: &str, copies: usize) {
        let patch = json!({ "spec": { "text": text, "copies": copies } });
        self.pages
            .patch("a", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("the server does what it is asked");
    }

    async fn delete(&self) {
        self.pages
            .delete("a", &DeleteParams::default())
            .await
            .expect("the server does what it is asked");
    }
}

fn brisk() -> Settings {
    let mut settings = Settings {
        gate: Duration::from_millis(300),
        ..Settings::default()
    };
    settings.queue.backoff.most = Duration::from_millis(50);
    settings
}

fn ending(text: &str, copies: usize) -> Ending {
    Ending {
        copies,
        index: vec![text.to_owned()],
        vault: vec![text.to_owned()],
        ready: true,
    }
}

/// Made, changed with fewer copies, changed with more, deleted.
async fn story(server: &Embedded, namespace: &str, accident: Accident) -> Vec<String> {
    let run = Run::new(server, namespace).await;
    let mut wire = Wire::new(server.service(), accident);
    let mut running = run.start(&wire);
    let mut log = Vec::new();
    let chapters: [(&str, Ending); 4] = [
        ("made", ending("one", 3)),
        ("fewer", ending("two", 1)),
        ("more", ending("two", 4)),
        ("gone", Ending::default()),
    ];
    for (chapter, wanted) in chapters {
        match chapter {
            "made" => run.create("one", 3).await,
            "fewer" => run.change("two", 1).await,
            "more" => run.change("two", 4).await,
            _ => run.delete().await,
        }
        let what = format!("{chapter} with {accident:?}");
        let revive = tokio::select! {
            () = run.ends_as(&wanted, &what) => false,
            () = wire.crashed() => true,
        };
        if revive {
            running.abandon().await;
            log.extend(wire.log());
            wire = Wire::new(server.service(), Accident::None);
            running = run.start(&wire);
            run.ends_as(&wanted, &what).await;
        }
    }
    assert!(running.stop(Duration::from_secs(5)).await);
    log.extend(wire.log());
    log
}

async fn every_accident(prefix: &str, accident: impl Fn(usize) -> Accident) {
    let (server, _) = server().await;
    let writes = story(&server, &format!("{prefix}-calm"), Accident::None).await;
    assert!(writes.len() > 15, "{writes:#?}");
    for nth in 0..writes.len() {
        story(&server, &format!("{prefix}-{nth}"), accident(nth)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_ends_as_if_there_had_been_none() {
    every_accident("crash", |nth| Accident::Crash { nth }).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_any_write_makes_no_duplicate_and_no_orphan() {
    every_accident("lost-answer", |nth| Accident::LostAnswer { nth }).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_sent_again() {
    every_accident("lost-request", |nth| Accident::LostRequest { nth }).await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_on_any_write_is_retried_silently() {
    let (server, client) = server().await;
    let writes = story(&server, "conflict-calm", Accident::None).await;
    for nth in 0..writes.len() {
        story(&server, &format!("conflict-{nth}"), Accident::Conflict { nth }).await;
    }
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::all(client);
    let warnings: Vec<_> = events.list(&ListParams::default()).await.unwrap().items;
    let warnings: Vec<_> = warnings.iter().filter_map(|event| event.note.as_deref()).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
}

/// Nothing is written that the fault-free run would not need: the counts are those of the story.
#[tokio::test(start_paused = true)]
async fn a_calm_run_writes_only_what_is_needed() {
    let (server, _) = server().await;
    let writes = story(&server, "calm", Accident::None).await;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for write in &writes {
        *counts.entry(write.split(' ').next().unwrap()).or_default() += 1;
    }
    assert_eq!(counts["POST"], 6, "three copies, then three more: {writes:#?}");
    assert_eq!(counts["DELETE"], 3, "two copies, then the vault: {writes:#?}");
}

/// What somebody else did while the cache does not tell of it.
#[derive(Clone, Copy, Debug)]
enum Lag {
    Created,
    Updated,
    Deleted,
}

#[tokio::test(start_paused = true)]
async fn a_stale_cache_of_any_kind_only_delays_the_end() {
    let (server, _) = server().await;
    for (number, lag) in [Lag::Created, Lag::Updated, Lag::Deleted].into_iter().enumerate() {
        for (chapter, text, copies) in [("fewer", "two", 1), ("more", "two", 5), ("other", "three", 3)] {
            let run = Run::new(&server, &format!("stale-{number}-{chapter}")).await;
            let wire = Wire::new(server.service(), Accident::None);
            let running = run.start(&wire);
            run.create("one", 3).await;
            run.ends_as(&ending("one", 3), "the beginning").await;
            wire.hold("configmaps");
            run.disturb(lag).await;
            run.change(text, copies).await;
            // It acts on what it believes, and is told the truth later.
            let generation = run.pages.get("a").await.unwrap().metadata.generation;
            eventually("the controller has acted on its stale cache", || async {
                let page = run.pages.get("a").await.unwrap();
                (page.status.unwrap().observed_generation == generation).then_some(())
            })
            .await;
            wire.release();
            run.ends_as(&ending(text, copies), &format!("{lag:?}, then {chapter}"))
                .await;
            run.delete().await;
            run.ends_as(&Ending::default(), &format!("{lag:?}, then deleted")).await;
            assert!(running.stop(Duration::from_secs(5)).await);
        }
    }
}

impl Run {
    /// Changes what the controller owns behind its back.
    async fn disturb(&self, lag: Lag) {
        let copies = self
            .maps
            .list(&ListParams::default().labels("role=copy"))
            .await
            .expect("the server does what it is asked")
            .items;
        let copy = copies.into_iter().next().expect("the server does what it is asked");
        let name = copy.metadata.name.clone().expect("the server does what it is asked");
        match lag {
            Lag::Created => {
                // As an earlier incarnation would have, whose answer was lost.
                let mut twin = copy;
                twin.metadata = read(json!({
                    "name": "copy-twin", "labels": { ROLE: "copy" }, "ownerReferences": twin.metadata.owner_references,
                }));
                self.maps
                    .create(&PostParams::default(), &twin)
                    .await
                    .expect("the server does what it is asked");
            }
            Lag::Updated => {
                let patch = Patch::Merge(json!({ "data": { "text": "scribble" } }));
                self.maps
                    .patch("a-index", &PatchParams::default(), &patch)
                    .await
                    .expect("the server does what it is asked");
            }
            Lag::Deleted => {
                self.maps
                    .delete(&name, &DeleteParams::default())
                    .await
                    .expect("the server does what it is asked");
                self.maps
                    .delete("a-index", &DeleteParams::default())
                    .await
                    .expect("the server does what it is asked");
            }
        }
    }
}

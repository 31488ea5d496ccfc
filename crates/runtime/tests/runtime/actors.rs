//! An actor from end to end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use moorline_runtime::{
    Actor, Controller, Draft, EventType, Failure, Farewell, Ground, Planner, Running, Settings, Snapshot, Verdict,
    Watches, transformer,
};
use serde_json::json;

use crate::{
    scene::{Page, eventually, page, read, rest, server},
    wire::{Accident, Wire},
};

/// Applies copies; what the text says decides what goes wrong.
#[derive(Clone, Default)]
struct Copies {
    /// How often it was asked for a plan.
    asked: Arc<AtomicUsize>,
}

impl Actor for Copies {
    type Object = Page;

    fn name(&self) -> &'static str {
        "copies"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().owns_exactly::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        let asked = Arc::clone(&self.asked);
        plan.transformer(transformer(
            "copies",
            move |seen: &Snapshot<Page>, draft: &mut Draft| {
                asked.fetch_add(1, Ordering::SeqCst);
                copies(seen, draft)
            },
        ))
    }
}

fn copies(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let spec = &seen.object().spec;
    match spec.text.as_str() {
        "panic" => panic!("the text says so"),
        "terminal" => return Err(Failure::terminal("spec.text: nothing can be done about it")),
        "wait" => return Err(Failure::waiting("somebody else comes first")),
        _ => {}
    }
    for nth in 0..spec.copies {
        let name = if spec.text == "invalid" {
            "Not A Name".to_owned()
        } else {
            format!("{}-{nth}", seen.raw().name())
        };
        let copy: ConfigMap = read(json!({ "metadata": { "name": name }, "data": { "text": spec.text } }));
        let made = draft.put(seen.apply(&copy, "a copy is wanted")?);
        let told = draft.put(seen.event(EventType::Normal, "Copied", "there are copies now")?);
        draft.after(&told, &made)?;
    }
    draft.put(seen.status(&json!({ "copies": spec.copies }), "tell the copies")?);
    Ok(Verdict::Continue)
}

struct Scene {
    server: moorline_apiserver::server::Embedded,
    wire: Wire,
    pages: Api<Page>,
    maps: Api<ConfigMap>,
    events: Api<Event>,
    ground: Ground,
}

async fn scene() -> Scene {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    Scene {
        pages: Api::default_namespaced(client.clone()),
        maps: Api::default_namespaced(client.clone()),
        events: Api::default_namespaced(client),
        ground: Ground::new(wire.client()),
        wire,
        server,
    }
}

impl Scene {
    fn start(&self, actor: &impl Actor) -> Running {
        Controller::warm_up(actor, &self.ground, Settings::default()).start()
    }

    async fn create(&self, name: &str, text: &str, copies: usize) {
        self.pages
            .create(&PostParams::default(), &page(name, text, copies))
            .await
            .expect("the server does what it is asked");
    }

    async fn set_text(&self, name: &str, text: &str) {
        let patch = Patch::Merge(json!({ "spec": { "text": text } }));
        self.pages
            .patch(name, &PatchParams::default(), &patch)
            .await
            .expect("the server does what it is asked");
    }

    async fn ready(&self, name: &str) -> Page {
        eventually("the page is ready", || async {
            self.pages.get(name).await.ok().filter(Page::is_ready)
        })
        .await
    }

    async fn condition(&self, name: &str, condition: &str, wanted: (&str, &str)) -> String {
        eventually(&format!("{condition} is {wanted:?}"), || async {
            let (status, reason, message) = self.pages.get(name).await.ok()?.condition(condition)?;
            ((status.as_str(), reason.as_str()) == wanted).then_some(message)
        })
        .await
    }

    async fn texts(&self) -> Vec<String> {
        let selected = ListParams::default().labels("moorline.io/managed-by=moorline");
        let list = self
            .maps
            .list(&selected)
            .await
            .expect("the server does what it is asked");
        list.items
            .iter()
            .map(|map| map.data.as_ref().expect("the server does what it is asked")["text"].clone())
            .collect()
    }

    fn metric(&self, line: &str) -> Option<f64> {
        let text = self.ground.metrics.to_text();
        text.lines()
            .find_map(|other| other.strip_prefix(line)?.trim().parse().ok())
    }
}

#[tokio::test(start_paused = true)]
async fn an_actor_makes_changes_and_prunes_what_it_owns() {
    let scene = scene().await;
    let running = scene.start(&Copies::default());
    scene.create("a", "one", 3).await;
    assert_eq!(scene.ready("a").await.status.unwrap().copies, Some(3));
    assert_eq!(scene.texts().await, ["one", "one", "one"]);

    let patch = Patch::Merge(json!({ "spec": { "text": "two", "copies": 2 } }));
    scene.pages.patch("a", &PatchParams::default(), &patch).await.unwrap();
    eventually("the change is made", || async {
        (scene.texts().await == ["two", "two"]).then_some(())
    })
    .await;
    scene.ready("a").await;

    scene.maps.delete("a-1", &DeleteParams::default()).await.unwrap();
    eventually("what was taken away is back", || async {
        (scene.texts().await.len() == 2).then_some(())
    })
    .await;
    scene.ready("a").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn identical_reconciles_make_no_write_and_no_event() {
    let scene = scene().await;
    let actor = Copies::default();
    let running = scene.start(&actor);
    scene.create("a", "one", 3).await;
    scene.ready("a").await;
    eventually("it has settled", || async {
        (scene.ground.cache.unsynced().is_empty()).then_some(())
    })
    .await;
    let (writes, asked) = (scene.wire.writes(), actor.asked.load(Ordering::SeqCst));
    for nth in 0..5 {
        // A change that the plan does not care for, made past the counting wire.
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { "nth": nth.to_string() } } }));
        scene.pages.patch("a", &PatchParams::default(), &patch).await.unwrap();
        let more = asked + 1 + nth;
        eventually("it was looked at", || async {
            (actor.asked.load(Ordering::SeqCst) >= more).then_some(())
        })
        .await;
    }
    assert!(running.stop(Duration::from_secs(5)).await);
    assert_eq!(scene.wire.log()[writes..], [] as [String; 0]);
    let events = scene.events.list(&ListParams::default()).await.unwrap().items;
    let copied: Vec<_> = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("Copied"))
        .collect();
    assert_eq!(copied.len(), 1, "three copies said the same");
    assert!(copied[0].series.is_none());
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_nothing_is_applied_again() {
    let scene = scene().await;
    let running = scene.start(&Copies::default());
    scene.create("a", "one", 3).await;
    scene.ready("a").await;
    assert!(running.stop(Duration::from_secs(5)).await);
    let wire = Wire::new(scene.server.service(), Accident::None);
    let actor = Copies::default();
    let running = Controller::warm_up(&actor, &Ground::new(wire.client()), Settings::default()).start();
    eventually("it was looked at", || async {
        (actor.asked.load(Ordering::SeqCst) > 0).then_some(())
    })
    .await;
    assert!(running.stop(Duration::from_secs(5)).await);
    assert_eq!(wire.log(), [] as [String; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_field_that_was_applied_once_and_is_not_wanted_now_is_taken_away() {
    struct Keys;
    impl Actor for Keys {
        type Object = Page;
        fn name(&self) -> &'static str {
            "keys"
        }
        fn watches(&self) -> Watches {
            Watches::of::<Page>().owns::<ConfigMap>()
        }
        fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
            plan.transformer(transformer("keys", |seen: &Snapshot<Page>, draft: &mut Draft| {
                let data: serde_json::Map<_, _> = seen
                    .object()
                    .spec
                    .text
                    .split(' ')
                    .map(|key| (key.to_owned(), "x".into()))
                    .collect();
                let map: ConfigMap = read(json!({ "metadata": { "name": "keys" }, "data": data }));
                draft.put(seen.apply(&map, "keys")?);
                Ok(Verdict::Continue)
            }))
        }
    }
    let scene = scene().await;
    let running = scene.start(&Keys);
    scene.create("a", "b c d", 0).await;
    scene.ready("a").await;
    scene.set_text("a", "b d").await;
    scene.ready("a").await;
    let keys: Vec<_> = scene
        .maps
        .get("keys")
        .await
        .unwrap()
        .data
        .unwrap()
        .into_keys()
        .collect();
    assert_eq!(keys, ["b", "d"]);
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_panic_delays_its_own_key_only_and_shows_in_status_and_metrics() {
    let scene = scene().await;
    let running = scene.start(&Copies::default());
    scene.create("bad", "panic", 1).await;
    let message = scene.condition("bad", "Stalled", ("True", "Terminal")).await;
    assert_eq!(message, "the actor panicked: the text says so");
    scene.create("good", "one", 1).await;
    scene.ready("good").await;
    assert!(
        scene
            .metric("controller_runtime_reconcile_panics_total{controller=\"copies\"}")
            .unwrap()
            >= 1.0
    );
    scene.set_text("bad", "well").await;
    scene.ready("bad").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_terminal_failure_is_told_and_not_tried_again_until_something_changes() {
    let scene = scene().await;
    let actor = Copies::default();
    let running = scene.start(&actor);
    scene.create("a", "terminal", 1).await;
    let message = scene.condition("a", "Stalled", ("True", "Terminal")).await;
    assert_eq!(message, "spec.text: nothing can be done about it");
    scene.condition("a", "Ready", ("False", "Error")).await;
    eventually("an event tells it", || async {
        let events = scene.events.list(&ListParams::default()).await.unwrap().items;
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("ReconcileFailed"))
            .then_some(())
    })
    .await;
    rest(Duration::from_secs(1)).await;
    let asked = actor.asked.load(Ordering::SeqCst);
    assert!(asked < 6, "it was asked {asked} times");
    rest(Duration::from_hours(1)).await;
    assert_eq!(actor.asked.load(Ordering::SeqCst), asked, "it is not tried again");
    scene.set_text("a", "well").await;
    scene.ready("a").await;
    scene.condition("a", "Stalled", ("False", "NotStalled")).await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_the_server_refuses_shows_in_the_status_with_its_reason() {
    let scene = scene().await;
    let actor = Copies::default();
    let running = scene.start(&actor);
    scene.create("a", "invalid", 1).await;
    let message = scene.condition("a", "Stalled", ("True", "Terminal")).await;
    assert!(
        message.starts_with("cannot apply ConfigMap default/Not A Name: "),
        "{message}"
    );
    // What refuses it may change without anybody being told, so it is tried again, ever more rarely.
    rest(Duration::from_secs(1)).await;
    let asked = actor.asked.load(Ordering::SeqCst);
    rest(Duration::from_hours(1)).await;
    let again = actor.asked.load(Ordering::SeqCst);
    assert!(
        asked < again && again < asked + 100,
        "asked {asked} times and then {again}"
    );
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn waiting_is_progress_with_a_reason_and_no_error() {
    let scene = scene().await;
    let actor = Copies::default();
    let running = scene.start(&actor);
    scene.create("a", "wait", 1).await;
    let message = scene.condition("a", "Progressing", ("True", "Waiting")).await;
    assert_eq!(message, "somebody else comes first");
    scene.condition("a", "Stalled", ("False", "NotStalled")).await;
    assert!(running.stop(Duration::from_secs(5)).await);
    assert_eq!(
        scene.metric("controller_runtime_reconcile_errors_total{controller=\"copies\"}"),
        Some(0.0)
    );
    let events = scene.events.list(&ListParams::default()).await.unwrap().items;
    assert!(events.is_empty(), "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_hurts_itself_only() {
    /// Reads pages whose text is a number.
    struct Strict;
    #[derive(serde::Deserialize)]
    struct Numbered {
        #[allow(dead_code, reason = "reading it is the test")]
        spec: Number,
    }
    #[derive(serde::Deserialize)]
    struct Number {
        #[serde(deserialize_with = "number")]
        #[allow(dead_code, reason = "reading it is the test")]
        text: u32,
    }
    fn number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let text: String = serde::Deserialize::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
    impl Actor for Strict {
        type Object = Numbered;
        fn name(&self) -> &'static str {
            "strict"
        }
        fn watches(&self) -> Watches {
            Watches::of::<Page>()
        }
        fn plan(&self, plan: Planner<Numbered>) -> Planner<Numbered> {
            plan
        }
    }
    let scene = scene().await;
    let running = scene.start(&Strict);
    scene.create("bad", "seven", 0).await;
    scene.create("good", "7", 0).await;
    scene.ready("good").await;
    let message = scene.condition("bad", "Stalled", ("True", "Terminal")).await;
    assert!(message.starts_with("cannot read Page default/bad: "), "{message}");
    assert!(running.stop(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_takes_too_long_is_cut_off_and_tried_again() {
    let scene = scene().await;
    scene.create("a", "one", 1).await;
    let settings = Settings {
        timeout: Duration::from_millis(200),
        ..Settings::default()
    };
    let cold = Controller::warm_up(&Copies::default(), &scene.ground, settings);
    cold.synced().await;
    // The first writes get no answer, so the looks do not end by themselves.
    scene.wire.swallow("/configmaps", 3);
    let running = cold.start();
    let message = scene.condition("a", "Ready", ("False", "Error")).await;
    assert_eq!(message, "it took longer than 200ms");
    let errors = scene.metric("controller_runtime_reconcile_errors_total{controller=\"copies\"}");
    assert!(errors.is_some_and(|errors| errors >= 1.0));
    scene.ready("a").await;
    assert!(running.stop(Duration::from_secs(5)).await);
}

/// Leaves something outside, which only its farewell removes, in two steps.
struct Guarded;

impl Actor for Guarded {
    type Object = Page;

    fn name(&self) -> &'static str {
        "guarded"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().sees::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("outside", |seen: &Snapshot<Page>, draft: &mut Draft| {
            for name in ["first", "second"] {
                let map: ConfigMap = read(json!({ "metadata": { "name": name, "namespace": "kube-public" } }));
                draft.put(seen.apply(&map, "outside")?);
            }
            Ok(Verdict::Continue)
        }))
    }

    fn farewell(&self, plan: Planner<Page>) -> Farewell<Page> {
        let plan = plan.transformer(transformer("one by one", |seen: &Snapshot<Page>, draft: &mut Draft| {
            for name in ["first", "second"] {
                if let Some(map) = seen.get_in::<ConfigMap>("kube-public", name)? {
                    draft.put(seen.delete(map.raw(), "one at a time"));
                    return Ok(Verdict::Continue);
                }
            }
            Ok(Verdict::Continue)
        }));
        Farewell::Finalizer {
            name: "test.moorline.io/outside",
            plan,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_is_there_before_the_first_effect_and_goes_after_the_last() {
    let scene = scene().await;
    let running = scene.start(&Guarded);
    scene.create("a", "one", 0).await;
    scene.ready("a").await;
    let log = scene.wire.log();
    assert!(log[0].ends_with("/pages/a"), "the finalizer comes first: {log:#?}");
    scene.pages.delete("a", &DeleteParams::default()).await.unwrap();
    eventually("it is gone", || async {
        scene.pages.get_opt("a").await.unwrap().is_none().then_some(())
    })
    .await;
    let outside: Api<ConfigMap> = Api::namespaced(scene.ground.cache.client().clone(), "kube-public");
    for name in ["first", "second"] {
        assert!(outside.get_opt(name).await.unwrap().is_none(), "{name} was left behind");
    }
    assert!(running.stop(Duration::from_secs(5)).await);
    let log = scene.wire.log();
    assert!(
        log.last().unwrap().ends_with("/pages/a"),
        "the finalizer goes last: {log:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_whose_telling_fails_too_is_counted_and_logged_with_it() {
    let log = tempfile::NamedTempFile::new().unwrap();
    // While there is one subscriber alone, `tracing` asks the thread that comes by a line first whether anybody wants it.
    // That may be another test's, which has none, and the line is then left out for all. With two it asks both.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log.reopen().unwrap())
        .finish();
    let _logging = tracing::subscriber::set_default(lines);
    let (server, client) = server().await;
    let pages: Api<Page> = Api::default_namespaced(client);
    // The first write is the status, which does not arrive.
    let wire = Wire::new(server.service(), Accident::LostRequest { nth: 0 });
    let ground = Ground::new(wire.client());
    let running = Controller::warm_up(&Copies::default(), &ground, Settings::default()).start();
    pages
        .create(&PostParams::default(), &page("a", "terminal", 0))
        .await
        .unwrap();
    eventually("the status tells it in the end", || async {
        pages
            .get("a")
            .await
            .ok()?
            .condition("Stalled")
            .filter(|(status, ..)| status == "True")
    })
    .await;
    assert!(running.stop(Duration::from_secs(5)).await);
    let text = ground.metrics.to_text();
    let errors = text
        .lines()
        .find(|line| line.starts_with("controller_runtime_reconcile_errors_total"))
        .unwrap();
    assert!(
        errors.rsplit(' ').next().unwrap().parse::<f64>().unwrap() >= 2.0,
        "{errors}"
    );
    let log = std::fs::read_to_string(log.path()).unwrap();
    for failure in ["spec.text: nothing can be done about it", "an accident: lost"] {
        assert!(log.contains(failure), "{failure} is not in {log}");
    }
}

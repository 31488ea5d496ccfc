//! Reconciles are kept, and can be planned once more.

use std::{fs, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, api::PostParams};
use moorline_runtime::{
    Actor, Controller, Draft, Failure, Ground, Planner, Recorder, Replayers, Ring, Settings, Snapshot, Verdict,
    Watches, transformer,
};
use serde_json::json;

use crate::scene::{Page, eventually, page, read, server};

/// Keeps a password for each page; an other reason in words is another plan.
struct Passwords(&'static str);

impl Actor for Passwords {
    type Object = Page;

    fn name(&self) -> &'static str {
        "passwords"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().owns::<Secret>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        let why = self.0;
        plan.transformer(transformer(
            "passwords",
            move |seen: &Snapshot<Page>, draft: &mut Draft| password(seen, draft, why),
        ))
    }
}

fn password(seen: &Snapshot<Page>, draft: &mut Draft, why: &str) -> Result<Verdict, Failure> {
    if seen.get::<Secret>("password")?.is_none() {
        let secret: Secret = read(json!({
            "metadata": { "name": "password" }, "stringData": { "password": seen.secret_text("password", 24) },
        }));
        draft.put(seen.create(&secret, why)?);
    }
    Ok(Verdict::Continue)
}

fn files(directory: &std::path::Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .expect("the server does what it is asked")
        .map(|entry| entry.expect("the server does what it is asked").path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files
}

#[tokio::test]
async fn a_recorded_reconcile_is_planned_once_more_without_its_secrets() {
    let (_server, client) = server().await;
    let directory = tempfile::tempdir().unwrap();
    let ring = Ring {
        directory: directory.path().to_owned(),
        records: 3,
    };
    let ground = Ground {
        recorder: Some(Recorder::start(ring).unwrap()),
        ..Ground::new(client.clone())
    };
    let running = Controller::warm_up(&Passwords("none is there"), &ground, Settings::default()).start();
    let pages: Api<Page> = Api::default_namespaced(client.clone());
    pages
        .create(&PostParams::default(), &page("a", "one", 0))
        .await
        .unwrap();
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let secret = eventually("there is a password", || async {
        secrets.get_opt("password").await.unwrap()
    })
    .await;
    let password = String::from_utf8(secret.data.unwrap()["password"].0.clone()).unwrap();
    assert_eq!(password.len(), 24);
    eventually("the page is ready", || async {
        pages.get("a").await.ok().filter(Page::is_ready)
    })
    .await;
    assert!(running.stop(Duration::from_secs(5)).await);
    let kept = eventually("it is on disk", || async {
        let files = files(directory.path());
        (!files.is_empty()).then_some(files)
    })
    .await;

    let same = Replayers::default().with(Passwords("none is there"));
    let other = Replayers::default().with(Passwords("for another reason"));
    let mut with_create = 0;
    for path in &kept {
        let text = fs::read_to_string(path).unwrap();
        assert!(!text.contains(&password), "a secret reached the disk");
        let replayed = same.replay_file(path).unwrap();
        assert!(replayed.is_same(), "{replayed}");
        if replayed.rebuilt.len() > 1 {
            with_create += 1;
            let replayed = other.replay_file(path).unwrap();
            assert!(!replayed.is_same());
            assert!(
                replayed.to_string().contains("~ create Secret default/password"),
                "{replayed}"
            );
        }
    }
    assert_eq!(with_create, 1, "{kept:?}");
    let stranger = Replayers::default().replay_file(&kept[0]).unwrap_err();
    assert!(stranger.to_string().contains("passwords"), "{stranger}");
}

#[tokio::test]
async fn a_ring_keeps_so_many_and_no_more() {
    let (_server, client) = server().await;
    let directory = tempfile::tempdir().unwrap();
    let ring = Ring {
        directory: directory.path().to_owned(),
        records: 2,
    };
    let ground = Ground {
        recorder: Some(Recorder::start(ring).unwrap()),
        ..Ground::new(client.clone())
    };
    let running = Controller::warm_up(&Passwords("none is there"), &ground, Settings::default()).start();
    let pages: Api<Page> = Api::default_namespaced(client);
    for nth in 0..6 {
        let name = format!("p{nth}");
        pages
            .create(&PostParams::default(), &page(&name, "one", 0))
            .await
            .unwrap();
        eventually("it is ready", || async {
            pages.get(&name).await.ok().filter(Page::is_ready)
        })
        .await;
    }
    assert!(running.stop(Duration::from_secs(5)).await);
    eventually("two are left", || async {
        (files(directory.path()).len() == 2).then_some(())
    })
    .await;
}

/// Applies one config map for each page.
struct Notes;

impl Actor for Notes {
    type Object = Page;

    fn name(&self) -> &'static str {
        "notes"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().owns::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("notes", |seen: &Snapshot<Page>, draft: &mut Draft| {
            let note: ConfigMap = read(json!({ "metadata": { "name": seen.raw().name() },
                "data": { "text": seen.object().spec.text } }));
            draft.put(seen.apply(&note, "a note is wanted")?);
            Ok(Verdict::Continue)
        }))
    }
}

#[tokio::test]
async fn an_apply_that_had_nothing_to_do_has_nothing_to_do_when_it_is_replayed() {
    let (_server, client) = server().await;
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("theirs.json");
    fs::write(&theirs, "{}").unwrap();
    let ring = Ring {
        directory: directory.path().to_owned(),
        records: 3,
    };
    let ground = Ground {
        recorder: Some(Recorder::start(ring).unwrap()),
        ..Ground::new(client.clone())
    };
    let running = Controller::warm_up(&Notes, &ground, Settings::default()).start();
    let pages: Api<Page> = Api::default_namespaced(client.clone());
    pages
        .create(&PostParams::default(), &page("a", "one", 0))
        .await
        .unwrap();
    let replayers = Replayers::default().with(Notes);
    for nth in 0..4 {
        // Each label is another look that finds everything in its place.
        let label = kube::api::Patch::Merge(json!({ "metadata": { "labels": { "look": nth.to_string() } } }));
        pages
            .patch("a", &kube::api::PatchParams::default(), &label)
            .await
            .unwrap();
        let looked = format!("\"look\": \"{nth}\"");
        eventually("the look is on disk", || async {
            let mut kept = files(directory.path());
            kept.retain(|path| *path != theirs);
            let latest = fs::read_to_string(kept.last()?).ok()?;
            latest.contains(&looked).then_some(())
        })
        .await;
    }
    assert!(running.stop(Duration::from_secs(5)).await);
    let mut kept = files(directory.path());
    assert!(kept.contains(&theirs), "what is not ours stays");
    kept.retain(|path| *path != theirs);
    let mut idle = 0;
    for path in &kept {
        let replayed = replayers.replay_file(path).unwrap();
        assert!(replayed.is_same(), "{replayed}");
        idle += usize::from(replayed.rebuilt.is_no_op());
    }
    assert!(idle > 0, "some looks had nothing to do");
}

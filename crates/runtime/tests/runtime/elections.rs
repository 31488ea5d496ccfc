//! Who leads, who stands by, and that nobody acts out of turn.

use std::time::Duration;

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap, events::v1::Event};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use moorline_runtime::{
    Actor, Draft, Election, ElectionSettings, EventType, Fence, Kind, Manager, ManagerError, Options, Planner,
    Settings, Snapshot, Verdict, Watches, transformer,
};
use serde_json::json;
use tokio::sync::oneshot;

use crate::{
    managers::{Signed, election, quiet},
    scene::{PATIENCE, Page, eventually, page, rest, server},
    wire::{Accident, Wire},
};

fn manager(wire: &Wire, identity: &str) -> Manager {
    Manager::new(wire.client(), quiet(), Settings::default())
        .with_election(election(identity))
        .controller("pages", Signed)
}

async fn make(pages: &Api<Page>, name: &str) {
    let created = pages.create(&PostParams::default(), &page(name, "one", 0)).await;
    created.expect("the page is good");
}

fn without_leases(mut lines: Vec<String>) -> Vec<String> {
    lines.retain(|line| !line.contains("/leases"));
    lines
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_back_is_taken_at_once() {
    let (_server, client) = server().await;
    let patient = |identity| ElectionSettings {
        duration: Duration::from_secs(30),
        every: Duration::from_millis(20),
        ..election(identity)
    };
    let first = Election::new(client.clone(), patient("first")).lead().await;
    let second = tokio::spawn({
        let election = Election::new(client.clone(), patient("second"));
        async move { election.lead().await }
    });
    rest(Duration::from_secs(5)).await;
    assert!(!second.is_finished(), "the first one holds it");
    first.release().await;
    let second = tokio::time::timeout(Duration::from_secs(5), second)
        .await
        .unwrap()
        .unwrap();
    let leases: Api<Lease> = Api::default_namespaced(client);
    let spec = leases.get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("second"));
    assert_eq!(spec.lease_transitions, Some(1));
    second.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_the_second_one_may_begin() {
    let (server, client) = server().await;
    let first_wire = Wire::new(server.service(), Accident::None);
    let first = Election::new(first_wire.client(), election("first")).lead().await;
    let lost = first.lost().clone();
    let second = tokio::spawn({
        let election = Election::new(client.clone(), election("second"));
        async move {
            let leadership = election.lead().await;
            (leadership, tokio::time::Instant::now())
        }
    });
    rest(Duration::from_secs(10)).await;
    first_wire.cut();
    lost.cancelled().await;
    let ended = tokio::time::Instant::now();
    let (second, began) = tokio::time::timeout(Duration::from_secs(10), second)
        .await
        .unwrap()
        .unwrap();
    assert!(ended < began, "both led at once");
    assert!(
        began - ended >= Duration::from_millis(200),
        "only {:?} lay between them",
        began - ended
    );
    second.release().await;
}

#[tokio::test(start_paused = true)]
async fn one_request_without_an_answer_neither_loses_the_lease_nor_keeps_others_from_it() {
    let (server, client) = server().await;
    let wires = [(); 2].map(|()| Wire::new(server.service(), Accident::None));
    let first = Election::new(wires[0].client(), election("first")).lead().await;
    wires[1].swallow("/leases", 1);
    let second = tokio::spawn({
        let election = Election::new(wires[1].client(), election("second"));
        async move { election.lead().await }
    });
    rest(Duration::from_secs(1)).await;
    wires[0].swallow("/leases", 1);
    rest(Duration::from_secs(10)).await;
    assert!(!first.lost().is_cancelled(), "the server was there all the time");
    first.release().await;
    let second = tokio::time::timeout(Duration::from_secs(5), second)
        .await
        .unwrap()
        .unwrap();
    let leases: Api<Lease> = Api::default_namespaced(client);
    let spec = leases.get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("second"));
    second.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_leadership_that_is_dropped_runs_out() {
    let (_server, client) = server().await;
    let fence = Fence::open();
    let first = Election::new(client.clone(), election("first")).guarding(&fence);
    assert!(fence.check().is_err(), "nobody leads yet");
    let first = first.lead().await;
    let lost = first.lost().clone();
    rest(Duration::from_secs(5)).await;
    assert!(fence.check().is_ok() && !lost.is_cancelled());
    drop(first);
    lost.cancelled().await;
    assert!(fence.check().is_err());
    let second = Election::new(client, election("second"));
    let second = tokio::time::timeout(Duration::from_secs(3), second.lead())
        .await
        .unwrap();
    second.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_manager_stands_by_warm_and_takes_over_where_the_first_left_off() {
    let (server, client) = server().await;
    let pages: Api<Page> = Api::default_namespaced(client.clone());
    let (first_wire, second_wire) = (
        Wire::new(server.service(), Accident::None),
        Wire::new(server.service(), Accident::None),
    );
    let first = tokio::spawn(manager(&first_wire, "first").run(std::future::pending()));
    make(&pages, "a").await;
    eventually("the first one works", || async {
        pages.get("a").await.ok().filter(Page::is_ready)
    })
    .await;
    let (stop, stopped) = oneshot::channel::<()>();
    let second = tokio::spawn(manager(&second_wire, "second").run(async { drop(stopped.await) }));
    rest(Duration::from_secs(10)).await;
    assert_eq!(without_leases(second_wire.log()), Vec::<String>::new());
    let watched = without_leases(second_wire.reads());
    for plural in ["pages", "configmaps"] {
        let is_watched = |read: &String| read.starts_with("WATCH") && read.ends_with(plural);
        assert!(watched.iter().any(is_watched), "{watched:?}");
    }

    // Only its renewals are lost: whatever else it sends would arrive.
    first_wire.swallow("/leases", usize::MAX);
    let ended = tokio::time::timeout(election("first").renew_within, first)
        .await
        .unwrap();
    assert!(matches!(ended, Ok(Err(ManagerError::LostLease))), "{ended:?}");
    let written = first_wire.log();
    assert!(
        written.iter().any(|write| write.contains("/configmaps/a")),
        "{written:?}"
    );
    make(&pages, "b").await;
    eventually("the second one works", || async {
        pages.get("b").await.ok().filter(Page::is_ready)
    })
    .await;
    assert_eq!(first_wire.log(), written, "the first one has stopped");
    assert_eq!(
        without_leases(second_wire.reads()),
        watched,
        "it had seen everything before"
    );
    stop.send(()).unwrap();
    second.await.unwrap().unwrap();
    let leases: Api<Lease> = Api::default_namespaced(client);
    let spec = leases.get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(""), "the lease was given back");
}

/// Holds up the whole process, once.
struct HeldUp;

impl Actor for HeldUp {
    type Object = Page;

    fn name(&self) -> &'static str {
        "held-up"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().owns::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("hold", |seen: &Snapshot<Page>, draft: &mut Draft| {
            // There is one thread, and nobody else runs meanwhile: not even who would notice that the lease has run out.
            std::thread::sleep(BRIEF.duration + Duration::from_millis(100));
            let map = json!({ "metadata": { "name": seen.raw().name() } });
            draft.put(seen.apply_value(&Kind::of::<ConfigMap>(), map, "late")?);
            draft.put(seen.event(EventType::Normal, "Late", "it is late")?);
            Ok(Verdict::Continue)
        }))
    }
}

struct Brief {
    duration: Duration,
    renew_within: Duration,
}

const BRIEF: Brief = Brief {
    duration: Duration::from_millis(300),
    renew_within: Duration::from_millis(200),
};

#[tokio::test]
async fn a_leader_that_was_held_up_for_longer_than_its_lease_writes_nothing() {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    let pages: Api<Page> = Api::default_namespaced(client.clone());
    make(&pages, "a").await;
    let manager = Manager::new(wire.client(), quiet(), Settings::default())
        .with_election(ElectionSettings {
            duration: BRIEF.duration,
            renew_within: BRIEF.renew_within,
            every: Duration::from_millis(30),
            ..election("first")
        })
        .controller("pages", HeldUp);
    let ended = tokio::time::timeout(PATIENCE, manager.run(std::future::pending()))
        .await
        .unwrap();
    assert!(matches!(ended, Err(ManagerError::LostLease)), "{ended:?}");
    assert_eq!(without_leases(wire.log()), Vec::<String>::new());
    let events: Api<Event> = Api::default_namespaced(client);
    assert_eq!(events.list(&ListParams::default()).await.unwrap().items, Vec::new());
}

#[tokio::test(start_paused = true)]
async fn renewals_do_not_stand_in_line_with_other_requests() {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    let pages: Api<Page> = Api::default_namespaced(client);
    for nth in 0..20 {
        make(&pages, &format!("page-{nth}")).await;
    }
    let options = Options {
        qps: 1.0,
        burst: 1,
        workers: 20,
        ..quiet()
    };
    let manager = Manager::new(wire.client(), options, Settings::default())
        .with_election(election("busy"))
        .controller("pages", Signed);
    manager.run(rest(Duration::from_mins(3))).await.unwrap();
    for page in pages.list(&ListParams::default()).await.unwrap() {
        assert!(page.is_ready(), "{page:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_while_stopping_is_told_as_lost() {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    let pages: Api<Page> = Api::default_namespaced(client);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(manager(&wire, "first").run(async { drop(stopped.await) }));
    rest(Duration::from_secs(1)).await;
    wire.swallow("/configmaps", usize::MAX);
    make(&pages, "a").await;
    rest(Duration::from_secs(1)).await;
    wire.swallow("/leases", usize::MAX);
    stop.send(()).unwrap();
    let ended = running.await.unwrap();
    assert!(matches!(ended, Err(ManagerError::LostLease)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_cut_off_has_time_to_arrive_before_another_may_lead() {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    let pages: Api<Page> = Api::default_namespaced(client.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(manager(&wire, "first").run(async { drop(stopped.await) }));
    rest(Duration::from_secs(1)).await;
    wire.swallow("/configmaps", usize::MAX);
    make(&pages, "a").await;
    rest(Duration::from_secs(1)).await;
    stop.send(()).unwrap();
    let ended = running.await.unwrap();
    assert!(matches!(ended, Err(ManagerError::CutOff(_))), "{ended:?}");
    let leases: Api<Lease> = Api::default_namespaced(client);
    let spec = leases.get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("first"), "it runs out");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_told_to_stop_gives_back_what_it_took_without_knowing() {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::LostAnswer { nth: 0 });
    let patient = ElectionSettings {
        duration: Duration::from_secs(30),
        renew_within: Duration::from_secs(20),
        every: Duration::from_secs(10),
        ..election("first")
    };
    let manager = Manager::new(wire.client(), quiet(), Settings::default()).with_election(patient);
    manager.run(rest(Duration::from_secs(1))).await.unwrap();
    let leases: Api<Lease> = Api::default_namespaced(client);
    let spec = leases.get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn each_field_owner_has_a_lease_of_its_own_in_the_namespace_of_the_process() {
    let (server, client) = server().await;
    let options = Options {
        leader_elect: true,
        ..quiet()
    };
    let operator = |owner: &str| {
        let client = kube::Client::new(server.service(), "kube-system");
        let manager = Manager::new(client, options.clone(), Settings::of_owner(owner));
        tokio::spawn(manager.run(rest(Duration::from_secs(5))))
    };
    let running = [operator("Mail Box"), operator("post-office")];
    rest(Duration::from_secs(1)).await;
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    for name in ["mail-box", "post-office"] {
        let holder = leases.get(name).await.unwrap().spec.unwrap().holder_identity;
        assert!(holder.is_some_and(|holder| !holder.is_empty()), "{name}");
    }
    for running in running {
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn figures_by_which_two_could_lead_at_once_are_refused() {
    let (_server, client) = server().await;
    let careless = ElectionSettings {
        renew_within: Duration::from_secs(1),
        ..election("careless")
    };
    let manager = Manager::new(client, quiet(), Settings::default()).with_election(careless);
    let ended = manager.run(std::future::pending()).await;
    assert!(matches!(ended, Err(ManagerError::Patience { .. })), "{ended:?}");
}

//! The manager: who leads, who stands by, what it answers, how it ends.

use std::{net::SocketAddr, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{Api, api::PostParams};
use moorline_runtime::{
    Actor, Draft, Election, ElectionSettings, Failure, Manager, ManagerError, Options, Planner, Settings, Snapshot,
    Verdict, Watches, transformer,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::oneshot,
};

use crate::{
    scene::{Page, eventually, page, read, rest, server},
    wire::{Accident, Wire},
};

pub(crate) struct Signed;

impl Actor for Signed {
    type Object = Page;

    fn name(&self) -> &'static str {
        "signed"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().owns::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        plan.transformer(transformer("sign", sign))
    }
}

fn sign(seen: &Snapshot<Page>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let name = seen.raw().name();
    let map: ConfigMap = read(json!({ "metadata": { "name": name }, "data": { "text": seen.object().spec.text } }));
    draft.put(seen.apply(&map, "signed")?);
    Ok(Verdict::Continue)
}

pub(crate) fn quiet() -> Options {
    Options {
        health_address: None,
        metrics_address: None,
        graceful_stop: Duration::from_secs(5),
        ..Options::default()
    }
}

fn election(identity: &str) -> ElectionSettings {
    ElectionSettings {
        duration: Duration::from_secs(1),
        renew_within: Duration::from_millis(600),
        every: Duration::from_millis(100),
        ..ElectionSettings::new("default", "test", identity)
    }
}

/// An address that is free and stays so: of all loopback addresses, connections of others use the first alone.
fn free_address(last: u8) -> SocketAddr {
    let process = std::process::id().to_be_bytes();
    let listener = std::net::TcpListener::bind(SocketAddr::from(([127, process[2], process[3], last], 0)));
    let listener = listener.expect("the server does what it is asked");
    listener.local_addr().expect("the server does what it is asked")
}

async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test]
async fn a_manager_answers_probes_counts_and_stops_in_good_order() {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    wire.hold("pages");
    let (health, metrics) = (free_address(2), free_address(3));
    let options = Options {
        health_address: Some(health),
        metrics_address: Some(metrics),
        ..quiet()
    };
    let manager = Manager::new(wire.client(), options, Settings::default()).controller("pages", Signed);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(manager.run(async { drop(stopped.await) }));
    eventually("it is alive", || async {
        get(health, "/healthz").await?.starts_with("HTTP/1.1 200").then_some(())
    })
    .await;
    let waiting = get(health, "/readyz").await.unwrap();
    assert!(
        waiting.starts_with("HTTP/1.1 503") && waiting.contains("Page"),
        "{waiting}"
    );
    wire.release();
    eventually("it is ready", || async {
        get(health, "/readyz").await?.starts_with("HTTP/1.1 200").then_some(())
    })
    .await;

    let pages: Api<Page> = Api::default_namespaced(client);
    pages
        .create(&PostParams::default(), &page("a", "one", 0))
        .await
        .unwrap();
    eventually("it works", || async {
        pages.get("a").await.ok().filter(Page::is_ready)
    })
    .await;
    let text = get(metrics, "/metrics").await.unwrap();
    for name in [
        "controller_runtime_reconcile_total{controller=\"signed\",result=\"success\"}",
        "controller_runtime_reconcile_time_seconds_bucket{",
        "controller_runtime_max_concurrent_reconciles{controller=\"signed\"} 4",
        "workqueue_adds_total{name=\"signed\",controller=\"signed\"}",
        "workqueue_queue_duration_seconds_bucket{",
        "moorline_read_your_writes_total{controller=\"signed\",result=\"seen\"}",
        "rest_client_requests_total{code=\"200\",method=\"PATCH\"}",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_switched_off_does_not_run() {
    let (_server, client) = server().await;
    let mut options = quiet();
    options.groups.insert("pages".to_owned(), false);
    let manager = Manager::new(client.clone(), options, Settings::default()).controller("pages", Signed);
    let pages: Api<Page> = Api::default_namespaced(client);
    pages
        .create(&PostParams::default(), &page("a", "one", 0))
        .await
        .unwrap();
    manager.run(rest(Duration::from_mins(1))).await.unwrap();
    assert!(pages.get("a").await.unwrap().status.is_none());
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
async fn a_second_manager_stands_by_warm_and_takes_over_where_the_first_left_off() {
    let (server, client) = server().await;
    let pages: Api<Page> = Api::default_namespaced(client.clone());
    let (first_wire, second_wire) = (
        Wire::new(server.service(), Accident::None),
        Wire::new(server.service(), Accident::None),
    );
    let manager = |wire: &Wire, identity: &str| {
        Manager::new(wire.client(), quiet(), Settings::default())
            .with_election(election(identity))
            .controller("pages", Signed)
    };
    let first = tokio::spawn(manager(&first_wire, "first").run(std::future::pending()));
    pages
        .create(&PostParams::default(), &page("a", "one", 0))
        .await
        .unwrap();
    eventually("the first one works", || async {
        pages.get("a").await.ok().filter(Page::is_ready)
    })
    .await;
    let (stop, stopped) = oneshot::channel::<()>();
    let second = tokio::spawn(manager(&second_wire, "second").run(async { drop(stopped.await) }));
    rest(Duration::from_secs(10)).await;
    assert!(
        second_wire.log().iter().all(|write| write.contains("/leases")),
        "{:?}",
        second_wire.log()
    );

    first_wire.cut();
    pages
        .create(&PostParams::default(), &page("b", "two", 0))
        .await
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), first)
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(ended, Err(ManagerError::LostLease)), "{ended:?}");
    eventually("the second one works", || async {
        pages.get("b").await.ok().filter(Page::is_ready)
    })
    .await;
    assert!(
        !first_wire.log().iter().any(|write| write.contains("/b")),
        "{:?}",
        first_wire.log()
    );
    stop.send(()).unwrap();
    second.await.unwrap().unwrap();
    let leases: Api<Lease> = Api::default_namespaced(client);
    let spec = leases.get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(""), "the lease was given back");
}

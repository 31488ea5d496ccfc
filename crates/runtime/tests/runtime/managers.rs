//! The manager: who leads, who stands by, what it answers, how it ends.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use moorline_runtime::{
    Actor, Controller, Draft, Election, ElectionSettings, Failure, Ground, Kind, Manager, ManagerError, Options,
    Planner, Settings, Snapshot, TokioTime, Verdict, Watches, transformer,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::oneshot,
};

use crate::{
    scene::{PATIENCE, Page, eventually, page, read, rest, server},
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

pub(crate) fn election(identity: &str) -> ElectionSettings {
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
        health_address: Some(health.into()),
        metrics_address: Some(metrics.into()),
        ..quiet()
    };
    let manager = Manager::new(wire.client(), options, Settings::default())
        .with_election(election("this"))
        .controller("pages", Signed);
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
        "controller_runtime_reconcile_total{controller=\"signed\",result=\"error\"}",
        "controller_runtime_reconcile_total{controller=\"signed\",result=\"requeue\"}",
        "controller_runtime_reconcile_total{controller=\"signed\",result=\"requeue_after\"}",
        "controller_runtime_reconcile_errors_total{controller=\"signed\"} 0",
        "controller_runtime_terminal_reconcile_errors_total{controller=\"signed\"} 0",
        "controller_runtime_reconcile_panics_total{controller=\"signed\"} 0",
        "controller_runtime_reconcile_timeouts_total{controller=\"signed\"} 0",
        "controller_runtime_reconcile_time_seconds_bucket{le=\"60.0\",controller=\"signed\"}",
        "controller_runtime_max_concurrent_reconciles{controller=\"signed\"} 4",
        "controller_runtime_active_workers{controller=\"signed\"}",
        "workqueue_depth{name=\"signed\",controller=\"signed\",priority=\"0\"}",
        "workqueue_adds_total{name=\"signed\",controller=\"signed\"}",
        "workqueue_retries_total{name=\"signed\",controller=\"signed\"}",
        "workqueue_queue_duration_seconds_bucket{le=\"1000.0\",name=\"signed\",controller=\"signed\"}",
        "workqueue_work_duration_seconds_bucket{le=\"1000.0\",name=\"signed\",controller=\"signed\"}",
        "workqueue_unfinished_work_seconds{name=\"signed\",controller=\"signed\"}",
        "workqueue_longest_running_processor_seconds{name=\"signed\",controller=\"signed\"}",
        "leader_election_master_status{name=\"test\"} 1",
        "leader_election_slowpath_total{name=\"test\"} 0",
        "rest_client_requests_total{code=\"200\",method=\"PATCH\",host=\"\"}",
        "rest_client_request_duration_seconds_bucket{le=\"60.0\",verb=\"PATCH\",host=\"\"}",
        "rest_client_rate_limiter_duration_seconds_bucket{le=\"60.0\",verb=\"PATCH\",host=\"\"}",
        "rest_client_request_size_bytes_bucket{le=\"16777216.0\",verb=\"PATCH\",host=\"\"}",
        "moorline_read_your_writes_total{controller=\"signed\",result=\"seen\"}",
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

#[tokio::test]
async fn a_manager_that_stands_by_is_ready() {
    let (server, client) = server().await;
    let leader = Election::new(client, election("leader")).lead().await;
    let wire = Wire::new(server.service(), Accident::None);
    let health = free_address(4);
    let options = Options {
        health_address: Some(health.into()),
        ..quiet()
    };
    let manager = Manager::new(wire.client(), options, Settings::default())
        .with_election(election("standby"))
        .controller("pages", Signed);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(manager.run(async { drop(stopped.await) }));
    eventually("it is ready", || async {
        get(health, "/readyz").await?.starts_with("HTTP/1.1 200").then_some(())
    })
    .await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(wire.log(), Vec::<String>::new(), "the lease is not its own");
    leader.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_asked_to_stop_does_not_wait_for_a_list_that_never_comes() {
    let (server, _client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    wire.hold("pages");
    let manager = Manager::new(wire.client(), quiet(), Settings::default()).controller("pages", Signed);
    let began = tokio::time::Instant::now();
    manager.run(rest(Duration::from_secs(1))).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Computes until it is let go, on the thread that it was called on.
struct Brooding {
    begun: std::sync::mpsc::Sender<()>,
    until: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl Actor for Brooding {
    type Object = Page;

    fn name(&self) -> &'static str {
        "brooding"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().owns::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        let (begun, until) = (self.begun.clone(), Arc::clone(&self.until));
        plan.transformer(transformer("brood", move |seen: &Snapshot<Page>, draft: &mut Draft| {
            let _ = begun.send(());
            let _ = until.lock().unwrap_or_else(PoisonError::into_inner).recv();
            sign(seen, draft)
        }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transformer_that_never_returns_does_not_keep_a_manager_from_ending() {
    let (server, client) = server().await;
    let wire = Wire::new(server.service(), Accident::None);
    let (let_go, until) = std::sync::mpsc::channel();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let options = Options {
        graceful_stop: Duration::from_millis(100),
        ..quiet()
    };
    let brooding = Brooding {
        begun,
        until: Arc::new(Mutex::new(until)),
    };
    let manager = Manager::new(wire.client(), options, Settings::default()).controller("pages", brooding);
    let pages: Api<Page> = Api::default_namespaced(client);
    pages
        .create(&PostParams::default(), &page("a", "one", 0))
        .await
        .unwrap();
    // A task that the brooding thread itself wakes would wait for that very thread.
    let has_begun = tokio::task::spawn_blocking(move || has_begun.recv());
    let running = tokio::spawn(manager.run(async move { drop(has_begun.await) }));
    let ended = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    assert!(matches!(ended, Err(ManagerError::CutOff(_))), "{ended:?}");
    drop(let_go);
}

/// Has something to write every second, whether or not anything happens: the time, under this name.
struct Ticking(&'static str);

impl Actor for Ticking {
    type Object = Page;

    fn name(&self) -> &'static str {
        "ticking"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Page>().owns::<ConfigMap>()
    }

    fn plan(&self, plan: Planner<Page>) -> Planner<Page> {
        let name = self.0;
        plan.transformer(transformer("tick", move |seen: &Snapshot<Page>, draft: &mut Draft| {
            let map = json!({ "metadata": { "name": name }, "data": { "now": seen.now().to_string() } });
            draft.put(seen.apply_value(&Kind::of::<ConfigMap>(), map, "tick")?);
            let after = Duration::from_secs(1);
            let reason = "time goes on".to_owned();
            Ok(Verdict::LookAgain { after, reason })
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_or_a_controller_that_is_dropped_writes_nothing_more() {
    let (server, client) = server().await;
    let pages: Api<Page> = Api::default_namespaced(client);
    let (led, bare) = (
        Wire::new(server.service(), Accident::None),
        Wire::new(server.service(), Accident::None),
    );
    let manager = Manager::new(led.client(), quiet(), Settings::default())
        .with_time(Arc::new(TokioTime::starting_at(jiff::Timestamp::UNIX_EPOCH)))
        .with_election(election("this"))
        .controller("pages", Ticking("led"));
    let running = tokio::spawn(manager.run(std::future::pending()));
    let ground = Ground {
        time: Arc::new(TokioTime::starting_at(jiff::Timestamp::UNIX_EPOCH)),
        ..Ground::new(bare.client())
    };
    let controller = Controller::warm_up(&Ticking("bare"), &ground, Settings::of_owner("bare")).start();
    pages
        .create(&PostParams::default(), &page("a", "one", 0))
        .await
        .unwrap();
    eventually("they work", || async {
        let works = |wire: &Wire| wire.log().iter().filter(|write| write.contains("/configmaps")).count() > 3;
        (works(&led) && works(&bare)).then_some(())
    })
    .await;

    running.abort();
    drop(controller);
    assert!(running.await.unwrap_err().is_cancelled());
    let before = (led.log(), bare.log());
    rest(Duration::from_secs(30)).await;
    assert_eq!((led.log(), bare.log()), before);
}

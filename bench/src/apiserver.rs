//! The API server beside kube-apiserver and etcd: both as processes of their own, both with durable writes, asked by the
//! same client.
//!
//! Turns alternate and the median counts. The peer runs where `make reference` has built it.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use moorline_apiserver::certificates::Certificates;
use moorline_reference::{
    client::Client,
    real::{self, Durability, RealServer},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{runtime::Builder, sync::mpsc, task::JoinSet};

use crate::{
    process::{binary, median, resident},
    report::Row,
};

const TURNS: usize = 3;
/// How long a server must have done nothing to count as idle.
const REST: Duration = Duration::from_secs(3);
/// How long one turn of creating lasts.
const TURN: Duration = Duration::from_secs(2);
const OBJECTS: usize = 10_000;
const WATCHERS: usize = 1000;

pub(crate) fn rows() -> Vec<Row> {
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be started");
    runtime.block_on(measure())
}

async fn measure() -> Vec<Row> {
    let (theirs, peer_name) = match start_peer().await {
        Ok(server) => (Some(server), format!("kube-apiserver {} with etcd", real::VERSION)),
        Err(why) => (None, why.to_string()),
    };
    let mut bench = Bench { theirs, peer_name };
    let mut starts = Vec::new();
    for _ in 0..TURNS * 2 {
        starts.push(Ours::start().await.ready_after.as_secs_f64() * 1e3);
    }
    let ours = Ours::start().await;
    tokio::time::sleep(REST).await;
    let fresh = resident(&[ours.process.id()]);
    let peer_fresh = bench.theirs.as_ref().map(|server| resident(&server.processes()));
    let peer_start = bench
        .theirs
        .as_ref()
        .map(|server| server.ready_after().as_secs_f64() * 1e3);
    let mut rows = vec![
        bench.row(
            "process start to /readyz, empty directory",
            "ms",
            median(starts),
            peer_start,
            Bar::Below(150.0),
        ),
        bench.row("resident memory, idle", "MB", fresh, peer_fresh, Bar::Below(40.0)),
    ];
    rows.push(bench.after_a_tour(&ours).await);
    for clients in [1, 32] {
        rows.push(bench.creates(&ours, clients).await);
    }
    rows.push(bench.list(&ours).await);
    rows.push(bench.create_to_watch(&ours).await);
    rows.push(bench.watchers(&ours).await);
    rows
}

async fn start_peer() -> Result<RealServer, real::RealError> {
    real::find()?.start(Durability::Synced).await
}

/// What a measurement must reach.
#[derive(Clone, Copy)]
enum Bar {
    /// In its own unit.
    Below(f64),
    /// So many times the peer's.
    TimesMore(f64),
    /// At most this part of the peer's.
    TimesLess(f64),
}

struct Bench {
    theirs: Option<RealServer>,
    peer_name: String,
}

impl Bench {
    fn row(&self, work: &str, unit: &'static str, ours: f64, peer: Option<f64>, bar: Bar) -> Row {
        let more = peer.map(|peer| ours / peer);
        let less = peer.map(|peer| peer / ours);
        let (ratio, words, holds) = match bar {
            Bar::Below(limit) => (less, format!("< {limit} {unit}"), ours < limit),
            Bar::TimesMore(times) => (more, format!(">= {times} x"), more.is_none_or(|ratio| ratio >= times)),
            Bar::TimesLess(times) => (
                less,
                format!("{times} x faster"),
                less.is_none_or(|ratio| ratio >= times),
            ),
        };
        Row {
            krate: "apiserver",
            work: work.to_owned(),
            unit,
            ours,
            peer,
            peer_name: Some(self.peer_name.clone()),
            ratio,
            bar: words,
            holds,
        }
    }

    fn clients<'a>(&'a self, ours: &'a Ours) -> Vec<&'a Client> {
        [Some(&ours.client), self.theirs.as_ref().map(RealServer::client)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Takes turns with both; the medians.
    async fn turns<F>(&self, ours: &Ours, turns: usize, work: impl Fn(Client, usize) -> F) -> (f64, Option<f64>)
    where
        F: Future<Output = f64>,
    {
        let clients = self.clients(ours);
        let mut taken = vec![Vec::new(); clients.len()];
        for turn in 0..turns {
            for (client, taken) in clients.iter().zip(&mut taken) {
                taken.push(work((*client).clone(), turn).await);
            }
        }
        let mut medians = taken.into_iter().map(median);
        (medians.next().expect("our own client is the first"), medians.next())
    }

    /// What kubectl looks at on its first visit makes a server read and build documents; this is what it keeps of them.
    async fn after_a_tour(&mut self, ours: &Ours) -> Row {
        for client in self.clients(ours) {
            for path in [
                "/api",
                "/apis",
                "/openapi/v2",
                "/openapi/v3",
                "/openapi/v3/api/v1",
                "/api/v1/namespaces",
            ] {
                get(client, path).await;
            }
        }
        tokio::time::sleep(REST).await;
        let peer = self.theirs.as_ref().map(|server| resident(&server.processes()));
        let own = resident(&[ours.process.id()]);
        self.row(
            "resident memory, idle after discovery and OpenAPI",
            "MB",
            own,
            peer,
            Bar::Below(40.0),
        )
    }

    async fn creates(&self, ours: &Ours, clients: usize) -> Row {
        let (own, peer) = self
            .turns(ours, TURNS, |client, turn| creates(client, clients, turn))
            .await;
        let work = match clients {
            1 => "durable creates of 1 KB objects, 1 client".to_owned(),
            many => format!("durable creates of 1 KB objects, {many} clients"),
        };
        self.row(&work, "/s", own, peer, Bar::TimesMore(3.0))
    }

    async fn list(&self, ours: &Ours) -> Row {
        for client in self.clients(ours) {
            fill(client, "listed", OBJECTS).await;
        }
        let (own, peer) = self
            .turns(ours, TURNS * 3, |client, _| async move {
                let started = Instant::now();
                let bytes = get(&client, "/api/v1/namespaces/listed/secrets").await;
                let took = started.elapsed();
                assert!(
                    bytes > OBJECTS * 1000,
                    "a list of {bytes} bytes holds no {OBJECTS} objects"
                );
                took.as_secs_f64() * 1e3
            })
            .await;
        self.row("list 10,000 objects of 1 KB", "ms", own, peer, Bar::TimesLess(3.0))
    }

    async fn create_to_watch(&self, ours: &Ours) -> Row {
        let (own, peer) = self.turns(ours, TURNS, create_to_watch).await;
        self.row("create to watch event, p50", "ms", own, peer, Bar::TimesLess(2.0))
    }

    async fn watchers(&self, ours: &Ours) -> Row {
        let (own, peer) = self.turns(ours, TURNS, watchers).await;
        self.row(
            "one write, 1,000 watchers, all served",
            "ms",
            own,
            peer,
            Bar::Below(50.0),
        )
    }
}

/// Our server: the binary beside this one, built in the same profile.
struct Ours {
    client: Client,
    process: Child,
    ready_after: Duration,
    _folder: TempDir,
}

impl Ours {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let address = free_address().expect("a port is free");
        let log = fs::File::create(folder.path().join("log")).expect("a file can be made");
        let started = Instant::now();
        let process = Command::new(binary())
            .args(["apiserver", "--listen", &address.to_string(), "--data-dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the moorline binary starts; `make bench` builds it");
        // Its port opens when it is ready. Until then a connection is refused at once, which costs it nothing.
        while std::net::TcpStream::connect(address).is_err() {
            assert!(started.elapsed() < Duration::from_mins(1), "our server does not start");
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        let certificates =
            Certificates::open(&folder.path().join("pki"), &[], Timestamp::now()).expect("the server has made them");
        let client = Client::new(address, &certificates);
        get(&client, "/readyz").await;
        Self {
            client,
            process,
            ready_after: started.elapsed(),
            _folder: folder,
        }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Gets a path; how many bytes came.
async fn get(client: &Client, path: &str) -> usize {
    let answer = client
        .send(Method::GET, path, &[], Bytes::new())
        .await
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    assert!(answer.status.is_success(), "{path}: {}", answer.status);
    answer.body.len()
}

/// Creates an object of one kilobyte; the namespace must be there.
async fn create(client: &Client, namespace: &str, name: &str) {
    let object =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"a": "QUJD".repeat(250)}});
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    let path = format!("/api/v1/namespaces/{namespace}/secrets");
    let answer = client
        .send(Method::POST, &path, &headers, object.to_string().into())
        .await;
    let answer = answer.unwrap_or_else(|error| panic!("create {name}: {error}"));
    assert_eq!(
        answer.status.as_u16(),
        201,
        "create {name}: {}",
        String::from_utf8_lossy(&answer.body)
    );
}

async fn namespace(client: &Client, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    let answer = client
        .send(Method::POST, "/api/v1/namespaces", &headers, object.to_string().into())
        .await;
    answer.unwrap_or_else(|error| panic!("namespace {name}: {error}"));
}

/// Creates this many objects in a new namespace.
async fn fill(client: &Client, name: &str, objects: usize) {
    namespace(client, name).await;
    let next = Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    for _ in 0..32 {
        let (client, name, next) = (client.clone(), name.to_owned(), Arc::clone(&next));
        writers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= objects {
                    return;
                }
                create(&client, &name, &format!("s{number}")).await;
            }
        });
    }
    writers.join_all().await;
}

/// Creates for a while with so many clients; how many a second.
async fn creates(client: Client, clients: usize, turn: usize) -> f64 {
    let name = format!("creates-{clients}-{turn}");
    namespace(&client, &name).await;
    let started = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..clients {
        let (client, name) = (client.clone(), name.clone());
        writers.spawn(async move {
            let mut number = 0;
            while started.elapsed() < TURN {
                create(&client, &name, &format!("s{writer}-{number}")).await;
                number += 1;
            }
            number
        });
    }
    let written: usize = writers.join_all().await.into_iter().sum();
    written as f64 / started.elapsed().as_secs_f64()
}

/// The median time from sending a create to receiving its event, in milliseconds.
async fn create_to_watch(client: Client, turn: usize) -> f64 {
    let name = format!("watch-{turn}");
    namespace(&client, &name).await;
    let (sender, mut events) = mpsc::unbounded_channel();
    let watch = tokio::spawn(follow(client.clone(), name.clone(), sender));
    events.recv().await.expect("the watch begins");
    let mut times = Vec::new();
    for number in 0..300 {
        let object = format!("s{number}");
        let started = Instant::now();
        let event = async {
            events.recv().await.expect("the watch goes on");
            started.elapsed()
        };
        let ((), took) = tokio::join!(create(&client, &name, &object), event);
        times.push(took.as_secs_f64() * 1e3);
    }
    watch.abort();
    median(times)
}

/// The time from sending one create until each of a thousand watchers has its event, in milliseconds.
async fn watchers(client: Client, turn: usize) -> f64 {
    let name = format!("watched-{turn}");
    namespace(&client, &name).await;
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut watches = JoinSet::new();
    for _ in 0..WATCHERS {
        watches.spawn(follow(client.clone(), name.clone(), sender.clone()));
    }
    for _ in 0..WATCHERS {
        events.recv().await.expect("the watches begin");
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let started = Instant::now();
    let all_served = async {
        for _ in 0..WATCHERS {
            events.recv().await.expect("the watches go on");
        }
        started.elapsed()
    };
    let ((), took) = tokio::join!(create(&client, &name, "one"), all_served);
    watches.shutdown().await;
    took.as_secs_f64() * 1e3
}

/// Watches; tells when the watch has begun and whenever something came.
async fn follow(client: Client, namespace: String, events: mpsc::UnboundedSender<()>) {
    let path = format!("/api/v1/namespaces/{namespace}/secrets?watch=true&timeoutSeconds=300");
    let response = client
        .open(Method::GET, &path, &[], Bytes::new())
        .await
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut body = response.into_body();
    if events.send(()).is_err() {
        return;
    }
    while let Some(Ok(frame)) = body.frame().await {
        let lines = frame
            .data_ref()
            .map_or(0, |data| data.split(|byte| *byte == b'\n').count() - 1);
        for _ in 0..lines {
            if events.send(()).is_err() {
                return;
            }
        }
    }
}

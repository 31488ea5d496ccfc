use std::{
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    process::Command,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::{
    body::Stream,
    certificates::{Certificates, ClientName, Identity, Kubeconfig},
};

const PATIENCE: Duration = Duration::from_secs(30);

struct Fixture {
    certificates: Certificates,
    listening: Listening,
}

async fn start(limits: Limits) -> Fixture {
    let certificates = Certificates::ephemeral(&[], Timestamp::now()).unwrap();
    let tls = Tls::new(&certificates).unwrap();
    let listening = listen((Ipv4Addr::LOCALHOST, 0).into(), tls, limits, handler)
        .await
        .unwrap();
    Fixture {
        certificates,
        listening,
    }
}

/// Says who asks; or, by path, sends much, for ever, or nothing at all.
async fn handler(request: Request<Incoming>, peer: Peer) -> Response<Body> {
    match request.uri().path() {
        "/large" => Response::new(Body::whole(vec![b'a'; 1 << 20])),
        "/forever" => Response::new(Body::stream(Forever(0))),
        "/panic" => panic!("on request"),
        "/never" => std::future::pending().await,
        "/upgrade" => {
            tokio::spawn(async move {
                let mut stopping = request.extensions().get::<Stopping>().unwrap().clone();
                let mut io = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
                let mut word = [0; 4];
                io.read_exact(&mut word).await.unwrap();
                io.write_all(&word).await.unwrap();
                stopping.wait().await;
                io.write_all(b"bye").await.unwrap();
                io.shutdown().await.unwrap();
            });
            let switching = Response::builder()
                .status(101)
                .header("upgrade", "words")
                .header("connection", "upgrade");
            switching.body(Body::empty()).unwrap()
        }
        "/body" => Response::new(Body::whole(request.into_body().collect().await.unwrap().to_bytes())),
        _ => Response::new(Body::whole(match peer.certificate {
            ClientCertificate::None => "nobody".to_owned(),
            ClientCertificate::Trusted { user, .. } => format!("{} of {}", user.name, user.groups.join(",")),
            ClientCertificate::Refused { why } => format!("refused: {why}"),
        })),
    }
}

/// One line, then silence.
struct Forever(usize);

impl Stream for Forever {
    fn poll_piece(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0 += 1;
        if self.0 == 1 {
            Poll::Ready(Some(Bytes::from_static(b"line\n")))
        } else {
            Poll::Pending
        }
    }
}

#[derive(Clone, Copy)]
enum Http {
    One,
    Two,
}

impl Fixture {
    async fn tls(&self, identity: Option<&Identity>, http: Http) -> TlsStream<TcpStream> {
        self.try_tls(identity, http).await.unwrap()
    }

    async fn try_tls(&self, identity: Option<&Identity>, http: Http) -> io::Result<TlsStream<TcpStream>> {
        let pair = identity.map(|identity| (vec![identity.certificate().clone()], identity.key()));
        self.tls_with(pair, http).await
    }

    async fn tls_with(
        &self,
        pair: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
        http: Http,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificates.authority.certificate().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match pair {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![match http {
            Http::One => b"http/1.1".to_vec(),
            Http::Two => b"h2".to_vec(),
        }];
        let stream = TcpStream::connect(self.listening.address()).await?;
        let name = ServerName::IpAddress(IpAddr::from(Ipv4Addr::LOCALHOST).into());
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    async fn client(&self, identity: Option<&Identity>, http: Http) -> Client {
        let io = TokioIo::new(self.tls(identity, http).await);
        match http {
            Http::One => {
                let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                Client::One(sender)
            }
            Http::Two => {
                let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                    .await
                    .unwrap();
                tokio::spawn(connection);
                Client::Two(sender)
            }
        }
    }

    async fn who(&self, identity: Option<&Identity>, http: Http) -> String {
        let mut client = self.client(identity, http).await;
        let answer = client.get("/").await;
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }
}

enum Client {
    One(hyper::client::conn::http1::SendRequest<Empty<Bytes>>),
    Two(hyper::client::conn::http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    async fn get(&mut self, path: &str) -> Response<Incoming> {
        self.try_get(path).await.unwrap()
    }

    async fn try_get(&mut self, path: &str) -> hyper::Result<Response<Incoming>> {
        let request = |uri: String| {
            Request::get(uri)
                .header("host", "localhost")
                .header("accept-encoding", "gzip")
                .body(Empty::new())
                .unwrap()
        };
        match self {
            Self::One(sender) => sender.send_request(request(path.to_owned())).await,
            Self::Two(sender) => sender.send_request(request(format!("https://localhost{path}"))).await,
        }
    }
}

/// Everything that still comes.
async fn rest(stream: &mut TlsStream<TcpStream>) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_client_is_known_by_its_certificate_over_both_versions_of_http() {
    let fixture = start(Limits::default()).await;
    for http in [Http::One, Http::Two] {
        let admin = &fixture.certificates.admin;
        assert_eq!(
            fixture.who(Some(admin), http).await,
            "kubernetes-admin of system:masters"
        );
        assert_eq!(fixture.who(None, http).await, "nobody");
    }
    assert_eq!(fixture.listening.stop(PATIENCE).await, Stopped::Clean);
}

#[tokio::test]
async fn a_worthless_certificate_is_told_so_in_an_answer() {
    let fixture = start(Limits::default()).await;
    let now = Timestamp::now();
    let foreign = Certificates::ephemeral(&[], now).unwrap();
    let answer = fixture.who(Some(&foreign.admin), Http::One).await;
    assert!(answer.starts_with("refused: x509: "), "{answer}");
    let jane = ClientName {
        user: "jane".to_owned(),
        group: None,
    };
    let long_ago = now - SignedDuration::from_hours(48);
    let expired = fixture
        .certificates
        .authority
        .client(&jane, long_ago, now - SignedDuration::from_hours(24))
        .unwrap();
    let answer = fixture.who(Some(&expired), Http::Two).await;
    assert!(answer.starts_with("refused: x509: "), "{answer}");
}

#[tokio::test]
async fn nobody_speaks_for_a_certificate_without_its_key() {
    let fixture = start(Limits::default()).await;
    let stolen = fixture.certificates.admin.certificate().clone();
    let other = Certificates::ephemeral(&[], Timestamp::now()).unwrap();
    // rustls itself refuses to pair them, so pair them behind its back.
    let key = rustls::crypto::ring::sign::any_supported_type(&other.admin.key()).unwrap();
    let certified = Arc::new(rustls::sign::CertifiedKey::new(vec![stolen], key));
    let mut roots = RootCertStore::empty();
    roots.add(fixture.certificates.authority.certificate().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
    let stream = TcpStream::connect(fixture.listening.address()).await.unwrap();
    let name = ServerName::IpAddress(IpAddr::from(Ipv4Addr::LOCALHOST).into());
    let answer = match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(mut stream) => {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            rest(&mut stream).await
        }
        Err(_) => String::new(),
    };
    assert_eq!(answer, "");
}

#[tokio::test]
async fn a_large_answer_is_compressed_and_a_stream_is_not() {
    let fixture = start(Limits::default()).await;
    let mut client = fixture.client(None, Http::Two).await;
    let large = client.get("/large").await;
    assert_eq!(large.headers()["content-encoding"], "gzip");
    let bytes = large.into_body().collect().await.unwrap().to_bytes();
    assert!(bytes.len() < 20_000, "{}", bytes.len());
    let stream = client.get("/forever").await;
    assert_eq!(stream.headers().get("content-encoding"), None);
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let fixture = start(Limits::default()).await;
    for http in [Http::One, Http::Two] {
        let mut client = fixture.client(None, http).await;
        let answer = client.get("/panic").await;
        assert_eq!(answer.status(), 500);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status["reason"], "InternalError");
        assert_eq!(client.get("/").await.status(), 200);
    }
}

#[tokio::test]
async fn stopping_ends_streams_where_a_piece_ends() {
    for http in [Http::One, Http::Two] {
        let fixture = start(Limits::default()).await;
        let mut client = fixture.client(None, http).await;
        let mut body = client.get("/forever").await.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "line\n");
        let address = fixture.listening.address();
        assert_eq!(fixture.listening.stop(PATIENCE).await, Stopped::Clean);
        let rest = body.collect().await.expect("the stream ends as a stream should");
        assert_eq!(rest.to_bytes(), "");
        assert!(client.try_get("/").await.is_err());
        assert!(TcpStream::connect(address).await.is_err());
    }
}

#[tokio::test]
async fn who_does_not_finish_in_time_is_cut_off() {
    let fixture = start(Limits::default()).await;
    let mut client = fixture.client(None, Http::One).await;
    let asking = tokio::spawn(async move { client.try_get("/never").await.is_err() });
    let mut other = fixture.client(None, Http::Two).await;
    assert_eq!(other.get("/").await.status(), 200);
    let begun = Instant::now();
    let stopped = fixture.listening.stop(Duration::from_millis(300)).await;
    assert_eq!(stopped, Stopped::CutOff(1));
    assert!(begun.elapsed() < PATIENCE);
    assert!(asking.await.unwrap());
}

#[tokio::test]
async fn a_listener_that_is_dropped_stops_at_once() {
    let fixture = start(Limits::default()).await;
    let mut client = fixture.client(None, Http::Two).await;
    assert_eq!(client.get("/").await.status(), 200);
    let address = fixture.listening.address();
    drop(fixture);
    let gone = async {
        while client.try_get("/").await.is_ok() {}
        while TcpStream::connect(address).await.is_ok() {}
    };
    timeout(PATIENCE, gone).await.expect("nobody is served any more");
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_stopping() {
    let fixture = start(Limits::default()).await;
    let silent = TcpStream::connect(fixture.listening.address()).await.unwrap();
    let shaken = fixture.tls(None, Http::Two).await;
    let mut idle = fixture.client(None, Http::One).await;
    assert_eq!(idle.get("/").await.status(), 200);
    let begun = Instant::now();
    let stopped = fixture.listening.stop(Duration::from_secs(30)).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(stopped, Stopped::Clean);
    drop((silent, shaken));
}

#[tokio::test]
async fn silent_clients_are_let_go() {
    let limits = Limits {
        handshake: Duration::from_millis(100),
        first_request: Duration::from_millis(100),
        idle: Duration::from_millis(200),
        ..Limits::default()
    };
    let fixture = start(limits).await;
    let mut silent = TcpStream::connect(fixture.listening.address()).await.unwrap();
    let mut half = TcpStream::connect(fixture.listening.address()).await.unwrap();
    half.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    let mut no_preface = fixture.tls(None, Http::Two).await;
    let mut slow = fixture.tls(None, Http::One).await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
    let mut idle = fixture.tls(None, Http::One).await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let gone = async {
        let mut byte = [0; 64];
        while silent.read(&mut byte).await.is_ok_and(|read| read > 0) {}
        while half.read(&mut byte).await.is_ok_and(|read| read > 0) {}
        rest(&mut no_preface).await;
        rest(&mut slow).await;
        let answer = rest(&mut idle).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    timeout(Duration::from_secs(20), gone)
        .await
        .expect("all of them are let go");
}

#[tokio::test]
async fn a_request_under_way_is_not_idle() {
    let limits = Limits {
        first_request: Duration::from_millis(50),
        idle: Duration::from_millis(50),
        ..Limits::default()
    };
    let fixture = start(limits).await;
    for http in [Http::One, Http::Two] {
        let mut client = fixture.client(None, http).await;
        let mut body = client.get("/forever").await.into_body();
        body.frame().await.unwrap().unwrap();
        assert!(
            timeout(Duration::from_millis(400), body.frame()).await.is_err(),
            "the stream goes on"
        );
    }
}

#[tokio::test]
async fn bad_bytes_harm_nobody() {
    let fixture = start(Limits::default()).await;
    let mut random = 0x9e37_79b9_u32;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        u8::try_from(random & 0xff).unwrap()
    };
    for round in 0..100 {
        let garbage: Vec<u8> = (0..round * 7).map(|_| next()).collect();
        let mut plain = TcpStream::connect(fixture.listening.address()).await.unwrap();
        let _ = plain.write_all(&garbage).await;
        if round % 10 == 0 {
            let http = if round % 20 == 0 { Http::One } else { Http::Two };
            let mut inside = fixture.tls(None, http).await;
            let _ = inside.write_all(&garbage).await;
            let _ = inside.shutdown().await;
            rest(&mut inside).await;
        }
    }
    let mut plain = TcpStream::connect(fixture.listening.address()).await.unwrap();
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "nothing is served in the open");
    assert_eq!(fixture.who(None, Http::Two).await, "nobody");
    assert_eq!(fixture.listening.stop(PATIENCE).await, Stopped::Clean);
}

#[tokio::test]
async fn a_huge_head_is_refused() {
    let fixture = start(Limits::default()).await;
    let mut stream = fixture.tls(None, Http::One).await;
    let mut head = b"GET / HTTP/1.1\r\nhost: x\r\nx-huge: ".to_vec();
    head.extend(std::iter::repeat_n(b'a', 200_000));
    head.extend(b"\r\n\r\n");
    let _ = stream.write_all(&head).await;
    let answer = rest(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");

    let mut stream = fixture.tls(None, Http::One).await;
    let many = "x-many: y\r\n".repeat(1000);
    let _ = stream
        .write_all(format!("GET / HTTP/1.1\r\nhost: x\r\n{many}\r\n").as_bytes())
        .await;
    let answer = rest(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(fixture.who(None, Http::One).await, "nobody");
}

#[tokio::test]
async fn a_connection_can_be_taken_over_and_learns_of_the_end() {
    let fixture = start(Limits::default()).await;
    let mut stream = fixture.tls(None, Http::One).await;
    let ask = b"GET /upgrade HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: words\r\n\r\nping";
    stream.write_all(ask).await.unwrap();
    let mut seen = String::new();
    while !seen.ends_with("\r\n\r\nping") {
        let mut bytes = [0; 256];
        let read = stream.read(&mut bytes).await.unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    assert!(seen.starts_with("HTTP/1.1 101 "), "{seen}");
    assert_eq!(fixture.listening.stop(PATIENCE).await, Stopped::Clean);
    assert_eq!(rest(&mut stream).await, "bye");
}

#[tokio::test]
async fn no_more_are_let_in_than_there_are_places() {
    let limits = Limits {
        connections: 3,
        handshake: Duration::from_millis(200),
        ..Limits::default()
    };
    let fixture = start(limits).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(fixture.listening.address()).await.unwrap());
    }
    // The silent ones lose their places, three by three, and then it is our turn.
    let answer = timeout(Duration::from_secs(30), fixture.who(None, Http::One))
        .await
        .unwrap();
    assert_eq!(answer, "nobody");
}

#[tokio::test]
async fn hundreds_of_idle_connections_are_carried() {
    let fixture = start(Limits::default()).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(fixture.listening.address()).await.unwrap());
    }
    let before = resident();
    for _ in 0..100 {
        idle.push(fixture.tls(None, Http::Two).await.into_inner().0);
    }
    eprintln!(
        "{} KB for 100 idle connections, both ends",
        resident().saturating_sub(before) / 1024
    );
    assert_eq!(fixture.who(None, Http::Two).await, "nobody");
    assert_eq!(fixture.listening.stop(PATIENCE).await, Stopped::Clean);
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok())
        .unwrap_or_default()
        * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_gets_in_with_the_files_of_a_kubeconfig() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("curl is not installed");
        return;
    }
    let fixture = start(Limits::default()).await;
    let folder = std::env::temp_dir().join(format!("moorline-serve-curl-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        crate::certificates::write_private(&path, text.as_bytes()).unwrap();
        path
    };
    let Certificates { authority, admin, .. } = &fixture.certificates;
    let ca = file("ca.crt", authority.certificate_pem());
    let (certificate, key) = (
        file("admin.crt", admin.certificate_pem()),
        file("admin.key", admin.key_pem()),
    );
    let url = format!("https://localhost:{}/", fixture.listening.address().port());
    for version in ["--http1.1", "--http2"] {
        let mut curl = Command::new("curl");
        curl.args(["-sS", version])
            .arg("--cacert")
            .arg(&ca)
            .arg("--cert")
            .arg(&certificate)
            .arg("--key")
            .arg(&key);
        curl.arg(&url);
        let output = tokio::task::spawn_blocking(move || curl.output().unwrap())
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            text,
            "kubernetes-admin of system:masters",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_gets_in_with_the_kubeconfig() {
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("kubectl is not installed");
        return;
    }
    let fixture = start(Limits::default()).await;
    let path = std::env::temp_dir().join(format!("moorline-serve-kubectl-{}", std::process::id()));
    let server = format!("https://{}", fixture.listening.address());
    let Certificates {
        authority,
        admin: identity,
        ..
    } = &fixture.certificates;
    Kubeconfig {
        name: "test",
        server: &server,
        authority,
        identity,
    }
    .write(&path)
    .unwrap();
    let mut kubectl = Command::new("kubectl");
    kubectl.arg("--kubeconfig").arg(&path).args(["get", "--raw", "/"]);
    let output = tokio::task::spawn_blocking(move || kubectl.output().unwrap())
        .await
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        text,
        "kubernetes-admin of system:masters",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

//! Clients that mean no good, at the real listener: whatever they do, others are answered and memory stays bounded.

use std::fmt::Write as _;
use std::{net::SocketAddr, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use moorline_apiserver::{
    auth::{ServiceAccountTokens, token::Bound},
    certificates::{Certificates, ClientName, Identity},
    server::{ApiServer, Config},
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// How soon others must be answered, on a machine that may be busy.
const SOON: Duration = Duration::from_secs(20);
/// How much a hundred bad clients may cost together.
const ROOM: u64 = 96 << 20;

struct Door {
    address: SocketAddr,
    certificates: Certificates,
    server: ApiServer,
    _folder: TempDir,
}

type Connection = TlsStream<TcpStream>;

impl Door {
    async fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let config = Config {
            directory: Some(folder.path().to_owned()),
            ..Config::ephemeral()
        };
        let server = ApiServer::start(config).await.expect("the server starts");
        let pki = folder.path().join("pki");
        let certificates = Certificates::open(&pki, &[], Timestamp::now()).expect("the server has made them");
        Self {
            address: server.address(),
            certificates,
            server,
            _folder: folder,
        }
    }

    async fn connect(&self, identity: Option<&Identity>, protocol: &[u8]) -> Connection {
        let mut roots = RootCertStore::empty();
        roots
            .add(self.certificates.authority.certificate().clone())
            .expect("an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring speaks them")
            .with_root_certificates(roots);
        let mut config = match identity {
            Some(identity) => builder
                .with_client_auth_cert(vec![identity.certificate().clone()], identity.key())
                .expect("a certificate and its key"),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.address).await.expect("the listener listens");
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .expect("a handshake")
    }

    async fn admin(&self) -> Connection {
        self.connect(Some(&self.certificates.admin), b"http/1.1").await
    }

    /// Sends bytes as the administrator; the first line of what comes back, if anything does.
    async fn says(&self, request: &[u8]) -> String {
        let mut connection = self.admin().await;
        let _ = connection.write_all(request).await;
        first_line(&mut connection).await
    }

    /// Somebody else asks for something, and gets it.
    async fn answers_others(&self) {
        let asked = self.says(b"GET /api/v1/namespaces/default HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let line = timeout(SOON, asked).await.expect("others are answered in time");
        assert_eq!(line, "HTTP/1.1 200 OK");
    }

    async fn close(self) {
        self.answers_others().await;
        self.server.stop(Duration::from_secs(1)).await;
    }
}

async fn first_line(connection: &mut Connection) -> String {
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    while !seen.contains(&b'\n') {
        match timeout(SOON, connection.read(&mut piece)).await {
            Ok(Ok(count)) if count > 0 => seen.extend_from_slice(&piece[..count]),
            _ => break,
        }
    }
    let text = String::from_utf8_lossy(&seen).into_owned();
    text.lines().next().unwrap_or_default().trim_end().to_owned()
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("it has a line on it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// A write of this body to the secrets of the default namespace.
fn post(content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /api/v1/namespaces/default/secrets HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let door = Door::open().await;
    let large = format!(
        "{{\"metadata\":{{\"name\":\"a\"}},\"stringData\":{{\"a\":\"{}\"}}}}",
        "x".repeat(3 << 20)
    );
    let line = door.says(&post("application/json", large.as_bytes())).await;
    assert_eq!(line, "HTTP/1.1 413 Payload Too Large");
    door.close().await;
}

#[tokio::test]
async fn a_body_without_an_end_is_cut_off() {
    let door = Door::open().await;
    let before = resident();
    let mut connection = door.admin().await;
    let head = "POST /api/v1/namespaces/default/secrets HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes()).await.expect("a head is taken");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    // Far more than it may keep; it stops taking them long before.
    for _ in 0..2000 {
        match timeout(Duration::from_secs(2), connection.write_all(chunk.as_bytes())).await {
            Ok(Ok(())) => {}
            _ => break,
        }
    }
    door.answers_others().await;
    assert!(resident().saturating_sub(before) < ROOM);
    door.close().await;
}

#[tokio::test]
async fn deep_nesting_is_refused_in_every_language() {
    let door = Door::open().await;
    for depth in [200, 100_000, 1_000_000] {
        let json = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let braces = depth.min(400_000);
        let objects = format!("{}1{}", "{\"a\":".repeat(braces), "}".repeat(braces));
        let yaml = "- ".repeat(depth);
        for (content_type, body) in [
            ("application/json", &json),
            ("application/json", &objects),
            ("application/yaml", &yaml),
            ("application/yaml", &json),
        ] {
            let line = door.says(&post(content_type, body.as_bytes())).await;
            assert_eq!(line, "HTTP/1.1 400 Bad Request", "{content_type} {depth}");
        }
    }
    // Messages within messages.
    let mut nested = Vec::new();
    for _ in 0..2000 {
        let mut outer = vec![0x0a];
        let mut length = nested.len();
        while length >= 0x80 {
            outer.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
            length >>= 7;
        }
        outer.push(u8::try_from(length).expect("seven bits"));
        outer.append(&mut nested);
        nested = outer;
    }
    let body = [b"k8s\0".as_slice(), &nested].concat();
    let line = door.says(&post("application/vnd.kubernetes.protobuf", &body)).await;
    assert_eq!(line, "HTTP/1.1 400 Bad Request");
    door.close().await;
}

#[tokio::test]
async fn yaml_that_multiplies_itself_is_refused() {
    let door = Door::open().await;
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let one = format!("*a{},", level - 1);
        let ten = one.repeat(10);
        writeln!(bomb, "a{level}: &a{level} [{}]", ten.trim_end_matches(',')).unwrap();
    }
    let before = resident();
    let line = door.says(&post("application/yaml", bomb.as_bytes())).await;
    assert_eq!(line, "HTTP/1.1 400 Bad Request");
    assert!(resident().saturating_sub(before) < ROOM);
    door.close().await;
}

#[tokio::test]
async fn slow_heads_and_slow_bodies_delay_nobody() {
    let door = Door::open().await;
    let before = resident();
    let mut slow = Vec::new();
    for number in 0..100 {
        let mut connection = door.admin().await;
        let start: &[u8] = if number % 2 == 0 {
            b"GET / HTTP/1.1\r\nx-slow: "
        } else {
            b"POST /api/v1/namespaces/default/secrets HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 3000000\r\n\r\n{"
        };
        connection.write_all(start).await.expect("a beginning is taken");
        slow.push(connection);
    }
    for _ in 0..5 {
        for connection in &mut slow {
            connection.write_all(b"a").await.expect("so is one byte more");
        }
        door.answers_others().await;
    }
    assert!(resident().saturating_sub(before) < ROOM);
    drop(slow);
    door.close().await;
}

#[tokio::test]
async fn clients_that_leave_halfway_leave_nothing_behind() {
    let door = Door::open().await;
    for _ in 0..50 {
        let mut connection = door.admin().await;
        let request = post("application/json", &[b'x'; 5000]);
        connection.write_all(&request[..1000]).await.expect("a part is taken");
        connection
            .get_mut()
            .0
            .shutdown()
            .await
            .expect("it closes its half without a word of TLS");
        let mut closed = door.admin().await;
        closed
            .write_all(b"GET /api HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .expect("a request is taken");
        closed.shutdown().await.expect("it closes its half in due form");
    }
    // Some never finish their handshake.
    for _ in 0..50 {
        let mut stream = TcpStream::connect(door.address).await.expect("the listener listens");
        stream
            .write_all(&[0x16, 0x03, 0x01, 0x40, 0x00, 0x01])
            .await
            .expect("a beginning is taken");
    }
    // And some take this for another kind of server.
    let mut plain = TcpStream::connect(door.address).await.expect("the listener listens");
    plain
        .write_all(b"GET /api HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("bytes are taken");
    let mut answer = Vec::new();
    let _ = timeout(SOON, plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
    door.close().await;
}

#[tokio::test]
async fn requests_that_are_none_are_refused() {
    let door = Door::open().await;
    let many = format!("GET /api HTTP/1.1\r\nhost: x\r\n{}\r\n", "x-h: 1\r\n".repeat(2000));
    let long = format!(
        "GET /api HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n",
        "y".repeat(1 << 20)
    );
    let path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "z".repeat(200_000));
    let requests: [&[u8]; 12] = [
        many.as_bytes(),
        long.as_bytes(),
        path.as_bytes(),
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /api HTTP/9.9\r\n\r\n",
        b"GET /api HTTP/1.1\r\nhost: x\r\nbad\0header: 1\r\n\r\n",
        b"GET /api HTTP/1.1\r\nhost: x\r\n folded: 1\r\n\r\n",
        b"POST /api/v1/namespaces/default/secrets HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}",
        b"POST /api/v1/namespaces/default/secrets HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n{}",
        b"POST /api/v1/namespaces/default/secrets HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"POST /api/v1/namespaces/default/secrets HTTP/1.1\r\nhost: x\r\ntransfer-encoding: nonsense\r\n\r\n{}",
    ];
    for request in requests {
        let line = door.says(request).await;
        let shown = String::from_utf8_lossy(&request[..request.len().min(60)]).into_owned();
        assert!(line.is_empty() || line.starts_with("HTTP/1.1 4"), "{shown:?}: {line}");
    }
    door.close().await;
}

#[tokio::test]
async fn bad_tokens_open_nothing() {
    let door = Door::open().await;
    let key = door.certificates.service_account_key.pkcs8();
    let issuer = "https://kubernetes.default.svc.cluster.local";
    let tokens = ServiceAccountTokens::new(issuer, &[issuer], key).expect("the server's own key");
    let now = Timestamp::now();
    let day = SignedDuration::from_hours(24);
    let expired = tokens.issue(Bound::default(), &[issuer.to_owned()], now - day - day, now - day, "id");
    let future = tokens.issue(Bound::default(), &[issuer.to_owned()], now + day, now + day + day, "id");
    let nobody = tokens.issue(Bound::default(), &[issuer.to_owned()], now, now + day, "id");
    let long = "x".repeat(60_000);
    let bad = [
        expired.as_str(),
        &future,
        &nobody,
        "nonsense",
        "a.b.c",
        "eyJhbGciOiJub25lIn0.e30.",
        &long,
        "",
    ];
    for token in bad {
        let mut connection = door.connect(None, b"http/1.1").await;
        let request = format!("GET /api/v1/namespaces HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
        connection
            .write_all(request.as_bytes())
            .await
            .expect("a request is taken");
        let line = first_line(&mut connection).await;
        assert_eq!(line, "HTTP/1.1 401 Unauthorized", "{}", &token[..token.len().min(20)]);
    }
    door.close().await;
}

#[tokio::test]
async fn wrong_certificates_open_nothing() {
    let door = Door::open().await;
    let now = Timestamp::now();
    let day = SignedDuration::from_hours(24);
    let foreign = Certificates::ephemeral(&[], now).expect("certificates can be made");
    let jane = ClientName {
        user: "kubernetes-admin".to_owned(),
        group: Some("system:masters".to_owned()),
    };
    let expired = door
        .certificates
        .authority
        .client(&jane, now - day - day, now - day)
        .expect("it signs");
    for identity in [&foreign.admin, &expired, &door.certificates.server] {
        let mut connection = door.connect(Some(identity), b"http/1.1").await;
        connection
            .write_all(b"GET /api/v1/namespaces HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .expect("a request is taken");
        assert_eq!(first_line(&mut connection).await, "HTTP/1.1 401 Unauthorized");
    }
    door.close().await;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// GET /api, in HPACK: three names of the static table and two literals.
const GET: &[u8] = &[0x82, 0x87, 0x04, 0x04, b'/', b'a', b'p', b'i', 0x01, 0x01, b'x'];

#[tokio::test]
async fn oddities_of_http_2_harm_nobody() {
    let door = Door::open().await;
    let before = resident();
    let rapid_resets: Vec<u8> = (0..20_000_u32)
        .flat_map(|number| {
            [
                frame(1, 5, number * 2 + 1, GET),
                frame(3, 0, number * 2 + 1, &8_u32.to_be_bytes()),
            ]
            .concat()
        })
        .collect();
    let endless_head: Vec<u8> = [frame(1, 0, 1, GET), frame(9, 0, 1, &[0x00; 16_000]).repeat(500)].concat();
    let floods = [
        rapid_resets,
        endless_head,
        frame(6, 0, 0, &[0; 8]).repeat(50_000),
        frame(4, 0, 0, &[]).repeat(50_000),
        frame(2, 0, 1, &[0, 0, 0, 1, 5]).repeat(10_000),
        frame(8, 0, 0, &0x7fff_ffff_u32.to_be_bytes()).repeat(3),
        frame(0, 0, 0, b"data on no stream"),
        frame(1, 4, 2, GET),
        frame(5, 4, 1, &[0, 0, 0, 2]),
        vec![0xff; 100_000],
        frame(1, 5, 1, &[0xff; 4000]),
        frame(4, 0, 0, &[0, 1, 0xff, 0xff, 0xff, 0xff, 0, 4, 0xff, 0xff, 0xff, 0xff]),
    ];
    for flood in floods {
        let mut connection = door.connect(Some(&door.certificates.admin), b"h2").await;
        let pushed = async {
            let _ = connection.write_all(PREFACE).await;
            let _ = connection.write_all(&flood).await;
            let _ = connection.flush().await;
        };
        let _ = timeout(Duration::from_secs(5), pushed).await;
        door.answers_others().await;
    }
    assert!(
        resident().saturating_sub(before) < ROOM,
        "{} MB",
        (resident() - before) >> 20
    );
    door.close().await;
}

#[tokio::test]
async fn more_requests_than_streams_on_one_connection_are_all_answered_or_refused() {
    let door = Door::open().await;
    let mut connection = door.connect(Some(&door.certificates.admin), b"h2").await;
    connection.write_all(PREFACE).await.expect("a preface is taken");
    for number in 0..2000_u32 {
        if connection.write_all(&frame(1, 5, number * 2 + 1, GET)).await.is_err() {
            break;
        }
    }
    door.answers_others().await;
    door.close().await;
}

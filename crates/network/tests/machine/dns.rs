//! The name server, asked from pods and from the machine.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinEncodable};
use moorline_network::dns::{DnsConfig, DnsServer, HeadlessEndpoint, Names, ServiceAddresses, ServiceNames};
use moorline_network::{Error, Ranges};

use crate::harness::{Instance, node, pod};

fn question(name: &str, kind: RecordType, edns: bool) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    if edns {
        let mut edns = Edns::new();
        edns.set_max_payload(1232);
        message.edns = Some(edns);
    }
    message
}

fn by_udp(server: SocketAddr, question: &Message) -> std::io::Result<Message> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(8)))?;
    socket.send_to(&question.to_bytes().unwrap(), server)?;
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer)?;
    Ok(Message::from_bytes(&buffer[..length]).unwrap())
}

fn by_tcp(server: SocketAddr, question: &Message) -> std::io::Result<Message> {
    let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(3))?;
    let bytes = question.to_bytes().unwrap();
    stream.write_all(&u16::try_from(bytes.len()).unwrap().to_be_bytes())?;
    stream.write_all(&bytes)?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    Ok(Message::from_bytes(&answer).unwrap())
}

fn texts(message: &Message) -> Vec<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

fn names(ranges: &Ranges) -> Arc<Names> {
    Arc::new(Names::new(
        "cluster.local",
        [ranges.pods().into(), ranges.services().into()],
    ))
}

fn headless(addresses: impl IntoIterator<Item = Ipv4Addr>) -> ServiceNames {
    let endpoint = |address: Ipv4Addr| HeadlessEndpoint {
        address: IpAddr::V4(address),
        hostname: None,
        ports: vec![],
    };
    ServiceNames {
        namespace: "shop".into(),
        name: "db".into(),
        addresses: ServiceAddresses::Headless(addresses.into_iter().map(endpoint).collect()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_and_the_machine_are_answered_by_udp_and_tcp_and_a_node_that_is_cut_off_is_not() {
    let Some(instance) = Instance::new() else { return };
    let address = instance.pod("a", "n1").address;
    let names = names(&instance.ranges());
    names.set_service(&headless([address]));
    let server = DnsServer::start(DnsConfig::of(&instance.ranges(), []), names.clone())
        .await
        .unwrap();
    let at = server.address();
    assert_eq!(at, SocketAddr::new(instance.ranges().dns_address().into(), 53));
    let asked = question("db.shop.svc.cluster.local.", RecordType::A, true);

    for answer in [
        by_udp(at, &asked).unwrap(),
        by_tcp(at, &asked).unwrap(),
        instance.inside(&pod("a"), || by_udp(at, &asked)).unwrap().unwrap(),
        instance.inside(&pod("a"), || by_tcp(at, &asked)).unwrap().unwrap(),
    ] {
        assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
        assert!(answer.metadata.authoritative);
        assert_eq!(texts(&answer), [address.to_string()]);
        assert!(answer.answers[0].ttl <= 30);
    }
    let other = Ipv4Addr::new(10, 1, 2, 3);
    names.set_service(&headless([other]));
    assert_eq!(
        texts(&by_udp(at, &asked).unwrap()),
        [other.to_string()],
        "a change is seen at once"
    );

    instance.partition(&node("n1")).unwrap();
    let cut = instance.inside(&pod("a"), || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let _ = socket.send_to(&asked.to_bytes().unwrap(), at);
        socket.recv(&mut [0; 512])
    });
    assert!(cut.unwrap().is_err());
    assert!(by_udp(at, &asked).is_ok());
    server.stop().await;
    assert!(by_tcp(at, &asked).is_err());
}

/// A server on the machine's loopback, for what needs no pods.
async fn on_loopback(upstream: Vec<SocketAddr>, allowed: &str, domain: &str) -> (DnsServer, Arc<Names>) {
    let config = DnsConfig {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        allowed: vec![allowed.parse().unwrap()],
        upstream,
    };
    let names = Arc::new(Names::new(domain, ["10.0.0.0/8".parse().unwrap()]));
    (DnsServer::start(config, names.clone()).await.unwrap(), names)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_not_there_and_a_type_that_is_not_there_differ_and_both_name_the_authority() {
    let (server, names) = on_loopback(vec![], "127.0.0.0/8", "cluster.local").await;
    names.set_service(&headless([Ipv4Addr::new(10, 1, 2, 3)]));
    let no_name = by_udp(
        server.address(),
        &question("x.shop.svc.cluster.local.", RecordType::A, false),
    )
    .unwrap();
    let no_type = by_udp(
        server.address(),
        &question("db.shop.svc.cluster.local.", RecordType::AAAA, false),
    )
    .unwrap();
    let elsewhere = by_udp(server.address(), &question("example.org.", RecordType::A, false)).unwrap();
    assert_eq!(no_name.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(no_type.metadata.response_code, ResponseCode::NoError);
    assert_eq!(
        elsewhere.metadata.response_code,
        ResponseCode::NXDomain,
        "nobody to ask"
    );
    for answer in [&no_name, &no_type] {
        assert!(answer.answers.is_empty());
        assert_eq!(answer.authorities.len(), 1);
        assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
    }
    assert!(no_type.edns.is_none() && elsewhere.authorities.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_long_for_a_datagram_is_cut_and_comes_whole_by_tcp() {
    let (server, names) = on_loopback(vec![], "127.0.0.0/8", "cluster.local").await;
    names.set_service(&headless((0..200).map(|number| Ipv4Addr::new(10, 1, 2, number))));
    let asked = question("db.shop.svc.cluster.local.", RecordType::A, false);
    let cut = by_udp(server.address(), &asked).unwrap();
    assert!(
        cut.metadata.truncation && cut.answers.len() < 200,
        "{}",
        cut.answers.len()
    );
    let whole = by_tcp(server.address(), &asked).unwrap();
    assert_eq!((whole.metadata.truncation, whole.answers.len()), (false, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_comes_first_in_turn() {
    let (server, names) = on_loopback(vec![], "127.0.0.0/8", "cluster.local").await;
    names.set_service(&headless((1..4).map(|number| Ipv4Addr::new(10, 1, 2, number))));
    let asked = question("db.shop.svc.cluster.local.", RecordType::A, true);
    let mut first: Vec<String> = (0..3)
        .map(|_| texts(&by_udp(server.address(), &asked).unwrap()).remove(0))
        .collect();
    first.sort();
    assert_eq!(first, ["10.1.2.1", "10.1.2.2", "10.1.2.3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_names_are_asked_for_upstream_and_so_is_where_an_alias_leads() {
    let (upstream, there) = on_loopback(vec![], "127.0.0.0/8", "example.org").await;
    there.set_service(&headless([Ipv4Addr::new(10, 9, 9, 9)]));
    let (server, names) = on_loopback(vec![upstream.address()], "127.0.0.0/8", "cluster.local").await;
    let target = "db.shop.svc.example.org";
    let alias = ServiceAddresses::External(target.into());
    names.set_service(&ServiceNames {
        namespace: "shop".into(),
        name: "out".into(),
        addresses: alias,
    });

    let forwarded = by_udp(
        server.address(),
        &question("db.shop.svc.example.org.", RecordType::A, true),
    )
    .unwrap();
    assert_eq!(texts(&forwarded), ["10.9.9.9"]);
    assert!(!forwarded.metadata.authoritative && forwarded.metadata.recursion_available);
    let aliased = by_udp(
        server.address(),
        &question("out.shop.svc.cluster.local.", RecordType::A, true),
    )
    .unwrap();
    assert_eq!(texts(&aliased), [format!("{target}."), "10.9.9.9".into()]);
    let nobody = by_udp(server.address(), &question("x.svc.example.org.", RecordType::A, true)).unwrap();
    assert_eq!(nobody.metadata.response_code, ResponseCode::NXDomain);
    upstream.stop().await;
    let silent = by_udp(server.address(), &question("new.example.org.", RecordType::A, true)).unwrap();
    assert_eq!(silent.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_refused_and_a_taken_address_is_named() {
    let (server, names) = on_loopback(vec![], "10.0.0.0/8", "cluster.local").await;
    names.set_service(&headless([Ipv4Addr::new(10, 1, 2, 3)]));
    let asked = question("db.shop.svc.cluster.local.", RecordType::A, true);
    let answer = by_udp(server.address(), &asked).unwrap();
    assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
    assert!(answer.answers.is_empty());
    let config = DnsConfig {
        address: server.address(),
        allowed: vec![],
        upstream: vec![],
    };
    let taken = DnsServer::start(config, names).await.err().unwrap();
    assert!(matches!(&taken, Error::DnsBind { .. }), "{taken:?}");
    assert_eq!(
        taken.to_string(),
        format!("cannot start the name server on {}", server.address())
    );
}

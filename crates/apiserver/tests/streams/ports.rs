//! `kubectl port-forward`, and what `kube` makes of it.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
};

use crate::harness::{Cluster, PATIENCE, Running};

/// Sends back what it is told, to everyone at once, until they have no more to say.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    });
    port
}

/// What a client is told to speak: SPDY inside WebSocket, or SPDY alone as older ones do.
const PROTOCOLS: [(&str, &str); 2] = [
    ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "true"),
    ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false"),
];

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_forwarded_port_reach_the_pod() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    let port = echo().await;
    for (name, value) in PROTOCOLS {
        let ports = format!(":{port}");
        let child = cluster
            .kubectl(&["port-forward", "web", &ports])
            .env(name, value)
            .spawn()
            .unwrap();
        let mut forward = Running::of(child);
        let line = forward.line().await;
        let local = line.strip_prefix("Forwarding from 127.0.0.1:").unwrap();
        let local: u16 = local.split(' ').next().unwrap().parse().unwrap();
        let talks = (0..8_u8).map(|number| {
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
                let sent = vec![number; 200_000];
                let (mut reader, mut writer) = stream.split();
                let mut heard = Vec::new();
                let speak = async {
                    writer.write_all(&sent).await.unwrap();
                    writer.shutdown().await.unwrap();
                };
                let talk = async { tokio::join!(speak, reader.read_to_end(&mut heard)).1.unwrap() };
                let length = tokio::time::timeout(PATIENCE, talk).await.expect("an answer in time");
                assert!(heard == sent, "{length} bytes came back");
            })
        });
        for talk in talks.collect::<Vec<_>>() {
            talk.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_nobody_listens_on_is_told() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    // Taken, so that nobody else gets it, and not listened on.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let ports = format!(":{port}");
    let mut forward = Running::of(cluster.kubectl(&["port-forward", "web", &ports]).spawn().unwrap());
    let line = forward.line().await;
    let local = line.strip_prefix("Forwarding from 127.0.0.1:").unwrap();
    let local: u16 = local.split(' ').next().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
    stream.write_all(b"anyone?").await.unwrap();
    let mut heard = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard)).await;
    let _ = closed.expect("the connection is closed in time");
    assert_eq!(heard, b"");
    let told = forward.error_with("error forwarding port").await;
    assert!(told.contains("refused"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kube_client_forwards_by_channels() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    let port = echo().await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.socket_client().await);
    let mut forwarder = pods.portforward("web", &[port]).await.unwrap();
    let mut stream = forwarder.take_stream(port).unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
}

//! HTTP through the server to a pod and to a service.

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, api::PostParams};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
};

use crate::harness::Cluster;

/// A web server that answers every request with what it was asked.
async fn mirror() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                if head.starts_with("GET /moved") {
                    let answer = "HTTP/1.1 302 Found\r\nLocation: /there?a=b\r\nContent-Length: 0\r\n\r\n";
                    return stream.write_all(answer.as_bytes()).await.unwrap();
                }
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nAccess-Control-Allow-Origin: *\r\n\
                     Content-Length: {}\r\n\r\n{head}",
                    head.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    port
}

/// A pod that listens on `port`, as far as its status says.
async fn with_pod(port: u16) -> Cluster {
    let cluster = Cluster::start().await;
    let status = json!({ "phase": "Running", "podIP": "10.1.2.3", "podIPs": [{ "ip": "10.1.2.3" }] });
    cluster.pod_with("web", &["app"], status).await;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4", "ports": [{ "name": "http", "port": port }],
        "endpoints": [
            { "addresses": ["10.1.2.3"], "targetRef": { "kind": "Pod", "namespace": "default", "name": "web" } },
            { "addresses": ["10.9.9.9"], "targetRef": { "kind": "Pod", "namespace": "default", "name": "web" } },
        ],
    }))
    .unwrap();
    let slices: Api<EndpointSlice> = Api::default_namespaced(cluster.client());
    slices.create(&PostParams::default(), &slice).await.unwrap();
    let service = json!({ "metadata": { "name": "web" }, "spec": { "ports": [{ "name": "http", "port": 80 }] } });
    let service: Service = serde_json::from_value(service).unwrap();
    let services: Api<Service> = Api::default_namespaced(cluster.client());
    services.create(&PostParams::default(), &service).await.unwrap();
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_reaches_the_pod_with_its_path_and_query() {
    let port = mirror().await;
    let cluster = with_pod(port).await;
    let path = format!("/api/v1/namespaces/default/pods/web:{port}/proxy/some/page%20one/?q=1");
    let heard = cluster.ok(&["get", "--raw", &path]).await;
    assert!(heard.starts_with("GET /some/page%20one/?q=1 HTTP/1.1\r\n"), "{heard}");
    assert!(heard.contains(&format!(
        "x-forwarded-uri: /api/v1/namespaces/default/pods/web:{port}/proxy/some/page%20one/\r\n"
    )));
    assert!(heard.contains("x-forwarded-for: 127.0.0.1\r\n"), "{heard}");
    assert!(!heard.to_ascii_lowercase().contains("authorization"), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_reached_through_its_endpoints_that_are_pods() {
    let port = mirror().await;
    let cluster = with_pod(port).await;
    for id in ["web:80", "web:http", "http:web:http"] {
        let path = format!("/api/v1/namespaces/default/services/{id}/proxy/x");
        let heard = cluster.ok(&["get", "--raw", &path]).await;
        assert!(heard.starts_with("GET /x HTTP/1.1\r\n"), "{id}: {heard}");
    }
    for (id, complaint) in [
        ("web:81", "no service port 81 found for service \"web\""),
        ("web:other", "no endpoints available for service \"web:other\""),
        ("ftp:web:80", "invalid service request \"ftp:web:80\""),
        ("none:80", "services \"none\" not found"),
    ] {
        let stderr = cluster
            .fails(&[
                "get",
                "--raw",
                &format!("/api/v1/namespaces/default/services/{id}/proxy/"),
            ])
            .await;
        assert!(stderr.contains(complaint), "{id}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_lead_back_through_the_proxy() {
    let port = mirror().await;
    let cluster = with_pod(port).await;
    let client = cluster.socket_client().await;
    let get = async |path: &str| {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        client.send(request.map(kube::client::Body::from)).await.unwrap()
    };
    let base = format!("/api/v1/namespaces/default/pods/web:{port}/proxy");
    let moved = get(&format!("{base}/moved")).await;
    assert_eq!(moved.status(), 302);
    assert_eq!(moved.headers()["location"], format!("{base}/there?a=b"));
    let root = get(&base).await;
    assert_eq!(root.status(), 301);
    assert_eq!(root.headers()["location"], format!("{base}/"));
    let options = http::Request::options(format!("{base}/x")).body(Vec::new()).unwrap();
    let options = client.send(options.map(kube::client::Body::from)).await.unwrap();
    assert_eq!(options.status(), 200, "what may be asked is for the pod to say");
    let page = get(&format!("{base}/")).await;
    assert_eq!(page.status(), 200);
    assert!(!page.headers().contains_key("access-control-allow-origin"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_does_not_answer_is_unavailable() {
    // Taken, so that nobody else gets it, and not listened on.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let free = taken.local_addr().unwrap().port();
    let cluster = with_pod(free).await;
    let path = format!("/api/v1/namespaces/default/pods/web:{free}/proxy/");
    let stderr = cluster.fails(&["get", "--raw", &path]).await;
    assert!(stderr.contains("error trying to reach service"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_its_health_and_its_pods() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    assert_eq!(
        cluster.ok(&["get", "--raw", "/api/v1/nodes/n1/proxy/healthz"]).await,
        "ok"
    );
    let pods = cluster.ok(&["get", "--raw", "/api/v1/nodes/n1/proxy/pods"]).await;
    let pods: serde_json::Value = serde_json::from_str(&pods).unwrap();
    assert_eq!(pods["items"][0]["metadata"]["name"], "web");
    let stderr = cluster.fails(&["get", "--raw", "/api/v1/nodes/n2/proxy/healthz"]).await;
    assert!(stderr.contains("nodes \"n2\" not found"), "{stderr}");
}

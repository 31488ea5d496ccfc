//! Traces, as a collector sees them that speaks the real protocol on a real socket.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Api, api::PostParams};
use moorline_runtime::{Manager, Options, Settings, Telemetry};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, common::v1::any_value, trace::v1::Span,
};
use prost::Message as _;
use tokio::{net::TcpListener, sync::oneshot};

use crate::{
    managers::{Signed, quiet},
    scene::{Page, eventually, page, server},
};

/// Takes what is exported to it.
#[derive(Clone)]
struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let collector = Self {
            address: listener.local_addr().expect("it is bound"),
            spans: Arc::default(),
        };
        let listening = collector.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let collector = listening.clone();
                let take = service_fn(move |request| collector.clone().take(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), take));
            }
        });
        collector
    }

    async fn take(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        assert_eq!(request.uri().path(), "/v1/traces");
        assert_eq!(request.headers()["content-type"], "application/x-protobuf");
        let body = request
            .into_body()
            .collect()
            .await
            .expect("it arrives whole")
            .to_bytes();
        let export = ExportTraceServiceRequest::decode(body).expect("it is what it says");
        let scopes = export.resource_spans.into_iter().flat_map(|spans| spans.scope_spans);
        let mut spans = self.spans.lock().expect("nothing panics while it holds this");
        spans.extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(Full::default()))
    }
}

fn attribute<'s>(span: &'s Span, name: &str) -> Option<&'s str> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text),
        _ => None,
    }
}

#[tokio::test]
async fn a_collector_that_is_named_sees_each_reconcile_by_its_id_with_its_steps() {
    let collector = Collector::start().await;
    let endpoint = format!("http://{}/v1/traces", collector.address);
    let options = Options {
        trace_endpoint: Some(endpoint.parse().unwrap()),
        log_level: "off".to_owned(),
        ..quiet()
    };
    let telemetry = Telemetry::begin(&options).unwrap();
    let (_server, client) = server().await;
    let manager = Manager::new(client.clone(), options, Settings::default()).controller("pages", Signed);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(manager.run(async { drop(stopped.await) }));
    let pages: Api<Page> = Api::default_namespaced(client);
    let traced = page("traced", "one", 0);
    pages.create(&PostParams::default(), &traced).await.unwrap();
    eventually("it works", || async {
        pages.get("traced").await.ok().filter(Page::is_ready)
    })
    .await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(10), telemetry.end())
        .await
        .unwrap();

    let spans = collector.spans.lock().unwrap().clone();
    let first = spans
        .iter()
        .find(|span| span.name == "reconcile" && attribute(span, "object") == Some("default/traced"));
    let first = first.unwrap_or_else(|| panic!("no reconcile of it is in {spans:#?}"));
    assert_eq!(attribute(first, "controller"), Some("signed"));
    let id = attribute(first, "reconcile").unwrap();
    assert!(uuid::Uuid::parse_str(id).is_ok(), "{id}");
    let verbs: Vec<&str> = spans
        .iter()
        .filter(|span| span.name == "step" && span.parent_span_id == first.span_id && span.trace_id == first.trace_id)
        .filter_map(|step| attribute(step, "verb"))
        .collect();
    assert!(verbs.contains(&"apply") && verbs.contains(&"status"), "{verbs:?}");
}

//! `/healthz`, `/readyz` and `/metrics`.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// What is served where.
#[derive(Clone)]
pub(crate) enum Pages {
    /// Health and readiness; the function tells what is not ready.
    Health(Arc<dyn Fn() -> Result<(), String> + Send + Sync>),
    Metrics(Box<Metrics>),
}

/// Listens, and serves for as long as the future is polled.
pub(crate) async fn serve(listener: TcpListener, pages: Pages) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let answer = answer(&request, &pages);
                async move { Ok::<_, Infallible>(answer) }
            });
            // A client that goes away in the middle is its own affair.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}

pub(crate) async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

fn answer(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
    let (status, kind, body) = match (request.uri().path(), pages) {
        ("/healthz" | "/livez", Pages::Health(_)) => (StatusCode::OK, "text/plain", "ok".to_owned()),
        ("/readyz", Pages::Health(ready)) => match ready() {
            Ok(()) => (StatusCode::OK, "text/plain", "ok".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", why),
        },
        ("/metrics", Pages::Metrics(metrics)) => (
            StatusCode::OK,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            metrics.to_text(),
        ),
        _ => (StatusCode::NOT_FOUND, "text/plain", "not found".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

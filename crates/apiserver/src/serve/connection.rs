//! One connection, from handshake to goodbye.

use std::{convert::Infallible, net::SocketAddr, panic::AssertUnwindSafe, pin::pin, sync::Arc};

use futures_util::FutureExt as _;
use http::{HeaderValue, Request, Response, header};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use moorline_machinery::status::ApiError;
use tokio::net::TcpStream;

use super::{
    Limits, Peer, Stopping, Tls,
    activity::{Activity, Outgoing, until_done},
    compress::{accepts_gzip, compress},
};
use crate::body::Body;

/// What every connection is served by.
pub(super) struct Serve<H> {
    pub(super) tls: Tls,
    pub(super) limits: Limits,
    pub(super) handler: H,
    pub(super) stopping: Stopping,
}

impl<H, F> Serve<H>
where
    H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    /// Serves a client until it leaves, does nothing for too long, or the server stops.
    pub(super) async fn connection(self: Arc<Self>, stream: TcpStream, address: SocketAddr) {
        let limits = self.limits;
        // Answers are small and awaited; the kernel must not hold them back.
        let _ = stream.set_nodelay(true);
        let mut stopping = self.stopping.clone();
        let stream = tokio::select! {
            stream = self.tls.accept(stream, limits.handshake) => stream,
            () = stopping.wait() => None,
        };
        let Some(stream) = stream else { return };
        let (_, session) = stream.get_ref();
        let http2 = session.alpn_protocol() == Some(b"h2");
        let peer = Peer {
            address,
            certificate: self.tls.judge(session.peer_certificates()),
        };
        let activity = Activity::new(limits.first_request, limits.idle);
        let service = {
            let activity = Arc::clone(&activity);
            let serve = Arc::clone(&self);
            service_fn(move |request| {
                let busy = activity.begin();
                let (serve, peer) = (Arc::clone(&serve), peer.clone());
                async move {
                    let stopping = serve.stopping.clone();
                    let response = serve.answer(request, peer).await;
                    Ok::<_, Infallible>(response.map(|body| Outgoing::new(body, busy, stopping)))
                }
            })
        };
        let cue = async {
            tokio::select! {
                () = stopping.wait() => {}
                () = activity.idle() => {}
            }
        };
        let io = TokioIo::new(stream);
        let result = if http2 {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(limits.streams)
                .max_header_list_size(u32::from(limits.head_bytes))
                .initial_stream_window_size(256 << 10)
                .initial_connection_window_size(1 << 20)
                .keep_alive_interval(limits.ping_every)
                .keep_alive_timeout(limits.ping_every)
                .serve_connection(io, service);
            until_done(pin!(connection), http2::Connection::graceful_shutdown, cue, &activity).await
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.idle)
                .max_buf_size(usize::from(limits.head_bytes).max(8192))
                .serve_connection(io, service)
                .with_upgrades();
            until_done(
                pin!(connection),
                http1::UpgradeableConnection::graceful_shutdown,
                cue,
                &activity,
            )
            .await
        };
        if let Some(Err(error)) = result {
            tracing::debug!(%error, %address, "a connection broke");
        }
    }

    async fn answer(&self, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
        request.extensions_mut().insert(self.stopping.clone());
        let accepted = accepts_gzip(request.headers());
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match AssertUnwindSafe((self.handler)(request, peer)).catch_unwind().await {
            Ok(response) if accepted => compress(response).await,
            Ok(response) => response,
            Err(_) => {
                // What it panicked with has gone to the panic hook; it may name things that are nobody's business.
                tracing::error!(%method, path, "a request caused a panic");
                panicked()
            }
        }
    }
}

fn panicked() -> Response<Body> {
    let error = ApiError::internal("the request caused a panic in the server, whose log tells more");
    let mut response = Response::new(Body::whole(error.status().to_value().to_string()));
    *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

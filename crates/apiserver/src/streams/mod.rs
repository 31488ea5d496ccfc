//! Into running pods: logs, commands, terminals, forwarded ports and proxied requests.
//!
//! ```text
//!   kubectl ─► log ────────► text, chunk by chunk ──┐
//!           ─► exec, attach ► WebSocket or SPDY ────┤
//!           ─► portforward ─► WebSocket, SPDY, ─────┼─► PodAccess: whoever runs the pods
//!           ─► proxy ──────── or one in the other ──┤
//!           ─► top ─────────► HTTP ─────────────────┘
//! ```
//!
//! Guarantees: who may get in is decided before anything is reached; every connection has a place, of which there are
//! only so many, and ends when its client leaves, when nothing is said for hours, or when the server stops; a client
//! that does not read holds up what it reads from, and nothing piles up in between.
//!
//! Assumes: someone implements [`PodAccess`] and is made known by `set_pod_access`; until then the server answers as
//! one whose nodes cannot be reached.

pub mod access;
mod connect;
mod exec;
mod log;
pub(crate) mod metrics;
mod multiplex;
mod pod;
mod port_forward;
mod proxy;
mod spdy;
mod upgrade;
mod websocket;

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

pub use access::PodAccess;
use bytes::Bytes;
use http::{Response, request::Parts};
use http_body_util::combinators::UnsyncBoxBody;
use moorline_machinery::status::ApiError;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    auth::{Action, ResourceAction, User},
    body::Body,
    core::Core,
    path::{ResourcePath, Verb},
    query::Query,
    resource::Registry,
};
use access::AccessError;
use exec::Act;

/// Connections that may reach into pods at once.
const PLACES: u32 = 1024;

/// How long a client may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(3);

/// The way into pods.
pub(crate) struct Streams {
    access: RwLock<Option<Arc<dyn PodAccess>>>,
    places: Arc<Semaphore>,
}

impl Streams {
    /// No way yet.
    pub(crate) fn new() -> Self {
        Self {
            access: RwLock::new(None),
            places: Arc::new(Semaphore::new(PLACES as usize)),
        }
    }

    /// From now on pods are reached through `access`, and what they use is served.
    pub(crate) fn set_access(&self, access: Arc<dyn PodAccess>, registry: &Registry) {
        let before = self
            .access
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(access);
        if before.is_none() {
            registry.change(|_| false, &metrics::resource_types());
        }
    }

    /// Whoever runs pods.
    pub(crate) fn access(&self) -> Result<Arc<dyn PodAccess>, ApiError> {
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        access
            .clone()
            .ok_or_else(|| AccessError::Unreachable("no kubelet is connected to this server".to_owned()).into())
    }

    /// A place for one more connection.
    fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let why = format!("all {PLACES} connections into pods are taken, please try again later");
            ApiError::too_many_requests(why, 1)
        })
    }

    /// Waits until every connection has ended, for a while.
    pub(crate) async fn ended(&self) {
        let _ = timeout(GOODBYE, self.places.acquire_many(PLACES)).await;
    }
}

/// A request into a pod, understood and permitted.
pub(crate) struct StreamCall<'c> {
    pub(crate) core: &'c Arc<Core>,
    pub(crate) user: &'c User,
    pub(crate) path: &'c ResourcePath,
    pub(crate) query: &'c Query,
    pub(crate) parts: Parts,
    pub(crate) body: RequestBody,
}

/// The body of a request, as it comes.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

impl StreamCall<'_> {
    /// Whoever takes part in a process or reaches a port changes something, also when the request is a GET, as all are
    /// over WebSocket.
    fn permit_create(&self) -> Result<(), ApiError> {
        let action = Action::from(ResourceAction::of(Verb::Create, self.path));
        self.core.authorizer.permit(self.user, &action)
    }
}

/// Whether a path leads into a pod.
pub(crate) fn leads_into_a_pod(path: &ResourcePath) -> bool {
    path.group.is_empty()
        && matches!(
            (path.resource.as_str(), path.subresource.as_str()),
            ("pods", "log" | "exec" | "attach" | "portforward" | "proxy") | ("services" | "nodes", "proxy")
        )
}

/// Answers a request that leads into a pod.
pub(crate) async fn answer(call: StreamCall<'_>) -> Result<Response<Body>, ApiError> {
    if call.path.subresource != "log" {
        connect::admit(call.core, call.user, call.path, call.query, &call.parts.headers).await?;
    }
    match call.path.subresource.as_str() {
        "log" => log::answer(call).await,
        "exec" => {
            let command = call.query.all("command").map(str::to_owned).collect();
            exec::answer(call, Act::Exec(command))
        }
        "attach" => exec::answer(call, Act::Attach),
        "portforward" => port_forward::answer(call),
        "proxy" => proxy::answer(call).await,
        _ => Err(ApiError::path_not_found()),
    }
}

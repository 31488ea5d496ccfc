//! The way between a client and the server, with accidents on it.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use moorline_apiserver::service::ApiService;
use tokio::sync::watch;
use tower_service::Service;

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What happens to the `nth` write that comes along, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accident {
    None,
    /// The process dies after the write took effect; nothing it sends later arrives.
    Crash {
        nth: usize,
    },
    /// The write takes effect and the answer is lost.
    LostAnswer {
        nth: usize,
    },
    /// The write does not arrive.
    LostRequest {
        nth: usize,
    },
    /// Somebody else was faster.
    Conflict {
        nth: usize,
    },
}

/// A client's way to the server. Clones are the same way.
#[derive(Clone)]
pub(crate) struct Wire {
    inner: ApiService,
    accident: Accident,
    writes: Arc<AtomicUsize>,
    log: Arc<Mutex<Vec<String>>>,
    reads: Arc<Mutex<Vec<String>>>,
    crashed: watch::Sender<bool>,
    /// The plurals whose watches are held back.
    held: watch::Sender<Vec<&'static str>>,
    cut: watch::Sender<bool>,
    /// Watches opened before the last change of this end as if their version were gone.
    expired: watch::Sender<usize>,
    pages_only: Arc<std::sync::atomic::AtomicBool>,
    lists_fail: Arc<std::sync::atomic::AtomicBool>,
    /// Parts of paths, and how many more requests to them never get an answer.
    swallowed: Arc<Mutex<Vec<(&'static str, usize)>>>,
    /// The plurals that may not be listed or watched.
    forbidden: watch::Sender<Vec<&'static str>>,
    agents: watch::Sender<std::collections::BTreeSet<String>>,
}

impl Wire {
    pub(crate) fn new(inner: ApiService, accident: Accident) -> Self {
        Self {
            inner,
            accident,
            writes: Arc::default(),
            log: Arc::default(),
            reads: Arc::default(),
            crashed: watch::Sender::new(false),
            held: watch::Sender::new(Vec::new()),
            cut: watch::Sender::new(false),
            expired: watch::Sender::new(0),
            pages_only: Arc::default(),
            lists_fail: Arc::default(),
            swallowed: Arc::default(),
            forbidden: watch::Sender::new(Vec::new()),
            agents: watch::Sender::default(),
        }
    }

    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// How many writes have come along.
    pub(crate) fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    /// The writes that have come along, events left out.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// The paths that were read or watched (`WATCH` before them), in order.
    pub(crate) fn reads(&self) -> Vec<String> {
        self.reads
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// How those who came along called themselves; empty for one who did not.
    pub(crate) fn agents(&self) -> Vec<String> {
        self.agents.borrow().iter().cloned().collect()
    }

    /// Waits for the crash.
    pub(crate) async fn crashed(&self) {
        let mut crashed = self.crashed.subscribe();
        crashed
            .wait_for(|crashed| *crashed)
            .await
            .expect("the sender lives in self");
    }

    /// Holds back what the watches of a kind would tell.
    pub(crate) fn hold(&self, plural: &'static str) {
        self.held.send_modify(|held| held.push(plural));
    }

    /// Lets everything through again.
    pub(crate) fn release(&self) {
        self.held.send_modify(Vec::clear);
    }

    /// Ends the watches that are open: their version is gone.
    pub(crate) fn expire_watches(&self) {
        self.expired.send_modify(|times| *times += 1);
    }

    /// Answers like a server that does not know streaming lists.
    pub(crate) fn refuse_streaming_lists(&self) {
        self.pages_only.store(true, Ordering::SeqCst);
    }

    /// Answers every list that is not streamed, and every get, with trouble.
    pub(crate) fn fail_lists(&self) {
        self.lists_fail.store(true, Ordering::SeqCst);
    }

    /// So many of the next requests whose path has this part, watches left out, do not arrive and get no answer.
    pub(crate) fn swallow(&self, part: &'static str, times: usize) {
        self.swallowed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push((part, times));
    }

    fn swallows(&self, request: &Request<Body>) -> bool {
        let watched = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let mut swallowed = self.swallowed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let hit = swallowed
            .iter_mut()
            .find(|(part, times)| *times > 0 && !watched && request.uri().path().contains(part));
        hit.map(|(_, times)| *times -= 1).is_some()
    }

    /// Objects of a kind may no longer be listed or watched.
    pub(crate) fn forbid(&self, plural: &'static str) {
        self.forbidden.send_modify(|forbidden| forbidden.push(plural));
        self.expire_watches();
    }

    /// Everything may be listed and watched again.
    pub(crate) fn allow(&self) {
        self.forbidden.send_modify(Vec::clear);
    }

    /// Nothing arrives any more, and nothing answers: a partition.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// The end of a partition. What was sent during it is lost.
    pub(crate) fn mend(&self) {
        self.cut.send_replace(false);
    }
}

impl Service<Request<Body>> for Wire {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut this = self.clone();
        Box::pin(async move {
            if *this.crashed.borrow() || *this.cut.borrow() || this.swallows(&request) {
                std::future::pending::<()>().await;
            }
            let agent = request.headers().get(http::header::USER_AGENT);
            let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
            this.agents.send_if_modified(|agents| agents.insert(agent.to_owned()));
            let events = request.uri().path().contains("/events");
            let is_write = request.method() != Method::GET && !events;
            if !is_write {
                let watched = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let streamed = request
                    .uri()
                    .query()
                    .is_some_and(|query| query.contains("sendInitialEvents"));
                if streamed && this.pages_only.load(Ordering::SeqCst) {
                    return Ok(trouble(StatusCode::UNPROCESSABLE_ENTITY, "Invalid"));
                }
                let verb = if watched { "WATCH" } else { "GET" };
                this.reads
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .push(format!("{verb} {}", request.uri().path()));
                if !watched && this.lists_fail.load(Ordering::SeqCst) {
                    return Ok(trouble(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"));
                }
                let plural = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                if this.forbidden.borrow().contains(&plural.as_str()) {
                    return Ok(trouble(StatusCode::FORBIDDEN, "Forbidden"));
                }
                let answer = this.pass(request).await;
                return Ok(if watched { this.holding(answer, plural) } else { answer });
            }
            let number = this.writes.fetch_add(1, Ordering::SeqCst);
            this.note(format!("{} {}", request.method(), request.uri().path()));
            let hit = |nth: usize| nth == number;
            match this.accident {
                Accident::LostRequest { nth } if hit(nth) => Ok(trouble(StatusCode::BAD_GATEWAY, "lost")),
                Accident::Conflict { nth } if hit(nth) => Ok(trouble(StatusCode::CONFLICT, "Conflict")),
                Accident::LostAnswer { nth } if hit(nth) => {
                    this.pass(request).await;
                    Ok(trouble(StatusCode::GATEWAY_TIMEOUT, "lost"))
                }
                Accident::Crash { nth } if hit(nth) => {
                    this.pass(request).await;
                    this.crashed.send_replace(true);
                    std::future::pending().await
                }
                _ => Ok(this.pass(request).await),
            }
        })
    }
}

impl Wire {
    fn note(&self, line: String) {
        self.log
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(line);
    }

    async fn pass(&mut self, request: Request<Body>) -> Answer {
        let answer = Service::call(&mut self.inner, request).await;
        match answer {
            Ok(answer) => answer.map(|body| body.map_err(|error| BoxError::from(error.to_string())).boxed_unsync()),
            Err(error) => trouble(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    /// A watch whose events wait for `release`, and that ends when it is told that its version is gone.
    fn holding(&self, answer: Answer, plural: String) -> Answer {
        let (held, cut) = (self.held.subscribe(), self.cut.subscribe());
        let mut expired = self.expired.subscribe();
        expired.mark_unchanged();
        answer.map(|body| {
            let state = (body.into_data_stream(), held, cut, expired, false);
            let frames = futures_util::stream::unfold(state, move |(mut body, mut held, cut, mut expired, over)| {
                let plural = plural.clone();
                async move {
                    if over {
                        return None;
                    }
                    let mut frame = tokio::select! {
                        frame = body.next() => frame?,
                        _ = expired.changed() => {
                            let gone = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#;
                            let frame = Ok(http_body::Frame::data(Bytes::from(format!("{gone}\n"))));
                            return Some((frame, (body, held, cut, expired, true)));
                        }
                    };
                    // The senders may be gone with the test; then nothing is held any more.
                    let _ = held.wait_for(|held| !held.contains(&plural.as_str())).await;
                    // A connection that was open when the way was cut is dead, and nobody tells.
                    if cut.has_changed().unwrap_or(false) {
                        std::future::pending::<()>().await;
                    }
                    if expired.has_changed().unwrap_or(false) {
                        // What was under way is lost with the watch.
                        frame = Ok(Bytes::from_static(b"\n"));
                    }
                    Some((frame.map(http_body::Frame::data), (body, held, cut, expired, false)))
                }
            });
            StreamBody::new(frames).boxed_unsync()
        })
    }
}

fn trouble(status: StatusCode, reason: &str) -> Answer {
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "message": format!("an accident: {reason}"), "code": status.as_u16(),
    });
    let full = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    let mut response = Response::new(full.boxed_unsync());
    *response.status_mut() = status;
    response
}

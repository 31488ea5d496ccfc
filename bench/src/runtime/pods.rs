//! The server of these measurements.

use std::{
    borrow::Cow,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use tokio::sync::broadcast;
use tower_service::Service;

/// A server with so many pods, each made when it is asked for, so that it holds none.
#[derive(Clone)]
pub(super) struct Pods {
    count: usize,
    /// The pods, if they were made in advance.
    made: Arc<[String]>,
    happenings: broadcast::Sender<Happening>,
    version: Arc<AtomicUsize>,
    lists: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
}

#[derive(Clone)]
enum Happening {
    Changed(Bytes),
    Expired,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl Pods {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            made: Arc::default(),
            happenings: broadcast::Sender::new(1024),
            version: Arc::new(AtomicUsize::new(count + 1)),
            lists: Arc::default(),
            writes: Arc::default(),
        }
    }

    /// The same with pods that are made before anybody asks, where the time of the making would count.
    pub(super) fn made_in_advance(count: usize) -> Self {
        Self {
            made: (0..count).map(|nth| pod(nth, nth + 1)).collect(),
            ..Self::new(count)
        }
    }

    fn pod(&self, nth: usize) -> Cow<'_, str> {
        match self.made.get(nth) {
            Some(made) => Cow::Borrowed(made),
            None => Cow::Owned(pod(nth, nth + 1)),
        }
    }

    pub(super) fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    pub(super) fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    pub(super) fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }

    pub(super) async fn watched(&self) {
        while self.happenings.receiver_count() == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// A change of a pod as the watch will tell it, made before anybody looks at the clock.
    pub(super) fn changed(&self, nth: usize) -> Bytes {
        let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
        event("MODIFIED", &pod(nth, version))
    }

    pub(super) fn tell(&self, change: Bytes) {
        let _ = self.happenings.send(Happening::Changed(change));
    }

    /// The watches end, and what they were at is gone.
    pub(super) fn expire(&self) {
        let _ = self.happenings.send(Happening::Expired);
    }

    /// Waits until everything was listed once more and is watched again.
    pub(super) async fn listed_after(&self, lists: usize) {
        while self.lists() <= lists || self.happenings.receiver_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    fn list(&self, from: usize, limit: usize) -> Answer {
        let to = (from + limit).min(self.count);
        let items: Vec<Cow<'_, str>> = (from..to).map(|nth| self.pod(nth)).collect();
        let token = if to < self.count { to.to_string() } else { String::new() };
        if token.is_empty() {
            self.lists.fetch_add(1, Ordering::SeqCst);
        }
        let version = self.version.load(Ordering::SeqCst);
        let text = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","continue":"{token}"}},"items":[{}]}}"#,
            items.join(",")
        );
        Response::new(Full::new(Bytes::from(text)).boxed_unsync())
    }

    fn watch(&self, initially: bool) -> Answer {
        let receiver = self.happenings.subscribe();
        let version = self.version.load(Ordering::SeqCst);
        let (count, lists) = (if initially { self.count } else { 0 }, Arc::clone(&self.lists));
        let this = self.clone();
        let first = stream::iter(0..count).map(move |nth| event("ADDED", &this.pod(nth)));
        let end = stream::iter(initially.then(|| {
            lists.fetch_add(1, Ordering::SeqCst);
            let mark = format!(
                r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}"#
            );
            event("BOOKMARK", &mark)
        }));
        let later = stream::unfold(Some(receiver), |receiver| async move {
            let mut receiver = receiver?;
            match receiver.recv().await.ok()? {
                Happening::Changed(change) => Some((change, Some(receiver))),
                Happening::Expired => {
                    let gone = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"too old","code":410}"#;
                    Some((event("ERROR", gone), None))
                }
            }
        });
        let frames = first
            .chain(end)
            .chain(later)
            .map(|line| Ok(http_body::Frame::data(line)));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

impl Service<Request<Body>> for Pods {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            if request.method() != Method::GET {
                this.writes.fetch_add(1, Ordering::SeqCst);
            }
            let query = request.uri().query().unwrap_or_default();
            let value = |name: &str| {
                query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
            };
            if value("watch").is_some() {
                return Ok(this.watch(value("sendInitialEvents") == Some("true")));
            }
            let number = |name| value(name).and_then(|text| text.parse().ok());
            Ok(this.list(number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX)))
        })
    }
}

fn event(kind: &str, object: &str) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}

/// A pod of four kilobytes, a third of which are managed fields, as real ones are.
fn pod(nth: usize, version: usize) -> String {
    include_str!("pod.json")
        .replace("$NAME", &format!("web-7d4b9c6f5d-{nth:05}"))
        .replace("$UID", &format!("{nth:08x}-5a1c-4c1e-9a54-0123456789ab"))
        .replace("$VERSION", &version.to_string())
}

//! Whether a member cluster answers, known before anybody waits for it.
//!
//! ```text
//!              answers                no answer for TOLERATED
//!   (start) ────────────► reachable ──────────────────────────► unreachable
//!                             ▲                                      │
//!                             └────────────── answers ───────────────┘
//! ```
//!
//! One task a member asks it for its version: every [`PULSE`] while it answers, at once when a request to it goes
//! unanswered, and with growing rests while it is away. Requests to a member that is away fail without being sent, and
//! those under way are given up, so that it never holds a worker for longer than it takes to find out.

use std::{pin::pin, sync::Arc, time::Duration};

use http::{Method, StatusCode};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

use crate::{
    object::{Object, Target},
    request::{self, RequestError, chain},
};

/// How often a member that answers is asked whether it still does.
const PULSE: Duration = Duration::from_secs(10);
/// How long it may take to answer that.
const PROBE_WITHIN: Duration = Duration::from_secs(3);
/// How long it may be away, as while it is started anew, before it counts as unreachable.
const TOLERATED: Duration = Duration::from_secs(3);
/// How long a request may go unanswered before the member is asked whether it is there at all.
const DOUBT_AFTER: Duration = Duration::from_secs(2);
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(15);

/// Whether a member answers. One for each time that a member is added, so it also tells a member from its successor.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Why it does not answer, while it does not.
    away: watch::Sender<Option<Arc<str>>>,
    doubted: Notify,
}

impl Reach {
    pub(crate) fn new() -> Self {
        Self {
            away: watch::Sender::new(None),
            doubted: Notify::new(),
        }
    }

    /// Why it does not answer, while it does not.
    pub(crate) fn away(&self) -> Option<Arc<str>> {
        self.away.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.away.subscribe()
    }

    /// Asks the member for as long as the future is polled. `returned` is called before anybody knows that it is back.
    pub(crate) async fn probe(&self, client: kube::Client, returned: impl Fn()) {
        let mut failing: Option<Instant> = None;
        let mut rest = FIRST_REST;
        loop {
            match version(&client).await {
                Ok(()) => {
                    failing = None;
                    rest = FIRST_REST;
                    if self.away().is_some() {
                        tracing::info!("a member answers again");
                        returned();
                        self.away.send_replace(None);
                    }
                    // What made somebody doubt has lasted for a while already.
                    if timeout(PULSE, self.doubted.notified()).await.is_ok() {
                        failing = Some(Instant::now());
                    }
                }
                Err(why) => {
                    let since = *failing.get_or_insert_with(Instant::now);
                    if since.elapsed() >= TOLERATED {
                        self.note_away(why);
                    }
                    sleep(rest.mul_f64(fastrand::f64() * 0.5 + 0.75)).await;
                    rest = (rest * 2).min(LONGEST_REST);
                }
            }
        }
    }

    fn note_away(&self, why: String) {
        self.away.send_if_modified(|away| {
            // The first cause is kept: a new one each time would have everybody look again.
            if away.is_some() {
                return false;
            }
            tracing::warn!(%why, "a member does not answer");
            *away = Some(why.into());
            true
        });
    }

    /// Waits for an answer for as long as the member counts as reachable.
    async fn guard<T>(&self, asking: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
        let mut away = self.subscribe();
        if let Some(why) = &*away.borrow_and_update() {
            return Err(RequestError::NotSent(why.to_string()));
        }
        let mut asking = pin!(asking);
        let answer = if let Ok(answer) = timeout(DOUBT_AFTER, &mut asking).await {
            answer
        } else {
            self.doubted.notify_one();
            tokio::select! {
                answer = &mut asking => answer,
                Ok(why) = away.wait_for(Option::is_some) => {
                    Err(RequestError::GivenUp(why.as_deref().unwrap_or_default().to_owned()))
                }
            }
        };
        if matches!(answer, Err(RequestError::Unanswered(_))) {
            self.doubted.notify_one();
        }
        answer
    }
}

/// Any answer of the server itself will do, also that we may not ask; what stands before it has no say.
async fn version(client: &kube::Client) -> Result<(), String> {
    let asking = request::send(client, Method::GET, "/version", None);
    match timeout(PROBE_WITHIN, asking).await {
        Err(_) => Err(format!("no answer within {PROBE_WITHIN:?}")),
        Ok(Err(RequestError::Refused { status, message, .. })) if status.is_server_error() => {
            Err(format!("{}: {message}", status.as_u16()))
        }
        Ok(Err(error @ RequestError::Unanswered(_))) => Err(chain(&error)),
        Ok(_) => Ok(()),
    }
}

/// The way to the API of a cluster.
#[derive(Clone)]
pub(crate) struct Way {
    client: kube::Client,
    /// Of a member; the home is always waited for.
    reach: Option<Arc<Reach>>,
}

impl Way {
    pub(crate) fn home(client: kube::Client) -> Self {
        Self { client, reach: None }
    }

    pub(crate) fn to_member(client: kube::Client, reach: Arc<Reach>) -> Self {
        Self {
            client,
            reach: Some(reach),
        }
    }

    /// Sends a request; gives the bytes of a good answer.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content: Option<(&str, Vec<u8>)>,
    ) -> Result<Vec<u8>, RequestError> {
        let sending = request::send(&self.client, method, path, content);
        match &self.reach {
            Some(reach) => reach.guard(sending).await,
            None => sending.await,
        }
    }

    /// Reads one object from the server itself.
    pub(crate) async fn get(&self, target: &Target) -> Result<Option<Object>, RequestError> {
        self.read(target, &[]).await
    }

    /// The same with what a field owner has applied.
    pub(crate) async fn get_keeping(&self, target: &Target, owner: &str) -> Result<Option<Object>, RequestError> {
        self.read(target, &[Arc::from(owner)]).await
    }

    async fn read(&self, target: &Target, keep: &[Arc<str>]) -> Result<Option<Object>, RequestError> {
        match self.send(Method::GET, &request::path_of(target), None).await {
            Ok(bytes) => Object::read(&target.kind, &bytes, keep)
                .map(Some)
                .map_err(|error| RequestError::Unreadable(error.to_string())),
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

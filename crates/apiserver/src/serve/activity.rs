//! What a connection is busy with, and since when with nothing.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, sleep, sleep_until};

use super::Stopping;
use crate::body::Body;

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Requests whose answer has not been taken in full.
    open: usize,
    /// When the connection is to be closed unless a request is open by then.
    deadline: Instant,
    /// How long it may do nothing after its first request.
    idle: Duration,
    /// Since when nothing is open, unless something is.
    quiet_since: Instant,
}

/// How long a client that owes nothing may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

impl Activity {
    /// A connection that has asked for nothing yet.
    pub(super) fn new(first_request: Duration, idle: Duration) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self(Mutex::new(State {
            open: 0,
            deadline: now + first_request,
            idle,
            quiet_since: now,
        })))
    }

    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.lock().open += 1;
        Busy(Arc::clone(self))
    }

    /// Waits until the connection has done nothing for long enough.
    pub(super) async fn idle(&self) {
        loop {
            let deadline = {
                let state = self.lock();
                let now = Instant::now();
                if state.open == 0 && now >= state.deadline {
                    return;
                }
                if state.open > 0 {
                    now + state.idle
                } else {
                    state.deadline
                }
            };
            sleep_until(deadline).await;
        }
    }

    /// Waits until nothing has been open for a while, counted from now at the earliest.
    async fn quiet_for(&self, long: Duration) {
        loop {
            sleep(long).await;
            let state = self.lock();
            if state.open == 0 && state.quiet_since.elapsed() >= long {
                return;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered, for as long as this is kept.
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let now = Instant::now();
        state.open -= 1;
        state.deadline = now + state.idle;
        state.quiet_since = now;
    }
}

/// A body on its way out: its connection is busy with it, and if it is a stream, it ends when the server stops.
pub(super) struct Outgoing {
    body: Body,
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _busy: Busy,
}

impl Outgoing {
    pub(super) fn new(body: Body, busy: Busy, mut stopping: Stopping) -> Self {
        let is_stream = body.as_whole().is_none();
        let stop = is_stream.then(|| Box::pin(async move { stopping.wait().await }) as Pin<Box<_>>);
        Self {
            body,
            stop,
            _busy: busy,
        }
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self
            .stop
            .as_mut()
            .is_some_and(|stop| stop.as_mut().poll(context).is_ready())
        {
            self.body = Body::empty();
            self.stop = None;
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a connection to its end. On the cue it is told to wind down by its own method, and is left when it still is
/// not done some time after it had nothing more to answer.
pub(super) async fn until_done<C: Future>(
    mut connection: Pin<&mut C>,
    wind_down: impl FnOnce(Pin<&mut C>),
    cue: impl Future<Output = ()>,
    activity: &Activity,
) -> Option<C::Output> {
    tokio::select! {
        done = connection.as_mut() => return Some(done),
        () = cue => wind_down(connection.as_mut()),
    }
    tokio::select! {
        done = connection => Some(done),
        () = activity.quiet_for(GOODBYE) => None,
    }
}

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::vec;

use crate::audience::Seat;
use crate::park::block_for;
use crate::record::Change;
use crate::view::View;
use crate::{At, ReadError, Record, Revision, Scope, WatchError};

/// How many changes a watch takes from the shared history at a time, and so the most that it holds itself.
const HANDFUL: usize = 128;

/// The changes of a scope as they are committed, each once and in order of revision.
///
/// A watch keeps a place in the history that all watches share, so a slow one costs nothing and delays nobody. When the
/// window passes it by before it has taken what concerns it, it ends with [`WatchError::Compacted`].
pub struct Watch {
    view: Arc<View>,
    scope: Scope,
    filter: Box<Filter>,
    seat: Arc<Seat>,
    phase: Phase,
    /// Taken from the history and not yet handed out.
    taken: VecDeque<Arc<Change>>,
    /// Every change up to here that concerns the watch has been taken.
    reached: Revision,
}

type Filter = dyn Fn(&Record) -> bool + Send + Sync;

enum Phase {
    /// Handing out what was there when the watch began. Left to `Following` by the mark that closes it.
    Initial { rest: vec::IntoIter<Arc<Record>> },
    /// Handing out changes. Left to `Ended` when there will be no more.
    Following,
    /// Never left.
    Ended(WatchError),
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the first change after this revision.
    After(Revision),
    /// With the next change.
    Now,
    /// With everything that is there, as [`Event::Added`], then [`Event::InitialDone`], then the changes since.
    Initial,
}

/// What happened, as one who sees only what passes the filter sees it.
#[derive(Clone, Debug)]
pub enum Event {
    /// An object is there that was not seen before: created, or changed so that it passes the filter now.
    Added {
        /// As it is.
        record: Arc<Record>,
        /// As it was when it did not pass the filter.
        previous: Option<Arc<Record>>,
    },
    /// An object that was seen has changed and is seen still.
    Modified {
        /// As it is.
        record: Arc<Record>,
        /// As it was.
        previous: Arc<Record>,
    },
    /// An object that was seen is seen no more: deleted, or changed so that it does not pass the filter now.
    Deleted {
        /// As it was last seen, under the revision at which it went.
        record: Arc<Record>,
        /// As it was last seen.
        previous: Arc<Record>,
    },
    /// Everything that was there at this revision has been handed out; what follows are the changes since.
    InitialDone {
        /// When the watch began.
        revision: Revision,
    },
}

impl Event {
    /// When it happened; for what was there when a watch began, when that was written.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Added { record, .. } | Self::Modified { record, .. } | Self::Deleted { record, .. } => {
                record.mod_revision
            }
            Self::InitialDone { revision } => *revision,
        }
    }

    /// The object it is about.
    pub fn record(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Added { record, .. } | Self::Modified { record, .. } | Self::Deleted { record, .. } => Some(record),
            Self::InitialDone { .. } => None,
        }
    }

    fn seen_through(change: &Change, filter: &Filter) -> Option<Self> {
        let before = change.before().map(|record| (record, filter(record)));
        let now = change.now().filter(|record| filter(record));
        match (before, now) {
            (None | Some((_, false)), None) => None,
            (None, Some(now)) => Some(Self::Added {
                record: Arc::clone(now),
                previous: None,
            }),
            (Some((before, false)), Some(now)) => Some(Self::Added {
                record: Arc::clone(now),
                previous: Some(Arc::clone(before)),
            }),
            (Some((before, true)), Some(now)) => Some(Self::Modified {
                record: Arc::clone(now),
                previous: Arc::clone(before),
            }),
            (Some((before, true)), None) => Some(Self::Deleted {
                record: change.departed(before),
                previous: Arc::clone(before),
            }),
        }
    }
}

/// What came of looking for more changes.
enum Found {
    Some,
    None,
    End(WatchError),
}

impl Watch {
    pub(crate) fn begin(view: &Arc<View>, scope: Scope, start: Start, filter: Box<Filter>) -> Result<Self, ReadError> {
        if view.read().drawer(scope.resource()).is_none() {
            view.write().add_drawer(scope.resource());
        }
        // Nothing is published while this is held, so what is read here and what the seat hears of later join up.
        let state = view.read();
        let drawer = state.drawer(scope.resource()).expect("a drawer is never taken away");
        let seat = Arc::new(Seat::default());
        let (reached, phase) = match start {
            Start::Now => (state.revision(), Phase::Following),
            Start::Initial => {
                let records: Vec<Arc<Record>> = state.range(&scope, None, state.revision()).cloned().collect();
                (
                    state.revision(),
                    Phase::Initial {
                        rest: records.into_iter(),
                    },
                )
            }
            Start::After(revision) => {
                let revision = state.resolve(At::Exactly(revision))?;
                let place = drawer.history.first_after(revision);
                seat.place().next = (place < drawer.history.end()).then_some(place);
                (revision, Phase::Following)
            }
        };
        drawer.audience.join(&scope, &seat);
        drop(state);
        Ok(Self {
            view: Arc::clone(view),
            scope,
            filter,
            seat,
            phase,
            taken: VecDeque::new(),
            reached,
        })
    }

    /// The next event, or the reason why there will be none; wakes the task when there is one.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, WatchError>> {
        self.advance(Some(cx.waker())).map_or(Poll::Pending, Poll::Ready)
    }

    /// The next event if it is there already.
    pub fn try_next(&mut self) -> Option<Result<Event, WatchError>> {
        self.advance(None)
    }

    /// The next event, blocking this thread for at most `patience`.
    pub fn next_within(&mut self, patience: Duration) -> Option<Result<Event, WatchError>> {
        block_for(patience, |cx| self.poll_next(cx))
    }

    /// The revision up to which this watch has handed out everything, also when nothing passed the filter: what a
    /// bookmark may say. None before the initial objects are through.
    pub fn progress(&self) -> Option<Revision> {
        if matches!(self.phase, Phase::Initial { .. }) {
            return None;
        }
        if let Some(change) = self.taken.front() {
            return Some(change.revision.before());
        }
        if matches!(self.phase, Phase::Ended(_)) {
            return Some(self.reached);
        }
        let state = self.view.read();
        match self.seat.place().next {
            None => Some(state.revision()),
            Some(_) => Some(self.reached),
        }
    }

    /// What the watch looks at.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    fn advance(&mut self, waker: Option<&Waker>) -> Option<Result<Event, WatchError>> {
        loop {
            match &mut self.phase {
                Phase::Initial { rest } => {
                    if let Some(record) = rest.find(|record| (self.filter)(record)) {
                        return Some(Ok(Event::Added { record, previous: None }));
                    }
                    self.phase = Phase::Following;
                    return Some(Ok(Event::InitialDone { revision: self.reached }));
                }
                Phase::Following => {
                    while let Some(change) = self.taken.pop_front() {
                        if let Some(event) = Event::seen_through(&change, &self.filter) {
                            return Some(Ok(event));
                        }
                    }
                    match self.take(waker) {
                        Found::Some => {}
                        Found::None => return None,
                        Found::End(reason) => self.phase = Phase::Ended(reason),
                    }
                }
                Phase::Ended(reason) => return Some(Err(reason.clone())),
            }
        }
    }

    /// Takes the next handful from the history. The filter, which is not ours, never runs under the lock.
    fn take(&mut self, waker: Option<&Waker>) -> Found {
        let state = self.view.read();
        let history = &state
            .drawer(self.scope.resource())
            .expect("a drawer is never taken away")
            .history;
        let mut place = self.seat.place();
        let Some(next) = place.next else {
            self.reached = state.revision();
            if !state.is_open() {
                return Found::End(WatchError::Closed);
            }
            place.waker = waker.cloned();
            return Found::None;
        };
        if next < history.start() {
            return Found::End(WatchError::Compacted { oldest: state.oldest() });
        }
        place.next = None;
        self.reached = state.revision();
        for (index, change) in history.from(next) {
            if self.taken.len() == HANDFUL {
                place.next = Some(index);
                self.reached = change.revision.before();
                break;
            }
            if self.scope.contains(change.key()) {
                self.taken.push_back(Arc::clone(change));
            }
        }
        Found::Some
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(drawer) = self.view.read().drawer(self.scope.resource()) {
            drawer.audience.leave(&self.scope, &self.seat);
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("scope", &self.scope)
            .field("reached", &self.reached)
            .finish_non_exhaustive()
    }
}

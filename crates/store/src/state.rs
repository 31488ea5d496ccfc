//! What readers and watchers see: every committed version within the retained window, in memory.
//!
//! ```text
//!   drawers ── apps/deployments ─┬─ entries   key ─► newest version, older versions still retained
//!           │                    ├─ history   changes in order of revision ◄── each watch reads at its own place
//!           │                    └─ audience  who to wake for which scope
//!           └─ secrets ─ …
//!   window ─── every retained change of all drawers, oldest first: what compaction takes away next
//! ```
//!
//! A version superseded at revision `r` is readable at revisions before `r`, so it goes when the change of `r` leaves the
//! window; a key whose newest version is its deletion goes with that change.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::audience::Audience;
use crate::record::{Change, Effect};
use crate::{At, Key, ReadError, Record, Resource, Revision, Scope, Window};

/// How many revisions are let go of at a time, so that nobody waits long for the lock.
const HANDFUL: u64 = 1_000;

/// The committed versions.
pub(crate) struct State {
    drawers: BTreeMap<Resource, Drawer>,
    /// The newest revision that readers see.
    revision: Revision,
    /// The oldest revision that can be read or watched from: all changes after it are retained.
    oldest: Revision,
    /// One entry per retained change, in the order of the histories of all drawers merged.
    window: VecDeque<Retained>,
    /// The sum over `window`.
    window_bytes: usize,
    open: bool,
}

struct Retained {
    revision: Revision,
    resource: Resource,
    at: Duration,
    bytes: usize,
}

/// Everything of one resource.
#[derive(Default)]
pub(crate) struct Drawer {
    entries: BTreeMap<Key, Chain>,
    pub(crate) history: History,
    pub(crate) audience: Audience,
}

/// The retained changes of one resource. Places count from the beginning of time, so they stay valid as old changes go.
#[derive(Default)]
pub(crate) struct History {
    changes: VecDeque<Arc<Change>>,
    gone: u64,
}

impl History {
    pub(crate) fn start(&self) -> u64 {
        self.gone
    }

    pub(crate) fn end(&self) -> u64 {
        self.gone + self.changes.len() as u64
    }

    pub(crate) fn first_after(&self, revision: Revision) -> u64 {
        self.gone + self.changes.partition_point(|change| change.revision <= revision) as u64
    }

    /// The changes from `place` on. The caller knows that `place` is retained.
    pub(crate) fn from(&self, place: u64) -> impl Iterator<Item = (u64, &Arc<Change>)> {
        let skip = usize::try_from(place - self.gone).expect("a retained place is within the deque");
        (place..).zip(self.changes.range(skip..))
    }
}

/// The retained versions of one key.
struct Chain {
    newest: Version,
    /// Oldest first; empty for almost every key.
    older: Vec<Version>,
}

enum Version {
    Live(Arc<Record>),
    Gone(Revision),
}

impl Version {
    fn revision(&self) -> Revision {
        match self {
            Self::Live(record) => record.mod_revision,
            Self::Gone(revision) => *revision,
        }
    }

    fn live(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Live(record) => Some(record),
            Self::Gone(_) => None,
        }
    }
}

impl Chain {
    fn at(&self, revision: Revision) -> Option<&Arc<Record>> {
        if self.newest.revision() <= revision {
            return self.newest.live();
        }
        let count = self.older.partition_point(|version| version.revision() <= revision);
        self.older[..count].last()?.live()
    }
}

impl State {
    pub(crate) fn new(revision: Revision) -> Self {
        Self {
            drawers: BTreeMap::new(),
            revision,
            oldest: revision,
            window: VecDeque::new(),
            window_bytes: 0,
            open: true,
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn oldest(&self) -> Revision {
        self.oldest
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn drawer(&self, resource: &Resource) -> Option<&Drawer> {
        self.drawers.get(resource)
    }

    pub(crate) fn add_drawer(&mut self, resource: &Resource) {
        self.drawers.entry(resource.clone()).or_default();
    }

    /// The revision to read at.
    pub(crate) fn resolve(&self, at: At) -> Result<Revision, ReadError> {
        let requested = match at {
            At::Latest => return Ok(self.revision),
            At::NotOlderThan(requested) | At::Exactly(requested) => requested,
        };
        if requested > self.revision {
            return Err(ReadError::Future {
                requested,
                current: self.revision,
            });
        }
        match at {
            At::Exactly(_) if requested < self.oldest => Err(ReadError::Compacted {
                requested,
                oldest: self.oldest,
            }),
            At::Exactly(_) => Ok(requested),
            At::Latest | At::NotOlderThan(_) => Ok(self.revision),
        }
    }

    pub(crate) fn get(&self, key: &Key, revision: Revision) -> Option<&Arc<Record>> {
        self.drawers.get(key.resource())?.entries.get(key)?.at(revision)
    }

    /// A key already held next to which `key` will lie, whose text it may share.
    pub(crate) fn neighbour(&self, key: &Key) -> Option<&Key> {
        self.drawers
            .get(key.resource())?
            .entries
            .range(..key)
            .next_back()
            .map(|(neighbour, _)| neighbour)
    }

    /// What `scope` held at `revision`, in order of keys, from behind `after` on.
    pub(crate) fn range<'a>(
        &'a self,
        scope: &'a Scope,
        after: Option<&Key>,
        revision: Revision,
    ) -> impl Iterator<Item = &'a Arc<Record>> {
        let first = scope.first();
        let from = match after {
            Some(after) if *after >= first => Bound::Excluded(after.clone()),
            _ => Bound::Included(first),
        };
        self.drawers
            .get(scope.resource())
            .into_iter()
            .flat_map(move |drawer| drawer.entries.range((from.clone(), Bound::Unbounded)))
            .take_while(|(key, _)| scope.contains(key))
            .filter_map(move |(_, chain)| chain.at(revision))
    }

    /// Everything there is now, in order of keys.
    pub(crate) fn everything(&self) -> Vec<Arc<Record>> {
        let chains = self.drawers.values().flat_map(|drawer| drawer.entries.values());
        chains.filter_map(|chain| chain.newest.live().map(Arc::clone)).collect()
    }

    /// Puts in place a record that was there before the retained window begins.
    pub(crate) fn restore(&mut self, record: &Arc<Record>) {
        let drawer = self.drawers.entry(record.key.resource().clone()).or_default();
        let chain = Chain {
            newest: Version::Live(Arc::clone(record)),
            older: Vec::new(),
        };
        drawer.entries.insert(record.key.clone(), chain);
    }

    /// Moves on to a later revision with nothing in between and nothing before it retained.
    pub(crate) fn jump(&mut self, revision: Revision) {
        self.compact(self.revision);
        self.revision = revision;
        self.oldest = revision;
    }

    /// Makes a committed transaction visible, and says in `wake` who has been waiting for it.
    pub(crate) fn publish(
        &mut self,
        revision: Revision,
        changes: Vec<Arc<Change>>,
        at: Duration,
        wake: &mut Vec<Waker>,
    ) {
        for change in changes {
            let key = change.key();
            let bytes =
                change.before().map_or(0, |record| record.value.len()) + size_of::<Change>() + size_of::<Record>();
            self.window.push_back(Retained {
                revision,
                resource: key.resource().clone(),
                at,
                bytes,
            });
            self.window_bytes += bytes;

            let drawer = self.drawers.entry(key.resource().clone()).or_default();
            let version = match &change.effect {
                Effect::Created { now } | Effect::Updated { now, .. } => Version::Live(Arc::clone(now)),
                Effect::Deleted { .. } => Version::Gone(revision),
            };
            match drawer.entries.entry(key.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(Chain {
                        newest: version,
                        older: Vec::new(),
                    });
                }
                Entry::Occupied(mut entry) => {
                    let chain = entry.get_mut();
                    chain.older.push(std::mem::replace(&mut chain.newest, version));
                }
            }
            drawer.audience.notify(key, drawer.history.end(), wake);
            drawer.history.changes.push_back(change);
        }
        self.revision = revision;
    }

    /// Lets go of what has outgrown the window, and says whether there is more to let go of. The newest revision always
    /// stays, so that a watcher which keeps pace is never told that it fell behind.
    #[must_use]
    pub(crate) fn trim(&mut self, window: &Window, now: Duration) -> bool {
        for _ in 0..HANDFUL {
            let Some(oldest) = self.window.front() else {
                return false;
            };
            let too_much = self.window.len() > window.changes || self.window_bytes > window.bytes;
            let too_old = now.saturating_sub(oldest.at) > window.age;
            if oldest.revision >= self.revision || !(too_much || too_old) {
                return false;
            }
            self.compact(oldest.revision);
        }
        true
    }

    /// Forgets how things were before `oldest`, or as far as that goes at a time, and says whether there is more to forget.
    #[must_use]
    pub(crate) fn compact_in_part(&mut self, oldest: Revision) -> bool {
        let next = self.window.front().map_or(oldest, |retained| retained.revision);
        let part = oldest.min(Revision::new(next.get().saturating_add(HANDFUL)));
        self.compact(part);
        part < oldest
    }

    fn compact(&mut self, oldest: Revision) {
        debug_assert!(oldest <= self.revision, "the future cannot be compacted");
        while let Some(retained) = self.window.pop_front_if(|retained| retained.revision <= oldest) {
            self.window_bytes -= retained.bytes;
            let drawer = self
                .drawers
                .get_mut(&retained.resource)
                .expect("a drawer outlives its history");
            let change = drawer
                .history
                .changes
                .pop_front()
                .expect("the window has an entry per retained change");
            drawer.history.gone += 1;
            drawer.forget_before(&change);
        }
        self.oldest = self.oldest.max(oldest);
    }

    /// Ends all watches once they have handed out what there is.
    pub(crate) fn close(&mut self, wake: &mut Vec<Waker>) {
        self.open = false;
        for drawer in self.drawers.values() {
            drawer.audience.wake_all(wake);
        }
    }
}

impl Drawer {
    fn forget_before(&mut self, change: &Change) {
        let Some(chain) = self.entries.get_mut(change.key()) else {
            return;
        };
        let superseded = chain
            .older
            .partition_point(|version| version.revision() < change.revision);
        chain.older.drain(..superseded);
        if chain.older.is_empty() {
            chain.older = Vec::new();
            if matches!(chain.newest, Version::Gone(revision) if revision == change.revision) {
                self.entries.remove(change.key());
            }
        }
    }
}

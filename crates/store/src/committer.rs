//! The one place where transactions are judged and take effect.
//!
//! ```text
//!   submissions ─► judge each against what is committed and what was accepted before it ─► journal.append ─► publish ─► reply
//!                                                                                              │ fails
//!                                                                                              └─► refuse all
//! ```
//!
//! Nobody learns anything of a transaction, not even that it made another fail, before the journal has it for good.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::record::{Change, Effect};
use crate::transaction::{Operation, Reply};
use crate::view::View;
use crate::{Attributes, Committed, Expect, Health, Key, Options, Record, Revision, Transaction, WriteError};

/// Where transactions are kept for good.
pub(crate) trait Journal: Send {
    /// Keeps all of these or none. When it returns well they survive a crash; when it fails they never come back.
    fn append(&mut self, accepted: &[Accepted]) -> io::Result<()>;

    /// Called when everything appended is visible: the time to tidy up, and to find out whether a journal that refused an
    /// append takes the next one.
    fn tidy(&mut self, view: &View) -> io::Result<()>;

    /// Called once after the last append.
    fn close(&mut self);
}

/// The journal of a store that forgets.
pub(crate) struct NoJournal;

impl Journal for NoJournal {
    fn append(&mut self, _: &[Accepted]) -> io::Result<()> {
        Ok(())
    }

    fn tidy(&mut self, _: &View) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self) {}
}

/// A transaction as it came in.
pub(crate) struct Submission {
    pub(crate) transaction: Transaction,
    /// Of each write, in order.
    pub(crate) attributes: Vec<Arc<Attributes>>,
    pub(crate) reply: Reply,
}

/// A transaction that will take effect if the journal takes it.
pub(crate) struct Accepted {
    pub(crate) revision: Revision,
    pub(crate) changes: Vec<Arc<Change>>,
}

/// Judges, journals and publishes, one batch at a time.
pub(crate) struct Committer {
    pub(crate) view: Arc<View>,
    pub(crate) journal: Box<dyn Journal>,
    pub(crate) options: Options,
    pub(crate) health: Arc<Mutex<Health>>,
}

/// Whom to tell what, once no lock is held.
#[derive(Default)]
#[must_use]
pub(crate) struct Announcement {
    wake: Vec<Waker>,
    replies: Vec<(Reply, Result<Committed, WriteError>)>,
}

impl Announcement {
    pub(crate) fn announce(self) {
        for (reply, outcome) in self.replies {
            reply.send(outcome);
        }
        for waker in self.wake {
            waker.wake();
        }
    }
}

impl Committer {
    /// Commits a batch, in order, with one append.
    pub(crate) fn commit(&mut self, batch: Vec<Submission>) -> Announcement {
        let mut announcement = Announcement::default();
        let (accepted, outcomes) = self.judge(&batch);
        let replies = batch.into_iter().map(|submission| submission.reply);

        if !accepted.is_empty() {
            if let Err(error) = self.journal.append(&accepted) {
                let refusal = refusal(error);
                self.set_health(Health::Refusing(refusal.clone()));
                announcement.replies = replies.map(|reply| (reply, Err(refusal.clone()))).collect();
                return announcement;
            }
            self.set_health(Health::Ready);
            let now = (self.options.clock)();
            let mut state = self.view.write();
            for Accepted { revision, changes } in accepted {
                state.publish(revision, changes, now, &mut announcement.wake);
            }
            // What is left over is let go of when the writers have their answers.
            let _ = state.trim(&self.options.window, now);
        }
        announcement.replies = replies.zip(outcomes).collect();
        announcement
    }

    /// Lets the journal tidy up behind a commit.
    pub(crate) fn settle(&mut self) {
        self.trim();
        if self.is_ready() {
            self.tidy_journal();
        }
    }

    /// Lets go of what has become too old, and finds out whether a disk that refused writes takes them again.
    pub(crate) fn tidy(&mut self) {
        self.trim();
        if !self.is_closed() {
            self.tidy_journal();
        }
    }

    fn trim(&self) {
        let now = (self.options.clock)();
        while self.view.write().trim(&self.options.window, now) {}
    }

    fn tidy_journal(&mut self) {
        match self.journal.tidy(&self.view) {
            Ok(()) => self.set_health(Health::Ready),
            Err(error) => self.set_health(Health::Refusing(refusal(error))),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(
            *self.health.lock().expect("no code panics while holding the health"),
            Health::Ready
        )
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.view.read().is_open()
    }

    /// Ends all watches.
    pub(crate) fn close(&mut self) -> Announcement {
        let mut announcement = Announcement::default();
        if !self.is_closed() {
            self.view.write().close(&mut announcement.wake);
            self.journal.close();
        }
        announcement
    }

    fn set_health(&self, health: Health) {
        *self.health.lock().expect("no code panics while holding the health") = health;
    }

    fn judge(&self, batch: &[Submission]) -> (Vec<Accepted>, Vec<Result<Committed, WriteError>>) {
        let state = self.view.read();
        let mut bench = Bench {
            state: &state,
            revision: state.revision(),
            uncommitted: HashMap::new(),
        };
        let mut accepted = Vec::with_capacity(batch.len());
        let outcomes = batch.iter().map(|submission| {
            let changes = bench.judge(submission)?;
            let records = changes.iter().map(|change| change.outcome()).collect();
            if !changes.is_empty() {
                bench.accept(&changes);
                accepted.push(Accepted {
                    revision: bench.revision,
                    changes,
                });
            }
            Ok(Committed {
                revision: bench.revision,
                records,
            })
        });
        let outcomes = outcomes.collect();
        (accepted, outcomes)
    }
}

fn refusal(error: io::Error) -> WriteError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WriteError::StorageFull(Arc::new(error)),
        _ => WriteError::Unavailable(Arc::new(error)),
    }
}

/// The state as it will be when what has been accepted so far is committed.
struct Bench<'a> {
    state: &'a crate::state::State,
    revision: Revision,
    uncommitted: HashMap<Key, Option<Arc<Record>>>,
}

impl Bench<'_> {
    fn current(&self, key: &Key) -> Option<&Arc<Record>> {
        match self.uncommitted.get(key) {
            Some(uncommitted) => uncommitted.as_ref(),
            None => self.state.get(key, self.state.revision()),
        }
    }

    fn accept(&mut self, changes: &[Arc<Change>]) {
        self.revision = self.revision.next();
        for change in changes {
            self.uncommitted.insert(change.key().clone(), change.now().cloned());
        }
    }

    fn judge(&self, submission: &Submission) -> Result<Vec<Arc<Change>>, WriteError> {
        let revision = self.revision.next();
        let mut attributes = submission.attributes.iter();
        let mut changes = Vec::with_capacity(submission.transaction.operations.len());
        for operation in &submission.transaction.operations {
            let effect = match operation {
                Operation::Check { key, expect } => {
                    expectation(key, *expect, self.current(key))?;
                    continue;
                }
                Operation::Delete { key, expect } => {
                    let before = self.current(key);
                    expectation(key, *expect, before)?;
                    let before = before.ok_or_else(|| WriteError::NotFound { key: key.clone() })?;
                    Effect::Deleted {
                        before: Arc::clone(before),
                    }
                }
                Operation::Write { key, value, expect } => {
                    let before = self.current(key);
                    expectation(key, *expect, before)?;
                    let (value, revision_at) = value.stamped(revision);
                    let attributes = attributes.next().expect("every write has been described");
                    let now = Arc::new(Record {
                        key: before.map_or_else(|| self.share(key), |before| before.key.clone()),
                        create_revision: before.map_or(revision, |before| before.create_revision),
                        mod_revision: revision,
                        version: before.map_or(1, |before| before.version + 1),
                        value,
                        revision_at,
                        attributes: Arc::clone(attributes),
                    });
                    match before {
                        None => Effect::Created { now },
                        Some(before) => Effect::Updated {
                            now,
                            before: Arc::clone(before),
                        },
                    }
                }
            };
            changes.push(Arc::new(Change::new(revision, effect)));
        }
        Ok(changes)
    }

    fn share(&self, key: &Key) -> Key {
        self.state
            .neighbour(key)
            .map_or_else(|| key.clone(), |neighbour| key.clone().sharing_with(neighbour))
    }
}

fn expectation(key: &Key, expect: Expect, current: Option<&Arc<Record>>) -> Result<(), WriteError> {
    match (expect, current) {
        (Expect::Anything, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => Ok(()),
        (Expect::At(expected), Some(record)) if record.mod_revision == expected => Ok(()),
        (Expect::Absent, Some(record)) => Err(WriteError::AlreadyExists {
            key: key.clone(),
            actual: record.mod_revision,
        }),
        (Expect::Present | Expect::At(_), None) => Err(WriteError::NotFound { key: key.clone() }),
        (Expect::At(expected), Some(record)) => Err(WriteError::Conflict {
            key: key.clone(),
            expected,
            actual: record.mod_revision,
        }),
    }
}

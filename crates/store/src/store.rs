use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::committer::{Committer, NoJournal, Submission};
use crate::disk::{self, Committing, DiskOptions, Files, OpenError, Recovered, Recovery};
use crate::intake::Intake;
use crate::state::State;
use crate::transaction::Operation;
use crate::view::View;
use crate::watch::{Start, Watch};
use crate::{
    At, Attributes, Committed, Describe, Key, List, Options, Page, Pending, ReadError, Record, Revision, Scope,
    Transaction, Value, WriteError,
};

/// No transaction is larger, whatever the options say, so that lengths on disk fit into 32 bits.
const LARGEST_TRANSACTION: usize = 1 << 30;

/// A handle to a store; clones are handles to the same one. The store closes when the last handle goes.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    view: Arc<View>,
    describe: Box<dyn Describe>,
    max_transaction_bytes: usize,
    health: Arc<Mutex<Health>>,
    intake: Intake,
}

/// Whether a store takes writes.
#[derive(Clone, Debug)]
pub enum Health {
    /// It does.
    Ready,
    /// The last write was refused for this reason. Further ones are tried, and taken once the disk takes them.
    Refusing(WriteError),
}

impl Store {
    /// A store that lives in memory and ends with the process. Every write commits on the thread that submits it, so
    /// what happens depends on nothing but the calls made.
    pub fn memory(options: Options, describe: impl Describe) -> Self {
        let (view, health, limit) = Self::parts(State::new(Revision::FIRST), &options);
        let journal = Box::new(NoJournal);
        let committer = Committer {
            view: Arc::clone(&view),
            journal,
            options,
            health: Arc::clone(&health),
        };
        Self::assemble(view, health, limit, Intake::direct(committer), Box::new(describe))
    }

    /// Opens the store in a directory, or begins one there. Writes are durable before they are seen or acknowledged.
    pub fn open(
        files: impl Files,
        options: DiskOptions,
        describe: impl Describe,
    ) -> Result<(Self, Recovery), OpenError> {
        let committing = options.committing;
        let store_options = options.store.clone();
        let files: Arc<dyn Files> = Arc::new(files);
        let Recovered {
            state,
            journal,
            recovery,
        } = disk::recover(&files, options, &describe)?;
        let (view, health, limit) = Self::parts(state, &store_options);
        let committer = Committer {
            view: Arc::clone(&view),
            journal,
            options: store_options,
            health: Arc::clone(&health),
        };
        let intake = match committing {
            Committing::OnCallersThread => Intake::direct(committer),
            Committing::OnOwnThread => Intake::queued(committer).map_err(|source| OpenError::Io {
                file: "starting the committer".to_owned(),
                source,
            })?,
        };
        Ok((
            Self::assemble(view, health, limit, intake, Box::new(describe)),
            recovery,
        ))
    }

    fn parts(state: State, options: &Options) -> (Arc<View>, Arc<Mutex<Health>>, usize) {
        let limit = options.max_transaction_bytes.min(LARGEST_TRANSACTION);
        (Arc::new(View::new(state)), Arc::new(Mutex::new(Health::Ready)), limit)
    }

    fn assemble(
        view: Arc<View>,
        health: Arc<Mutex<Health>>,
        max_transaction_bytes: usize,
        intake: Intake,
        describe: Box<dyn Describe>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                view,
                describe,
                max_transaction_bytes,
                health,
                intake,
            }),
        }
    }

    /// Hands in a transaction. Transactions of one thread commit in the order in which they were handed in.
    pub fn submit(&self, transaction: Transaction) -> Pending {
        let (reply, pending) = Pending::new();
        match self.inner.examine(&transaction) {
            Err(error) => reply.send(Err(error)),
            Ok(attributes) => self.inner.intake.hand_in(Submission {
                transaction,
                attributes,
                reply,
            }),
        }
        pending
    }

    /// Hands in a transaction and blocks until its outcome is known.
    pub fn commit(&self, transaction: Transaction) -> Result<Committed, WriteError> {
        self.submit(transaction).wait()
    }

    /// Creates one object that must not exist.
    pub fn create(&self, key: Key, value: Value) -> Pending {
        self.submit(Transaction::new().create(key, value))
    }

    /// Replaces one object that must still be as it was at `seen`.
    pub fn update(&self, key: Key, value: Value, seen: Revision) -> Pending {
        self.submit(Transaction::new().update(key, value, seen))
    }

    /// Creates or replaces one object.
    pub fn put(&self, key: Key, value: Value) -> Pending {
        self.submit(Transaction::new().put(key, value))
    }

    /// Deletes one object that must exist.
    pub fn delete(&self, key: Key) -> Pending {
        self.submit(Transaction::new().delete(key))
    }

    /// Deletes one object that must still be as it was at `seen`.
    pub fn delete_at(&self, key: Key, seen: Revision) -> Pending {
        self.submit(Transaction::new().delete_at(key, seen))
    }

    /// The object as it is.
    pub fn get(&self, key: &Key) -> Option<Arc<Record>> {
        let state = self.inner.view.read();
        state.get(key, state.revision()).cloned()
    }

    /// The object as it is or was, and the revision at which that was read.
    pub fn get_at(&self, key: &Key, at: At) -> Result<(Option<Arc<Record>>, Revision), ReadError> {
        let state = self.inner.view.read();
        let revision = state.resolve(at)?;
        Ok((state.get(key, revision).cloned(), revision))
    }

    /// Lists a scope.
    pub fn list(&self, list: &List) -> Result<Page, ReadError> {
        Page::read(&self.inner.view.read(), list)
    }

    /// Lists what passes `filter` in a scope. The filter runs without any lock.
    pub fn list_matching(&self, list: &List, filter: impl FnMut(&Record) -> bool) -> Result<Page, ReadError> {
        let everything = Page::read(
            &self.inner.view.read(),
            &List {
                limit: None,
                ..list.clone()
            },
        )?;
        Ok(everything.filtered(list.limit, filter))
    }

    /// Watches all of a scope.
    pub fn watch(&self, scope: Scope, start: Start) -> Result<Watch, ReadError> {
        self.watch_matching(scope, start, |_| true)
    }

    /// Watches what passes `filter` in a scope. The filter runs on the watcher's thread.
    pub fn watch_matching(
        &self,
        scope: Scope,
        start: Start,
        filter: impl Fn(&Record) -> bool + Send + Sync + 'static,
    ) -> Result<Watch, ReadError> {
        Watch::begin(&self.inner.view, scope, start, Box::new(filter))
    }

    /// The newest revision that readers see.
    pub fn revision(&self) -> Revision {
        self.inner.view.read().revision()
    }

    /// The oldest revision that can be listed at or watched from.
    pub fn oldest_revision(&self) -> Revision {
        self.inner.view.read().oldest()
    }

    /// Forgets how things were before `oldest`; a no-op when that is forgotten already.
    pub fn compact(&self, oldest: Revision) -> Result<(), ReadError> {
        let oldest = {
            let state = self.inner.view.read();
            state.resolve(At::Exactly(oldest.max(state.oldest())))?
        };
        while self.inner.view.write().compact_in_part(oldest) {}
        Ok(())
    }

    /// Lets go of what the window no longer covers. Every write does as much, and so does a store with a thread of its own
    /// every few seconds; this is for times without writes in a store without one.
    pub fn tidy(&self) {
        self.inner.intake.tidy();
    }

    /// Whether writes are taken.
    pub fn health(&self) -> Health {
        self.inner
            .health
            .lock()
            .expect("no code panics while holding the health")
            .clone()
    }

    /// Commits what has been handed in, then refuses writes and ends watches once they have handed out everything. Blocks
    /// until the directory is free to be opened again. Reads go on from memory.
    pub fn close(&self) {
        self.inner.intake.close();
    }
}

impl Inner {
    /// What can be said of a transaction without knowing the state, and the attributes of its writes.
    fn examine(&self, transaction: &Transaction) -> Result<Vec<Arc<Attributes>>, WriteError> {
        let (size, limit) = (transaction.size(), self.max_transaction_bytes);
        if size > limit {
            return Err(WriteError::TooLarge { size, limit });
        }
        if transaction.operations.len() > 1 {
            let mut written = HashSet::new();
            for operation in &transaction.operations {
                if let Operation::Write { key, .. } | Operation::Delete { key, .. } = operation
                    && !written.insert(key)
                {
                    return Err(WriteError::WrittenTwice { key: key.clone() });
                }
            }
        }
        let writes = transaction.operations.iter().filter_map(|operation| match operation {
            Operation::Write { key, value, .. } => Some(Arc::new(self.describe.describe(key, value.bytes()))),
            Operation::Delete { .. } | Operation::Check { .. } => None,
        });
        Ok(writes.collect())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.intake.close();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

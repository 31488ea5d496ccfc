use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_channel::oneshot;

use crate::park::block_on;
use crate::{Key, Record, Revision, Value, WriteError};

/// A handful of writes, and conditions on what they rest on, that take effect together at one revision or not at all.
///
/// Conditions are judged in order of commit, against everything committed before. No key may be written twice.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    pub(crate) operations: Vec<Operation>,
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Write { key: Key, value: Value, expect: Expect },
    Delete { key: Key, expect: Expect },
    Check { key: Key, expect: Expect },
}

/// What must hold of a key for the transaction to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Anything,
    /// There is no such object.
    Absent,
    /// There is such an object, at whatever revision.
    Present,
    /// The object was last written at this revision.
    At(Revision),
}

impl Transaction {
    /// A transaction that does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an object that must not exist.
    #[must_use]
    pub fn create(self, key: Key, value: Value) -> Self {
        self.write(key, value, Expect::Absent)
    }

    /// Replaces an object that must exist and still be as it was at `seen`.
    #[must_use]
    pub fn update(self, key: Key, value: Value, seen: Revision) -> Self {
        self.write(key, value, Expect::At(seen))
    }

    /// Replaces an object that must exist, at whatever revision.
    #[must_use]
    pub fn replace(self, key: Key, value: Value) -> Self {
        self.write(key, value, Expect::Present)
    }

    /// Creates or replaces an object, whatever is there.
    #[must_use]
    pub fn put(self, key: Key, value: Value) -> Self {
        self.write(key, value, Expect::Anything)
    }

    fn write(mut self, key: Key, value: Value, expect: Expect) -> Self {
        self.operations.push(Operation::Write { key, value, expect });
        self
    }

    /// Deletes an object, which must exist.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Self {
        self.operations.push(Operation::Delete {
            key,
            expect: Expect::Present,
        });
        self
    }

    /// Deletes an object that must exist and still be as it was at `seen`.
    #[must_use]
    pub fn delete_at(mut self, key: Key, seen: Revision) -> Self {
        self.operations.push(Operation::Delete {
            key,
            expect: Expect::At(seen),
        });
        self
    }

    /// Makes the whole depend on a key that it does not write.
    #[must_use]
    pub fn check(mut self, key: Key, expect: Expect) -> Self {
        self.operations.push(Operation::Check { key, expect });
        self
    }

    /// Bytes that the transaction asks to be kept.
    pub(crate) fn size(&self) -> usize {
        self.operations
            .iter()
            .map(|operation| match operation {
                Operation::Write { key, value, .. } => key.size() + value.bytes().len(),
                Operation::Delete { key, .. } => key.size(),
                Operation::Check { .. } => 0,
            })
            .sum()
    }
}

/// What a transaction came to.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The revision it was given; where the store stood, if it only checked.
    pub revision: Revision,
    /// For each write and delete, in order: the record now there, or what was deleted under the revision at which it
    /// was.
    pub records: Vec<Arc<Record>>,
}

impl Committed {
    /// The record of a transaction with a single write or delete.
    ///
    /// # Panics
    /// When the transaction had none.
    pub fn into_record(mut self) -> Arc<Record> {
        self.records.pop().expect("the transaction wrote or deleted something")
    }
}

/// A write on its way. Await it, or block with [`wait`](Self::wait); dropping it withdraws nothing.
#[derive(Debug)]
#[must_use = "a write may still be refused"]
pub struct Pending {
    answer: oneshot::Receiver<Result<Committed, WriteError>>,
}

impl Pending {
    pub(crate) fn new() -> (Reply, Self) {
        let (reply, answer) = oneshot::channel();
        (Reply(reply), Self { answer })
    }

    /// Blocks this thread until the outcome is known.
    pub fn wait(mut self) -> Result<Committed, WriteError> {
        block_on(|cx| Pin::new(&mut self).poll(cx))
    }
}

impl Future for Pending {
    type Output = Result<Committed, WriteError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer)
            .poll(cx)
            .map(|answer| answer.unwrap_or(Err(WriteError::Closed)))
    }
}

/// The committer's end of a [`Pending`]. Dropped unanswered, it says that the store is closed.
#[derive(Debug)]
pub(crate) struct Reply(oneshot::Sender<Result<Committed, WriteError>>);

impl Reply {
    pub(crate) fn send(self, outcome: Result<Committed, WriteError>) {
        // Whoever no longer waits for the outcome does not need it.
        let _ = self.0.send(outcome);
    }
}

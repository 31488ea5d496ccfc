use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::{Key, Revision};

/// Why a transaction had no effect.
#[derive(Clone, Debug, Error)]
pub enum WriteError {
    /// An object that had to be absent is there.
    #[error("{key} already exists at revision {actual}")]
    AlreadyExists {
        /// The object.
        key: Key,
        /// When it was last written.
        actual: Revision,
    },
    /// An object that had to be there is not.
    #[error("{key} does not exist")]
    NotFound {
        /// The object.
        key: Key,
    },
    /// An object has been written since it was read.
    #[error("{key} was expected at revision {expected} and is at revision {actual}")]
    Conflict {
        /// The object.
        key: Key,
        /// The revision the writer had seen.
        expected: Revision,
        /// When it was last written.
        actual: Revision,
    },
    /// The transaction writes one key twice, so there is no one outcome for it.
    #[error("{key} is written twice in one transaction")]
    WrittenTwice {
        /// The key.
        key: Key,
    },
    /// The transaction is larger than the store takes.
    #[error("transaction of {size} bytes exceeds the limit of {limit} bytes")]
    TooLarge {
        /// Bytes of keys and values.
        size: usize,
        /// What would have been taken.
        limit: usize,
    },
    /// The disk has no room. Reads go on, and writes are taken again once there is room.
    #[error("write refused: the disk is full")]
    StorageFull(#[source] Arc<io::Error>),
    /// The disk does not take writes for another reason. Reads go on, and writes are taken again once it does. Where the
    /// disk cannot even be made to forget the write, it may turn up if the process dies before a later one succeeds.
    #[error("write refused: the disk failed")]
    Unavailable(#[source] Arc<io::Error>),
    /// The store has been closed.
    #[error("write refused: the store is closed")]
    Closed,
}

/// Why a list, a read of the past or a watch could not be served.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The revision lies before the retained window.
    #[error("revision {requested} has been compacted, the oldest retained one is {oldest}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The oldest revision that can be read, or watched from.
        oldest: Revision,
    },
    /// The revision has not been given to any transaction yet.
    #[error("revision {requested} lies in the future, the current one is {current}")]
    Future {
        /// What was asked for.
        requested: Revision,
        /// Where the store stands.
        current: Revision,
    },
}

/// Why a watch ended. Nothing comes after it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WatchError {
    /// The watcher was too slow: events that it has not seen have left the retained window.
    #[error("the watch fell behind the retained window, whose oldest revision is {oldest}")]
    Compacted {
        /// The oldest revision that can be watched from.
        oldest: Revision,
    },
    /// The store has been closed, and everything written before has been handed out.
    #[error("the store is closed")]
    Closed,
}

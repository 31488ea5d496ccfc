//! A revisioned object store with watch, in memory and on disk.
//!
//! ```text
//!   create, update, delete            get, list, watch
//!          │ Transaction                      ▲
//!          ▼                                  │ Arc<Record>, no copies
//!   ┌─────────────┐  append, fsync  ┌─────────┴─────────┐
//!   │  committer  ├────────────────►│ committed versions│
//!   └──────┬──────┘     publish     │ in memory, and a  │
//!          ▼                        │ window of history │
//!       journal: none, or disk      └───────────────────┘
//! ```
//!
//! It keeps bytes under keys and knows nothing of what they mean; what selectors look at is worked out once per write by a
//! [`Describe`] handed in at opening.
//!
//! Guarantees:
//! - One [`Revision`] for everything, which grows by one with each transaction and never goes back.
//! - A transaction takes effect as a whole or not at all, and its conditions are judged at the moment of commit.
//! - Nothing is seen by a reader or a watcher, or acknowledged to its writer, before it is as durable as the store makes
//!   things.
//! - A list shows one moment, over all its pages. A watch hands out every change of its scope once, in order.
//! - What lies before the retained window is refused as compacted, never answered in part.
//! - Readers are never blocked by I/O, and neither readers nor watchers ever block a commit for long.
//!
//! Assumes that a sync that succeeds means what it says, that one process at a time uses a directory (which a lock sees
//! to), and that all live objects and the window fit into memory.
//!
//! ```
//! use moorline_store::{Attributes, Key, Options, Resource, Scope, Start, Store, Value};
//!
//! let store = Store::memory(Options::default(), |_: &Key, _: &[u8]| Attributes::default());
//! let secrets = Resource::new("secrets");
//! let mut watch = store.watch(Scope::Resource(secrets.clone()), Start::Now)?;
//!
//! // The revision is not known before the write commits; its digits go into the slot behind `"rv":"`.
//! let value = Value::with_revision_at(r#"{"rv":""}"#, 7);
//! let record = store.create(Key::new(&secrets, "default", "token"), value).wait()?.into_record();
//! assert_eq!(record.value(), r#"{"rv":"2"}"#);
//!
//! let event = watch.try_next().expect("the write has been published")?;
//! assert_eq!(event.revision(), record.mod_revision());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod audience;
mod committer;
pub mod disk;
mod error;
mod intake;
mod key;
mod options;
mod park;
mod read;
mod record;
mod revision;
mod state;
mod store;
mod transaction;
mod view;
mod watch;

pub use error::{ReadError, WatchError, WriteError};
pub use key::{Key, Resource, Scope};
pub use options::{Options, Window};
pub use read::{At, List, More, Page};
pub use record::{Attributes, Describe, Pairs, Record, Value};
pub use revision::Revision;
pub use store::{Health, Store};
pub use transaction::{Committed, Expect, Pending, Transaction};
pub use watch::{Event, Start, Watch};

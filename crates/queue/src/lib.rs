//! The work queue: which object to look at next.
//!
//! ```text
//!                add             get                  done
//!      idle ──────────► queued ───────► processing ────────► idle
//!       │                ▲   ▲               │ add
//!       │ add_after      │   │               ▼
//!       └────► delayed ──┘   └─── done ─── dirty
//!               ▲     due                 (processing, and asked for again)
//!               └── done, to be retried or looked at later
//! ```
//!
//! # What it guarantees
//!
//! - **One worker a key.** A key is with at most one worker at a time. A key added while it is being worked on is
//!   handed out once more afterwards, however often it was added.
//! - **Order of asking.** No key is overtaken by a later arrival of its own priority, even when the asking happened
//!   during its own processing. So a key that is busy most of the time is not sent to the back of the line each time,
//!   and a key that keeps asking for itself holds nobody up.
//! - **Nobody starves.** A key waits on account of higher priorities for at most [`Config::patience`]; what that means
//!   under overload is said there.
//! - **Delays** never end early. The earliest one of a key wins, and an immediate [`add`](Queue::add) wins over all.
//! - **Retries** come after an exponential backoff with jitter, kept for each key until it succeeds; runs that something
//!   else triggered meanwhile do not lengthen it. A token bucket over all keys is optional.
//! - **Nothing is lost in silence.** A key whose worker panicked or was cancelled comes back after its backoff. Whatever
//!   a shutdown or a drain drops is in exactly one report. Marking a key as done that no worker holds is an error.
//! - **Bounded.** Memory follows the number of keys that are in the queue now, not of those that ever were. Keys that
//!   come and go within the room that is there allocate nothing.
//!
//! # What it assumes
//!
//! Keys are cheap to clone (an `Arc`, a number): one clone is made for each hand-out. The clock never goes backwards.
//! `Hash`, `Eq` and the [`Observer`] do not panic.
//!
//! # Its parts
//!
//! [`Core`] is the whole behaviour as a state machine without lock, clock or runtime. [`Queue`] shares a core between
//! threads ([`get_blocking`](Queue::get_blocking)) and tasks of any runtime ([`get`](Queue::get)); what a runtime must
//! provide for delays is a [`Timer`].
//!
//! ```
//! use std::thread;
//! use std::time::Duration;
//!
//! use moorline_queue::{Ask, Config, Priority, Queue};
//!
//! # fn look_at(name: &str) -> Result<(), std::fmt::Error> { if name == "web" { Err(std::fmt::Error) } else { Ok(()) } }
//! let queue: Queue<&str> = Queue::new(Config::default());
//! let workers: Vec<_> = (0..4)
//!     .map(|_| {
//!         let queue = queue.clone();
//!         thread::spawn(move || {
//!             while let Some(work) = queue.get_blocking() {
//!                 let settled = match look_at(&work) {
//!                     Ok(()) => work.done(),
//!                     Err(_) => work.retry(),
//!                 };
//!                 settled.expect("nobody else says what became of it");
//!             }
//!         })
//!     })
//!     .collect();
//!
//! queue.add("database");
//! queue.add_with("web", Ask::now().with_priority(Priority::HIGH));
//! queue.add_after("backup", Duration::from_secs(3600));
//!
//! let drained = queue.drain_blocking(Duration::from_secs(10));
//! assert!(drained.unfinished.is_empty());
//! assert!(drained.dropped.delayed.contains(&"backup"));
//! # workers.into_iter().for_each(|worker| worker.join().unwrap());
//! ```
#![forbid(unsafe_code)]

mod config;
mod core;
mod futures;
mod lanes;
mod observer;
mod outcome;
mod pace;
mod priority;
mod queue;
mod standing;
mod sync;
mod table;
mod time;
mod timers;
mod waiting;
mod work;

pub use crate::config::{Ask, Backoff, Config, Rate};
pub use crate::core::Core;
pub use crate::futures::{Drain, Get};
pub use crate::observer::Observer;
pub use crate::outcome::{Added, Drained, Dropped, Handout, Next, NotProcessing, Outcome, Settled};
pub use crate::priority::Priority;
pub use crate::queue::Queue;
pub use crate::time::{Clock, Moment, SystemClock, Timer};
pub use crate::work::{Finished, Work};

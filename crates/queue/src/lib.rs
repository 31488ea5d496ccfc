//! The work queue: which object to look at next.
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
pub use crate::work::Work;

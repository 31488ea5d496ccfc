//! The work queue: which object to look at next.
#![forbid(unsafe_code)]

mod config;
mod core;
mod lanes;
mod observer;
mod outcome;
mod pace;
mod priority;
mod standing;
mod time;
mod timers;

pub use crate::config::{Ask, Backoff, Config, Rate};
pub use crate::core::Core;
pub use crate::observer::Observer;
pub use crate::outcome::{Added, Dropped, Handout, Next, NotProcessing, Outcome, Settled};
pub use crate::priority::Priority;
pub use crate::time::{Clock, Moment, SystemClock, Timer};

//! Time as controllers know it: the time of day, and the queue's delays on tokio's clock.

use std::{pin::Pin, time::Duration};

use jiff::Timestamp;
use moorline_queue::{Clock as QueueClock, Moment, Timer};
use tokio::time::{Instant, Sleep};

/// The time of day. A test or a simulator brings its own.
pub trait TimeOfDay: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The machine's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemTime;

impl TimeOfDay for SystemTime {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A time of day that moves with tokio's clock, so that a paused clock pauses it too.
#[derive(Clone, Copy, Debug)]
pub struct TokioTime {
    start: Instant,
    origin: Timestamp,
}

impl TokioTime {
    /// It is `origin` now.
    pub fn starting_at(origin: Timestamp) -> Self {
        Self {
            start: Instant::now(),
            origin,
        }
    }
}

impl TimeOfDay for TokioTime {
    fn now(&self) -> Timestamp {
        let elapsed = self.start.elapsed();
        self.origin.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

/// The queue's time line on tokio's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokioTimer {
    start: Instant,
}

impl Default for TokioTimer {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl QueueClock for TokioTimer {
    fn now(&self) -> Moment {
        Moment::from_start(self.start.elapsed())
    }
}

impl Timer for TokioTimer {
    type Sleep = Pin<Box<Sleep>>;

    fn sleep_until(&self, moment: Moment) -> Self::Sleep {
        let since_start: Duration = moment.since(Moment::START);
        Box::pin(tokio::time::sleep_until(self.start + since_start))
    }
}

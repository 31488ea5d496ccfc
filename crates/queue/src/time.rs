//! Time as the queue sees it: handed in by the caller, never read by the core.

use std::future::Future;
use std::time::{Duration, Instant};

/// A moment on the queue's own monotonic time line, counted from wherever its clock began.
///
/// Arithmetic saturates: a moment too far away to be counted is [`Moment::NEVER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Where the time line begins.
    pub const START: Self = Self(0);
    /// The end of the time line, some 584 years after its start. What is due then does not happen.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment this long after the start of the time line.
    #[inline]
    pub fn from_start(elapsed: Duration) -> Self {
        Self(nanoseconds(elapsed))
    }

    /// The moment this much later.
    #[must_use]
    #[inline]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(delay)))
    }

    /// The moment this much earlier, or the start of the time line.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanoseconds(span)))
    }

    /// How long ago `earlier` was; zero when it is still to come.
    #[inline]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    #[inline]
    pub(crate) fn nanoseconds(self) -> u64 {
        self.0
    }
}

fn nanoseconds(span: Duration) -> u64 {
    span.as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(span.subsec_nanos()))
}

/// Where a [`Queue`](crate::Queue) reads the time.
pub trait Clock {
    /// The present moment. Later calls never give an earlier one.
    fn now(&self) -> Moment;
}

/// A clock that can also wake a task: what the async face needs for delays and deadlines, on any runtime.
pub trait Timer: Clock {
    /// Completes at the moment asked for, or later. `Unpin`, so that it can be put aside and set anew; one that is
    /// not comes in a box.
    type Sleep: Future<Output = ()> + Unpin;

    /// Sleeps until `moment`; completes at once when that is not in the future.
    fn sleep_until(&self, moment: Moment) -> Self::Sleep;
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Moment {
        Moment::from_start(self.start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_at_both_ends_of_the_time_line() {
        let late = Moment::START.after(Duration::MAX);
        assert_eq!(late, Moment::NEVER);
        assert_eq!(late.after(Duration::from_secs(1)), Moment::NEVER);
        assert_eq!(Moment::START.before(Duration::MAX), Moment::START);
        assert_eq!(Moment::START.since(late), Duration::ZERO);
    }
}

//! Until when this process may write.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::time::Instant;

/// What stands for no end at all.
const OPEN: u64 = u64::MAX;

/// Until when this process may write. Clones are the same fence.
///
/// A process that was held up (a thread that computes for too long, a container without its share of the processor, a
/// machine that was paused) goes on where it was, and whoever would have told it that its time is over has been held up
/// as well. So nobody has to tell: every write looks at the clock right before it is sent.
///
/// Open unless an [`Election`](crate::Election) guards it.
#[derive(Clone, Debug)]
pub struct Fence {
    made: Instant,
    /// Nanoseconds since it was made.
    until: Arc<AtomicU64>,
}

/// Why a write was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was not sent: this process may no longer act, or not yet")]
pub struct Fenced;

impl Fence {
    /// Lets everything through.
    pub fn open() -> Self {
        Self {
            made: Instant::now(),
            until: Arc::new(AtomicU64::new(OPEN)),
        }
    }

    /// Whether a write may be sent now.
    pub fn check(&self) -> Result<(), Fenced> {
        let until = self.until.load(Ordering::Acquire);
        if until == OPEN || nanoseconds(self.made, Instant::now()) < until {
            Ok(())
        } else {
            Err(Fenced)
        }
    }

    /// Lets nothing through from now on.
    pub(crate) fn close(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Lets everything through until then.
    pub(crate) fn open_until(&self, end: Instant) {
        let end = nanoseconds(self.made, end).min(OPEN - 1);
        self.until.store(end, Ordering::Release);
    }
}

impl Default for Fence {
    fn default() -> Self {
        Self::open()
    }
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(OPEN - 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_passes_at_the_end_or_later_whoever_has_noticed() {
        let fence = Fence::open();
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(fence.check(), Ok(()), "nobody guards it");
        fence.close();
        assert_eq!(fence.check(), Err(Fenced));
        fence.open_until(Instant::now() + Duration::from_secs(10));
        let same = fence.clone();
        tokio::time::advance(Duration::from_millis(9_999)).await;
        assert_eq!(same.check(), Ok(()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(same.check(), Err(Fenced));
    }
}

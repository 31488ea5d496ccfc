//! How long to wait before a retry: per-key backoff and the token bucket over all keys.

use std::time::Duration;

use fastrand::Rng;

use crate::config::{Backoff, Rate};
use crate::time::Moment;

/// Turns a count of failures into a delay.
pub(crate) struct Pacer {
    backoff: Backoff,
    jitter: Rng,
}

impl Pacer {
    pub(crate) fn new(backoff: Backoff, seed: u64) -> Self {
        Self {
            backoff,
            jitter: Rng::with_seed(seed),
        }
    }

    /// The delay after this many failures in a row, of which there is at least one.
    pub(crate) fn delay(&mut self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let whole = self.backoff.first.saturating_mul(factor).min(self.backoff.most);
        let share = u32::from(self.backoff.jitter_percent.min(100));
        // Dividing first keeps the longest durations in range; what is lost is less than 100 ns.
        let loose = u64::try_from((whole / 100).saturating_mul(share).as_nanos()).unwrap_or(u64::MAX);
        whole.saturating_sub(Duration::from_nanos(self.jitter.u64(0..=loose)))
    }
}

/// A token bucket kept as one moment: the time at which it will be full again.
pub(crate) struct Bucket {
    rate: Rate,
    full_at: Moment,
}

impl Bucket {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            rate,
            full_at: Moment::START,
        }
    }

    /// When the next token can be had.
    pub(crate) fn ready_at(&self, now: Moment) -> Moment {
        let spare = self.rate.every.saturating_mul(self.rate.burst.get() - 1);
        self.full_at.before(spare).max(now)
    }

    /// Takes the next token, also when it is still to come.
    pub(crate) fn take(&mut self, now: Moment) {
        self.full_at = self.full_at.max(now).after(self.rate.every);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn pacer(jitter_percent: u8) -> Pacer {
        let backoff = Backoff {
            first: Duration::from_millis(5),
            most: Duration::from_secs(1),
            jitter_percent,
        };
        Pacer::new(backoff, 7)
    }

    #[test]
    fn a_delay_doubles_with_each_failure_up_to_the_most() {
        let mut pacer = pacer(0);
        let delays: Vec<_> = (1..=10).map(|failures| pacer.delay(failures).as_millis()).collect();
        assert_eq!(delays, [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(pacer.delay(u32::MAX), Duration::from_secs(1));
    }

    #[test]
    fn jitter_shortens_a_delay_by_at_most_its_share_and_spreads_it() {
        let mut pacer = pacer(50);
        let delays: Vec<_> = (0..1000).map(|_| pacer.delay(8)).collect();
        assert!(delays.iter().all(|delay| (320..=640).contains(&delay.as_millis())));
        let early = delays.iter().filter(|delay| delay.as_millis() < 480).count();
        assert!((400..600).contains(&early), "{early} of 1000 in the lower half");
    }

    #[test]
    fn the_longest_backoff_does_not_overflow() {
        let backoff = Backoff {
            first: Duration::MAX,
            most: Duration::MAX,
            jitter_percent: 255,
        };
        assert!(Pacer::new(backoff, 1).delay(u32::MAX) <= Duration::MAX);
    }

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_then_one_token_at_a_time() {
        let every = Duration::from_secs(1);
        let mut bucket = Bucket::new(Rate {
            every,
            burst: NonZeroU32::new(3).unwrap(),
        });
        let now = Moment::START.after(Duration::from_secs(100));
        let mut waits = Vec::new();
        for _ in 0..5 {
            waits.push(bucket.ready_at(now).since(now).as_secs());
            bucket.take(now);
        }
        assert_eq!(waits, [0, 0, 0, 1, 2]);
        let later = now.after(Duration::from_mins(1));
        assert_eq!(bucket.ready_at(later), later);
    }
}

//! Longer and longer waits between attempts.

use std::time::Duration;

use jiff::Timestamp;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(5);

/// How long to wait before something is tried again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    last: Option<(Timestamp, Duration)>,
}

impl Backoff {
    /// The moment from which another attempt may be made, for one that ended at `since`; with how long that wait is.
    pub(crate) fn until(self, since: Timestamp) -> Option<(Timestamp, Duration)> {
        let (_, delay) = self.last?;
        Some((since + delay, delay))
    }

    /// Notes that an attempt is made now, after one that ended at `since`.
    pub(crate) fn attempted(&mut self, since: Timestamp, now: Timestamp) {
        let delay = match self.last {
            // What has held out for twice the longest wait begins anew.
            Some((at, _)) if elapsed(at, since) > LONGEST * 2 => FIRST,
            Some((_, delay)) => (delay * 2).min(LONGEST),
            None => FIRST,
        };
        self.last = Some((now, delay));
    }
}

fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// A duration as Go prints it, in whole seconds: `10s`, `1m20s`, `5m0s`.
pub(crate) fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_ten_seconds_to_five_minutes() {
        let mut now = Timestamp::UNIX_EPOCH;
        let mut backoff = Backoff::default();
        assert_eq!(backoff.until(now), None, "the first restart is at once");
        let mut waits = Vec::new();
        for _ in 0..7 {
            backoff.attempted(now, now);
            let (until, wait) = backoff.until(now).unwrap();
            waits.push(go_duration(wait));
            now = until;
        }
        assert_eq!(waits, ["10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"]);
    }

    #[test]
    fn what_ran_for_long_begins_anew() {
        let start = Timestamp::UNIX_EPOCH;
        let mut backoff = Backoff::default();
        backoff.attempted(start, start);
        backoff.attempted(start, start);
        let later = start + Duration::from_secs(601);
        backoff.attempted(later, later);
        assert_eq!(backoff.until(later).unwrap().1, FIRST);
    }
}

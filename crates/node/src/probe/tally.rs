//! When answers in a row begin to count.

/// Counts answers against the thresholds of a probe.
#[derive(Debug)]
pub(super) struct Tally {
    successes: u32,
    failures: u32,
    settled: Option<bool>,
    row: u32,
    last: Option<bool>,
}

/// What an answer changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Open,
    /// The probe as a whole now says this.
    Settled(bool),
}

impl Tally {
    pub(super) fn new(successes: Option<i32>, failures: Option<i32>) -> Self {
        let threshold = |value: Option<i32>, default: u32| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .filter(|value| *value > 0)
                .unwrap_or(default)
        };
        Self {
            successes: threshold(successes, 1),
            failures: threshold(failures, 3),
            settled: None,
            row: 0,
            last: None,
        }
    }

    pub(super) fn count(&mut self, healthy: bool) -> Verdict {
        self.row = if self.last == Some(healthy) { self.row + 1 } else { 1 };
        self.last = Some(healthy);
        let needed = if healthy { self.successes } else { self.failures };
        if self.row < needed || self.settled == Some(healthy) {
            return Verdict::Open;
        }
        self.settled = Some(healthy);
        Verdict::Settled(healthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_when_there_are_enough_in_a_row() {
        let mut tally = Tally::new(Some(2), Some(3));
        let answers = [false, false, true, true, true, false, false, true, false, false, false];
        let told: Vec<_> = answers
            .into_iter()
            .filter_map(|answer| match tally.count(answer) {
                Verdict::Settled(healthy) => Some(healthy),
                Verdict::Open => None,
            })
            .collect();
        assert_eq!(told, [true, false]);
    }
}

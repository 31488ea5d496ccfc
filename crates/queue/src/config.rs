//! What a queue can be told when it is made.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::priority::Priority;

/// How a queue behaves. Every field has a default that suits a controller.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long a key may wait on account of higher priorities.
    ///
    /// A key that has waited this long is *overdue*. While a key is overdue, at least every second hand-out goes to
    /// the key that was asked for first of all that wait, whatever its priority. So an overdue key that has `n` keys
    /// asked for before it is handed out by the `2 * (n + 1)`th hand-out at the latest: a lone low key among endless
    /// high ones waits for its patience and one or two hand-outs.
    ///
    /// Under overload, when keys come faster than workers finish them, everything that waits is overdue sooner or
    /// later. Half of the hand-outs then go in order of arrival and half go to the highest priority: old keys cannot
    /// be held up for more than twice their share, and an urgent new one does not queue behind the backlog.
    ///
    /// [`Duration::MAX`] means that high priorities always come first.
    pub patience: Duration,
    /// How long a failing key rests before it is tried again.
    pub backoff: Backoff,
    /// A bound, over all keys together, on the rate of retries and of keys added by [`Ask::limited`]. None by default.
    pub rate: Option<Rate>,
    /// Where the jitter of the backoff begins. The same seed and the same calls give the same delays.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(30),
            backoff: Backoff::default(),
            rate: None,
            seed: 0,
        }
    }
}

/// Exponential backoff of one key: `first`, then twice as long after each further failure, up to `most`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    /// No delay is longer than this.
    pub most: Duration,
    /// How many percent of a delay are left to chance, so that keys that failed together do not come back together.
    /// The delay is shortened by up to this much, never lengthened. More than 100 counts as 100.
    pub jitter_percent: u8,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(5),
            most: Duration::from_mins(10),
            jitter_percent: 20,
        }
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The time in which one token comes back.
    pub every: Duration,
    /// How many tokens there are when none has been taken for a while.
    pub burst: NonZeroU32,
}

/// What is asked for when a key is added: when, and how urgently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub(crate) when: When,
    pub(crate) priority: Priority,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum When {
    #[default]
    Now,
    After(Duration),
    Limited,
}

impl Ask {
    /// As soon as a worker is free.
    pub fn now() -> Self {
        Self::default()
    }

    /// Not before `delay` has passed. A key that is asked for several times comes at the earliest of them.
    pub fn after(delay: Duration) -> Self {
        Self {
            when: When::After(delay),
            ..Self::default()
        }
    }

    /// As soon as [`Config::rate`] allows. A key that already waits in line takes no token.
    pub fn limited() -> Self {
        Self {
            when: When::Limited,
            ..Self::default()
        }
    }

    /// With this priority rather than [`Priority::NORMAL`].
    #[must_use]
    pub fn with_priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }
}

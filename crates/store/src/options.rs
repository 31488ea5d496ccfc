use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a store behaves.
#[derive(Clone)]
pub struct Options {
    /// How much of the past is kept for old lists and late watchers.
    pub window: Window,
    /// The most bytes of keys and values that one transaction may write.
    pub max_transaction_bytes: usize,
    /// Time since some fixed moment, which ages the window.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        let start = Instant::now();
        Self {
            window: Window::default(),
            max_transaction_bytes: 16 << 20,
            clock: Arc::new(move || start.elapsed()),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("window", &self.window)
            .field("max_transaction_bytes", &self.max_transaction_bytes)
            .finish_non_exhaustive()
    }
}

/// How much of the past is kept. What exceeds any of the bounds goes, oldest first; the newest revision always stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The most changes.
    pub changes: usize,
    /// The longest time since a change.
    pub age: Duration,
    /// The most memory that superseded versions may take, roughly.
    pub bytes: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            changes: 100_000,
            age: Duration::from_mins(5),
            bytes: 64 << 20,
        }
    }
}

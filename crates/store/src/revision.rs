use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A point in the history of a store. It grows by one with every transaction that changed something, over all
/// resources together, and never goes back, not even over a restart.
///
/// An empty store stands at revision 1, so zero is free to mean "none" wherever a number is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// Where an empty store stands.
    pub const FIRST: Self = Self(1);

    /// The revision with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, as it appears in `resourceVersion`.
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a store outlives no u64 of transactions"))
    }

    pub(crate) fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Revision {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

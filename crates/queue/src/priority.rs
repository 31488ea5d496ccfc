//! How urgent a key is.

/// One of 64 levels of urgency; the higher one is handed out first.
///
/// Sixty-four, because the lanes that hold something then fit in one machine word, and the highest of them is found
/// by a single instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// How many levels there are.
    pub const LEVELS: usize = 64;
    /// The least urgent level.
    pub const LOWEST: Self = Self(0);
    /// For what is only looked at to be sure: the first list after a start, periodic resyncs.
    pub const LOW: Self = Self(16);
    /// For what changed in the world. The default.
    pub const NORMAL: Self = Self(32);
    /// For what a person waits for.
    pub const HIGH: Self = Self(48);
    /// The most urgent level.
    pub const HIGHEST: Self = Self(63);

    /// The priority of this level, if there is such a level.
    pub const fn new(level: u8) -> Option<Self> {
        if (level as usize) < Self::LEVELS {
            Some(Self(level))
        } else {
            None
        }
    }

    /// The level, from 0 to 63.
    pub const fn level(self) -> u8 {
        self.0
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (Self::LOWEST.0..=Self::HIGHEST.0).map(Self)
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_priority_for_each_of_the_levels_and_none_beyond() {
        assert_eq!(Priority::new(0), Some(Priority::LOWEST));
        assert_eq!(Priority::new(63), Some(Priority::HIGHEST));
        assert_eq!(Priority::new(64), None);
    }
}

//! What is happening while one waits for an image.

use std::{fmt, sync::Arc};

use crate::Digest;

/// One step of getting an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A registry is asked what the name means.
    Resolving,
    /// So much of a layer has come.
    Downloading {
        /// Which layer.
        layer: Digest,
        /// Bytes so far.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The layer is here and is being unpacked.
    Unpacking {
        /// Which layer.
        layer: Digest,
    },
    /// The layer was here already.
    Present {
        /// Which layer.
        layer: Digest,
    },
    /// A recipe is being built, and this is what the build says.
    Building {
        /// A line for people.
        line: String,
    },
}

/// Somebody who is told of each [`Event`], from any thread, and must not block.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(Event) + Send + Sync>);

impl Progress {
    /// Calls this function with every event.
    pub fn new(tell: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Tells nobody.
    pub fn none() -> Self {
        Self::new(|_| {})
    }

    pub(crate) fn tell(&self, event: Event) {
        (self.0)(event);
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::none()
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

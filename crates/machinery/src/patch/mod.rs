//! Patches: JSON patch, JSON merge patch and strategic merge patch.
//!
//! All are pure functions from a document and a patch to a new document or a [`PatchError`], whose code and text are
//! those of an API server. None of them panics or outgrows what a request may hold, whatever the patch says.

mod json;
mod merge;
mod strategic;
#[cfg(test)]
mod strategic_tests;

pub use json::{MAX_OPERATIONS, json_patch};
pub use merge::merge_patch;
pub use strategic::strategic_merge_patch;

/// Why a patch was not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is no patch.
    #[error("{0}")]
    Malformed(String),
    /// The patch has more operations than are allowed.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    /// The patch does not apply to this document, or one of its tests failed.
    #[error("{0}")]
    Inapplicable(String),
    /// The patch speaks of items in a way that the kind does not support.
    #[error("{0}")]
    Unsupported(String),
}

impl PatchError {
    /// The HTTP status that tells of it.
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::TooManyOperations(_) => 413,
            Self::Inapplicable(_) => 422,
            Self::Unsupported(_) => 500,
        }
    }
}

//! What can go wrong, in words for the one who asked for the image.

use std::{fmt, io, sync::Arc};

use crate::{Digest, Reference};

/// Why an image could not be had, kept or handed out. It can be cloned, because several may wait for one pull.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no name of an image. Nothing but another name helps.
    #[error("{name:?} is not the name of an image: {reason}")]
    InvalidName {
        /// What was given.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store has no such image.
    #[error("there is no image {name} in the store")]
    Absent {
        /// The name or id that was asked for.
        name: String,
    },
    /// The policy forbids fetching, and the store does not have it.
    #[error("image {0} is not in the store, and the pull policy is Never")]
    NeverPull(Reference),
    /// The registry answered that there is no such image, or none for this machine.
    #[error("registry {registry} has no image {reference}: {reason}")]
    NotFound {
        /// Who answered.
        registry: String,
        /// What was asked for.
        reference: Reference,
        /// The registry's words.
        reason: String,
    },
    /// The registry wants other credentials, or any.
    #[error("registry {registry} refuses to hand out {reference}: {reason}")]
    Unauthorized {
        /// Who answered.
        registry: String,
        /// What was asked for.
        reference: Reference,
        /// The registry's words.
        reason: String,
    },
    /// The registry could not be talked to.
    #[error("cannot reach registry {registry} for {reference}: {reason}")]
    Unreachable {
        /// Who was called.
        registry: String,
        /// What was asked for.
        reference: Reference,
        /// What the network said.
        reason: String,
    },
    /// The registry answered with something that is no answer.
    #[error("registry {registry} failed on {reference}: {reason}")]
    Registry {
        /// Who answered.
        registry: String,
        /// What was asked for.
        reference: Reference,
        /// What it did.
        reason: String,
    },
    /// Content is not what its digest says.
    #[error("{what} should be {expected}, but is {actual}")]
    DigestMismatch {
        /// Which content.
        what: String,
        /// What was promised.
        expected: Digest,
        /// What came.
        actual: Digest,
    },
    /// Content that cannot be read as what it claims to be, or that must not be obeyed.
    #[error("{what} is not usable: {reason}")]
    Malformed {
        /// Which content.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store lost or spoiled something that it had.
    #[error("the image store is damaged: {what}: {reason}; remove the image and get it again")]
    Damaged {
        /// Which part.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A recipe that cannot be read.
    #[error("recipe {recipe} is not valid: {reason}")]
    InvalidRecipe {
        /// Its name or file.
        recipe: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A recipe that is built contains another version than the name claims.
    #[error("recipe {recipe} cannot stand in for {reference}: {package} from {suite} is version {version}")]
    WrongVersion {
        /// The recipe.
        recipe: String,
        /// The name that it was to be given.
        reference: Reference,
        /// The package whose version counts.
        package: String,
        /// Where it came from.
        suite: String,
        /// The version that was found.
        version: String,
    },
    /// Building needs something of the machine that is not there.
    #[error("building {recipe} needs {missing}")]
    CannotBuild {
        /// The recipe.
        recipe: String,
        /// What is missing, with what to do about it.
        missing: String,
    },
    /// Building was tried and failed.
    #[error("building {recipe} failed: {reason}")]
    BuildFailed {
        /// The recipe.
        recipe: String,
        /// The last lines that the build wrote.
        reason: String,
    },
    /// No way of getting the image worked.
    #[error("no way to get {reference}: {}", Attempts(attempts))]
    NoWay {
        /// What was asked for.
        reference: Reference,
        /// What was tried, in order.
        attempts: Vec<Error>,
    },
    /// The disk, or the system below it.
    #[error("{what}: {cause}")]
    Io {
        /// What was attempted.
        what: String,
        /// What the system said. Part of the text above, so it is no source that would be told again.
        cause: Arc<io::Error>,
    },
}

/// What this crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn malformed(what: impl Into<String>, reason: impl fmt::Display) -> Self {
        Error::Malformed {
            what: what.into(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn damaged(what: impl Into<String>, reason: impl fmt::Display) -> Self {
        Error::Damaged {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

/// Puts what was attempted in front of what the system said.
pub(crate) trait Attempting<T> {
    /// Names the attempt; built only when it failed.
    fn attempting<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<io::Error>> Attempting<T> for std::result::Result<T, E> {
    fn attempting<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| Error::Io {
            what: what().into(),
            cause: Arc::new(error.into()),
        })
    }
}

struct Attempts<'a>(&'a [Error]);

impl fmt::Display for Attempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, attempt) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{attempt}")?;
        }
        Ok(())
    }
}

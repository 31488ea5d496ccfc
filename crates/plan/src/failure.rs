//! Why something did not go as wished, and what is to be done about it.

use std::{error::Error, fmt::Write as _};

use serde::{Deserialize, Serialize};

/// A failure of a transformer or of a step. It is kept as text, so that it can be recorded and shown in a status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What to do about it.
    pub class: Class,
    /// What was attempted, on which object and field, and how it failed.
    pub message: String,
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// Passing: try again, with back-off.
    Retry,
    /// Trying again changes nothing until somebody changes the object.
    Terminal,
    /// Not an error: something else comes first, and the message names it.
    Waiting,
}

impl Failure {
    /// A passing failure.
    pub fn retry(message: impl Into<String>) -> Self {
        Self {
            class: Class::Retry,
            message: message.into(),
        }
    }

    /// A failure that trying again does not mend.
    pub fn terminal(message: impl Into<String>) -> Self {
        Self {
            class: Class::Terminal,
            message: message.into(),
        }
    }

    /// Something else comes first.
    pub fn waiting(message: impl Into<String>) -> Self {
        Self {
            class: Class::Waiting,
            message: message.into(),
        }
    }

    /// A passing failure told by an error and everything that caused it.
    pub fn from_error(attempted: &str, error: &(dyn Error + 'static)) -> Self {
        let mut message = format!("{attempted}: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            let _ = write!(message, ": {error}");
            cause = error.source();
        }
        Self::retry(message)
    }
}

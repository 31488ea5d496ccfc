//! Strict field validation: fields that no schema knows, and fields given twice.

use std::fmt;

use crate::field::{FieldError, Path, quote};

/// What a request wants done about unknown and repeated fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and say so in a warning header. What a server does unless told otherwise.
    #[default]
    Warn,
    /// Refuse the request.
    Strict,
}

/// One field that strict validation objects to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StrictProblem {
    /// No schema knows it.
    UnknownField(String),
    /// It occurs more than once.
    DuplicateField(String),
    /// It occurs more than once in an operation of a JSON patch.
    DuplicatePatchField(String),
    /// A name of YAML occurs more than once in a map.
    RepeatedName {
        /// Where it occurs again.
        line: u64,
        /// The name.
        name: String,
    },
}

/// A request refused by strict validation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("strict decoding error: {}", self.problems())]
pub struct StrictError(pub Vec<StrictProblem>);

impl FieldValidation {
    /// From the query parameter `fieldValidation`, empty where absent.
    pub fn parse(parameter: &str) -> Result<Self, FieldError> {
        match parameter {
            "" => Ok(FieldValidation::default()),
            "Ignore" => Ok(FieldValidation::Ignore),
            "Warn" => Ok(FieldValidation::Warn),
            "Strict" => Ok(FieldValidation::Strict),
            other => Err(FieldError::not_supported(
                &Path::root("fieldValidation"),
                other,
                ["", "Ignore", "Strict", "Warn"],
            )),
        }
    }

    /// What becomes of the problems: an error, warnings or nothing.
    pub fn judge(self, problems: Vec<StrictProblem>) -> Result<Vec<String>, StrictError> {
        match self {
            FieldValidation::Strict if !problems.is_empty() => Err(StrictError(problems)),
            FieldValidation::Warn => Ok(problems.iter().map(ToString::to_string).collect()),
            FieldValidation::Ignore | FieldValidation::Strict => Ok(Vec::new()),
        }
    }
}

impl fmt::Display for StrictProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StrictProblem::UnknownField(path) => write!(f, "unknown field {}", quote(path)),
            StrictProblem::DuplicateField(path) => write!(f, "duplicate field {}", quote(path)),
            StrictProblem::DuplicatePatchField(path) => write!(f, "json patch duplicate field {}", quote(path)),
            StrictProblem::RepeatedName { line, name } => {
                write!(f, "line {line}: key {} already set in map", quote(name))
            }
        }
    }
}

impl StrictError {
    /// All problems as one text. What the reader of YAML found comes first, and as one problem.
    pub fn problems(&self) -> String {
        let of_yaml = |problem: &&StrictProblem| matches!(problem, StrictProblem::RepeatedName { .. });
        let repeated: Vec<String> = self.0.iter().filter(of_yaml).map(ToString::to_string).collect();
        let repeated = (!repeated.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", repeated.join("\n  ")));
        let others = self
            .0
            .iter()
            .filter(|problem| !of_yaml(problem))
            .map(ToString::to_string);
        repeated.into_iter().chain(others).collect::<Vec<_>>().join(", ")
    }
}

//! Fields that somebody else owns and an applier would change.

use std::fmt;

use super::element::PathElement;
use super::managed::{Manager, Operation};
use crate::field::quote;

/// One field and the manager who owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Who owns the field.
    pub manager: Manager,
    /// The field.
    pub path: Vec<PathElement>,
}

impl Conflict {
    /// The message of a `Status` cause of reason `FieldManagerConflict`.
    pub fn message(&self) -> String {
        format!("conflict with {}", Owner(&self.manager))
    }

    /// The field of a `Status` cause, as in `.spec.containers[name="a"].image`.
    pub fn field(&self) -> String {
        self.path.iter().map(ToString::to_string).collect()
    }
}

/// All conflicts of an apply; never empty. `Display` is the message of the `Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts(pub(crate) Vec<Conflict>);

impl Conflicts {
    /// The conflicts, by manager and then by path.
    pub fn iter(&self) -> impl Iterator<Item = &Conflict> {
        self.0.iter()
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = self.0.as_slice() {
            return write!(f, "Apply failed with 1 conflict: {}: {}", one.message(), one.field());
        }
        write!(f, "Apply failed with {} conflicts: ", self.0.len())?;
        let mut last: Option<&Manager> = None;
        for conflict in &self.0 {
            if last != Some(&conflict.manager) {
                let line = if last.is_some() { "\n" } else { "" };
                write!(f, "{line}conflicts with {}:", Owner(&conflict.manager))?;
                last = Some(&conflict.manager);
            }
            write!(f, "\n- {}", conflict.field())?;
        }
        Ok(())
    }
}

impl std::error::Error for Conflicts {}

struct Owner<'a>(&'a Manager);

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manager = self.0;
        f.write_str(&quote(&manager.name))?;
        if !manager.subresource.is_empty() {
            write!(f, " with subresource {}", quote(&manager.subresource))?;
        }
        if manager.operation == Operation::Update {
            write!(f, " using {}", manager.api_version)?;
        }
        Ok(())
    }
}

//! Role-based access control: what a user may do, by the roles that are bound to them.
//!
//! Rules only add. A user may do what any rule allows that is bound to them, to one of their groups or to the service
//! account that they are, in the whole cluster or in the namespace at hand. The group `system:masters` may do
//! everything, whatever the roles say, so that nobody can lock themselves out.

mod defaults;
mod escalation;
mod index;
mod rule;

use moorline_machinery::status::ApiError;

pub use defaults::{Reconciled, default_objects, reconcile};
pub use index::{RbacKind, RoleIndex, UserRules};
use rule::Asked;
pub use rule::Rule;

use super::{
    action::{Action, ResourceAction},
    user::User,
};

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allowed {
        /// What grants it, in words.
        why: String,
    },
    /// Nothing says so.
    Denied {
        /// What may be in the way, in words; mostly empty.
        why: String,
    },
}

impl RoleIndex {
    /// Whether a user may do something.
    pub fn decide(&self, user: &User, action: &Action) -> Decision {
        if user.is_master() {
            return Decision::Allowed { why: String::new() };
        }
        let (namespace, asked) = asked(action);
        match self.find(user, namespace, asked) {
            Ok(grant) => Decision::Allowed {
                why: format!("RBAC: allowed by {grant}"),
            },
            Err(errors) if errors.is_empty() => Decision::Denied { why: String::new() },
            Err(errors) => Decision::Denied {
                why: format!("RBAC: {}", together(errors)),
            },
        }
    }

    /// Lets a user do something, or answers as Kubernetes does.
    pub fn permit(&self, user: &User, action: &Action) -> Result<(), ApiError> {
        if user.is_master() {
            return Ok(());
        }
        let (namespace, asked) = asked(action);
        match self.find(user, namespace, asked) {
            Ok(_) => Ok(()),
            Err(errors) if errors.is_empty() => Err(action.denied(&user.name, "")),
            Err(errors) => Err(action.denied(&user.name, &format!("RBAC: {}", together(errors)))),
        }
    }
}

fn asked(action: &Action) -> (&str, Asked<'_>) {
    match action {
        Action::Resource(ResourceAction {
            verb,
            group,
            resource,
            subresource,
            namespace,
            name,
        }) => (
            namespace,
            Asked::Resource {
                verb,
                group,
                resource,
                subresource,
                name,
            },
        ),
        Action::Path { verb, path } => ("", Asked::Path { verb, path }),
    }
}

/// Errors in one line: each once, in brackets where there are several.
fn together(mut errors: Vec<String>) -> String {
    let mut seen = std::collections::HashSet::new();
    errors.retain(|error| seen.insert(error.clone()));
    match errors.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
pub(super) mod tests;

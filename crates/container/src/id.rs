//! Names of pods and containers.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Why a name cannot be that of a pod or a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the id {0:?} cannot be used: an id has 1 to 128 letters, digits, dots, dashes or underscores and begins with a \
     letter or digit"
)]
pub struct InvalidId(pub String);

/// Ids become names of directories and cgroups.
fn is_valid(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::try_from(text.to_owned())
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, InvalidId> {
                if is_valid(&text) { Ok(Self(text)) } else { Err(InvalidId(text)) }
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id! {
    /// The name of a pod, unique in its [`Runtime`](crate::Runtime).
    PodId
}

id! {
    /// The name of a container, unique in its pod. A container that is started again is a new container with a new id.
    ContainerId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_leave_its_directory_is_no_id() {
        for bad in ["", ".", "..", "a/b", ".hidden", "a b", "-x"] {
            assert!(PodId::from_str(bad).is_err(), "{bad:?}");
        }
        assert!(PodId::from_str(&"x".repeat(129)).is_err());
        assert_eq!(PodId::from_str("db-0_ns.1").unwrap().as_str(), "db-0_ns.1");
    }
}

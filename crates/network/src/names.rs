//! Names that become files, links and tables: checked once, where they come in.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $longest:literal, $allowed:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the name.
            pub fn new(value: impl Into<String>) -> Result<Self> {
                let value = value.into();
                let begins_well = value.starts_with(|c: char| c.is_ascii_alphanumeric());
                if begins_well && value.len() <= $longest && value.chars().all($allowed) {
                    Ok(Self(value))
                } else {
                    Err(Error::BadName { what: $what, value, rule: $rule })
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(value: String) -> Result<Self> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

name!(
    /// Which of the instances on this machine. It names the table `inet moorline_<instance>`.
    InstanceName,
    "instance name",
    40,
    |c| c.is_ascii_alphanumeric() || c == '_' || c == '-',
    "up to 40 letters, digits, '-' and '_', beginning with a letter or a digit"
);
name!(
    /// A pod, by something unique over time such as its UID. It names a file.
    PodId,
    "pod id",
    200,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'),
    "up to 200 letters, digits, '-', '_' and '.', beginning with a letter or a digit"
);
name!(
    /// A virtual node.
    NodeName,
    "node name",
    253,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'),
    "up to 253 letters, digits, '-', '_' and '.', beginning with a letter or a digit"
);

impl InstanceName {
    /// The nftables table of this instance.
    pub(crate) fn table(&self) -> String {
        format!("moorline_{}", self.0)
    }

    /// A number that tells this instance's links and routes from those of another one. FNV-1a: stable over versions,
    /// because what it marked has to be found again.
    pub(crate) fn tag(&self) -> Tag {
        Tag(fnv1a(self.0.as_bytes()))
    }
}

/// The short form of an instance's name, for where the kernel has no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u32);

impl Tag {
    /// What the names of this instance's links begin with. Five of the fifteen characters that a link's name may have.
    pub(crate) fn link_prefix(self) -> String {
        const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let letters = (0..5).map(|i| char::from(DIGITS[(self.0 >> (5 * i)) as usize & 31]));
        "ml".chars().chain(letters).collect()
    }

    /// The metric that marks this instance's routes. Never zero, which would mean none.
    pub(crate) fn metric(self) -> u32 {
        self.0 | 1
    }
}

/// FNV-1a, 32 bits.
pub(crate) fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_leave_its_directory_is_refused() {
        for bad in ["", ".", "..", "../x", "a/b", "-a", "a b", "a\"b"] {
            assert!(PodId::new(bad).is_err(), "{bad:?}");
            assert!(InstanceName::new(bad).is_err(), "{bad:?}");
        }
        assert!(PodId::new("6f1c-9.a_b").is_ok());
    }

    #[test]
    fn a_name_read_back_from_disk_is_checked_again() {
        assert!(serde_json::from_str::<PodId>("\"../x\"").is_err());
        assert_eq!(
            serde_json::from_str::<PodId>("\"x\"").unwrap(),
            PodId::new("x").unwrap()
        );
    }

    #[test]
    fn a_link_prefix_leaves_room_for_an_address() {
        let prefix = InstanceName::new("default").unwrap().tag().link_prefix();
        assert_eq!(prefix.len(), 7);
        assert!(prefix.len() + 8 <= 15, "{prefix}");
        assert_ne!(prefix, InstanceName::new("other").unwrap().tag().link_prefix());
    }
}

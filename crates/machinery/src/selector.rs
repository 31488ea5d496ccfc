//! Label and field selectors: which objects a list, a watch or a controller means.
//!
//! Both are read once and matched many times; matching borrows from the object and allocates nothing.
//!
//! ```
//! use moorline_machinery::selector::LabelSelector;
//! let selector: LabelSelector = "app in (a,b),!canary".parse().unwrap();
//! assert!(selector.matches(serde_json::json!({"app": "a"}).as_object().unwrap()));
//! ```

mod fields;
mod json;
mod labels;
mod parse;

use std::collections::{BTreeMap, HashMap};

pub use fields::{FieldSelector, FieldTerm};
pub use json::validate_label_selector;
pub use labels::{LabelSelector, Requirement, Test};
use serde_json::{Map, Value};

/// A selector that cannot be understood. The text is Kubernetes' own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);

/// What a selector looks into: the labels of an object, or its selectable fields.
pub trait Lookup {
    /// The value of a key, if there is one.
    fn value_of(&self, key: &str) -> Option<&str>;
}

impl Lookup for Map<String, Value> {
    fn value_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl Lookup for BTreeMap<String, String> {
    fn value_of(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl<S: std::hash::BuildHasher> Lookup for HashMap<String, String, S> {
    fn value_of(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Lookup for [(&str, &str)] {
    fn value_of(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

/// An object without labels.
impl<L: Lookup + ?Sized> Lookup for Option<&L> {
    fn value_of(&self, key: &str) -> Option<&str> {
        (*self)?.value_of(key)
    }
}

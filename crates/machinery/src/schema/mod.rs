//! Structural schemas: what an object may look like, for built-in and custom kinds alike.
//!
//! A [`Schema`] is compiled once from the JSON of an `OpenAPI` document or of a `CustomResourceDefinition` and shared.
//! It prunes, fills in defaults, validates, and holds the facts that patches and server-side apply need (list types,
//! map types, merge keys). References are followed through a table of [`Definitions`], so a schema may refer to
//! itself.
//!
//! ```text
//!   JSON ──check_structural──► errors for the author of a CRD
//!     │
//!     └──compile──► Schema ──prune──► apply_defaults──► validate / validate_update ──► [FieldError]
//! ```
//!
//! Facts of built-in kinds that `OpenAPI` lacks are laid over the JSON before it is compiled, under the keys that
//! Kubernetes publishes them with: `x-kubernetes-list-type`, `x-kubernetes-list-map-keys`, `x-kubernetes-map-type`,
//! `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`.

mod compile;
mod defaulting;
mod definitions;
pub(crate) mod fault;
mod format;
mod list_types;
pub(crate) mod node;
mod object_meta;
pub(crate) mod path;
mod pattern;
mod prune;
mod structural;
pub(crate) mod validate;
#[cfg(test)]
mod validate_tests;

use std::sync::Arc;

use serde_json::Value;

pub use compile::SchemaError;
pub use definitions::Definitions;
pub use structural::check_structural;

use crate::field::{FieldError, quote};
use compile::Role;
use defaulting::Nulls;
use node::{Node, Place};
use path::Path;

/// A compiled schema. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Schema {
    root: Arc<Node>,
    definitions: Definitions,
}

impl Schema {
    /// The schema of a custom kind, from the `openAPIV3Schema` of its definition. `apiVersion`, `kind` and `metadata`
    /// are part of it whether or not they are written down.
    pub fn custom_resource(json: &Value) -> Result<Self, SchemaError> {
        Ok(Self {
            root: Arc::new(compile::node(json, Role::Resource)?),
            definitions: Definitions::default(),
        })
    }

    /// A schema that spells out all of the object and may refer to `definitions`.
    pub fn new(json: &Value, definitions: &Definitions) -> Result<Self, SchemaError> {
        Ok(Self {
            root: Arc::new(compile::node(json, Role::Part)?),
            definitions: definitions.clone(),
        })
    }

    /// The schema that `definitions` has under `name`.
    pub fn definition(name: &str, definitions: &Definitions) -> Option<Self> {
        definitions.node(name)?;
        let root = Node {
            reference: Some(name.into()),
            has_rules: true,
            ..Node::default()
        };
        Some(Self {
            root: Arc::new(root),
            definitions: definitions.clone(),
        })
    }

    /// A schema that knows nothing and keeps everything.
    pub fn anything() -> Self {
        let root = Node {
            preserve_unknown: true,
            ..Node::default()
        };
        Self {
            root: Arc::new(root),
            definitions: Definitions::default(),
        }
    }

    /// Drops unknown fields and returns their paths, as in `spec.ports[0].foo`. A strict request is refused with
    /// [`unknown_field_message`] of each; a warning one is answered with them.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(object, self.place())
    }

    /// Fills in defaults; to be done at every write and at every read of a stored object. A null where none is allowed
    /// gets the default, or is dropped where there is none.
    pub fn apply_defaults(&self, object: &mut Value) {
        defaulting::apply(object, self.place(), Nulls::Go);
    }

    /// Fills in the defaults of a built-in kind, which writes a null for a list that must be written and is not there.
    pub fn apply_defaults_around_nulls(&self, object: &mut Value) {
        defaulting::apply(object, self.place(), Nulls::Stay);
    }

    /// Everything that is wrong with a new object, CEL rules aside.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = validate::check(object, None, self.place(), &Path::Root);
        list_types::check(object, self.place(), &Path::Root, &mut errors);
        errors
    }

    /// Everything that is wrong with an update, CEL rules aside. Faults of values that did not change are let pass, so
    /// that a tightened schema does not lock objects that were stored before.
    pub fn validate_update(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = validate::check(object, Some(old), self.place(), &Path::Root);
        let mut duplicates = Vec::new();
        list_types::check(object, self.place(), &Path::Root, &mut duplicates);
        if !duplicates.is_empty() {
            let mut before = Vec::new();
            list_types::check(old, self.place(), &Path::Root, &mut before);
            if before.is_empty() {
                errors.append(&mut duplicates);
            }
        }
        errors
    }

    /// Everything that is wrong with one field of an update, CEL rules aside. The details speak of it as a whole.
    pub fn validate_field_update(&self, field: &str, object: &Value, old: &Value) -> Vec<FieldError> {
        let (Some(value), Some(place)) = (object.get(field), self.place().child(field)) else {
            return Vec::new();
        };
        let mut errors = validate::check(value, old.get(field), place, &Path::Root);
        list_types::check(value, place, &Path::Root, &mut errors);
        for error in &mut errors {
            if error.field != "<nil>" {
                error.field = format!("{field}.{}", error.field);
            }
        }
        errors
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place::new(&self.root, &self.definitions)
    }
}

/// What a strict request is told of an unknown field.
pub fn unknown_field_message(path: &str) -> String {
    format!("unknown field {}", quote(path))
}

//! CEL: the rules in a schema (`x-kubernetes-validations`) and the match conditions of webhooks.
//!
//! The language and its Kubernetes functions come from the `kube-cel` crate; its evaluator is synchronous and knows
//! nothing of clients. The walk over objects is ours, because it needs what [`crate::schema`] knows: which value is
//! the old self of which (items of map lists are matched by key), what an integer is, which names are escaped. Macros
//! that the evaluator lacks (`cel.bind`, two-variable comprehensions, `sortBy`, `optMap`) and optional selection are
//! rewritten to what it has.
//!
//! Where this differs from an API server:
//! - there is no cost budget, neither estimated when a rule is written nor spent when it runs;
//! - expressions are checked for unknown names, functions and fields, but not for types: a comparison of a number with
//!   a string is an error when it runs, not when it is written;
//! - a list of type set or map equals another only if the order is the same;
//! - `transformMapEntry` and the authorizer are not known.

mod environment;
mod expand;
mod expression;
mod rule;
#[cfg(test)]
mod tests;
mod value;

use serde_json::Value;

pub use expression::{CelError, Program};
pub(crate) use rule::{Fault, Rule, field_path};

use crate::field::FieldError;
use crate::schema::Schema;
use crate::schema::node::{Additional, Place};
use crate::schema::path::Path;
use crate::schema::validate::OldItems;

impl Schema {
    /// Every CEL rule of the schema that `object` breaks. `old` is what is stored, on updates: rules that compare with
    /// it run only then, and others are not held against values that did not change.
    pub fn check_rules(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        check(self, object, old, &Path::Root)
    }
}

pub(crate) fn check(schema: &Schema, object: &Value, old: Option<&Value>, path: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let unchanged = old.is_some_and(|old| old == object);
    walk(object, old, unchanged, schema.place(), path, &mut errors);
    errors
}

/// `unchanged` tells that this value, or one around it, is what is stored.
fn walk(
    value: &Value,
    old: Option<&Value>,
    unchanged: bool,
    place: Place<'_>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if value.is_null() || !place.has_rules() {
        return;
    }
    let old = old.filter(|old| !old.is_null());
    rule::evaluate(&place.node.rules, value, old, unchanged, place, path, errors);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let (child, here) = match place.property(key) {
                    Some(property) => (property, Path::Field(path, key)),
                    None => match &place.node.additional {
                        Additional::Schema(node) => (place.at(node), Path::Key(path, key)),
                        _ => continue,
                    },
                };
                let old = old.and_then(|old| old.get(key));
                let unchanged = unchanged || (child.has_rules() && old == Some(value));
                walk(value, old, unchanged, child, &here, errors);
            }
        }
        Value::Array(items) => {
            let Some(inside) = place.items().filter(|inside| inside.has_rules()) else {
                return;
            };
            let old_items = OldItems::new(old, place);
            for (index, item) in items.iter().enumerate() {
                let old = old_items.of(item);
                let unchanged = unchanged || old == Some(item);
                walk(item, old, unchanged, inside, &Path::Index(path, index), errors);
            }
        }
        _ => {}
    }
}

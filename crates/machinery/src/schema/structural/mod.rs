//! Whether the schema of a custom kind is structural, told to its author in the words of an API server.
//!
//! ```text
//!   invariants ─► completeness ─► defaults ─► keywords ─► rules
//!   (every field has a type,      (valid,     (what is    (compile, and oldSelf only
//!    value checks add none)        pruned)     allowed)    where items correlate)
//! ```
//!
//! Defaults are looked at only when the shape is right, rules only when everything else is.

mod defaults;
mod invariants;
mod keywords;
mod rules;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::fault;
use crate::field::FieldError;

/// Everything that keeps `schema` from being the schema of a custom kind. `field` is where it stands in its
/// definition, such as `spec.versions[0].schema.openAPIV3Schema`.
pub fn check_structural(schema: &Value, field: &str) -> Vec<FieldError> {
    let mut errors = invariants::check(schema, field);
    if errors.is_empty() {
        defaults::check(schema, field, &mut errors);
    }
    let shape_is_right = errors.is_empty();
    if flag(schema, "nullable") {
        errors.push(fault::forbidden(
            format!("{field}.nullable"),
            "nullable cannot be true at the root",
        ));
    }
    keywords::check(schema, field, &mut errors);
    if shape_is_right && errors.is_empty() {
        rules::check(schema, field, &mut errors);
    }
    errors
}

pub(crate) fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

pub(crate) fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn present<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get(key).filter(|value| !value.is_null())
}

pub(crate) fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::iter)
}

pub(crate) fn list<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema
        .get(key)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The schema of entries of a map, if additionalProperties is one.
pub(crate) fn additional_schema(schema: &Value) -> Option<&Value> {
    schema
        .get("additionalProperties")
        .filter(|additional| additional.is_object())
}

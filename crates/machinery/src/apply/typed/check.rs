//! Whether a value can be walked at all: declared fields, items that can be told apart.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::{At, below, is_declared, is_open, item_element};
use crate::apply::element::PathElement;
use crate::schema::node::{ListType, Type};

/// Whether a list may hold the same item twice: stored ones may, applied ones may not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duplicates {
    Allowed,
    Refused,
}

/// What keeps `value` from being walked, as one text.
pub(crate) fn check(value: &Value, at: At<'_>, duplicates: Duplicates) -> Result<(), String> {
    let mut walk = Walk {
        path: Vec::new(),
        errors: Vec::new(),
        duplicates,
    };
    walk.value(value, at, false);
    match walk.errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(several.iter().fold("errors:".to_owned(), |mut all, error| {
            let _ = write!(all, "\n  {error}");
            all
        })),
    }
}

struct Walk {
    path: Vec<PathElement>,
    errors: Vec<String>,
    duplicates: Duplicates,
}

impl Walk {
    /// `preserve`: something above keeps unknown fields.
    fn value(&mut self, value: &Value, at: At<'_>, preserve: bool) {
        let Some(place) = at else { return };
        let preserve = preserve || place.node.preserve_unknown;
        if self.mismatch(value, place.node.kind, place.node.int_or_string) {
            return;
        }
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    self.path.push(PathElement::field(key));
                    if !is_declared(at, key) && !is_open(place) && !preserve {
                        self.say("field not declared in schema");
                    } else {
                        self.value(value, below(at, key), preserve);
                    }
                    self.path.pop();
                }
            }
            Value::Array(items) if place.list_type() != ListType::Atomic => {
                let mut seen = BTreeSet::new();
                for (index, item) in items.iter().enumerate() {
                    let element = match item_element(item, place) {
                        Ok(element) => element,
                        Err(reason) => {
                            self.say(&format!("element {index}: {reason}"));
                            return;
                        }
                    };
                    if !seen.insert(element.clone()) && self.duplicates == Duplicates::Refused {
                        self.say(&format!("duplicate entries for key {element}"));
                    }
                    self.path.push(element);
                    self.value(item, place.items(), preserve);
                    self.path.pop();
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.path
                        .push(PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX)));
                    self.value(item, place.items(), preserve);
                    self.path.pop();
                }
            }
            _ => {}
        }
    }

    fn mismatch(&mut self, value: &Value, kind: Option<Type>, int_or_string: bool) -> bool {
        let wanted = match (value, kind) {
            (Value::Null, _)
            | (_, None)
            | (Value::Object(_), Some(Type::Object))
            | (Value::Array(_), Some(Type::Array))
            | (Value::String(_), Some(Type::String))
            | (Value::Bool(_), Some(Type::Boolean))
            | (Value::Number(_), Some(Type::Integer | Type::Number)) => return false,
            _ if int_or_string => return false,
            (_, Some(Type::Object)) => "map",
            (_, Some(Type::Array)) => "list",
            (_, Some(Type::String)) => "string",
            (_, Some(Type::Boolean)) => "boolean",
            (_, Some(Type::Integer | Type::Number)) => "numeric (int or float)",
        };
        self.say(&format!("expected {wanted}, got {value}"));
        true
    }

    fn say(&mut self, what: &str) {
        let path: String = self.path.iter().map(ToString::to_string).collect();
        self.errors.push(if path.is_empty() {
            what.to_owned()
        } else {
            format!("{path}: {what}")
        });
    }
}

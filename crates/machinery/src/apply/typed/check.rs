//! Whether a value can be walked at all: declared fields, items that can be told apart.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

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
        errors: Vec::new(),
        duplicates,
    };
    walk.value(value, at, false, &Trail::Start);
    match walk.errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(several.iter().fold("errors:".to_owned(), |mut all, error| {
            let _ = write!(all, "\n  {error}");
            all
        })),
    }
}

/// The way to a value; written out only when there is something to say.
enum Trail<'a> {
    Start,
    Field(&'a Trail<'a>, &'a str),
    Item(&'a Trail<'a>, &'a PathElement),
    Index(&'a Trail<'a>, usize),
}

impl fmt::Display for Trail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => Ok(()),
            Self::Field(before, name) => write!(f, "{before}.{name}"),
            Self::Item(before, element) => write!(f, "{before}{element}"),
            Self::Index(before, index) => write!(f, "{before}[{index}]"),
        }
    }
}

struct Walk {
    errors: Vec<String>,
    duplicates: Duplicates,
}

impl Walk {
    /// `preserve`: something above keeps unknown fields.
    fn value(&mut self, value: &Value, at: At<'_>, preserve: bool, trail: &Trail<'_>) {
        let Some(place) = at else { return };
        let preserve = preserve || place.node.preserve_unknown;
        if self.mismatch(value, place.node.kind, place.node.int_or_string, trail) {
            return;
        }
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let trail = Trail::Field(trail, key);
                    if !is_declared(at, key) && !is_open(place) && !preserve {
                        self.say(&trail, "field not declared in schema");
                    } else {
                        self.value(value, below(at, key), preserve, &trail);
                    }
                }
            }
            Value::Array(items) if place.list_type() != ListType::Atomic => {
                let mut seen = BTreeSet::new();
                for (index, item) in items.iter().enumerate() {
                    let element = match item_element(item, place) {
                        Ok(element) => element,
                        Err(reason) => return self.say(trail, &format!("element {index}: {reason}")),
                    };
                    self.value(item, place.items(), preserve, &Trail::Item(trail, &element));
                    if self.duplicates == Duplicates::Allowed {
                        continue;
                    }
                    if let Some(twice) = seen.replace(element) {
                        self.say(trail, &format!("duplicate entries for key {twice}"));
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(item, place.items(), preserve, &Trail::Index(trail, index));
                }
            }
            _ => {}
        }
    }

    fn mismatch(&mut self, value: &Value, kind: Option<Type>, int_or_string: bool, trail: &Trail<'_>) -> bool {
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
        self.say(trail, &format!("expected {wanted}, got {value}"));
        true
    }

    fn say(&mut self, trail: &Trail<'_>, what: &str) {
        let path = trail.to_string();
        self.errors.push(if path.is_empty() {
            what.to_owned()
        } else {
            format!("{path}: {what}")
        });
    }
}

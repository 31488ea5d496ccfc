//! Whether a value can be walked at all: declared fields, items that can be told apart.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use serde_json::Value;

use super::{At, below, is_declared, is_open, item_element};
use crate::apply::element::PathElement;
use crate::field::quote;
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
                        // What comes after it is not looked at.
                        return self.say(&trail, "field not declared in schema");
                    }
                    self.value(value, below(at, key), preserve, &trail);
                }
            }
            Value::Array(items) if place.list_type() != ListType::Atomic => {
                let mut seen = BTreeSet::new();
                for (index, item) in items.iter().enumerate() {
                    let element = match item_element(item, place) {
                        Ok(element) => element,
                        Err(reason) => return self.say(trail, &format!("element {index}: {reason}")),
                    };
                    if self.duplicates == Duplicates::Refused && !seen.insert(element.clone()) {
                        self.say(trail, &format!("duplicate entries for key {element}"));
                    }
                    self.value(item, place.items(), preserve, &Trail::Item(trail, &element));
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
            (_, Some(Type::Object)) => format!("map, got {value}"),
            (_, Some(Type::Array)) => format!("list, got {value}"),
            (_, Some(Type::String)) => format!("string, got &value.valueUnstructured{{Value:{}}}", go_syntax(value)),
            (_, Some(Type::Boolean)) => format!("boolean, got {value}"),
            (_, Some(Type::Integer | Type::Number)) => format!("numeric (int or float), got {}", go_type(value)),
        };
        self.say(trail, &format!("expected {wanted}"));
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

/// The Go type of a value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as it would be written in Go.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(key, value)| format!("{}:{}", quote(key), go_syntax(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
        Value::String(text) => quote(text),
        Value::Null => "interface {}(nil)".to_owned(),
        other => other.to_string(),
    }
}

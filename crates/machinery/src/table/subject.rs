//! An object as a printer looks at it.

use jiff::Timestamp;
use serde_json::Value;

use crate::{meta, quantity::Quantity, selector::LabelSelector, time};

/// An object and the time at which it is looked at.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) object: &'a Value,
    pub(super) now: Timestamp,
}

impl<'a> Subject<'a> {
    pub(super) fn new(object: &'a Value, now: Timestamp) -> Self {
        Subject { object, now }
    }

    pub(super) fn name(&self) -> &'a str {
        meta::of(self.object).name()
    }

    pub(super) fn meta(&self) -> meta::Meta<'a> {
        meta::of(self.object)
    }

    /// What stands at a path of names separated by dots.
    pub(super) fn at(&self, path: &str) -> Option<&'a Value> {
        at(self.object, path)
    }

    pub(super) fn text(&self, path: &str) -> &'a str {
        text(self.object, path)
    }

    /// The text at a path, or something else where there is none or it is empty.
    pub(super) fn text_or(&self, path: &str, otherwise: &'static str) -> &'a str {
        match self.text(path) {
            "" => otherwise,
            text => text,
        }
    }

    pub(super) fn integer(&self, path: &str) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(super) fn items(&self, path: &str) -> &'a [Value] {
        items(self.object, path)
    }

    pub(super) fn count(&self, path: &str) -> usize {
        match self.at(path) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(entries)) => entries.len(),
            _ => 0,
        }
    }

    pub(super) fn age(&self) -> String {
        self.since(self.meta().creation_timestamp())
    }

    /// How long ago a time was.
    pub(super) fn since(&self, then: Option<&str>) -> String {
        match then.map(time::parse) {
            Some(Ok(then)) => time::age(then, self.now),
            _ => "<unknown>".to_owned(),
        }
    }

    /// A map of labels as a selector would be written.
    pub(super) fn labels(&self, path: &str) -> String {
        let labels = self.at(path).and_then(Value::as_object);
        let labels: Vec<String> = labels
            .into_iter()
            .flatten()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        if labels.is_empty() {
            "<none>".to_owned()
        } else {
            labels.join(",")
        }
    }

    /// A label selector as text.
    pub(super) fn selector(&self, path: &str) -> String {
        match LabelSelector::from_json(self.at(path)) {
            Ok(selector) if selector.requirements().is_empty() => "<none>".to_owned(),
            Ok(selector) => selector.to_string(),
            Err(_) => "<error>".to_owned(),
        }
    }

    /// The condition of a type.
    pub(super) fn condition(&self, name: &str) -> Option<&'a Value> {
        self.items("status.conditions")
            .iter()
            .find(|condition| text(condition, "type") == name)
    }

    pub(super) fn condition_is_true(&self, name: &str) -> bool {
        self.condition(name)
            .is_some_and(|condition| text(condition, "status") == "True")
    }
}

pub(super) fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn integer(value: &Value, path: &str) -> i64 {
    at(value, path).and_then(Value::as_i64).unwrap_or_default()
}

pub(super) fn items<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A quantity in its canonical form; absent, it is nothing.
pub(super) fn quantity(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "0".to_owned(),
        Some(Value::String(text)) => text
            .parse::<Quantity>()
            .map_or_else(|_| text.clone(), |value| value.to_string()),
        Some(other) => other.to_string(),
    }
}

/// The first few of a list, and how many there are beyond.
pub(super) fn with_more(mut shown: Vec<String>, max: usize, count: usize, separator: &str) -> String {
    if count <= max {
        return shown.join(separator);
    }
    shown.truncate(max);
    format!("{} + {} more...", shown.join(separator), count - max)
}

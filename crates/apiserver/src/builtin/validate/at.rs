//! A value of an object together with where it stands, so that a rule reads as one line.

use moorline_machinery::{
    field::{ErrorKind, FieldError, Path},
    names,
    quantity::Quantity,
};
use serde_json::Value;

/// What is wrong with an object so far.
pub(super) type Errors = Vec<FieldError>;

static NULL: Value = Value::Null;

/// A value and its path. What has another type than expected counts as absent: types are checked before.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) value: &'a Value,
    pub(super) path: Path<'a>,
}

impl<'a> At<'a> {
    /// A whole object.
    pub(super) fn object(value: &'a Value) -> Self {
        Self {
            value,
            path: Path::OBJECT,
        }
    }

    /// A field.
    pub(super) fn at<'b>(&'b self, name: &'b str) -> At<'b> {
        At {
            value: self.value.get(name).unwrap_or(&NULL),
            path: self.path.child(name),
        }
    }

    /// The same place in another object, which an error shall show.
    pub(super) fn with<'b>(&'b self, value: &'b Value) -> At<'b> {
        At { value, path: self.path }
    }

    /// Whether there is something, if only an empty one.
    pub(super) fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Whether Go would take it for its zero value.
    pub(super) fn is_empty(&self) -> bool {
        is_empty(self.value)
    }

    /// Text; empty if there is none.
    pub(super) fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    /// A number; zero if there is none.
    pub(super) fn number(&self) -> i64 {
        self.value.as_i64().unwrap_or_default()
    }

    /// A number that may be absent.
    pub(super) fn optional_number(&self) -> Option<i64> {
        self.value.as_i64()
    }

    /// True, if it says so.
    pub(super) fn flag(&self) -> bool {
        self.value.as_bool().unwrap_or_default()
    }

    /// The elements of a list.
    pub(super) fn items(&self) -> &'a [Value] {
        self.value.as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// The entries of a map.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        self.value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// How many elements or entries there are.
    pub(super) fn len(&self) -> usize {
        match self.value {
            Value::Array(items) => items.len(),
            Value::Object(entries) => entries.len(),
            _ => 0,
        }
    }

    /// An amount.
    pub(super) fn quantity(&self) -> Option<Quantity> {
        quantity(self.value)
    }

    /// Looks at every element of a list.
    pub(super) fn each(&self, mut look: impl FnMut(&At<'_>)) {
        for (index, value) in self.items().iter().enumerate() {
            look(&At {
                value,
                path: self.path.index(index),
            });
        }
    }

    /// Looks at every entry of a map.
    pub(super) fn each_entry(&self, mut look: impl FnMut(&str, &At<'_>)) {
        for (key, value) in self.entries() {
            look(
                key,
                &At {
                    value,
                    path: self.path.key(key),
                },
            );
        }
    }

    /// Reports a missing value, with a reason.
    pub(super) fn missing(&self, errors: &mut Errors, why: &str) {
        errors.push(FieldError::required(&self.path, why));
    }

    /// Reports the value.
    pub(super) fn invalid(&self, errors: &mut Errors, why: impl Into<String>) {
        errors.push(FieldError::invalid(&self.path, self.value.clone(), why));
    }

    /// Reports another value in place of the one here.
    pub(super) fn invalid_as(&self, errors: &mut Errors, shown: impl Into<Value>, why: impl Into<String>) {
        errors.push(FieldError::invalid(&self.path, shown, why));
    }

    /// Reports that nothing may stand here.
    pub(super) fn forbidden(&self, errors: &mut Errors, why: impl Into<String>) {
        errors.push(FieldError::forbidden(&self.path, why));
    }

    /// Reports a repetition.
    pub(super) fn duplicate(&self, errors: &mut Errors, shown: impl Into<Value>) {
        errors.push(FieldError::duplicate(&self.path, shown));
    }

    /// Reports a reference into the void.
    pub(super) fn not_found(&self, errors: &mut Errors, shown: &str) {
        errors.push(FieldError::not_found(&self.path, shown));
    }

    /// Reports text longer than this.
    pub(super) fn max_length(&self, errors: &mut Errors, max: usize) {
        if self.text().len() > max {
            errors.push(FieldError::too_long(&self.path, max));
        }
    }

    /// Something must be there. Tells whether it is.
    pub(super) fn require(&self, errors: &mut Errors) -> bool {
        self.require_for(errors, "")
    }

    /// Something must be there, for a reason. Tells whether it is.
    pub(super) fn require_for(&self, errors: &mut Errors, why: &str) -> bool {
        let is_there = !self.is_empty();
        if !is_there {
            self.missing(errors, why);
        }
        is_there
    }

    /// Text must follow a rule.
    pub(super) fn follow(&self, errors: &mut Errors, rule: impl Fn(&str) -> Vec<String>) {
        for complaint in rule(self.text()) {
            self.invalid_as(errors, self.text(), complaint);
        }
    }

    /// Text must follow a rule, if there is some.
    pub(super) fn follow_if_set(&self, errors: &mut Errors, rule: impl Fn(&str) -> Vec<String>) {
        if !self.text().is_empty() {
            self.follow(errors, rule);
        }
    }

    /// Text must be there and follow a rule.
    pub(super) fn require_following(&self, errors: &mut Errors, rule: impl Fn(&str) -> Vec<String>) {
        if self.require(errors) {
            self.follow(errors, rule);
        }
    }

    /// Text must be one of these.
    pub(super) fn one_of(&self, errors: &mut Errors, supported: &[&str]) {
        if !supported.contains(&self.text()) {
            errors.push(FieldError::not_supported(&self.path, self.text(), supported));
        }
    }

    /// Text must be there and be one of these.
    pub(super) fn require_one_of(&self, errors: &mut Errors, supported: &[&str]) {
        if self.require(errors) {
            self.one_of(errors, supported);
        }
    }

    /// Text must be one of these, if it is there.
    pub(super) fn one_of_if_set(&self, errors: &mut Errors, supported: &[&str]) {
        if self.is_set() {
            self.one_of(errors, supported);
        }
    }

    /// A number must not be below zero.
    pub(super) fn not_negative(&self, errors: &mut Errors) {
        if self.number() < 0 {
            self.invalid(errors, NOT_NEGATIVE);
        }
    }

    /// A number must lie between these.
    pub(super) fn within(&self, errors: &mut Errors, low: i64, high: i64) {
        if !(low..=high).contains(&self.number()) {
            self.invalid_as(
                errors,
                self.number(),
                format!("must be between {low} and {high}, inclusive"),
            );
        }
    }

    /// A number must be that of a port.
    pub(super) fn port(&self, errors: &mut Errors) {
        self.within(errors, 1, 65_535);
    }

    /// The value must be what it was.
    pub(super) fn unchanged(&self, errors: &mut Errors, old: &Value) {
        if !same(self.value, old) {
            self.invalid(errors, IMMUTABLE);
        }
    }

    /// A selector in JSON form must be sound.
    pub(super) fn label_selector(&self, errors: &mut Errors) {
        moorline_machinery::selector::validate_label_selector(self.value, &self.path, errors);
    }

    /// Labels must be sound.
    pub(super) fn labels(&self, errors: &mut Errors) {
        for (key, value) in self.entries() {
            for complaint in names::qualified_name(key) {
                self.invalid_as(errors, key, complaint);
            }
            let value = value.as_str().unwrap_or_default();
            for complaint in names::label_value(value) {
                self.invalid_as(errors, value, complaint);
            }
        }
    }
}

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const IMMUTABLE: &str = "field is immutable";

/// An error that shows a value of one of Kubernetes' internal types, which have other field names than JSON.
pub(super) fn internal_value(kind: ErrorKind, path: &Path<'_>, shown: &str, why: &str) -> FieldError {
    let detail = if why.is_empty() {
        shown.to_owned()
    } else {
        format!("{shown}: {why}")
    };
    FieldError {
        kind,
        field: path.to_string(),
        value: None,
        detail,
    }
}

/// JSON of a value for such an error; null if there is none.
pub(super) fn shown(value: &Value) -> String {
    value.to_string()
}

/// Whether Go would take a value for its zero value.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Whether two values are the same to Kubernetes, which does not tell an absent value from an empty one, and compares
/// amounts by what they amount to.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let null = &NULL;
            left.iter()
                .all(|(key, value)| same(value, right.get(key).unwrap_or(null)))
                && right
                    .iter()
                    .all(|(key, value)| left.contains_key(key) || is_absent(value))
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        _ => left == right || (is_absent(left) && is_absent(right)),
    }
}

/// Null, or a list or map of nothing. Zero and false are values where a pointer holds them.
fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// An amount out of JSON.
pub(super) fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// The value at a path of fields, or null.
pub(super) fn dig<'v>(value: &'v Value, fields: &[&str]) -> &'v Value {
    fields
        .iter()
        .fold(value, |value, field| value.get(field).unwrap_or(&NULL))
}

/// Puts a value at a path of fields, as far as there are objects on the way.
pub(super) fn put(value: &mut Value, fields: &[&str], new: Value) {
    let Some((last, way)) = fields.split_last() else { return };
    let holder = way.iter().try_fold(value, |value, field| value.get_mut(field));
    if let Some(Value::Object(holder)) = holder {
        holder.insert((*last).to_owned(), new);
    }
}

/// The elements of a list at a field, to be changed.
pub(super) fn items_mut<'v>(value: &'v mut Value, field: &str) -> impl Iterator<Item = &'v mut Value> {
    value.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

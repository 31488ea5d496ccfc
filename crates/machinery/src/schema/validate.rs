//! Whether a value is what its schema says. All faults are found in one walk.
//!
//! Two things follow what clients of API servers rely on: the texts, and which fault is told when none of several
//! alternatives fits (the alternative that came furthest).

use serde_json::{Map, Number, Value};

use super::fault;
use super::format;
use super::node::{Additional, Bound, Checks, ListType, Node, Place, Type};
use super::path::Path;
use crate::field::{FieldError, number_text, quote};

/// Faults that belong to no single field carry this in place of a path.
const NO_FIELD: &str = "<nil>";

/// Checks `value`; where `old` is the stored value of the same place, a fault that was already there is let pass.
pub(crate) fn check(value: &Value, old: Option<&Value>, place: Place<'_>, path: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(value, old, place, path, &mut errors);
    errors
}

/// Appends what is wrong and returns how many checks were made, the measure of how far an alternative came.
fn walk(value: &Value, old: Option<&Value>, place: Place<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) -> usize {
    let before = errors.len();
    let mut made = 1 + check_type(value, place, path, errors);
    check_range(value, place.node, path, errors);
    let checks = place.node.checks.as_deref();
    if let Some(checks) = checks {
        if !value.is_null() {
            made += check_alternatives(value, old, checks, place, path, errors);
        }
        made += check_scalar(value, checks, path, errors);
    }
    match value {
        Value::Array(items) => made += check_items(items, old, place, path, errors),
        Value::Object(map) => made += check_fields(map, old, place, path, errors),
        _ => {}
    }
    if errors.len() > before && old == Some(value) {
        errors.truncate(before);
    }
    made
}

fn check_type(value: &Value, place: Place<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) -> usize {
    let node = place.node;
    let format = node.checks.as_deref().and_then(|checks| checks.format.as_deref());
    let wanted: &[Type] = match (&node.kind, node.int_or_string) {
        (_, true) => &[Type::Integer, Type::String],
        (Some(kind), false) => std::slice::from_ref(kind),
        (None, false) if format.is_none() => return 0,
        (None, false) => &[],
    };
    let mut mismatch = |wanted: &str, found: &str| {
        let at = path.dotted();
        let detail = format!("{at} in body must be of type {wanted}: {}", quote(found));
        errors.push(fault::type_invalid(field_of(at), found, detail));
    };
    let names = || wanted.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(",");
    let (found, found_format) = match value {
        Value::Null => {
            if !wanted.is_empty() && !place.nullable() {
                mismatch(&names(), "null");
            }
            return 1;
        }
        Value::Bool(_) => (Type::Boolean, ""),
        Value::String(_) => (Type::String, ""),
        Value::Array(_) => (Type::Array, ""),
        Value::Object(_) => (Type::Object, ""),
        Value::Number(number) if number.is_i64() => (Type::Integer, "int64"),
        Value::Number(_) => (Type::Number, "float64"),
    };
    let whole = matches!(value, Value::Number(number) if is_whole(number)) && wanted.contains(&Type::Integer);
    let fits = wanted.contains(&found) || whole || (found == Type::Integer && wanted.contains(&Type::Number));
    let textual = matches!(found, Type::String | Type::Array);
    match format {
        Some(format) if !textual && !fits && found_format != format => mismatch(format, found_format),
        Some(_) if textual && !wanted.contains(&Type::Number) && !wanted.contains(&Type::Integer) => {}
        _ if fits => {}
        _ => mismatch(&names(), found.name()),
    }
    1
}

fn float_text(float: f64) -> String {
    Number::from_f64(float).map_or_else(String::new, |number| number_text(&number))
}

fn is_whole(number: &Number) -> bool {
    const EXACT: f64 = 9_007_199_254_740_991.0;
    number
        .as_f64()
        .is_some_and(|float| float.fract() == 0.0 && float.abs() <= EXACT)
}

fn field_of(dotted: String) -> String {
    if dotted.is_empty() { NO_FIELD.to_owned() } else { dotted }
}

fn check_scalar(value: &Value, checks: &Checks, path: &Path<'_>, errors: &mut Vec<FieldError>) -> usize {
    match value {
        Value::String(text) => check_text(text, checks, path, errors),
        Value::Number(number) => check_number(number, checks, path, errors),
        _ => {}
    }
    if !checks.allowed.is_empty() && !checks.allowed.iter().any(|allowed| same(allowed, value)) {
        let supported = checks.allowed.iter().map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        errors.push(fault::not_supported(field_of(path.dotted()), value.clone(), supported));
    }
    1
}

/// Equality that does not tell 1 from 1.0.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn check_text(text: &str, checks: &Checks, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let length = |max: u64| text.len() as u64 > max && text.chars().count() as u64 > max;
    if let Some(max) = checks.max_length.filter(|max| length(*max)) {
        errors.push(fault::too_long(field_of(path.dotted()), max));
    } else if let Some(min) = checks.min_length.filter(|min| (text.chars().count() as u64) < *min) {
        should(path, text, &format!("should be at least {min} chars long"), errors);
    } else if let Some(pattern) = checks.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
        should(path, text, &format!("should match '{}'", pattern.source()), errors);
    }
    if let Some(format) = checks.format.as_deref().filter(|format| !format::holds(format, text)) {
        let at = path.dotted();
        let detail = format!("{at} in body must be of type {format}: {}", quote(text));
        errors.push(fault::type_invalid(field_of(at), text, detail));
    }
}

/// A number of an integer type is one, and within its bounds.
fn check_range(value: &Value, node: &Node, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let (Value::Number(number), Some(Type::Integer), false) = (value, node.kind, node.int_or_string) else {
        return;
    };
    let format = node.checks.as_deref().and_then(|checks| checks.format.as_deref());
    let is_integer = number.is_i64() || is_whole(number);
    let float = number.as_f64().unwrap_or(f64::NAN);
    let in_range = match format {
        Some("int32") => is_integer && float >= f64::from(i32::MIN) && float <= f64::from(i32::MAX),
        _ => is_integer,
    };
    if !in_range {
        let which = format.map_or("(default format)".to_owned(), |format| format!("with format {format}"));
        let detail = format!("Checked value must be of type integer {which} in {}", path.dotted());
        errors.push(fault::invalid(NO_FIELD, "", detail));
    }
}

fn check_number(number: &Number, checks: &Checks, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let value = number.as_f64().unwrap_or(f64::NAN);
    let mut out = |what: &str, limit: f64| {
        let limit = if number.is_i64() && limit.fract() == 0.0 {
            limit.to_string()
        } else {
            float_text(limit)
        };
        should(
            path,
            Value::Number(number.clone()),
            &format!("should be {what} {limit}"),
            errors,
        );
    };
    if let Some(factor) = checks.multiple_of.filter(|factor| *factor > 0.0) {
        let ratio = value / factor;
        if (ratio - ratio.round()).abs() > f64::EPSILON * ratio.abs().max(1.0) {
            out("a multiple of", factor);
        }
    }
    if let Some(Bound { limit, exclusive }) = checks.minimum {
        if exclusive && value <= limit {
            out("greater than", limit);
        } else if value < limit {
            out("greater than or equal to", limit);
        }
    }
    if let Some(Bound { limit, exclusive }) = checks.maximum {
        if exclusive && value >= limit {
            out("less than", limit);
        } else if value > limit {
            out("less than or equal to", limit);
        }
    }
}

fn should(path: &Path<'_>, value: impl Into<Value>, what: &str, errors: &mut Vec<FieldError>) {
    let at = path.dotted();
    let detail = format!("{at} in body {what}");
    errors.push(fault::invalid(field_of(at), value, detail));
}

fn check_items(
    items: &[Value],
    old: Option<&Value>,
    place: Place<'_>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) -> usize {
    let mut made = 1;
    if let Some(inside) = place.items() {
        let old_items = OldItems::new(old, place);
        for (index, item) in items.iter().enumerate() {
            made += walk(item, old_items.of(item), inside, &Path::Index(path, index), errors);
        }
    }
    let Some(checks) = place.node.checks.as_deref() else {
        return made;
    };
    let count = items.len() as u64;
    if let Some(min) = checks.min_items.filter(|min| count < *min) {
        should(path, count, &format!("should have at least {min} items"), errors);
    }
    if let Some(max) = checks.max_items.filter(|max| count > *max) {
        errors.push(fault::too_many(field_of(path.dotted()), items.len(), max));
    }
    if checks.unique_items {
        let mut seen = std::collections::HashSet::with_capacity(items.len());
        if !items.iter().all(|item| seen.insert(item.to_string())) {
            should(path, "", "shouldn't contain duplicates", errors);
        }
    }
    made
}

fn check_fields(
    map: &Map<String, Value>,
    old: Option<&Value>,
    place: Place<'_>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) -> usize {
    let node = place.node;
    let mut made = 1;
    if let Some(checks) = node.checks.as_deref() {
        let count = map.len() as u64;
        if let Some(min) = checks.min_properties.filter(|min| count < *min) {
            should(path, count, &format!("should have at least {min} properties"), errors);
        }
        if let Some(max) = checks.max_properties.filter(|max| count > *max) {
            errors.push(fault::too_many(field_of(path.dotted()), map.len(), max));
        }
    }
    let old = old.filter(|_| !place.is_atomic_map()).and_then(Value::as_object);
    for (key, value) in map {
        let (child, here) = match place.property(key) {
            Some(property) => (Some(property), Path::Field(path, key)),
            None => (place.additional(), Path::Key(path, key)),
        };
        if let Some(child) = child {
            made += walk(value, old.and_then(|old| old.get(key)), child, &here, errors);
        } else if matches!(node.additional, Additional::Nothing) {
            fault_forbidden(path, key, errors);
        }
    }
    for name in &node.required {
        if !map.contains_key(&**name) {
            errors.push(fault::required(Path::Field(path, name).dotted(), ""));
        }
    }
    made
}

fn fault_forbidden(path: &Path<'_>, key: &str, errors: &mut Vec<FieldError>) {
    let at = path.dotted();
    let detail = format!("{at}.{key} in body is a forbidden property");
    errors.push(fault::invalid(field_of(at), "", detail));
}

fn check_alternatives(
    value: &Value,
    old: Option<&Value>,
    checks: &Checks,
    place: Place<'_>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) -> usize {
    let mut made = 1;
    let attempt = |node: &Node| {
        let mut errors = Vec::new();
        let made = walk(value, old, place.at(node), path, &mut errors);
        (made, errors)
    };
    let say = |errors: &mut Vec<FieldError>, what: &str| {
        errors.push(fault::invalid(
            NO_FIELD,
            "",
            format!("{} {what}", quote(&path.dotted())),
        ));
    };
    if !checks.any_of.is_empty() {
        let mut furthest: Option<(usize, Vec<FieldError>)> = None;
        let mut fits = false;
        for node in &checks.any_of {
            let (came, faults) = attempt(node);
            if faults.is_empty() {
                fits = true;
                made += came;
                break;
            }
            if furthest.as_ref().is_none_or(|(best, _)| came > *best) {
                furthest = Some((came, faults));
            }
        }
        if !fits {
            say(errors, "must validate at least one schema (anyOf)");
            errors.extend(furthest.into_iter().flat_map(|(_, faults)| faults));
        }
    }
    if !checks.one_of.is_empty() {
        let mut furthest: Option<(usize, Vec<FieldError>)> = None;
        let mut fitting = 0;
        for node in &checks.one_of {
            let (came, faults) = attempt(node);
            if faults.is_empty() {
                fitting += 1;
                made += came;
            } else if furthest.as_ref().is_none_or(|(best, _)| came > *best) {
                furthest = Some((came, faults));
            }
        }
        if fitting == 0 {
            say(
                errors,
                "must validate one and only one schema (oneOf). Found none valid",
            );
            errors.extend(furthest.into_iter().flat_map(|(_, faults)| faults));
        } else if fitting > 1 {
            let what = format!("must validate one and only one schema (oneOf). Found {fitting} valid alternatives");
            say(errors, &what);
        }
    }
    if !checks.all_of.is_empty() {
        let mut fitting = 0;
        for node in &checks.all_of {
            let (came, faults) = attempt(node);
            made += came;
            fitting += usize::from(faults.is_empty());
            errors.extend(faults);
        }
        if fitting < checks.all_of.len() {
            let none = if fitting == 0 { ". None validated" } else { "" };
            say(errors, &format!("must validate all the schemas (allOf){none}"));
        }
    }
    if let Some(not) = &checks.not
        && attempt(not).1.is_empty()
    {
        say(errors, "must not validate the schema (not)");
    }
    made
}

/// The stored items of a list, found by what identifies them. Items of other lists have no counterpart.
pub(crate) struct OldItems<'a> {
    keys: &'a [Box<str>],
    by_key: std::collections::HashMap<String, &'a Value>,
}

impl<'a> OldItems<'a> {
    pub(crate) fn new(old: Option<&'a Value>, place: Place<'a>) -> Self {
        let keys = if place.list_type() == ListType::Map {
            place.list_keys()
        } else {
            &[]
        };
        let items = old.filter(|_| !keys.is_empty()).and_then(Value::as_array);
        let by_key = items
            .into_iter()
            .flatten()
            .map(|item| (key_of(item, keys), item))
            .collect();
        Self { keys, by_key }
    }

    pub(crate) fn of(&self, item: &Value) -> Option<&'a Value> {
        if self.by_key.is_empty() {
            None
        } else {
            self.by_key.get(&key_of(item, self.keys)).copied()
        }
    }
}

fn key_of(item: &Value, keys: &[Box<str>]) -> String {
    let mut out = String::new();
    for key in keys {
        if let Some(value) = item.get(&**key) {
            out.push_str(&value.to_string());
        }
        out.push('\0');
    }
    out
}

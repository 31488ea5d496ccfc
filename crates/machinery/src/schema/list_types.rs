//! Lists that are sets or maps hold no item twice.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::fault;
use super::node::{ListType, Place};
use super::path::Path;
use crate::field::FieldError;

/// Finds duplicates in every set and map list of `value`.
pub(crate) fn check(value: &Value, place: Place<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if let Some(property) = place.property(key) {
                    check(value, property, &Path::Field(path, key), errors);
                } else if let Some(additional) = place.additional() {
                    check(value, additional, &Path::Key(path, key), errors);
                }
            }
        }
        Value::Array(items) => {
            match place.list_type() {
                ListType::Atomic => {}
                ListType::Set => duplicates(items.iter().cloned(), path, errors),
                ListType::Map => {
                    let stray = items.iter().position(|item| !item.is_null() && !item.is_object());
                    if let Some(index) = stray {
                        let detail = "must be an object for an array of list-type map";
                        let field = Path::Index(path, index).brackets();
                        errors.push(fault::invalid(field, items[index].clone(), detail));
                    } else {
                        duplicates(items.iter().map(|item| key_of(item, place.list_keys())), path, errors);
                    }
                }
            }
            if let Some(inside) = place.items() {
                for (index, item) in items.iter().enumerate() {
                    check(item, inside, &Path::Index(path, index), errors);
                }
            }
        }
        _ => {}
    }
}

fn key_of(item: &Value, keys: &[Box<str>]) -> Value {
    let key = keys
        .iter()
        .filter_map(|key| Some((key.to_string(), item.get(&**key)?.clone())));
    Value::Object(key.collect::<Map<_, _>>())
}

/// Reports each value that is repeated once, however often it is.
fn duplicates(values: impl ExactSizeIterator<Item = Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if values.len() < 2 {
        return;
    }
    let mut seen = HashMap::with_capacity(values.len());
    for (index, value) in values.enumerate() {
        let times = seen.entry(value.to_string()).or_insert(0_u32);
        *times += 1;
        if *times == 2 {
            errors.push(fault::duplicate(Path::Index(path, index).brackets(), value));
        }
    }
}

//! Values seen through their schema: which parts are owned one by one, and which as a whole.
//!
//! Scalars, atomic lists and atomic maps are leaves. Objects and maps are walked by field, lists of type map by the
//! key fields of their items, sets by value. Where the schema says nothing, maps are walked and lists are leaves.

mod check;
mod compare;
mod fields;
mod merge;
mod remove;

use serde_json::{Map, Value};

pub(crate) use check::{Duplicates, check};
pub(crate) use compare::{Comparison, compare};
pub(crate) use fields::{field_set, name_ancestors, settle};
pub(crate) use merge::merge;
pub(crate) use remove::{Emptied, remove};

use super::element::{PathElement, Scalar};
use crate::schema::node::{Additional, ListType, Place, Type};

/// What the schema says of a place; `None` where it says nothing.
pub(crate) type At<'a> = Option<Place<'a>>;

/// How a value is owned.
pub(crate) enum Shape<'v> {
    Leaf,
    Map(&'v Map<String, Value>),
    List(&'v [Value]),
}

pub(crate) fn shape<'v>(value: &'v Value, at: At<'_>) -> Shape<'v> {
    match value {
        Value::Object(map) if !at.is_some_and(Place::is_atomic_map) => Shape::Map(map),
        Value::Array(items) if at.is_some_and(|place| place.list_type() != ListType::Atomic) => Shape::List(items),
        _ => Shape::Leaf,
    }
}

/// The place of the value under `key`.
pub(crate) fn below<'a>(at: At<'a>, key: &str) -> At<'a> {
    at.and_then(|place| place.child(key))
}

pub(crate) fn is_declared(at: At<'_>, key: &str) -> bool {
    at.is_some_and(|place| place.node.properties.contains_key(key))
}

/// Whether keys that are no properties may stand in an object.
pub(crate) fn is_open(place: Place<'_>) -> bool {
    match place.node.additional {
        Additional::Any | Additional::Schema(_) => true,
        Additional::Nothing => false,
        Additional::Unspecified => {
            place.node.preserve_unknown || place.node.kind != Some(Type::Object) || place.node.properties.is_empty()
        }
    }
}

/// What identifies an item of a list that is a set or a map, or why nothing does.
pub(crate) fn item_element(item: &Value, place: Place<'_>) -> Result<PathElement, String> {
    let keys = place.list_keys();
    if place.list_type() == ListType::Set {
        return match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
            scalar => Ok(PathElement::Value(Scalar::new(scalar))),
        };
    }
    let Value::Object(map) = item else {
        let what = if item.is_null() {
            "a null element"
        } else {
            "non-map elements"
        };
        return Err(format!("associative list with keys may not have {what}"));
    };
    let inside = place.items();
    let mut fields = Vec::with_capacity(keys.len());
    for key in keys {
        let default = || below(inside, key).and_then(Place::default);
        if let Some(value) = map.get(&**key).or_else(default) {
            fields.push((key.clone(), Scalar::new(value)));
        }
    }
    if fields.is_empty() && !keys.is_empty() {
        let keys: Vec<_> = keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            keys.join(" ")
        ));
    }
    fields.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(PathElement::Key(fields.into()))
}

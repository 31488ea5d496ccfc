//! The set of fields that a value has, and sets seen through a schema.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{At, Shape, below, is_declared, item_element, shape};
use crate::apply::element::PathElement;
use crate::apply::set::FieldSet;
use crate::schema::node::{ListType, Place};

/// Every leaf, list item and map entry of `value`. Objects with declared fields are not in the set by themselves,
/// unless they are empty.
pub(crate) fn field_set(value: &Value, at: At<'_>) -> FieldSet {
    walk(value, at).1
}

/// Whether the value itself is a leaf, and the set below it.
fn walk(value: &Value, at: At<'_>) -> (bool, FieldSet) {
    let mut set = FieldSet::new();
    match shape(value, at) {
        Shape::Leaf => return (true, set),
        Shape::Map(map) => {
            for (key, value) in map {
                let (leaf, inside) = walk(value, below(at, key));
                let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                set.push(PathElement::field(key), leaf || empty || !is_declared(at, key), inside);
            }
        }
        Shape::List(items) => {
            let Some(place) = at else { return (true, set) };
            let mut found: BTreeMap<PathElement, Option<&Value>> = BTreeMap::new();
            for item in items {
                if let Ok(element) = item_element(item, place) {
                    found
                        .entry(element)
                        .and_modify(|item| *item = None)
                        .or_insert(Some(item));
                }
            }
            for (element, item) in found {
                // Items that occur twice are owned without their fields: nobody could tell whose fields they are.
                let inside = item.map(|item| walk(item, place.items()).1).unwrap_or_default();
                set.push(element, true, inside);
            }
        }
    }
    (false, set)
}

/// The set with every declared field that is above a member made a member, so that removing it removes what is below.
pub(crate) fn name_ancestors(set: &FieldSet, at: At<'_>) -> FieldSet {
    let mut named = set.clone();
    name_in_place(&mut named, at);
    named
}

fn name_in_place(set: &mut FieldSet, at: At<'_>) {
    for entry in set.entries_mut() {
        if entry.below.is_empty() {
            continue;
        }
        if let PathElement::Field(name) = &entry.element {
            entry.member |= is_declared(at, name);
        }
        let inside = element_place(&entry.element, at);
        name_in_place(&mut entry.below, inside);
    }
}

fn element_place<'a>(element: &PathElement, at: At<'a>) -> At<'a> {
    match element {
        PathElement::Field(name) => below(at, name),
        _ => at.and_then(Place::items),
    }
}

/// Brings a set that was written under another schema in line with this one: parts of what is now a leaf become the
/// leaf.
pub(crate) fn settle(set: &mut FieldSet, at: At<'_>) {
    for entry in set.entries_mut() {
        let Some(place) = element_place(&entry.element, at) else {
            continue;
        };
        if entry.below.is_empty() {
            continue;
        }
        let items = entry
            .below
            .entries()
            .iter()
            .any(|below| !matches!(below.element, PathElement::Field(_)));
        let atomic = if items {
            place.list_type() == ListType::Atomic
        } else {
            place.is_atomic_map()
        };
        if atomic {
            entry.member = true;
            entry.below = FieldSet::new();
        } else {
            settle(&mut entry.below, Some(place));
        }
    }
}

//! One value laid over another: leaves of the upper one win, everything else stays.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{At, Shape, below, item_element, shape};
use crate::apply::element::PathElement;
use crate::schema::node::Place;

/// Lays `upper` over `lower`.
pub(crate) fn merge(lower: &mut Value, upper: &Value, at: At<'_>) {
    match (shape(lower, at), shape(upper, at)) {
        (Shape::Map(old), Shape::Map(new)) if !old.is_empty() || !new.is_empty() => {
            let Value::Object(old) = lower else { return };
            for (key, value) in new {
                match old.get_mut(key) {
                    Some(there) => merge(there, value, below(at, key)),
                    None => {
                        old.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Shape::List(_), Shape::List(new)) => {
            let (Value::Array(old), Some(place)) = (lower, at) else {
                return;
            };
            lists(old, new, place);
        }
        // Null says nothing about a map or list that has something in it.
        (Shape::Map(old), Shape::Leaf) if upper.is_null() && !old.is_empty() => {}
        (Shape::List(old), Shape::Leaf) if upper.is_null() && !old.is_empty() => {}
        _ => lower.clone_from(upper),
    }
}

/// Merges items by what identifies them. Shared items come in the new order, old ones stay between those that they
/// stood between.
fn lists(old: &mut Vec<Value>, new: &[Value], place: Place<'_>) {
    if old == new {
        return;
    }
    let elements = |items: &[Value]| -> Option<Vec<PathElement>> {
        items.iter().map(|item| item_element(item, place).ok()).collect()
    };
    let (Some(old_elements), Some(new_elements)) = (elements(old), elements(new)) else {
        return;
    };
    let inside = place.items();
    if old_elements == new_elements {
        for (item, upper) in old.iter_mut().zip(new) {
            merge(item, upper, inside);
        }
        return;
    }
    let mut old_positions: BTreeMap<&PathElement, Option<usize>> = BTreeMap::new();
    for (index, element) in old_elements.iter().enumerate() {
        old_positions
            .entry(element)
            .and_modify(|position| *position = None)
            .or_insert(Some(index));
    }
    let in_new: BTreeSet<&PathElement> = new_elements.iter().collect();
    let mut shared = new_elements
        .iter()
        .filter(|element| old_positions.contains_key(element))
        .peekable();
    let mut merged: BTreeSet<&PathElement> = BTreeSet::new();
    let mut source: Vec<Option<Value>> = std::mem::take(old).into_iter().map(Some).collect();
    // An item that occurs twice in the old list is not merged with: the new one takes the place of all of them.
    let combine = |element: &PathElement, upper: &Value, source: &mut Vec<Option<Value>>| {
        let position = old_positions.get(element).copied().flatten();
        match position.and_then(|position| source[position].take()) {
            Some(mut item) => {
                merge(&mut item, upper, inside);
                item
            }
            None => upper.clone(),
        }
    };
    let (mut o, mut n) = (0, 0);
    let mut out = Vec::with_capacity(old_elements.len().max(new.len()));
    while o < old_elements.len() || n < new.len() {
        if let (Some(there), Some(here)) = (old_elements.get(o), new_elements.get(n)) {
            if there == here {
                merged.insert(here);
                out.push(combine(here, &new[n], &mut source));
                (o, n) = (o + 1, n + 1);
                shared.next();
                continue;
            }
            let wanted = shared.peek().copied();
            if in_new.contains(there) && wanted.is_some_and(|wanted| wanted != there) {
                o += 1;
                continue;
            }
        }
        if let Some(there) = old_elements.get(o) {
            if !in_new.contains(there) {
                out.extend(source[o].take());
                o += 1;
                continue;
            }
            if merged.contains(there) {
                o += 1;
            }
        }
        if let Some(here) = new_elements.get(n) {
            merged.insert(here);
            out.push(combine(here, &new[n], &mut source));
            if shared.peek().copied() == Some(here) {
                shared.next();
            }
            n += 1;
        }
    }
    *old = out;
}

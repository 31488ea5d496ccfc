//! What changed between two values, field by field.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{At, Shape, below, item_element, shape};
use crate::apply::element::PathElement;
use crate::apply::set::FieldSet;

/// The fields that went, changed and came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) removed: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) added: FieldSet,
}

impl Comparison {
    /// Leaves out the given fields and all below them.
    pub(crate) fn without(mut self, ignored: &FieldSet) -> Self {
        for set in [&mut self.removed, &mut self.modified, &mut self.added] {
            set.subtract_subtrees(ignored);
        }
        self
    }

    fn push(&mut self, element: &PathElement, change: Change, inside: Comparison) {
        // The same element goes into up to three sets; most of the time into none.
        let Comparison {
            removed,
            modified,
            added,
        } = inside;
        let put = |set: &mut FieldSet, member: bool, below: FieldSet| {
            if member || !below.is_empty() {
                set.push(element.clone(), member, below);
            }
        };
        put(&mut self.removed, change == Change::Removed, removed);
        put(&mut self.modified, change == Change::Modified, modified);
        put(&mut self.added, change == Change::Added, added);
    }
}

/// What happened to a value itself, whatever happened below it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Removed,
    Modified,
    Added,
}

pub(crate) fn compare(old: &Value, new: &Value, at: At<'_>) -> Comparison {
    walk(Some(old), Some(new), at).1
}

fn walk(old: Option<&Value>, new: Option<&Value>, at: At<'_>) -> (Change, Comparison) {
    let change = match (old, new) {
        (None, None) => return (Change::None, Comparison::default()),
        (Some(_), None) => Change::Removed,
        (None, Some(_)) => Change::Added,
        (Some(_), Some(_)) => Change::None,
    };
    let modified = || if old == new { Change::None } else { Change::Modified };
    let old_shape = old.map(|old| shape(old, at));
    let new_shape = new.map(|new| shape(new, at));
    match (old_shape, new_shape) {
        (Some(Shape::Leaf), Some(Shape::Leaf)) => (modified(), Comparison::default()),
        (Some(Shape::Leaf) | None, Some(Shape::Leaf) | None) => (change, Comparison::default()),
        (Some(Shape::Map(old)), Some(Shape::Map(new))) => (change, maps(Some(old), Some(new), at)),
        (Some(Shape::Map(old)), None) => (change, maps(Some(old), None, at)),
        (None, Some(Shape::Map(new))) => (change, maps(None, Some(new), at)),
        (Some(Shape::List(old)), Some(Shape::List(new))) if old.is_empty() && new.is_empty() => {
            (change, Comparison::default())
        }
        (Some(Shape::List(old)), Some(Shape::List(new))) => (change, lists(old, new, at)),
        (Some(Shape::List(old)), None) => (change, lists(old, &[], at)),
        (None, Some(Shape::List(new))) => (change, lists(&[], new, at)),
        // Another kind of value: what was below went, what is below came.
        (Some(old_shape), Some(new_shape)) => {
            let mut all = Comparison::default();
            for (shape, side) in [(old_shape, Side::Old), (new_shape, Side::New)] {
                let part = match (shape, side) {
                    (Shape::Leaf, _) => continue,
                    (Shape::Map(map), Side::Old) => maps(Some(map), None, at),
                    (Shape::Map(map), Side::New) => maps(None, Some(map), at),
                    (Shape::List(items), Side::Old) => lists(items, &[], at),
                    (Shape::List(items), Side::New) => lists(&[], items, at),
                };
                all.removed = all.removed.union(&part.removed);
                all.added = all.added.union(&part.added);
            }
            // Null and something are the same container with and without content; null and an empty one are not.
            let from_or_to_null = old.is_some_and(Value::is_null) || new.is_some_and(Value::is_null);
            let same = from_or_to_null && !(all.removed.is_empty() && all.added.is_empty());
            (if same { Change::None } else { Change::Modified }, all)
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Old,
    New,
}

fn maps(old: Option<&Map<String, Value>>, new: Option<&Map<String, Value>>, at: At<'_>) -> Comparison {
    let mut all = Comparison::default();
    let mut old = old.into_iter().flatten().peekable();
    let mut new = new.into_iter().flatten().peekable();
    loop {
        let (key, before, after) = match (old.peek(), new.peek()) {
            (None, None) => return all,
            (Some((a, _)), Some((b, _))) if a == b => {
                let (key, before) = old.next().expect("peeked");
                (key, Some(before), new.next().map(|(_, after)| after))
            }
            (Some((a, _)), Some((b, _))) if a < b => {
                let (key, before) = old.next().expect("peeked");
                (key, Some(before), None)
            }
            (Some(_), None) => {
                let (key, before) = old.next().expect("peeked");
                (key, Some(before), None)
            }
            (_, Some(_)) => {
                let (key, after) = new.next().expect("peeked");
                (key, None, Some(after))
            }
        };
        let (change, inside) = walk(before, after, below(at, key));
        if change != Change::None || inside != Comparison::default() {
            all.push(&PathElement::field(key), change, inside);
        }
    }
}

fn lists(old: &[Value], new: &[Value], at: At<'_>) -> Comparison {
    let mut all = Comparison::default();
    let Some(place) = at.filter(|_| old != new) else {
        return all;
    };
    let mut items: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for item in old {
        if let Ok(element) = item_element(item, place) {
            items.entry(element).or_default().0.push(item);
        }
    }
    for item in new {
        if let Ok(element) = item_element(item, place) {
            items.entry(element).or_default().1.push(item);
        }
    }
    let inside = place.items();
    for (element, (before, after)) in items {
        let (change, changes) = match (before.as_slice(), after.as_slice()) {
            ([] | [_], [] | [_]) => walk(before.first().copied(), after.first().copied(), inside),
            ([_, _, ..], [_, _, ..]) => (
                if before == after {
                    Change::None
                } else {
                    Change::Modified
                },
                Comparison::default(),
            ),
            ([_, _, ..], rest) => {
                let (_, changes) = walk(None, rest.first().copied(), inside);
                all.removed.push(element.clone(), true, FieldSet::new());
                (if rest.is_empty() { Change::None } else { Change::Added }, changes)
            }
            (rest, _) => {
                let (_, changes) = walk(rest.first().copied(), None, inside);
                all.added.push(element.clone(), true, FieldSet::new());
                (if rest.is_empty() { Change::None } else { Change::Removed }, changes)
            }
        };
        all.push(&element, change, changes);
    }
    all
}

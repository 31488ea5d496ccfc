//! A value without some of its fields.

use serde_json::Value;

use super::{At, below, item_element};
use crate::apply::set::{Entry, FieldSet};
use crate::schema::node::{ListType, Place};

/// What becomes of a container that loses everything it had.
#[derive(Clone, Copy)]
pub(crate) enum Emptied<'a> {
    /// It is null, so that it still counts as a field.
    Null,
    /// It goes, unless it is in this set; then it stays, empty.
    GoesUnless(&'a FieldSet),
}

/// Takes the fields of `set`, with all below them, out of `value`.
pub(crate) fn remove(value: &mut Value, set: &FieldSet, emptied: Emptied<'_>, at: At<'_>) {
    walk(value, set, emptied, at);
}

/// Whether anything is left.
fn walk(value: &mut Value, set: &FieldSet, emptied: Emptied<'_>, at: At<'_>) -> bool {
    match value {
        Value::Object(map) if !at.is_some_and(Place::is_atomic_map) => {
            let before = map.len();
            map.retain(|key, value| match set.field(key) {
                None => true,
                Some(entry) => {
                    let kept = kept_entry(emptied, |kept| kept.field(key));
                    !entry.member && stays(value, entry, emptied, kept, below(at, key))
                }
            });
            before == 0 || !map.is_empty()
        }
        Value::Array(items) => {
            let Some(place) = at.filter(|place| place.list_type() != ListType::Atomic) else {
                return true;
            };
            let before = items.len();
            items.retain_mut(|item| {
                let Ok(element) = item_element(item, place) else {
                    return true;
                };
                match set.get(&element) {
                    None => true,
                    Some(entry) => {
                        let kept = kept_entry(emptied, |kept| kept.get(&element));
                        !entry.member && stays(item, entry, emptied, kept, place.items())
                    }
                }
            });
            before == 0 || !items.is_empty()
        }
        _ => true,
    }
}

fn kept_entry<'a>(emptied: Emptied<'a>, find: impl FnOnce(&'a FieldSet) -> Option<&'a Entry>) -> Option<&'a Entry> {
    match emptied {
        Emptied::Null => None,
        Emptied::GoesUnless(kept) => find(kept),
    }
}

/// Removes below a value and tells whether it stays.
fn stays(value: &mut Value, entry: &Entry, emptied: Emptied<'_>, kept: Option<&Entry>, at: At<'_>) -> bool {
    static NOTHING: FieldSet = FieldSet::EMPTY;
    let below = match emptied {
        Emptied::Null => Emptied::Null,
        Emptied::GoesUnless(_) => Emptied::GoesUnless(kept.map_or(&NOTHING, |kept| &kept.below)),
    };
    if walk(value, &entry.below, below, at) {
        return true;
    }
    match emptied {
        Emptied::Null => {
            *value = Value::Null;
            true
        }
        Emptied::GoesUnless(_) => kept.is_some_and(|kept| kept.member),
    }
}

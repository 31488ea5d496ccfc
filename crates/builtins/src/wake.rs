//! Whom a change of a pod concerns when nobody controls it: those that would adopt it.

use moorline_runtime::{Key, Kind, Object, Sources};
use serde_json::Value;

/// The objects of a kind whose `spec.selector` selects this orphan. For [`Watches::maps`](moorline_runtime::Watches).
pub(crate) fn selecting(kind: Kind) -> impl Fn(&Object, &Sources) -> Vec<Key> + Send + Sync + 'static {
    move |orphan, sources| {
        if orphan.controller().is_some() {
            return Vec::new();
        }
        let candidates = sources.list(&kind, Some(orphan.namespace())).into_iter();
        candidates
            .filter(|candidate| selects(&candidate.value()["spec"]["selector"], orphan))
            .map(|found| Key::of(&found))
            .collect()
    }
}

/// Whether a selector, of either form that `spec.selector` has, selects an object. An empty one selects nothing here.
pub(crate) fn selects(selector: &Value, object: &Object) -> bool {
    let Some(fields) = selector.as_object().filter(|fields| !fields.is_empty()) else {
        return false;
    };
    if fields.contains_key("matchLabels") || fields.contains_key("matchExpressions") {
        return moorline_machinery::selector::LabelSelector::from_json(Some(selector))
            .is_ok_and(|selector| selector.matches(object));
    }
    fields.iter().all(|(key, value)| object.label(key) == value.as_str())
}

//! Events have two faces: the first one, in which they are stored, and that of `events.k8s.io`.

use serde_json::{Map, Value};

/// The same field under its first name and its later one.
const NAMES: [(&str, &str); 6] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// From the first face to the later one.
pub(crate) fn to_new(event: &mut Value) {
    rename(
        event,
        |(old, new)| (old, new),
        ("reportingComponent", "reportingController"),
    );
}

/// From the later face to the first one.
pub(crate) fn to_old(event: &mut Value) {
    rename(
        event,
        |(old, new)| (new, old),
        ("reportingController", "reportingComponent"),
    );
}

fn rename(
    event: &mut Value,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
    controller: (&'static str, &'static str),
) {
    let Some(fields) = event.as_object_mut() else { return };
    let mut renamed = Map::new();
    for (from, to) in NAMES.map(direction).into_iter().chain([controller]) {
        if let Some(value) = fields.remove(from) {
            renamed.insert(to.to_owned(), value);
        }
    }
    fields.extend(renamed);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_the_same_under_both_faces() {
        let old = json!({
            "metadata": {}, "involvedObject": { "kind": "Pod" }, "message": "m", "reason": "R",
            "reportingComponent": "c", "source": { "component": "s" }, "count": 2,
        });
        let mut event = old.clone();
        to_new(&mut event);
        assert_eq!(event["regarding"]["kind"], "Pod");
        assert_eq!(
            (&event["note"], &event["reportingController"]),
            (&json!("m"), &json!("c"))
        );
        assert_eq!(event["deprecatedCount"], 2);
        to_old(&mut event);
        assert_eq!(event, old);
    }
}

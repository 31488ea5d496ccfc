//! Fields that were not set get what the schema says; nulls that a schema does not allow count as not set.

use serde_json::Value;

use super::node::Place;

/// What becomes of a null that the schema neither allows nor has a default for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nulls {
    /// It goes, as in custom kinds.
    Go,
    /// It stays: built-in kinds write one for a list that must be written and is not there.
    Stay,
}

/// Fills in defaults, and sees to nulls where neither null nor a default is known.
pub(crate) fn apply(value: &mut Value, place: Place<'_>, nulls: Nulls) {
    match value {
        Value::Object(map) => {
            if nulls == Nulls::Go {
                map.retain(|key, value| {
                    let child = if value.is_null() { place.child(key) } else { None };
                    child.is_none_or(|child| child.nullable() || child.default().is_some())
                });
            }
            for (name, node) in &place.node.properties {
                let property = place.at(node);
                let Some(default) = property.default() else { continue };
                match map.get_mut(&**name) {
                    None => {
                        map.insert(name.to_string(), default.clone());
                    }
                    Some(value) => replace_null(value, property),
                }
            }
            for (key, value) in map.iter_mut() {
                if let Some(child) = place.child(key) {
                    replace_null(value, child);
                    apply(value, child, nulls);
                }
            }
        }
        Value::Array(items) => {
            let Some(place) = place.items() else { return };
            for item in items {
                replace_null(item, place);
                apply(item, place, nulls);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, place: Place<'_>) {
    if let Some(default) = place.default().filter(|_| value.is_null() && !place.nullable()) {
        *value = default.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::schema::Schema;

    #[test]
    fn defaults_reach_every_place_that_has_one() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {
            "replicas": {"type": "integer", "default": 1},
            "nested": {"type": "object", "properties": {"mode": {"type": "string", "default": "on"}}},
            "maybe": {"type": "string", "nullable": true, "default": "d"},
            "plain": {"type": "string"},
            "ports": {"type": "array", "items": {"type": "object", "properties": {
                "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}},
            "names": {"type": "array", "items": {"type": "string", "default": "none"}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {
                "x": {"type": "integer", "default": 7}}}},
        }}}});
        for (name, given, expected) in [
            (
                "a default object is filled in turn",
                json!({}),
                json!({"spec": {"replicas": 1, "maybe": "d"}}),
            ),
            (
                "no default below an object that is not there",
                json!({"spec": {"replicas": 2, "maybe": "m"}}),
                json!({"spec": {"replicas": 2, "maybe": "m"}}),
            ),
            (
                "null counts as not set where null is not allowed",
                json!({"spec": {"replicas": null, "maybe": null, "plain": null}}),
                json!({"spec": {"replicas": 1, "maybe": null}}),
            ),
            (
                "items and entries of maps",
                json!({"spec": {"maybe": "m", "ports": [{"port": 1}, {"port": 2, "protocol": "UDP"}], "names": [null, "b"],
                    "nested": {}, "map": {"k": {}}}}),
                json!({"spec": {"replicas": 1, "maybe": "m",
                    "ports": [{"port": 1, "protocol": "TCP"}, {"port": 2, "protocol": "UDP"}],
                    "names": ["none", "b"], "nested": {"mode": "on"}, "map": {"k": {"x": 7}}}}),
            ),
        ] {
            let mut object = given;
            let schema = Schema::custom_resource(&schema).unwrap();
            schema.apply_defaults(&mut object);
            assert_eq!(object, expected, "{name}");
            let once = object.clone();
            schema.apply_defaults(&mut object);
            assert_eq!(object, once, "{name}: again");
        }
    }
}

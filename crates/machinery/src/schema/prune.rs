//! Fields that a schema does not know are dropped, and named for those who want to hear of them.

use serde_json::Value;

use super::node::{Additional, Place};
use super::path::Path;

/// Drops unknown fields from `value` and returns their paths.
pub(crate) fn prune(value: &mut Value, place: Place<'_>) -> Vec<String> {
    let mut unknown = Vec::new();
    walk(value, Some(place), &Path::Root, &mut unknown);
    unknown
}

fn walk(value: &mut Value, place: Option<Place<'_>>, path: &Path<'_>, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.retain(|key, value| {
            let here = Path::Field(path, key);
            let Some(place) = place else {
                unknown.push(here.dotted());
                return false;
            };
            if let Some(property) = place.property(key) {
                walk(value, Some(property), &here, unknown);
                return true;
            }
            match place.node.additional {
                Additional::Unspecified if place.node.preserve_unknown => true,
                Additional::Unspecified => {
                    unknown.push(here.dotted());
                    false
                }
                _ => {
                    walk(value, place.additional(), &here, unknown);
                    true
                }
            }
        }),
        Value::Array(items) => {
            if place.is_some_and(|place| place.node.preserve_unknown && place.node.items.is_none()) {
                return;
            }
            let inside = place.and_then(Place::items);
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, inside, &Path::Index(path, index), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::schema::Schema;

    fn pruned(schema: &Value, mut object: Value) -> (Value, Vec<String>) {
        let unknown = Schema::custom_resource(schema).unwrap().prune(&mut object);
        (object, unknown)
    }

    #[test]
    fn unknown_fields_are_dropped_at_every_depth_and_named() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "name": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"b": {"type": "string"}}}},
        }}}});
        let (object, unknown) = pruned(
            &schema,
            json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x", "nope": 1}, "extra": 1, "spec": {
                "name": "n", "foo": 1, "list": [{"a": "1"}, {"z": 1}], "map": {"k": {"b": "1", "c": {}}},
            }}),
        );
        assert_eq!(
            object,
            json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {
                "name": "n", "list": [{"a": "1"}, {}], "map": {"k": {"b": "1"}},
            }})
        );
        assert_eq!(
            unknown,
            ["extra", "metadata.nope", "spec.foo", "spec.list[1].z", "spec.map.k.c"]
        );
    }

    #[test]
    fn preserved_fields_stay_and_declared_fields_below_them_are_still_pruned() {
        let schema = json!({"type": "object", "properties": {"spec": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"known": {"type": "object", "properties": {"a": {"type": "string"}}}},
        }}});
        let (object, unknown) = pruned(
            &schema,
            json!({"spec": {"free": {"x": [{"y": 1}]}, "known": {"a": "1", "b": 2}}}),
        );
        assert_eq!(
            object,
            json!({"spec": {"free": {"x": [{"y": 1}]}, "known": {"a": "1"}}})
        );
        assert_eq!(unknown, ["spec.known.b"]);
    }

    #[test]
    fn an_embedded_object_keeps_its_type_and_metadata_and_loses_what_metadata_does_not_know() {
        let schema = json!({"type": "object", "properties": {"template": {
            "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
        }, "strict": {
            "type": "object", "x-kubernetes-embedded-resource": true, "properties": {"data": {"type": "string"}},
        }}});
        let embedded =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "bad": 1}, "spec": {"a": 1}});
        let (object, unknown) = pruned(&schema, json!({"template": embedded, "strict": embedded}));
        assert_eq!(
            object,
            json!({
                "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"a": 1}},
                "strict": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}},
            })
        );
        assert_eq!(unknown, ["strict.metadata.bad", "strict.spec", "template.metadata.bad"]);
    }

    #[test]
    fn a_map_of_anything_keeps_scalars_and_empties_objects() {
        let schema = json!({"type": "object", "properties": {"any": {"type": "object", "additionalProperties": true}}});
        let (object, unknown) = pruned(&schema, json!({"any": {"a": 1, "b": {"c": 1}}}));
        assert_eq!(object, json!({"any": {"a": 1, "b": {}}}));
        assert_eq!(unknown, ["any.b.c"]);
    }
}

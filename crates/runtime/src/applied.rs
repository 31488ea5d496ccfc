//! Whether an apply would change anything, by what the server says that the field owner owns.

use serde_json::{Map, Value};

use crate::object::Object;

/// Whether `base` has every field of `desired`, and `field_owner` owns exactly those.
///
/// The second half finds what shall no longer be there: a field that was applied once and is not desired now. What the
/// server owns for us is a tree whose members are `f:name`, `k:{keys}` for an element of a list of maps, `v:value` for
/// one of a set. When the two cannot be compared, the answer is no, and the server decides.
pub(crate) fn is_in_place(base: &Object, desired: &Object, field_owner: &str) -> bool {
    let applied = &base.meta().applied;
    let Some((_, owned)) = applied.iter().find(|(owner, _)| **owner == *field_owner) else {
        return false;
    };
    let Ok(Value::Object(owned)) = serde_json::from_str(owned) else {
        return false;
    };
    let (Value::Object(mut desired), Value::Object(base)) = (desired.value(), base.value()) else {
        return false;
    };
    // What names an object is never owned.
    desired.remove("apiVersion");
    desired.remove("kind");
    if let Some(Value::Object(metadata)) = desired.get_mut("metadata") {
        metadata.remove("name");
        metadata.remove("namespace");
        if metadata.is_empty() {
            desired.remove("metadata");
        }
    }
    map_in_place(&desired, &base, &owned)
}

fn map_in_place(desired: &Map<String, Value>, base: &Map<String, Value>, owned: &Map<String, Value>) -> bool {
    let wanted = desired.iter().filter(|(_, value)| !is_absent(value));
    let all_there = wanted.clone().all(|(name, value)| {
        let Some(Value::Object(owned)) = owned.get(&format!("f:{name}")) else {
            return false;
        };
        base.get(name).is_some_and(|base| in_place(value, base, owned))
    });
    let nothing_else = owned
        .keys()
        .filter_map(|key| key.strip_prefix("f:"))
        .all(|name| desired.get(name).is_some_and(|value| !is_absent(value)));
    all_there && nothing_else
}

/// A null, and an object of nothing but such: neither is ever owned, unless it is empty by intent.
fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => !map.is_empty() && map.values().all(is_absent),
        _ => false,
    }
}

fn in_place(desired: &Value, base: &Value, owned: &Map<String, Value>) -> bool {
    let is_leaf = owned.keys().all(|key| key == ".");
    match (desired, base) {
        // A leaf is owned as a whole; the server may have filled in defaults below it.
        _ if is_leaf => covers(base, desired),
        (Value::Object(desired), Value::Object(base)) => map_in_place(desired, base, owned),
        (Value::Array(desired), Value::Array(base)) => list_in_place(desired, base, owned),
        _ => false,
    }
}

/// A list whose elements are owned one by one.
fn list_in_place(desired: &[Value], base: &[Value], owned: &Map<String, Value>) -> bool {
    let mut elements = 0;
    for (key, owned) in owned {
        let Value::Object(owned) = owned else { return false };
        let found = if let Some(keys) = key.strip_prefix("k:") {
            let Ok(Value::Object(keys)) = serde_json::from_str::<Value>(keys) else {
                return false;
            };
            // A key that was left out was given by a default.
            let named = |element: &&Value, may_lack: bool| {
                keys.iter().all(|(name, value)| match element.get(name) {
                    Some(given) => given == value,
                    None => may_lack,
                })
            };
            let wanted = desired.iter().find(|element| named(element, true));
            let there = base.iter().find(|element| named(element, false));
            wanted
                .zip(there)
                .is_some_and(|(wanted, there)| element_in_place(wanted, there, owned, &keys))
        } else if let Some(value) = key.strip_prefix("v:") {
            let Ok(value) = serde_json::from_str::<Value>(value) else {
                return false;
            };
            desired.contains(&value) && base.contains(&value)
        } else if key == "." {
            continue;
        } else {
            return false;
        };
        if !found {
            return false;
        }
        elements += 1;
    }
    elements == desired.len()
}

/// Like any map, but the keys that name the element may be owned without being desired.
fn element_in_place(wanted: &Value, there: &Value, owned: &Map<String, Value>, keys: &Map<String, Value>) -> bool {
    let (Value::Object(wanted), Value::Object(there)) = (wanted, there) else {
        return false;
    };
    if owned.keys().all(|key| key == ".") {
        return wanted
            .iter()
            .all(|(name, value)| there.get(name).is_some_and(|there| covers(there, value)));
    }
    let mut wanted = wanted.clone();
    for (name, value) in keys {
        if owned.contains_key(&format!("f:{name}")) {
            wanted.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    map_in_place(&wanted, there, owned)
}

/// Whether everything in `part` is in `whole`.
fn covers(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .filter(|(_, value)| !is_absent(value))
            .all(|(name, value)| whole.get(name).is_some_and(|whole| covers(whole, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| covers(whole, part))
        }
        _ => whole == part,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::kind::Kind;

    /// Whether applying `desired` over `base` would change nothing, when `owned` is what the server says we own.
    fn in_place(base: Value, owned: &Value, desired: Value) -> bool {
        let kind = Kind::of::<Pod>();
        let named = |mut value: Value| {
            value["metadata"]["name"] = "a".into();
            value
        };
        let mut base = named(base);
        base["metadata"]["managedFields"] = json!([
            { "manager": "ours", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": owned },
        ]);
        let base = Object::read(&kind, base.to_string().as_bytes(), &[Arc::from("ours")]).unwrap();
        is_in_place(&base, &Object::from_value(&kind, &named(desired)).unwrap(), "ours")
    }

    #[test]
    fn what_is_there_and_owned_to_the_letter_is_in_place() {
        let base =
            json!({ "metadata": { "labels": { "a": "1", "other": "x" } }, "spec": { "nodeName": "n", "host": 1 } });
        let owned = json!({ "f:metadata": { "f:labels": { "f:a": {} } }, "f:spec": { "f:nodeName": {} } });
        let desired = json!({ "metadata": { "labels": { "a": "1" } }, "spec": { "nodeName": "n" } });
        assert!(in_place(base, &owned, desired));
    }

    #[test]
    fn another_value_a_new_field_and_one_no_longer_wanted_are_each_a_change() {
        let base = json!({ "metadata": { "labels": { "a": "1", "b": "2" } } });
        let owned = json!({ "f:metadata": { "f:labels": { "f:a": {}, "f:b": {} } } });
        let desired = |labels: Value| json!({ "metadata": { "labels": labels } });
        assert!(in_place(base.clone(), &owned, desired(json!({ "a": "1", "b": "2" }))));
        assert!(!in_place(base.clone(), &owned, desired(json!({ "a": "1", "b": "3" }))));
        assert!(!in_place(
            base.clone(),
            &owned,
            desired(json!({ "a": "1", "b": "2", "c": "3" }))
        ));
        assert!(!in_place(base, &owned, desired(json!({ "a": "1" }))));
    }

    #[test]
    fn a_field_that_is_there_but_not_ours_is_a_change() {
        let base = json!({ "metadata": { "labels": { "a": "1" } } });
        assert!(!in_place(
            base,
            &json!({}),
            json!({ "metadata": { "labels": { "a": "1" } } })
        ));
    }

    #[test]
    fn elements_of_a_list_are_compared_by_their_keys_and_may_have_defaults() {
        let base = json!({ "spec": { "containers": [
            { "name": "sidecar", "image": "s" },
            { "name": "web", "image": "w", "imagePullPolicy": "Always",
              "ports": [{ "containerPort": 80, "protocol": "TCP" }], "command": ["a", "b"] },
        ] } });
        let owned = json!({ "f:spec": { "f:containers": { "k:{\"name\":\"web\"}": {
            ".": {}, "f:name": {}, "f:image": {}, "f:command": {},
            "f:ports": { "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:containerPort": {} } },
        } } } });
        let desired = |image: &str, port: u16, command: Value| {
            json!({ "spec": { "containers": [
                { "name": "web", "image": image, "ports": [{ "containerPort": port }], "command": command },
            ] } })
        };
        assert!(in_place(base.clone(), &owned, desired("w", 80, json!(["a", "b"]))));
        assert!(!in_place(base.clone(), &owned, desired("x", 80, json!(["a", "b"]))));
        assert!(!in_place(base.clone(), &owned, desired("w", 81, json!(["a", "b"]))));
        assert!(!in_place(base, &owned, desired("w", 80, json!(["b", "a"]))));
    }

    #[test]
    fn members_of_a_set_are_compared_one_by_one() {
        let base = json!({ "metadata": { "finalizers": ["x", "y"] } });
        let owned = json!({ "f:metadata": { "f:finalizers": { "v:\"x\"": {} } } });
        let desired = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
        assert!(in_place(base.clone(), &owned, desired(json!(["x"]))));
        assert!(
            !in_place(base.clone(), &owned, desired(json!(["x", "y"]))),
            "the second is not ours yet"
        );
        assert!(!in_place(base, &owned, desired(json!([]))));
    }

    #[test]
    fn nulls_and_empty_structures_are_told_apart() {
        let base = json!({ "spec": { "volumes": [{ "name": "v", "emptyDir": {} }] } });
        let owned =
            json!({ "f:spec": { "f:volumes": { "k:{\"name\":\"v\"}": { ".": {}, "f:name": {}, "f:emptyDir": {} } } } });
        let volume = json!({ "name": "v", "emptyDir": {}, "hostPath": null });
        assert!(in_place(base, &owned, json!({ "spec": { "volumes": [volume] } })));
    }
}

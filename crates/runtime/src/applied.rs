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

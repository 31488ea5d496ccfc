//! Strategic merge patch: a merge patch that knows how the lists of built-in kinds are merged.
//!
//! Lists with the merge strategy are merged by their merge key (or as sets, where items are no objects); all other
//! lists are replaced. Directives in the patch say more:
//!
//! | directive | effect |
//! | --- | --- |
//! | `$patch: replace` | in an object: it replaces; in a list item: the rest of the list replaces |
//! | `$patch: delete` | in an object: it empties; in a list item: the item with the same key goes |
//! | `$retainKeys: [..]` | fields of the object that are not named go |
//! | `$deleteFromPrimitiveList/x: [..]` | these values leave the list `x` |
//! | `$setElementOrder/x: [..]` | the items of `x` that are named take this order |
//!
//! The merged list keeps the order of the patch for the items that the patch speaks of and the old order for the rest;
//! between the two, an item that stood before another stays before it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use crate::decode::json_type;
use crate::schema::Schema;
use crate::schema::node::Place;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Merges `patch` into `document`, both objects, by the merge keys of `schema`.
pub fn strategic_merge_patch(document: &Value, patch: &Value, schema: &Schema) -> Result<Value, PatchError> {
    let Value::Object(document) = document else {
        return Err(PatchError::Malformed("invalid JSON document".to_owned()));
    };
    match patch {
        Value::Object(patch) => merge_map(document.clone(), patch.clone(), Some(schema.place())).map(Value::Object),
        Value::Null => Ok(Value::Object(document.clone())),
        other => Err(PatchError::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            json_type(other)
        ))),
    }
}

type Object = Map<String, Value>;

fn merge_map(mut original: Object, mut patch: Object, place: Option<Place<'_>>) -> Result<Object, PatchError> {
    match patch.remove(DIRECTIVE) {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => return Ok(patch),
        Some(Value::String(directive)) if directive == "delete" => return Ok(Object::new()),
        Some(other) => return Err(unknown_directive(&other, &patch)),
    }
    retain_keys(&mut original, &mut patch)?;
    set_orders(&mut original, &mut patch, place)?;
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_FROM) {
            delete_from(&mut original, list, &value);
            continue;
        }
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let field = place.and_then(|place| place.child(&key));
        let merged = match (original.remove(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) if merges_maps(field) => {
                Some(Value::Object(merge_map(old, new, field)?))
            }
            (Some(Value::Object(_)), new @ Value::Object(_)) => Some(new),
            (Some(Value::Array(old)), Value::Array(new)) => Some(Value::Array(merge_field(old, new, field)?)),
            (_, new) => settled(without_nulls(new)),
        };
        if let Some(merged) = merged {
            original.insert(key, merged);
        }
    }
    Ok(original)
}

/// A map is merged unless its only strategy is to replace it, or to retain keys and replace.
fn merges_maps(field: Option<Place<'_>>) -> bool {
    field
        .and_then(Place::patch)
        .is_none_or(|facts| facts.merge || facts.retain_keys || facts.merge_key.is_some())
}

fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let Value::Array(keys) = keys else {
        return Err(malformed());
    };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let directive = |key: &str| key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
    if patch
        .iter()
        .any(|(key, value)| !value.is_null() && !directive(key) && !keys.contains(key.as_str()))
    {
        return Err(malformed());
    }
    original.retain(|key, _| keys.contains(key.as_str()));
    Ok(())
}

fn delete_from(original: &mut Object, list: &str, values: &Value) {
    if let (Some(Value::Array(items)), Value::Array(values)) = (original.get_mut(list), values) {
        let gone: HashSet<String> = values.iter().map(Value::to_string).collect();
        items.retain(|item| !gone.contains(&item.to_string()));
    }
}

/// Merges the lists whose order the patch gives, and takes them out of the patch.
fn set_orders(original: &mut Object, patch: &mut Object, place: Option<Place<'_>>) -> Result<(), PatchError> {
    let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let order = patch.remove(&directive).unwrap_or_default();
        let Value::Array(order) = order else {
            return Err(wanted_list(&order));
        };
        let key = &directive[SET_ORDER.len()..];
        let field = place.and_then(|place| place.child(key));
        let identity = Identity::of(field);
        let list = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wanted_list(&other)),
        };
        let (old, new) = (list(original.remove(key))?, list(patch.remove(key))?);
        identity.follows(new.as_deref().unwrap_or_default(), &order)?;
        let server_order = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => match settled(Value::Array(new)) {
                Some(Value::Array(new)) => new,
                _ => continue,
            },
            (Some(old), Some(new)) => merge_field(old, new, field)?,
        };
        original.insert(
            key.to_owned(),
            Value::Array(identity.arrange(merged, &order, &server_order)?),
        );
    }
    Ok(())
}

fn merge_field(old: Vec<Value>, new: Vec<Value>, field: Option<Place<'_>>) -> Result<Vec<Value>, PatchError> {
    let merges = field.and_then(Place::patch).is_some_and(|facts| facts.merge);
    if merges { merge_list(old, new, field) } else { Ok(new) }
}

fn merge_list(old: Vec<Value>, new: Vec<Value>, field: Option<Place<'_>>) -> Result<Vec<Value>, PatchError> {
    let mut all = old.iter().chain(&new);
    let Some(first) = all.next() else { return Ok(old) };
    if old.iter().chain(&new).any(Value::is_array) {
        return Err(PatchError::Inapplicable("lists of lists are not supported".to_owned()));
    }
    if all.any(|item| item.is_object() != first.is_object()) {
        return Err(PatchError::Unsupported(
            "list element types are not identical".to_owned(),
        ));
    }
    let identity = Identity::of(field);
    if !first.is_object() {
        let mut seen = HashSet::new();
        let merged = old
            .iter()
            .chain(&new)
            .filter(|item| seen.insert(item.to_string()))
            .cloned()
            .collect();
        return Identity { merge_key: None }.arrange(merged, &new, &old);
    }
    if identity.merge_key.is_none() {
        return Err(PatchError::Unsupported(
            "cannot merge lists without merge key".to_owned(),
        ));
    }
    let (mut merged, new) = take_out_directives(old, new, &identity)?;
    let server_order = merged.clone();
    let mut positions = HashMap::with_capacity(merged.len());
    for (position, item) in merged.iter().enumerate() {
        positions.entry(identity.name(item)?).or_insert(position);
    }
    for item in &new {
        let name = identity.name(item)?;
        let Value::Object(item) = item.clone() else { continue };
        if let Some(position) = positions.get(&name) {
            if let Value::Object(before) = std::mem::take(&mut merged[*position]) {
                let inside = field.and_then(Place::items);
                merged[*position] = Value::Object(merge_map(before, item, inside)?);
            }
        } else {
            positions.insert(name, merged.len());
            merged.push(settled(without_nulls(Value::Object(item))).unwrap_or_default());
        }
    }
    identity.arrange(merged, &new, &server_order)
}

/// Carries out `$patch` in items: what is left of the old list, and of the patch.
fn take_out_directives(
    mut old: Vec<Value>,
    new: Vec<Value>,
    identity: &Identity<'_>,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut replace = false;
    let mut gone = HashSet::new();
    let mut plain = Vec::with_capacity(new.len());
    for item in new {
        match item.get(DIRECTIVE) {
            None => plain.push(item),
            Some(Value::String(directive)) if directive == "delete" => {
                gone.insert(identity.name(&item)?);
            }
            Some(Value::String(directive)) if directive == "replace" => replace = true,
            Some(Value::String(directive)) if directive == "merge" => {
                let text = "merging lists cannot yet be specified in the patch";
                return Err(PatchError::Unsupported(text.to_owned()));
            }
            Some(other) => return Err(unknown_directive(other, item.as_object().unwrap_or(&Object::new()))),
        }
    }
    if replace {
        return Ok((plain, Vec::new()));
    }
    if !gone.is_empty() {
        let mut kept = Vec::with_capacity(old.len());
        for item in old {
            if !gone.contains(&identity.name(&item)?) {
                kept.push(item);
            }
        }
        old = kept;
    }
    Ok((old, plain))
}

/// How the items of a list are told apart: by a field, or by themselves.
struct Identity<'a> {
    merge_key: Option<&'a str>,
}

impl<'a> Identity<'a> {
    fn of(field: Option<Place<'a>>) -> Self {
        Self {
            merge_key: field
                .and_then(Place::patch)
                .and_then(|facts| facts.merge_key.as_deref()),
        }
    }

    fn name(&self, item: &Value) -> Result<String, PatchError> {
        let Some(key) = self.merge_key else {
            return Ok(item.to_string());
        };
        item.get(key).map(Value::to_string).ok_or_else(|| {
            PatchError::Unsupported(format!(
                "map: {} does not contain declared merge key: {key}",
                go_text(item)
            ))
        })
    }

    /// Checks that the items of the patch stand in the order that the patch itself gives.
    fn follows(&self, items: &[Value], order: &[Value]) -> Result<(), PatchError> {
        if order.is_empty() {
            return Ok(());
        }
        let mut order_left = order.iter();
        for item in items.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
            let name = self.name(item)?;
            let mut found = false;
            for next in order_left.by_ref() {
                if self.name(next)? == name {
                    found = true;
                    break;
                }
            }
            if !found {
                let (items, order) = (Value::Array(items.to_vec()), Value::Array(order.to_vec()));
                return Err(PatchError::Unsupported(format!(
                    "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                    go_text(&items),
                    go_text(&order)
                )));
            }
        }
        Ok(())
    }

    /// The merged items: those in `patch_order` in that order, the rest as in `server_order`.
    fn arrange(
        &self,
        merged: Vec<Value>,
        patch_order: &[Value],
        server_order: &[Value],
    ) -> Result<Vec<Value>, PatchError> {
        let ranks = |order: &[Value]| -> Result<HashMap<String, usize>, PatchError> {
            let mut ranks = HashMap::with_capacity(order.len());
            for (rank, item) in order.iter().enumerate() {
                ranks.entry(self.name(item)?).or_insert(rank);
            }
            Ok(ranks)
        };
        let (in_patch, on_server) = (ranks(patch_order)?, ranks(server_order)?);
        let (mut patched, mut rest) = (Vec::new(), Vec::new());
        for item in merged {
            let name = self.name(&item)?;
            let server = on_server.get(&name).copied();
            match in_patch.get(&name) {
                Some(rank) => patched.push((*rank, server, item)),
                None => rest.push((server.unwrap_or(usize::MAX), server, item)),
            }
        }
        patched.sort_by_key(|(rank, ..)| *rank);
        rest.sort_by_key(|(rank, ..)| *rank);
        let mut out = Vec::with_capacity(patched.len() + rest.len());
        let (mut patched, mut rest) = (patched.into_iter().peekable(), rest.into_iter().peekable());
        while let (Some((_, ours, _)), Some((_, theirs, _))) = (patched.peek(), rest.peek()) {
            let rest_first = matches!((theirs, ours), (Some(theirs), Some(ours)) if theirs < ours);
            out.extend(if rest_first { rest.next() } else { patched.next() }.map(|(.., item)| item));
        }
        out.extend(patched.map(|(.., item)| item));
        out.extend(rest.map(|(.., item)| item));
        Ok(out)
    }
}

/// A value taken over from the patch as it is: objects that are directives are none.
fn settled(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            let kept = map.into_iter().filter_map(|(key, value)| Some((key, settled(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(settled).collect())),
        other => Some(other),
    }
}

/// Nulls ask for removal, and there is nothing to remove in what is new.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

fn unknown_directive(directive: &Value, patch: &Object) -> PatchError {
    let mut shown = patch.clone();
    shown.insert(DIRECTIVE.to_owned(), directive.clone());
    let text = format!(
        "unknown patch type: {} in map: {}",
        go_text(directive),
        go_text(&Value::Object(shown))
    );
    PatchError::Unsupported(text)
}

fn wanted_list(found: &Value) -> PatchError {
    let kind = match found {
        Value::Object(_) => "map",
        Value::Null => "nil",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        _ => "number",
    };
    PatchError::Unsupported(format!("expected a slice, but received a {kind}"))
}

/// A value as the messages of API servers show it: `map[a:1 b:[x y]]`.
fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries: Vec<_> = map
                .iter()
                .map(|(key, value)| format!("{key}:{}", go_text(value)))
                .collect();
            format!("map[{}]", entries.join(" "))
        }
        other => other.to_string(),
    }
}

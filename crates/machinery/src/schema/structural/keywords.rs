//! Which keywords a schema of a custom kind may use, and with which values.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{additional_schema, flag, list, present, properties, text};
use crate::field::FieldError;
use crate::schema::fault;
use crate::schema::node::Type;

/// What holds for a schema because of where it stands.
#[derive(Clone, Copy, Default)]
struct Scope {
    root: bool,
    inside_metadata: bool,
    /// Why no default may be set, if so.
    no_defaults: Option<&'static str>,
}

pub(super) fn check(schema: &Value, field: &str, errors: &mut Vec<FieldError>) {
    node(
        schema,
        Scope {
            root: true,
            ..Scope::default()
        },
        field,
        errors,
    );
}

fn node(schema: &Value, scope: Scope, at: &str, errors: &mut Vec<FieldError>) {
    standard(schema, scope, at, errors);
    if flag(schema, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(fault::forbidden(format!("{at}.uniqueItems"), detail));
    }
    let below = Scope { root: false, ..scope };
    if let Some(additional) = present(schema, "additionalProperties") {
        if properties(schema).next().is_some() && *additional != json!(true) {
            let detail = "additionalProperties and properties are mutual exclusive";
            errors.push(fault::forbidden(format!("{at}.additionalProperties"), detail));
        }
        let mut inside = below;
        if scope.inside_metadata {
            inside.no_defaults = Some("must not be set inside additionalProperties applying to object metadata");
        }
        if let Some(schema) = additional_schema(schema) {
            node(schema, inside, &format!("{at}.additionalProperties"), errors);
        }
    }
    for (name, property) in properties(schema) {
        let mut inside = below;
        let is_object = scope.root || flag(schema, "x-kubernetes-embedded-resource");
        if is_object && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            inside.inside_metadata = true;
            if scope.root {
                inside.no_defaults = Some(match name.as_str() {
                    "metadata" => "must not be set in top-level metadata",
                    "kind" => "must not be set in top-level kind",
                    _ => "must not be set in top-level apiVersion",
                });
            }
        }
        node(property, inside, &format!("{at}.properties[{name}]"), errors);
    }
    if let Some(not) = present(schema, "not") {
        node(not, below, &format!("{at}.not"), errors);
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        for (index, nested) in list(schema, key).iter().enumerate() {
            node(nested, below, &format!("{at}.{key}[{index}]"), errors);
        }
    }
    if let Some(items) = present(schema, "items").filter(|items| items.is_object()) {
        node(items, below, &format!("{at}.items"), errors);
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(false)) {
        let field = format!("{at}.x-kubernetes-preserve-unknown-fields");
        errors.push(fault::invalid(field, false, "must be true or undefined"));
    }
    map_type(schema, at, errors);
    list_type(schema, at, errors);
}

fn standard(schema: &Value, scope: Scope, at: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    if !kind.is_empty() && Type::parse(kind).is_none() {
        let names = Type::ALL.iter().map(|kind| kind.name());
        errors.push(fault::not_supported(format!("{at}.type"), kind, names));
    }
    if let Some(reason) = scope.no_defaults.filter(|_| present(schema, "default").is_some()) {
        errors.push(fault::forbidden(format!("{at}.default"), reason));
    }
    for key in [
        "id",
        "additionalItems",
        "patternProperties",
        "definitions",
        "dependencies",
        "$ref",
    ] {
        let used = present(schema, key).is_some_and(|value| *value != json!("") && *value != json!({}));
        if used {
            errors.push(fault::forbidden(
                format!("{at}.{key}"),
                format!("{key} is not supported"),
            ));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(fault::forbidden(format!("{at}.type"), detail));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let detail = "items must be a schema object and not an array";
        errors.push(fault::forbidden(format!("{at}.items"), detail));
    }
    if scope.inside_metadata && flag(schema, "x-kubernetes-embedded-resource") {
        let field = format!("{at}.x-kubernetes-embedded-resource");
        errors.push(fault::forbidden(field, "must not be used inside of resource meta"));
    }
}

fn wants_type(schema: &Value, wanted: &str, because: &str, at: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let detail = format!("must be {wanted} if {because} is specified");
    if kind.is_empty() {
        errors.push(fault::required(format!("{at}.type"), detail));
    } else if kind != wanted {
        errors.push(fault::invalid(format!("{at}.type"), kind, detail));
    }
}

fn map_type(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let key = "x-kubernetes-map-type";
    if present(schema, key).is_none() {
        return;
    }
    wants_type(schema, "object", key, at, errors);
    let map_type = text(schema, key);
    if !matches!(map_type, "atomic" | "granular") {
        errors.push(fault::not_supported(
            format!("{at}.{key}"),
            map_type,
            ["atomic", "granular"],
        ));
    }
}

fn list_type(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let key = "x-kubernetes-list-type";
    let keys_field = format!("{at}.x-kubernetes-list-map-keys");
    let keys = list(schema, "x-kubernetes-list-map-keys");
    let Some(list_type) = present(schema, key).and_then(Value::as_str) else {
        if !keys.is_empty() {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            errors.push(fault::required(format!("{at}.{key}"), detail));
        }
        return;
    };
    let items = present(schema, "items").filter(|items| items.is_object());
    let is_array = text(schema, "type") == "array";
    wants_type(schema, "array", key, at, errors);
    if let Some(items) = items.filter(|_| is_array && list_type == "set") {
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let inner = match text(items, "type") {
            "array" if !matches!(text(items, key), "" | "atomic") => Some(key),
            "object" if text(items, "x-kubernetes-map-type") != "atomic" => Some("x-kubernetes-map-type"),
            _ => None,
        };
        if let Some(inner) = inner {
            let found = present(items, key).cloned().unwrap_or_default();
            errors.push(fault::invalid(format!("{at}.items.{inner}"), found, detail));
        }
    }
    if !matches!(list_type, "atomic" | "set" | "map") {
        errors.push(fault::not_supported(
            format!("{at}.{key}"),
            list_type,
            ["atomic", "set", "map"],
        ));
    }
    if !keys.is_empty() && list_type != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(fault::invalid(format!("{at}.{key}"), list_type, detail));
    }
    if list_type == "map" {
        if keys.is_empty() {
            let detail = "must not be empty if x-kubernetes-list-type is map";
            errors.push(fault::required(keys_field.clone(), detail));
        }
        match items {
            None => {
                let detail = "must have a schema if x-kubernetes-list-type is map";
                errors.push(fault::required(format!("{at}.items"), detail));
            }
            Some(items) if text(items, "type") != "object" => {
                let detail = "must be object if parent array's x-kubernetes-list-type is map";
                errors.push(fault::invalid(format!("{at}.items.type"), text(items, "type"), detail));
            }
            Some(items) => key_fields(items, keys, &keys_field, at, errors),
        }
    }
    if let Some(items) = items.filter(|_| matches!(list_type, "set" | "map")) {
        if flag(items, "nullable") {
            let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
            errors.push(fault::forbidden(format!("{at}.items.nullable"), detail));
        }
        if list_type == "map" {
            keys_are_always_there(items, keys, at, errors);
        }
    }
}

fn key_fields(items: &Value, keys: &[Value], keys_field: &str, at: &str, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for key in keys.iter().filter_map(Value::as_str) {
        match items.get("properties").and_then(|properties| properties.get(key)) {
            Some(property) if matches!(text(property, "type"), "array" | "object") => {
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                let field = format!("{at}.items.properties[{key}].type");
                errors.push(fault::invalid(field, text(items, "type"), detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(fault::invalid(keys_field, keys.to_vec(), detail));
            }
        }
        if !seen.insert(key) {
            errors.push(fault::invalid(
                keys_field,
                keys.to_vec(),
                "must not contain duplicate entries",
            ));
        }
    }
}

fn keys_are_always_there(items: &Value, keys: &[Value], at: &str, errors: &mut Vec<FieldError>) {
    for key in keys.iter().filter_map(Value::as_str) {
        let Some(property) = items.get("properties").and_then(|properties| properties.get(key)) else {
            continue;
        };
        let field = format!("{at}.items.properties[{key}]");
        let required = list(items, "required").iter().any(|required| required == key);
        if !required && present(property, "default").is_none() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                          property";
            errors.push(fault::required(format!("{field}.default"), detail));
        }
        if flag(property, "nullable") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(fault::forbidden(format!("{field}.nullable"), detail));
        }
    }
}

//! Every field is specified with a type outside of value checks, and value checks specify nothing.

use serde_json::{Value, json};

use super::{additional_schema, flag, list, present, properties, text};
use crate::field::FieldError;
use crate::schema::fault;
use crate::schema::pattern::Pattern;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

pub(super) fn check(schema: &Value, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    node(schema, Level::Root, field, &mut errors);
    alternatives(schema, |nested, at| {
        complete(nested, Some(schema), field, &format!("{field}.{at}"), &mut errors);
    });
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

fn node(schema: &Value, level: Level, at: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let int_or_string = flag(schema, "x-kubernetes-int-or-string");

    match present(schema, "items").filter(|items| items.is_object()) {
        Some(items) => node(items, Level::Item, &format!("{at}.items"), errors),
        None if kind == "array" => errors.push(fault::required(format!("{at}.items"), "must be specified")),
        None => {}
    }
    for (name, property) in properties(schema) {
        node(property, Level::Field, &format!("{at}.properties[{name}]"), errors);
    }
    if present(schema, "additionalProperties").is_some() {
        if level == Level::Root {
            let detail = "must not be used at the root";
            errors.push(fault::forbidden(format!("{at}.additionalProperties"), detail));
        }
        if let Some(additional) = additional_schema(schema) {
            node(additional, Level::Field, &format!("{at}.additionalProperties"), errors);
        }
    }
    if int_or_string {
        for (set, key) in [
            (preserve, "x-kubernetes-preserve-unknown-fields"),
            (embedded, "x-kubernetes-embedded-resource"),
        ] {
            if set {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.push(fault::invalid(format!("{at}.{key}"), true, detail));
            }
        }
    }
    value_checks(schema, at, errors);
    types(schema, level, at, errors);
    object_fields(schema, level, at, errors);
    if embedded && !preserve && properties(schema).next().is_none() {
        let detail =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(fault::required(format!("{at}.properties"), detail));
    }
}

fn types(schema: &Value, level: Level, at: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let field = format!("{at}.type");
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let untyped = flag(schema, "x-kubernetes-int-or-string") || flag(schema, "x-kubernetes-preserve-unknown-fields");
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            fault::required(field.clone(), detail)
        } else {
            fault::invalid(field.clone(), kind, detail)
        });
    } else if kind.is_empty() && !untyped {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(fault::required(field.clone(), detail));
    }
    if embedded && present(schema, "additionalProperties").is_some() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(fault::forbidden(format!("{at}.additionalProperties"), detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(fault::invalid(field, kind, "must be object at the root"));
    }
}

/// `apiVersion`, `kind` and `metadata` of an object are given; a schema may narrow the name and nothing else.
fn object_fields(schema: &Value, level: Level, at: &str, errors: &mut Vec<FieldError>) {
    let is_object = level == Level::Root || flag(schema, "x-kubernetes-embedded-resource");
    for (name, property) in properties(schema) {
        let field = format!("{at}.properties[{name}]");
        let kind = text(property, "type");
        match name.as_str() {
            "kind" | "apiVersion" if is_object && kind != "string" => {
                errors.push(fault::invalid(format!("{field}.type"), kind, "must be string"));
            }
            "metadata" => {
                if is_object && kind != "object" {
                    errors.push(fault::invalid(format!("{field}.type"), kind, "must be object"));
                }
                if level == Level::Root && !narrows_the_name_only(property) {
                    let detail = "must not specify anything other than name and generateName, but metadata is \
                                  implicitly specified";
                    errors.push(fault::forbidden(field, detail));
                }
            }
            _ => {}
        }
    }
}

fn narrows_the_name_only(metadata: &Value) -> bool {
    let known = metadata.as_object().is_none_or(|schema| {
        schema.iter().all(|(key, value)| match key.as_str() {
            "type" | "properties" | "default" => true,
            _ => value.is_null() || *value == json!(false) || *value == json!(""),
        })
    });
    known && properties(metadata).all(|(name, _)| name == "name" || name == "generateName")
}

/// Calls `visit` with each schema under allOf, anyOf, oneOf and not, and where it stands.
fn alternatives<'a>(schema: &'a Value, mut visit: impl FnMut(&'a Value, &str)) {
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, nested) in list(schema, key).iter().enumerate() {
            visit(nested, &format!("{key}[{index}]"));
        }
    }
    if let Some(not) = present(schema, "not") {
        visit(not, "not");
    }
}

fn is_int_or_string(any_of: &[Value]) -> bool {
    any_of == [json!({"type": "integer"}), json!({"type": "string"})]
}

fn value_checks(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let any_of_is_exempt = is_int_or_string(list(schema, "anyOf"));
    let all_of_is_exempt = list(schema, "allOf")
        .first()
        .is_some_and(|first| is_int_or_string(list(first, "anyOf")));
    alternatives(schema, |checks, position| {
        if any_of_is_exempt && position.starts_with("anyOf") {
            return;
        }
        let exempt = all_of_is_exempt && position == "allOf[0]";
        nested(checks, exempt, &format!("{at}.{position}"), errors);
    });
    let pattern = text(schema, "pattern");
    if let Some(fault) = Pattern::new(pattern).fault() {
        let detail = format!("must be a valid regular expression, but isn't: {fault}");
        errors.push(fault::invalid(format!("{at}.pattern"), pattern, detail));
    }
}

fn nested(schema: &Value, any_of_is_exempt: bool, at: &str, errors: &mut Vec<FieldError>) {
    alternatives(schema, |checks, position| {
        if !(any_of_is_exempt && position.starts_with("anyOf")) {
            nested(checks, false, &format!("{at}.{position}"), errors);
        }
    });
    if let Some(items) = present(schema, "items") {
        nested(items, false, &format!("{at}.items"), errors);
    }
    for (name, property) in properties(schema) {
        nested(property, false, &format!("{at}.properties[{name}]"), errors);
    }
    let mut forbid = |set: bool, key: &str, detail: &str| {
        if set {
            errors.push(fault::forbidden(format!("{at}.{key}"), detail));
        }
    };
    for key in ["type", "title", "description"] {
        forbid(!text(schema, key).is_empty(), key, "must be empty to be structural");
    }
    let additional = present(schema, "additionalProperties").is_some_and(|additional| *additional != json!(false));
    forbid(additional, "additionalProperties", "must be undefined to be structural");
    forbid(
        present(schema, "default").is_some(),
        "default",
        "must be undefined to be structural",
    );
    for key in [
        "nullable",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ] {
        forbid(flag(schema, key), key, "must be false to be structural");
    }
    for key in ["x-kubernetes-list-map-keys", "x-kubernetes-validations"] {
        forbid(!list(schema, key).is_empty(), key, "must be empty to be structural");
    }
    for key in ["x-kubernetes-list-type", "x-kubernetes-map-type"] {
        forbid(
            present(schema, key).is_some(),
            key,
            "must be undefined to be structural",
        );
    }
    let metadata = properties(schema).any(|(name, _)| name == "metadata");
    forbid(
        metadata,
        "properties[metadata]",
        "must not be specified in a nested context",
    );
}

/// What value checks speak of must be specified outside of them.
fn complete(checks: &Value, schema: Option<&Value>, at: &str, checks_at: &str, errors: &mut Vec<FieldError>) {
    let Some(schema) = schema else {
        errors.push(fault::required(at, format!("because it is defined in {checks_at}")));
        return;
    };
    alternatives(checks, |nested, position| {
        complete(nested, Some(schema), at, &format!("{checks_at}.{position}"), errors);
    });
    if let Some(items) = present(checks, "items") {
        complete(
            items,
            present(schema, "items"),
            &format!("{at}.items"),
            &format!("{checks_at}.items"),
            errors,
        );
    }
    for (name, property) in properties(checks) {
        let specified = schema.get("properties").and_then(|properties| properties.get(name));
        let (at, checks_at) = (
            format!("{at}.properties[{name}]"),
            format!("{checks_at}.properties[{name}]"),
        );
        complete(property, specified, &at, &checks_at, errors);
    }
}

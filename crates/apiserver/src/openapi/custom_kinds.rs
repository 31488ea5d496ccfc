//! The schema of a custom kind as it is published.
//!
//! In v3 it is what the author wrote, with the parts that every object has. In v2 it says less, because v2 can say less
//! and because clients of v2 refuse every field that it does not name.

use serde_json::{Map, Value, json};

use super::{names, texts::ObjectTexts};
use crate::builtin::schema::Dialect;

/// The definition of a custom kind, without its group, version and kind.
pub(super) fn definition(written: Option<Value>, dialect: Dialect, texts: &ObjectTexts) -> Value {
    let Some(mut schema) = written else {
        return json!({"type": "object"});
    };
    if dialect == Dialect::V2 && is_set(&schema, PRESERVE) {
        return json!({"type": "object"});
    }
    tidy(&mut schema);
    if dialect == Dialect::V2 {
        narrow(&mut schema);
    }
    embed(&mut schema, dialect, texts);
    add_object_fields(&mut schema, dialect, texts);
    schema
}

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

fn is_set(schema: &Value, flag: &str) -> bool {
    schema.get(flag).and_then(Value::as_bool).unwrap_or(false)
}

fn add_object_fields(schema: &mut Value, dialect: Dialect, texts: &ObjectTexts) {
    schema["properties"]["apiVersion"] = texts.api_version.clone();
    schema["properties"]["kind"] = texts.kind.clone();
    schema["properties"]["metadata"] = dialect.described_reference(names::OBJECT_META, &texts.metadata);
}

/// Drops keys that say nothing about values, and spells out what "int or string" means.
fn tidy(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for unspoken in [
        "$schema",
        "id",
        "example",
        "externalDocs",
        "definitions",
        "dependencies",
        "patternProperties",
    ] {
        fields.remove(unspoken);
    }
    if fields.get("nullable") == Some(&Value::Bool(false)) {
        fields.remove("nullable");
    }
    let int_or_string = fields.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
    if int_or_string && !fields.contains_key("anyOf") && !fields.contains_key("allOf") {
        fields.insert("anyOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
    }
    for_each_part(fields, tidy);
}

/// Leaves out what v2 cannot say, or what its clients misunderstand.
fn narrow(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for junctor in ["allOf", "anyOf", "oneOf", "not"] {
        fields.remove(junctor);
    }
    let set = |fields: &Map<String, Value>, flag: &str| fields.get(flag) == Some(&Value::Bool(true));
    drop_nullable_from_required(fields);
    if set(fields, "nullable") {
        for field in ["nullable", "type", "items", "properties"] {
            fields.remove(field);
        }
    }
    if set(fields, PRESERVE) {
        fields.remove("items");
        fields.remove("properties");
        if fields.get("type").is_some_and(|kind| kind == "object") {
            fields.remove("type");
        }
    }
    if fields.get("type").is_some_and(|kind| kind == "array") && !fields.contains_key("items") {
        fields.remove("type");
    }
    for_each_part(fields, narrow);
}

fn drop_nullable_from_required(fields: &mut Map<String, Value>) {
    let values_nullable = fields
        .get("additionalProperties")
        .is_some_and(|values| is_set(values, "nullable"));
    let nullable: Vec<String> = fields
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, schema)| is_set(schema, "nullable"))
        .map(|(name, _)| name.clone())
        .collect();
    let Some(required) = fields.get_mut("required").and_then(Value::as_array_mut) else {
        return;
    };
    required.retain(|name| !values_nullable && !nullable.iter().any(|nullable| name == nullable));
    if required.is_empty() {
        fields.remove("required");
    }
}

/// Gives embedded objects the parts that every object has.
fn embed(schema: &mut Value, dialect: Dialect, texts: &ObjectTexts) {
    let Some(fields) = schema.as_object_mut() else { return };
    for_each_part(fields, |part| embed(part, dialect, texts));
    if !is_set(schema, "x-kubernetes-embedded-resource") || (dialect == Dialect::V2 && is_set(schema, PRESERVE)) {
        return;
    }
    add_object_fields(schema, dialect, texts);
    let mut required = schema["required"].as_array().cloned().unwrap_or_default();
    for field in ["kind", "apiVersion"] {
        if !required.iter().any(|name| name == field) {
            required.push(field.into());
        }
    }
    schema["required"] = required.into();
}

fn for_each_part(fields: &mut Map<String, Value>, mut act: impl FnMut(&mut Value)) {
    for (_, schema) in fields
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        act(schema);
    }
    for part in ["items", "additionalProperties"] {
        if let Some(schema) = fields.get_mut(part).filter(|schema| schema.is_object()) {
            act(schema);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(written: &Value, dialect: Dialect) -> Value {
        definition(Some(written.clone()), dialect, ObjectTexts::get())
    }

    #[test]
    fn a_kind_that_preserves_unknown_fields_says_nothing_in_v2_and_everything_in_v3() {
        let written = json!({"type": "object", PRESERVE: true, "properties": {"spec": {"type": "object"}}});
        assert_eq!(published(&written, Dialect::V2), json!({"type": "object"}));
        let v3 = published(&written, Dialect::V3);
        assert_eq!(v3["properties"]["spec"], json!({"type": "object"}));
        assert_eq!(v3[PRESERVE], true);
    }

    #[test]
    fn metadata_is_the_one_that_every_object_has() {
        let written = json!({"type": "object", "properties": {"metadata": {"type": "object"}}});
        let v3 = published(&written, Dialect::V3);
        assert_eq!(
            v3["properties"]["metadata"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        let v2 = published(&written, Dialect::V2);
        assert_eq!(
            v2["properties"]["metadata"]["$ref"],
            "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert!(
            v2["properties"]["metadata"]["description"]
                .as_str()
                .unwrap()
                .starts_with("Standard object's metadata")
        );
    }

    #[test]
    fn in_v2_a_field_that_may_be_null_has_no_type_and_is_not_required() {
        let written = json!({
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["a", "b"],
                    "properties": {"a": {"type": "string", "nullable": true}, "b": {"type": "string"}},
                },
            },
        });
        let spec = &published(&written, Dialect::V2)["properties"]["spec"];
        assert_eq!(spec["required"], json!(["b"]));
        assert_eq!(spec["properties"]["a"], json!({}));
        let spec = &published(&written, Dialect::V3)["properties"]["spec"];
        assert_eq!(spec["properties"]["a"], json!({"type": "string", "nullable": true}));
    }

    #[test]
    fn in_v2_a_list_of_anything_has_no_type() {
        let written = json!({"type": "object", "properties": {
            "list": {"type": "array", "items": {"type": "object"}, PRESERVE: true},
            "map": {"type": "object", PRESERVE: true, "properties": {"a": {"type": "string"}}},
        }});
        let properties = &published(&written, Dialect::V2)["properties"];
        assert_eq!(properties["list"], json!({PRESERVE: true}));
        assert_eq!(properties["map"], json!({PRESERVE: true}));
    }

    #[test]
    fn int_or_string_is_spelled_out_in_v3_only() {
        let written = json!({"type": "object", "properties": {"port": {"x-kubernetes-int-or-string": true}}});
        let port = &published(&written, Dialect::V3)["properties"]["port"];
        assert_eq!(port["anyOf"], json!([{"type": "integer"}, {"type": "string"}]));
        let port = &published(&written, Dialect::V2)["properties"]["port"];
        assert_eq!(*port, json!({"x-kubernetes-int-or-string": true}));
    }

    #[test]
    fn an_embedded_object_has_a_type_and_metadata() {
        let written = json!({"type": "object", "properties": {
            "template": {"type": "object", "x-kubernetes-embedded-resource": true},
            "open": {"type": "object", "x-kubernetes-embedded-resource": true, PRESERVE: true},
        }});
        let template = &published(&written, Dialect::V3)["properties"]["template"];
        assert_eq!(template["required"], json!(["kind", "apiVersion"]));
        assert!(template["properties"]["metadata"]["allOf"].is_array());
        assert!(
            published(&written, Dialect::V2)["properties"]["open"]
                .get("properties")
                .is_none()
        );
    }
}

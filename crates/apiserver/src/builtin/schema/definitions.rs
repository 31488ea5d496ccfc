//! From facts to the definitions that schemas are compiled from.

use std::collections::BTreeSet;

use moorline_machinery::{
    facts::{Cardinality, Element, Emission, Facts, Field, Form, MessageId, Structure},
    schema::Definitions,
};
use serde_json::{Map, Value, json};

/// Every definition that a built-in kind refers to. Each is made when it is first met.
pub(super) fn all(facts: &'static Facts) -> Definitions {
    let mut found = BTreeSet::new();
    for (_, _, kind) in facts.kinds() {
        collect(facts, kind, &mut found);
    }
    let names: Vec<String> = found
        .into_iter()
        .map(|message| facts.definition_name(message))
        .collect();
    Definitions::new(names, move |name| Some(definition(facts, facts.definition(name)?)))
}

fn collect(facts: &Facts, message: MessageId, found: &mut BTreeSet<MessageId>) {
    if found.insert(message) {
        for field in facts.fields(message) {
            if let Element::Message(referred) = field.element {
                collect(facts, referred, found);
            }
        }
    }
}

fn definition(facts: &Facts, id: MessageId) -> Value {
    let message = facts.message(id);
    let mut schema = match message.form {
        Form::Object => {
            let mut properties = properties(facts, id);
            if message.is_kind {
                properties.insert("apiVersion".to_owned(), json!({"type": "string"}));
                properties.insert("kind".to_owned(), json!({"type": "string"}));
            }
            json!({"type": "object", "properties": properties})
        }
        Form::Items => json!({"type": "array", "items": {"type": "string"}}),
        Form::Time | Form::MicroTime | Form::Duration => json!({"type": "string"}),
        Form::Quantity | Form::IntOrString => json!({"x-kubernetes-int-or-string": true}),
        Form::Raw => json!({"x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-map-type": "atomic"}),
        // Without a type, so that it may be one of the alternatives as well; as an object, it is a schema.
        Form::SchemaOrBool | Form::SchemaOrArray | Form::SchemaOrStrings => {
            let schema = facts.fields(id).iter().find_map(|field| match field.element {
                Element::Message(schema) => Some(schema),
                _ => None,
            });
            json!({"properties": schema.map(|schema| properties(facts, schema)).unwrap_or_default()})
        }
    };
    mark_structure(&mut schema, message.structure);
    schema
}

fn properties(facts: &Facts, id: MessageId) -> Map<String, Value> {
    let mut all = Map::new();
    for field in facts.fields(id) {
        match field.element {
            Element::Message(inlined) if field.name.is_empty() => all.append(&mut properties(facts, inlined)),
            _ => {
                all.insert(field.name.to_owned(), property(facts, field));
            }
        }
    }
    all
}

fn property(facts: &Facts, field: &Field) -> Value {
    let element = match field.element {
        Element::String => json!({"type": "string"}),
        Element::Int32 => json!({"type": "integer", "format": "int32"}),
        Element::Int64 => json!({"type": "integer", "format": "int64"}),
        Element::Bool => json!({"type": "boolean"}),
        Element::Bytes => json!({"type": "string", "format": "byte"}),
        Element::Double => json!({"type": "number", "format": "double"}),
        Element::Message(message) => json!({"$ref": format!("#/definitions/{}", facts.definition_name(message))}),
    };
    let mut schema = match field.cardinality {
        Cardinality::One | Cardinality::Optional => element,
        Cardinality::List => json!({"type": "array", "items": element}),
        Cardinality::Map => json!({"type": "object", "additionalProperties": element}),
    };
    mark(&mut schema, field);
    if let Some(default) = written_default_of(field) {
        schema["default"] = default;
    }
    schema
}

/// The default of a field, where it has one that is also written.
fn written_default_of(field: &Field) -> Option<Value> {
    let is_left_out = field.emission == Emission::NotEmpty && field.cardinality == Cardinality::One;
    default_of(field).filter(|default| !(is_left_out && [json!(0), json!(""), json!(false)].contains(default)))
}

/// The default of a field, where the schema has one.
pub(super) fn default_of(field: &Field) -> Option<Value> {
    field.default.and_then(|text| serde_json::from_str(text).ok())
}

/// Writes down how a field is merged, under the keys that Kubernetes publishes it with.
pub(super) fn mark(schema: &mut Value, field: &Field) {
    // In Go, bytes are a list as well.
    if field.cardinality == Cardinality::List || field.element == Element::Bytes {
        match field.structure {
            Structure::Implied => {}
            Structure::Atomic => schema["x-kubernetes-list-type"] = "atomic".into(),
            Structure::Set => schema["x-kubernetes-list-type"] = "set".into(),
            Structure::Map(_) => {
                schema["x-kubernetes-list-type"] = "map".into();
                schema["x-kubernetes-list-map-keys"] = field.structure.map_keys().collect();
            }
        }
    } else {
        mark_structure(schema, field.structure);
    }
    if let Some(patch) = field.patch {
        schema["x-kubernetes-patch-strategy"] = match (patch.merge, patch.retain_keys) {
            (true, true) => "merge,retainKeys".into(),
            (true, false) => "merge".into(),
            (false, true) => "retainKeys".into(),
            (false, false) => "replace".into(),
        };
        if let Some(key) = patch.merge_key {
            schema["x-kubernetes-patch-merge-key"] = key.into();
        }
    }
}

/// Writes down that an object or a map is merged as a whole.
pub(super) fn mark_structure(schema: &mut Value, structure: Structure) {
    if structure == Structure::Atomic {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
}

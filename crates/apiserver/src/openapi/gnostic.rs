//! An `OpenAPI` v2 document in the protobuf form that Go clients ask for.
//!
//! Only what this server writes is translated: see [`super::v2`] and [`super::custom_kinds`] for what that can be.

use serde_json::{Map, Value};

/// Translates a document.
pub(super) fn document(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, &document["swagger"]);
    out.message(2, |info| {
        info.text(1, &document["info"]["title"]);
        info.text(2, &document["info"]["version"]);
    });
    out.message(8, |paths| named(paths, 2, &document["paths"], path_item));
    out.message(9, |definitions| named(definitions, 1, &document["definitions"], schema));
    out.message(10, |parameters| {
        named(parameters, 1, &document["parameters"], parameter);
    });
    for requirement in list(&document["security"]) {
        out.message(12, |out| {
            named(out, 1, requirement, |scopes, value| scopes.texts(1, value));
        });
    }
    out.message(13, |definitions| {
        named(definitions, 1, &document["securityDefinitions"], |item, definition| {
            item.message(2, |key| {
                key.text(1, &definition["type"]);
                key.text(2, &definition["name"]);
                key.text(3, &definition["in"]);
                key.text(4, &definition["description"]);
            });
        });
    });
    out.0
}

fn path_item(out: &mut Message, item: &Value) {
    let methods = [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")];
    for (number, method) in methods {
        if let Some(found) = item.get(method) {
            out.message(number, |out| operation(out, found));
        }
    }
    for found in list(&item["parameters"]) {
        out.message(9, |out| parameter_or_reference(out, found));
    }
}

fn operation(out: &mut Message, operation: &Value) {
    out.texts(1, &operation["tags"]);
    out.text(3, &operation["description"]);
    out.text(5, &operation["operationId"]);
    out.texts(6, &operation["produces"]);
    out.texts(7, &operation["consumes"]);
    for found in list(&operation["parameters"]) {
        out.message(8, |out| parameter_or_reference(out, found));
    }
    out.message(9, |responses| {
        named(responses, 1, &operation["responses"], |value, response| {
            value.message(1, |out| {
                out.text(1, &response["description"]);
                if let Some(found) = response.get("schema") {
                    out.message(2, |item| item.message(1, |out| schema(out, found)));
                }
            });
        });
    });
    out.texts(10, &operation["schemes"]);
    extensions(out, 13, operation);
}

fn parameter_or_reference(out: &mut Message, found: &Value) {
    if found.get("$ref").is_some() {
        out.message(2, |reference| reference.text(1, &found["$ref"]));
    } else {
        out.message(1, |out| parameter(out, found));
    }
}

fn parameter(out: &mut Message, parameter: &Value) {
    match parameter["in"].as_str() {
        Some("body") => out.message(1, |body| {
            body.text(2, &parameter["name"]);
            body.text(3, &parameter["in"]);
            body.flag(4, &parameter["required"]);
            body.message(5, |out| schema(out, &parameter["schema"]));
        }),
        place => {
            // Parameters in the path lack one field that those in the query have; what follows it moves up.
            let (number, after) = if place == Some("path") { (4, 0) } else { (3, 1) };
            out.message(2, |other| {
                other.message(number, |out| {
                    out.flag(1, &parameter["required"]);
                    out.text(2, &parameter["in"]);
                    out.text(3, &parameter["description"]);
                    out.text(4, &parameter["name"]);
                    out.text(5 + after, &parameter["type"]);
                    out.flag(19 + after, &parameter["uniqueItems"]);
                });
            });
        }
    }
}

fn schema(out: &mut Message, schema: &Value) {
    let Some(fields) = schema.as_object() else { return };
    for (key, value) in fields {
        match key.as_str() {
            "$ref" => out.text(1, value),
            "format" => out.text(2, value),
            "title" => out.text(3, value),
            "description" => out.text(4, value),
            "default" => out.message(5, |out| any(out, value)),
            "multipleOf" => out.double(6, value),
            "maximum" => out.double(7, value),
            "exclusiveMaximum" => out.flag(8, value),
            "minimum" => out.double(9, value),
            "exclusiveMinimum" => out.flag(10, value),
            "maxLength" => out.integer(11, value),
            "minLength" => out.integer(12, value),
            "pattern" => out.text(13, value),
            "maxItems" => out.integer(14, value),
            "minItems" => out.integer(15, value),
            "uniqueItems" => out.flag(16, value),
            "maxProperties" => out.integer(17, value),
            "minProperties" => out.integer(18, value),
            "required" => out.texts(19, value),
            "enum" => list(value)
                .iter()
                .for_each(|value| out.message(20, |out| any(out, value))),
            "additionalProperties" => out.message(21, |item| match value {
                Value::Bool(_) => item.flag(2, value),
                values => item.message(1, |out| self::schema(out, values)),
            }),
            "type" => out.message(22, |item| item.text(1, value)),
            "items" => out.message(23, |item| item.message(1, |out| self::schema(out, value))),
            "properties" => out.message(25, |out| named(out, 1, value, self::schema)),
            _ => {}
        }
    }
    extensions(out, 31, schema);
}

/// Writes the entries of a map as a repeated message of name and value.
fn named(out: &mut Message, number: u32, map: &Value, mut write: impl FnMut(&mut Message, &Value)) {
    for (name, value) in map.as_object().into_iter().flatten() {
        out.message(number, |entry| {
            entry.bytes(1, name.as_bytes());
            entry.message(2, |out| write(out, value));
        });
    }
}

fn extensions(out: &mut Message, number: u32, holder: &Value) {
    let extensions: Map<String, Value> = holder
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.starts_with("x-"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    named(out, number, &extensions.into(), any);
}

/// Any value travels as YAML, of which JSON is a part.
fn any(out: &mut Message, value: &Value) {
    out.bytes(2, format!("{value}\n").as_bytes());
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A message that is being written. As in any protobuf of version 3, zero values are left out.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn tag(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    fn varint(&mut self, mut value: u64) {
        let low = |value: u64| u8::try_from(value & 0x7f).expect("seven bits fit");
        while value > 0x7f {
            self.0.push(low(value) | 0x80);
            value >>= 7;
        }
        self.0.push(low(value));
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.tag(number, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, number: u32, write: impl FnOnce(&mut Message)) {
        let mut nested = Message::default();
        write(&mut nested);
        self.bytes(number, &nested.0);
    }

    fn text(&mut self, number: u32, value: &Value) {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn texts(&mut self, number: u32, values: &Value) {
        list(values)
            .iter()
            .filter_map(Value::as_str)
            .for_each(|text| self.bytes(number, text.as_bytes()));
    }

    fn flag(&mut self, number: u32, value: &Value) {
        if value.as_bool() == Some(true) {
            self.tag(number, 0);
            self.varint(1);
        }
    }

    fn integer(&mut self, number: u32, value: &Value) {
        if let Some(integer) = value.as_i64().filter(|integer| *integer != 0) {
            self.tag(number, 0);
            self.varint(integer.cast_unsigned());
        }
    }

    fn double(&mut self, number: u32, value: &Value) {
        if let Some(double) = value.as_f64().filter(|double| *double != 0.0) {
            self.tag(number, 1);
            self.0.extend_from_slice(&double.to_le_bytes());
        }
    }
}

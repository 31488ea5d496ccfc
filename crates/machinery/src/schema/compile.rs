//! From schema JSON to nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::node::{Additional, Bound, Checks, ListFacts, ListType, MapType, Node, PatchFacts, Type};
use super::object_meta;
use super::pattern::Pattern;
use crate::cel::Rule;

/// A schema that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading the schema at {at:?}: {reason}")]
pub struct SchemaError {
    at: String,
    reason: &'static str,
}

/// What stands at the top of the JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A whole custom object: `apiVersion`, `kind` and `metadata` are there whether or not the schema names them.
    Resource,
    /// A definition, or a kind whose schema spells out its metadata.
    Part,
}

pub(crate) fn node(json: &Value, role: Role) -> Result<Node, SchemaError> {
    Compiler::default().node(json, role == Role::Resource, 0)
}

/// Deeper schemas than this are refused: they cannot be walked without fear for the stack.
const MAX_DEPTH: usize = 128;

#[derive(Default)]
struct Compiler {
    /// One expression is often repeated hundreds of times in a schema (quantities).
    patterns: HashMap<String, Arc<Pattern>>,
    at: Vec<String>,
}

impl Compiler {
    fn node(&mut self, json: &Value, resource: bool, depth: usize) -> Result<Node, SchemaError> {
        let Some(json) = json.as_object() else {
            return match json {
                Value::Bool(true) => Ok(Node {
                    preserve_unknown: true,
                    ..Node::default()
                }),
                _ => Err(self.error("a schema must be an object")),
            };
        };
        if depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        let mut node = self.facts(json, depth)?;
        if let Some(properties) = json.get("properties").and_then(Value::as_object) {
            for (name, schema) in properties {
                let child = self.child(name, schema, depth)?;
                node.properties.insert(name.as_str().into(), child);
            }
        }
        if resource || node.embedded_resource {
            self.add_object_fields(&mut node, json, depth)?;
        }
        node.has_rules = !node.rules.is_empty()
            || node.reference.is_some()
            || node.properties.values().any(|child| child.has_rules)
            || node.items.as_ref().is_some_and(|child| child.has_rules)
            || matches!(&node.additional, Additional::Schema(child) if child.has_rules);
        Ok(node)
    }

    /// What every Kubernetes object has; a schema may only narrow the name.
    fn add_object_fields(
        &mut self,
        node: &mut Node,
        json: &Map<String, Value>,
        depth: usize,
    ) -> Result<(), SchemaError> {
        for name in ["apiVersion", "kind"] {
            node.properties.entry(name.into()).or_insert_with(|| Node {
                kind: Some(Type::String),
                ..Node::default()
            });
        }
        let mut metadata = object_meta::schema();
        let narrowed = json
            .get("properties")
            .and_then(|p| p.get("metadata"))
            .and_then(|m| m.get("properties"));
        for name in ["name", "generateName"] {
            if let Some(schema) = narrowed.and_then(|properties| properties.get(name)) {
                metadata["properties"][name] = schema.clone();
            }
        }
        let metadata = self.child("metadata", &metadata, depth)?;
        node.properties.insert("metadata".into(), metadata);
        Ok(())
    }

    fn facts(&mut self, json: &Map<String, Value>, depth: usize) -> Result<Node, SchemaError> {
        let flag = |key: &str| json.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = |key: &str| json.get(key).and_then(Value::as_str);
        let kind = json.get("type").and_then(type_name);
        Ok(Node {
            reference: reference(json),
            kind: kind.and_then(Type::parse),
            nullable: flag("nullable") || allows_null(json),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded_resource: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string") || text("format") == Some("int-or-string"),
            properties: BTreeMap::new(),
            additional: match json.get("additionalProperties") {
                None | Some(Value::Null) => Additional::Unspecified,
                Some(Value::Bool(true)) => Additional::Any,
                Some(Value::Bool(false)) => Additional::Nothing,
                Some(schema) => Additional::Schema(Box::new(self.child("additionalProperties", schema, depth)?)),
            },
            items: match json.get("items") {
                None | Some(Value::Null) => None,
                Some(schema) => Some(Box::new(self.child("items", schema, depth)?)),
            },
            required: strings(json.get("required")),
            default: json.get("default").filter(|default| !default.is_null()).cloned(),
            list: list_facts(json),
            map_type: match text("x-kubernetes-map-type") {
                Some("atomic") => Some(MapType::Atomic),
                Some("granular") => Some(MapType::Granular),
                _ => None,
            },
            patch: patch_facts(json),
            checks: self.checks(json, kind, depth)?,
            rules: json
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .map(|rules| rules.iter().map(Rule::new).collect())
                .unwrap_or_default(),
            has_rules: false,
        })
    }

    fn checks(
        &mut self,
        json: &Map<String, Value>,
        kind: Option<&str>,
        depth: usize,
    ) -> Result<Option<Box<Checks>>, SchemaError> {
        const KEYS: [&str; 19] = [
            "enum",
            "format",
            "pattern",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "uniqueItems",
            "minProperties",
            "maxProperties",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
        ];
        if !KEYS.iter().any(|key| json.contains_key(*key)) {
            return Ok(None);
        }
        let count = |key: &str| json.get(key).and_then(Value::as_f64).map(as_count);
        let alternatives = |this: &mut Self, key: &'static str| -> Result<Vec<Node>, SchemaError> {
            let Some(schemas) = json.get(key).and_then(Value::as_array) else {
                return Ok(Vec::new());
            };
            schemas
                .iter()
                .filter(|schema| !is_null_type(schema))
                .map(|s| this.child(key, s, depth))
                .collect()
        };
        let is_reference = reference(json).is_some();
        Ok(Some(Box::new(Checks {
            allowed: json.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            format: json
                .get("format")
                .and_then(Value::as_str)
                .filter(|f| enforced(f, kind))
                .map(Into::into),
            pattern: json
                .get("pattern")
                .and_then(Value::as_str)
                .filter(|p| !p.is_empty())
                .map(|p| self.pattern(p)),
            minimum: bound(json, "minimum", "exclusiveMinimum"),
            maximum: bound(json, "maximum", "exclusiveMaximum"),
            multiple_of: json.get("multipleOf").and_then(Value::as_f64),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: json.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            all_of: if is_reference {
                Vec::new()
            } else {
                alternatives(self, "allOf")?
            },
            any_of: if is_reference {
                Vec::new()
            } else {
                alternatives(self, "anyOf")?
            },
            one_of: if is_reference {
                Vec::new()
            } else {
                alternatives(self, "oneOf")?
            },
            not: match json.get("not") {
                None | Some(Value::Null) => None,
                Some(schema) => Some(Box::new(self.child("not", schema, depth)?)),
            },
        })))
    }

    fn child(&mut self, name: &str, schema: &Value, depth: usize) -> Result<Node, SchemaError> {
        self.at.push(name.to_owned());
        let node = self.node(schema, false, depth + 1)?;
        self.at.pop();
        Ok(node)
    }

    fn pattern(&mut self, source: &str) -> Arc<Pattern> {
        self.patterns
            .entry(source.to_owned())
            .or_insert_with(|| Arc::new(Pattern::new(source)))
            .clone()
    }

    fn error(&self, reason: &'static str) -> SchemaError {
        SchemaError {
            at: self.at.join("."),
            reason,
        }
    }
}

/// The definition that a schema is, with or without the wrapping that generators need to put a default beside it.
fn reference(json: &Map<String, Value>) -> Option<Box<str>> {
    let direct = |json: &Map<String, Value>| {
        let pointer = json.get("$ref")?.as_str()?;
        Some(pointer.rsplit('/').next().unwrap_or(pointer).into())
    };
    direct(json).or_else(|| {
        if json.contains_key("type") || json.contains_key("properties") {
            return None;
        }
        ["allOf", "anyOf", "oneOf"].iter().find_map(|key| {
            let mut schemas = json
                .get(*key)?
                .as_array()?
                .iter()
                .filter(|schema| !is_null_type(schema));
            let only = schemas.next()?.as_object()?;
            if schemas.next().is_some() { None } else { direct(only) }
        })
    })
}

fn is_null_type(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("null")
}

fn allows_null(json: &Map<String, Value>) -> bool {
    let in_type = json
        .get("type")
        .and_then(Value::as_array)
        .is_some_and(|types| types.iter().any(|t| t == "null"));
    in_type
        || ["anyOf", "oneOf"].iter().any(|key| {
            json.get(*key)
                .and_then(Value::as_array)
                .is_some_and(|s| s.iter().any(is_null_type))
        })
}

fn type_name(json: &Value) -> Option<&str> {
    match json {
        Value::String(name) => Some(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        _ => None,
    }
}

fn strings(json: Option<&Value>) -> Vec<Box<str>> {
    let items = json.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(Into::into).collect()
}

fn list_facts(json: &Map<String, Value>) -> Option<Box<ListFacts>> {
    let list_type = match json.get("x-kubernetes-list-type")?.as_str()? {
        "set" => ListType::Set,
        "map" => ListType::Map,
        "atomic" => ListType::Atomic,
        _ => return None,
    };
    Some(Box::new(ListFacts {
        list_type,
        keys: strings(json.get("x-kubernetes-list-map-keys")),
    }))
}

fn patch_facts(json: &Map<String, Value>) -> Option<Box<PatchFacts>> {
    let strategies = json.get("x-kubernetes-patch-strategy").and_then(Value::as_str);
    let merge_key = json.get("x-kubernetes-patch-merge-key").and_then(Value::as_str);
    if strategies.is_none() && merge_key.is_none() {
        return None;
    }
    let has = |wanted: &str| strategies.is_some_and(|s| s.split(',').any(|strategy| strategy.trim() == wanted));
    Some(Box::new(PatchFacts {
        merge: has("merge"),
        retain_keys: has("retainKeys"),
        merge_key: merge_key.map(Into::into),
    }))
}

/// Draft 4 says `exclusiveMinimum: true` beside a minimum, later drafts give the limit itself.
fn bound(json: &Map<String, Value>, inclusive: &str, exclusive: &str) -> Option<Bound> {
    match json.get(exclusive) {
        Some(Value::Number(limit)) => Some(Bound {
            limit: limit.as_f64()?,
            exclusive: true,
        }),
        other => {
            let limit = json.get(inclusive)?.as_f64()?;
            Some(Bound {
                limit,
                exclusive: other.and_then(Value::as_bool).unwrap_or(false),
            })
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are small and not negative"
)]
fn as_count(number: f64) -> u64 {
    number.max(0.0) as u64
}

/// Formats that are checked; others are documentation.
fn enforced(format: &str, kind: Option<&str>) -> bool {
    match kind {
        None | Some("string") => super::format::is_known(format),
        Some("integer") => matches!(format, "int32" | "int64"),
        Some("number") => matches!(format, "float" | "double"),
        _ => false,
    }
}

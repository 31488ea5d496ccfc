//! The definitions of built-in kinds as a server publishes them: the texts, with the facts laid over them.

use moorline_machinery::gvk::GroupVersionKind;
use serde_json::{Map, Value, json};

use super::{definitions, facts, texts};

/// Which `OpenAPI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    V2,
    V3,
}

impl Dialect {
    /// A reference to a definition.
    pub(crate) fn reference(self, definition: &str) -> String {
        match self {
            Self::V2 => format!("#/definitions/{definition}"),
            Self::V3 => format!("#/components/schemas/{definition}"),
        }
    }

    /// A schema that is a definition, described. `OpenAPI` v3 lets nothing stand beside a reference.
    pub(crate) fn described_reference(self, definition: &str, description: &str) -> Value {
        let reference = self.reference(definition);
        match self {
            Self::V2 => json!({"$ref": reference, "description": description}),
            Self::V3 => json!({"allOf": [{"$ref": reference}], "description": description}),
        }
    }
}

/// Gathers the definitions of some kinds and of everything that they refer to.
pub(crate) struct Collector {
    texts: texts::Collector,
    dialect: Dialect,
}

impl Collector {
    /// Begins with what operations on any kind carry.
    pub(crate) fn new(dialect: Dialect) -> Self {
        let mut texts = texts::Collector::new();
        texts.add_shared();
        Self { texts, dialect }
    }

    /// Adds a kind, if its texts are known.
    pub(crate) fn add(&mut self, gvk: &GroupVersionKind) {
        self.texts.add(&gvk.group, &gvk.version, &gvk.kind);
    }

    /// The definitions by name.
    pub(crate) fn finish(self) -> Map<String, Value> {
        let mut published = self.texts.into_definitions();
        for (name, schema) in &mut published {
            publish(name, schema, self.dialect);
        }
        published
    }
}

/// The value of `x-kubernetes-group-version-kind` on a definition.
pub(crate) fn group_version_kinds<'k>(kinds: impl IntoIterator<Item = &'k GroupVersionKind>) -> Value {
    let described =
        |gvk: &GroupVersionKind| json!({"group": &*gvk.group, "version": &*gvk.version, "kind": &*gvk.kind});
    kinds.into_iter().map(described).collect()
}

fn publish(name: &str, schema: &mut Value, dialect: Dialect) {
    if let Some(special) = special_form(name, dialect) {
        let description = schema["description"].take();
        *schema = special;
        schema["description"] = description;
        return;
    }
    let message = facts().definition(name);
    let known = |field: &str| message.and_then(|message| facts().field(message, field));
    // In Rust every object has metadata, and every reference a name; in Kubernetes they may be left out.
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        let has_default = |field: &str| known(field).is_some_and(|known| known.default.is_some());
        required.retain(|field| field != "metadata" && !field.as_str().is_some_and(has_default));
        if required.is_empty() {
            schema.as_object_mut().map(|schema| schema.remove("required"));
        }
    }
    if let Some(message) = message {
        definitions::mark_structure(schema, facts().message(message).structure);
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (field, property) in properties.into_iter().flatten() {
        if let Some(known) = known(field) {
            definitions::mark(property, known);
            if dialect == Dialect::V3
                && let Some(default) = definitions::default_of(known)
            {
                property["default"] = default;
            }
        }
        rewrite_references(property, dialect);
    }
}

/// Types whose published schema is not that of an object.
fn special_form(name: &str, dialect: Dialect) -> Option<Value> {
    let (package, short) = name.rsplit_once('.')?;
    Some(match (package, short, dialect) {
        ("io.k8s.apimachinery.pkg.util.intstr", "IntOrString", Dialect::V2) => {
            json!({"type": "string", "format": "int-or-string"})
        }
        ("io.k8s.apimachinery.pkg.util.intstr", "IntOrString", Dialect::V3) => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        ("io.k8s.apimachinery.pkg.api.resource", "Quantity", Dialect::V2) => json!({"type": "string"}),
        ("io.k8s.apimachinery.pkg.api.resource", "Quantity", Dialect::V3) => {
            json!({"oneOf": [{"type": "string"}, {"type": "number"}]})
        }
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
            "JSON" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrStringArray",
            _,
        ) => json!({}),
        _ => return None,
    })
}

/// Texts come with references of v3, described in place.
fn rewrite_references(schema: &mut Value, dialect: Dialect) {
    let Some(fields) = schema.as_object_mut() else { return };
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = fields.get_mut(nested) {
            rewrite_references(nested, dialect);
        }
    }
    let Some(Value::String(reference)) = fields.get_mut("$ref") else {
        return;
    };
    match dialect {
        Dialect::V2 => *reference = reference.replacen("#/components/schemas/", "#/definitions/", 1),
        Dialect::V3 if fields.len() > 1 => {
            let reference = fields.remove("$ref");
            fields.insert("allOf".to_owned(), json!([{"$ref": reference}]));
        }
        Dialect::V3 => {}
    }
}

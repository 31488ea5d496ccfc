//! `OpenAPI` v2: everything in one document.

use std::collections::BTreeMap;

use moorline_machinery::gvk::GroupVersion;
use serde_json::{Map, Value, json};

use super::{
    WrittenSchemas, definitions, names,
    operations::{self, Answer, Content, Operation, Parameter, Place},
    v3::meaning,
};
use crate::{builtin::schema::Dialect, resource::Served};

/// The document of everything that is served.
pub(super) fn document(served: &Served, written: &WrittenSchemas) -> Value {
    let versions: Vec<GroupVersion> = served.groups().flat_map(|(_, versions)| versions).collect();
    let mut paths = Map::new();
    let mut shared = Shared::default();
    for version in &versions {
        let tag = names::tag(version);
        for item in operations::paths(served, version) {
            let mut written: Map<String, Value> = item
                .operations
                .into_iter()
                .map(|op| (op.method.to_owned(), operation(op, &tag, &mut shared)))
                .collect();
            if !item.parameters.is_empty() {
                let parameters = item
                    .parameters
                    .iter()
                    .map(|parameter| shared.reference(parameter))
                    .collect();
                written.insert("parameters".to_owned(), parameters);
            }
            paths.insert(item.path, written.into());
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": crate::service::VERSION},
        "paths": paths,
        "definitions": definitions::collect(served, &versions, written, Dialect::V2),
        "parameters": shared.0,
        "securityDefinitions": {"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization"}},
        "security": [{"BearerToken": []}],
    })
}

/// Parameters, written down once and referred to.
#[derive(Default)]
struct Shared(BTreeMap<String, Value>);

impl Shared {
    fn reference(&mut self, parameter: &Parameter) -> Value {
        let place = match parameter.place {
            Place::Path => "path",
            Place::Query => "query",
        };
        // The same name may stand in a path, or have another type elsewhere.
        let key = format!("{}-{place}-{}", parameter.name, parameter.kind);
        let reference = json!({"$ref": format!("#/parameters/{key}")});
        self.0.entry(key).or_insert_with(|| {
            let mut written = json!({
                "name": parameter.name,
                "in": place,
                "description": parameter.description,
                "type": parameter.kind,
                "uniqueItems": true,
            });
            if parameter.place == Place::Path {
                written["required"] = true.into();
            }
            written
        });
        reference
    }
}

/// Parameters that clients look for in the operation itself, without following references.
const IN_PLACE: [&str; 2] = ["dryRun", "fieldValidation"];

fn operation(operation: Operation, tag: &str, shared: &mut Shared) -> Value {
    let mut produces = vec!["application/json", "application/yaml"];
    let answer = match &operation.answer {
        Answer::Object { definition } => json!({"$ref": Dialect::V2.reference(definition)}),
        Answer::List { definition } => {
            produces.push("application/json;stream=watch");
            json!({"$ref": Dialect::V2.reference(definition)})
        }
        Answer::Text => {
            produces = vec!["*/*"];
            json!({"type": "string"})
        }
    };
    let mut consumes: &[&str] = &["*/*"];
    let mut parameters = Vec::new();
    match &operation.body {
        None => {}
        Some(Content::Object { definition }) => parameters.push(body(definition, true)),
        Some(Content::Options { definition }) => parameters.push(body(definition, false)),
        Some(Content::Patch { media_types }) => {
            consumes = media_types;
            parameters.push(body(names::PATCH, true));
        }
    }
    parameters.extend(operation.parameters.iter().map(|parameter| {
        let reference = shared.reference(parameter);
        if !IN_PLACE.contains(&parameter.name) {
            return reference;
        }
        let key = reference["$ref"]
            .as_str()
            .and_then(|reference| reference.rsplit('/').next())
            .unwrap_or_default();
        shared.0[key].clone()
    }));
    let mut written = json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [tag],
        "schemes": ["https"],
        "consumes": consumes,
        "produces": produces,
    });
    for code in operation.codes {
        written["responses"][code.to_string()] = json!({"description": meaning(*code), "schema": answer});
    }
    written["responses"]["401"] = json!({"description": "Unauthorized"});
    if let Some(gvk) = operation.gvk {
        written["x-kubernetes-action"] = operation.action.into();
        written["x-kubernetes-group-version-kind"] =
            json!({"group": &*gvk.group, "version": &*gvk.version, "kind": &*gvk.kind});
    }
    if !parameters.is_empty() {
        written["parameters"] = parameters.into();
    }
    written
}

fn body(definition: &str, required: bool) -> Value {
    let mut written = json!({"name": "body", "in": "body", "schema": {"$ref": Dialect::V2.reference(definition)}});
    if required {
        written["required"] = true.into();
    }
    written
}

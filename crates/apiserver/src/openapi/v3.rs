//! `OpenAPI` v3: one document for each group and version.

use moorline_machinery::gvk::GroupVersion;
use serde_json::{Map, Value, json};

use super::{
    WrittenSchemas, definitions, names,
    operations::{self, Answer, Content, Operation, Parameter, Place},
};
use crate::{builtin::schema::Dialect, resource::Served};

/// The document of a version.
pub(super) fn document(served: &Served, version: &GroupVersion, written: &WrittenSchemas) -> Value {
    let tag = names::tag(version);
    let paths: Map<String, Value> = operations::paths(served, version)
        .into_iter()
        .map(|item| {
            let mut written: Map<String, Value> = item
                .operations
                .into_iter()
                .map(|op| (op.method.to_owned(), operation(op, &tag)))
                .collect();
            if !item.parameters.is_empty() {
                written.insert("parameters".to_owned(), item.parameters.iter().map(parameter).collect());
            }
            (item.path, written.into())
        })
        .collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": crate::service::VERSION},
        "paths": paths,
        "components": {
            "schemas": definitions::collect(served, std::slice::from_ref(version), written, Dialect::V3),
            "securitySchemes": {"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization"}},
        },
    })
}

fn operation(operation: Operation, tag: &str) -> Value {
    let mut written = json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [tag],
    });
    let answer = match &operation.answer {
        Answer::Object { definition } => content(definition, &["application/json", "application/yaml"]),
        Answer::List { definition } => content(
            definition,
            &["application/json", "application/json;stream=watch", "application/yaml"],
        ),
        Answer::Text => json!({"*/*": {"schema": {"type": "string"}}}),
    };
    for code in operation.codes {
        written["responses"][code.to_string()] = json!({"description": meaning(*code), "content": answer});
    }
    written["responses"]["401"] = json!({"description": "Unauthorized"});
    if let Some(gvk) = operation.gvk {
        written["x-kubernetes-action"] = operation.action.into();
        written["x-kubernetes-group-version-kind"] =
            json!({"group": &*gvk.group, "version": &*gvk.version, "kind": &*gvk.kind});
    }
    if !operation.parameters.is_empty() {
        written["parameters"] = operation.parameters.iter().map(parameter).collect();
    }
    match operation.body {
        None => {}
        Some(Content::Object { definition }) => {
            written["requestBody"] = json!({"required": true, "content": content(&definition, &["*/*"])});
        }
        Some(Content::Options { definition }) => {
            written["requestBody"] = json!({"content": content(definition, &["*/*"])});
        }
        Some(Content::Patch { media_types }) => {
            written["requestBody"] = json!({"required": true, "content": content(names::PATCH, media_types)});
        }
    }
    written
}

/// The words for a code of success.
pub(super) fn meaning(code: u16) -> &'static str {
    match code {
        201 => "Created",
        202 => "Accepted",
        _ => "OK",
    }
}

fn content(definition: &str, media_types: &[&str]) -> Value {
    let schema = json!({"schema": {"$ref": Dialect::V3.reference(definition)}});
    media_types
        .iter()
        .map(|media_type| ((*media_type).to_owned(), schema.clone()))
        .collect::<Map<_, _>>()
        .into()
}

fn parameter(parameter: &Parameter) -> Value {
    let mut written = json!({
        "name": parameter.name,
        "in": match parameter.place { Place::Path => "path", Place::Query => "query" },
        "description": parameter.description,
        "schema": {"type": parameter.kind, "uniqueItems": true},
    });
    if parameter.place == Place::Path {
        written["required"] = true.into();
    }
    written
}

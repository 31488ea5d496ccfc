//! Whoever may object to writes may object to connections into pods as well.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use moorline_machinery::{gvk::GroupVersionResource, status::ApiError};
use serde_json::{Map, Value, json};

use crate::{
    admission::{Attributes, Operation},
    auth::User,
    core::Core,
    negotiate::{Answer, Encoding, Form},
    path::{ResourcePath, Verb},
    query::Query,
    rest::{Asides, Call},
};

/// Asks policies and webhooks about a connection.
pub(super) async fn admit(
    core: &Arc<Core>,
    user: &User,
    path: &ResourcePath,
    query: &Query,
    headers: &HeaderMap,
) -> Result<(), ApiError> {
    let gvr = GroupVersionResource::new(path.group.as_str(), path.version.as_str(), path.resource.as_str());
    let resource = core.registry.find(&gvr).ok_or_else(ApiError::path_not_found)?;
    let kind = resource.subresource(&path.subresource).map(|part| part.gvk.clone());
    let kind = kind.ok_or_else(ApiError::path_not_found)?;
    let mut object = options(query);
    object.insert("kind".to_owned(), (*kind.kind).into());
    object.insert("apiVersion".to_owned(), kind.api_version().into());
    let asides = Asides::default();
    let as_write = Call {
        core,
        resource,
        path,
        verb: Verb::Create,
        query,
        headers,
        user,
        answer: Answer {
            form: Form::Whole,
            encoding: Encoding::Json,
        },
        body: Bytes::new(),
        asides: &asides,
    };
    let attributes = Attributes {
        call: &as_write,
        operation: Operation::Connect,
        name: path.name.clone(),
        old: None,
        dry_run: false,
        options: Value::Null,
    };
    core.admission.permit_connection(&attributes, &object.into()).await
}

/// What the query of a connection says, as the object that it stands for.
fn options(query: &Query) -> Map<String, Value> {
    let mut options = Map::new();
    let mut put = |name: &str, value: Value| options.insert(name.to_owned(), value);
    for flag in ["stdin", "stdout", "stderr", "tty"] {
        if query.flag(flag) {
            put(flag, true.into());
        }
    }
    for text in ["container", "path"] {
        if let Some(given) = query.get(text) {
            put(text, given.into());
        }
    }
    let command: Vec<&str> = query.all("command").collect();
    if !command.is_empty() {
        put("command", json!(command));
    }
    let ports = query.all("ports").flat_map(|ports| ports.split(','));
    let ports: Vec<i64> = ports.filter_map(|port| port.parse().ok()).collect();
    if !ports.is_empty() {
        put("ports", json!(ports));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_stands_for_an_object() {
        let query = Query::parse("stdin=true&tty=false&container=c&command=a&command=b&ports=1,2&ports=3");
        assert_eq!(
            Value::from(options(&query)),
            json!({ "stdin": true, "container": "c", "command": ["a", "b"], "ports": [1, 2, 3] })
        );
    }
}

//! Deleting whatever a selection finds.

use http::{Response, StatusCode};
use moorline_machinery::{meta, status::ApiError};
use serde_json::json;

use super::{
    Call,
    delete::{DeleteOptions, Deleted, delete_object},
    read,
};
use crate::{body::Body, query::ListOptions, respond};

/// DELETE of a collection: each object that the selectors find, under the same options.
pub(crate) async fn delete_collection(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::parse(call)?;
    let listed = read::list(call, &ListOptions::parse(call.query, false)?).await?;
    let mut warnings = Vec::new();
    let mut items = Vec::new();
    for record in &listed.page.records {
        let path = crate::path::ResourcePath {
            namespace: record.key().namespace().to_owned(),
            name: record.key().name().to_owned(),
            ..call.path.clone()
        };
        let single = Call {
            path: &path,
            resource: call.resource.clone(),
            body: call.body.clone(),
            ..*call
        };
        match delete_object(&single, record.key().name(), &options, &mut warnings).await {
            Ok(Deleted::Gone(object) | Deleted::Marked(object)) => items.push(object),
            // Somebody else deleted it first, which is all that was wanted.
            Err(error) if error.code() == 404 => {}
            Err(error) => return call.asides.keep(Err(error), &mut warnings),
        }
    }
    for item in &mut items {
        if let Some(fields) = item
            .as_object_mut()
            .filter(|_| !call.resource.strategy.items_carry_type())
        {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        debug_assert!(!meta::of(item).name().is_empty());
    }
    let list = json!({
        "kind": &*call.resource.list_kind, "apiVersion": call.resource.gvk.api_version(),
        "metadata": { "resourceVersion": listed.page.revision.to_string() }, "items": items,
    });
    let mut response = respond::value(StatusCode::OK, &list, call.answer.encoding);
    for warning in &warnings {
        respond::warn(&mut response, warning);
    }
    Ok(response)
}

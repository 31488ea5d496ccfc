//! Nothing is created in a namespace that is not there or on its way out, and some namespaces stay.

use moorline_machinery::{gvk::GroupResource, meta, status::ApiError};
use moorline_store::Key;
use serde_json::Value;

use super::{Attributes, Operation};

/// Namespaces that the server itself lives by.
const KEPT: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) fn check(attributes: &Attributes<'_>) -> Result<(), ApiError> {
    let call = attributes.call;
    let resource = call.resource.group_resource();
    let is_namespace = resource.group.is_empty() && &*resource.resource == "namespaces";
    if is_namespace && attributes.operation == Operation::Delete && KEPT.contains(&attributes.name.as_str()) {
        return Err(ApiError::forbidden(
            &resource,
            &attributes.name,
            "this namespace may not be deleted",
        ));
    }
    if !call.resource.namespaced || attributes.operation != Operation::Create {
        return Ok(());
    }
    let namespaces = GroupResource::from("namespaces");
    let key = Key::new(&crate::builtin::namespaces_storage(), "", call.path.namespace.as_str());
    let Some(record) = call.core.store.get(&key) else {
        return Err(ApiError::not_found(&namespaces, &call.path.namespace));
    };
    // A review that is created in a namespace leaves nothing behind.
    if record
        .value()
        .windows(b"\"deletionTimestamp\"".len())
        .any(|window| window == b"\"deletionTimestamp\"")
    {
        let namespace: Value = serde_json::from_slice(record.value()).unwrap_or_default();
        if meta::of(&namespace).is_deleting() {
            return Err(ApiError::namespace_terminating(
                &resource,
                &attributes.name,
                &call.path.namespace,
            ));
        }
    }
    Ok(())
}

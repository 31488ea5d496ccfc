//! Every namespace has a default service account and the certificate that its pods know the server by.

use std::sync::Arc;

use moorline_store::{Event, ReadError};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::follow::Follow;
use crate::{builtin, core::Core, rest::internal, wire};

const ROOT_CERTIFICATE: &str = "kube-root-ca.crt";

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    let mut namespaces = Follow::all(&core.store, &builtin::namespaces_storage())?;
    let mut accounts = Follow::all(&core.store, &builtin::storage("", "serviceaccounts"))?;
    let mut certificates = Follow::all(&core.store, &builtin::storage("", "configmaps"))?;
    let core = Arc::clone(core);
    tasks.spawn(async move {
        loop {
            let namespace = tokio::select! {
                event = namespaces.next() => match event {
                    None => return,
                    Some(Event::Added { record, .. }) => record.key().name().to_owned(),
                    Some(_) => continue,
                },
                event = accounts.next() => match event {
                    None => return,
                    Some(Event::Deleted { record, .. }) if record.key().name() == "default" => {
                        record.key().namespace().to_owned()
                    }
                    Some(_) => continue,
                },
                event = certificates.next() => match event {
                    None => return,
                    Some(Event::Deleted { record, .. } | Event::Modified { record, .. })
                        if record.key().name() == ROOT_CERTIFICATE =>
                    {
                        record.key().namespace().to_owned()
                    }
                    Some(_) => continue,
                },
            };
            provide(&core, &namespace).await;
        }
    });
    Ok(())
}

/// Makes what is missing in a namespace that is there to stay.
pub(super) async fn provide(core: &Arc<Core>, namespace: &str) {
    let key = moorline_store::Key::new(&builtin::namespaces_storage(), "", namespace);
    let Some(record) = core.store.get(&key) else { return };
    if wire::from_stored(record.value(), "v1", "Namespace")["metadata"]["deletionTimestamp"].is_string() {
        return;
    }
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": namespace },
    });
    let certificate = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": ROOT_CERTIFICATE, "namespace": namespace, "annotations": {
            "kubernetes.io/description": "The authority that signs the API server's certificate, for whoever talks to it from a pod",
        } },
        "data": { "ca.crt": core.authority },
    });
    put(core, "serviceaccounts", namespace, account).await;
    let stored = internal::get(core, "v1", "configmaps", namespace, ROOT_CERTIFICATE);
    match stored {
        None => put(core, "configmaps", namespace, certificate).await,
        Some(mut stored) if stored["data"] != certificate["data"] => {
            stored["data"] = certificate["data"].clone();
            if let Err(error) = internal::replace(core, "v1", "configmaps", stored).await {
                tracing::warn!(namespace, %error, "the root certificate was not restored");
            }
        }
        Some(_) => {}
    }
}

async fn put(core: &Arc<Core>, resource: &str, namespace: &str, object: Value) {
    if let Err(error) = internal::ensure(core, "v1", resource, namespace, object).await {
        tracing::warn!(namespace, resource, %error, "what every namespace has was not made");
    }
}

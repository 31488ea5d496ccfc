//! Endpoints that were made for a service go if there is no such service.
//!
//! They go with the service itself. But whoever keeps them may not have seen yet that it went, and make them anew.

use std::sync::Arc;

use moorline_machinery::meta;
use moorline_store::{Event, Key, ReadError, Record};
use tokio::task::JoinSet;

use super::follow::Follow;
use crate::{builtin, core::Core, rest::internal, wire};

/// The label of endpoints that nobody wrote by hand.
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    let mut endpoints = Follow::all(&core.store, &builtin::storage("", "endpoints"))?;
    let core = Arc::clone(core);
    tasks.spawn(async move {
        while let Some(event) = endpoints.next().await {
            if let Event::Added { record, .. } = event {
                remove_leftover(&core, &record).await;
            }
        }
    });
    Ok(())
}

async fn remove_leftover(core: &Arc<Core>, record: &Record) {
    let (namespace, name) = (record.key().namespace(), record.key().name());
    let endpoints = wire::from_stored(record.value(), "v1", "Endpoints");
    let service = Key::new(&builtin::storage("", "services"), namespace, name);
    if meta::of(&endpoints).label(MANAGED_BY).is_none() || core.store.get(&service).is_some() {
        return;
    }
    if let Err(error) = internal::delete(core, "v1", "endpoints", namespace, name).await {
        tracing::warn!(namespace, name, %error, "the endpoints of a service that is gone stay");
    }
}

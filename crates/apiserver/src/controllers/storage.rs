//! A volume or a claim that was deleted goes once nothing uses it.

use std::{collections::BTreeSet, sync::Arc};

use moorline_machinery::meta;
use moorline_store::{Event, Key, List, ReadError, Record, Scope};
use serde_json::Value;
use tokio::task::JoinSet;

use super::follow::Follow;
use crate::{
    admission::plugins::storage::{CLAIM_IN_USE, VOLUME_IN_USE},
    builtin,
    core::Core,
    resource::ResourceType,
    rest::internal,
    wire,
};

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    let mut claims = Follow::all(&core.store, &builtin::storage("", "persistentvolumeclaims"))?;
    let mut volumes = Follow::all(&core.store, &builtin::storage("", "persistentvolumes"))?;
    let mut pods = Follow::all(&core.store, &builtin::storage("", "pods"))?;
    let core = Arc::clone(core);
    tasks.spawn(async move {
        loop {
            tokio::select! {
                event = claims.next() => match event {
                    None => return,
                    Some(Event::Added { record, .. } | Event::Modified { record, .. }) => {
                        release_claim(&core, record.key()).await;
                    }
                    Some(_) => {}
                },
                event = volumes.next() => match event {
                    None => return,
                    Some(Event::Added { record, .. } | Event::Modified { record, .. }) => {
                        release_volume(&core, record.key()).await;
                    }
                    Some(_) => {}
                },
                event = pods.next() => match event {
                    None => return,
                    Some(Event::Modified { record, .. }) => release_claims_of(&core, &record).await,
                    Some(Event::Deleted { previous, .. }) => release_claims_of(&core, &previous).await,
                    Some(_) => {}
                },
            }
        }
    });
    Ok(())
}

async fn release_claims_of(core: &Arc<Core>, pod: &Record) {
    let namespace = pod.key().namespace().to_owned();
    let pod = wire::from_stored(pod.value(), "v1", "Pod");
    for name in claims_of(&pod) {
        let key = Key::new(
            &builtin::storage("", "persistentvolumeclaims"),
            namespace.as_str(),
            name.as_str(),
        );
        release_claim(core, &key).await;
    }
}

/// The claims that a pod uses: those that it names, and those that are made for it.
fn claims_of(pod: &Value) -> BTreeSet<String> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let claims = volumes.filter_map(|volume| {
        if volume["ephemeral"].is_object() {
            return Some(format!("{}-{}", meta::of(pod).name(), volume["name"].as_str()?));
        }
        Some(volume.pointer("/persistentVolumeClaim/claimName")?.as_str()?.to_owned())
    });
    claims.collect()
}

async fn release_claim(core: &Arc<Core>, key: &Key) {
    let Some(claim) = deleted(core, key, CLAIM_IN_USE) else {
        return;
    };
    let pods = Scope::namespace(&builtin::storage("", "pods"), key.namespace());
    let pods = core
        .store
        .list(&List::all(pods))
        .map(|page| page.records)
        .unwrap_or_default();
    let used = pods.iter().any(|record| {
        let pod = wire::from_stored(record.value(), "v1", "Pod");
        // A pod that has no node yet will not be given the volumes of a claim that goes.
        let placed = !pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
        placed && claims_of(&pod).contains(key.name())
    });
    if !used {
        release(core, "persistentvolumeclaims", key, &claim, CLAIM_IN_USE).await;
    }
}

async fn release_volume(core: &Arc<Core>, key: &Key) {
    let Some(volume) = deleted(core, key, VOLUME_IN_USE) else {
        return;
    };
    if volume["status"]["phase"] != "Bound" {
        release(core, "persistentvolumes", key, &volume, VOLUME_IN_USE).await;
    }
}

/// An object that was deleted and waits for this finalizer.
fn deleted(core: &Core, key: &Key, finalizer: &str) -> Option<Value> {
    let object = wire::from_stored(core.store.get(key)?.value(), "v1", "");
    let meta = meta::of(&object);
    (meta.is_deleting() && meta.has_finalizer(finalizer)).then_some(object)
}

async fn release(core: &Arc<Core>, plural: &str, key: &Key, object: &Value, finalizer: &str) {
    let gvr = moorline_machinery::gvk::GroupVersionResource::new("", "v1", plural);
    let Some(resource): Option<Arc<ResourceType>> = core.registry.find(&gvr) else {
        return;
    };
    let edit = |object: &mut Value| {
        if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
            finalizers.retain(|own| own != finalizer);
        }
    };
    let uid = meta::of(object).uid();
    if let Err(error) = internal::change(core, &resource, key.namespace(), key.name(), uid, edit).await {
        tracing::warn!(%key, %error, "what nobody uses any more was not let go");
    }
}

//! A volume or a claim that was deleted goes once nothing uses it, which a finalizer sees to.

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
                        protect(&core, "persistentvolumeclaims", record.key(), CLAIM_IN_USE).await;
                        release_claim(&core, record.key()).await;
                    }
                    Some(_) => {}
                },
                event = volumes.next() => match event {
                    None => return,
                    Some(Event::Added { record, .. } | Event::Modified { record, .. }) => {
                        protect(&core, "persistentvolumes", record.key(), VOLUME_IN_USE).await;
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

/// Puts a finalizer back that somebody took away from what is not being deleted.
async fn protect(core: &Arc<Core>, plural: &str, key: &Key, finalizer: &str) {
    let Some(record) = core.store.get(key) else {
        return;
    };
    let object = wire::from_stored(record.value(), "v1", "");
    let meta = meta::of(&object);
    if meta.is_deleting() || meta.has_finalizer(finalizer) {
        return;
    }
    let edit = |object: &mut Value| {
        // It may have been deleted meanwhile.
        if meta::of(object).is_deleting() {
            return;
        }
        match object["metadata"]["finalizers"].as_array_mut() {
            Some(finalizers) => finalizers.push(finalizer.into()),
            None => object["metadata"]["finalizers"] = [finalizer].into_iter().collect(),
        }
    };
    change(core, plural, key, &object, edit).await;
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
        let named = || Some(volume.pointer("/persistentVolumeClaim/claimName")?.as_str()?.to_owned());
        name_of_own(pod, volume).or_else(named)
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
        placed && is_used_by(&claim, &pod)
    });
    if !used {
        release(core, "persistentvolumeclaims", key, &claim, CLAIM_IN_USE).await;
    }
}

/// Whether a pod uses a claim: by name or, if the claim is of its own making, for a volume that it brings along.
fn is_used_by(claim: &Value, pod: &Value) -> bool {
    let name = meta::of(claim).name();
    let owners = claim["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let is_its_own = owners.map(|owner| &owner["uid"]).any(|uid| uid == meta::of(pod).uid());
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes
        .into_iter()
        .any(|volume| match volume.pointer("/persistentVolumeClaim/claimName") {
            Some(claimed) => claimed == name,
            None => is_its_own && name_of_own(pod, volume).as_deref() == Some(name),
        })
}

/// The name of the claim that is made for a volume that a pod brings along.
fn name_of_own(pod: &Value, volume: &Value) -> Option<String> {
    let volume = volume["ephemeral"].is_object().then(|| volume["name"].as_str())??;
    Some(format!("{}-{volume}", meta::of(pod).name()))
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
    let edit = |object: &mut Value| {
        if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
            finalizers.retain(|own| own != finalizer);
        }
    };
    change(core, plural, key, object, edit).await;
}

async fn change(core: &Arc<Core>, plural: &str, key: &Key, object: &Value, edit: impl Fn(&mut Value) + Send + Sync) {
    let gvr = moorline_machinery::gvk::GroupVersionResource::new("", "v1", plural);
    let Some(resource): Option<Arc<ResourceType>> = core.registry.find(&gvr) else {
        return;
    };
    let uid = meta::of(object).uid();
    if let Err(error) = internal::change(core, &resource, key.namespace(), key.name(), uid, edit).await {
        tracing::warn!(%key, %error, "the finalizer of what somebody may use was not changed");
    }
}

//! A namespace that is deleted goes when everything in it is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use moorline_machinery::{meta, time};
use moorline_store::{Event, List, ReadError, Scope};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::follow::Follow;
use crate::{builtin, core::Core, rest::internal, wire};

/// How often a namespace is looked at again whose content is in no hurry to go.
const AGAIN: Duration = Duration::from_millis(200);

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    let mut namespaces = Follow::all(&core.store, &builtin::namespaces_storage())?;
    let core = Arc::clone(core);
    tasks.spawn(async move {
        let mut emptying = BTreeSet::new();
        loop {
            let again = tokio::time::sleep(AGAIN);
            tokio::select! {
                event = namespaces.next() => match event {
                    None => return,
                    Some(Event::Added { record, .. } | Event::Modified { record, .. }) => {
                        let namespace = wire::from_stored(record.value(), "v1", "Namespace");
                        if meta::of(&namespace).is_deleting() {
                            emptying.insert(record.key().name().to_owned());
                        }
                    }
                    Some(Event::Deleted { record, .. }) => drop(emptying.remove(record.key().name())),
                    Some(Event::InitialDone { .. }) => {}
                },
                () = again, if !emptying.is_empty() => {}
            }
            for name in emptying.clone() {
                if empty(&core, &name).await {
                    emptying.remove(&name);
                }
            }
        }
    });
    Ok(())
}

/// Deletes what is in a namespace; once nothing is, lets it go. Tells whether it is gone.
async fn empty(core: &Arc<Core>, name: &str) -> bool {
    let Some(mut namespace) = internal::get(core, "v1", "namespaces", "", name) else {
        return true;
    };
    let mut remaining: Vec<(String, usize)> = Vec::new();
    let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    let served = core.registry.served();
    for resource in served.preferred().filter(|resource| resource.namespaced) {
        let page = core.store.list(&List::all(Scope::namespace(&resource.storage, name)));
        let records = page.map(|page| page.records).unwrap_or_default();
        if records.is_empty() {
            continue;
        }
        for record in &records {
            let object = wire::from_stored(record.value(), "", "");
            if !meta::of(&object).is_deleting() {
                let deleted = internal::delete_as(core, resource, name, record.key().name()).await;
                failures.extend(
                    deleted
                        .err()
                        .filter(|error| error.code() != 404)
                        .map(|error| error.to_string()),
                );
            }
        }
        let left = core.store.list(&List::all(Scope::namespace(&resource.storage, name)));
        let left = left.map(|page| page.records).unwrap_or_default();
        if !left.is_empty() {
            remaining.push((resource.gvr.group_resource().to_string(), left.len()));
        }
        for record in left {
            let object = wire::from_stored(record.value(), "", "");
            for finalizer in meta::of(&object).finalizers() {
                *finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
    }
    if remaining.is_empty() && failures.is_empty() {
        namespace["spec"]["finalizers"] = json!([]);
        if let Some(spec) = namespace["spec"].as_object_mut() {
            spec.remove("finalizers");
        }
        return internal::finalize_namespace(core, namespace).await.is_ok();
    }
    tell(core, namespace, &remaining, &finalizers, &failures).await;
    false
}

/// Says in the status what the namespace still waits for.
async fn tell(
    core: &Arc<Core>,
    namespace: Value,
    remaining: &[(String, usize)],
    finalizers: &BTreeMap<String, usize>,
    failures: &[String],
) {
    let now = time::format(core.world.now());
    let resources: Vec<String> = remaining
        .iter()
        .map(|(resource, count)| format!("{resource}. has {count} resource instances"))
        .collect();
    let kept: Vec<String> = finalizers
        .iter()
        .map(|(finalizer, count)| format!("{finalizer} in {count} resource instances"))
        .collect();
    let condition = |kind: &str, holds: bool, reason: &str, message: String| {
        json!({
            "type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message,
            "lastTransitionTime": now,
        })
    };
    let failed = !failures.is_empty();
    let deletion = if failed {
        ("ContentDeletionFailed", failures.join(", "))
    } else {
        (
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization".to_owned(),
        )
    };
    let content = if remaining.is_empty() {
        ("ContentRemoved", "All content successfully removed".to_owned())
    } else {
        (
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", resources.join(", ")),
        )
    };
    let held = if finalizers.is_empty() {
        (
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished".to_owned(),
        )
    } else {
        (
            "SomeFinalizersRemain",
            format!(
                "Some content in the namespace has finalizers remaining: {}",
                kept.join(", ")
            ),
        )
    };
    let conditions = vec![
        condition(
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".into(),
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".into(),
        ),
        condition("NamespaceDeletionContentFailure", failed, deletion.0, deletion.1),
        condition("NamespaceContentRemaining", !remaining.is_empty(), content.0, content.1),
        condition("NamespaceFinalizersRemaining", !finalizers.is_empty(), held.0, held.1),
    ];
    if same_but_for_time(&namespace["status"]["conditions"], &conditions) {
        return;
    }
    let mut namespace = namespace;
    namespace["status"]["conditions"] = conditions.into();
    if let Err(error) = internal::replace_status(core, "v1", "namespaces", namespace).await {
        tracing::debug!(%error, "the status of a namespace was not written");
    }
}

fn same_but_for_time(old: &Value, new: &[Value]) -> bool {
    let plain = |condition: &Value| {
        let mut condition = condition.clone();
        condition
            .as_object_mut()
            .map(|fields| fields.remove("lastTransitionTime"));
        condition
    };
    old.as_array()
        .is_some_and(|old| old.len() == new.len() && old.iter().zip(new).all(|(a, b)| plain(a) == plain(b)))
}

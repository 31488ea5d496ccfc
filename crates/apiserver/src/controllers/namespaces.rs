//! A namespace that is deleted goes when everything in it is gone: its pods first, then the rest.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use moorline_machinery::{meta, time};
use moorline_store::{Event, List, ReadError, Record, Scope, Start, Watch};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::follow::Follow;
use crate::{builtin, core::Core, resource::ResourceType, rest::internal, wire};

/// After which time something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What a namespace that is being emptied waits for.
enum Waiting {
    /// A change of what is in it.
    Content(Vec<Watch>),
    /// Better times.
    Retry,
}

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    let mut namespaces = Follow::all(&core.store, &builtin::namespaces_storage())?;
    let core = Arc::clone(core);
    tasks.spawn(async move {
        let mut served = core.registry.changes();
        let mut emptying: BTreeMap<String, Waiting> = BTreeMap::new();
        loop {
            let retries = emptying.values().any(|waiting| matches!(waiting, Waiting::Retry));
            let due: Vec<String> = tokio::select! {
                event = namespaces.next() => match event {
                    None => return,
                    Some(Event::Added { record, .. } | Event::Modified { record, .. }) => {
                        let namespace = wire::from_stored(record.value(), "v1", "Namespace");
                        let deleted = meta::of(&namespace).is_deleting();
                        deleted.then(|| record.key().name().to_owned()).into_iter().collect()
                    }
                    Some(Event::Deleted { record, .. }) => {
                        emptying.remove(record.key().name());
                        continue;
                    }
                    Some(Event::InitialDone { .. }) => continue,
                },
                name = poll_fn(|context| poll_content(&mut emptying, context)) => vec![name],
                // A kind that was not served before may have objects everywhere.
                told = served.changed() => match told {
                    Ok(()) => emptying.keys().cloned().collect(),
                    Err(_) => return,
                },
                () = tokio::time::sleep(RETRY), if retries => {
                    let failed = emptying.iter().filter(|(_, waiting)| matches!(waiting, Waiting::Retry));
                    failed.map(|(name, _)| name.clone()).collect()
                }
            };
            for name in due {
                match empty(&core, &name).await {
                    Some(waiting) => drop(emptying.insert(name, waiting)),
                    None => drop(emptying.remove(&name)),
                }
            }
        }
    });
    Ok(())
}

/// The namespace in which something has changed.
fn poll_content(emptying: &mut BTreeMap<String, Waiting>, context: &mut Context<'_>) -> Poll<String> {
    for (name, waiting) in emptying {
        let Waiting::Content(watches) = waiting else { continue };
        if watches.iter_mut().any(|watch| watch.poll_next(context).is_ready()) {
            return Poll::Ready(name.clone());
        }
    }
    Poll::Pending
}

/// What is left of a namespace.
#[derive(Default)]
struct Left {
    /// How many objects of each resource.
    objects: Vec<(String, usize)>,
    /// How many objects each finalizer keeps.
    finalizers: BTreeMap<String, usize>,
    failures: Vec<String>,
}

/// Deletes what is in a namespace; once nothing is, lets it go. Tells what it waits for; nothing if it is gone.
async fn empty(core: &Arc<Core>, name: &str) -> Option<Waiting> {
    let mut namespace = internal::get(core, "v1", "namespaces", "", name)?;
    let served = core.registry.served();
    let resources: Vec<&Arc<ResourceType>> = served.preferred().filter(|resource| resource.namespaced).collect();
    // Watched before they are counted, so that nothing happens between the two unseen.
    let watches: Result<Vec<Watch>, ReadError> = resources
        .iter()
        .map(|resource| core.store.watch(Scope::namespace(&resource.storage, name), Start::Now))
        .collect();
    let (pods, others): (Vec<_>, Vec<_>) = resources
        .into_iter()
        .partition(|resource| resource.storage == builtin::storage("", "pods"));
    let mut left = Left::default();
    for resource in pods {
        delete_all(core, resource, name, &mut left).await;
    }
    // What pods use is there until they have ended.
    if left.objects.is_empty() {
        for resource in others {
            delete_all(core, resource, name, &mut left).await;
        }
    }
    if left.objects.is_empty() && left.failures.is_empty() {
        if let Some(spec) = namespace["spec"].as_object_mut() {
            spec.remove("finalizers");
        }
        return match internal::finalize_namespace(core, namespace).await {
            Err(error) if error.code() != 404 => Some(Waiting::Retry),
            _ => None,
        };
    }
    let failed = !left.failures.is_empty();
    tell(core, namespace, &left.objects, &left.finalizers, &left.failures).await;
    match watches {
        Ok(watches) if !failed => Some(Waiting::Content(watches)),
        _ => Some(Waiting::Retry),
    }
}

/// Deletes all objects of a resource in a namespace, and notes what stays.
async fn delete_all(core: &Arc<Core>, resource: &Arc<ResourceType>, namespace: &str, left: &mut Left) {
    let objects = || -> Vec<Arc<Record>> {
        let page = core
            .store
            .list(&List::all(Scope::namespace(&resource.storage, namespace)));
        page.map(|page| page.records).unwrap_or_default()
    };
    for record in objects() {
        let object = wire::from_stored(record.value(), "", "");
        if !meta::of(&object).is_deleting() {
            let deleted = internal::delete_as(core, resource, namespace, record.key().name()).await;
            let failure = deleted.err().filter(|error| error.code() != 404);
            left.failures.extend(failure.map(|error| error.to_string()));
        }
    }
    let stayed = objects();
    if !stayed.is_empty() {
        left.objects
            .push((resource.gvr.group_resource().to_string(), stayed.len()));
    }
    for record in stayed {
        let object = wire::from_stored(record.value(), "", "");
        for finalizer in meta::of(&object).finalizers() {
            *left.finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
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

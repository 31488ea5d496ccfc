//! The status of quotas: what is used of them, measured anew whenever something in their namespace has changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use moorline_machinery::meta;
use moorline_store::{Event, ReadError, Scope, Start, Watch};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::follow::Follow;
use crate::{builtin, core::Core, quota, rest::internal};

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    let mut quotas = Follow::all(&core.store, &builtin::storage("", "resourcequotas"))?;
    let core = Arc::clone(core);
    tasks.spawn(async move {
        let mut served = core.registry.changes();
        let mut followed: BTreeMap<String, Vec<Watch>> = BTreeMap::new();
        loop {
            let due: BTreeSet<String> = tokio::select! {
                event = quotas.next() => match event {
                    None => return,
                    Some(Event::Added { record, .. } | Event::Modified { record, .. } | Event::Deleted { record, .. }) => {
                        BTreeSet::from([record.key().namespace().to_owned()])
                    }
                    Some(Event::InitialDone { .. }) => continue,
                },
                namespace = poll_fn(|context| poll_any(&mut followed, context)) => BTreeSet::from([namespace]),
                told = served.changed() => match told {
                    Ok(()) => followed.keys().cloned().collect(),
                    Err(_) => return,
                },
            };
            for namespace in due {
                match attend(&core, &namespace).await {
                    Some(watches) => drop(followed.insert(namespace, watches)),
                    None => drop(followed.remove(&namespace)),
                }
            }
        }
    });
    Ok(())
}

/// A namespace with quotas in which something has changed.
fn poll_any(followed: &mut BTreeMap<String, Vec<Watch>>, context: &mut Context<'_>) -> Poll<String> {
    for (namespace, watches) in followed {
        if watches.iter_mut().any(|watch| watch.poll_next(context).is_ready()) {
            return Poll::Ready(namespace.clone());
        }
    }
    Poll::Pending
}

/// Writes what is used of the quotas of a namespace, and tells what to wait for; nothing where there are no quotas.
async fn attend(core: &Arc<Core>, namespace: &str) -> Option<Vec<Watch>> {
    // Watched before anything is counted, so that nothing is missed in between.
    let served = core.registry.served();
    let resources = served.preferred().filter(|resource| resource.namespaced);
    let watches = resources
        .filter_map(|resource| {
            core.store
                .watch(Scope::namespace(&resource.storage, namespace), Start::Now)
                .ok()
        })
        .collect();
    let quotas = quota::quotas(&core.store, namespace);
    if quotas.is_empty() {
        return None;
    }
    for quota in quotas {
        tell(core, quota, namespace).await;
    }
    Some(watches)
}

async fn tell(core: &Arc<Core>, mut quota: Value, namespace: &str) {
    let used: BTreeMap<String, String> = quota::used(core, &quota, namespace)
        .into_iter()
        .map(|(name, amount)| (name, amount.to_string()))
        .collect();
    let hard = match &quota["spec"]["hard"] {
        Value::Null => json!({}),
        hard => hard.clone(),
    };
    let status = if used.is_empty() {
        json!({})
    } else {
        json!({ "hard": hard, "used": used })
    };
    if quota["status"] == status {
        return;
    }
    quota["status"] = status;
    let name = meta::of(&quota).name().to_owned();
    if let Err(error) = internal::replace_status(core, "v1", "resourcequotas", quota).await {
        // Whoever was faster has caused another look.
        tracing::debug!(namespace, name, %error, "the status of a quota was not written");
    }
}

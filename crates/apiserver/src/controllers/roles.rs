//! Tells the index of roles what is stored, and gathers rules into the roles that ask for that.

use std::sync::Arc;

use moorline_machinery::meta;
use moorline_store::{Event, ReadError};
use serde_json::json;
use tokio::task::JoinSet;

use super::{bootstrap::plural, follow::Follow};
use crate::{
    auth::rbac::{RbacKind, Rule},
    builtin,
    core::Core,
    rest::internal,
    wire,
};

pub(super) const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const KINDS: [RbacKind; 4] = [
    RbacKind::ClusterRole,
    RbacKind::Role,
    RbacKind::ClusterRoleBinding,
    RbacKind::RoleBinding,
];

/// Reads all roles and bindings before it returns, so that the first request is judged by them.
pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    for kind in KINDS {
        let storage = builtin::storage("rbac.authorization.k8s.io", plural(kind));
        let mut follow = Follow::all(&core.store, &storage)?;
        while let Some(event) = follow.try_next() {
            take(core, kind, &event);
        }
        let core = Arc::clone(core);
        tasks.spawn(async move {
            if kind == RbacKind::ClusterRole {
                gather(&core).await;
            }
            while let Some(event) = follow.next().await {
                take(&core, kind, &event);
                if kind == RbacKind::ClusterRole {
                    gather(&core).await;
                }
            }
        });
    }
    Ok(())
}

fn take(core: &Core, kind: RbacKind, event: &Event) {
    match event {
        Event::Added { record, .. } | Event::Modified { record, .. } => {
            core.authorizer
                .apply(kind, &wire::from_stored(record.value(), API_VERSION, ""));
        }
        Event::Deleted { record, .. } => {
            core.authorizer
                .remove(kind, record.key().namespace(), record.key().name());
        }
        Event::InitialDone { .. } => {}
    }
}

/// Writes the rules of roles that gather them from others, where they have changed.
async fn gather(core: &Arc<Core>) {
    for (name, rules) in core.authorizer.stale_gatherings() {
        let Some(mut role) = internal::get(core, API_VERSION, "clusterroles", "", &name) else {
            continue;
        };
        role["rules"] = json!(rules.iter().map(Rule::to_value).collect::<Vec<_>>());
        debug_assert_eq!(meta::of(&role).name(), name);
        // Whoever changed it meanwhile causes another event, and another look.
        if let Err(error) = internal::replace(core, API_VERSION, "clusterroles", role).await {
            tracing::warn!(role = name, %error, "the rules of a gathering role were not written");
        }
    }
}

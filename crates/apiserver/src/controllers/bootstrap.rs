//! What a new server brings along: its namespaces, roles and bindings.

use std::sync::Arc;

use moorline_machinery::{meta, status::ApiError};
use serde_json::{Value, json};

use crate::{
    auth::rbac::{self, RbacKind, Reconciled},
    controllers::roles,
    core::Core,
    rest::internal,
};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Makes what is missing. Everything goes the way of a client's request, so that it looks like a client's.
pub(crate) async fn run(core: &Arc<Core>) -> Result<(), ApiError> {
    for name in NAMESPACES {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        internal::ensure(core, "v1", "namespaces", "", namespace).await?;
    }
    for (kind, object) in rbac::default_objects() {
        let resource = plural(kind);
        let meta = meta::of(&object);
        let existing = internal::get(core, roles::API_VERSION, resource, meta.namespace(), meta.name());
        match rbac::reconcile(&object, existing.as_ref()) {
            Reconciled::Keep => {}
            Reconciled::Create => create(core, resource, object).await?,
            Reconciled::Update(object) => internal::replace(core, roles::API_VERSION, resource, object).await?,
            Reconciled::Replace => {
                internal::delete(core, roles::API_VERSION, resource, meta.namespace(), meta.name()).await?;
                create(core, resource, object).await?;
            }
        }
    }
    Ok(())
}

async fn create(core: &Arc<Core>, resource: &str, object: Value) -> Result<(), ApiError> {
    let namespace = meta::of(&object).namespace().to_owned();
    internal::ensure(core, roles::API_VERSION, resource, &namespace, object).await
}

pub(super) fn plural(kind: RbacKind) -> &'static str {
    match kind {
        RbacKind::Role => "roles",
        RbacKind::ClusterRole => "clusterroles",
        RbacKind::RoleBinding => "rolebindings",
        RbacKind::ClusterRoleBinding => "clusterrolebindings",
    }
}

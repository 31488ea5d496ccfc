//! A server that listens says so now and then: by a lease that it renews.
//!
//! That also lets the past of a server that nobody writes to grow old, so that the pages of a list do not stay good for
//! ever.

use std::{sync::Arc, time::Duration};

use moorline_machinery::{status::ApiError, time};
use serde_json::json;

use crate::{core::Core, rest::internal};

/// How often the lease is renewed: often enough that a list which was begun expires soon after the history's age.
const RENEWED_EVERY: Duration = Duration::from_mins(3);
const LASTS_SECONDS: u32 = 3600;
const API_VERSION: &str = "coordination.k8s.io/v1";
const NAMESPACE: &str = "kube-system";

/// The same after every start, so that no lease is left behind.
const NAME: &str = "apiserver-moorline";

/// Renews the lease of this server for ever.
pub(crate) async fn run(core: Arc<Core>) {
    let mut renewals = tokio::time::interval(RENEWED_EVERY);
    loop {
        renewals.tick().await;
        if let Err(error) = renew(&core).await {
            tracing::warn!(%error, "the lease of the server was not renewed");
        }
    }
}

async fn renew(core: &Arc<Core>) -> Result<(), ApiError> {
    let now = time::format_micro(core.world.now());
    if let Some(mut lease) = internal::get(core, API_VERSION, "leases", NAMESPACE, NAME) {
        lease["spec"]["renewTime"] = now.into();
        return internal::replace(core, API_VERSION, "leases", lease).await;
    }
    let lease = json!({
        "apiVersion": API_VERSION, "kind": "Lease",
        "metadata": { "name": NAME, "namespace": NAMESPACE, "labels": {
            "apiserver.kubernetes.io/identity": "kube-apiserver",
        } },
        "spec": { "holderIdentity": NAME, "leaseDurationSeconds": LASTS_SECONDS, "renewTime": now },
    });
    internal::ensure(core, API_VERSION, "leases", NAMESPACE, lease).await
}

//! Making kinds known to a cluster.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{Patch, PatchParams},
};

/// How long a server may take to serve a kind.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a kind could not be made known.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The server refused.
    #[error("cannot apply the definition {name}")]
    Apply {
        /// Which one.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// It took too long.
    #[error("the definition {name} was applied and is not served after {PATIENCE:?}")]
    NotServed {
        /// Which one.
        name: String,
    },
}

/// Applies definitions of kinds and waits until the server serves them. Doing it again changes nothing.
pub async fn install(
    client: &kube::Client,
    field_owner: &str,
    definitions: &[CustomResourceDefinition],
) -> Result<(), InstallError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in definitions {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let parameters = PatchParams::apply(field_owner).force();
        let applied = api.patch(&name, &parameters, &Patch::Apply(definition)).await;
        applied.map_err(|source| InstallError::Apply { name, source })?;
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    for definition in definitions {
        let name = definition.metadata.name.clone().unwrap_or_default();
        while !is_served(&api, &name).await {
            if tokio::time::Instant::now() >= deadline {
                return Err(InstallError::NotServed { name });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

async fn is_served(api: &Api<CustomResourceDefinition>, name: &str) -> bool {
    let Ok(definition) = api.get(name).await else {
        return false;
    };
    let conditions = definition
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

//! Getting an image that is not here, or not surely the newest.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use moorline_image::{Credentials, Image, Progress, PullPolicy, Reference};

use super::{context::NodeContext, prepare::told};
use crate::key::Key;

/// Gets an image, with the logins that the pod names; an error is the reason in words.
pub(crate) async fn pull(context: &NodeContext, pod: &Pod, name: &str) -> Result<Image, String> {
    let reference: Reference = name.parse().map_err(|error: moorline_image::Error| error.to_string())?;
    let credentials = credentials(context, pod).await;
    let images = &context.shared.images;
    let image = images
        .ensure(&reference, PullPolicy::Always, &credentials, Progress::none())
        .await;
    image.map_err(|error| told(&error))
}

/// A secret that is missing or says nothing is passed over: the image may be had without.
async fn credentials(context: &NodeContext, pod: &Pod) -> Credentials {
    let mut credentials = Credentials::none();
    let key = Key::of(pod);
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &key.namespace);
    for reference in pod
        .spec
        .iter()
        .flat_map(|spec| spec.image_pull_secrets.iter().flatten())
    {
        let Ok(Some(secret)) = secrets.get_opt(&reference.name).await else {
            continue;
        };
        let data = secret.data.unwrap_or_default();
        let config = data.get(".dockerconfigjson").or_else(|| data.get(".dockercfg"));
        if let Some(config) = config
            && let Ok(found) = Credentials::from_docker_config(&config.0)
        {
            credentials.merge(found);
        }
    }
    credentials
}

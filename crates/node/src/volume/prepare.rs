//! Making a pod's volumes ready.

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{
        ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccountTokenProjection, Volume,
    },
};
use kube::{Api, Client, api::PostParams};

use super::{
    atomic, host_path,
    ownership::Ownership,
    payload::{Fetched, Wants, payload},
};
use crate::{amounts::amount, env::Facts, key::Key};

/// Where a volume of a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file or directory of this machine.
    Path { path: PathBuf, read_only: bool },
    /// Memory of the pod, of at most so many bytes.
    Memory { limit: Option<u64> },
    /// The files of an image, which are had when a container that mounts them starts.
    Image,
}

/// The volumes of a pod that are ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volumes {
    pub(crate) places: BTreeMap<String, Place>,
    /// When the first of its tokens should be replaced.
    pub(crate) renew: Option<Timestamp>,
}

/// Why a volume is not ready, in a kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {reason}")]
pub(crate) struct Failure {
    pub(crate) volume: String,
    pub(crate) reason: String,
}

/// What setting up needs to know.
pub(crate) struct Setting<'a> {
    pub(crate) client: &'a Client,
    /// The directory of this pod's volumes.
    pub(crate) directory: &'a Path,
    /// The same for what must not reach a disk.
    pub(crate) private: &'a Path,
    pub(crate) facts: &'a Facts<'a>,
}

/// A token that is about to end is replaced after this part of its life.
const TOKEN_LIFE_USED: f64 = 0.8;

/// Makes every volume of a pod ready.
pub(crate) async fn set_up(setting: &Setting<'_>) -> Result<Volumes, Failure> {
    let pod = setting.facts.pod;
    let mut ready = Volumes::default();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let place = set_up_one(setting, volume, &mut ready.renew)
            .await
            .map_err(|reason| Failure {
                volume: volume.name.clone(),
                reason,
            })?;
        if let Some(place) = place {
            ready.places.insert(volume.name.clone(), place);
        }
    }
    Ok(ready)
}

/// Brings volumes that show objects up to date.
pub(crate) async fn refresh(setting: &Setting<'_>, volumes: &mut Volumes) -> Result<(), Failure> {
    volumes.renew = None;
    let pod = setting.facts.pod;
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        if let Some(wants) = Wants::of(volume) {
            let shown = show(setting, volume, &wants, &mut volumes.renew).await;
            shown.map_err(|reason| Failure {
                volume: volume.name.clone(),
                reason,
            })?;
        }
    }
    Ok(())
}

/// Removes what was made for a pod. What belongs to others, such as host paths and claims, stays.
pub(crate) fn tear_down(directory: &Path, private: &Path) -> std::io::Result<()> {
    for place in [directory, private] {
        match std::fs::remove_dir_all(place) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn set_up_one(
    setting: &Setting<'_>,
    volume: &Volume,
    renew: &mut Option<Timestamp>,
) -> Result<Option<Place>, String> {
    let pod = setting.facts.pod;
    if let Some(wants) = Wants::of(volume) {
        let path = show(setting, volume, &wants, renew).await?;
        return Ok(Some(Place::Path { path, read_only: true }));
    }
    if let Some(source) = &volume.empty_dir {
        if source.medium.as_deref() == Some("Memory") {
            let limit = source.size_limit.as_ref().map(|limit| amount("memory", limit));
            let limit = limit
                .and_then(|limit| u64::try_from(limit).ok())
                .filter(|limit| *limit > 0);
            return Ok(Some(Place::Memory { limit }));
        }
        let path = empty_dir(setting.directory, &volume.name);
        let ownership = Ownership::of(pod);
        return directory(path, ownership)
            .await
            .map(|path| Some(Place::Path { path, read_only: false }));
    }
    if let Some(source) = &volume.host_path {
        let path = PathBuf::from(&source.path);
        let kind = source.type_.clone().unwrap_or_default();
        let checked = path.clone();
        blocking(move || host_path::prepare(&checked, &kind)).await?;
        return Ok(Some(Place::Path { path, read_only: false }));
    }
    if volume.image.is_some() {
        return Ok(Some(Place::Image));
    }
    let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some((source.claim_name.clone(), source.read_only == Some(true))),
        (None, Some(_)) => Some((format!("{}-{}", Key::of(pod).name, volume.name), false)),
        (None, None) => None,
    };
    if let Some((claim, read_only)) = claim {
        let path = claimed(setting, &claim).await?;
        let ownership = Ownership::of(pod);
        if !read_only {
            let owned = path.clone();
            blocking(move || ownership.apply(&owned).map_err(|error| error.to_string())).await?;
        }
        return Ok(Some(Place::Path { path, read_only }));
    }
    Err("this kind of volume is not provided here".to_owned())
}

/// Where an empty directory of a pod is, below the directory of the pod's volumes.
pub(crate) fn empty_dir(volumes: &Path, name: &str) -> PathBuf {
    volumes.join("empty-dir").join(name)
}

async fn directory(path: PathBuf, ownership: Ownership) -> Result<PathBuf, String> {
    blocking(move || {
        let made = std::fs::create_dir_all(&path)
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)))
            .and_then(|()| ownership.apply(&path));
        made.map(|()| path).map_err(|error| error.to_string())
    })
    .await
}

/// The path of the volume that a claim is bound to.
async fn claimed(setting: &Setting<'_>, name: &str) -> Result<PathBuf, String> {
    let namespace = Key::of(setting.facts.pod).namespace;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(setting.client.clone(), &namespace);
    let told = |error: kube::Error| match error {
        kube::Error::Api(status) => status.message,
        error => error.to_string(),
    };
    let claim = claims.get(name).await.map_err(told)?;
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.clone())
        .filter(|_| bound);
    let Some(volume) = volume else {
        return Err(format!("PVC {namespace}/{name} is not bound"));
    };
    let volumes: Api<PersistentVolume> = Api::all(setting.client.clone());
    let volume = volumes.get(&volume).await.map_err(told)?;
    let spec = volume.spec.unwrap_or_default();
    let local = spec
        .local
        .map(|local| local.path)
        .or(spec.host_path.map(|host| host.path));
    let Some(path) = local.map(PathBuf::from) else {
        return Err("this kind of persistent volume is not provided here".to_owned());
    };
    let there = path.clone();
    blocking(move || {
        if there.exists() {
            Ok(())
        } else {
            Err(format!("path {} does not exist", there.display()))
        }
    })
    .await?;
    Ok(path)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(error.to_string()))
}

/// Writes the files of a volume that shows objects. Gives the directory.
async fn show(
    setting: &Setting<'_>,
    volume: &Volume,
    wants: &Wants,
    renew: &mut Option<Timestamp>,
) -> Result<PathBuf, String> {
    let pod = setting.facts.pod;
    let fetched = fetch(setting, wants, renew).await?;
    let files = payload(volume, setting.facts, &fetched)?;
    let (place, kind) = match volume {
        Volume { secret: Some(_), .. } => (setting.private, "secret"),
        Volume { projected: Some(_), .. } => (setting.private, "projected"),
        Volume {
            downward_api: Some(_), ..
        } => (setting.private, "downward-api"),
        _ => (setting.directory, "config-map"),
    };
    let path = place.join(kind).join(&volume.name);
    let mut ownership = Ownership::of(pod).read_only();
    ownership.only_if_top_differs = false;
    if ownership.group.is_none() && !wants.tokens.is_empty() {
        ownership.user = only_user(pod);
    }
    let stamp = Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S").to_string();
    let target = path.clone();
    blocking(move || atomic::write(&target, &files, &ownership, &stamp).map_err(|error| error.to_string())).await?;
    Ok(path)
}

/// The user that all containers run as, where the pod says so.
fn only_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let whole = spec.security_context.as_ref().and_then(|security| security.run_as_user);
    let mut users = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|container| {
            container
                .security_context
                .as_ref()
                .and_then(|security| security.run_as_user)
                .or(whole)
        });
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())
        .flatten()
}

async fn fetch(setting: &Setting<'_>, wants: &Wants, renew: &mut Option<Timestamp>) -> Result<Fetched, String> {
    let namespace = Key::of(setting.facts.pod).namespace;
    let mut fetched = Fetched::default();
    let config_maps: Api<ConfigMap> = Api::namespaced(setting.client.clone(), &namespace);
    for name in &wants.config_maps {
        if let Some(map) = config_maps.get_opt(name).await.map_err(|error| error.to_string())? {
            fetched.config_maps.insert(name.clone(), map);
        }
    }
    let secrets: Api<Secret> = Api::namespaced(setting.client.clone(), &namespace);
    for name in &wants.secrets {
        if let Some(secret) = secrets.get_opt(name).await.map_err(|error| error.to_string())? {
            fetched.secrets.insert(name.clone(), secret);
        }
    }
    for wanted in &wants.tokens {
        let (token, until) = token(setting, &namespace, wanted).await?;
        *renew = Some(renew.map_or(until, |before| before.min(until)));
        fetched.tokens.insert(wanted.path.clone(), token);
    }
    Ok(fetched)
}

/// A token for the pod's account, bound to the pod, and when to ask for the next.
async fn token(
    setting: &Setting<'_>,
    namespace: &str,
    wanted: &ServiceAccountTokenProjection,
) -> Result<(String, Timestamp), String> {
    let pod = setting.facts.pod;
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let account = account
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "default".to_owned());
    let seconds = wanted.expiration_seconds.unwrap_or(3600);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(
                wanted
                    .audience
                    .clone()
                    .into_iter()
                    .filter(|audience| !audience.is_empty())
                    .collect(),
            ),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
            expiration_seconds: Some(seconds),
        }),
        ..TokenRequest::default()
    };
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(setting.client.clone(), namespace);
    let answer: kube::Result<TokenRequest> = accounts
        .create_subresource("token", &account, &PostParams::default(), &request)
        .await;
    let answer = answer.map_err(|error| format!("failed to fetch token: {error}"))?;
    let status = answer
        .status
        .ok_or_else(|| "failed to fetch token: the answer has none".to_owned())?;
    let now = Timestamp::now();
    let until = status.expiration_timestamp.map_or(now, |time| time.0);
    let life = Duration::try_from(until.duration_since(now)).unwrap_or_default();
    Ok((status.token.unwrap_or_default(), now + life.mul_f64(TOKEN_LIFE_USED)))
}

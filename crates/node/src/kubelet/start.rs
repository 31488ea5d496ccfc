//! Starting one container: image, environment, process, hook.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};
use kube::Api;
use moorline_container as run;
use moorline_image::{Error as ImageError, Image};

use super::{
    adopt::{self, labels},
    context::{NodeContext, image_holder, run_id},
    prepare::{shared_files, told},
    spec::{self, ImageFacts, Making},
};
use crate::{
    env::{self, Facts},
    events::{Severity, seconds},
    key::Key,
    pod::{Attempt, Ended, Kind, State},
    probe::{Exec, ExecError, ExecOutcome},
    volume::{Place, Volumes},
};

/// Which container, of which pod, for the how-manieth time.
#[derive(Clone)]
pub(crate) struct Order {
    pub(crate) pod: Arc<Pod>,
    pub(crate) kind: Kind,
    pub(crate) container: Container,
    pub(crate) attempt: u32,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) volumes: Volumes,
}

/// Why a container was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its image cannot be had.
    Image { reason: &'static str, message: String },
    /// It cannot be put together: the waiting reason and message.
    Config { reason: &'static str, message: String },
    /// It was made, and its process does not start.
    Run { attempt: Attempt, message: String },
}

/// The path of a container in its pod, as events name it.
pub(crate) fn field_path(kind: Kind, name: &str) -> String {
    let list = match kind {
        Kind::Init | Kind::Sidecar => "initContainers",
        Kind::Main => "containers",
        Kind::Ephemeral => "ephemeralContainers",
    };
    format!("spec.{list}{{{name}}}")
}

/// Starts a container. When this returns, its process runs.
pub(crate) async fn start(context: &NodeContext, order: &Order) -> Result<Attempt, Refusal> {
    let tell = |severity: Severity, reason: &str, message: String| {
        let field = field_path(order.kind, &order.container.name);
        context
            .recorder
            .tell_container(&order.pod, &field, severity, reason, message);
    };
    let unavailable = |(reason, message): (&'static str, String)| {
        tell(Severity::Warning, "Failed", format!("Error: {reason}"));
        Refusal::Image { reason, message }
    };
    let wanted = Wanted {
        image: order.container.image.as_deref().unwrap_or(""),
        policy: order.container.image_pull_policy.as_deref(),
    };
    let image = image(context, order, wanted, &tell).await.map_err(unavailable)?;
    keep_image(context, order, None, &image).await.map_err(unavailable)?;
    let image_volumes = image_volumes(context, order, &tell).await.map_err(unavailable)?;
    let config = |reason: &'static str, message: String| {
        tell(Severity::Warning, "Failed", format!("Error: {message}"));
        Refusal::Config { reason, message }
    };
    let env = environment(context, order)
        .await
        .map_err(|message| config("CreateContainerConfigError", message))?;
    let pod = run_id(&order.pod).map_err(|message| config("CreateContainerError", message))?;
    let name = adopt::container_name(&order.container.name, order.attempt);
    let id: run::ContainerId = name
        .parse()
        .map_err(|error: run::InvalidId| config("CreateContainerError", error.to_string()))?;
    let spec = specification(context, order, &image, &image_volumes, &env, id.clone())
        .map_err(|message| config("CreateContainerConfigError", message))?;
    let runtime = &context.shared.runtime;
    if let Some(parent) = spec.log.as_ref().and_then(|log| log.path.parent()) {
        std::fs::create_dir_all(parent).map_err(|error| config("CreateContainerError", error.to_string()))?;
    }
    match runtime.create_container(&pod, spec).await {
        // It was made by an attempt that was cut short.
        Ok(()) | Err(run::Error::ContainerExists(..)) => {}
        Err(error) => return Err(config("CreateContainerError", told(&error))),
    }
    tell(Severity::Normal, "Created", "Container created".to_owned());
    let mut attempt = Attempt {
        id: adopt::shown_id(&order.pod, &order.container.name, order.attempt),
        image: order.container.image.clone().unwrap_or_default(),
        image_id: image_id(&image),
        state: State::Running {
            since: seconds(Timestamp::now()),
        },
    };
    match runtime.start(&pod, &id).await {
        Ok(())
        | Err(run::Error::WrongState {
            state: "running" | "not running any more",
            ..
        }) => {
            tell(Severity::Normal, "Started", "Container started".to_owned());
            forget_old(context, order, &pod).await;
            Ok(attempt)
        }
        Err(error) => {
            let message = told(&error);
            tell(Severity::Warning, "Failed", format!("Error: {message}"));
            let now = seconds(Timestamp::now());
            attempt.state = State::Ended(Ended {
                id: attempt.id.clone(),
                exit_code: 128,
                signal: None,
                reason: "StartError".to_owned(),
                message: Some(message.clone()),
                started: Some(Timestamp::UNIX_EPOCH),
                finished: now,
            });
            Err(Refusal::Run { attempt, message })
        }
    }
}

/// Removes attempts before the last one; the last one's log may still be asked for.
async fn forget_old(context: &NodeContext, order: &Order, pod: &run::PodId) {
    let Ok(status) = context.shared.runtime.pod(pod) else {
        return;
    };
    for found in status.containers {
        let labelled = |label: &str| found.spec.labels.get(label);
        let attempt = labelled(labels::ATTEMPT).and_then(|text| text.parse::<u32>().ok());
        let same = labelled(labels::CONTAINER) == Some(&order.container.name);
        let old = attempt.is_some_and(|attempt| attempt + 1 < order.attempt);
        if !same || !old {
            continue;
        }
        if let Err(error) = context.shared.runtime.remove(pod, &found.spec.id).await {
            tracing::debug!(%pod, container = %found.spec.id, error = told(&error), "an old attempt was not removed");
            continue;
        }
        if let Some(log) = &found.spec.log {
            // It may have been rotated away already.
            let _ = std::fs::remove_file(&log.path);
        }
    }
}

fn image_id(image: &Image) -> String {
    image
        .repo_digests
        .first()
        .map_or_else(|| image.id.to_string(), ToString::to_string)
}

/// An image, and whether it is to be fetched anew.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    image: &'a str,
    policy: Option<&'a str>,
}

/// The layers of the images that the container mounts, by volume.
async fn image_volumes(
    context: &NodeContext,
    order: &Order,
    tell: &impl Fn(Severity, &str, String),
) -> Result<BTreeMap<String, Vec<PathBuf>>, (&'static str, String)> {
    let mut found = BTreeMap::new();
    let volumes = order.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    for volume in volumes {
        let mounts = order.container.volume_mounts.as_deref().unwrap_or_default();
        let (Some(source), true) = (&volume.image, mounts.iter().any(|mount| mount.name == volume.name)) else {
            continue;
        };
        let wanted = Wanted {
            image: source.reference.as_deref().unwrap_or(""),
            policy: source.pull_policy.as_deref(),
        };
        let image = image(context, order, wanted, tell).await?;
        keep_image(context, order, Some(&volume.name), &image).await?;
        found.insert(volume.name.clone(), image.layers.iter().rev().cloned().collect());
    }
    Ok(found)
}

/// Keeps an image's layers for as long as the pod is there, whoever removes the image.
async fn keep_image(
    context: &NodeContext,
    order: &Order,
    volume: Option<&str>,
    image: &Image,
) -> Result<(), (&'static str, String)> {
    let uid = order.pod.metadata.uid.as_deref().unwrap_or("");
    let holder = image_holder(uid, &order.container.name, volume);
    let pinned = context.shared.images.pin(image, &holder).await;
    pinned.map_err(|error| ("ErrImagePull", told(&error)))
}

/// Has an image, by its policy.
async fn image(
    context: &NodeContext,
    order: &Order,
    wanted: Wanted<'_>,
    tell: &impl Fn(Severity, &str, String),
) -> Result<Image, (&'static str, String)> {
    let name = wanted.image;
    let latest = !name.contains('@')
        && name
            .rsplit('/')
            .next()
            .is_some_and(|last| !last.contains(':') || last.ends_with(":latest"));
    let default = if latest { "Always" } else { "IfNotPresent" };
    let policy = wanted.policy.unwrap_or(default);
    let images = &context.shared.images;
    let present = match images.get(name).await {
        Ok(image) => Some(image),
        Err(ImageError::Absent { .. }) => None,
        Err(error @ ImageError::InvalidName { .. }) => {
            let message = format!("Failed to apply default image tag {name:?}: {error}");
            tell(Severity::Warning, "InspectFailed", message.clone());
            return Err(("InvalidImageName", message));
        }
        Err(error) => return Err(("ImageInspectError", told(&error))),
    };
    match (policy, present) {
        ("Never", None) => {
            let message = format!("Container image {name:?} is not present with pull policy of Never");
            tell(Severity::Warning, "ErrImageNeverPull", message.clone());
            Err(("ErrImageNeverPull", message))
        }
        ("Always", _) | (_, None) => pull(context, order, name, tell).await,
        (_, Some(image)) => {
            let message = format!("Container image {name:?} already present on machine and can be accessed by the pod");
            tell(Severity::Normal, "Pulled", message);
            Ok(image)
        }
    }
}

async fn pull(
    context: &NodeContext,
    order: &Order,
    name: &str,
    tell: &impl Fn(Severity, &str, String),
) -> Result<Image, (&'static str, String)> {
    tell(Severity::Normal, "Pulling", format!("Pulling image {name:?}"));
    let begin = std::time::Instant::now();
    let pulled = super::pull::pull(context, &order.pod, name).await;
    match pulled {
        Ok(image) => {
            let took = format!("{:.3}s", begin.elapsed().as_secs_f64());
            let message = format!(
                "Successfully pulled image {name:?} in {took} ({took} including waiting). Image size: {} bytes.",
                image.bytes
            );
            tell(Severity::Normal, "Pulled", message);
            Ok(image)
        }
        Err(message) => {
            tell(
                Severity::Warning,
                "Failed",
                format!("Failed to pull image {name:?}: {message}"),
            );
            Err(("ErrImagePull", message))
        }
    }
}

/// The variables of a container.
async fn environment(context: &NodeContext, order: &Order) -> Result<BTreeMap<String, String>, String> {
    let key = Key::of(&*order.pod);
    let wanted = env::references(&order.container);
    let mut objects = env::Objects::default();
    let config_maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &key.namespace);
    for name in wanted.config_maps {
        if let Some(map) = config_maps.get_opt(&name).await.map_err(|error| error.to_string())? {
            objects.config_maps.insert(name, map);
        }
    }
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &key.namespace);
    for name in wanted.secrets {
        if let Some(secret) = secrets.get_opt(&name).await.map_err(|error| error.to_string())? {
            objects.secrets.insert(name, secret);
        }
    }
    for (volume, path) in wanted.files {
        let Some(Place::Path { path: root, .. }) = order.volumes.places.get(&volume) else {
            return Err(format!(
                "cannot read the environment file {path:?}: volume {volume:?} is no directory of this node"
            ));
        };
        if let Some(variables) = env::read_file(root, &path)? {
            objects.files.insert((volume, path), variables);
        }
    }
    let facts = Facts {
        pod: &order.pod,
        container: Some(&order.container),
        pod_ips: &order.ips,
        host_ips: &context.addresses,
        allocatable: &context.allocatable,
    };
    let all = context.shared.services.all();
    let links = order.pod.spec.as_ref().and_then(|spec| spec.enable_service_links) != Some(false);
    let visible = |service: &&Service| {
        let own = Key::of(*service);
        (links && own.namespace == key.namespace) || (own.namespace == "default" && own.name == "kubernetes")
    };
    let services: Vec<&Service> = all.iter().map(AsRef::as_ref).filter(visible).collect();
    env::resolve(&order.container, &facts, &objects, &services).map_err(|error| error.to_string())
}

fn specification(
    context: &NodeContext,
    order: &Order,
    image: &Image,
    image_volumes: &BTreeMap<String, Vec<PathBuf>>,
    env: &BTreeMap<String, String>,
    id: run::ContainerId,
) -> Result<run::ContainerSpec, String> {
    let pod = &order.pod;
    let name = &order.container.name;
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let files = shared_files(&context.shared.pod_directory(uid));
    let (hostname, _) = spec::hostname(pod, &context.shared.domain);
    let signal = order
        .container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.stop_signal.clone());
    let pairs = [
        (labels::CONTAINER, name.clone()),
        (labels::ATTEMPT, order.attempt.to_string()),
        (labels::IMAGE, order.container.image.clone().unwrap_or_default()),
        (labels::IMAGE_ID, image_id(image)),
        (
            labels::STOP_SIGNAL,
            signal.unwrap_or_else(|| image.config.stop_signal.clone()),
        ),
    ];
    let making = Making {
        pod,
        container: &order.container,
        id,
        image: ImageFacts {
            layers: image.layers.iter().rev().cloned().collect(),
            config: &image.config,
        },
        env,
        volumes: &order.volumes,
        image_volumes,
        hostname: &hostname,
        files: &files,
        log: context.shared.log(pod, name, order.attempt),
        memory_of_node: context.memory,
        labels: pairs
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    };
    spec::container(&making)
}

/// How much of a command's output is kept.
const OUTPUT: u64 = 10 * 1024;

/// A way to run commands in one attempt at a container.
pub(crate) fn exec(context: &Arc<NodeContext>, pod: &Pod, container: &str, attempt: u32) -> Exec {
    let runtime = context.shared.runtime.clone();
    let pod = run_id(pod);
    let container: Result<run::ContainerId, _> = adopt::container_name(container, attempt).parse();
    Arc::new(move |command, limit| {
        let (runtime, pod, container) = (runtime.clone(), pod.clone(), container.clone());
        Box::pin(async move {
            let pod = pod.map_err(ExecError::Refused)?;
            let container = container.map_err(|error| ExecError::Refused(error.to_string()))?;
            let run = run_command(&runtime, &pod, &container, command);
            tokio::time::timeout(limit, run)
                .await
                .map_err(|_| ExecError::TimedOut(limit))?
        })
    })
}

async fn run_command(
    runtime: &run::Runtime,
    pod: &run::PodId,
    container: &run::ContainerId,
    command: Vec<String>,
) -> Result<ExecOutcome, ExecError> {
    use tokio::io::AsyncReadExt as _;
    let mut session = match runtime.exec(pod, container, run::ExecSpec::new(command)).await {
        Ok(session) => session,
        // A command that is not there fails as a shell would have it.
        Err(error @ run::Error::Exec { .. }) => {
            return Ok(ExecOutcome {
                exit_code: 126,
                output: told(&error),
            });
        }
        Err(error) => return Err(ExecError::Refused(told(&error))),
    };
    let (stdout, stderr) = (session.stdout.take(), session.stderr.take());
    let read = |stream: Option<run::Output>| async move {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // What was read before an error is still worth showing.
            let mut limited = stream.take(OUTPUT);
            let _ = limited.read_to_end(&mut bytes).await;
            let _ = tokio::io::copy(limited.get_mut(), &mut tokio::io::sink()).await;
        }
        bytes
    };
    let (end, out, err) = tokio::join!(session.wait(), read(stdout), read(stderr));
    let end = end.map_err(|error| ExecError::Refused(told(&error)))?;
    let output = String::from_utf8_lossy(&[out, err].concat()).into_owned();
    Ok(ExecOutcome {
        exit_code: end.code,
        output,
    })
}

/// How long hooks at the start may take: as long as they like, within reason.
pub(crate) const HOOK_LIMIT: Duration = Duration::from_hours(1);

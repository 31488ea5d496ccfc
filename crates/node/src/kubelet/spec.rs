//! From a pod of the API to pods and containers of this machine. Pure.

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use moorline_container as run;

use crate::{
    amounts::{Amounts, Side, pod_limit, pod_requests, qos_class},
    env::expand,
    pod::described,
    volume::{Place, Volumes},
};

/// What an image says of the process in it, and where it lies.
pub(crate) struct ImageFacts<'a> {
    /// Lowest first.
    pub(crate) layers: Vec<PathBuf>,
    pub(crate) config: &'a moorline_image::ImageConfig,
}

/// Everything a container is made from.
pub(crate) struct Making<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) id: run::ContainerId,
    pub(crate) image: ImageFacts<'a>,
    pub(crate) env: &'a BTreeMap<String, String>,
    pub(crate) volumes: &'a Volumes,
    /// The layers of images that are mounted as volumes, by the volume; lowest first.
    pub(crate) image_volumes: &'a BTreeMap<String, Vec<PathBuf>>,
    pub(crate) hostname: &'a str,
    /// Files of the pod that every container sees, by where it sees them.
    pub(crate) files: &'a [(PathBuf, PathBuf)],
    pub(crate) log: PathBuf,
    pub(crate) memory_of_node: i64,
    pub(crate) labels: BTreeMap<String, String>,
}

/// Puts a container together. An error is the message of `CreateContainerConfigError`.
pub(crate) fn container(making: &Making<'_>) -> Result<run::ContainerSpec, String> {
    let Making {
        pod,
        container,
        image,
        env,
        ..
    } = making;
    let known = |name: &str| env.get(name).cloned();
    let words = |list: Option<&Vec<String>>| -> Vec<String> {
        list.into_iter().flatten().map(|word| expand(word, known)).collect()
    };
    let (command, arguments) = (words(container.command.as_ref()), words(container.args.as_ref()));
    let args: Vec<String> = match (command.is_empty(), arguments.is_empty()) {
        (false, _) => [command, arguments].concat(),
        (true, false) => [image.config.entrypoint.clone(), arguments].concat(),
        (true, true) => [image.config.entrypoint.clone(), image.config.cmd.clone()].concat(),
    };
    if args.is_empty() {
        return Err("no command specified".to_owned());
    }
    let mut variables = vec![("HOSTNAME".to_owned(), making.hostname.to_owned())];
    for variable in &image.config.env {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        variables.push((name.to_owned(), value.to_owned()));
    }
    variables.extend(env.iter().map(|(name, value)| (name.clone(), value.clone())));
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let cwd = given(&container.working_dir)
        .or_else(|| Some(image.config.working_dir.clone()).filter(|dir| !dir.is_empty()))
        .unwrap_or_else(|| "/".to_owned());
    let mut spec = run::ContainerSpec::new(making.id.clone(), image.layers.clone(), args);
    let security = container.security_context.clone().unwrap_or_default();
    let privileged = security.privileged == Some(true);
    let capabilities = security.capabilities.unwrap_or_default();
    spec.env = variables;
    spec.cwd = cwd.into();
    spec.user = user(pod, container, image)?;
    spec.capabilities = run::Capabilities {
        add: capabilities.add.unwrap_or_default(),
        drop: capabilities.drop.unwrap_or_default(),
    };
    spec.privileged = privileged;
    spec.no_new_privileges = security.allow_privilege_escalation == Some(false);
    spec.unmasked_proc = security.proc_mount.as_deref() == Some("Unmasked");
    spec.root.read_only = security.read_only_root_filesystem == Some(true);
    spec.mounts = mounts(making)?;
    spec.resources = resources(container);
    spec.oom_score_adj = Some(oom_score(pod, container, making.memory_of_node));
    spec.terminal = container.tty == Some(true);
    spec.stdin = match (container.stdin == Some(true), container.stdin_once == Some(true)) {
        (false, _) => run::StdinPolicy::Null,
        (true, false) => run::StdinPolicy::Open,
        (true, true) => run::StdinPolicy::OpenOnce,
    };
    spec.log = Some(run::LogSpec::new(making.log.clone()));
    let message = given(&container.termination_message_path).unwrap_or_else(|| "/dev/termination-log".to_owned());
    spec.termination_message = Some(run::TerminationMessage {
        path: message.into(),
        max_bytes: 4096,
    });
    spec.labels.clone_from(&making.labels);
    Ok(spec)
}

/// Whom a container runs as: what it says, what its pod says, what its image says.
fn user(pod: &Pod, container: &Container, image: &ImageFacts<'_>) -> Result<run::User, String> {
    let whole = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.clone())
        .unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let wanted = own.run_as_user.or(whole.run_as_user);
    let named = wanted.map_or_else(|| image.config.user.clone(), |uid| uid.to_string());
    let must_not_be_root = own.run_as_non_root.or(whole.run_as_non_root) == Some(true);
    let where_ = format!("(pod: {:?}, container: {})", described(pod), container.name);
    if must_not_be_root && wanted.is_none() {
        let name = named.split(':').next().unwrap_or("");
        if !name.is_empty() && name.parse::<u32>().is_err() {
            return Err(format!(
                "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root \
                 {where_}"
            ));
        }
    }
    let mut user = run::resolve_user(&image.layers, &named).map_err(|error| error.to_string())?;
    if must_not_be_root && user.uid == 0 {
        return Err(if wanted.is_some() {
            format!("container's runAsUser breaks non-root policy {where_}")
        } else {
            format!("container has runAsNonRoot and image will run as root {where_}")
        });
    }
    let number = |id: i64| u32::try_from(id).ok();
    if let Some(gid) = own.run_as_group.or(whole.run_as_group).and_then(number) {
        user.gid = gid;
    }
    if whole.supplemental_groups_policy.as_deref() == Some("Strict") {
        user.additional_gids.clear();
    }
    let added = whole.supplemental_groups.into_iter().flatten().chain(whole.fs_group);
    for group in added.filter_map(number) {
        if !user.additional_gids.contains(&group) {
            user.additional_gids.push(group);
        }
    }
    Ok(user)
}

fn mounts(making: &Making<'_>) -> Result<Vec<run::Mount>, String> {
    let Making {
        container,
        volumes,
        env,
        ..
    } = making;
    let mut mounts = Vec::new();
    for wanted in container.volume_mounts.iter().flatten() {
        let Some(place) = volumes.places.get(&wanted.name) else {
            return Err(format!(
                "cannot find volume {:?} to mount into container {:?}",
                wanted.name, container.name
            ));
        };
        let subpath = match wanted.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
            Some(expression) => Some(expand(expression, |name| env.get(name).cloned())),
            None => wanted.sub_path.clone(),
        };
        let subpath = subpath.filter(|path| !path.is_empty());
        if let Some(path) = &subpath {
            check_subpath(path)?;
        }
        let subpath = subpath.map(PathBuf::from);
        let (source, read_only) = match place {
            Place::Path { path, read_only } => (
                run::MountSource::Bind {
                    path: path.clone(),
                    subpath,
                },
                *read_only,
            ),
            Place::Memory { .. } => {
                let name = memory_name(&wanted.name)?;
                (run::MountSource::PodMemory { name, subpath }, false)
            }
            Place::Image => {
                let layers = making.image_volumes.get(&wanted.name).cloned().unwrap_or_default();
                (run::MountSource::Layers { layers, subpath }, true)
            }
        };
        let propagation = match wanted.mount_propagation.as_deref() {
            Some("HostToContainer") => run::Propagation::HostToContainer,
            Some("Bidirectional") => run::Propagation::Bidirectional,
            _ => run::Propagation::Private,
        };
        mounts.push(run::Mount {
            target: wanted.mount_path.clone().into(),
            source,
            read_only: read_only || wanted.read_only == Some(true),
            propagation,
        });
    }
    // What lies deeper is mounted later, or it would be hidden.
    mounts.sort_by_key(|mount| mount.target.components().count());
    for (target, path) in making.files {
        if !mounts.iter().any(|mount| mount.target == *target) {
            mounts.push(run::Mount {
                target: target.clone(),
                source: run::MountSource::Bind {
                    path: path.clone(),
                    subpath: None,
                },
                read_only: false,
                propagation: run::Propagation::Private,
            });
        }
    }
    Ok(mounts)
}

fn check_subpath(path: &str) -> Result<(), String> {
    if path.starts_with('/') {
        return Err(format!("subPath {path:?} must not be an absolute path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("subPath {path:?} must not contain '..'"));
    }
    Ok(())
}

fn memory_name(volume: &str) -> Result<run::ContainerId, String> {
    volume.parse().map_err(|error: run::InvalidId| error.to_string())
}

/// What the containers of a pod share.
pub(crate) fn sandbox(
    pod: &Pod,
    id: run::PodId,
    hostname: &str,
    network: run::Network,
    volumes: &Volumes,
    labels: BTreeMap<String, String>,
) -> Result<run::PodSpec, String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let security = spec.security_context.clone().unwrap_or_default();
    let mut made = run::PodSpec::new(id, network);
    made.hostname = Some(hostname.to_owned());
    if spec.host_ipc == Some(true) {
        made.ipc = run::Sharing::Host;
    }
    made.processes = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => run::Processes::Host,
        (_, Some(true)) => run::Processes::Pod,
        _ => run::Processes::PerContainer,
    };
    let sysctls = security.sysctls.unwrap_or_default().into_iter();
    made.sysctls = sysctls
        .map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value))
        .collect();
    if spec.host_network != Some(true) {
        // Those of the network are set where the network is made.
        made.sysctls.retain(|name, _| !name.starts_with("net."));
    }
    let group = security.fs_group.and_then(|group| u32::try_from(group).ok());
    for (name, place) in &volumes.places {
        if let Place::Memory { limit } = place {
            made.memory_volumes.push(run::MemoryVolume {
                name: memory_name(name)?,
                size_bytes: *limit,
                mode: if group.is_some() { 0o2777 } else { 0o777 },
                gid: group.unwrap_or(0),
            });
        }
    }
    made.resources = pod_resources(spec);
    made.labels = labels;
    Ok(made)
}

/// The limits of a pod as a whole.
pub(crate) fn pod_resources(spec: &PodSpec) -> run::Resources {
    let requests = pod_requests(spec, None);
    run::Resources {
        cpu_shares: Some(shares(requests.get("cpu"))),
        cpu_quota_micros: pod_limit(spec, "cpu").and_then(quota),
        memory_limit_bytes: pod_limit(spec, "memory").and_then(|limit| u64::try_from(limit).ok()),
        ..run::Resources::default()
    }
}

/// The limits of a container.
pub(crate) fn resources(container: &Container) -> run::Resources {
    of_requirements(container.resources.as_ref())
}

pub(crate) fn of_requirements(
    requirements: Option<&k8s_openapi::api::core::v1::ResourceRequirements>,
) -> run::Resources {
    let (requests, limits): (Amounts, Amounts) = (Side::Requests.of(requirements), Side::Limits.of(requirements));
    let asked = match (requests.get("cpu"), limits.get("cpu")) {
        (0, limit) => limit,
        (request, _) => request,
    };
    run::Resources {
        cpu_shares: Some(shares(asked)),
        cpu_quota_micros: Some(limits.get("cpu")).filter(|limit| *limit > 0).and_then(quota),
        memory_limit_bytes: u64::try_from(limits.get("memory")).ok().filter(|limit| *limit > 0),
        ..run::Resources::default()
    }
}

/// A thousandth of a core is a little more than one share; nobody gets fewer than two.
fn shares(milli: i64) -> u64 {
    u64::try_from(milli * 1024 / 1000).unwrap_or(0).clamp(2, 262_144)
}

/// Of a period of a tenth of a second; the kernel takes no less than a millisecond.
fn quota(milli: i64) -> Option<u64> {
    u64::try_from(milli * 100).ok().map(|quota| quota.max(1000))
}

fn oom_score(pod: &Pod, container: &Container, memory_of_node: i64) -> i32 {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let critical = spec.priority.is_some_and(|priority| priority >= 2_000_000_000);
    match qos_class(spec) {
        _ if critical => -997,
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let asked = Side::Requests.of(container.resources.as_ref()).get("memory");
            let share = 1000_i64.saturating_mul(asked) / memory_of_node.max(1);
            i32::try_from((1000 - share).clamp(3, 999)).unwrap_or(999)
        }
    }
}

/// The host name of a pod, and its full name where it has a domain.
pub(crate) fn hostname(pod: &Pod, cluster_domain: &str) -> (String, Option<String>) {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    if let Some(name) = &spec.hostname_override {
        return (name.clone(), None);
    }
    let key = crate::key::Key::of(pod);
    let given = spec.hostname.clone().filter(|name| !name.is_empty());
    let mut name = given.unwrap_or_else(|| key.name.clone());
    name.truncate(63);
    while name.ends_with(['-', '.']) {
        name.pop();
    }
    let subdomain = spec.subdomain.as_deref().filter(|subdomain| !subdomain.is_empty());
    let full = subdomain.map(|subdomain| format!("{name}.{subdomain}.{}.svc.{cluster_domain}", key.namespace));
    match (&full, spec.set_hostname_as_fqdn) {
        (Some(full_name), Some(true)) => (full_name.clone(), full),
        _ => (name, full),
    }
}

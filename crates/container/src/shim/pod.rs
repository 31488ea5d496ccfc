//! What the containers of a pod share: the shim takes these on itself, and its children inherit them.

use std::{
    fs::{self, File},
    path::Path,
};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    mount::{MountFlags, mount},
    process::set_child_subreaper,
    system::{setdomainname, sethostname},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::pause;
use crate::{
    Network, PodSpec, Processes, Sharing,
    cgroup::Hierarchies,
    error::{Attempt, Error, Result},
    state::PodDir,
};

/// The group of the shims of an instance: beside the pods, so that freezing or limiting a pod leaves its shim alone.
pub(crate) const SHIMS: &str = ".shims";

/// Enters the pod's namespaces and fills them. Returns the first process of the pod, where there is one.
pub(super) fn set_up(
    spec: &PodSpec,
    dir: &PodDir,
    hierarchies: &Hierarchies,
    instance_cgroup: &Path,
) -> Result<Option<u32>> {
    // Out of the group of whoever started us, which may be killed as a whole.
    let shims = hierarchies.group(&instance_cgroup.join(SHIMS));
    shims.create()?;
    shims.join()?;
    let pod_cgroup = instance_cgroup.join(spec.id.as_str());
    let pod = hierarchies.group(&pod_cgroup);
    pod.create()?;
    pod.limit(&spec.resources)?;

    let this_process = rustix::process::getpid();
    set_child_subreaper(Some(this_process)).attempt(|| "become the parent of the pod's orphans")?;

    let mut own = CloneFlags::empty();
    if spec.ipc == Sharing::Pod {
        own |= CloneFlags::CLONE_NEWIPC;
    }
    match &spec.network {
        Network::Host => {}
        Network::Namespace(path) => {
            let namespace = File::open(path).attempt(|| format!("open the network namespace {}", path.display()))?;
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))
                .attempt(|| format!("enter the network namespace {}", path.display()))?;
            own |= CloneFlags::CLONE_NEWUTS;
        }
        Network::Isolated => own |= CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS,
    }
    unshare(own).attempt(|| "make the pod's namespaces; this needs root")?;

    if own.contains(CloneFlags::CLONE_NEWUTS) {
        if let Some(name) = &spec.hostname {
            sethostname(name.as_bytes()).attempt(|| format!("set the host name {name}"))?;
        }
        if let Some(name) = &spec.domainname {
            setdomainname(name.as_bytes()).attempt(|| format!("set the domain name {name}"))?;
        }
    }
    for (name, value) in &spec.sysctls {
        set_sysctl(spec, name, value)?;
    }
    memory(&dir.memory("shm"), Some(spec.shared_memory_bytes), 0o1777, 0)?;
    for volume in &spec.memory_volumes {
        memory(
            &dir.memory(volume.name.as_str()),
            volume.size_bytes,
            volume.mode,
            volume.gid,
        )?;
    }
    match spec.processes {
        Processes::Pod => pause::start(hierarchies, &pod_cgroup).map(Some),
        Processes::PerContainer | Processes::Host => Ok(None),
    }
}

/// Writes a kernel setting, if it belongs to a namespace that the pod has for itself.
fn set_sysctl(spec: &PodSpec, name: &str, value: &str) -> Result<()> {
    let of_ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
    let allowed = if name.starts_with("net.") {
        spec.network != Network::Host
    } else {
        of_ipc.iter().any(|prefix| name.starts_with(prefix)) && spec.ipc == Sharing::Pod
    };
    if !allowed || name.contains("..") || name.contains('\0') {
        return Err(Error::Invalid {
            field: format!("sysctls[{name}]"),
            reason: "it is not a setting of a namespace that the pod has for itself".to_owned(),
        });
    }
    // Dots separate, slashes stand for dots in names of network interfaces.
    let path: String = name
        .chars()
        .map(|c| match c {
            '.' => '/',
            '/' => '.',
            other => other,
        })
        .collect();
    fs::write(Path::new("/proc/sys").join(path), value).attempt(|| format!("set sysctl {name} to {value}"))
}

fn memory(path: &Path, size_bytes: Option<u64>, mode: u32, gid: u32) -> Result<()> {
    let size = size_bytes.map(|size| format!(",size={size}")).unwrap_or_default();
    let options = std::ffi::CString::new(format!("mode={mode:o},gid={gid}{size}")).map_err(std::io::Error::from);
    fs::create_dir_all(path)
        .and(options)
        .and_then(|options| {
            Ok(mount(
                "tmpfs",
                path,
                "tmpfs",
                MountFlags::NODEV | MountFlags::NOSUID,
                options.as_c_str(),
            )?)
        })
        .attempt(|| format!("mount memory at {}", path.display()))
}

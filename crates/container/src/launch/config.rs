//! Our plain types as the document of the Open Container Initiative that libcontainer reads.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use libcontainer::oci_spec::runtime::Spec;
use serde_json::{Value, json};

use super::capabilities;
use crate::{
    ContainerSpec, ExecSpec, Mount, MountSource, PodSpec, Processes, Propagation, Rlimit, Sharing, User,
    error::{Attempt, Error, Result},
    state::PodDir,
    wire::Launch,
};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What tells of the host, and what changes it: the same lists that other runtimes have.
const MASKED: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What the document depends on beside the container.
pub(super) struct Context<'a> {
    pub(super) pod: &'a PodSpec,
    pub(super) launch: &'a Launch,
    /// Whether the kernel keeps the container from devices that it was not given.
    pub(super) guards_devices: bool,
    pub(super) devices: Devices,
    /// Where the sources of the container's mounts have been put.
    pub(super) mounts: Vec<Option<PathBuf>>,
    pub(super) root: PathBuf,
    /// What the container sees as `/sys/fs/cgroup`.
    pub(super) cgroups: PathBuf,
}

/// The whole document of a container.
pub(super) fn document(spec: &ContainerSpec, context: &Context<'_>) -> Result<Value> {
    let mut capabilities = capabilities::chosen(&spec.capabilities, spec.privileged)?;
    if !context.guards_devices && !spec.privileged {
        // It could make itself a node of the host's disk and write to it.
        capabilities.remove("CAP_MKNOD");
    }
    let open = spec.privileged || spec.unmasked_proc;
    let (masked, read_only): (&[&str], &[&str]) = if open { (&[], &[]) } else { (&MASKED, &READ_ONLY) };
    let both_ways = spec
        .mounts
        .iter()
        .any(|mount| mount.propagation == Propagation::Bidirectional);
    Ok(json!({
        "ociVersion": "1.0.2",
        "root": {"path": context.root, "readonly": spec.root.read_only},
        "process": {
            "terminal": spec.terminal,
            "user": user(&spec.user),
            "args": arguments(&spec.args)?,
            "env": environment(&spec.env, spec.terminal),
            "cwd": spec.cwd,
            "capabilities": capability_sets(&capabilities),
            "rlimits": spec.rlimits.iter().map(rlimit).collect::<Result<Vec<_>>>()?,
            "noNewPrivileges": spec.no_new_privileges,
        },
        "mounts": mounts(spec, context)?,
        "linux": {
            "namespaces": namespaces(context),
            "cgroupsPath": Path::new("/").join(&context.launch.cgroup),
            "devices": context.devices.nodes,
            "rootfsPropagation": if both_ways { "shared" } else { "slave" },
            "maskedPaths": masked,
            "readonlyPaths": read_only,
        },
    }))
}

/// The document of a process in a container.
pub(super) fn exec_process(exec: &ExecSpec, spec: &Spec) -> Result<Value> {
    let own = serde_json::to_value(spec.process())
        .map_err(std::io::Error::from)
        .attempt(|| "read the process")?;
    let mut env: Vec<_> = own["env"].as_array().cloned().unwrap_or_default();
    if exec.terminal.is_some() {
        env.push(json!("TERM=xterm"));
    }
    env.extend(exec.env.iter().map(|(name, value)| json!(format!("{name}={value}"))));
    let mut process = json!({
        "terminal": exec.terminal.is_some(),
        "user": exec.user.as_ref().map_or_else(|| own["user"].clone(), user),
        "args": arguments(&exec.args)?,
        "env": env,
        "cwd": exec.cwd.as_ref().map_or_else(|| own["cwd"].clone(), |cwd| json!(cwd)),
    });
    for inherited in ["capabilities", "rlimits", "noNewPrivileges"] {
        if !own[inherited].is_null() {
            process[inherited] = own[inherited].clone();
        }
    }
    Ok(process)
}

fn arguments(args: &[String]) -> Result<&[String]> {
    if args.first().is_none_or(String::is_empty) {
        return Err(Error::Invalid {
            field: "args".to_owned(),
            reason: "there is no command; give one, or an image that has one".to_owned(),
        });
    }
    Ok(args)
}

fn user(user: &User) -> Value {
    json!({"uid": user.uid, "gid": user.gid, "additionalGids": user.additional_gids})
}

fn environment(env: &[(String, String)], terminal: bool) -> Vec<String> {
    let has = |wanted: &str| env.iter().any(|(name, _)| name == wanted);
    let mut lines = Vec::new();
    if !has("PATH") {
        lines.push(format!("PATH={PATH}"));
    }
    if !has("HOSTNAME") {
        // A launcher is in the pod's namespace.
        lines.push(format!(
            "HOSTNAME={}",
            rustix::system::uname().nodename().to_string_lossy()
        ));
    }
    if terminal && !has("TERM") {
        lines.push("TERM=xterm".to_owned());
    }
    lines.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
    lines
}

/// Only bounding, permitted and effective: inheritable ones would survive a change of user by a program with file
/// capabilities.
fn capability_sets(capabilities: &BTreeSet<String>) -> Value {
    json!({"bounding": capabilities, "permitted": capabilities, "effective": capabilities})
}

fn rlimit(limit: &Rlimit) -> Result<Value> {
    let unknown = || Error::Invalid {
        field: format!("rlimits[{}]", limit.name),
        reason: "there is no such limit".to_owned(),
    };
    let resource = resource(&limit.name).ok_or_else(unknown)?;
    // Raising the hard limit takes a privilege that even root may lack.
    let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    Ok(json!({"type": limit.name, "soft": limit.soft.min(limit.hard).min(most), "hard": limit.hard.min(most)}))
}

fn resource(name: &str) -> Option<rustix::process::Resource> {
    use rustix::process::Resource;
    Some(match name {
        "RLIMIT_AS" => Resource::As,
        "RLIMIT_CORE" => Resource::Core,
        "RLIMIT_CPU" => Resource::Cpu,
        "RLIMIT_DATA" => Resource::Data,
        "RLIMIT_FSIZE" => Resource::Fsize,
        "RLIMIT_LOCKS" => Resource::Locks,
        "RLIMIT_MEMLOCK" => Resource::Memlock,
        "RLIMIT_MSGQUEUE" => Resource::Msgqueue,
        "RLIMIT_NICE" => Resource::Nice,
        "RLIMIT_NOFILE" => Resource::Nofile,
        "RLIMIT_NPROC" => Resource::Nproc,
        "RLIMIT_RSS" => Resource::Rss,
        "RLIMIT_RTPRIO" => Resource::Rtprio,
        "RLIMIT_RTTIME" => Resource::Rttime,
        "RLIMIT_SIGPENDING" => Resource::Sigpending,
        "RLIMIT_STACK" => Resource::Stack,
        _ => return None,
    })
}

/// Network, host name and System V memory are those of the launcher, which has them from the shim.
fn namespaces(context: &Context<'_>) -> Vec<Value> {
    let mut namespaces = vec![json!({"type": "mount"}), json!({"type": "cgroup"})];
    match (context.pod.processes, context.launch.pid_namespace_of) {
        (Processes::Pod, Some(first)) => {
            namespaces.push(json!({"type": "pid", "path": format!("/proc/{first}/ns/pid")}));
        }
        (Processes::Host, _) => {}
        (Processes::PerContainer | Processes::Pod, _) => namespaces.push(json!({"type": "pid"})),
    }
    namespaces
}

fn mounts(spec: &ContainerSpec, context: &Context<'_>) -> Result<Vec<Value>> {
    let sysfs = if spec.privileged { "rw" } else { "ro" };
    let shm = match context.pod.ipc {
        Sharing::Pod => PodDir::new(context.launch.pod_dir.clone()).memory("shm"),
        Sharing::Host => PathBuf::from("/dev/shm"),
    };
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
               "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
               "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]}),
        json!({"destination": "/dev/shm", "type": "bind", "source": shm, "options": ["rbind", "rw", "nosuid", "nodev"]}),
        json!({"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
               "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs",
               "options": ["nosuid", "noexec", "nodev", sysfs]}),
        json!({"destination": "/sys/fs/cgroup", "type": "bind", "source": context.cgroups,
               "options": ["rbind", "nosuid", "noexec", "nodev", sysfs]}),
    ];
    // One of the container's own may stand where the system's would.
    mounts.retain(|own| {
        spec.mounts
            .iter()
            .all(|mount| own["destination"].as_str() != mount.target.to_str())
    });
    if let Some(message) = &spec.termination_message {
        let place = PodDir::new(context.launch.pod_dir.clone())
            .container(&spec.id)
            .message();
        fs::write(&place, "")
            .and_then(|()| fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o666)))
            .attempt(|| format!("make {}", place.display()))?;
        mounts.push(json!({"destination": message.path, "type": "bind", "source": place, "options": ["bind", "rw"]}));
    }
    for (mount, source) in spec.mounts.iter().zip(&context.mounts) {
        mounts.push(one_mount(mount, source.as_deref())?);
    }
    Ok(mounts)
}

fn one_mount(mount: &Mount, source: Option<&Path>) -> Result<Value> {
    if !mount.target.is_absolute() {
        return Err(Error::Invalid {
            field: format!("mounts[{}].target", mount.target.display()),
            reason: "it must be an absolute path".to_owned(),
        });
    }
    let access = if mount.read_only { "ro" } else { "rw" };
    if let MountSource::Tmpfs { size_bytes, mode } = &mount.source {
        let mut options = vec![
            "nosuid".to_owned(),
            "nodev".to_owned(),
            access.to_owned(),
            format!("mode={mode:o}"),
        ];
        options.extend(size_bytes.map(|size| format!("size={size}")));
        return Ok(json!({"destination": mount.target, "type": "tmpfs", "source": "tmpfs", "options": options}));
    }
    let source = source.unwrap_or(Path::new(""));
    fs::metadata(source).attempt(|| format!("find {} to mount it at {}", source.display(), mount.target.display()))?;
    let propagation = match mount.propagation {
        Propagation::Private => "rprivate",
        Propagation::HostToContainer => "rslave",
        Propagation::Bidirectional => "rshared",
    };
    let mut options = vec!["rbind", access, propagation];
    if matches!(mount.source, MountSource::Layers { .. }) {
        options = vec!["rbind", "ro", "noexec", propagation];
    }
    Ok(json!({"destination": mount.target, "type": "bind", "source": source, "options": options}))
}

/// Device nodes to make, and rules that let the container use them.
pub(super) struct Devices {
    pub(super) nodes: Vec<Value>,
    pub(super) rules: Vec<String>,
}

impl Devices {
    pub(super) fn of(spec: &ContainerSpec) -> Result<Self> {
        // Any node may be made, so that packages unpack; only the harmless may be used. 136 are pseudo-terminals, 5:2
        // their multiplexer.
        let mut rules: Vec<_> = [
            "c *:* m",
            "b *:* m",
            "c 1:3 rwm",
            "c 1:5 rwm",
            "c 1:7 rwm",
            "c 1:8 rwm",
            "c 1:9 rwm",
            "c 5:0 rwm",
            "c 5:1 rwm",
            "c 5:2 rwm",
            "c 136:* rwm",
        ]
        .map(str::to_owned)
        .into();
        let mut nodes = Vec::new();
        if spec.privileged {
            let all = fs::read_dir("/dev").attempt(|| "list the devices in /dev")?;
            let paths = all.flatten().map(|entry| entry.path());
            nodes.extend(
                paths
                    .filter_map(|path| device(&path, &path).ok().flatten())
                    .map(|(node, _)| node),
            );
        }
        for wanted in &spec.devices {
            let found = device(&wanted.host_path, &wanted.path)
                .attempt(|| format!("look at the device {}", wanted.host_path.display()))?;
            let (node, numbers) = found.ok_or_else(|| Error::Invalid {
                field: format!("devices[{}]", wanted.host_path.display()),
                reason: "it is not a device".to_owned(),
            })?;
            rules.push(format!("{numbers} {}", wanted.access));
            nodes.push(node);
        }
        Ok(Self { nodes, rules })
    }
}

/// The node, and its kind and numbers as rules spell them; none for what is not a device.
fn device(host: &Path, inside: &Path) -> std::io::Result<Option<(Value, String)>> {
    const USUAL: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"];
    let found = fs::symlink_metadata(host)?;
    let kind = match found.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        _ => return Ok(None),
    };
    if inside.parent() == Some(Path::new("/dev")) && USUAL.iter().any(|usual| inside.ends_with(usual)) {
        return Ok(None);
    }
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let node = json!({
        "path": inside, "type": kind, "major": major, "minor": minor,
        "fileMode": found.mode() & 0o777, "uid": found.uid(), "gid": found.gid(),
    });
    Ok(Some((node, format!("{kind} {major}:{minor}"))))
}

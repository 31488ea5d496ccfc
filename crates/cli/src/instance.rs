//! One embedded Kubernetes: the directory that everything of it is in, and who runs it.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use moorline_network::Ranges;
use moorline_node::{MachineConfig, NodeConfig, SimulatedConfig, container::rootless};

/// An instance, running or not.
pub(crate) struct Instance {
    directory: PathBuf,
}

/// The right to run an instance, until it is dropped.
pub(crate) struct Held {
    _lock: File,
}

/// Whether this process may do everything on this machine.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// The directory that was named, or the one that instances have otherwise.
pub(crate) fn data_directory(named: Option<PathBuf>) -> Result<PathBuf> {
    // Root of namespaces of its own is still the user that it was.
    if let Some(inside) = rootless::inside() {
        return Ok(inside.directory);
    }
    if let Some(named) = named {
        return std::path::absolute(&named).with_context(|| format!("cannot use {} as a directory", named.display()));
    }
    if is_root() {
        return Ok(PathBuf::from("/var/lib/moorline"));
    }
    let home = std::env::home_dir().context("there is no home directory; name one with --data-dir")?;
    Ok(home.join(".local/share/moorline"))
}

impl Instance {
    pub(crate) fn at(named: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            directory: data_directory(named)?,
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn exists(&self) -> bool {
        self.directory.join("lock").exists()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("moorline.log")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("control")
    }

    /// A short name that tells it from instances in other directories: in cgroups, links and tables.
    fn name(&self) -> String {
        let path = self.directory.to_string_lossy();
        // FNV-1a: the same in every version, which the name has to be.
        let hash = path.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        format!("m{:06x}", hash & 0x00ff_ffff)
    }

    /// Makes the directory if need be and takes the right to run it; `None` if somebody has it.
    pub(crate) fn hold(&self) -> Result<Option<Held>> {
        let mut maker = fs::DirBuilder::new();
        maker.recursive(true).mode(0o700);
        maker
            .create(&self.directory)
            .with_context(|| format!("cannot make the directory {}", self.directory.display()))?;
        let mut lock = self.open_lock()?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the directory"),
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| write!(lock, "{}", std::process::id()))
            .context("cannot write the lock")?;
        Ok(Some(Held { _lock: lock }))
    }

    /// Waits until nobody runs it any more.
    pub(crate) fn wait_until_free(&self) -> Result<()> {
        self.open_lock()?.lock().context("cannot wait for the instance to stop")
    }

    fn open_lock(&self) -> Result<File> {
        let path = self.directory.join("lock");
        let opened = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path);
        opened.with_context(|| format!("cannot open {}", path.display()))
    }

    /// The process that runs it, if one does.
    pub(crate) fn runner(&self) -> Result<Option<i32>> {
        if !self.exists() {
            return Ok(None);
        }
        let mut lock = self.open_lock()?;
        match lock.try_lock() {
            Ok(()) => return Ok(None),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error).context("cannot look at the lock"),
        }
        let mut process = String::new();
        lock.read_to_string(&mut process).context("cannot read the lock")?;
        let Ok(process) = process.trim().parse() else {
            bail!("the lock of {} names no process", self.directory.display())
        };
        Ok(Some(process))
    }

    /// The port that it had the last time, so that clients find it again.
    pub(crate) fn last_port(&self) -> Option<u16> {
        let port = fs::read_to_string(self.directory.join("port")).ok()?;
        port.trim().parse().ok()
    }

    pub(crate) fn remember_port(&self, port: u16) -> Result<()> {
        fs::write(self.directory.join("port"), port.to_string()).context("cannot remember the port")
    }

    /// The addresses that it had the last time: those of services are part of its data.
    pub(crate) fn last_ranges(&self) -> Result<Option<Ranges>> {
        let path = self.directory.join("ranges");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let ranges = serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
        Ok(Some(ranges))
    }

    pub(crate) fn remember_ranges(&self, ranges: &Ranges) -> Result<()> {
        let text = serde_json::to_string(ranges).context("cannot write down the ranges of addresses")?;
        fs::write(self.directory.join("ranges"), text).context("cannot remember the ranges of addresses")
    }

    /// The machine that this instance is.
    pub(crate) fn machine(&self, nodes: usize, simulated: Option<SimulatedConfig>) -> MachineConfig {
        let nodes = (0..nodes).map(|number| NodeConfig {
            zone: Some(format!(
                "zone-{}",
                char::from(b'a' + u8::try_from(number % 26).expect("26 fits"))
            )),
            ..NodeConfig::new(format!("node-{}", number + 1))
        });
        let given = rootless::inside().and_then(|inside| inside.cgroup);
        MachineConfig {
            nodes: nodes.collect(),
            simulated,
            cgroup_parent: given.unwrap_or_else(|| PathBuf::from("/")),
            ..MachineConfig::new(&self.directory, self.name())
        }
    }

    /// Removes the directory and all that is in it.
    pub(crate) fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.directory).with_context(|| format!("cannot remove {}", self.directory.display()))
    }
}

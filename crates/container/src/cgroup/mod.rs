//! Control groups: where the processes of a pod are found, limited, frozen, counted and killed.
//!
//! Kernels have two kinds, and machines mount one, the other or both side by side. A group is a path that exists in
//! every hierarchy that is mounted; what is written where depends on which hierarchy has the controller.

mod limits;
mod stats;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

pub use stats::Stats;

use crate::error::{Attempt, Error, Result};

/// The hierarchies that are mounted.
#[derive(Debug, Clone)]
pub(crate) struct Hierarchies {
    /// One a mount point of version 1, with the controllers it has; named ones have none.
    legacy: Vec<Legacy>,
    /// The mount point of version 2.
    unified: Option<PathBuf>,
    /// Whether limits that cannot be set are passed over, because the controllers are not ours to have.
    lenient: bool,
}

#[derive(Debug, Clone)]
struct Legacy {
    mount: PathBuf,
    controllers: Vec<String>,
}

/// A group in all hierarchies.
#[derive(Debug, Clone)]
pub(crate) struct Group<'a> {
    hierarchies: &'a Hierarchies,
    /// Without a leading slash.
    path: PathBuf,
}

impl Hierarchies {
    /// Finds them in this process's table of mounts.
    pub(crate) fn find() -> Result<Self> {
        let table = fs::read_to_string("/proc/self/mountinfo")
            .attempt(|| "read the table of mounts in /proc/self/mountinfo")?;
        Ok(Self {
            lenient: crate::host::in_user_namespace(),
            ..Self::parse(&table)
        })
    }

    fn parse(table: &str) -> Self {
        let mut found = Self {
            legacy: Vec::new(),
            unified: None,
            lenient: false,
        };
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let Some(mount) = left.split(' ').nth(4).map(PathBuf::from) else {
                continue;
            };
            // A bind mount of a part of a hierarchy, as another container manager makes them, is not the hierarchy.
            if left.split(' ').nth(3) != Some("/") || !mount.starts_with("/sys/fs/cgroup") {
                continue;
            }
            let mut right = right.split(' ');
            match (right.next(), right.nth(1)) {
                (Some("cgroup2"), _) if found.unified.is_none() => found.unified = Some(mount),
                (Some("cgroup"), Some(options)) => {
                    let controllers = options
                        .split(',')
                        .filter(|option| !matches!(*option, "rw" | "ro" | "xattr") && !option.contains('='))
                        .map(str::to_owned)
                        .collect();
                    found.legacy.push(Legacy { mount, controllers });
                }
                _ => {}
            }
        }
        found
    }

    /// The group at `path`, whether or not it exists.
    pub(crate) fn group(&self, path: &Path) -> Group<'_> {
        let path = path.strip_prefix("/").unwrap_or(path).to_owned();
        Group {
            hierarchies: self,
            path,
        }
    }

    /// The directory of a group of version 2, if that has all controllers.
    pub(crate) fn unified_directory(&self, group: &Path) -> Option<PathBuf> {
        let mount = self.unified.as_ref().filter(|_| self.is_unified())?;
        Some(mount.join(group.strip_prefix("/").unwrap_or(group)))
    }

    /// Whether version 2 has the controllers, and not version 1.
    fn is_unified(&self) -> bool {
        self.legacy.iter().all(|legacy| legacy.controllers.is_empty())
    }
}

impl Group<'_> {
    /// The group's directory that has `controller`.
    fn with(&self, controller: &str) -> Option<Place> {
        self.hierarchies
            .legacy
            .iter()
            .find(|legacy| legacy.controllers.iter().any(|has| has == controller))
            .map(|legacy| Place::Legacy(legacy.mount.join(&self.path)))
            .or_else(|| self.unified_directory().map(Place::Unified))
    }

    fn unified_directory(&self) -> Option<PathBuf> {
        self.hierarchies.unified.as_ref().map(|mount| mount.join(&self.path))
    }

    fn directories(&self) -> impl Iterator<Item = PathBuf> {
        let legacy = self.hierarchies.legacy.iter().map(|legacy| &legacy.mount);
        legacy
            .chain(&self.hierarchies.unified)
            .map(|mount| mount.join(&self.path))
    }

    /// What a container sees of it below `/sys/fs/cgroup`: one directory a name, or a single one without a name. Beside
    /// version 1, version 2 is left out, as by other runtimes: who sees it looks for its limits there, in vain.
    pub(crate) fn views(&self) -> Vec<(String, PathBuf)> {
        if self.hierarchies.is_unified() {
            return self
                .unified_directory()
                .map(|directory| (String::new(), directory))
                .into_iter()
                .collect();
        }
        let legacy = self.hierarchies.legacy.iter().flat_map(|legacy| {
            let directory = legacy.mount.join(&self.path);
            let names = legacy.controllers.iter().cloned();
            names.map(move |name| (name, directory.clone()))
        });
        legacy.collect()
    }

    /// Makes it, and its parents, everywhere.
    pub(crate) fn create(&self) -> Result<()> {
        for legacy in &self.hierarchies.legacy {
            let directory = legacy.mount.join(&self.path);
            fs::create_dir_all(&directory).attempt(|| format!("make the cgroup {}", directory.display()))?;
            if legacy.controllers.iter().any(|controller| controller == "cpuset") {
                inherit_cpuset(&legacy.mount, &self.path)?;
            }
        }
        if let Some(mount) = &self.hierarchies.unified {
            let directory = mount.join(&self.path);
            fs::create_dir_all(&directory).attempt(|| format!("make the cgroup {}", directory.display()))?;
            if self.hierarchies.is_unified() {
                delegate_controllers(mount, &self.path);
            }
        }
        Ok(())
    }

    /// Moves this process into it, in the hierarchies that have no controllers of ours: a launcher must not count
    /// against the limits of what it launches.
    pub(crate) fn join_without_limits(&self) -> Result<()> {
        let unlimited = self
            .hierarchies
            .legacy
            .iter()
            .filter(|legacy| legacy.controllers.is_empty());
        let unified = self
            .hierarchies
            .unified
            .iter()
            .filter(|_| !self.hierarchies.is_unified());
        for mount in unlimited.map(|legacy| &legacy.mount).chain(unified) {
            join(&mount.join(&self.path))?;
        }
        Ok(())
    }

    /// Moves this process into it.
    pub(crate) fn join(&self) -> Result<()> {
        self.directories().try_for_each(|directory| join(&directory))
    }

    /// The processes in it and in the groups below it.
    pub(crate) fn processes(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        for directory in self.directories() {
            collect_processes(&directory, &mut found);
        }
        found
    }

    /// Sends `signal` to every process in it and below.
    pub(crate) fn signal(&self, signal: Signal) {
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills every process in it and below, and waits until they are gone. Blocks for up to `patience`.
    pub(crate) fn kill(&self, patience: Duration) -> Result<()> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(200);
        loop {
            if let Some(directory) = self.unified_directory() {
                let _ = fs::write(directory.join("cgroup.kill"), "1");
            }
            self.signal(Signal::KILL);
            // A frozen process dies only once it is thawed.
            let _ = self.thaw();
            let left = self.processes();
            if left.is_empty() {
                return Ok(());
            }
            if start.elapsed() >= patience {
                return Err(Error::Deadline {
                    attempted: format!("kill the processes {left:?} of cgroup {}", self.path.display()),
                    after: patience,
                });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Removes it and the groups below it. Its processes are gone.
    pub(crate) fn remove(&self, patience: Duration) -> Result<()> {
        let start = Instant::now();
        for directory in self.directories() {
            // Processes that have just been reaped can hold a group for a moment.
            while let Err(error) = remove_tree(&directory) {
                if start.elapsed() >= patience {
                    return Err(error).attempt(|| format!("remove the cgroup {}", directory.display()));
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Stops every process in it and below, until [`Group::thaw`]: not at once, but as soon as each can be stopped.
    pub(crate) fn freeze(&self) -> Result<()> {
        match self.with("freezer") {
            Some(Place::Legacy(directory)) => write(&directory.join("freezer.state"), "FROZEN"),
            Some(Place::Unified(directory)) => write(&directory.join("cgroup.freeze"), "1"),
            None => Err(limits::unavailable("freezer")),
        }
    }

    /// Undoes [`Group::freeze`].
    pub(crate) fn thaw(&self) -> Result<()> {
        match self.with("freezer") {
            Some(Place::Legacy(directory)) => write(&directory.join("freezer.state"), "THAWED"),
            Some(Place::Unified(directory)) => write(&directory.join("cgroup.freeze"), "0"),
            None => Ok(()),
        }
    }
}

fn write(file: &Path, word: &str) -> Result<()> {
    fs::write(file, word).attempt(|| format!("write {word} to {}", file.display()))
}

/// A directory of a group, and which rules it follows.
enum Place {
    Legacy(PathBuf),
    Unified(PathBuf),
}

fn join(directory: &Path) -> Result<()> {
    let file = directory.join("cgroup.procs");
    fs::write(&file, "0").attempt(|| format!("join the cgroup {}", file.display()))
}

fn collect_processes(directory: &Path, found: &mut BTreeSet<i32>) {
    if let Ok(text) = fs::read_to_string(directory.join("cgroup.procs")) {
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    for child in children(directory) {
        collect_processes(&child, found);
    }
}

fn children(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
}

fn remove_tree(directory: &Path) -> io::Result<()> {
    for child in children(directory) {
        remove_tree(&child)?;
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A new group of the first version's `cpuset` has neither processors nor memory, and takes no process until it does.
fn inherit_cpuset(mount: &Path, path: &Path) -> Result<()> {
    let mut parent = mount.to_owned();
    for name in path {
        let child = parent.join(name);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let current =
                fs::read_to_string(child.join(file)).attempt(|| format!("read {file} of {}", child.display()))?;
            if current.trim().is_empty() {
                fs::read_to_string(parent.join(file))
                    .and_then(|value| fs::write(child.join(file), value.trim()))
                    .attempt(|| format!("set {file} of {}", child.display()))?;
            }
        }
        parent = child;
    }
    Ok(())
}

/// Hands every controller down to the group at `path`. One that cannot be handed down shows where it is needed.
fn delegate_controllers(mount: &Path, path: &Path) {
    let mut parent = mount.to_owned();
    for name in path {
        let available = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
        for controller in available.split_whitespace() {
            let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        parent.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found_side_by_side() {
        let found = Hierarchies::parse(
            "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
             31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
             32 30 0:28 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,xattr,name=systemd\n\
             33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
             34 25 0:27 /docker/x /elsewhere rw - cgroup cgroup rw,cpu\n",
        );
        assert_eq!(found.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(found.legacy.len(), 2);
        assert_eq!(found.legacy[0].controllers, ["cpu", "cpuacct"]);
        assert!(found.legacy[1].controllers.is_empty());
        assert!(!found.is_unified());
        assert!(matches!(
            found.group(Path::new("/a")).with("memory"),
            Some(Place::Unified(_))
        ));
        assert!(matches!(
            found.group(Path::new("/a")).with("cpu"),
            Some(Place::Legacy(_))
        ));
        let views = found.group(Path::new("/a")).views();
        let names: Vec<_> = views.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["cpu", "cpuacct"],
            "a container looks for its limits in version 1"
        );
    }

    #[test]
    fn version_two_alone_is_unified() {
        let found = Hierarchies::parse("30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        assert!(found.is_unified());
    }
}

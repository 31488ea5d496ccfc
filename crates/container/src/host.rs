//! What this machine lacks to run containers.

use std::{collections::BTreeSet, env, fmt, fs, path::PathBuf};

use crate::rootless::{self, Stay};

/// Something that is missing. Its text says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// We are not root, and not in namespaces of our own in which we would be: see [`rootless`](crate::rootless).
    Root,
    /// Plain users may not make namespaces here.
    UserNamespaces,
    /// The programs that give a plain user's namespaces their ids.
    MappingPrograms,
    /// The user has no subordinate ids, for the users in images; by name.
    SubordinateIds(String),
    /// Nobody gives a plain user a control group.
    Delegation,
    /// No cgroups are mounted at `/sys/fs/cgroup`.
    Cgroups,
    /// A cgroup controller; limits that need it are refused.
    Controller(String),
    /// The kernel has no overlay file system.
    Overlay,
    /// The kernel has no namespaces of this kind.
    Namespace(String),
}

impl Missing {
    /// Whether no container can run without it.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Controller(_))
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => write!(f, "root: run it with sudo"),
            Self::UserNamespaces => write!(
                f,
                "namespaces for plain users: see the settings user.max_user_namespaces, kernel.unprivileged_userns_clone \
                 and kernel.apparmor_restrict_unprivileged_userns"
            ),
            Self::MappingPrograms => write!(f, "newuidmap and newgidmap: apt-get install uidmap"),
            Self::SubordinateIds(user) => write!(
                f,
                "subordinate ids for {user}: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
            ),
            Self::Delegation => write!(
                f,
                "a control group of version 2 that belongs to the user: log in to a session of systemd, or be given one"
            ),
            Self::Cgroups => write!(f, "cgroups: mount them at /sys/fs/cgroup"),
            Self::Controller(name) => write!(f, "the cgroup controller {name}: limits that need it are refused"),
            Self::Overlay => write!(f, "the overlay file system: run modprobe overlay"),
            Self::Namespace(kind) => write!(f, "namespaces of the kind {kind}: the kernel was built without them"),
        }
    }
}

/// Everything that this machine lacks.
pub fn missing() -> Vec<Missing> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut found = Vec::new();
    if !rustix::process::geteuid().is_root() {
        found.push(Missing::Root);
    }
    // A module that is not loaded yet shows only after it was asked for, which is what a mount does.
    let loadable = fs::exists(format!("/lib/modules/{}", release())).unwrap_or(false);
    if !read("/proc/filesystems")
        .lines()
        .any(|line| line.ends_with("\toverlay"))
        && !loadable
    {
        found.push(Missing::Overlay);
    }
    for kind in ["cgroup", "ipc", "mnt", "net", "pid", "uts"] {
        if !fs::exists(format!("/proc/self/ns/{kind}")).unwrap_or(false) {
            found.push(Missing::Namespace(kind.to_owned()));
        }
    }
    let given = rootless::inside().and_then(|inside| inside.cgroup).unwrap_or_default();
    let given = given.strip_prefix("/").unwrap_or(&given).join("cgroup.controllers");
    let given = PathBuf::from("/sys/fs/cgroup").join(given);
    match controllers(
        &read("/proc/self/mountinfo"),
        &fs::read_to_string(given).unwrap_or_default(),
    ) {
        None => found.push(Missing::Cgroups),
        Some(present) => {
            let needed = ["cpu", "cpuset", "memory", "pids"].into_iter();
            found.extend(
                needed
                    .filter(|name| !present.contains(*name))
                    .map(|name| Missing::Controller(name.to_owned())),
            );
        }
    }
    found
}

/// What keeps a plain user from running containers here.
pub(crate) fn missing_for_user(stay: Stay) -> Vec<Missing> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut found = Vec::new();
    let allowed = may_make_namespaces(
        &read("/proc/sys/user/max_user_namespaces"),
        &read("/proc/sys/kernel/unprivileged_userns_clone"),
        &read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
    );
    if !allowed {
        found.push(Missing::UserNamespaces);
    }
    if program("newuidmap").is_none() || program("newgidmap").is_none() {
        found.push(Missing::MappingPrograms);
    }
    if ["/etc/subuid", "/etc/subgid"]
        .iter()
        .any(|file| subordinate_ids(file).is_none())
    {
        found.push(Missing::SubordinateIds(user_name()));
    }
    if stay == Stay::Lasting && !rootless::can_be_given_a_group() {
        found.push(Missing::Delegation);
    }
    found
}

/// Whether user ids are not those of the machine.
pub(crate) fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().ne(["0", "0", "4294967295"])
}

/// Where a program is.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

fn user_name() -> String {
    let own = rustix::process::getuid().as_raw();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse::<u32>().ok()? == own).then(|| name.to_owned())
    });
    found
        .or_else(|| env::var("USER").ok())
        .unwrap_or_else(|| own.to_string())
}

/// The first of the user's subordinate ids, and how many there are.
pub(crate) fn subordinate_ids(file: &str) -> Option<(u32, u32)> {
    let table = fs::read_to_string(file).ok()?;
    ids_of(&table, &user_name(), rustix::process::getuid().as_raw())
}

fn ids_of(table: &str, name: &str, id: u32) -> Option<(u32, u32)> {
    let id = id.to_string();
    let ranges = table.lines().filter_map(|line| {
        let (user, range) = line.split_once(':')?;
        let (first, count) = range.split_once(':')?;
        let range = (first.trim().parse().ok()?, count.trim().parse().ok()?);
        (user == name || user == id).then_some(range)
    });
    ranges.max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 0)
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Empty texts are settings that this kernel does not have.
fn may_make_namespaces(most: &str, clone: &str, apparmor: &str) -> bool {
    most.trim() != "0" && clone.trim() != "0" && apparmor.trim() != "1"
}

/// None if no cgroups are mounted.
fn controllers<'a>(mounts: &'a str, unified: &'a str) -> Option<BTreeSet<&'a str>> {
    let mut mounted = false;
    let mut found: BTreeSet<_> = unified.split_whitespace().collect();
    for line in mounts.lines().filter(|line| line.contains(" /sys/fs/cgroup")) {
        let Some((_, right)) = line.split_once(" - ") else {
            continue;
        };
        let mut right = right.split(' ');
        match (right.next(), right.nth(1)) {
            (Some("cgroup"), Some(options)) => {
                mounted = true;
                found.extend(options.split(','));
            }
            (Some("cgroup2"), _) => mounted = true,
            _ => {}
        }
    }
    mounted.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_of_both_versions_are_found() {
        let mounts = "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert!(controllers(mounts, "").unwrap().contains("memory"));
        let mounts = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert!(controllers(mounts, "cpu pids\n").unwrap().contains("pids"));
        assert_eq!(controllers("1 2 0:1 / / rw - ext4 x rw\n", ""), None);
    }

    #[test]
    fn each_of_three_settings_keeps_a_plain_user_from_namespaces() {
        assert!(may_make_namespaces("15000\n", "", ""));
        assert!(!may_make_namespaces("0\n", "", ""));
        assert!(!may_make_namespaces("15000\n", "0\n", ""));
        assert!(!may_make_namespaces("15000\n", "1\n", "1\n"));
    }

    #[test]
    fn a_plain_user_is_told_what_to_do() {
        assert!(Missing::Root.to_string().contains("sudo"));
        assert!(Missing::MappingPrograms.to_string().contains("apt-get install uidmap"));
        assert!(Missing::SubordinateIds("me".to_owned()).to_string().ends_with(" me"));
        assert!(Missing::Root.is_fatal());
        assert!(!Missing::Controller("pids".to_owned()).is_fatal());
    }

    #[test]
    fn the_largest_range_of_the_user_is_taken() {
        let table = "other:1:9\nme:100000:65536\nme:300000:7\n";
        assert_eq!(ids_of(table, "me", 1000), Some((100_000, 65_536)));
        assert_eq!(ids_of("1000:5:6\n", "me", 1000), Some((5, 6)));
        assert_eq!(ids_of(table, "nobody", 65_534), None);
    }

    #[test]
    fn root_is_missing_exactly_for_those_who_are_not() {
        let without_root = missing().contains(&Missing::Root);
        assert_eq!(without_root, !rustix::process::geteuid().is_root());
    }
}

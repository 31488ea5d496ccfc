//! What this machine lacks to run containers.

use std::{collections::BTreeSet, fmt, fs};

/// Something that is missing. Its text says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// We are not root. Namespaces of users would give a plain user containers that all belong to it; whether this
    /// machine has them is told apart.
    Root {
        /// Whether a plain user may make namespaces here.
        user_namespaces: bool,
    },
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
            Self::Root { user_namespaces: true } => {
                write!(
                    f,
                    "root: run it with sudo; namespaces of a plain user could not change owners of files or limit memory"
                )
            }
            Self::Root { user_namespaces: false } => {
                write!(
                    f,
                    "root: run it with sudo; a plain user may not even make namespaces on this machine"
                )
            }
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
        let user_namespaces = may_make_namespaces(
            &read("/proc/sys/user/max_user_namespaces"),
            &read("/proc/sys/kernel/unprivileged_userns_clone"),
            &read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        );
        found.push(Missing::Root { user_namespaces });
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
    match controllers(
        &read("/proc/self/mountinfo"),
        &read("/sys/fs/cgroup/cgroup.controllers"),
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
        let text = Missing::Root { user_namespaces: true }.to_string();
        assert!(text.contains("sudo"));
        assert!(Missing::Root { user_namespaces: true }.is_fatal());
        assert!(!Missing::Controller("pids".to_owned()).is_fatal());
    }

    #[test]
    fn root_is_missing_exactly_for_those_who_are_not() {
        let without_root = missing().iter().any(|what| matches!(what, Missing::Root { .. }));
        assert_eq!(without_root, !rustix::process::geteuid().is_root());
    }
}

//! Which capabilities a container has.

use std::{collections::BTreeSet, fs};

use crate::{
    Capabilities,
    error::{Error, Result},
};

/// By their number in the kernel.
const NAMES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// What a container has unless told otherwise; the set that other runtimes have.
const DEFAULT: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// The capabilities of a container, as far as this process has them to give.
pub(super) fn chosen(wanted: &Capabilities, privileged: bool) -> Result<BTreeSet<String>> {
    let mask = fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(u64::MAX);
    choose(wanted, privileged, mask)
}

/// `mask` has a bit for each one that can be given.
fn choose(wanted: &Capabilities, privileged: bool, mask: u64) -> Result<BTreeSet<String>> {
    let available = |name: &&str| {
        NAMES
            .iter()
            .position(|known| known == name)
            .is_some_and(|bit| mask >> bit & 1 == 1)
    };
    let all = || {
        NAMES
            .iter()
            .filter(|name| available(name))
            .map(|name| (*name).to_owned())
    };
    if privileged {
        return Ok(all().collect());
    }
    let (add, add_all) = named(&wanted.add, "capabilities.add")?;
    let (drop, drop_all) = named(&wanted.drop, "capabilities.drop")?;
    let mut chosen: BTreeSet<String> = match (add_all, drop_all) {
        (true, _) => all().collect(),
        (false, true) => BTreeSet::new(),
        (false, false) => DEFAULT
            .iter()
            .filter(|name| available(name))
            .map(|name| (*name).to_owned())
            .collect(),
    };
    for name in drop {
        chosen.remove(&name);
    }
    chosen.extend(add.into_iter().filter(|name| available(&name.as_str())));
    Ok(chosen)
}

/// Full names, and whether `ALL` is among them.
fn named(names: &[String], field: &str) -> Result<(Vec<String>, bool)> {
    let mut found = Vec::new();
    let mut all = false;
    for name in names {
        let upper = name.to_ascii_uppercase();
        let full = if upper.starts_with("CAP_") {
            upper
        } else {
            format!("CAP_{upper}")
        };
        if full == "CAP_ALL" {
            all = true;
        } else if NAMES.contains(&full.as_str()) {
            found.push(full);
        } else {
            return Err(Error::Invalid {
                field: field.to_owned(),
                reason: format!("there is no capability {name}"),
            });
        }
    }
    Ok((found, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_of(add: &[&str], drop: &[&str]) -> BTreeSet<String> {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        choose(
            &Capabilities {
                add: list(add),
                drop: list(drop),
            },
            false,
            u64::MAX,
        )
        .unwrap()
    }

    #[test]
    fn names_are_understood_with_and_without_their_prefix() {
        assert!(
            chosen_of(&["SYS_TIME", "cap_net_admin"], &[])
                .is_superset(&BTreeSet::from(["CAP_SYS_TIME".to_owned(), "CAP_NET_ADMIN".to_owned()]))
        );
        assert!(!chosen_of(&[], &["CHOWN"]).contains("CAP_CHOWN"));
    }

    #[test]
    fn what_is_added_survives_that_all_are_dropped() {
        assert_eq!(
            chosen_of(&["CHOWN"], &["ALL"]),
            BTreeSet::from(["CAP_CHOWN".to_owned()])
        );
        assert!(chosen_of(&[], &["ALL"]).is_empty());
        assert!(!chosen_of(&["ALL"], &["SYS_ADMIN"]).contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn nothing_is_given_that_we_do_not_have() {
        let sys_resource = 1 << 24;
        let capabilities = choose(&Capabilities::default(), true, !sys_resource).unwrap();
        assert!(!capabilities.contains("CAP_SYS_RESOURCE"));
        assert!(capabilities.contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn a_capability_that_does_not_exist_is_named() {
        let wanted = Capabilities {
            add: vec!["FLY".to_owned()],
            drop: Vec::new(),
        };
        assert!(
            choose(&wanted, false, u64::MAX)
                .unwrap_err()
                .to_string()
                .contains("FLY")
        );
    }
}

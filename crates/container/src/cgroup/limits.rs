//! Writing limits.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{Group, Place};
use crate::{
    Resources,
    error::{Attempt, Error, Result},
};

const DEFAULT_PERIOD_MICROS: u64 = 100_000;

impl Group<'_> {
    /// Sets what `resources` says, and lifts the limits of which it says nothing. The group exists. A plain user is not
    /// given every controller: there, what cannot be limited is not, of which its owner was warned.
    pub(crate) fn limit(&self, resources: &Resources) -> Result<()> {
        if self.hierarchies.lenient {
            let given = self.given_controllers();
            return self.limit_what_can_be(&Resources {
                memory_limit_bytes: resources.memory_limit_bytes.filter(|_| given.contains("memory")),
                cpu_shares: resources.cpu_shares.filter(|_| given.contains("cpu")),
                cpu_quota_micros: resources.cpu_quota_micros.filter(|_| given.contains("cpu")),
                pids_limit: resources.pids_limit.filter(|_| given.contains("pids")),
                cpuset_cpus: resources.cpuset_cpus.clone().filter(|_| given.contains("cpuset")),
                ..resources.clone()
            });
        }
        self.limit_what_can_be(resources)
    }

    fn given_controllers(&self) -> BTreeSet<String> {
        let directory = self.unified_directory().unwrap_or_default();
        let given = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
        given.split_whitespace().map(str::to_owned).collect()
    }

    fn limit_what_can_be(&self, resources: &Resources) -> Result<()> {
        self.limit_memory(resources)?;
        self.limit_cpu(resources)?;
        if let Some(place) = self.with("pids") {
            let value = resources
                .pids_limit
                .map_or_else(|| "max".to_owned(), |limit| limit.to_string());
            set(place.directory(), "pids.max", &value, resources.pids_limit.is_some())?;
        } else if resources.pids_limit.is_some() {
            return Err(unavailable("pids"));
        }
        if let Some(cpus) = &resources.cpuset_cpus {
            let place = self.with("cpuset").ok_or_else(|| unavailable("cpuset"))?;
            set(place.directory(), "cpuset.cpus", cpus, true)?;
        }
        Ok(())
    }

    fn limit_memory(&self, resources: &Resources) -> Result<()> {
        let wanted = resources.memory_limit_bytes;
        match self.with("memory") {
            Some(Place::Legacy(directory)) => {
                let value = wanted.map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
                // Memory with swap may never be less than memory alone, so the order depends on which way it goes;
                // kernels without swap accounting have only the one file.
                let both = "memory.memsw.limit_in_bytes";
                let swap = directory.join(both).exists();
                if swap && set(&directory, both, &value, true).is_ok() {
                    set(&directory, "memory.limit_in_bytes", &value, true)?;
                } else {
                    set(&directory, "memory.limit_in_bytes", &value, wanted.is_some())?;
                    if swap {
                        set(&directory, both, &value, wanted.is_some())?;
                    }
                }
                Ok(())
            }
            Some(Place::Unified(directory)) => {
                let value = wanted.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
                set(&directory, "memory.max", &value, wanted.is_some())?;
                if directory.join("memory.swap.max").exists() {
                    let swap = if wanted.is_some() { "0" } else { "max" };
                    set(&directory, "memory.swap.max", swap, wanted.is_some())?;
                }
                Ok(())
            }
            None if wanted.is_some() => Err(unavailable("memory")),
            None => Ok(()),
        }
    }

    fn limit_cpu(&self, resources: &Resources) -> Result<()> {
        let needed = resources.cpu_shares.is_some() || resources.cpu_quota_micros.is_some();
        let period = resources.cpu_period_micros.unwrap_or(DEFAULT_PERIOD_MICROS);
        match self.with("cpu") {
            Some(Place::Legacy(directory)) => {
                let shares = resources.cpu_shares.unwrap_or(1024).max(2);
                set(&directory, "cpu.shares", &shares.to_string(), needed)?;
                let quota = resources
                    .cpu_quota_micros
                    .map_or_else(|| "-1".to_owned(), |quota| quota.to_string());
                let limited = resources.cpu_quota_micros.is_some();
                if limited {
                    set(&directory, "cpu.cfs_period_us", &period.to_string(), true)?;
                }
                set(&directory, "cpu.cfs_quota_us", &quota, limited)
            }
            Some(Place::Unified(directory)) => {
                let weight = resources.cpu_shares.map_or(100, weight_of_shares);
                set(
                    &directory,
                    "cpu.weight",
                    &weight.to_string(),
                    resources.cpu_shares.is_some(),
                )?;
                let quota = resources
                    .cpu_quota_micros
                    .map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                set(
                    &directory,
                    "cpu.max",
                    &format!("{quota} {period}"),
                    resources.cpu_quota_micros.is_some(),
                )
            }
            None if needed => Err(unavailable("cpu")),
            None => Ok(()),
        }
    }

    /// Forbids every device but `allowed`, lines such as `c 1:3 rwm`. Version 2 has no such file; there, the missing
    /// capability to make device nodes is what protects the host's.
    pub(crate) fn allow_devices(&self, allowed: &[String]) -> Result<()> {
        let Some(Place::Legacy(directory)) = self.with("devices") else {
            return Ok(());
        };
        set(&directory, "devices.deny", "a", true)?;
        allowed
            .iter()
            .try_for_each(|line| set(&directory, "devices.allow", line, true))
    }

    /// Whether a list of allowed devices is obeyed here.
    pub(crate) fn guards_devices(&self) -> bool {
        matches!(self.with("devices"), Some(Place::Legacy(_)))
    }
}

impl Place {
    fn directory(&self) -> &PathBuf {
        match self {
            Self::Legacy(directory) | Self::Unified(directory) => directory,
        }
    }
}

/// Shares run from 2 to 262144 and weights from 1 to 10000; this is the line between them that others use too, so that
/// pods beside ours are weighed alike.
fn weight_of_shares(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// Writes a setting. One that only lifts a limit may be missing.
fn set(directory: &Path, file: &str, value: &str, needed: bool) -> Result<()> {
    let path = directory.join(file);
    match fs::write(&path, value) {
        Err(_) if !needed => Ok(()),
        other => other.attempt(|| format!("write {value} to {}", path.display())),
    }
}

pub(super) fn unavailable(controller: &str) -> Error {
    Error::Invalid {
        field: "resources".to_owned(),
        reason: format!("this machine has no cgroup controller {controller}; mount it, or leave the limit out"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_weights_from_end_to_end() {
        assert_eq!(weight_of_shares(2), 1);
        assert_eq!(weight_of_shares(262_144), 10_000);
        assert_eq!(weight_of_shares(1024), 39);
    }
}

//! Reading what has been used.

use std::{fs, path::Path};

use super::{Group, Place};

/// What a container or a pod has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Processor time since the start, in nanoseconds.
    pub cpu_nanos: u64,
    /// All memory that counts against the limit, caches included.
    pub memory_usage_bytes: u64,
    /// Memory without caches that the kernel could drop at once.
    pub memory_working_set_bytes: u64,
    /// Memory that belongs to no file.
    pub memory_rss_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
}

impl Group<'_> {
    /// What has been used. What this machine does not count is 0.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        match self.with("cpuacct") {
            Some(Place::Legacy(directory)) => stats.cpu_nanos = number(&directory, "cpuacct.usage"),
            Some(Place::Unified(directory)) => {
                stats.cpu_nanos = field(&directory, "cpu.stat", "usage_usec").saturating_mul(1000);
            }
            None => {}
        }
        let (usage, inactive_file, rss) = match self.with("memory") {
            Some(Place::Legacy(directory)) => (
                number(&directory, "memory.usage_in_bytes"),
                field(&directory, "memory.stat", "total_inactive_file"),
                field(&directory, "memory.stat", "total_rss"),
            ),
            Some(Place::Unified(directory)) => (
                number(&directory, "memory.current"),
                field(&directory, "memory.stat", "inactive_file"),
                field(&directory, "memory.stat", "anon"),
            ),
            None => (0, 0, 0),
        };
        stats.memory_usage_bytes = usage;
        stats.memory_working_set_bytes = usage.saturating_sub(inactive_file);
        stats.memory_rss_bytes = rss;
        if let Some(Place::Legacy(directory) | Place::Unified(directory)) = self.with("pids") {
            stats.pids = number(&directory, "pids.current");
        }
        stats
    }

    /// How many processes the kernel has killed because the memory limit was reached.
    pub(crate) fn oom_kills(&self) -> u64 {
        match self.with("memory") {
            Some(Place::Legacy(directory)) => field(&directory, "memory.oom_control", "oom_kill"),
            Some(Place::Unified(directory)) => field(&directory, "memory.events", "oom_kill"),
            None => 0,
        }
    }
}

fn number(directory: &Path, file: &str) -> u64 {
    fs::read_to_string(directory.join(file))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// The number after `name` in a file of lines `name number`.
fn field(directory: &Path, file: &str, name: &str) -> u64 {
    fs::read_to_string(directory.join(file))
        .ok()
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
        })
        .unwrap_or(0)
}

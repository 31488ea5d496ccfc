//! How much there is of everything on this machine.

use std::{collections::BTreeMap, path::Path};

/// How many pods a node takes.
const PODS: u32 = 250;

/// What every node of this machine has: all share it, as they share the machine.
pub(crate) fn measure(directory: &Path) -> BTreeMap<String, String> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let memory = memory
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(1 << 20);
    let storage = rustix::fs::statvfs(directory).map_or(0, |disk| disk.f_blocks * disk.f_frsize);
    [
        ("cpu", processors.to_string()),
        ("memory", format!("{memory}Ki")),
        ("ephemeral-storage", format!("{}Ki", storage >> 10)),
        ("pods", PODS.to_string()),
        ("hugepages-1Gi", "0".to_owned()),
        ("hugepages-2Mi", "0".to_owned()),
    ]
    .map(|(name, amount)| (name.to_owned(), amount))
    .into()
}

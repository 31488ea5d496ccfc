//! What measurements of whole processes share.

use std::{env, fs, path::PathBuf};

/// The `moorline` binary: beside this one, built in the same profile.
pub(crate) fn binary() -> PathBuf {
    let own = env::current_exe().expect("this program knows where it is");
    own.with_file_name("moorline")
}

/// The resident memory of processes, in megabytes.
pub(crate) fn resident(processes: &[u32]) -> f64 {
    let kilobytes: f64 = processes
        .iter()
        .filter_map(|process| fs::read_to_string(format!("/proc/{process}/status")).ok())
        .filter_map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().trim_end_matches(" kB").parse::<f64>().ok()
        })
        .sum();
    kilobytes / 1e3
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

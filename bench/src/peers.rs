//! Peers written in Go: built from `bench/peers` where a Go toolchain is present, and run beside us.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// Runs one subcommand of the Go peers and returns the JSON object that it printed.
///
/// The error says why the peer could not run, in words fit for the report: a machine without Go still measures us.
pub(crate) fn go(arguments: &[&str]) -> Result<serde_json::Value, String> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    BUILT.get_or_init(build).clone()?;
    let output = Command::new(Path::new(SOURCES).join("peers"))
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("could not start the Go peer: {error}"))?;
    if !output.status.success() {
        return Err(format!("the Go peer {arguments:?} ended with {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("the Go peer printed no JSON: {error}"))
}

fn build() -> Result<(), String> {
    let built = Command::new("go")
        .args(["build", "-o", "peers", "."])
        .current_dir(SOURCES)
        .stdout(Stdio::null())
        .output()
        .map_err(|error| format!("no Go toolchain: {error}"))?;
    if built.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&built.stderr);
    Err(format!(
        "the Go peers do not build: {}",
        reason.lines().last().unwrap_or("no reason given")
    ))
}

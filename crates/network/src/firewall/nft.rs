//! Handing a script to `nft`.
//!
//! Pure-netlink crates were weighed: `rustables` is GPL, `nftnl` binds two C libraries, `netlink-packet-netfilter` has
//! neither NAT nor number generators. `nft` is what its own authors maintain against every kernel, and a script is
//! something a person can read when it is refused.

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use crate::{Error, Result};

/// Runs a script as one transaction.
pub(crate) fn run(table: &str, script: &str) -> Result<()> {
    if script.is_empty() {
        return Ok(());
    }
    let mut nft = spawn(&["-f", "-"])?;
    // A script that nft does not read to its end is told by its exit code.
    let _ = nft
        .stdin
        .take()
        .expect("stdin was asked for")
        .write_all(script.as_bytes());
    let output = nft.wait_with_output().map_err(Error::NftRun)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr)
        .lines()
        .take(6)
        .collect::<Vec<_>>()
        .join("; ");
    Err(Error::Nft {
        table: table.to_owned(),
        message,
    })
}

/// Removes the table; one that is gone is fine.
pub(crate) fn delete(table: &str) -> Result<()> {
    run(table, &format!("add table inet {table}\ndelete table inet {table}\n"))
}

fn spawn(arguments: &[&str]) -> Result<std::process::Child> {
    // Administrators' programs are not on every path, and ours may have been started with a short one.
    let mut missing = None;
    for program in ["nft", "/usr/sbin/nft", "/sbin/nft"] {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == ErrorKind::NotFound => missing = Some(error),
            Err(error) => return Err(Error::NftRun(error)),
        }
    }
    debug_assert!(missing.is_some());
    Err(Error::NftMissing)
}

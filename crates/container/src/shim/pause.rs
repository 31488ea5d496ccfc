//! The first process of a pod whose containers see each other's processes.

use std::{
    env,
    io::{self, Read},
    path::Path,
    process::Command,
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::signal::{SigSet, Signal},
};
use rustix::process::{WaitOptions, wait};

use super::{PAUSE, SELF};
use crate::{
    cgroup::Hierarchies,
    error::{Attempt, Result},
};

/// The word that tells the second of the two processes that it is the first of its namespace.
const FIRST: &str = "first";

/// Its group below the pod's; no id of a container begins like this.
const GROUP: &str = ".pause";

/// Starts the process that holds the namespace; when this has ended, the shim has inherited it.
pub(super) fn run() -> Result<()> {
    if env::args().nth(2).as_deref() == Some(FIRST) {
        return reap();
    }
    if let Some(cgroup) = env::args_os().nth(2) {
        Hierarchies::find()?.group(Path::new(&cgroup)).join()?;
    }
    unshare(CloneFlags::CLONE_NEWPID).attempt(|| "make a process namespace for the pod")?;
    let child = Command::new(SELF)
        .args([PAUSE, FIRST])
        .spawn()
        .attempt(|| "start the first process of the pod")?;
    // The shim reads the number from our standard output.
    let _ = io::Write::write_all(&mut io::stdout(), child.id().to_string().as_bytes());
    Ok(())
}

fn reap() -> Result<()> {
    let signals = SigSet::from(Signal::SIGCHLD);
    signals.thread_block().attempt(|| "block SIGCHLD")?;
    // Standard output is a pipe to the shim, which waits for its end.
    let null = std::fs::File::open("/dev/null").attempt(|| "open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).attempt(|| "close the standard output")?;
    drop(null);
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        signals.wait().attempt(|| "wait for SIGCHLD")?;
    }
}

/// Starts it from the shim and returns its process id.
pub(super) fn start(hierarchies: &Hierarchies, pod_cgroup: &Path) -> Result<u32> {
    // With the pod's containers, so that it is found and killed with them should the shim die.
    let cgroup = pod_cgroup.join(GROUP);
    hierarchies.group(&cgroup).create()?;
    let mut launcher = Command::new(SELF)
        .arg(PAUSE)
        .arg(&cgroup)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .attempt(|| "start the first process of the pod")?;
    let mut text = String::new();
    if let Some(mut output) = launcher.stdout.take() {
        output
            .read_to_string(&mut text)
            .attempt(|| "read the number of the pod's first process")?;
    }
    let status = launcher
        .wait()
        .attempt(|| "wait for the starter of the pod's first process")?;
    text.trim().parse().map_err(|_| crate::Error::Io {
        attempted: "start the first process of the pod".to_owned(),
        source: io::Error::other(format!("its starter ended with {status} and said {text:?}")),
    })
}

//! `moorline down`: ends an instance and its pods.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use moorline_node::{
    Machine,
    container::rootless::{self, Net, Stay},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    instance::{Instance, is_root},
    say,
};

/// How long an instance may take to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory of the instance [default: /var/lib/moorline for root, ~/.local/share/moorline for others]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Remove the directory as well: all objects, volumes and images
    #[arg(long)]
    purge: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let instance = Instance::at(arguments.data_dir.clone())?;
    if !instance.exists() {
        return say(&format!("there is nothing in {}", instance.directory().display()));
    }
    if !is_root() {
        // What is left is in the namespaces of its user, and files belong to the users of images.
        rootless::enter(instance.directory(), Stay::Passing, Net::Pods, Stdio::null())?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let was_running = runtime.block_on(end(&instance))?;
    let Some(held) = instance.hold()? else {
        bail!("another process has just started this instance")
    };
    let ended = runtime.block_on(Machine::purge_stopped(&instance.machine(0, None)));
    ended.context("cannot end the pods")?;
    rootless::release(instance.directory()).context("cannot give up the namespaces of the pods")?;
    if arguments.purge {
        instance.remove()?;
    }
    drop(held);
    let what = if was_running {
        "down"
    } else {
        "it was not running; what it had left is cleared away"
    };
    let kept = if arguments.purge {
        "nothing is kept".to_owned()
    } else {
        format!("its data is kept in {}", instance.directory().display())
    };
    say(&format!("{what}; {kept}"))
}

/// Ends the process that runs an instance; whether there was one.
async fn end(instance: &Instance) -> Result<bool> {
    let Some(process) = instance.runner()?.and_then(Pid::from_raw) else {
        return Ok(false);
    };
    kill_process(process, Signal::TERM).context("cannot tell the instance to end")?;
    let directory = instance.directory().to_owned();
    let wait = tokio::task::spawn_blocking(move || Instance::at(Some(directory))?.wait_until_free());
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(waited) => waited.context("waiting for the instance failed")??,
        Err(_) => kill_process(process, Signal::KILL).context("cannot kill the instance, which does not end")?,
    }
    Ok(true)
}

//! The process that keeps a pod, and how this executable becomes it.
//!
//! A shim is single-threaded and small: it polls, copies output into logs, reaps, and writes down how things ended.
//! What needs memory or can hang, libcontainer above all, happens in launchers that end when their work is done.

mod connection;
mod container;
mod dispositions;
mod ends;
mod pause;
mod pod;
mod requests;
mod serve;
mod trim;

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::fd::OwnedFd,
    path::PathBuf,
    process::ExitCode,
};

use rustix::io::fcntl_dupfd_cloexec;

use crate::{
    PodSpec,
    cgroup::Hierarchies,
    error::{Attempt, Result, chain},
    launch,
    state::{PodDir, read_json},
};

/// What this executable is called with to become something else. One word each, unlikely as a command of anybody.
pub(crate) const SHIM: &str = "__moorline-shim";
pub(crate) const LAUNCHER: &str = "__moorline-launcher";
pub(crate) const PAUSE: &str = "__moorline-pause";
pub(crate) const HOLDER: &str = "__moorline-holder";

/// This executable, also when its file has been replaced since it was started.
pub(crate) const SELF: &str = "/proc/self/exe";

/// Becomes a shim or a launcher, if that is what this process was started for. Call it first of all in `main`, before
/// there are threads, and end with the exit code that it returns.
#[must_use = "the process was started to be a shim or a launcher and must end with this exit code"]
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    let role = arguments.next()?;
    if !matches!(role.to_str()?, SHIM | LAUNCHER | PAUSE | HOLDER) {
        return None;
    }
    dispositions::reset();
    let result = match role.to_str()? {
        SHIM => run(arguments.collect()),
        LAUNCHER => launch::run(),
        PAUSE => pause::run(),
        HOLDER => crate::rootless::hold(),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is the pod's `shim.log`.
            let _ = writeln!(
                io::stderr(),
                "{} {}: {}",
                jiff::Timestamp::now(),
                role.display(),
                chain(&error)
            );
            ExitCode::FAILURE
        }
    })
}

/// Standard input is the listening socket, standard output the lock.
fn run(arguments: Vec<OsString>) -> Result<()> {
    let [pod_dir, instance_cgroup] = <[OsString; 2]>::try_from(arguments).map_err(|_| crate::Error::Invalid {
        field: "the arguments of a shim".to_owned(),
        reason: "it takes a pod's directory and a cgroup".to_owned(),
    })?;
    let listener = take_over(rustix::stdio::stdin(), "take over the socket")?;
    let lock = take_over(rustix::stdio::stdout(), "take over the lock")?;
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .attempt(|| "open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).attempt(|| "close the standard input")?;
    rustix::stdio::dup2_stdout(&null).attempt(|| "close the standard output")?;

    let dir = PodDir::new(PathBuf::from(pod_dir));
    let instance_cgroup = PathBuf::from(instance_cgroup);
    let mut lock = File::from(lock);
    lock.set_len(0)
        .and_then(|()| write!(lock, "{}", std::process::id()))
        .attempt(|| "write the process id into the lock")?;
    // The session is already our own when a supervisor started us.
    let _ = rustix::process::setsid();
    env::set_current_dir("/").attempt(|| "change to /")?;
    // Best effort: without the privilege the shim is as likely to be killed as anybody.
    let _ = fs::write("/proc/self/oom_score_adj", "-998");

    let signals = serve::block_signals()?;
    let spec: PodSpec = read_json(&dir.spec())?
        .ok_or(io::ErrorKind::NotFound)
        .attempt(|| "read the pod's specification")?;
    let hierarchies = Hierarchies::find()?;
    let setup = pod::set_up(&spec, &dir, &hierarchies, &instance_cgroup);
    let cgroup = instance_cgroup.join(spec.id.as_str());
    match setup {
        Ok(pause) => serve::Shim::new(dir, hierarchies, cgroup, pause, listener, signals).serve(),
        Err(error) => {
            serve::refuse(&listener, &chain(&error));
            Err(error)
        }
    }
}

fn take_over(fd: std::os::fd::BorrowedFd<'_>, attempted: &str) -> Result<OwnedFd> {
    fcntl_dupfd_cloexec(fd, 3).attempt(|| attempted)
}

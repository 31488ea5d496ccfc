//! Named network namespaces: made, entered, taken down.
//!
//! A namespace lives as long as a file that it is mounted on. Entering one is a matter of a thread, so whoever works
//! inside does it on a thread of its own, which ends there: a thread that has been elsewhere is never reused.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::on_file;
use crate::{Error, Result};

/// Where a thread finds the network namespace that it is in.
const OWN: &str = "/proc/thread-self/ns/net";

/// Makes a namespace, keeps it at `path` and runs `inside` in it.
pub(crate) fn create<T: Send>(path: &Path, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    File::create(path).map_err(on_file("cannot make", path))?;
    on_own_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|errno| on_file("cannot make a network namespace for", path)(errno.into()))?;
        mount(Some(OWN), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|errno| on_file("cannot mount a network namespace on", path)(errno.into()))?;
        inside()
    })
}

/// Runs `inside` in the namespace that is kept at `path`.
pub(crate) fn enter<T: Send>(path: &Path, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let namespace = File::open(path).map_err(on_file("cannot open", path))?;
    on_own_thread(|| {
        setns(&namespace, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| on_file("cannot enter the network namespace", path)(errno.into()))?;
        inside()
    })
}

/// Gives a namespace up. It goes away with the last process in it; a file that is gone is fine.
pub(crate) fn remove(path: &Path) -> Result<()> {
    // Once for each mount: a crash between two attempts can have left more than one.
    while is_namespace(path) {
        umount2(path, MntFlags::MNT_DETACH).map_err(|errno| on_file("cannot unmount", path)(errno.into()))?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(on_file("cannot remove", path)(error)),
        _ => Ok(()),
    }
}

/// Whether a namespace is kept at `path`, and not just a file.
pub(crate) fn is_namespace(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).is_ok_and(|stat| stat.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".into()).spawn_scoped(scope, work);
        match worker {
            Ok(worker) => worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(source) => Err(Error::Netlink {
                attempt: "cannot start a thread for a namespace".into(),
                source,
            }),
        }
    })
}

//! Containers of a plain user: everything happens in namespaces that belong to the user.
//!
//! ```text
//!   moorline ──starts──► holder: user, mount and network namespace, in which the user is root and the user's
//!      │                 subordinate ids are everybody else; it does nothing but keep them
//!      └─enters them, and starts itself again inside
//! ```
//!
//! Shims and containers are made inside as root makes them outside. A later process of the same user finds the holder by
//! a file and enters the same namespaces, so pods outlive the process that made them here as well.

use std::{
    convert::Infallible,
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::{fs::DirBuilderExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::{
    fs::{Access, CWD, access},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount, open_tree,
    },
    process::{Pid, Signal, kill_process, set_parent_process_death_signal},
};
use serde::{Deserialize, Serialize};

use crate::{
    Missing,
    cgroup::Hierarchies,
    error::{Attempt, Error, Result},
    host,
    shim::{HOLDER, SELF},
};

/// Tells a process that it is inside, and of what.
const INSIDE: &str = "MOORLINE_NAMESPACES";
/// Tells a process that a control group has been asked for on its behalf.
const SCOPED: &str = "MOORLINE_SCOPED";
/// Where the holder is written down, in the directory of the instance.
const RECORD: &str = "namespaces.json";
/// The group of the processes that are not pods. A group has processes or groups below it, never both.
const OWN_GROUP: &str = "moorline-processes";
/// Images have users up to here.
const IDS: u32 = 65_536;
/// How long a holder may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a process inside knows of where it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inside {
    /// The directory of the instance.
    pub directory: PathBuf,
    /// The control group that the user was given, if the namespaces are to last.
    pub cgroup: Option<PathBuf>,
}

/// How long the namespaces of an instance are to be there, when they have to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// Until [`release`]: pods will live in them.
    Lasting,
    /// Until this process ends, which only looks after files.
    Passing,
}

/// Which network a process is in afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Net {
    /// The one of the pods.
    Pods,
    /// The machine's, as before: for fetching images.
    Machine,
}

#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    pid: i32,
    /// When the kernel started it, which tells it from a later process of the same number.
    started: u64,
    cgroup: Option<PathBuf>,
}

/// Where this process is, if it has entered the namespaces of an instance.
pub fn inside() -> Option<Inside> {
    let told = env::var(INSIDE).ok()?;
    serde_json::from_str(&told).ok().filter(|_| host::in_user_namespace())
}

/// What keeps this user, who is not root, from [`enter`]; empty if nothing does.
pub fn lacking(stay: Stay) -> Vec<Missing> {
    host::missing_for_user(stay)
}

/// Enters the namespaces of an instance, which are made if need be, and runs this command again inside, with `stdin` as
/// its standard input. Returns only if that fails. There must be no other threads.
pub fn enter(directory: &Path, stay: Stay, net: Net, stdin: Stdio) -> Result<Infallible> {
    let lacking = lacking(stay);
    if !lacking.is_empty() {
        return Err(Error::Machine(lacking));
    }
    let mut maker = fs::DirBuilder::new();
    let made = maker.recursive(true).mode(0o700).create(directory);
    made.attempt(|| format!("make {}", directory.display()))?;
    let path = directory.join("namespaces.lock");
    let lock = File::create(&path).attempt(|| format!("open {}", path.display()))?;
    lock.lock().attempt(|| format!("lock {}", path.display()))?;
    let holder = match living(directory) {
        Some(holder) => holder,
        None => start(directory, stay)?,
    };
    if let Some(cgroup) = holder.cgroup.as_ref().filter(|_| stay == Stay::Lasting) {
        join_own_group(cgroup)?;
    }
    let here = env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let mut kinds = vec![("user", CloneFlags::CLONE_NEWUSER), ("mnt", CloneFlags::CLONE_NEWNS)];
    if net == Net::Pods {
        kinds.push(("net", CloneFlags::CLONE_NEWNET));
    }
    // All are opened before the first is entered: from inside, the paths may be others.
    let opened = kinds.into_iter().map(|(name, kind)| {
        let path = format!("/proc/{}/ns/{name}", holder.pid);
        let file = File::open(&path).attempt(|| format!("open {path}"))?;
        Ok((file, path, kind))
    });
    for (file, path, kind) in opened.collect::<Result<Vec<_>>>()? {
        setns(&file, kind).attempt(|| format!("enter the namespace {path}"))?;
    }
    let _ = env::set_current_dir(here);
    let told = Inside {
        directory: directory.to_owned(),
        cgroup: holder.cgroup,
    };
    let told = serde_json::to_string(&told).map_err(io::Error::from);
    let told = told.attempt(|| "write down where this is")?;
    drop(lock);
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("moorline"));
    let error = Command::new(SELF)
        .arg0(name)
        .args(arguments)
        .env(INSIDE, told)
        .stdin(stdin)
        .exec();
    Err(error).attempt(|| "run this command inside its namespaces")
}

/// Gives the namespaces of an instance up: its pods are gone. Nothing happens where there are none.
pub fn release(directory: &Path) -> Result<()> {
    let Some(holder) = living(directory) else {
        return Ok(());
    };
    let path = directory.join(RECORD);
    fs::remove_file(&path).attempt(|| format!("remove {}", path.display()))?;
    let Some(pid) = Pid::from_raw(holder.pid) else {
        return Ok(());
    };
    kill_process(pid, Signal::KILL).attempt(|| format!("end process {}", holder.pid))?;
    let start = Instant::now();
    while started(holder.pid) == Some(holder.started) && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(2));
    }
    // Whoever ends it is in it as well, and the machine removes an empty one in the end.
    if let (Some(cgroup), Ok(hierarchies)) = (&holder.cgroup, Hierarchies::find()) {
        let _ = hierarchies.group(&cgroup.join(OWN_GROUP)).remove(Duration::ZERO);
    }
    Ok(())
}

fn living(directory: &Path) -> Option<Holder> {
    let text = fs::read_to_string(directory.join(RECORD)).ok()?;
    let holder: Holder = serde_json::from_str(&text).ok()?;
    (started(holder.pid) == Some(holder.started)).then_some(holder)
}

/// When the kernel started a process; nothing for one that is gone or about to be.
fn started(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything; the state comes after it.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn start(directory: &Path, stay: Stay) -> Result<Holder> {
    let cgroup = match stay {
        Stay::Lasting => Some(given_group()?),
        Stay::Passing => None,
    };
    if let Some(cgroup) = &cgroup {
        join_own_group(cgroup)?;
    }
    let mut child = Command::new(SELF)
        .arg(HOLDER)
        .arg(if stay == Stay::Passing { "passing" } else { "lasting" })
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A Ctrl-C at the terminal is not meant for it.
        .process_group(0)
        .spawn()
        .attempt(|| "start the process that keeps the namespaces")?;
    let held = set_up(&mut child);
    if let Err(error) = held {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    let pid = i32::try_from(child.id()).unwrap_or_default();
    let holder = Holder {
        pid,
        started: started(pid)
            .ok_or(io::ErrorKind::NotFound)
            .attempt(|| "find the process that keeps the namespaces")?,
        cgroup,
    };
    if stay == Stay::Lasting {
        let text = serde_json::to_vec(&holder).map_err(io::Error::from);
        text.and_then(|text| fs::write(directory.join(RECORD), text))
            .attempt(|| "write down who keeps the namespaces")?;
    }
    Ok(holder)
}

/// Gives a holder its ids, and waits until it is ready.
fn set_up(child: &mut Child) -> Result<()> {
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    let (mut to, from) = child
        .stdin
        .take()
        .zip(child.stdout.take())
        .ok_or_else(gone)
        .attempt(|| "talk to it")?;
    let mut from = BufReader::new(from);
    let mut heard = |what: &str| {
        let mut line = String::new();
        let read = from.read_line(&mut line);
        read.and_then(|_| if line.trim() == what { Ok(()) } else { Err(gone()) })
            .attempt(|| format!("hear from the process that keeps the namespaces that it is {what}"))
    };
    heard("made")?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    for (program, file, own) in [("newuidmap", "/etc/subuid", user), ("newgidmap", "/etc/subgid", group)] {
        let range = host::subordinate_ids(file)
            .ok_or(io::ErrorKind::NotFound)
            .attempt(|| format!("find ids in {file}"))?;
        let count = range.1.min(IDS - 1);
        let numbers = [child.id(), 0, own, 1, 1, range.0, count].map(|number| number.to_string());
        let output = Command::new(program).args(numbers).output();
        let output = output.attempt(|| format!("run {program}"))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(words)).attempt(|| format!("map ids with {program}"));
        }
    }
    to.write_all(b"mapped\n")
        .attempt(|| "tell the process that keeps the namespaces of its ids")?;
    heard("ready")
}

/// The control group that this process was given, to make groups in. Asks the user's systemd for one, if need be, by
/// running this command again in it.
fn given_group() -> Result<PathBuf> {
    let hierarchies = Hierarchies::find()?;
    let own = own_group(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    if let Some(own) = own.filter(|own| is_given(&hierarchies, own)) {
        return Ok(own);
    }
    if env::var_os(SCOPED).is_some() {
        return Err(Error::Machine(vec![Missing::Delegation]));
    }
    let program = env::current_exe().attempt(|| "find this executable")?;
    let error = Command::new("systemd-run")
        .args(["--user", "--scope", "--quiet", "--property=Delegate=yes", "--"])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(SCOPED, "1")
        .exec();
    Err(error).attempt(|| "ask systemd-run for a control group")
}

/// Whether the user may make groups in a group of version 2, and no controller is left to version 1.
fn is_given(hierarchies: &Hierarchies, group: &Path) -> bool {
    let directory = hierarchies.unified_directory(group);
    directory.is_some_and(|directory| {
        access(&directory, Access::WRITE_OK).is_ok() && access(directory.join("cgroup.procs"), Access::WRITE_OK).is_ok()
    })
}

/// Whether this process has, or can ask for, a control group of its user's own.
pub(crate) fn can_be_given_a_group() -> bool {
    let Ok(hierarchies) = Hierarchies::find() else {
        return false;
    };
    let own = own_group(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    let has_systemd = || {
        hierarchies.unified_directory(Path::new("/")).is_some()
            && host::program("systemd-run").is_some()
            && env::var_os("XDG_RUNTIME_DIR").is_some_and(|place| Path::new(&place).join("systemd/private").exists())
    };
    own.is_some_and(|own| is_given(&hierarchies, &own)) || has_systemd()
}

fn own_group(table: &str) -> Option<PathBuf> {
    let path = table.lines().find_map(|line| line.strip_prefix("0::"))?;
    // One that has been moved aside already is in the group of its like.
    let path = Path::new(path);
    let base = if path.ends_with(OWN_GROUP) {
        path.parent()?
    } else {
        path
    };
    Some(base.to_owned())
}

fn join_own_group(cgroup: &Path) -> Result<()> {
    let hierarchies = Hierarchies::find()?;
    let group = hierarchies.group(&cgroup.join(OWN_GROUP));
    group.create()?;
    group.join()
}

/// Makes the namespaces and keeps them.
pub(crate) fn hold() -> Result<()> {
    let passing = env::args().nth(2).as_deref() == Some("passing");
    let own = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET;
    unshare(own).attempt(|| "make namespaces of a plain user")?;
    say("made")?;
    let mut line = String::new();
    let heard = io::stdin().lock().read_line(&mut line);
    heard.attempt(|| "hear of the ids")?;
    if line.trim() != "mapped" {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).attempt(|| "hear of the ids");
    }
    if passing {
        set_parent_process_death_signal(Some(Signal::KILL)).attempt(|| "end with the command that it is for")?;
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .attempt(|| "keep mounts to itself")?;
    own_run_directory()?;
    say("ready")?;
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.attempt(|| "open /dev/null")?;
    rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .attempt(|| "close the standard streams")?;
    env::set_current_dir("/").attempt(|| "change to /")?;
    loop {
        rustix::event::pause();
    }
}

fn say(word: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{word}").and_then(|()| out.flush()).attempt(|| "answer")
}

/// A `/run` that can be written to, in which everything of the machine's is still found.
fn own_run_directory() -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let there = open_tree(CWD, "/run", flags).attempt(|| "take hold of /run")?;
    let options = Some(c"mode=755");
    mount(
        "tmpfs",
        "/run",
        "tmpfs",
        MountFlags::NODEV | MountFlags::NOSUID,
        options,
    )
    .attempt(|| "mount memory at /run")?;
    let machine = Path::new("/run/.machine");
    fs::create_dir(machine).attempt(|| "make /run/.machine")?;
    move_mount(&there, "", CWD, machine, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .attempt(|| "mount the machine's /run")?;
    let entries = fs::read_dir(machine).attempt(|| "list the machine's /run")?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        // What instances of others keep there is not for us.
        if name.as_encoded_bytes().starts_with(b"moorline") {
            continue;
        }
        let target = Path::new(".machine").join(&name);
        std::os::unix::fs::symlink(target, Path::new("/run").join(&name))
            .attempt(|| format!("link {}", name.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_process_is_found_in_its_table() {
        let found = own_group("12:pids:/x\n0::/user.slice/a.scope\n");
        assert_eq!(found.as_deref(), Some(Path::new("/user.slice/a.scope")));
        let aside = own_group("0::/user.slice/a.scope/moorline-processes\n");
        assert_eq!(aside, found, "a process that was moved aside still belongs there");
        assert_eq!(own_group("3:memory:/x\n"), None);
    }

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let own = i32::try_from(std::process::id()).unwrap();
        let begun = started(own).unwrap();
        assert!(begun > 0);
        assert_eq!(started(own), Some(begun));
        assert_eq!(started(i32::MAX), None);
    }
}

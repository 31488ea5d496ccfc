//! A layer's tar archive becomes a directory that overlayfs can stack.
//!
//! The archive is foreign: whatever it contains, nothing outside the directory is touched. Every path is resolved by the
//! kernel below the directory (`RESOLVE_BENEATH`), so neither `..` nor a symbolic link that was unpacked earlier leads
//! out, and what tries to is refused as a whole.
//!
//! Whiteouts become what overlayfs understands: `.wh.name` a character device 0/0 called `name`, `.wh..wh..opq` an
//! attribute on its directory.

use std::{
    cell::Cell,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, fstat,
        linkat, lsetxattr, makedev, mkdirat, mknodat, openat, openat2, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};
use tar::EntryType;

use crate::compression::Rationed;

/// Between two entries come headers, long names and extended attributes; more than this no tool writes.
const LARGEST_HEADER: u64 = 4 << 20;
/// No layer is larger when unpacked.
const LARGEST_LAYER: u64 = 256 << 30;

/// Whose the files of a layer become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Whose the archive says; needs root.
    Kept,
    /// All are the caller's, devices are left out, and overlayfs is told in attributes that a user may set.
    Own,
}

impl Ownership {
    /// What this process may do.
    pub(crate) fn here() -> Self {
        if rustix::process::geteuid().is_root() {
            Ownership::Kept
        } else {
            Ownership::Own
        }
    }

    fn opaque_attribute(self) -> &'static str {
        match self {
            Ownership::Kept => "trusted.overlay.opaque",
            Ownership::Own => "user.overlay.opaque",
        }
    }
}

/// Unpacks the archive below `directory`, which exists and is empty. Returns how many bytes its files have.
///
/// The reader is read to its very end, past the end of the archive, so that a digest over it is complete.
pub(crate) fn unpack(archive: impl Read, directory: &Path, ownership: Ownership) -> io::Result<u64> {
    let allowance = Cell::new(LARGEST_HEADER);
    let mut whole = LARGEST_LAYER;
    let mut archive = tar::Archive::new(Rationed::new(archive, &allowance));
    let mut tree = Tree::open(directory, ownership)?;
    let mut entries = archive.entries()?;
    loop {
        allowance.set(LARGEST_HEADER);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        whole = whole
            .checked_sub(entry.size())
            .ok_or_else(|| invalid("it is larger than any honest layer"))?;
        allowance.set(whole.saturating_add(LARGEST_HEADER));
        tree.take(&mut entry, &path)
            .map_err(|error| io::Error::new(error.kind(), format!("entry {}: {error}", path.display())))?;
        // The decoder would skip what is left of the entry on its way to the next header, on that one's ration.
        io::copy(&mut entry, &mut io::sink())?;
    }
    tree.finish()?;
    allowance.set(whole);
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(LARGEST_LAYER - whole)
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

/// The components of a path that stays below; empty for the root itself.
fn components(path: &Path) -> io::Result<Vec<&OsStr>> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(Ok(name)),
            Component::RootDir | Component::CurDir => None,
            Component::ParentDir | Component::Prefix(_) => Some(Err(invalid("the path leads out of the layer"))),
        })
        .collect()
}

/// What the kernel says when a path would leave the tree, in words.
fn leads_out(error: Errno) -> io::Error {
    match error {
        Errno::XDEV => invalid("a symbolic link leads out of the layer"),
        Errno::LOOP => invalid("too many symbolic links"),
        other => other.into(),
    }
}

/// A directory being filled.
struct Tree {
    root: OwnedFd,
    ownership: Ownership,
    /// The directory of the last entry: archives list a directory's files one after the other. Forgotten whenever
    /// something is replaced, since the path may then lead elsewhere.
    last: Option<(PathBuf, OwnedFd)>,
    /// Writing into a directory changes its time, so theirs are set at the end.
    directory_times: Vec<(PathBuf, Timestamps)>,
}

impl Tree {
    fn open(directory: &Path, ownership: Ownership) -> io::Result<Self> {
        let root = openat(CWD, directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self {
            root,
            ownership,
            last: None,
            directory_times: Vec::new(),
        })
    }

    fn take<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, path: &Path) -> io::Result<()> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        let names = components(path)?;
        let Some((name, parents)) = names.split_last() else {
            return if kind.is_dir() {
                let root = self.root.try_clone()?;
                self.describe(entry, root.as_fd(), OsStr::new("."), FileType::Directory, path)
            } else {
                Err(invalid("the root of the layer is not a directory"))
            };
        };
        let parent = self.parent(parents)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
            return self.whiteout(parent.as_fd(), OsStr::from_bytes(hidden));
        }
        let parent = parent.as_fd();
        let kind = match kind {
            EntryType::Directory => {
                self.directory(parent, name)?;
                FileType::Directory
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.make_room(parent, name)?;
                regular(entry, parent, name)?;
                FileType::RegularFile
            }
            EntryType::Symlink => {
                self.make_room(parent, name)?;
                let target = entry.link_name_bytes().ok_or_else(|| invalid("it links to nothing"))?;
                symlinkat(&*target, parent, *name)?;
                FileType::Symlink
            }
            EntryType::Link => {
                let target = entry.link_name()?.ok_or_else(|| invalid("it links to nothing"))?;
                return self.hard_link(&target, parent, name);
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                let kind = match kind {
                    EntryType::Char => FileType::CharacterDevice,
                    EntryType::Block => FileType::BlockDevice,
                    _ => FileType::Fifo,
                };
                if self.ownership == Ownership::Own && kind != FileType::Fifo {
                    tracing::debug!(path = %path.display(), "left a device out, which only root can make");
                    return Ok(());
                }
                self.make_room(parent, name)?;
                let header = entry.header();
                let device = makedev(header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
                mknodat(parent, *name, kind, Mode::RUSR | Mode::WUSR, device)?;
                kind
            }
            other => {
                return Err(invalid(format!(
                    "entries of type {:?} are not known",
                    char::from(other.as_byte())
                )));
            }
        };
        self.describe(entry, parent, name, kind, path)
    }

    /// Opens the directory for an entry, making what is missing of it.
    fn parent(&mut self, parents: &[&OsStr]) -> io::Result<OwnedFd> {
        let path: PathBuf = parents.iter().collect();
        if let Some((last, directory)) = &self.last
            && *last == path
        {
            return directory.try_clone();
        }
        let directory = match self.beneath(&path) {
            Err(Errno::NOENT) => {
                let mut made = PathBuf::new();
                let mut directory = self.root.try_clone()?;
                for name in parents {
                    made.push(name);
                    directory = match self.beneath(&made) {
                        Err(Errno::NOENT) => {
                            mkdirat(&directory, *name, Mode::from_raw_mode(0o755))?;
                            self.beneath(&made).map_err(leads_out)?
                        }
                        found => found.map_err(leads_out)?,
                    };
                }
                directory
            }
            found => found.map_err(leads_out)?,
        };
        self.last = Some((path, directory.try_clone()?));
        Ok(directory)
    }

    fn beneath(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        openat2(
            &self.root,
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        )
    }

    /// A later entry of the same name replaces an earlier one.
    fn make_room(&mut self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        match unlinkat(parent, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            Ok(()) => {
                self.last = None;
                Ok(())
            }
            Err(Errno::ISDIR | Errno::PERM) => {
                self.last = None;
                std::fs::remove_dir_all(through(parent).join(name))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn directory(&mut self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o755);
        match mkdirat(parent, name, mode) {
            Err(Errno::EXIST) => match kind_of(parent, name)? {
                Found::Directory => Ok(()),
                Found::Whiteout => {
                    self.make_room(parent, name)?;
                    mkdirat(parent, name, mode)?;
                    self.opaque(parent, name)
                }
                Found::Other => {
                    self.make_room(parent, name)?;
                    Ok(mkdirat(parent, name, mode)?)
                }
            },
            done => Ok(done?),
        }
    }

    fn hard_link(&mut self, target: &Path, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let names = components(target)?;
        let (target_name, target_parents) = names
            .split_last()
            .ok_or_else(|| invalid("it is a link to the root of the layer"))?;
        let path: PathBuf = target_parents.iter().collect();
        let target_parent = self.beneath(&path).map_err(leads_out)?;
        let same = |left: BorrowedFd<'_>| -> io::Result<bool> {
            let (left, right) = (fstat(left)?, fstat(parent)?);
            Ok((left.st_dev, left.st_ino) == (right.st_dev, right.st_ino))
        };
        if *target_name == name && same(target_parent.as_fd())? {
            return Ok(());
        }
        self.make_room(parent, name)?;
        linkat(&target_parent, *target_name, parent, name, AtFlags::empty()).map_err(|error| match error {
            Errno::NOENT => invalid(format!(
                "it is a link to {}, which is not in the layer",
                target.display()
            )),
            other => other.into(),
        })
    }

    fn whiteout(&mut self, parent: BorrowedFd<'_>, hidden: &OsStr) -> io::Result<()> {
        if hidden == ".wh..opq" {
            return self.opaque(parent, OsStr::new("."));
        }
        // Bookkeeping of the file system that whiteouts come from.
        if hidden.as_bytes().starts_with(b".wh.") {
            return Ok(());
        }
        if hidden.is_empty() || hidden == "." || hidden == ".." || hidden.as_bytes().contains(&b'/') {
            return Err(invalid("it hides no name that a file can have"));
        }
        let mode = Mode::empty();
        match mknodat(parent, hidden, FileType::CharacterDevice, mode, makedev(0, 0)) {
            // What the layer itself puts there stays; only what lies below is hidden.
            Err(Errno::EXIST) => match kind_of(parent, hidden)? {
                Found::Directory => self.opaque(parent, hidden),
                Found::Whiteout | Found::Other => Ok(()),
            },
            done => Ok(done?),
        }
    }

    fn opaque(&self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let path = through(parent).join(name);
        Ok(lsetxattr(
            path,
            self.ownership.opaque_attribute(),
            b"y",
            XattrFlags::empty(),
        )?)
    }

    /// Owner, mode, attributes and time, in the order in which none undoes another.
    fn describe<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        kind: FileType,
        path: &Path,
    ) -> io::Result<()> {
        let header = entry.header();
        if self.ownership == Ownership::Kept {
            let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
            let uid = id(or_zero(&header.as_old().uid, || header.uid())?);
            let gid = id(or_zero(&header.as_old().gid, || header.gid())?);
            let (Some(uid), Some(gid)) = (uid, gid) else {
                return Err(invalid("its owner is no user or group that Linux can have"));
            };
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let beneath = through(parent).join(name);
        if kind != FileType::Symlink {
            let mut mode = or_zero(&header.as_old().mode, || header.mode())? & 0o7777;
            if self.ownership == Ownership::Own {
                // Without the right to override modes, a directory that its owner cannot enter could not be removed.
                mode |= if kind == FileType::Directory { 0o700 } else { 0o400 };
            }
            rustix::fs::chmod(&beneath, Mode::from_raw_mode(mode))?;
        }
        let time = Timespec {
            tv_sec: or_zero(&header.as_old().mtime, || header.mtime())?
                .try_into()
                .unwrap_or(0),
            tv_nsec: 0,
        };
        self.attributes(entry, &beneath)?;
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        if kind == FileType::Directory {
            self.directory_times.push((components(path)?.iter().collect(), times));
            Ok(())
        } else {
            Ok(utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
        }
    }

    fn attributes<R: Read>(&self, entry: &mut tar::Entry<'_, R>, path: &Path) -> io::Result<()> {
        let Some(extensions) = entry.pax_extensions()? else {
            return Ok(());
        };
        for extension in extensions {
            let extension = extension?;
            let Some(name) = extension.key_bytes().strip_prefix(b"SCHILY.xattr.") else {
                continue;
            };
            let name = OsString::from(OsStr::from_bytes(name));
            // These steer overlayfs itself; an image has no business there.
            if name.as_bytes().starts_with(b"trusted.overlay.") || name.as_bytes().starts_with(b"user.overlay.") {
                continue;
            }
            match lsetxattr(path, &*name, extension.value_bytes(), XattrFlags::empty()) {
                Ok(()) | Err(Errno::NOTSUP) => {}
                Err(Errno::PERM | Errno::ACCESS) if self.ownership == Ownership::Own => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        for (path, times) in self.directory_times.iter().rev() {
            // A later entry may have put something else there.
            match self.beneath(path) {
                Ok(directory) => utimensat(CWD, through(directory.as_fd()), times, AtFlags::empty())?,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn regular<R: Read>(entry: &mut tar::Entry<'_, R>, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
    let written = io::copy(entry, &mut file)?;
    if written == entry.size() {
        Ok(())
    } else {
        Err(invalid("the archive ends within it"))
    }
}

/// A number that the header leaves blank is zero, as other readers have it.
fn or_zero<T: Default>(field: &[u8], read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
        Ok(T::default())
    } else {
        read()
    }
}

/// A path to an open directory, for the calls that take no descriptor beside their path.
fn through(directory: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

enum Found {
    Directory,
    Whiteout,
    Other,
}

fn kind_of(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<Found> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Found::Directory,
        FileType::CharacterDevice if stat.st_rdev == 0 => Found::Whiteout,
        _ => Found::Other,
    })
}

#[cfg(test)]
mod tests;

//! The root of a container, and what is mounted in it. All of it in the launcher's own mount namespace: it is gone with
//! the last process that lives in a copy of it.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, mount_bind, mount_change,
        mount_remount, move_mount, open_tree,
    },
};

use crate::{
    ContainerSpec, MountSource, Propagation,
    error::{Attempt, Error, Result},
    state::{ContainerDir, PodDir},
};

/// Leaves the shim's mounts, and goes on to see what the host mounts.
pub(super) fn own_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).attempt(|| "make a mount namespace")?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .attempt(|| "keep the container's mounts to itself")
}

/// Lays the layers over each other, a writable one on top. It is there for a read-only root too: mount points that the
/// image lacks are made in it.
pub(super) fn lay(spec: &ContainerSpec, container: &ContainerDir) -> Result<()> {
    let (root, upper, work) = (container.rootfs(), container.upper(), container.work());
    for directory in [&root, &upper, &work] {
        fs::create_dir_all(directory).attempt(|| format!("make {}", directory.display()))?;
    }
    if spec.root.layers.is_empty() {
        return Err(Error::Invalid {
            field: "root.layers".to_owned(),
            reason: "a container needs at least one layer".to_owned(),
        });
    }
    for layer in &spec.root.layers {
        let found = fs::metadata(layer).attempt(|| format!("find the layer {}", layer.display()))?;
        if !found.is_dir() {
            return Err(Error::Invalid {
                field: "root.layers".to_owned(),
                reason: format!("{} is not a directory", layer.display()),
            });
        }
    }
    overlay(&spec.root.layers, &upper, &work, &root)
        .or_else(|_| overlay_as_text(&spec.root.layers, &upper, &work, &root))
        .attempt(|| {
            format!(
                "lay {} layers over each other at {}",
                spec.root.layers.len(),
                root.display()
            )
        })?;
    let root_fd = open_path(&root)?;
    let inside = spec.cwd.strip_prefix("/").unwrap_or(&spec.cwd);
    make_inside(&root_fd, inside, ResolveFlags::IN_ROOT)
        .attempt(|| format!("make the working directory {}", spec.cwd.display()))?;
    Ok(())
}

/// With one option a layer, which knows no limit and no special characters (Linux 6.5 and later).
fn overlay(layers: &[PathBuf], upper: &Path, work: &Path, target: &Path) -> rustix::io::Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for layer in layers.iter().rev() {
        fsconfig_set_string(&context, "lowerdir+", layer)?;
    }
    fsconfig_set_string(&context, "upperdir", upper)?;
    fsconfig_set_string(&context, "workdir", work)?;
    // Nothing in the writable layer outlives its container, so nothing in it needs to reach the disk.
    fsconfig_set_flag(&context, "volatile")?;
    fsconfig_create(&context)?;
    let overlay = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    move_mount(&overlay, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// With all of it in one text, which must fit in a page.
fn overlay_as_text(layers: &[PathBuf], upper: &Path, work: &Path, target: &Path) -> io::Result<()> {
    let options = [
        b"lowerdir=".as_slice(),
        &joined(layers),
        b",upperdir=",
        &escaped(upper),
        b",workdir=",
        &escaped(work),
    ]
    .concat();
    let options = std::ffi::CString::new(options)?;
    Ok(mount(
        "overlay",
        target,
        "overlay",
        MountFlags::empty(),
        options.as_c_str(),
    )?)
}

/// Layers as one option, the uppermost first.
fn joined(layers: &[PathBuf]) -> Vec<u8> {
    let escaped: Vec<_> = layers.iter().rev().map(|layer| escaped(layer)).collect();
    escaped.join(&b':')
}

fn escaped(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b':' | b',' | b'\\') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text
}

/// Where a mount comes from.
pub(super) enum Source {
    /// Nowhere: it is new.
    None,
    /// A path that can be taken as it is.
    Path(PathBuf),
    /// A part of the host's tree, pinned.
    Tree(Tree),
    /// Layers that are yet to be laid over each other.
    Layers {
        layers: Vec<PathBuf>,
        subpath: Option<PathBuf>,
    },
}

/// A part of a tree that stays what it is, whoever changes the names that led to it.
pub(super) struct Tree {
    tree: OwnedFd,
    is_directory: bool,
}

/// Finds the source of every mount, in the host's mount namespace: what is to pass mounts both ways must be taken from
/// there.
pub(super) fn find_sources(spec: &ContainerSpec, pod: &PodDir) -> Result<Vec<Source>> {
    let source = |mount: &crate::Mount| {
        let (base, subpath) = match &mount.source {
            MountSource::Bind { path, subpath } => (path.clone(), subpath),
            MountSource::PodMemory { name, subpath } => (pod.memory(name.as_str()), subpath),
            MountSource::Tmpfs { .. } => return Ok(Source::None),
            MountSource::Layers { layers, subpath } => {
                return Ok(Source::Layers {
                    layers: layers.clone(),
                    subpath: subpath.clone(),
                });
            }
        };
        match subpath.as_deref().filter(|path| !path.as_os_str().is_empty()) {
            None if mount.propagation == Propagation::Bidirectional => pin(&open_path(&base)?, &base).map(Source::Tree),
            None => Ok(Source::Path(base)),
            Some(subpath) => pin(&resolve_subpath(&base, subpath)?, &base.join(subpath)).map(Source::Tree),
        }
    };
    spec.mounts.iter().map(source).collect()
}

/// Puts pinned sources where libcontainer can take them by a plain path, now in the launcher's own mount namespace.
/// Returns one path a mount; none for those that have no source.
pub(super) fn stage(sources: Vec<Source>, container: &ContainerDir) -> Result<Vec<Option<PathBuf>>> {
    let staged = |(index, source): (usize, Source)| match source {
        Source::None => Ok(None),
        Source::Path(path) => Ok(Some(path)),
        Source::Tree(tree) => {
            let place = container.mount(index);
            attach(&tree, &place)?;
            Ok(Some(place))
        }
        Source::Layers { layers, subpath } => {
            stage_layers(&layers, subpath.as_deref(), &container.mount(index)).map(Some)
        }
    };
    sources.into_iter().enumerate().map(staged).collect()
}

/// Mounts a pinned tree at `place`.
fn attach(tree: &Tree, place: &Path) -> Result<()> {
    fs::create_dir_all(place.parent().unwrap_or(place))
        .and_then(|()| {
            if tree.is_directory {
                fs::create_dir_all(place)
            } else {
                fs::write(place, "")
            }
        })
        .and_then(|()| {
            Ok(move_mount(
                &tree.tree,
                "",
                CWD,
                place,
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            )?)
        })
        .attempt(|| format!("mount a volume at {}", place.display()))
}

/// Lays the layers of an image over each other at `place`, with nothing on top. Says where what is wanted of them is.
fn stage_layers(layers: &[PathBuf], subpath: Option<&Path>, place: &Path) -> Result<PathBuf> {
    let whole = match layers {
        [] => {
            return Err(Error::Invalid {
                field: "mounts.layers".to_owned(),
                reason: "an image to mount needs at least one layer".to_owned(),
            });
        }
        // The kernel lays nothing over nothing.
        [only] => only.clone(),
        many => {
            fs::create_dir_all(place)
                .and_then(|()| read_only_overlay(many, place))
                .attempt(|| format!("lay {} layers over each other at {}", many.len(), place.display()))?;
            place.to_owned()
        }
    };
    let Some(subpath) = subpath.filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(whole);
    };
    let attempted = || format!("find {} in the image", subpath.display());
    let found = beneath(open_path(&whole)?, subpath).attempt(attempted)?;
    let part = place.with_extension("part");
    attach(&pin(&found, &whole.join(subpath))?, &part)?;
    Ok(part)
}

fn read_only_overlay(layers: &[PathBuf], target: &Path) -> io::Result<()> {
    let with_options = || -> rustix::io::Result<()> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for layer in layers.iter().rev() {
            fsconfig_set_string(&context, "lowerdir+", layer)?;
        }
        fsconfig_create(&context)?;
        let overlay = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        move_mount(&overlay, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
    };
    with_options().map_err(io::Error::from).or_else(|_| {
        let options = std::ffi::CString::new([b"lowerdir=".as_slice(), &joined(layers)].concat())?;
        Ok(mount(
            "overlay",
            target,
            "overlay",
            MountFlags::RDONLY,
            options.as_c_str(),
        )?)
    })
}

/// Whoever can write to a volume could change a link after it was looked at; what is pinned stays what it was.
fn pin(found: &OwnedFd, name: &Path) -> Result<Tree> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let stat = rustix::fs::fstat(found).attempt(|| format!("look at {}", name.display()))?;
    let tree = open_tree(found, "", flags).attempt(|| format!("take a copy of the mount {}", name.display()))?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Ok(Tree { tree, is_directory })
}

fn open_path(path: &Path) -> Result<OwnedFd> {
    openat2(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::empty(),
    )
    .attempt(|| format!("open {}", path.display()))
}

/// Gathers the container's own cgroups in one place. libcontainer would mount them writable, and a container that can
/// write there has no limits.
pub(super) fn stage_cgroups(views: &[(String, PathBuf)], writable: bool, container: &ContainerDir) -> Result<PathBuf> {
    let place = container.cgroups();
    let attempted = || format!("gather cgroups at {}", place.display());
    let read_only = if writable {
        MountFlags::empty()
    } else {
        MountFlags::RDONLY
    };
    let bind = |source: &Path, target: &Path| -> io::Result<()> {
        fs::create_dir_all(target)?;
        mount_bind(source, target)?;
        Ok(mount_remount(target, MountFlags::BIND | read_only, c"")?)
    };
    if let [(name, directory)] = views
        && name.is_empty()
    {
        bind(directory, &place).attempt(attempted)?;
        return Ok(place);
    }
    fs::create_dir_all(&place)
        .and_then(|()| {
            Ok(mount(
                "tmpfs",
                &place,
                "tmpfs",
                MountFlags::empty(),
                c"mode=755,size=16k",
            )?)
        })
        .attempt(attempted)?;
    for (name, directory) in views {
        bind(directory, &place.join(name)).attempt(attempted)?;
    }
    Ok(place)
}

/// Finds `subpath`, or makes it, so that no link leads out of `base`.
fn resolve_subpath(base: &Path, subpath: &Path) -> Result<OwnedFd> {
    let invalid = |reason: &str| Error::Invalid {
        field: format!("subpath {}", subpath.display()),
        reason: reason.to_owned(),
    };
    if subpath
        .components()
        .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return Err(invalid("it must be relative and have no '..'"));
    }
    let base_fd = open_path(base)?;
    let found = match beneath(&base_fd, subpath) {
        Err(rustix::io::Errno::NOENT) => make_inside(&base_fd, subpath, ResolveFlags::BENEATH),
        other => other,
    };
    match found {
        Err(rustix::io::Errno::XDEV) => Err(invalid("a symbolic link leads out of the volume")),
        other => other.attempt(|| format!("find {} below {}", subpath.display(), base.display())),
    }
}

fn beneath(base: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(
        base,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Makes the directories of `path` that are missing, following links only as `resolve` allows, and opens the last.
fn make_inside(base: &OwnedFd, path: &Path, resolve: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| openat2(base, path, flags, Mode::empty(), resolve | ResolveFlags::NO_MAGICLINKS);
    let mut so_far = PathBuf::from(".");
    let mut directory = open(&so_far)?;
    for part in path.components() {
        so_far.push(part);
        directory = match open(&so_far) {
            Err(rustix::io::Errno::NOENT) => {
                match mkdirat(&directory, part.as_os_str().as_bytes(), Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error),
                }
                open(&so_far)?
            }
            other => other?,
        };
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        fs::File::open(path).unwrap().into()
    }

    #[test]
    fn a_link_that_leads_out_of_a_volume_is_not_followed() {
        let volume = tempfile::tempdir().unwrap();
        symlink("/etc", volume.path().join("absolute")).unwrap();
        symlink("../..", volume.path().join("upward")).unwrap();
        for link in ["absolute", "upward", "absolute/ssl"] {
            let found = beneath(open(volume.path()), Path::new(link));
            assert_eq!(found.err(), Some(rustix::io::Errno::XDEV), "{link}");
        }
    }

    #[test]
    fn a_link_inside_a_volume_is_followed() {
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir(volume.path().join("real")).unwrap();
        symlink("real", volume.path().join("link")).unwrap();
        assert!(beneath(open(volume.path()), Path::new("link")).is_ok());
    }

    #[test]
    fn directories_are_made_inside_the_root_only() {
        let root = tempfile::tempdir().unwrap();
        symlink("/inside", root.path().join("link")).unwrap();
        fs::create_dir(root.path().join("inside")).unwrap();
        make_inside(&open(root.path()), Path::new("link/a/b"), ResolveFlags::IN_ROOT).unwrap();
        assert!(root.path().join("inside/a/b").is_dir());
        assert!(make_inside(&open(root.path()), Path::new("link/c"), ResolveFlags::BENEATH).is_err());
    }
}

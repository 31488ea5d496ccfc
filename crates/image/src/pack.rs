//! A directory that overlayfs wrote becomes a layer's tar archive: the way back of [`crate::unpack`].

use std::{
    collections::HashMap,
    fs::{self, File, Metadata},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use tar::{EntryType, Header};

/// Adds everything below `directory` to the archive, in the order of names, whiteouts in the words of the specification.
pub(crate) fn pack(directory: &Path, archive: &mut tar::Builder<&mut dyn io::Write>) -> io::Result<()> {
    let mut packing = Packing {
        archive,
        links: HashMap::new(),
    };
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let path = directory.join(&relative);
        let meta = fs::symlink_metadata(&path)?;
        packing.add(&path, &relative, &meta)?;
        if meta.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&path)?
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<io::Result<_>>()?;
            names.sort_unstable_by(|left, right| right.cmp(left));
            pending.extend(names.iter().map(|name| relative.join(name)));
        }
    }
    Ok(())
}

struct Packing<'a, 'b> {
    archive: &'a mut tar::Builder<&'b mut dyn io::Write>,
    links: HashMap<(u64, u64), PathBuf>,
}

impl Packing<'_, '_> {
    fn add(&mut self, path: &Path, relative: &Path, meta: &Metadata) -> io::Result<()> {
        if relative.as_os_str().is_empty() {
            return Ok(());
        }
        let kind = meta.file_type();
        let mut header = Header::new_gnu();
        header.set_mode(meta.mode() & 0o7777);
        header.set_uid(meta.uid().into());
        header.set_gid(meta.gid().into());
        header.set_mtime(u64::try_from(meta.mtime()).unwrap_or(0));
        header.set_size(0);
        if kind.is_char_device() && meta.rdev() == 0 {
            let name = relative.file_name().unwrap_or_default();
            let mut hidden = std::ffi::OsString::from(".wh.");
            hidden.push(name);
            header.set_entry_type(EntryType::Regular);
            header.set_mode(0o644);
            return self
                .archive
                .append_data(&mut header, relative.with_file_name(hidden), io::empty());
        }
        if !kind.is_dir() && meta.nlink() > 1 {
            if let Some(first) = self.links.get(&(meta.dev(), meta.ino())) {
                header.set_entry_type(EntryType::Link);
                return self.archive.append_link(&mut header, relative, first);
            }
            self.links.insert((meta.dev(), meta.ino()), relative.to_owned());
        }
        self.attributes(path)?;
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.archive.append_data(&mut header, relative, io::empty())?;
            return self.opaque(path, relative);
        }
        if kind.is_file() {
            header.set_entry_type(EntryType::Regular);
            header.set_size(meta.len());
            return self.archive.append_data(&mut header, relative, File::open(path)?);
        }
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            return self.archive.append_link(&mut header, relative, fs::read_link(path)?);
        }
        header.set_entry_type(if kind.is_char_device() {
            EntryType::Char
        } else if kind.is_block_device() {
            EntryType::Block
        } else if kind.is_fifo() {
            EntryType::Fifo
        } else {
            // A socket is nothing without the process that listens on it.
            return Ok(());
        });
        header.set_device_major(rustix::fs::major(meta.rdev()))?;
        header.set_device_minor(rustix::fs::minor(meta.rdev()))?;
        self.archive.append_data(&mut header, relative, io::empty())
    }

    fn opaque(&mut self, path: &Path, relative: &Path) -> io::Result<()> {
        let mut value = [0; 1];
        let opaque = ["trusted.overlay.opaque", "user.overlay.opaque"]
            .iter()
            .any(|name| rustix::fs::lgetxattr(path, *name, &mut value).is_ok_and(|_| value == *b"y"));
        if !opaque {
            return Ok(());
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        self.archive
            .append_data(&mut header, relative.join(".wh..wh..opq"), io::empty())
    }

    /// Puts the extended attributes in front of the entry, but for those of overlayfs itself.
    fn attributes(&mut self, path: &Path) -> io::Result<()> {
        let mut list = vec![0; 1 << 16];
        let length = match rustix::fs::llistxattr(path, &mut list) {
            Ok(length) => length,
            Err(Errno::NOTSUP) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let Ok(text) = std::str::from_utf8(name) else { continue };
            if text.starts_with("trusted.") || text.starts_with("user.overlay.") || text == "security.selinux" {
                continue;
            }
            let mut value = vec![0; 1 << 16];
            let size = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value)?;
            value.truncate(size);
            found.push((format!("SCHILY.xattr.{text}"), value));
        }
        if found.is_empty() {
            return Ok(());
        }
        found.sort_unstable();
        let pairs = found.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        self.archive.append_pax_extensions(pairs)
    }
}

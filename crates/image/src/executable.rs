//! An image of a program that is on this machine, with the shared libraries that it needs and nothing else.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    Digest, Origin, Reference, Result,
    error::{Attempting as _, Error},
    layout::Layout,
    model::{self, ConfigFile, ImageConfig, Platform, RootFs},
    staging::{StagedImage, stage_archive, stage_layer},
};

const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Makes the image, whose entry point is the program at `/` under its own name. The same program gives the same image.
pub(crate) fn executable(layout: &Layout, program: &Path, name: &Reference) -> Result<Digest> {
    let what = || format!("cannot make an image of {}", program.display());
    let program = program.canonicalize().attempting(what)?;
    let file_name = program
        .file_name()
        .map(|file_name| file_name.to_string_lossy().into_owned())
        .ok_or_else(|| Error::malformed(program.display().to_string(), "it is no file"))?;
    let libraries = shared_libraries(&program)?;
    let blob = stage_archive(layout, |archive| {
        let mut archive = Minimal {
            archive,
            made: BTreeSet::new(),
        };
        archive.directory(Path::new("tmp"), 0o1777)?;
        archive.file(
            Path::new("etc/passwd"),
            0o644,
            PASSWD.len() as u64,
            &mut PASSWD.as_bytes(),
        )?;
        archive.file(Path::new("etc/group"), 0o644, GROUP.len() as u64, &mut GROUP.as_bytes())?;
        for library in &libraries {
            archive.copy(library, library.strip_prefix("/").unwrap_or(library))?;
        }
        archive.copy(&program, Path::new(&file_name))
    })?;
    let layer = stage_layer(layout, blob, None)?;
    let names = libraries.iter().map(|library| library.display().to_string());
    let config = ConfigFile {
        created: None,
        platform: Some(Platform::here()),
        config: ImageConfig {
            entrypoint: vec![format!("/{file_name}")],
            env: vec!["PATH=/".to_owned()],
            labels: [("moorline.libraries".to_owned(), names.collect::<Vec<_>>().join(" "))].into(),
            ..ImageConfig::default()
        },
        rootfs: RootFs {
            kind: "layers".to_owned(),
            diff_ids: vec![layer.diff_id],
        },
        history: Vec::new(),
    };
    let image = StagedImage::described(layout, &model::render(&config), vec![layer])?;
    image
        .commit(layout, Origin::Executable, &[name.to_string()], None)?
        .ok_or_else(|| Error::damaged(name.to_string(), "its layer vanished while it was made"))
}

/// What the dynamic loader would load for the program; nothing for one that is linked statically.
fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let what = || {
        format!(
            "cannot run ldd on {}, to learn which libraries it needs",
            program.display()
        )
    };
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .attempting(what)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        if complaint.contains("not a dynamic executable") {
            return Ok(Vec::new());
        }
        return Err(Error::malformed(program.display().to_string(), complaint.trim()));
    }
    libraries(&text).map_err(|reason| Error::malformed(program.display().to_string(), reason))
}

/// Reads what ldd writes: `name => path (address)`, `path (address)` for the loader, `name (address)` for what the
/// kernel provides.
fn libraries(text: &str) -> std::result::Result<Vec<PathBuf>, String> {
    let mut paths = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        let (name, found) = line.split_once(" => ").unwrap_or((line, line));
        if found.starts_with("not found") {
            return Err(format!("it needs {name}, which is not on this machine"));
        }
        let path = found.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            paths.insert(PathBuf::from(path));
        }
    }
    Ok(paths.into_iter().collect())
}

/// An archive in which everything is root's and of one time.
struct Minimal<'a, 'b> {
    archive: &'a mut tar::Builder<&'b mut dyn io::Write>,
    made: BTreeSet<PathBuf>,
}

impl Minimal<'_, '_> {
    fn directory(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        if path.as_os_str().is_empty() || !self.made.insert(path.to_owned()) {
            return Ok(());
        }
        self.directory(path.parent().unwrap_or(Path::new("")), 0o755)?;
        let mut header = header(tar::EntryType::Directory, mode, 0);
        self.archive.append_data(&mut header, path, io::empty())
    }

    fn file(&mut self, path: &Path, mode: u32, size: u64, content: &mut dyn io::Read) -> io::Result<()> {
        self.directory(path.parent().unwrap_or(Path::new("")), 0o755)?;
        let mut header = header(tar::EntryType::Regular, mode, size);
        self.archive.append_data(&mut header, path, content)
    }

    fn copy(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let mut file = File::open(from)?;
        let size = file.metadata()?.len();
        self.file(to, 0o755, size, &mut file)
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_with_a_path() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tstatically linked\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries(text).unwrap(), expected.map(PathBuf::from));
    }

    #[test]
    fn a_library_that_is_missing_is_named() {
        let error = libraries("\tlibgone.so.1 => not found\n").unwrap_err();
        assert!(error.contains("libgone.so.1"), "{error}");
    }
}

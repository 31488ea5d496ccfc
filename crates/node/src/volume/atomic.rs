//! A directory whose files change all at once.
//!
//! ```text
//!   volume/
//!     ..2026_11_15_20_00_00.1 ── a, b            the files
//!     ..data ──► ..2026_11_15_20_00_00.1         swapped by one rename
//!     a ──► ..data/a, b ──► ..data/b             what a reader opens
//! ```

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Component, Path, PathBuf},
};

use super::{ownership::Ownership, payload::Payload};

const CURRENT: &str = "..data";

/// Makes a directory show these files. Says whether anything changed; if not, nothing was touched.
pub(crate) fn write(directory: &Path, payload: &Payload, ownership: &Ownership, stamp: &str) -> io::Result<bool> {
    fs::create_dir_all(directory)?;
    for path in payload.keys() {
        check(path)?;
    }
    let current = fs::read_link(directory.join(CURRENT)).ok();
    if let Some(current) = &current
        && shows(&directory.join(current), payload)?
    {
        return Ok(false);
    }
    let fresh = fresh_directory(directory, stamp)?;
    let place = directory.join(&fresh);
    for (path, file) in payload {
        let target = place.join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&target, &file.content)?;
        fs::set_permissions(&target, fs::Permissions::from_mode(file.mode))?;
    }
    open_directories(&place)?;
    ownership.apply(&place)?;
    let next = directory.join("..data_tmp");
    remove_if_there(&next)?;
    symlink(&fresh, &next)?;
    fs::rename(&next, directory.join(CURRENT))?;
    show_names(directory, payload)?;
    if let Some(old) = current {
        fs::remove_dir_all(directory.join(old))?;
    }
    Ok(true)
}

/// Paths stay inside the volume and do not meddle with its workings.
fn check(path: &str) -> io::Result<()> {
    let inside = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let first = path.split('/').next().unwrap_or("");
    if path.is_empty() || !inside || first.starts_with("..") {
        let message = format!("the path {path:?} of a file in a volume leads out of it");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

fn fresh_directory(directory: &Path, stamp: &str) -> io::Result<PathBuf> {
    for number in 0_u32.. {
        let name = format!("..{stamp}.{number}");
        match fs::create_dir(directory.join(&name)) {
            Ok(()) => return Ok(name.into()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("every name for a new version of the volume is taken"))
}

fn open_directories(place: &Path) -> io::Result<()> {
    fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_directories(&entry.path())?;
        }
    }
    Ok(())
}

fn shows(place: &Path, payload: &Payload) -> io::Result<bool> {
    let mut there = BTreeSet::new();
    if !place.is_dir() {
        return Ok(false);
    }
    list(place, "", &mut there)?;
    if !there.iter().eq(payload.keys()) {
        return Ok(false);
    }
    for (path, file) in payload {
        if fs::read(place.join(path))? != file.content {
            return Ok(false);
        }
    }
    Ok(true)
}

fn list(place: &Path, prefix: &str, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &format!("{name}/"), found)?;
        } else {
            found.insert(name);
        }
    }
    Ok(())
}

fn show_names(directory: &Path, payload: &Payload) -> io::Result<()> {
    let wanted: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !wanted.contains(&*name) {
            fs::remove_file(entry.path())?;
        }
    }
    for name in wanted {
        match symlink(Path::new(CURRENT).join(name), directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::payload::File, *};

    fn files(list: &[(&str, &str)]) -> Payload {
        let files = list.iter().map(|(path, content)| {
            (
                (*path).to_owned(),
                File {
                    content: content.as_bytes().to_vec(),
                    mode: 0o640,
                },
            )
        });
        files.collect()
    }

    #[test]
    fn files_appear_change_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("v");
        let nobody = Ownership::default();
        assert!(write(&volume, &files(&[("a", "1"), ("d/b", "2")]), &nobody, "t").unwrap());
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(volume.join("d/b")).unwrap(), "2");
        assert_eq!(
            fs::metadata(volume.join("a")).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert!(
            !write(&volume, &files(&[("a", "1"), ("d/b", "2")]), &nobody, "t").unwrap(),
            "nothing changed"
        );
        assert!(write(&volume, &files(&[("a", "3")]), &nobody, "t").unwrap());
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "3");
        assert!(!volume.join("d").exists());
        let left = fs::read_dir(&volume).unwrap().count();
        assert_eq!(left, 3, "the files, the pointer to them and one name");
    }

    #[test]
    fn a_reader_of_the_directory_sees_one_version() {
        let directory = tempfile::tempdir().unwrap();
        let nobody = Ownership::default();
        write(directory.path(), &files(&[("a", "1")]), &nobody, "t").unwrap();
        let first = fs::read_link(directory.path().join(CURRENT)).unwrap();
        write(directory.path(), &files(&[("a", "2")]), &nobody, "t").unwrap();
        assert_ne!(fs::read_link(directory.path().join(CURRENT)).unwrap(), first);
        assert_eq!(
            fs::read_link(directory.path().join("a")).unwrap(),
            Path::new("..data/a")
        );
    }

    #[test]
    fn no_path_leads_out_of_the_volume() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["../a", "/a", "x/../../a", "..data/a", ""] {
            let result = write(directory.path(), &files(&[(path, "1")]), &Ownership::default(), "t");
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{path}");
        }
    }
}

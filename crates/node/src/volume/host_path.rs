//! Paths of the machine that a pod mounts.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::Path,
};

/// Makes sure that a path is of the kind that is asked for; makes it where the kind says so. The words of an error are
/// a kubelet's.
pub(crate) fn prepare(path: &Path, kind: &str) -> Result<(), String> {
    let shown = path.display();
    let there = fs::metadata(path);
    let is = |holds: fn(&fs::FileType) -> bool| there.as_ref().is_ok_and(|found| holds(&found.file_type()));
    let failed = |what: &str| Err(format!("hostPath type check failed: {shown} is not a {what}"));
    match kind {
        "DirectoryOrCreate" if there.is_err() => {
            let made = fs::create_dir_all(path).and_then(|()| mode(path, 0o755));
            made.map_err(|error| format!("hostPath type check failed: {shown} could not be made: {error}"))
        }
        "FileOrCreate" if there.is_err() => {
            let made = fs::File::create_new(path).and_then(|_| mode(path, 0o644));
            made.map_err(|error| format!("hostPath type check failed: {shown} could not be made: {error}"))
        }
        "DirectoryOrCreate" | "Directory" if !is(fs::FileType::is_dir) => failed("directory"),
        "FileOrCreate" | "File" if !is(fs::FileType::is_file) => failed("file"),
        "Socket" if !is(fs::FileType::is_socket) => failed("socket file"),
        "CharDevice" if !is(fs::FileType::is_char_device) => failed("character device"),
        "BlockDevice" if !is(fs::FileType::is_block_device) => failed("block device"),
        // Without a kind nothing is checked, but a runtime makes a directory of what is missing.
        "" if there.is_err() => fs::create_dir_all(path).map_err(|error| format!("failed to make {shown}: {error}")),
        _ => Ok(()),
    }
}

fn mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_checked_or_made_as_its_kind_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let error = prepare(&path, "Directory").unwrap_err();
        assert_eq!(
            error,
            format!("hostPath type check failed: {} is not a directory", path.display())
        );
        prepare(&path, "DirectoryOrCreate").unwrap();
        prepare(&path, "Directory").unwrap();
        assert!(prepare(&path, "File").is_err());
        prepare(&directory.path().join("f"), "FileOrCreate").unwrap();
        prepare(&directory.path().join("f"), "File").unwrap();
        assert!(prepare(&directory.path().join("f"), "Socket").is_err());
    }
}

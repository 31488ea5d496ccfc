//! A part of a volume, mounted in place of the whole.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};

/// Finds, or makes, the part of a volume at a relative path. Links inside are followed, but never out of the volume.
pub(crate) fn resolve(volume: &Path, sub_path: &str) -> Result<PathBuf, String> {
    let relative = Path::new(sub_path);
    if relative.is_absolute() {
        return Err(format!("subPath {sub_path:?} must not be an absolute path"));
    }
    if relative.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(format!("subPath {sub_path:?} must not contain '..'"));
    }
    let told = |error: io::Error| format!("failed to prepare subPath {sub_path:?} of the volume: {error}");
    let volume = volume.canonicalize().map_err(told)?;
    let wanted = volume.join(relative);
    if let Ok(found) = wanted.canonicalize() {
        return inside(&volume, found, sub_path);
    }
    let mode = fs::metadata(&volume).map_err(told)?.permissions().mode() & 0o7777;
    let mut place = volume.clone();
    for part in relative.components() {
        let next = place.join(part);
        match next.canonicalize() {
            Ok(found) => place = inside(&volume, found, sub_path)?,
            Err(_) => {
                fs::create_dir(&next).map_err(told)?;
                fs::set_permissions(&next, fs::Permissions::from_mode(mode)).map_err(told)?;
                place = next;
            }
        }
    }
    inside(&volume, place, sub_path)
}

fn inside(volume: &Path, found: PathBuf, sub_path: &str) -> Result<PathBuf, String> {
    if found.starts_with(volume) {
        Ok(found)
    } else {
        Err(format!("subPath {sub_path:?} leads out of the volume"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_or_made_inside_the_volume_only() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("v");
        fs::create_dir(&volume).unwrap();
        assert!(resolve(&volume, "a/b").unwrap().is_dir());
        std::os::unix::fs::symlink("a", volume.join("link")).unwrap();
        assert!(resolve(&volume, "link/b").unwrap().ends_with("a/b"));
        std::os::unix::fs::symlink("/etc", volume.join("out")).unwrap();
        for bad in ["out", "out/passwd", "/etc", "../x", "a/../../x"] {
            assert!(resolve(&volume, bad).is_err(), "{bad}");
        }
    }
}

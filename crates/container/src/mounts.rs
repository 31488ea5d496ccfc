//! Mounts of ours on the host: a pod's memory, and what containers were allowed to mount there.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
};

use crate::error::{Attempt, Result};

/// Unmounts everything at and below `directory`. Nothing below it may be deleted before: it could be somebody's data.
pub(crate) fn unmount_below(directory: &Path) -> Result<()> {
    // Later ones lie on earlier ones.
    for place in mounted_below(directory)?.into_iter().rev() {
        match unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // Somebody else unmounted it meanwhile: a container that could mount on the host, or its end.
            Err(Errno::INVAL | Errno::NOENT) if !mounted_below(directory)?.contains(&place) => {}
            other => other.attempt(|| format!("unmount {}", place.display()))?,
        }
    }
    Ok(())
}

fn mounted_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let table =
        fs::read_to_string("/proc/self/mountinfo").attempt(|| "read the table of mounts in /proc/self/mountinfo")?;
    Ok(below(&table, directory))
}

fn below(table: &str, directory: &Path) -> Vec<PathBuf> {
    let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    places.filter(|place| place.starts_with(directory)).collect()
}

/// Blanks, tabs, ends of lines and backslashes stand there as their octal numbers.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let number = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(number.unwrap_or(*first));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_below_is_found_whatever_its_name() {
        let table = "30 25 0:26 / /data/pods/a/memory/shm rw - tmpfs tmpfs rw\n\
                     31 25 0:27 / /data/pods/a\\040b/memory rw - tmpfs tmpfs rw\n\
                     32 25 0:28 / /data/pods/ab rw - tmpfs tmpfs rw\n";
        assert_eq!(
            below(table, Path::new("/data/pods/a")),
            [Path::new("/data/pods/a/memory/shm")]
        );
        assert_eq!(
            below(table, Path::new("/data/pods/a b")),
            [Path::new("/data/pods/a b/memory")]
        );
    }
}

//! Giving back memory that a shim needed only to begin.

// Rust has no safe way to give pages back; `forget` says why this one is.
#![allow(unsafe_code)]

use std::{ffi::c_void, fs};

use rustix::mm::{Advice, madvise};

/// Drops the pages of this executable and its libraries that are mapped but were not used lately: nearly all of a
/// program that is much more than a shim. Those that are used are mapped again when they are, without reading a disk.
pub(super) fn forget_code() {
    let Ok(table) = fs::read_to_string("/proc/self/smaps") else {
        return;
    };
    for (start, length) in unchanged_files(&table) {
        // SAFETY: the mapping is private, cannot be written to and has no page of its own, so that what it shows after
        // its pages have been dropped is what it showed before: the contents of its file. No other thread could have
        // changed the mapping since the table was read, because a shim has only one.
        let _ = unsafe { madvise(start as *mut c_void, length, Advice::LinuxDontNeed) };
    }
}

/// Start and length of the mappings that show a file exactly as it is: relocated data, which has pages of its own, must
/// not be among them.
fn unchanged_files(table: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in table.lines() {
        if let Some(anonymous) = line.strip_prefix("Anonymous:") {
            found.extend(candidate.take().filter(|_| anonymous.trim() == "0 kB"));
        } else if let Some(range) = read_only_file(line) {
            candidate = Some(range);
        }
    }
    found
}

/// The range of a line that begins a mapping, if it is private, read-only and of a file.
fn read_only_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (
        usize::from_str_radix(start, 16).ok()?,
        usize::from_str_radix(end, 16).ok()?,
    );
    let access = fields.next()?;
    let path = fields.nth(3)?;
    (access.starts_with("r-") && access.ends_with('p') && path.starts_with('/')).then_some((start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_that_show_a_file_as_it_is_are_dropped() {
        let table = "55d0-55d8 r-xp 00001000 08:01 42 /bin/x\nSize: 8 kB\nAnonymous:             0 kB\n\
                     55d8-55e0 r--p 00002000 08:01 42 /bin/x\nAnonymous:             4 kB\n\
                     55e0-55e8 rw-p 00003000 08:01 42 /bin/x\nAnonymous:             0 kB\n\
                     55e8-55f0 rw-p 00000000 00:00 0 [heap]\nAnonymous:             8 kB\n\
                     7ff0-7ff8 r-xp 00000000 00:00 0 [vdso]\nAnonymous:             0 kB\n\
                     7ff8-7fff r--s 00000000 08:01 7 /shared\nAnonymous:             0 kB\n";
        assert_eq!(unchanged_files(table), [(0x55d0, 8)]);
    }

    #[test]
    fn a_process_goes_on_after_it() {
        // The text of this test is read through the mapping that was just dropped.
        let text = "constant";
        forget_code();
        assert_eq!(text.len(), 8);
    }
}

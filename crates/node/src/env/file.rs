//! Files of variables, as a container leaves them in a volume for another: `NAME='value'`, where the value is taken as
//! it stands and may go over several lines; blank lines and comments between.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

/// No file of variables is larger.
const LARGEST: u64 = 64 << 10;

/// Reads a file of variables in a volume; nothing when it is not there.
///
/// A pod writes the volume, so a link in it leads nowhere outside of it.
pub(crate) fn read(volume: &Path, path: &str) -> Result<Option<BTreeMap<String, String>>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot read the environment file {path:?}: {error}");
    let directory = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat2(CWD, volume, directory, Mode::empty(), ResolveFlags::empty()).and_then(|root| {
        // Not to wait for somebody at the other end of a pipe.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(root, path, flags, Mode::empty(), within)
    });
    let file = match opened {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failed(&io::Error::from(error))),
    };
    if !file.metadata().map_err(|error| failed(&error))?.is_file() {
        return Err(failed(&"it is no file"));
    }
    let mut text = String::new();
    file.take(LARGEST + 1)
        .read_to_string(&mut text)
        .map_err(|error| failed(&error))?;
    if text.len() as u64 > LARGEST {
        return Err(failed(&format!("it is larger than {LARGEST} bytes")));
    }
    parse(&text).map(Some).map_err(|error| failed(&error))
}

fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut variables = BTreeMap::new();
    let mut rest = text;
    let mut line = 1;
    loop {
        let start = rest.trim_start();
        line += newlines(&rest[..rest.len() - start.len()]);
        if start.is_empty() {
            return Ok(variables);
        }
        if start.starts_with('#') {
            rest = start.find('\n').map_or("", |end| &start[end..]);
            continue;
        }
        let end_of_line = start.find('\n').unwrap_or(start.len());
        let (name, value) = start[..end_of_line]
            .find("='")
            .map(|equals| (&start[..equals], &start[equals + 2..]))
            .ok_or_else(|| format!("line {line} is not of the form NAME='value'"))?;
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'=');
        if !is_name(name) {
            return Err(format!("line {line}: {name:?} is no name of a variable"));
        }
        let end = value
            .find('\'')
            .ok_or_else(|| format!("line {line}: the value of {name} has no closing quote"))?;
        variables.insert(name.to_owned(), value[..end].to_owned());
        line += newlines(&value[..end]);
        rest = &value[end + 1..];
        let behind = rest.split('\n').next().unwrap_or_default().trim();
        if !behind.is_empty() && !behind.starts_with('#') {
            return Err(format!("line {line}: {behind:?} behind the value of {name}"));
        }
    }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_between_single_quotes_and_are_taken_as_they_are() {
        let text = "# a comment\n\nA='1'\n  B='two words' # why\nC='$(A) \\n \"x\" =\nsecond'\nA='3'\nEMPTY=''";
        let variables = parse(text).unwrap();
        assert_eq!(variables["A"], "3", "the last one counts");
        assert_eq!(variables["B"], "two words");
        assert_eq!(variables["C"], "$(A) \\n \"x\" =\nsecond");
        assert_eq!(variables["EMPTY"], "");
    }

    #[test]
    fn what_is_no_variable_is_named_with_its_line() {
        for (text, line) in [
            ("A='1'\nB=2", "line 2 is not"),
            ("A=\"1\"", "line 1 is not"),
            ("\n\n='1'", "line 3: \"\" is no name"),
            ("A B='1'", "line 1: \"A B\" is no name"),
            ("A='1\n2'\nB='", "line 3: the value of B has no closing quote"),
            ("A='1'2", "line 1: \"2\" behind the value of A"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(line), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_link_out_of_the_volume_is_not_followed() {
        let volume = tempfile::tempdir().unwrap();
        std::fs::write(volume.path().join("here"), "A='1'").unwrap();
        std::os::unix::fs::symlink("here", volume.path().join("inside")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", volume.path().join("outside")).unwrap();
        assert_eq!(read(volume.path(), "inside").unwrap().unwrap()["A"], "1");
        assert_eq!(read(volume.path(), "missing").unwrap(), None);
        for path in ["outside", "../here", "."] {
            assert!(read(volume.path(), path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let volume = tempfile::tempdir().unwrap();
        let huge = format!("A='{}'", "x".repeat(70_000));
        std::fs::write(volume.path().join("huge"), huge).unwrap();
        assert!(read(volume.path(), "huge").unwrap_err().contains("larger than"));
    }
}

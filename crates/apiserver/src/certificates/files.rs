//! Private files: whole or not there, and nobody else's to read.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::CertificateError;

/// Writes a file that only its owner can read. It appears under its name all at once, in place of what was there.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), CertificateError> {
    let failed = |action| {
        move |source| CertificateError::File {
            action,
            path: path.to_owned(),
            source,
        }
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = path
        .file_name()
        .ok_or_else(|| failed("write")(io::ErrorKind::InvalidInput.into()))?;
    let mut draft = name.to_owned();
    draft.push(format!(".{}.new", std::process::id()));
    let draft = folder.join(draft);
    let written = (|| {
        // What an earlier process of the same id left behind may have other permissions.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.map_err(failed("write"))
}

/// Makes a folder that only its owner can enter; closes it to others if it is there already.
pub(super) fn private_folder(folder: &Path) -> Result<(), CertificateError> {
    let failed = |source| CertificateError::File {
        action: "make the folder",
        path: folder.to_owned(),
        source,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed)?;
    close_to_others(folder, 0o700).map_err(failed)
}

/// The text of a private file; nothing if there is none. A file that others could read is closed to them.
pub(super) fn read_private(path: &Path) -> Result<Option<String>, CertificateError> {
    let failed = |source| CertificateError::File {
        action: "read",
        path: path.to_owned(),
        source,
    };
    match fs::read_to_string(path) {
        Ok(text) => {
            close_to_others(path, 0o600).map_err(failed)?;
            Ok(Some(text))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

fn close_to_others(path: &Path, mode: u32) -> io::Result<()> {
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "closing a private path that others could read");
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// A certificate and its key; nothing if there is no certificate. The certificate is written last, so that a key
/// without one is left over from a start that did not finish and was never used.
pub(super) fn read_pair(folder: &Path, stem: &str) -> Result<Option<(String, String)>, CertificateError> {
    let [certificate_path, key_path] = pair(folder, stem);
    let Some(certificate) = read_private(&certificate_path)? else {
        return Ok(None);
    };
    let Some(key) = read_private(&key_path)? else {
        let why = format!(
            "its certificate {} is there, but the key is not",
            certificate_path.display()
        );
        return Err(CertificateError::Unusable { path: key_path, why });
    };
    Ok(Some((certificate, key)))
}

pub(super) fn write_pair(folder: &Path, stem: &str, certificate: &str, key: &str) -> Result<(), CertificateError> {
    let [certificate_path, key_path] = pair(folder, stem);
    // A new key beside the old certificate would not fit it, and the next start would refuse both.
    match fs::remove_file(&certificate_path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(CertificateError::File {
                action: "replace",
                path: certificate_path,
                source,
            });
        }
        _ => {}
    }
    write_private(&key_path, key.as_bytes())?;
    write_private(&certificate_path, certificate.as_bytes())
}

fn pair(folder: &Path, stem: &str) -> [PathBuf; 2] {
    [folder.join(format!("{stem}.crt")), folder.join(format!("{stem}.key"))]
}

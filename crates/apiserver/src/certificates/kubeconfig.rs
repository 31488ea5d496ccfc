//! The file by which kubectl finds and trusts the server.

use std::{fmt, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{Authority, CertificateError, Identity, write_private};

/// What a client needs to reach the server as someone.
pub struct Kubeconfig<'a> {
    /// The name of cluster, context and user in the file.
    pub name: &'a str,
    /// Such as `https://127.0.0.1:6443`.
    pub server: &'a str,
    /// Whom to trust.
    pub authority: &'a Authority,
    /// As whom to speak.
    pub identity: &'a Identity,
}

impl Kubeconfig<'_> {
    /// Writes the file, readable by its owner alone, all at once.
    pub fn write(&self, path: &Path) -> Result<(), CertificateError> {
        write_private(path, self.text().as_bytes())
    }

    /// The file's text.
    pub fn text(&self) -> String {
        // JSON strings are YAML strings, whatever they hold.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let (name, server) = (quoted(self.name), quoted(self.server));
        let authority = STANDARD.encode(self.authority.certificate_pem());
        let certificate = STANDARD.encode(self.identity.certificate_pem());
        let key = STANDARD.encode(self.identity.key_pem());
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: {name}\n  cluster:\n    server: {server}\n    certificate-authority-data: {authority}\n\
             users:\n\
             - name: {name}\n  user:\n    client-certificate-data: {certificate}\n    client-key-data: {key}\n\
             contexts:\n\
             - name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n\
             current-context: {name}\n"
        )
    }
}

impl fmt::Debug for Kubeconfig<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubeconfig")
            .field("name", &self.name)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

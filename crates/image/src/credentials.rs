//! What to show a registry, from the configuration files that Docker writes and Kubernetes keeps in secrets.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose};
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

use crate::{Error, Reference, Result, model};

/// Logins for registries. It never shows its secrets, not even to a debugger's format.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Most specific first.
    entries: Vec<(Place, Login)>,
}

/// A way of logging in.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Login {
    Basic { user: String, password: String },
    Token(String),
}

/// What a login is for: a host, perhaps with wildcards and a port, and perhaps a part of its repositories.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    host: String,
    path: String,
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: Option<BTreeMap<String, DockerAuth>>,
}

#[derive(Deserialize)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    #[serde(rename = "registrytoken")]
    registry_token: Option<String>,
}

impl Credentials {
    /// No logins: registries are asked anonymously.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads a Docker configuration: `{"auths": {…}}`, as in secrets of type `kubernetes.io/dockerconfigjson`, or what
    /// is below `auths` alone, as in `kubernetes.io/dockercfg`.
    pub fn from_docker_config(json: &[u8]) -> Result<Self> {
        // The error must not quote the document.
        let unreadable = |_| Error::malformed("the docker configuration", "it is not the JSON that docker writes");
        let auths = match model::parse::<DockerConfig>("the docker configuration", json) {
            Ok(DockerConfig { auths: Some(auths) }) => auths,
            Ok(DockerConfig { auths: None }) | Err(_) => {
                model::parse("the docker configuration", json).map_err(unreadable)?
            }
        };
        let mut entries = Vec::new();
        for (key, auth) in auths {
            let login = auth
                .login()
                .map_err(|reason| Error::malformed(format!("the login for {key}"), reason))?;
            entries.extend(login.map(|login| (Place::parse(&key), login)));
        }
        entries.sort_by(|(left, _), (right, _)| right.cmp(left));
        Ok(Self { entries })
    }

    /// All the logins of both, those of `self` first where both are as specific.
    pub fn merge(&mut self, other: Credentials) {
        self.entries.extend(other.entries);
        self.entries.sort_by(|(left, _), (right, _)| right.cmp(left));
    }

    /// A login for one registry.
    pub fn basic(registry: &str, user: impl Into<String>, password: impl Into<String>) -> Self {
        let login = Login::Basic {
            user: user.into(),
            password: password.into(),
        };
        Self {
            entries: vec![(Place::parse(registry), login)],
        }
    }

    /// The logins to try for an image, in order.
    pub(crate) fn logins(&self, reference: &Reference) -> Vec<Login> {
        let matching = self.entries.iter().filter(|(place, _)| place.covers(reference));
        matching.map(|(_, login)| login.clone()).collect()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.entries.iter().map(|(place, _)| &place.host);
        f.debug_set().entries(hosts).finish()
    }
}

impl Login {
    pub(crate) fn for_registry(&self) -> RegistryAuth {
        match self {
            Login::Basic { user, password } => RegistryAuth::Basic(user.clone(), password.clone()),
            Login::Token(token) => RegistryAuth::Bearer(token.clone()),
        }
    }
}

impl DockerAuth {
    fn login(self) -> std::result::Result<Option<Login>, &'static str> {
        if let Some(token) = self.registry_token.filter(|token| !token.is_empty()) {
            return Ok(Some(Login::Token(token)));
        }
        if let Some(user) = self.username.filter(|user| !user.is_empty()) {
            let password = self.password.unwrap_or_default();
            return Ok(Some(Login::Basic { user, password }));
        }
        let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) else {
            return Ok(None);
        };
        let decoded = general_purpose::STANDARD
            .decode(auth.trim())
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or("auth is not base64")?;
        let (user, password) = decoded.split_once(':').ok_or("auth is not user:password in base64")?;
        Ok(Some(Login::Basic {
            user: user.to_owned(),
            // Docker pads old ones with zeros.
            password: password.trim_end_matches('\0').to_owned(),
        }))
    }
}

impl Place {
    fn parse(key: &str) -> Self {
        let key = key.split_once("://").map_or(key, |(_, rest)| rest);
        let (host, path) = key.split_once('/').unwrap_or((key, ""));
        let path = path.trim_end_matches('/');
        let host = match host {
            "index.docker.io" | "registry-1.docker.io" => "docker.io",
            other => other,
        };
        Self {
            host: host.to_owned(),
            path: if matches!(path, "v1" | "v2") { "" } else { path }.to_owned(),
        }
    }

    fn covers(&self, reference: &Reference) -> bool {
        let (host, port) = split_port(&self.host);
        let (wanted_host, wanted_port) = split_port(reference.registry());
        let (labels, wanted): (Vec<&str>, Vec<&str>) = (host.split('.').collect(), wanted_host.split('.').collect());
        let path = self.path.trim_matches('/');
        let repository = reference.repository();
        port == wanted_port
            && labels.len() == wanted.len()
            && labels
                .iter()
                .zip(&wanted)
                .all(|(glob, label)| matches_glob(glob, label))
            && (path.is_empty()
                || repository == path
                || repository.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
    }
}

fn split_port(host: &str) -> (&str, &str) {
    host.rsplit_once(':').unwrap_or((host, ""))
}

/// Whether the label is what the pattern says, `*` standing for any text within it.
fn matches_glob(pattern: &str, label: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == label;
    };
    let Some(mut left) = label.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some(at) = left.find(piece) else { return false };
        left = &left[at + piece.len()..];
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(json: &str, image: &str) -> Option<String> {
        let credentials = Credentials::from_docker_config(json.as_bytes()).unwrap();
        let logins = credentials.logins(&image.parse().unwrap());
        logins.first().map(|login| match login {
            Login::Basic { user, .. } => user.clone(),
            Login::Token(token) => token.clone(),
        })
    }

    #[test]
    fn the_hub_is_found_under_all_its_names() {
        for key in [
            "https://index.docker.io/v1/",
            "index.docker.io",
            "docker.io",
            "registry-1.docker.io/v2",
        ] {
            let json = format!(r#"{{"auths":{{"{key}":{{"auth":"YTpi"}}}}}}"#);
            assert_eq!(user(&json, "postgres").as_deref(), Some("a"), "{key}");
            assert_eq!(user(&json, "quay.io/postgres"), None, "{key}");
        }
    }

    #[test]
    fn the_most_specific_login_comes_first() {
        let json = r#"{"auths":{"r.io":{"username":"host","password":"x"},"r.io/team":{"username":"team","password":"x"},
            "*.r.io":{"username":"glob","password":"x"},"r.io:5000":{"registrytoken":"port"}}}"#;
        for (image, expected) in [
            ("r.io/team/app", Some("team")),
            ("r.io/team", Some("team")),
            ("r.io/teams/app", Some("host")),
            ("eu.r.io/app", Some("glob")),
            ("a.eu.r.io/app", None),
            ("r.io:5000/app", Some("port")),
        ] {
            assert_eq!(user(json, image).as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn the_older_form_without_auths_is_read_too() {
        assert_eq!(user(r#"{"r.io":{"auth":"YTpi"}}"#, "r.io/x").as_deref(), Some("a"));
    }

    #[test]
    fn neither_errors_nor_debug_output_show_a_secret() {
        let credentials = Credentials::basic("r.io", "somebody", "hunter2");
        assert!(!format!("{credentials:?}").contains("hunter2"));
        for bad in [
            r#"{"auths":{"r.io":{"auth":"hunter2"}}}"#,
            r#"{"auths":"hunter2"}"#,
            r#"["hunter2"]"#,
            "hunter2",
        ] {
            let error = Credentials::from_docker_config(bad.as_bytes()).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_star_stands_for_any_text_within_a_label() {
        for (pattern, label, matches) in [
            ("*", "a", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "abc", true),
            ("a*b*c", "a1b2c", true),
            ("a*b", "abc", false),
            ("ab*bc", "abc", false),
            ("", "a", false),
        ] {
            assert_eq!(matches_glob(pattern, label), matches, "{pattern} {label}");
        }
    }
}

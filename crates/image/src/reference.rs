//! The names of images, in every form that people write them.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Serialize, Serializer};

use crate::{Digest, Error};

/// The name of an image, made complete: `postgres:17` is `docker.io/library/postgres:17`.
///
/// Two texts that mean the same image give equal references. A name with both a tag and a digest means the digest, as
/// everywhere; the tag is not kept.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference(Arc<Parts>);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Parts {
    registry: String,
    repository: String,
    version: Version,
}

/// What of a repository a name means.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// What a tag points to today.
    Tag(String),
    /// This content and no other.
    Digest(Digest),
}

impl Reference {
    /// The registry's host, with its port where one was named.
    pub fn registry(&self) -> &str {
        &self.0.registry
    }

    /// The repository in the registry, `library/postgres`.
    pub fn repository(&self) -> &str {
        &self.0.repository
    }

    /// Which of the repository's images.
    pub fn version(&self) -> &Version {
        &self.0.version
    }

    /// The tag, where the name has one and no digest.
    pub fn tag(&self) -> Option<&str> {
        match &self.0.version {
            Version::Tag(tag) => Some(tag),
            Version::Digest(_) => None,
        }
    }

    /// Registry and repository without tag or digest.
    pub fn name(&self) -> String {
        format!("{}/{}", self.0.registry, self.0.repository)
    }

    /// The same repository at another tag or digest.
    #[must_use]
    pub fn at(&self, version: Version) -> Self {
        Self(Arc::new(Parts {
            version,
            ..Parts::clone(&self.0)
        }))
    }

    /// The short form that people write, `postgres:17`.
    pub fn familiar(&self) -> String {
        let whole = self.to_string();
        match whole.strip_prefix("docker.io/") {
            Some(hub) => hub.strip_prefix("library/").unwrap_or(hub).to_owned(),
            None => whole,
        }
    }

    /// Whether the registry is on this machine, where plain HTTP is what one finds.
    pub fn is_loopback(&self) -> bool {
        let host = self
            .0
            .registry
            .rsplit_once(':')
            .map_or(&*self.0.registry, |(host, _)| host);
        host == "localhost"
            || host
                .parse::<std::net::Ipv4Addr>()
                .is_ok_and(|address| address.is_loopback())
    }

    /// As the registry client writes it.
    pub(crate) fn for_registry(&self) -> oci_client::Reference {
        let (registry, repository) = (self.0.registry.clone(), self.0.repository.clone());
        match &self.0.version {
            Version::Tag(tag) => oci_client::Reference::with_tag(registry, repository, tag.clone()),
            Version::Digest(digest) => oci_client::Reference::with_digest(registry, repository, digest.to_string()),
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |reason: &dyn fmt::Display| Error::InvalidName {
            name: text.chars().take(300).collect(),
            reason: reason.to_string(),
        };
        if !text.is_ascii() {
            return Err(invalid(&"it has characters other than ASCII"));
        }
        if text.len() > 1024 {
            return Err(invalid(&"it is longer than 1024 characters"));
        }
        let parsed = oci_client::Reference::try_from(text).map_err(|error| invalid(&error))?;
        let version = match (parsed.digest(), parsed.tag()) {
            (Some(digest), _) => Version::Digest(digest.parse().map_err(|error| invalid(&error))?),
            (None, tag) => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Self(Arc::new(Parts {
            registry: parsed.registry().to_owned(),
            repository: parsed.repository().to_owned(),
            version,
        })))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.registry, self.0.repository)?;
        match &self.0.version {
            Version::Tag(tag) => write!(f, ":{tag}"),
            Version::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOME: &str = "sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    fn whole(text: &str) -> String {
        text.parse::<Reference>().unwrap().to_string()
    }

    #[test]
    fn every_form_of_a_name_becomes_the_same_whole_name() {
        for form in [
            "postgres:17",
            "library/postgres:17",
            "docker.io/postgres:17",
            "docker.io/library/postgres:17",
            "index.docker.io/library/postgres:17",
        ] {
            assert_eq!(whole(form), "docker.io/library/postgres:17");
        }
        assert_eq!(whole("valkey/valkey"), "docker.io/valkey/valkey:latest");
        assert_eq!(whole("localhost:5000/a/b:c"), "localhost:5000/a/b:c");
        assert_eq!(whole("quay.io/a/b/c"), "quay.io/a/b/c:latest");
    }

    #[test]
    fn a_digest_wins_over_a_tag() {
        assert_eq!(
            whole(&format!("postgres:17@{SOME}")),
            format!("docker.io/library/postgres@{SOME}")
        );
    }

    #[test]
    fn the_familiar_form_means_the_same_image() {
        for name in ["postgres:17", "valkey/valkey:8", "quay.io/a/b:c", "localhost/x:1"] {
            let reference: Reference = name.parse().unwrap();
            assert_eq!(reference.familiar(), name);
            assert_eq!(reference.familiar().parse::<Reference>().unwrap(), reference);
        }
    }

    #[test]
    fn only_registries_on_this_machine_are_spoken_to_in_the_clear() {
        for (name, loopback) in [
            ("localhost:5000/a", true),
            ("localhost/a", true),
            ("127.0.0.1:5000/a", true),
            ("127.9.0.1/a", true),
            ("10.0.0.1:5000/a", false),
            ("localhost.example.com/a", false),
            ("127.0.0.1.example.com/a", false),
            ("a", false),
        ] {
            assert_eq!(name.parse::<Reference>().unwrap().is_loopback(), loopback, "{name}");
        }
    }

    #[test]
    fn names_that_no_registry_could_have_are_refused_with_the_reason() {
        let long = "a".repeat(2000);
        for bad in [
            "",
            ":",
            "a:",
            "A/B",
            "a//b",
            "/a",
            "a/",
            "../a",
            "a/../b",
            "a b",
            "a:b:c",
            "a@sha256:12",
            "ä",
            "a:ü",
            "-a",
            "a\0",
            "http://a/b",
            &long,
        ] {
            let error = bad.parse::<Reference>().unwrap_err();
            assert!(matches!(error, Error::InvalidName { .. }), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_an_error_and_a_name_reads_back(text in ".{0,80}|[a-z0-9:/@._-]{0,80}") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(reference.to_string().parse::<Reference>().unwrap(), reference);
            }
        }
    }
}

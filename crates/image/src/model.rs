//! The documents of the OCI image specification, as far as this store reads them.
//!
//! What came from outside is kept byte for byte; these types only look into it. They are lenient where Docker is (absent
//! and `null` mean the same) and strict where content is named: a digest that is none is an error.

use std::{collections::BTreeMap, fmt::Display};

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Digest, Error, Result};

/// No document of an image is larger; what claims to be is not read.
pub(crate) const LARGEST_DOCUMENT: u64 = 8 << 20;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// Annotation under which OCI tools look for an image's name.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The whole name, where `REF_NAME` may be a tag alone.
pub(crate) const CONTAINERD_NAME: &str = "io.containerd.image.name";

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
}

impl Platform {
    /// This machine's, in Go's words, which are the specification's.
    pub(crate) fn here() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "x86" => ("386", None),
            "aarch64" => ("arm64", Some("v8")),
            "arm" => ("arm", Some("v7")),
            "powerpc64" => ("ppc64le", None),
            other => (other, None),
        };
        Self {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// Whether what is made for `self` runs on `machine`.
    pub(crate) fn runs_on(&self, machine: &Self) -> bool {
        self.os == machine.os
            && self.architecture == machine.architecture
            && (self.variant.is_none() || machine.variant.is_none() || self.variant == machine.variant)
    }
}

impl Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) media_type: String,
    pub(crate) config: Descriptor,
    #[serde(deserialize_with = "or_default")]
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) media_type: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) manifests: Vec<Descriptor>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            schema_version: 2,
            media_type: INDEX.to_owned(),
            manifests: Vec::new(),
        }
    }
}

/// What a reference led to.
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    /// Tells the two apart by their media type and, where it is absent, by what they contain.
    pub(crate) fn parse(what: &str, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Either {
            schema_version: u32,
            #[serde(default)]
            media_type: String,
            manifests: Option<serde::de::IgnoredAny>,
        }
        let either: Either = parse(what, bytes)?;
        if either.schema_version != 2 {
            return Err(Error::malformed(
                what,
                format!("it has schema version {}, and only 2 is known", either.schema_version),
            ));
        }
        match &*either.media_type {
            INDEX | DOCKER_INDEX => parse(what, bytes).map(Document::Index),
            MANIFEST | DOCKER_MANIFEST => parse(what, bytes).map(Document::Manifest),
            "" if either.manifests.is_some() => parse(what, bytes).map(Document::Index),
            "" => parse(what, bytes).map(Document::Manifest),
            other => Err(Error::malformed(what, format!("it is of type {other}"))),
        }
    }
}

/// The configuration of an image: how its layers stack, and what runs in them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ConfigFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
    #[serde(flatten)]
    pub(crate) platform: Option<Platform>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) config: ImageConfig,
    pub(crate) rootfs: RootFs,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) history: Vec<Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RootFs {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) diff_ids: Vec<Digest>,
}

/// What an image says of the process that runs in it. A pod may override most of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    /// User, or user and group with a colon between, by name or number; empty means root.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// `KEY=VALUE`, in order.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// What runs; `cmd` are its arguments.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Arguments of the entry point, or the whole command where there is none.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Where it starts; empty means `/`.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// Paths that want a volume of their own.
    #[serde(with = "keys", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// Ports on which it listens, `5432/tcp`.
    #[serde(with = "keys", skip_serializing_if = "Vec::is_empty")]
    pub exposed_ports: Vec<String>,
    /// What the image says of itself.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The signal that asks it to end, by name or number; empty means `SIGTERM`.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub stop_signal: String,
}

/// Reads a document within the limit on its size.
pub(crate) fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    if bytes.len() as u64 > LARGEST_DOCUMENT {
        return Err(Error::malformed(what, format!("it has {} bytes", bytes.len())));
    }
    serde_json::from_slice(bytes).map_err(|error| Error::malformed(what, error))
}

/// Writes a document.
pub(crate) fn render<T: Serialize>(document: &T) -> Vec<u8> {
    serde_json::to_vec(document).expect("these types have string keys only, which JSON can write")
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> std::result::Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Go's sets: objects whose values say nothing.
mod keys {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serializer, ser::SerializeMap as _};
    use serde_json::Value;

    #[derive(serde::Serialize)]
    struct Nothing {}

    pub(super) fn serialize<S: Serializer>(keys: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(keys.len()))?;
        for key in keys {
            map.serialize_entry(key, &Nothing {})?;
        }
        map.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        let map = Option::<BTreeMap<String, Value>>::deserialize(deserializer)?;
        Ok(map.unwrap_or_default().into_keys().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_where_docker_writes_them_mean_nothing() {
        let file: ConfigFile = parse(
            "config",
            br#"{"architecture":"amd64","os":"linux","config":{"Cmd":["sh"],"Entrypoint":null,"Env":null,"Volumes":null,
                "ExposedPorts":{"80/tcp":{}},"Labels":null,"User":"","Healthcheck":{"Test":["NONE"]}},
                "rootfs":{"type":"layers","diff_ids":null},"history":null}"#,
        )
        .unwrap();
        assert_eq!(file.config.cmd, ["sh"]);
        assert_eq!(file.config.exposed_ports, ["80/tcp"]);
        assert!(file.config.entrypoint.is_empty() && file.rootfs.diff_ids.is_empty());
        let file: ConfigFile = parse("config", br#"{"config":null,"rootfs":{"type":"layers"}}"#).unwrap();
        assert_eq!(file.config, ImageConfig::default());
    }

    #[test]
    fn an_index_and_a_manifest_are_told_apart_without_a_media_type() {
        let digest = Digest::of(b"x");
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{{"digest":"{digest}","size":1}}]}}"#);
        assert!(matches!(
            Document::parse("x", index.as_bytes()).unwrap(),
            Document::Index(_)
        ));
        let manifest = format!(r#"{{"schemaVersion":2,"config":{{"digest":"{digest}","size":1}},"layers":[]}}"#);
        assert!(matches!(
            Document::parse("x", manifest.as_bytes()).unwrap(),
            Document::Manifest(_)
        ));
    }

    #[test]
    fn documents_that_cannot_be_meant_are_errors() {
        for bad in [
            "",
            "[]",
            "{",
            r#"{"schemaVersion":1}"#,
            r#"{"schemaVersion":2}"#,
            r#"{"schemaVersion":2,"config":{"digest":"sha256:..","size":1},"layers":[]}"#,
            r#"{"schemaVersion":2,"mediaType":"text/plain"}"#,
            r#"{"schemaVersion":2,"config":{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":-1},"layers":[]}"#,
        ] {
            assert!(matches!(
                Document::parse("it", bad.as_bytes()),
                Err(Error::Malformed { .. })
            ));
        }
        let deep = "[".repeat(100_000);
        assert!(Document::parse("it", deep.as_bytes()).is_err());
    }
}

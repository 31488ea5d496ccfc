//! Images made by hand, as other tools would write them.

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::{Path, PathBuf},
};

use moorline_image::{Digest, ImageStore, Options};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory with a store in it.
pub(crate) struct Place {
    pub(crate) directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) async fn store(&self) -> ImageStore {
        let options = Options {
            recipes: Vec::new(),
            ..Options::default()
        };
        ImageStore::open(self.path("store"), options).await.unwrap()
    }
}

/// A layer with these files.
pub(crate) fn layer(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

pub(crate) fn here() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn config(layers: &[Vec<u8>], label: &str) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
    serde_json::to_vec(&json!({
        "architecture": here(), "os": "linux",
        "config": {"Entrypoint": ["/tool"], "Cmd": ["serve"], "Env": ["A=b"], "User": "70:70", "WorkingDir": "/srv",
            "Volumes": {"/data": {}}, "ExposedPorts": {"80/tcp": {}}, "StopSignal": "SIGINT",
            "Labels": {"label": label}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }))
    .unwrap()
}

/// The files of an archive, by name.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) fn add_blob(files: &mut Files, bytes: Vec<u8>) -> (String, usize) {
    let digest = Digest::of(&bytes);
    let size = bytes.len();
    files.insert(format!("blobs/sha256/{}", digest.hex()), bytes);
    (digest.to_string(), size)
}

/// Manifest, configuration and layers of an image; returns the descriptor of the manifest.
pub(crate) fn add_image(files: &mut Files, layers: &[Vec<u8>], pack: fn(&[u8]) -> Vec<u8>, label: &str) -> Value {
    let (config_digest, config_size) = add_blob(files, config(layers, label));
    let listed: Vec<Value> = layers
        .iter()
        .map(|layer| {
            let (digest, size) = add_blob(files, pack(layer));
            json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size})
        })
        .collect();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config_digest, "size": config_size},
        "layers": listed,
    });
    let (digest, size) = add_blob(files, serde_json::to_vec(&manifest).unwrap());
    json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": size})
}

pub(crate) fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    descriptor
}

/// Makes an OCI layout of what was added.
pub(crate) fn finish_oci(files: &mut Files, manifests: &[Value]) {
    files.insert("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    files.insert("index.json".to_owned(), serde_json::to_vec(&index).unwrap());
}

/// An OCI layout with one image.
pub(crate) fn oci(name: &str, layers: &[Vec<u8>]) -> Files {
    let mut files = Files::new();
    let descriptor = add_image(&mut files, layers, gzip, name);
    finish_oci(&mut files, &[named(descriptor, name)]);
    files
}

/// What `docker save` wrote for many years.
pub(crate) fn docker(tags: &[&str], layers: &[Vec<u8>]) -> Files {
    let mut files = Files::new();
    files.insert("config.json".to_owned(), config(layers, tags[0]));
    let mut names = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        names.push(format!("{number}/layer.tar"));
        files.insert(format!("{number}/layer.tar"), layer.clone());
    }
    let manifest = json!([{"Config": "config.json", "RepoTags": tags, "Layers": names}]);
    files.insert("manifest.json".to_owned(), serde_json::to_vec(&manifest).unwrap());
    files
}

pub(crate) fn as_tar(files: &Files) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, &**content).unwrap();
    }
    archive.into_inner().unwrap()
}

pub(crate) fn write_tar(path: &Path, files: &Files) {
    std::fs::write(path, as_tar(files)).unwrap();
}

pub(crate) fn write_directory(path: &Path, files: &Files) {
    for (name, content) in files {
        let file = path.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }
}

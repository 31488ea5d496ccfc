//! An image on its way into the store: prepared apart, checked, and put in place at once.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
};

use crate::{
    Digest, Result,
    compression::{Compression, unpacked},
    digest::Hashing,
    error::{Attempting as _, Error},
    layout::{LayerRecord, Layout, write_synced},
    model::{self, CONFIG, ConfigFile, Descriptor, MANIFEST, Manifest, Platform},
    unpack,
};

/// Where an image came from. It decides what "always pull" means: only what came from a registry can be newer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Pulled.
    Registry,
    /// Imported from an archive or a directory.
    Import,
    /// Built from a recipe.
    Recipe,
    /// Made from a program of this machine.
    Executable,
}

impl Origin {
    pub(crate) const ANNOTATION: &'static str = "moorline.image.origin";

    /// The word that stands in the index and in tables.
    pub fn word(self) -> &'static str {
        match self {
            Origin::Registry => "registry",
            Origin::Import => "import",
            Origin::Recipe => "recipe",
            Origin::Executable => "executable",
        }
    }

    pub(crate) fn of(descriptor: &Descriptor) -> Self {
        match descriptor.annotations.get(Self::ANNOTATION).map(String::as_str) {
            Some("registry") => Origin::Registry,
            Some("recipe") => Origin::Recipe,
            Some("executable") => Origin::Executable,
            _ => Origin::Import,
        }
    }
}

/// Annotation with the digest by which the registry knows the image, where that is an index's.
pub(crate) const LIST_DIGEST: &str = "moorline.image.list-digest";

/// A blob that lies in the work directory.
pub(crate) struct StagedBlob {
    pub(crate) path: PathBuf,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// A layer that is prepared, or was in the store already.
pub(crate) struct StagedLayer {
    pub(crate) descriptor: Descriptor,
    pub(crate) diff_id: Digest,
    blob: Option<PathBuf>,
    unpacked: Option<PathBuf>,
}

/// A whole image, ready to be committed.
pub(crate) struct StagedImage {
    manifest: StagedBlob,
    media_type: String,
    config: StagedBlob,
    layers: Vec<StagedLayer>,
    platform: Option<Platform>,
}

/// Writes content to the work directory, syncs it, and names it by its digest.
pub(crate) fn stage_blob(layout: &Layout, mut content: impl Read) -> Result<StagedBlob> {
    let path = layout.scratch("blob");
    let what = || format!("cannot write {}", path.display());
    let mut file = Hashing::new(File::create(&path).attempting(what)?);
    io::copy(&mut content, &mut file).attempting(what)?;
    let (file, digest, size) = file.finish();
    file.sync_all().attempting(what)?;
    Ok(StagedBlob { path, digest, size })
}

/// Unpacks the layer that lies at `blob`, and checks that it is the one that the configuration means.
pub(crate) fn stage_layer(layout: &Layout, mut blob: StagedBlob, diff_id: Option<&Digest>) -> Result<StagedLayer> {
    let what = format!("layer {}", blob.digest);
    let directory = layout.scratch("layer");
    let tree = directory.join("tree");
    let making = || format!("cannot make {}", tree.display());
    fs::create_dir_all(&tree).attempting(making)?;
    fs::set_permissions(&tree, std::os::unix::fs::PermissionsExt::from_mode(0o755)).attempting(making)?;
    let file = File::open(&blob.path).attempting(|| format!("cannot read {}", blob.path.display()))?;
    let (compression, content) = unpacked(file).map_err(|error| Error::malformed(&what, error))?;
    let mut content = Hashing::new(content);
    let bytes = unpack::unpack(&mut content, &tree, layout.ownership()).map_err(|error| broken(&what, error))?;
    let (_, actual, _) = content.finish();
    if let Some(expected) = diff_id
        && *expected != actual
    {
        return Err(Error::DigestMismatch {
            what: format!("the content of {what}"),
            expected: *expected,
            actual,
        });
    }
    let record = LayerRecord { diff_id: actual, bytes };
    write_synced(&directory.join("layer.json"), &model::render(&record))?;
    Ok(StagedLayer {
        descriptor: describe_layer(&blob, compression),
        diff_id: actual,
        blob: Some(std::mem::take(&mut blob.path)),
        unpacked: Some(directory),
    })
}

/// A layer that needs only what is missing of it: nothing, its blob, or its directory.
pub(crate) fn present_layer(layout: &Layout, descriptor: &Descriptor, diff_id: &Digest) -> Result<Option<StagedLayer>> {
    let present = layout.has_blob(descriptor) && layout.layer_record(diff_id)?.is_some();
    Ok(present.then(|| StagedLayer {
        descriptor: descriptor.clone(),
        diff_id: *diff_id,
        blob: None,
        unpacked: None,
    }))
}

fn describe_layer(blob: &StagedBlob, compression: Compression) -> Descriptor {
    Descriptor {
        media_type: compression.layer_type().to_owned(),
        digest: blob.digest,
        size: blob.size,
        annotations: BTreeMap::new(),
        platform: None,
    }
}

/// What the archive did wrong is told apart from what the disk did.
fn broken(what: &str, error: io::Error) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    if matches!(error.kind(), InvalidData | InvalidInput | Other | UnexpectedEof) {
        Error::malformed(what, error)
    } else {
        Error::Io {
            what: format!("cannot unpack {what}"),
            cause: error.into(),
        }
    }
}

impl StagedImage {
    /// An image whose documents came from outside and are kept as they are.
    pub(crate) fn received(
        layout: &Layout,
        manifest: &[u8],
        media_type: &str,
        config: &[u8],
        layers: Vec<StagedLayer>,
    ) -> Result<Self> {
        let file: ConfigFile = model::parse("the image's configuration", config)?;
        Ok(Self {
            manifest: stage_blob(layout, manifest)?,
            media_type: media_type.to_owned(),
            config: stage_blob(layout, config)?,
            layers,
            platform: file.platform,
        })
    }

    /// An image whose manifest is written here, around a configuration that is kept as it is.
    pub(crate) fn described(layout: &Layout, config: &[u8], layers: Vec<StagedLayer>) -> Result<Self> {
        let manifest = Manifest {
            schema_version: 2,
            media_type: MANIFEST.to_owned(),
            config: Descriptor {
                media_type: CONFIG.to_owned(),
                digest: Digest::of(config),
                size: config.len() as u64,
                annotations: BTreeMap::new(),
                platform: None,
            },
            layers: layers.iter().map(|layer| layer.descriptor.clone()).collect(),
        };
        Self::received(layout, &model::render(&manifest), MANIFEST, config, layers)
    }

    /// Puts everything in place under these names and returns the manifest's digest. `None` when something that was in
    /// the store when the preparation began has been removed since, so that it has to begin again.
    pub(crate) fn commit(
        self,
        layout: &Layout,
        origin: Origin,
        names: &[String],
        list_digest: Option<&Digest>,
    ) -> Result<Option<Digest>> {
        // One sync for all the files of all the layers, before anything names them.
        let root = File::open(layout.root()).attempting(|| format!("cannot open {}", layout.root().display()))?;
        rustix::fs::syncfs(&root).attempting(|| format!("cannot sync {}", layout.root().display()))?;
        let locked = layout.lock()?;
        for layer in &self.layers {
            let complete = present_layer(layout, &layer.descriptor, &layer.diff_id)?.is_some();
            match (&layer.blob, &layer.unpacked) {
                (Some(blob), Some(unpacked)) => {
                    locked.place_blob(blob, &layer.descriptor.digest)?;
                    locked.place_layer(unpacked, &layer.diff_id)?;
                }
                _ if complete => {}
                _ => return Ok(None),
            }
        }
        locked.place_blob(&self.config.path, &self.config.digest)?;
        locked.place_blob(&self.manifest.path, &self.manifest.digest)?;
        let mut annotations = BTreeMap::from([(Origin::ANNOTATION.to_owned(), origin.word().to_owned())]);
        if let Some(digest) = list_digest {
            annotations.insert(LIST_DIGEST.to_owned(), digest.to_string());
        }
        let digest = self.manifest.digest;
        let descriptor = Descriptor {
            media_type: self.media_type.clone(),
            digest,
            size: self.manifest.size,
            annotations,
            platform: self.platform.clone(),
        };
        locked.name(&descriptor, names)?;
        Ok(Some(digest))
    }
}

impl Drop for StagedBlob {
    fn drop(&mut self) {
        discard(&self.path);
    }
}

impl Drop for StagedLayer {
    fn drop(&mut self) {
        for path in self.blob.iter().chain(&self.unpacked) {
            discard(path);
        }
    }
}

/// What was not moved into the store takes no space longer than needed; what remains is removed with the work directory.
fn discard(path: &Path) {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(path = %path.display(), %error, "left something unfinished behind");
    }
}

/// Writes a gzipped tar archive to the work directory.
pub(crate) fn stage_archive(
    layout: &Layout,
    put: impl FnOnce(&mut tar::Builder<&mut dyn io::Write>) -> io::Result<()>,
) -> Result<StagedBlob> {
    let path = layout.scratch("blob");
    let what = || format!("cannot write {}", path.display());
    let file = io::BufWriter::with_capacity(1 << 18, File::create(&path).attempting(what)?);
    let mut encoder = flate2::write::GzEncoder::new(Hashing::new(file), flate2::Compression::fast());
    let mut builder = tar::Builder::new(&mut encoder as &mut dyn io::Write);
    put(&mut builder).and_then(|()| builder.finish()).attempting(what)?;
    drop(builder);
    let mut hashed = encoder.finish().attempting(what)?;
    hashed.flush().attempting(what)?;
    let (file, digest, size) = hashed.finish();
    let file = file
        .into_inner()
        .map_err(io::IntoInnerError::into_error)
        .attempting(what)?;
    file.sync_all().attempting(what)?;
    Ok(StagedBlob { path, digest, size })
}

//! Images from files: an OCI layout, as a directory or an archive, or what `docker save` writes; any of them compressed.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek as _, SeekFrom},
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    Digest, Origin, Reference, Result,
    compression::{Rationed, unpacked},
    error::{Attempting as _, Error},
    layout::Layout,
    model::{self, CONTAINERD_NAME, ConfigFile, Descriptor, Document, Index, LARGEST_DOCUMENT, Platform, REF_NAME},
    staging::{LIST_DIGEST, StagedBlob, StagedImage, StagedLayer, present_layer, stage_blob, stage_layer},
};

/// More files no archive of images has.
const MOST_FILES: usize = 100_000;
/// More than this between two files no tool writes.
const LARGEST_HEADER: u64 = 4 << 20;
/// Indexes may lead to indexes, but not for ever.
const DEEPEST_INDEX: usize = 4;

/// Takes every image for this machine that `path` holds into the store, and returns their
/// manifests' digests. Images without a name get `name`, which must be
/// given when there are any and may name only one.
pub(crate) fn import(layout: &Layout, path: &Path, name: Option<&Reference>) -> Result<Vec<Digest>> {
    let source = Source::open(layout, path)?;
    let found = if source.has("index.json") && source.has("oci-layout") {
        oci_images(&source)?
    } else if source.has("manifest.json") {
        docker_images(&source)?
    } else {
        return Err(Error::malformed(
            path.display().to_string(),
            "it is neither an OCI image layout nor an archive of docker save: it has no index.json and no manifest.json",
        ));
    };
    let nameless = found.iter().filter(|image| image.names.is_empty()).count();
    match (nameless, name) {
        (0, _) | (1, Some(_)) => {}
        (1, None) => {
            return Err(Error::malformed(
                path.display().to_string(),
                "its image has no name; give it one",
            ));
        }
        _ => {
            return Err(Error::malformed(
                path.display().to_string(),
                format!("{nameless} of its images have no name"),
            ));
        }
    }
    found
        .into_iter()
        .map(|mut image| {
            if image.names.is_empty() {
                image.names.extend(name.cloned());
            }
            take(layout, &source, &image)
        })
        .collect()
}

/// An image in a source, before anything was taken.
struct Found {
    names: Vec<Reference>,
    list_digest: Option<Digest>,
    shape: Shape,
}

enum Shape {
    /// By digest, with the manifest that is kept.
    Oci(Descriptor),
    /// By file names, without a manifest of the specification.
    Docker { config: String, layers: Vec<String> },
}

fn take(layout: &Layout, source: &Source, image: &Found) -> Result<Digest> {
    let names: Vec<String> = image.names.iter().map(Reference::to_string).collect();
    // Something that was there may be removed by another process meanwhile; it is then taken from the source.
    loop {
        let staged = match &image.shape {
            Shape::Oci(descriptor) => oci_image(layout, source, descriptor)?,
            Shape::Docker { config, layers } => docker_image(layout, source, config, layers)?,
        };
        if let Some(digest) = staged.commit(layout, Origin::Import, &names, image.list_digest.as_ref())? {
            return Ok(digest);
        }
    }
}

fn oci_images(source: &Source) -> Result<Vec<Found>> {
    let index: Index = model::parse("index.json", &source.document("index.json")?)?;
    let mut found: Vec<Found> = Vec::new();
    for entry in &index.manifests {
        // Attestations and the like have a type or platform of their own.
        let Some((descriptor, list_digest)) = select(source, entry, DEEPEST_INDEX)? else {
            continue;
        };
        let name = named(entry);
        let list_digest = list_digest.or_else(|| entry.annotations.get(LIST_DIGEST)?.parse().ok());
        match found.iter_mut().find(
            |other| matches!(&other.shape, Shape::Oci(known) if known.digest == descriptor.digest && name.is_some()),
        ) {
            Some(other) => other.names.extend(name),
            None => found.push(Found {
                names: name.into_iter().collect(),
                list_digest,
                shape: Shape::Oci(descriptor),
            }),
        }
    }
    if found.is_empty() {
        return Err(Error::malformed(
            "index.json",
            format!("it has no image for {}", Platform::here()),
        ));
    }
    Ok(found)
}

/// The name of an entry, from where the different tools put it.
fn named(entry: &Descriptor) -> Option<Reference> {
    let whole = entry.annotations.get(CONTAINERD_NAME);
    // A bare tag says nothing of the image; a name has at least a tag or a path.
    let reference = entry.annotations.get(REF_NAME);
    let reference = reference.filter(|name| name.contains([':', '/', '@']));
    whole.or(reference)?.parse().ok()
}

/// The manifest for this machine behind an entry, and the digest of the index that led there.
fn select(source: &Source, entry: &Descriptor, depth: usize) -> Result<Option<(Descriptor, Option<Digest>)>> {
    let here = Platform::here();
    if let Some(platform) = &entry.platform
        && !platform.os.is_empty()
        && !platform.runs_on(&here)
    {
        return Ok(None);
    }
    let bytes = source.blob_document(&entry.digest)?;
    match Document::parse(&format!("manifest {}", entry.digest), &bytes)? {
        Document::Manifest(_) => Ok(Some((entry.clone(), None))),
        Document::Index(_) if depth == 0 => Err(Error::malformed("index.json", "its indexes are nested too deep")),
        Document::Index(index) => {
            for inner in &index.manifests {
                // Archives of one platform name the others without having them.
                if !source.has(&blob_path(&inner.digest)) {
                    continue;
                }
                if let Some((descriptor, _)) = select(source, inner, depth - 1)? {
                    return Ok(Some((descriptor, Some(entry.digest))));
                }
            }
            Ok(None)
        }
    }
}

fn oci_image(layout: &Layout, source: &Source, descriptor: &Descriptor) -> Result<StagedImage> {
    let what = format!("manifest {}", descriptor.digest);
    let bytes = source.blob_document(&descriptor.digest)?;
    let Document::Manifest(manifest) = Document::parse(&what, &bytes)? else {
        return Err(Error::malformed(what, "it is an index"));
    };
    let config = source.blob_document(&manifest.config.digest)?;
    let file: ConfigFile = model::parse("the image's configuration", &config)?;
    check_layers(&what, manifest.layers.len(), &file)?;
    let mut layers = Vec::new();
    for (layer, diff_id) in manifest.layers.iter().zip(&file.rootfs.diff_ids) {
        if let Some(present) = present_layer(layout, layer, diff_id)? {
            layers.push(present);
            continue;
        }
        let blob = stage_blob(layout, source.open_file(&blob_path(&layer.digest))?)?;
        expect_digest(&blob, &layer.digest)?;
        layers.push(stage_layer(layout, blob, Some(diff_id))?);
    }
    let media_type = if manifest.media_type.is_empty() {
        model::MANIFEST
    } else {
        &manifest.media_type
    };
    StagedImage::received(layout, &bytes, media_type, &config, layers)
}

pub(crate) fn check_layers(what: &str, layers: usize, config: &ConfigFile) -> Result<()> {
    let expected = config.rootfs.diff_ids.len();
    if layers == expected {
        Ok(())
    } else {
        Err(Error::malformed(
            what,
            format!("it has {layers} layers, and its configuration has {expected}"),
        ))
    }
}

pub(crate) fn expect_digest(blob: &StagedBlob, expected: &Digest) -> Result<()> {
    if blob.digest == *expected {
        Ok(())
    } else {
        Err(Error::DigestMismatch {
            what: "a blob of the image".to_owned(),
            expected: *expected,
            actual: blob.digest,
        })
    }
}

/// What `docker save` writes beside, or before, an OCI layout.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

fn docker_images(source: &Source) -> Result<Vec<Found>> {
    let images: Vec<DockerImage> = model::parse("manifest.json", &source.document("manifest.json")?)?;
    if images.is_empty() {
        return Err(Error::malformed("manifest.json", "it has no image"));
    }
    images
        .into_iter()
        .map(|image| {
            let tags = image.repo_tags.unwrap_or_default();
            Ok(Found {
                names: tags.iter().map(|tag| tag.parse()).collect::<Result<_>>()?,
                list_digest: None,
                shape: Shape::Docker {
                    config: image.config,
                    layers: image.layers,
                },
            })
        })
        .collect()
}

fn docker_image(layout: &Layout, source: &Source, config: &str, paths: &[String]) -> Result<StagedImage> {
    let config = source.document(config)?;
    let file: ConfigFile = model::parse("the image's configuration", &config)?;
    check_layers("manifest.json", paths.len(), &file)?;
    if let Some(platform) = &file.platform
        && !platform.os.is_empty()
        && !platform.runs_on(&Platform::here())
    {
        return Err(Error::malformed(
            "the image",
            format!("it is for {platform}, and this machine is {}", Platform::here()),
        ));
    }
    let layers: Vec<StagedLayer> = paths
        .iter()
        .zip(&file.rootfs.diff_ids)
        .map(|(path, diff_id)| stage_layer(layout, stage_blob(layout, source.open_file(path)?)?, Some(diff_id)))
        .collect::<Result<_>>()?;
    StagedImage::described(layout, &config, layers)
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Files by name, in a directory or an archive.
enum Source {
    Directory(PathBuf),
    Archive {
        path: PathBuf,
        /// Unpacked here for the import only.
        temporary: bool,
        files: BTreeMap<String, Piece>,
    },
}

/// Where in an archive a file is, or which other file it is.
enum Piece {
    Bytes { offset: u64, size: u64 },
    Link(String),
}

impl Source {
    fn open(layout: &Layout, path: &Path) -> Result<Self> {
        let what = || format!("cannot read {}", path.display());
        if std::fs::metadata(path).attempting(what)?.is_dir() {
            return Ok(Source::Directory(path.to_owned()));
        }
        let file = File::open(path).attempting(what)?;
        let compressed = {
            let (compression, mut content) = unpacked(&file).attempting(what)?;
            if compression == crate::compression::Compression::None {
                None
            } else {
                let unpacked = layout.scratch("archive");
                let copied = File::create(&unpacked)
                    .and_then(|mut plain| io::copy(&mut content, &mut plain))
                    .map_err(|error| Error::malformed(path.display().to_string(), error));
                if let Err(error) = copied {
                    let _ = std::fs::remove_file(&unpacked);
                    return Err(error);
                }
                Some(unpacked)
            }
        };
        let temporary = compressed.is_some();
        let mut archive = Source::Archive {
            path: compressed.unwrap_or_else(|| path.to_owned()),
            temporary,
            files: BTreeMap::new(),
        };
        archive
            .scan()
            .map_err(|error| Error::malformed(path.display().to_string(), error))?;
        Ok(archive)
    }

    fn scan(&mut self) -> io::Result<()> {
        let Source::Archive { path, files, .. } = self else {
            return Ok(());
        };
        // Bounds what long names can claim; file contents are sought over, not read.
        let allowance = std::cell::Cell::new(LARGEST_HEADER);
        let file = File::open(&*path)?;
        let length = file.metadata()?.len();
        let mut archive = tar::Archive::new(SeekRationed(Rationed::new(&file, &allowance), &file));
        for entry in archive.entries_with_seek()? {
            allowance.set(LARGEST_HEADER);
            let entry = entry?;
            let Some(name) = normal(&entry.path()?) else {
                continue;
            };
            let kind = entry.header().entry_type();
            let (offset, size) = (entry.raw_file_position(), entry.size());
            let piece = if kind.is_file() {
                if offset.checked_add(size).is_none_or(|end| end > length) {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        format!("it ends within {name}"),
                    ));
                }
                Piece::Bytes { offset, size }
            } else if kind.is_symlink() || kind.is_hard_link() {
                let target = entry.link_name()?.unwrap_or_default();
                let base = Path::new(&name).parent().filter(|_| kind.is_symlink());
                match normal(&base.unwrap_or(Path::new("")).join(target)) {
                    Some(target) => Piece::Link(target),
                    None => continue,
                }
            } else {
                continue;
            };
            files.insert(name, piece);
            if files.len() > MOST_FILES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it has too many files"));
            }
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Source::Directory(path) => path.join(name).is_file(),
            Source::Archive { files, .. } => files.contains_key(name),
        }
    }

    fn open_file(&self, name: &str) -> Result<Box<dyn Read>> {
        let missing = || Error::malformed("the archive", format!("it has no file {name:?}"));
        match self {
            Source::Directory(path) => {
                let name = normal(Path::new(name)).ok_or_else(missing)?;
                let path = path.join(name);
                let file = File::open(&path).attempting(|| format!("cannot read {}", path.display()))?;
                Ok(Box::new(file))
            }
            Source::Archive { path, files, .. } => {
                let mut name = normal(Path::new(name)).ok_or_else(missing)?;
                for _ in 0..8 {
                    match files.get(&name).ok_or_else(missing)? {
                        Piece::Link(target) => name.clone_from(target),
                        Piece::Bytes { offset, size } => {
                            let what = || format!("cannot read {}", path.display());
                            let mut file = File::open(path).attempting(what)?;
                            file.seek(SeekFrom::Start(*offset)).attempting(what)?;
                            return Ok(Box::new(file.take(*size)));
                        }
                    }
                }
                Err(missing())
            }
        }
    }

    fn document(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open_file(name)?
            .take(LARGEST_DOCUMENT + 1)
            .read_to_end(&mut bytes)
            .attempting(|| format!("cannot read {name}"))?;
        if bytes.len() as u64 > LARGEST_DOCUMENT {
            return Err(Error::malformed(name, "it is larger than any document"));
        }
        Ok(bytes)
    }

    fn blob_document(&self, digest: &Digest) -> Result<Vec<u8>> {
        let bytes = self.document(&blob_path(digest))?;
        let actual = Digest::of(&bytes);
        if actual == *digest {
            Ok(bytes)
        } else {
            Err(Error::DigestMismatch {
                what: "a document of the image".to_owned(),
                expected: *digest,
                actual,
            })
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Source::Archive {
            path, temporary: true, ..
        } = self
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Reads by ration, seeks freely.
struct SeekRationed<'a>(Rationed<'a, &'a File>, &'a File);

impl Read for SeekRationed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl io::Seek for SeekRationed<'_> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        (&mut &*self.1).seek(position)
    }
}

/// The path with `.` and `..` worked out; `None` where it leads out.
fn normal(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

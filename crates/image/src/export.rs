//! Images as files that other tools take in.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Write},
};

use serde_json::json;

use crate::{
    Digest, Image, Reference, Result,
    compression::unpacked,
    error::Attempting as _,
    layout::Layout,
    model::{self, Index},
};

/// What kind of archive to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// An OCI image layout as a tar archive: what `skopeo`, `podman` and `ctr` read, byte for byte what the store has.
    Oci,
    /// What `docker load` reads, also old ones: layers unpacked, so that image ids stay and manifest digests do not.
    Docker,
}

/// Everything that goes into an archive, opened: what is collected meanwhile can still be read.
pub(crate) struct Export {
    index: Index,
    images: Vec<Listed>,
    blobs: BTreeMap<Digest, File>,
}

struct Listed {
    image: Image,
    config: Vec<u8>,
    /// Blob and content of each layer, from the lowest up.
    layers: Vec<(Digest, Digest)>,
}

impl Export {
    /// Opens what the images consist of; the caller holds the lock.
    pub(crate) fn prepare(layout: &Layout, images: &[Image]) -> Result<Self> {
        let mut export = Self {
            index: Index::default(),
            images: Vec::new(),
            blobs: BTreeMap::new(),
        };
        for entry in layout.entries()? {
            if images.iter().any(|image| image.digest == entry.descriptor.digest) {
                export.index.manifests.push(entry.descriptor);
            }
        }
        for image in images {
            let manifest = layout.manifest(&image.digest)?;
            let diff_ids = layout.config(&manifest)?.rootfs.diff_ids;
            let blobs = manifest.layers.iter().map(|layer| layer.digest);
            for digest in [image.digest, image.id].into_iter().chain(blobs.clone()) {
                let path = layout.blob(&digest);
                let file = File::open(&path).attempting(|| format!("cannot read {}", path.display()))?;
                export.blobs.insert(digest, file);
            }
            export.images.push(Listed {
                image: image.clone(),
                config: layout.document(&image.id)?,
                layers: blobs.zip(diff_ids).collect(),
            });
        }
        Ok(export)
    }

    pub(crate) fn write(self, layout: &Layout, format: ArchiveFormat, out: impl Write) -> Result<()> {
        let what = || "cannot write the archive";
        let mut archive = tar::Builder::new(io::BufWriter::with_capacity(1 << 18, out));
        match format {
            ArchiveFormat::Oci => self.oci(&mut archive).attempting(what)?,
            ArchiveFormat::Docker => self.docker(layout, &mut archive)?,
        }
        archive.into_inner().and_then(|mut out| out.flush()).attempting(what)
    }

    fn oci(&self, archive: &mut tar::Builder<impl Write>) -> io::Result<()> {
        append_bytes(archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        append_bytes(archive, "index.json", &model::render(&self.index))?;
        for (digest, file) in &self.blobs {
            append(
                archive,
                &format!("blobs/sha256/{}", digest.hex()),
                file.metadata()?.len(),
                file,
            )?;
        }
        Ok(())
    }

    fn docker(&self, layout: &Layout, archive: &mut tar::Builder<impl Write>) -> Result<()> {
        let what = || "cannot write the archive";
        let mut listed = Vec::new();
        let mut written = BTreeSet::new();
        for Listed { image, config, layers } in &self.images {
            let config_name = format!("{}.json", image.id.hex());
            if written.insert(config_name.clone()) {
                append_bytes(archive, &config_name, config).attempting(what)?;
            }
            let mut names = Vec::new();
            for (blob, diff_id) in layers {
                let name = format!("{}.tar", diff_id.hex());
                if written.insert(name.clone()) {
                    plain_layer(layout, archive, &self.blobs[blob], &name)
                        .attempting(|| format!("cannot unpack layer {blob} into the archive"))?;
                }
                names.push(name);
            }
            let tagged = image.names.iter().filter(|name| name.tag().is_some());
            let tags: Vec<String> = tagged.map(Reference::familiar).collect();
            listed.push(json!({"Config": config_name, "RepoTags": tags, "Layers": names}));
        }
        append_bytes(archive, "manifest.json", &model::render(&listed)).attempting(what)
    }
}

/// A tar header says the size first, so the layer is unpacked to the side before.
fn plain_layer(layout: &Layout, archive: &mut tar::Builder<impl Write>, packed: &File, name: &str) -> io::Result<()> {
    let path = layout.scratch("plain");
    let mut plain = File::options().create_new(true).read(true).write(true).open(&path)?;
    // Its space is free again once it is closed, however this ends.
    std::fs::remove_file(&path)?;
    let size = io::copy(&mut unpacked(packed)?.1, &mut plain)?;
    io::Seek::rewind(&mut plain)?;
    append(archive, name, size, &plain)
}

fn append_bytes(archive: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    append(archive, name, bytes.len() as u64, bytes)
}

fn append(archive: &mut tar::Builder<impl Write>, name: &str, size: u64, content: impl io::Read) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    archive.append_data(&mut header, name, content)
}

//! What the store hands out.

use std::path::PathBuf;

use crate::{Digest, Error, ImageConfig, Origin, Reference, Result, layout::Layout, reference::Version, staging};

/// An image that is in the store, ready to run.
#[derive(Clone, Debug)]
pub struct Image {
    /// The digest of its configuration, by which Kubernetes knows an image on a node.
    pub id: Digest,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Every name that it has in this store.
    pub names: Vec<Reference>,
    /// Its repositories with the digests by which their registries know it.
    pub repo_digests: Vec<Reference>,
    /// What runs in it, and how.
    pub config: ImageConfig,
    /// Its unpacked layers, the topmost first: the order of overlayfs' `lowerdir`. They must not be written to.
    pub layers: Vec<PathBuf>,
    /// Bytes of its files when unpacked.
    pub bytes: u64,
    /// When it was made, as it says itself.
    pub created: Option<String>,
    /// How it came here.
    pub origin: Origin,
}

/// Which image is meant: by name in any form, or by the digest of its configuration or manifest.
pub(crate) fn find(layout: &Layout, name: &str) -> Result<Image> {
    let absent = || Error::Absent { name: name.to_owned() };
    let entries = layout.entries()?;
    if let Ok(digest) = name.parse::<Digest>() {
        for entry in &entries {
            let manifest = entry.descriptor.digest;
            if manifest == digest || layout.manifest(&manifest)?.config.digest == digest {
                return load(layout, &manifest);
            }
        }
        return Err(absent());
    }
    let reference: Reference = name.parse()?;
    let found = entries.iter().find(|entry| {
        let Some(own) = entry.name() else { return false };
        if own == reference.to_string() {
            return true;
        }
        // Content that is here under a tag is found by its digest too.
        let Version::Digest(digest) = reference.version() else {
            return false;
        };
        let known_as = entry.descriptor.annotations.get(staging::LIST_DIGEST);
        let same = entry.descriptor.digest == *digest || known_as.is_some_and(|known| *known == digest.to_string());
        same && own.parse::<Reference>().is_ok_and(|own| own.name() == reference.name())
    });
    load(layout, &found.ok_or_else(absent)?.descriptor.digest)
}

/// Every image, in the order in which they came.
pub(crate) fn all(layout: &Layout) -> Result<Vec<Image>> {
    let mut digests: Vec<Digest> = Vec::new();
    for entry in layout.entries()? {
        if !digests.contains(&entry.descriptor.digest) {
            digests.push(entry.descriptor.digest);
        }
    }
    digests.iter().map(|digest| load(layout, digest)).collect()
}

/// The image with this manifest.
pub(crate) fn load(layout: &Layout, digest: &Digest) -> Result<Image> {
    let manifest = layout.manifest(digest)?;
    let file = layout.config(&manifest)?;
    let mut layers = Vec::new();
    let mut bytes = 0;
    for diff_id in file.rootfs.diff_ids.iter().rev() {
        let record = layout
            .layer_record(diff_id)?
            .ok_or_else(|| Error::damaged(format!("layer {diff_id}"), "it is missing"))?;
        bytes += record.bytes;
        layers.push(layout.layer(diff_id).join("tree"));
    }
    let mut names: Vec<Reference> = Vec::new();
    let mut repo_digests: Vec<Reference> = Vec::new();
    let mut origin = Origin::Import;
    for entry in layout.entries()? {
        if entry.descriptor.digest != *digest {
            continue;
        }
        origin = Origin::of(&entry.descriptor);
        let Some(name) = entry.name().and_then(|name| name.parse::<Reference>().ok()) else {
            continue;
        };
        let listed = entry.descriptor.annotations.get(staging::LIST_DIGEST);
        let known_as = listed.and_then(|listed| listed.parse().ok()).unwrap_or(*digest);
        let by_digest = name.at(Version::Digest(known_as));
        if !repo_digests.contains(&by_digest) {
            repo_digests.push(by_digest);
        }
        names.push(name);
    }
    names.sort();
    Ok(Image {
        id: manifest.config.digest,
        digest: *digest,
        names,
        repo_digests,
        config: file.config,
        layers,
        bytes,
        created: file.created,
        origin,
    })
}

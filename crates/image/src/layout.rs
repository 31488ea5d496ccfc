//! The store on disk: an OCI image layout that other tools can read, with unpacked layers beside it.
//!
//! ```text
//!   oci-layout            the version of the layout
//!   index.json            which images there are, by name
//!   blobs/sha256/…        manifests, configurations and layers as they came
//!   layers/…/tree         layers unpacked, ready to be stacked
//!   pins/…                which manifests are in use, by whom
//!   work/…/               what a running process is making; its lock tells whether it still runs
//!   lock                  held for the moment of a change
//! ```
//!
//! Invariants: whatever `index.json` or a pin names is there completely; whatever they do not name may be collected. A
//! change prepares everything in `work`, syncs it, and then, holding the lock, moves it into place and replaces
//! `index.json` last. So a crash leaves either orphans, which the next opening removes, or the change.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Serialize};

use crate::{
    Digest, Result,
    error::{Attempting as _, Error},
    model::{self, CONTAINERD_NAME, ConfigFile, Descriptor, Index, LARGEST_DOCUMENT, Manifest, REF_NAME},
    unpack::Ownership,
};

/// Digits of a layer's digest in its directory's name. The options of a mount share one page, so short paths let an
/// image have many layers; the whole digest is in `layer.json`.
const LAYER_DIGITS: usize = 32;

/// An opened store directory.
pub(crate) struct Layout {
    root: PathBuf,
    work: PathBuf,
    work_lock: File,
    next: AtomicU64,
    ownership: Ownership,
}

/// Held while something changes; other processes wait.
pub(crate) struct Locked<'a> {
    layout: &'a Layout,
    _lock: File,
}

/// What `layer.json` says of an unpacked layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerRecord {
    pub(crate) diff_id: Digest,
    pub(crate) bytes: u64,
}

/// One name in `index.json`.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) descriptor: Descriptor,
}

impl Entry {
    /// The whole name, where the entry has one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.descriptor.annotations.get(REF_NAME).map(String::as_str)
    }
}

impl Layout {
    /// Opens the directory, makes it where it is missing, and removes what a crash left.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let make = |path: PathBuf| fs::create_dir_all(&path).attempting(|| format!("cannot make {}", path.display()));
        make(root.join("blobs/sha256"))?;
        make(root.join("layers"))?;
        make(root.join("pins"))?;
        make(root.join("work"))?;
        let root = root
            .canonicalize()
            .attempting(|| format!("cannot find {}", root.display()))?;
        let lock = lock(&root)?;
        let version = root.join("oci-layout");
        if !version.exists() {
            let next = root.join("work/oci-layout");
            write_synced(&next, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
            rename(&next, &version)?;
        }
        remove_abandoned(&root.join("work"))?;
        let name = format!("{}-{:016x}", std::process::id(), random()?);
        let work = root.join("work").join(name);
        make(work.clone())?;
        let work_lock = File::create(work.join("lock")).attempting(|| format!("cannot lock {}", work.display()))?;
        work_lock
            .lock()
            .attempting(|| format!("cannot lock {}", work.display()))?;
        let layout = Self {
            root,
            work,
            work_lock,
            next: AtomicU64::new(0),
            ownership: Ownership::here(),
        };
        let locked = Locked {
            layout: &layout,
            _lock: lock,
        };
        if !layout.root.join("index.json").exists() {
            locked.write_index(&Index::default())?;
        }
        match locked.sweep() {
            Ok(swept) => drop((locked, swept)),
            // What cannot be understood must not be taken for garbage.
            Err(error) => {
                tracing::warn!(%error, "did not look for garbage");
                drop(locked);
            }
        }
        Ok(layout)
    }

    pub(crate) fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// The directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A fresh path in this process' part of `work`.
    pub(crate) fn scratch(&self, what: &str) -> PathBuf {
        self.work
            .join(format!("{what}-{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }

    /// Waits for its turn to change something.
    pub(crate) fn lock(&self) -> Result<Locked<'_>> {
        Ok(Locked {
            layout: self,
            _lock: lock(&self.root)?,
        })
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    pub(crate) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.root.join("layers").join(&diff_id.hex()[..LAYER_DIGITS])
    }

    /// The unpacked layer, where it is there.
    pub(crate) fn layer_record(&self, diff_id: &Digest) -> Result<Option<LayerRecord>> {
        let path = self.layer(diff_id).join("layer.json");
        let Some(bytes) = read_small(&path)? else {
            return Ok(None);
        };
        let record: LayerRecord =
            serde_json::from_slice(&bytes).map_err(|error| Error::damaged(path.display().to_string(), error))?;
        if record.diff_id == *diff_id {
            Ok(Some(record))
        } else {
            Err(Error::damaged(
                path.display().to_string(),
                format!("it is of layer {}, not {diff_id}", record.diff_id),
            ))
        }
    }

    pub(crate) fn has_blob(&self, descriptor: &Descriptor) -> bool {
        fs::metadata(self.blob(&descriptor.digest)).is_ok_and(|meta| meta.len() == descriptor.size)
    }

    /// The images by name, as they are at this moment.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>> {
        let path = self.root.join("index.json");
        let bytes = read_small(&path)?.ok_or_else(|| Error::damaged("index.json", "it is missing"))?;
        let index: Index = serde_json::from_slice(&bytes).map_err(|error| Error::damaged("index.json", error))?;
        Ok(index
            .manifests
            .into_iter()
            .map(|descriptor| Entry { descriptor })
            .collect())
    }

    /// Reads a manifest or configuration and checks that it is what its name says.
    pub(crate) fn document(&self, digest: &Digest) -> Result<Vec<u8>> {
        let what = || format!("document {digest}");
        let bytes = read_small(&self.blob(digest))?.ok_or_else(|| Error::damaged(what(), "it is missing"))?;
        if Digest::of(&bytes) == *digest {
            Ok(bytes)
        } else {
            Err(Error::damaged(what(), "its content has changed"))
        }
    }

    pub(crate) fn manifest(&self, digest: &Digest) -> Result<Manifest> {
        model::parse(&format!("manifest {digest}"), &self.document(digest)?)
    }

    pub(crate) fn config(&self, manifest: &Manifest) -> Result<ConfigFile> {
        let digest = &manifest.config.digest;
        model::parse(&format!("configuration {digest}"), &self.document(digest)?)
    }

    /// Which manifest each holder keeps in use.
    pub(crate) fn pins(&self) -> Result<BTreeMap<String, Digest>> {
        let path = self.root.join("pins");
        let mut pins = BTreeMap::new();
        for entry in list(&path)? {
            let holder = entry.file_name().to_string_lossy().into_owned();
            let Some(bytes) = read_small(&entry.path())? else {
                continue;
            };
            let digest = String::from_utf8_lossy(&bytes)
                .trim()
                .parse()
                .map_err(|error| Error::damaged(format!("pin {holder}"), error))?;
            pins.insert(holder, digest);
        }
        Ok(pins)
    }

    /// Bytes on disk: of what came, and of what was unpacked.
    pub(crate) fn usage(&self) -> Result<(u64, u64)> {
        let mut blobs = 0;
        for entry in list(&self.root.join("blobs/sha256"))? {
            blobs += entry.metadata().map_or(0, |meta| meta.len());
        }
        let mut layers = 0;
        for entry in list(&self.root.join("layers"))? {
            if let Some(bytes) = read_small(&entry.path().join("layer.json"))?
                && let Ok(record) = serde_json::from_slice::<LayerRecord>(&bytes)
            {
                layers += record.bytes;
            }
        }
        Ok((blobs, layers))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // What fails here is removed by the next opening.
        let _ = fs::remove_dir_all(&self.work);
        let _ = self.work_lock.unlock();
    }
}

impl Locked<'_> {
    /// Moves a prepared blob into place, unless an equal one is there.
    pub(crate) fn place_blob(&self, prepared: &Path, digest: &Digest) -> Result<()> {
        let place = self.layout.blob(digest);
        let length = |path: &Path| fs::metadata(path).map(|meta| meta.len()).ok();
        if length(&place).is_some() && length(&place) == length(prepared) {
            return Ok(());
        }
        rename(prepared, &place)
    }

    /// Moves an unpacked layer into place, unless it is there.
    pub(crate) fn place_layer(&self, prepared: &Path, diff_id: &Digest) -> Result<()> {
        if self.layout.layer_record(diff_id)?.is_some() {
            return Ok(());
        }
        let place = self.layout.layer(diff_id);
        if place.exists() {
            rename(&place, &self.layout.scratch("incomplete"))?;
        }
        rename(prepared, &place)
    }

    /// Gives the manifest these names, taking them from what had them before. Without any name it is listed nameless.
    pub(crate) fn name(&self, manifest: &Descriptor, names: &[String]) -> Result<()> {
        for directory in ["blobs/sha256", "layers"] {
            sync_directory(&self.layout.root.join(directory))?;
        }
        let mut entries = self.layout.entries()?;
        entries.retain(|entry| match entry.name() {
            Some(name) => !names.iter().any(|new| new == name),
            None => entry.descriptor.digest != manifest.digest,
        });
        let nameless = names.is_empty() && !entries.iter().any(|e| e.descriptor.digest == manifest.digest);
        let labels = names.iter().map(Some).chain(nameless.then_some(None));
        entries.extend(labels.map(|name| {
            let mut descriptor = manifest.clone();
            if let Some(name) = name {
                descriptor.annotations.insert(REF_NAME.to_owned(), name.clone());
                descriptor.annotations.insert(CONTAINERD_NAME.to_owned(), name.clone());
            }
            Entry { descriptor }
        }));
        self.write_entries(entries)
    }

    /// Removes those entries that `doomed` names, and returns how many.
    pub(crate) fn remove(&self, doomed: impl Fn(&Entry) -> bool) -> Result<usize> {
        let mut entries = self.layout.entries()?;
        let before = entries.len();
        entries.retain(|entry| !doomed(entry));
        let removed = before - entries.len();
        if removed > 0 {
            self.write_entries(entries)?;
        }
        Ok(removed)
    }

    pub(crate) fn pin(&self, holder: &str, manifest: &Digest) -> Result<()> {
        let prepared = self.layout.scratch("pin");
        write_synced(&prepared, manifest.to_string().as_bytes())?;
        rename(&prepared, &self.layout.root.join("pins").join(holder))?;
        sync_directory(&self.layout.root.join("pins"))
    }

    pub(crate) fn unpin(&self, holder: &str) -> Result<()> {
        match fs::remove_file(self.layout.root.join("pins").join(holder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.attempting(|| format!("cannot remove pin {holder}")),
        }
    }

    /// Takes everything that neither a name nor a pin leads to out of the way. Dropping what is returned, without the
    /// lock, deletes it; the space counts as free either way.
    pub(crate) fn sweep(&self) -> Result<Swept> {
        let layout = self.layout;
        let mut blobs = BTreeSet::new();
        let mut layers = BTreeSet::new();
        let named = layout.entries()?.into_iter().map(|entry| entry.descriptor.digest);
        let roots: BTreeSet<Digest> = named.chain(layout.pins()?.into_values()).collect();
        for digest in roots {
            let manifest = layout.manifest(&digest)?;
            blobs.insert(digest.hex());
            blobs.insert(manifest.config.digest.hex());
            blobs.extend(manifest.layers.iter().map(|layer| layer.digest.hex()));
            let config = layout.config(&manifest)?;
            let directories = config
                .rootfs
                .diff_ids
                .iter()
                .map(|id| id.hex()[..LAYER_DIGITS].to_owned());
            layers.extend(directories);
        }
        let mut swept = Swept {
            bytes: 0,
            garbage: layout.scratch("garbage"),
        };
        fs::create_dir(&swept.garbage).attempting(|| format!("cannot make {}", swept.garbage.display()))?;
        for (directory, live) in [("blobs/sha256", &blobs), ("layers", &layers)] {
            for entry in list(&layout.root.join(directory))? {
                let name = entry.file_name().to_string_lossy().into_owned();
                if live.contains(&name) {
                    continue;
                }
                let record = read_small(&entry.path().join("layer.json")).ok().flatten();
                let record = record.and_then(|bytes| serde_json::from_slice::<LayerRecord>(&bytes).ok());
                let meta = entry.metadata();
                swept.bytes += record.map_or_else(|| meta.map_or(0, |meta| meta.len()), |record| record.bytes);
                let place = swept.garbage.join(format!("{}-{name}", &directory[..5]));
                rename(&entry.path(), &place)?;
            }
        }
        Ok(swept)
    }

    fn write_entries(&self, entries: Vec<Entry>) -> Result<()> {
        self.write_index(&Index {
            manifests: entries.into_iter().map(|entry| entry.descriptor).collect(),
            ..Index::default()
        })
    }

    fn write_index(&self, index: &Index) -> Result<()> {
        let prepared = self.layout.scratch("index");
        let bytes = serde_json::to_vec_pretty(index).expect("an index has string keys only, which JSON can write");
        write_synced(&prepared, &bytes)?;
        rename(&prepared, &self.layout.root.join("index.json"))?;
        sync_directory(&self.layout.root)
    }
}

/// What a sweep took away; deleted when dropped.
pub(crate) struct Swept {
    /// How much space it took.
    pub(crate) bytes: u64,
    garbage: PathBuf,
}

impl Drop for Swept {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.garbage) {
            tracing::debug!(path = %self.garbage.display(), %error, "left garbage to the next opening");
        }
    }
}

fn lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let what = || format!("cannot lock {}", path.display());
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .attempting(what)?;
    file.lock().attempting(what)?;
    Ok(file)
}

/// Removes the work of processes that have ended; theirs is what nobody holds the lock of.
fn remove_abandoned(work: &Path) -> Result<()> {
    for entry in list(work)? {
        let path = entry.path();
        let running = File::open(path.join("lock")).is_ok_and(|lock| lock.try_lock().is_err());
        if !running {
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.attempting(|| format!("cannot remove {}, which a crash left", path.display()))?;
        }
    }
    Ok(())
}

fn list(directory: &Path) -> Result<Vec<fs::DirEntry>> {
    fs::read_dir(directory)
        .and_then(Iterator::collect)
        .attempting(|| format!("cannot list {}", directory.display()))
}

/// Reads a document, `None` where there is none.
fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    let what = || format!("cannot read {}", path.display());
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        opened => opened.attempting(what)?,
    };
    let mut bytes = Vec::new();
    file.take(LARGEST_DOCUMENT + 1)
        .read_to_end(&mut bytes)
        .attempting(what)?;
    if bytes.len() as u64 > LARGEST_DOCUMENT {
        return Err(Error::damaged(
            path.display().to_string(),
            "it is larger than any document",
        ));
    }
    Ok(Some(bytes))
}

/// Writes a file so that it survives a power cut.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    use io::Write as _;
    let what = || format!("cannot write {}", path.display());
    let mut file = File::create(path).attempting(what)?;
    file.write_all(bytes).attempting(what)?;
    file.sync_all().attempting(what)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).attempting(|| format!("cannot move {} to {}", from.display(), to.display()))
}

fn sync_directory(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .attempting(|| format!("cannot sync {}", path.display()))
}

/// A number that no other process' is, also in another pid namespace.
fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .attempting(|| "cannot read /dev/urandom")?;
    Ok(u64::from_le_bytes(bytes))
}

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;

use super::files::{Files, Hold, LockError, Writable};

/// A disk in memory that fills up, refuses to sync and loses power when told to, the same way for the same seed.
///
/// It keeps what has been written apart from what has been synced. When the power goes, each write since the last sync
/// survives whole, in part or not at all; names given and taken since they were last synced survive up to some point.
/// When a sync fails, what it was to make durable is never made durable by a later one.
#[derive(Clone)]
pub struct SimulatedDisk {
    platter: Arc<Mutex<Platter>>,
}

/// How a simulated machine goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies. What it wrote is there, though not durable.
    Process,
    /// The power goes. What was not synced is there in parts.
    Power,
}

struct Platter {
    files: Vec<Content>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    renames: Vec<NameEdit>,
    capacity: Option<u64>,
    syncs_to_fail: u32,
    operations: u64,
    crash_at: Option<u64>,
    /// Counts crashes: whoever opened a file before the last one is gone.
    epoch: u64,
    down: bool,
    locked: bool,
    random: Rng,
}

#[derive(Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Edit>,
    /// How much of it takes room: lengths set ahead do not.
    taken: u64,
}

enum Edit {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

enum NameEdit {
    Set(String, usize),
    Remove(String),
}

impl SimulatedDisk {
    /// An empty disk whose accidents follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let platter = Platter {
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            renames: Vec::new(),
            capacity: None,
            syncs_to_fail: 0,
            operations: 0,
            crash_at: None,
            epoch: 0,
            down: false,
            locked: false,
            random: Rng::with_seed(seed),
        };
        Self {
            platter: Arc::new(Mutex::new(platter)),
        }
    }

    /// Bounds the room for data; none for no bound.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.platter().capacity = bytes;
    }

    /// Makes the next syncs of files fail.
    pub fn fail_syncs(&self, count: u32) {
        self.platter().syncs_to_fail = count;
    }

    /// Goes down in the middle of the operation that comes after so many more.
    pub fn crash_after(&self, operations: u64) {
        let mut platter = self.platter();
        platter.crash_at = Some(platter.operations + operations);
    }

    /// How many operations have changed something so far.
    pub fn operations(&self) -> u64 {
        self.platter().operations
    }

    /// Goes down now, if it has not yet, and comes up again. Whoever had files open fails from now on.
    pub fn restart(&self, crash: Crash) {
        self.platter().restart(crash);
    }

    /// The bytes of a file.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let platter = self.platter();
        let file = platter.names.get(name)?;
        Some(platter.files[*file].now.clone())
    }

    /// Changes the bytes of a file behind everyone's back.
    pub fn tamper(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut platter = self.platter();
        if let Some(file) = platter.names.get(name).copied() {
            let content = &mut platter.files[file];
            change(&mut content.now);
            content.durable.clone_from(&content.now);
            content.unsynced.clear();
        }
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().expect("no code panics while holding the platter")
    }
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    match edit {
        Edit::Length(length) => bytes.resize(*length, 0),
        Edit::Write { offset, bytes: written } => {
            let end = offset + written.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*offset..end].copy_from_slice(written);
        }
    }
}

impl Content {
    fn edit(&mut self, edit: Edit) {
        apply(&mut self.now, &edit);
        match &edit {
            Edit::Write { offset, bytes } => self.taken = self.taken.max((offset + bytes.len()) as u64),
            Edit::Length(length) => self.taken = self.taken.min(*length as u64),
        }
        self.unsynced.push(edit);
    }

    /// Lets each unsynced edit become durable whole, in part or not at all.
    fn scatter(&mut self, random: &mut Rng) {
        for mut edit in self.unsynced.drain(..) {
            match random.u8(..3) {
                0 => continue,
                1 => {
                    if let Edit::Write { bytes, .. } = &mut edit {
                        bytes.truncate(random.usize(..=bytes.len()));
                    }
                }
                _ => {}
            }
            apply(&mut self.durable, &edit);
        }
    }
}

impl Platter {
    fn down() -> io::Error {
        io::Error::other("the simulated machine is down")
    }

    /// Counts an operation. Gives how much of it still happens, in 256ths, when it is the last one.
    fn step(&mut self) -> io::Result<Option<u8>> {
        if self.down {
            return Err(Self::down());
        }
        let last = self.crash_at == Some(self.operations);
        self.operations += 1;
        if last {
            self.down = true;
            return Ok(Some(self.random.u8(..)));
        }
        Ok(None)
    }

    fn restart(&mut self, crash: Crash) {
        if crash == Crash::Power {
            for content in &mut self.files {
                content.scatter(&mut self.random);
                content.now.clone_from(&content.durable);
                content.taken = content.now.len() as u64;
            }
            let survive = self.random.usize(..=self.renames.len());
            for edit in self.renames.drain(..).take(survive) {
                edit.apply(&mut self.durable_names);
            }
            self.renames.clear();
            self.names = self.durable_names.clone();
        }
        self.down = false;
        self.locked = false;
        self.crash_at = None;
        self.epoch += 1;
    }

    fn rename(&mut self, edit: NameEdit) {
        edit.apply(&mut self.names);
        self.renames.push(edit);
    }

    fn taken(&self) -> u64 {
        self.names.values().map(|file| self.files[*file].taken).sum()
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl NameEdit {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Set(name, file) => {
                names.retain(|_, other| other != file);
                names.insert(name.clone(), *file);
            }
            Self::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

struct Open {
    disk: SimulatedDisk,
    file: usize,
    epoch: u64,
}

impl Open {
    fn platter(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let platter = self.disk.platter();
        if platter.epoch == self.epoch {
            Ok(platter)
        } else {
            Err(Platter::down())
        }
    }
}

fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("a simulated file fits into memory")
}

impl Writable for Open {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut platter = self.platter()?;
        let last = platter.step()?;
        let mut room = bytes.len();
        if let Some(capacity) = platter.capacity {
            let grows = (offset + bytes.len() as u64).saturating_sub(platter.files[self.file].taken);
            let free = capacity.saturating_sub(platter.taken());
            room -= position(grows.saturating_sub(free)).min(room);
        }
        let whole = room == bytes.len();
        if let Some(part) = last {
            room = room * usize::from(part) / 256;
        }
        let edit = Edit::Write {
            offset: position(offset),
            bytes: bytes[..room].to_vec(),
        };
        platter.files[self.file].edit(edit);
        match (last, whole) {
            (Some(_), _) => Err(Platter::down()),
            (None, false) => Err(io::ErrorKind::StorageFull.into()),
            (None, true) => Ok(()),
        }
    }

    fn set_len(&mut self, length: u64) -> io::Result<()> {
        let mut platter = self.platter()?;
        let last = platter.step()?;
        platter.files[self.file].edit(Edit::Length(position(length)));
        last.map_or(Ok(()), |_| Err(Platter::down()))
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut platter = self.platter()?;
        let last = platter.step()?;
        let fails = platter.syncs_to_fail > 0;
        let Platter {
            files,
            random,
            syncs_to_fail,
            ..
        } = &mut *platter;
        let content = &mut files[self.file];
        if fails {
            *syncs_to_fail -= 1;
            content.scatter(random);
            return Err(io::Error::other("the simulated disk failed to sync"));
        }
        if last.is_some() {
            return Err(Platter::down());
        }
        for edit in std::mem::take(&mut content.unsynced) {
            apply(&mut content.durable, &edit);
        }
        Ok(())
    }
}

struct Unlock(SimulatedDisk, u64);

impl Drop for Unlock {
    fn drop(&mut self) {
        let mut platter = self.0.platter();
        if platter.epoch == self.1 {
            platter.locked = false;
        }
    }
}

impl Files for SimulatedDisk {
    fn lock(&self) -> Result<Hold, LockError> {
        let mut platter = self.platter();
        if platter.locked {
            return Err(LockError::Held { by: None });
        }
        platter.locked = true;
        Ok(Hold::new(Unlock(self.clone(), platter.epoch)))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let platter = self.platter();
        if platter.down {
            Err(Platter::down())
        } else {
            Ok(platter.names.keys().cloned().collect())
        }
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        let platter = self.platter();
        if platter.down {
            return Err(Platter::down());
        }
        let file = platter.find(name)?;
        Ok(Box::new(Cursor::new(platter.files[file].now.clone())))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Writable>> {
        let mut platter = self.platter();
        let last = platter.step()?;
        let file = platter.files.len();
        platter.files.push(Content::default());
        platter.rename(NameEdit::Set(name.to_owned(), file));
        last.map_or(Ok(()), |_| Err(Platter::down()))?;
        Ok(Box::new(Open {
            disk: self.clone(),
            file,
            epoch: platter.epoch,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Writable>> {
        let platter = self.platter();
        if platter.down {
            return Err(Platter::down());
        }
        Ok(Box::new(Open {
            disk: self.clone(),
            file: platter.find(name)?,
            epoch: platter.epoch,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut platter = self.platter();
        let last = platter.step()?;
        let file = platter.find(from)?;
        platter.rename(NameEdit::Set(to.to_owned(), file));
        last.map_or(Ok(()), |_| Err(Platter::down()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut platter = self.platter();
        let last = platter.step()?;
        platter.find(name)?;
        platter.rename(NameEdit::Remove(name.to_owned()));
        last.map_or(Ok(()), |_| Err(Platter::down()))
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut platter = self.platter();
        if platter.step()?.is_some() {
            return Err(Platter::down());
        }
        platter.renames.clear();
        platter.durable_names = platter.names.clone();
        Ok(())
    }
}

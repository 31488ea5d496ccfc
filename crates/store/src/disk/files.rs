use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The directory that a store lives in, as it needs to see it. [`Directory`] is the real one;
/// [`SimulatedDisk`](super::SimulatedDisk) fails and crashes on demand.
pub trait Files: Send + Sync + 'static {
    /// Takes the directory for this store alone until the hold is dropped.
    fn lock(&self) -> Result<Hold, LockError>;

    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Reads a file from its beginning.
    fn read(&self, name: &str) -> io::Result<Box<dyn Read + Send>>;

    /// Makes an empty file, in place of one that may be there.
    fn create(&self, name: &str) -> io::Result<Box<dyn Writable>>;

    /// Opens a file to change it.
    fn open(&self, name: &str) -> io::Result<Box<dyn Writable>>;

    /// Gives a file another name, in place of one that may have it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names given and taken so far survive a crash.
    fn sync_names(&self) -> io::Result<()>;
}

/// A file that can be changed.
pub trait Writable: Send {
    /// Writes all of `bytes` at `offset`. When it fails any part of them may have been written.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts or extends the file; what is added reads as zeros.
    fn set_len(&mut self, length: u64) -> io::Result<()>;

    /// Makes what was written so far survive a crash. When it fails nothing is known of what was written since the last
    /// time it succeeded.
    fn sync(&mut self) -> io::Result<()>;
}

/// The right to use a directory. It ends when this is dropped.
pub struct Hold(#[expect(dead_code, reason = "held for its drop alone")] Box<dyn Send>);

impl Hold {
    /// A right that ends when `token` is dropped.
    pub fn new(token: impl Send + 'static) -> Self {
        Self(Box::new(token))
    }
}

/// Why a directory could not be taken.
#[derive(Debug)]
pub enum LockError {
    /// Another process, or another store in this one, has it.
    Held {
        /// The process, if it said who it is.
        by: Option<u32>,
    },
    /// It could not be tried.
    Io(io::Error),
}

/// A directory of the file system.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

const LOCK: &str = "lock";

impl Directory {
    /// The directory at `path`, made if it does not exist, for its owner's eyes only.
    pub fn at(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        if !path.is_dir() {
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.recursive(true).create(&path)?;
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                File::open(parent)?.sync_all()?;
            }
        }
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A lock file that is ours.
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that this process has just forked holds it too until it executes, and
        // would hold the lock with it.
        let _ = self.0.unlock();
    }
}

impl Files for Directory {
    fn lock(&self) -> Result<Hold, LockError> {
        // Opened without truncation: until the lock is ours the content is what the holder says of itself.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.join(LOCK))
            .map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let by = file
                    .read_to_string(&mut holder)
                    .ok()
                    .and_then(|_| holder.trim().parse().ok());
                return Err(LockError::Held { by });
            }
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        // A full disk must not keep a store from being opened and read; the name of the holder is a courtesy.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Hold::new(Locked(file)))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(self.path.join(name))?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Writable>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        Ok(Box::new(options.open(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Writable>> {
        Ok(Box::new(OpenOptions::new().write(true).open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl Writable for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_len(&mut self, length: u64) -> io::Result<()> {
        File::set_len(self, length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

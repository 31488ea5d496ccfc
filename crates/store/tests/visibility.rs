//! While a sync is under way: what it is to make durable is seen by nobody, and nobody waits for it but its writer.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use moorline_store::disk::{DiskOptions, Files, Hold, LockError, SimulatedDisk, Writable};
use moorline_store::{Attributes, Key, List, Resource, Revision, Scope, Start, Store, Value, WriteError};

/// A disk whose syncs can be held up.
#[derive(Clone)]
struct GatedDisk {
    disk: SimulatedDisk,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    standing: Mutex<Standing>,
    change: Condvar,
}

#[derive(Default)]
struct Standing {
    shut: bool,
    waiting: usize,
}

impl Gate {
    fn set_shut(&self, shut: bool) {
        self.standing.lock().unwrap().shut = shut;
        self.change.notify_all();
    }

    fn pass(&self) {
        let mut standing = self.standing.lock().unwrap();
        standing.waiting += 1;
        self.change.notify_all();
        let mut standing = self.change.wait_while(standing, |standing| standing.shut).unwrap();
        standing.waiting -= 1;
    }

    fn until_someone_waits(&self) {
        let standing = self.standing.lock().unwrap();
        drop(
            self.change
                .wait_while(standing, |standing| standing.waiting == 0)
                .unwrap(),
        );
    }
}

struct GatedFile(Box<dyn Writable>, Arc<Gate>);

impl Writable for GatedFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn set_len(&mut self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.1.pass();
        self.0.sync()
    }
}

impl GatedDisk {
    fn gated(&self, file: Box<dyn Writable>) -> Box<dyn Writable> {
        Box::new(GatedFile(file, Arc::clone(&self.gate)))
    }
}

impl Files for GatedDisk {
    fn lock(&self) -> Result<Hold, LockError> {
        self.disk.lock()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        self.disk.read(name)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Writable>> {
        Ok(self.gated(self.disk.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Writable>> {
        Ok(self.gated(self.disk.open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }
}

fn thing(name: &str) -> Key {
    Key::new(&Resource::new("things"), "", name)
}

fn open(disk: &GatedDisk) -> Store {
    Store::open(disk.clone(), DiskOptions::default(), |_: &Key, _: &[u8]| {
        Attributes::default()
    })
    .unwrap()
    .0
}

#[test]
fn what_is_not_durable_is_seen_by_nobody_and_readers_do_not_wait() {
    let disk = GatedDisk {
        disk: SimulatedDisk::new(1),
        gate: Arc::default(),
    };
    let store = open(&disk);
    store.put(thing("a"), Value::new("1")).wait().unwrap();
    let things = Scope::Resource(Resource::new("things"));
    let mut watch = store.watch(things.clone(), Start::Now).unwrap();

    disk.gate.set_shut(true);
    let pending = store.put(thing("a"), Value::new("2"));
    disk.gate.until_someone_waits();
    assert_eq!(store.get(&thing("a")).unwrap().value(), "1");
    assert_eq!(store.list(&List::all(things)).unwrap().revision, Revision::new(2));
    assert!(watch.try_next().is_none());
    assert_eq!(watch.progress(), Some(Revision::new(2)));

    disk.gate.set_shut(false);
    assert_eq!(
        watch.next_within(Duration::from_secs(30)).unwrap().unwrap().revision(),
        Revision::new(3)
    );
    assert_eq!(pending.wait().unwrap().revision, Revision::new(3));
    assert_eq!(store.get(&thing("a")).unwrap().value(), "2");
}

#[test]
fn a_verdict_that_rests_on_a_write_comes_only_once_that_is_durable() {
    let disk = GatedDisk {
        disk: SimulatedDisk::new(1),
        gate: Arc::default(),
    };
    let store = open(&disk);
    store.put(thing("a"), Value::new("1")).wait().unwrap();
    disk.gate.set_shut(true);
    let first = store.put(thing("a"), Value::new("3"));
    disk.gate.until_someone_waits();
    // These two go together next. The disk takes neither, so the second must not hear that the first exists.
    let created = store.create(thing("c"), Value::new("x"));
    let again = store.create(thing("c"), Value::new("y"));
    // The sync under way and the one that cuts its frame off, then the one that would make the next log.
    disk.disk.fail_syncs(3);
    disk.gate.set_shut(false);
    assert!(matches!(first.wait(), Err(WriteError::Unavailable(_))));
    for pending in [created, again] {
        assert!(matches!(pending.wait(), Err(WriteError::Unavailable(_))));
    }
    assert!(store.get(&thing("c")).is_none());
}

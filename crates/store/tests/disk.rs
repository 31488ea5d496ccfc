//! What a store on disk does that one in memory does not, on a real file system.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use moorline_store::disk::{Committing, Cut, Damage, Directory, DiskOptions, OpenError, Recovery};
use moorline_store::{
    At, Attributes, Health, Key, List, Pairs, Record, Resource, Revision, Scope, Start, Store, Transaction, Value,
    WatchError, WriteError,
};
use tempfile::TempDir;

fn describe(_: &Key, value: &[u8]) -> Attributes {
    Attributes {
        uid: format!("{}", value.len()).into(),
        labels: Pairs::from_iter([("first", &*value[..1].escape_ascii().to_string())]),
        ..Attributes::default()
    }
}

fn open_with(path: &Path, options: DiskOptions) -> Result<(Store, Recovery), OpenError> {
    Store::open(Directory::at(path).unwrap(), options, describe)
}

fn open(path: &Path) -> Store {
    open_with(path, DiskOptions::default()).unwrap().0
}

fn inline() -> DiskOptions {
    DiskOptions {
        committing: Committing::OnCallersThread,
        ..DiskOptions::default()
    }
}

fn things() -> Resource {
    Resource::new("example.org/things")
}

fn thing(name: &str) -> Key {
    Key::new(&things(), "home", name)
}

fn value(text: &str) -> Value {
    Value::with_revision_at(format!("{text}@"), text.len() + 1)
}

fn put(store: &Store, name: &str, text: &str) -> Revision {
    store.put(thing(name), value(text)).wait().unwrap().revision
}

fn everything(store: &Store) -> Vec<(String, String)> {
    let page = store.list(&List::all(Scope::Resource(things()))).unwrap();
    let show = |record: &Arc<Record>| {
        (
            record.key().name().to_owned(),
            String::from_utf8(record.value().to_vec()).unwrap(),
        )
    };
    page.records.iter().map(show).collect()
}

/// The only file whose name begins so.
fn only(path: &Path, prefix: &str) -> std::path::PathBuf {
    let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|name| name.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    assert_eq!(names.len(), 1, "{names:?}");
    names.pop().unwrap()
}

#[test]
fn what_was_written_is_there_after_reopening() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    put(&store, "a", "one");
    put(&store, "b", "two");
    put(&store, "a", "three");
    store.delete(thing("b")).wait().unwrap();
    let before = store.get(&thing("a")).unwrap();
    drop(store);

    let (store, recovery) = open_with(directory.path(), DiskOptions::default()).unwrap();
    assert_eq!((recovery.revision, recovery.records), (Revision::new(5), 1));
    assert!(recovery.cut.is_empty() && recovery.salvaged.is_none());
    let after = store.get(&thing("a")).unwrap();
    assert_eq!(after.value(), "three@4");
    assert_eq!(
        (
            after.create_revision(),
            after.mod_revision(),
            after.version(),
            after.attributes().labels.get("first")
        ),
        (
            before.create_revision(),
            before.mod_revision(),
            before.version(),
            Some("t")
        )
    );
    assert_eq!(put(&store, "c", "four"), Revision::new(6));
}

#[test]
fn a_transaction_comes_back_whole() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    put(&store, "a", "old");
    let transaction = Transaction::new()
        .delete(thing("a"))
        .create(thing("b"), value("x"))
        .create(thing("c"), value("y"));
    store.commit(transaction).unwrap();
    drop(store);
    let store = open(directory.path());
    assert_eq!(
        everything(&store),
        [("b".to_owned(), "x@3".to_owned()), ("c".to_owned(), "y@3".to_owned())]
    );
}

#[test]
fn a_watch_goes_on_over_a_restart_where_the_log_still_tells_of_it() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    let seen = put(&store, "a", "one");
    put(&store, "a", "two");
    store.delete(thing("a")).wait().unwrap();
    drop(store);
    let store = open(directory.path());
    let mut watch = store.watch(Scope::Resource(things()), Start::After(seen)).unwrap();
    let values: Vec<_> = (0..2)
        .map(|_| watch.try_next().unwrap().unwrap().record().unwrap().value().clone())
        .collect();
    assert_eq!(values, ["two@3", "two@4"]);
    let (past, _) = store.get_at(&thing("a"), At::Exactly(seen)).unwrap();
    assert_eq!(past.unwrap().value(), "one@2");
}

#[test]
fn writers_that_wait_together_share_a_sync() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    let pending: Vec<_> = (0..500)
        .map(|n| store.put(thing(&format!("{n}")), value("x")))
        .collect();
    let mut revisions: Vec<u64> = pending
        .into_iter()
        .map(|pending| pending.wait().unwrap().revision.get())
        .collect();
    assert!(revisions.is_sorted());
    revisions.dedup();
    assert_eq!(revisions.len(), 500);
    drop(store);
    let log = only(directory.path(), "log-");
    let frames = fs::read(log)
        .unwrap()
        .windows(4)
        .filter(|window| *window == b"mFr1")
        .count();
    assert!(frames < 500, "{frames} frames for 500 writes");
}

#[test]
fn a_directory_in_use_is_refused_and_its_holder_named() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    let error = open_with(directory.path(), DiskOptions::default()).unwrap_err();
    assert!(
        matches!(error, OpenError::Held { by: Some(pid) } if pid == std::process::id()),
        "{error}"
    );
    drop(store);
    open(directory.path());
}

#[test]
fn a_newer_format_is_refused() {
    for (prefix, with_snapshot) in [("log-", false), ("durable", false), ("snapshot-", true)] {
        let directory = TempDir::new().unwrap();
        let snapshot_after_bytes = if with_snapshot { 1 } else { u64::MAX };
        let store = open_with(
            directory.path(),
            DiskOptions {
                snapshot_after_bytes,
                ..inline()
            },
        )
        .unwrap()
        .0;
        put(&store, "a", "one");
        drop(store);
        let path = only(directory.path(), prefix);
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] += 1;
        fs::write(&path, bytes).unwrap();
        let error = open_with(directory.path(), DiskOptions::default()).unwrap_err();
        assert!(
            matches!(
                error,
                OpenError::NewerFormat {
                    format: 2,
                    supported: 1,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_snapshot_takes_the_place_of_the_log() {
    let directory = TempDir::new().unwrap();
    let options = DiskOptions {
        snapshot_after_bytes: 20_000,
        log_bytes: 5_000,
        ..inline()
    };
    let store = open_with(directory.path(), options.clone()).unwrap().0;
    for round in 0..600 {
        put(&store, &format!("{}", round % 50), &"x".repeat(round % 100));
    }
    let before = everything(&store);
    drop(store);
    let size: u64 = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(size < 60_000, "{size} bytes for 50 objects of at most 100");
    only(directory.path(), "snapshot-");
    let (store, recovery) = open_with(directory.path(), options).unwrap();
    assert_eq!((recovery.revision, everything(&store)), (Revision::new(601), before));
    assert_eq!(store.get(&thing("3")).unwrap().version(), 12);
    assert!(store.oldest_revision() > Revision::FIRST);
}

#[test]
fn snapshots_in_the_background_lose_nothing_that_is_written_meanwhile() {
    let directory = TempDir::new().unwrap();
    let options = DiskOptions {
        snapshot_after_bytes: 50_000,
        log_bytes: 20_000,
        ..DiskOptions::default()
    };
    let store = open_with(directory.path(), options.clone()).unwrap().0;
    for burst in 0..100 {
        let pending: Vec<_> = (0..20)
            .map(|n| store.put(thing(&format!("{}", (burst * 7 + n) % 90)), value(&"y".repeat(200))))
            .collect();
        assert!(pending.into_iter().all(|pending| pending.wait().is_ok()));
    }
    let before = everything(&store);
    drop(store);
    let (store, recovery) = open_with(directory.path(), options).unwrap();
    assert_eq!((recovery.revision, everything(&store)), (Revision::new(2_001), before));
    only(directory.path(), "snapshot-");
}

#[test]
fn a_tail_torn_at_any_byte_is_cut_and_reported() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    put(&store, "a", "one");
    drop(store);
    let log = only(directory.path(), "log-");
    let name = log.file_name().unwrap().to_str().unwrap().to_owned();
    let (one, durable) = (
        fs::read(&log).unwrap(),
        fs::read(directory.path().join("durable")).unwrap(),
    );
    let store = open(directory.path());
    put(&store, "b", "two");
    drop(store);
    // The second write went into a log of its own, whose frame is now what a crash leaves of it at the end of the first.
    let second = directory.path().join("log-00000000000000000003");
    let frame = fs::read(&second).unwrap()[24..].to_vec();
    fs::remove_file(second).unwrap();
    for length in 0..=frame.len() {
        fs::write(&log, [&one[..], &frame[..length], &[0; 4096]].concat()).unwrap();
        fs::write(directory.path().join("durable"), &durable).unwrap();
        let (store, recovery) = open_with(directory.path(), DiskOptions::default()).unwrap();
        let torn = 0 < length && length < frame.len();
        let cut = Cut {
            file: name.clone(),
            offset: one.len() as u64,
            bytes: length as u64 + 4096,
        };
        assert_eq!(recovery.cut, Vec::from_iter(torn.then_some(cut)), "{length}");
        assert_eq!(store.get(&thing("a")).unwrap().value(), "one@2");
        assert_eq!(store.get(&thing("b")).is_some(), length == frame.len());
        drop(store);
        assert!(
            open_with(directory.path(), DiskOptions::default())
                .unwrap()
                .1
                .cut
                .is_empty()
        );
    }
}

#[test]
fn a_closed_store_can_be_opened_again_while_children_are_forked() {
    let directory = TempDir::new().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let opened: Result<(), OpenError> = (0..300).try_for_each(|_| open_with(directory.path(), inline()).map(drop));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        opened.unwrap();
    });
}

#[test]
fn a_flipped_bit_anywhere_is_detected() {
    let directory = TempDir::new().unwrap();
    let options = DiskOptions {
        snapshot_after_bytes: 600,
        ..inline()
    };
    let store = open_with(directory.path(), options).unwrap().0;
    for round in 0..12 {
        put(&store, &format!("{round}"), "some text");
    }
    drop(store);
    let files = ["snapshot-", "log-", "durable"].map(|prefix| only(directory.path(), prefix));
    let mut flips = 0;
    for path in files {
        let whole = fs::read(&path).unwrap();
        for offset in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[offset] ^= 1 << (offset % 8);
            fs::write(&path, bytes).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            match open_with(directory.path(), inline()) {
                Err(OpenError::Damaged { file, .. } | OpenError::NewerFormat { file, .. }) => assert_eq!(file, name),
                Err(error) => panic!("{error}"),
                // The note only adds certainty: it is reported and made anew.
                Ok((store, recovery)) => {
                    assert_eq!(
                        (recovery.cut[0].file.as_str(), name),
                        ("durable", "durable"),
                        "a flipped bit went unnoticed"
                    );
                    assert_eq!(everything(&store).len(), 12);
                }
            }
            flips += 1;
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(flips > 800, "{flips}");
    assert_eq!(everything(&open(directory.path())).len(), 12);
}

#[test]
fn a_missing_file_is_detected() {
    let directory = TempDir::new().unwrap();
    let options = DiskOptions {
        snapshot_after_bytes: 700,
        log_bytes: 150,
        ..inline()
    };
    let store = open_with(directory.path(), options).unwrap().0;
    for round in 0..15 {
        put(&store, &format!("{round}"), "some text");
    }
    drop(store);
    let names: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(names.len() > 5, "{names:?}");
    for path in names.iter().filter(|path| !path.ends_with("lock")) {
        let bytes = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        let error = open_with(directory.path(), inline()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        fs::write(path, bytes).unwrap();
    }
    open(directory.path());
}

#[test]
fn a_store_told_so_keeps_what_comes_before_the_damage_and_moves_on_behind_what_is_lost() {
    let directory = TempDir::new().unwrap();
    let store = open_with(directory.path(), inline()).unwrap().0;
    for name in ["a", "b", "c", "d"] {
        put(&store, name, "text");
    }
    drop(store);
    let log = only(directory.path(), "log-");
    let mut bytes = fs::read(&log).unwrap();
    let third = bytes
        .windows(4)
        .enumerate()
        .filter(|(_, window)| *window == b"mFr1")
        .nth(2)
        .unwrap()
        .0;
    bytes[third + 40] ^= 1;
    fs::write(&log, &bytes).unwrap();

    let options = DiskOptions {
        damage: Damage::KeepWhatComesBefore,
        ..inline()
    };
    let (store, recovery) = open_with(directory.path(), options).unwrap();
    assert!(matches!(recovery.salvaged, Some(OpenError::Damaged { offset, .. }) if offset == third as u64));
    assert_eq!(
        everything(&store),
        [
            ("a".to_owned(), "text@2".to_owned()),
            ("b".to_owned(), "text@3".to_owned())
        ]
    );
    assert_eq!(
        (recovery.revision, store.oldest_revision()),
        (Revision::new(6), Revision::new(6))
    );
    assert!(
        store
            .watch(Scope::Resource(things()), Start::After(Revision::new(5)))
            .is_err()
    );
    put(&store, "e", "text");
    drop(store);
    assert_eq!(fs::read(only(directory.path(), "damaged-log-")).unwrap(), bytes);
    assert_eq!(everything(&open(directory.path())).len(), 3);
}

#[test]
fn closing_commits_what_was_handed_in_and_refuses_the_rest() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    let mut watch = store.watch(Scope::Resource(things()), Start::Now).unwrap();
    let pending: Vec<_> = (0..50).map(|n| store.put(thing(&format!("{n}")), value("x"))).collect();
    store.close();
    assert!(pending.into_iter().all(|pending| pending.wait().is_ok()));
    assert!(matches!(
        store.put(thing("late"), value("x")).wait(),
        Err(WriteError::Closed)
    ));
    let events = std::iter::from_fn(|| watch.try_next().unwrap().ok()).count();
    assert_eq!(
        (events, watch.try_next().unwrap().unwrap_err()),
        (50, WatchError::Closed)
    );
    assert_eq!(everything(&open(directory.path())).len(), 50);
}

/// A file system of its own with room for little, if this process may make one.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let options = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(directory.path())
            .output();
        mount
            .is_ok_and(|output| output.status.success())
            .then_some(Self(directory))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_disk_refuses_writes_and_heals_when_there_is_room() {
    // Without the right to mount, the same is shown on the simulated disk.
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let (store, _) = open_with(&disk.0.path().join("store"), DiskOptions::default()).unwrap();
    let ballast = disk.0.path().join("ballast");
    fs::write(&ballast, vec![0; 600 << 10]).unwrap();

    let mut written = 0;
    let refusal = loop {
        match store
            .put(thing(&format!("{written:04}")), value(&"x".repeat(10_000)))
            .wait()
        {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refusal, WriteError::StorageFull(_)), "{refusal}");
    assert!(matches!(store.health(), Health::Refusing(WriteError::StorageFull(_))));
    assert!(written > 10);
    let page = store
        .list(&List::all(Scope::Resource(things())).limit(NonZeroUsize::new(1000).unwrap()))
        .unwrap();
    assert_eq!(
        (page.records.len(), store.revision().get()),
        (written, written as u64 + 1)
    );
    assert!(store.put(thing("refused"), value(&"x".repeat(10_000))).wait().is_err());

    fs::remove_file(&ballast).unwrap();
    assert_eq!(put(&store, "healed", "x").get(), written as u64 + 2);
    assert!(matches!(store.health(), Health::Ready));
    drop(store);
    let store = open(&disk.0.path().join("store"));
    assert_eq!(
        (everything(&store).len(), store.get(&thing("refused")).is_some()),
        (written + 1, false)
    );
}

//! A disk that fails: every crash point of a workload, full disks and failing syncs, each replayed from a seed.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;

use fastrand::Rng;
use moorline_store::disk::{Committing, Crash, Damage, DiskOptions, Files, SimulatedDisk};
use moorline_store::{
    Attributes, Health, Key, List, Resource, Revision, Scope, Start, Store, Transaction, Value, Watch, WriteError,
};

type Contents = BTreeMap<String, String>;

/// Small files, so that a short workload meets many logs and snapshots.
fn options() -> DiskOptions {
    DiskOptions {
        log_bytes: 400,
        snapshot_after_bytes: 1_000,
        committing: Committing::OnCallersThread,
        ..DiskOptions::default()
    }
}

fn open(disk: &SimulatedDisk) -> Store {
    Store::open(disk.clone(), options(), |_: &Key, _: &[u8]| Attributes::default())
        .unwrap()
        .0
}

fn things() -> Resource {
    Resource::new("things")
}

fn thing(name: &str) -> Key {
    Key::new(&things(), "", name)
}

fn contents(store: &Store) -> Contents {
    let page = store.list(&List::all(Scope::Resource(things()))).unwrap();
    let text = |value: &[u8]| str::from_utf8(value).unwrap().to_owned();
    page.records
        .iter()
        .map(|record| (record.key().name().to_owned(), text(record.value())))
        .collect()
}

/// The step of a workload, on the store and on what is expected of it.
fn step(number: u64, expected: &mut Contents) -> Transaction {
    let mut random = Rng::with_seed(number);
    let mut transaction = Transaction::new();
    let first = random.usize(..8);
    for index in 0..random.usize(1..4) {
        let name = format!("{}", (first + index) % 8);
        if expected.contains_key(&name) && random.u8(..4) == 0 {
            expected.remove(&name);
            transaction = transaction.delete(thing(&name));
        } else {
            let text = format!("step {number} {}", "x".repeat(random.usize(..60)));
            expected.insert(name.clone(), text.clone());
            transaction = transaction.put(thing(&name), Value::new(text));
        }
    }
    transaction
}

/// Runs the workload until the end or the first refusal, and gives what was acknowledged and what was under way.
fn work(store: &Store, steps: std::ops::Range<u64>, acknowledged: &mut Contents) -> Option<Contents> {
    for number in steps {
        let mut next = acknowledged.clone();
        if store.commit(step(number, &mut next)).is_err() {
            return Some(next);
        }
        *acknowledged = next;
    }
    None
}

#[test]
fn a_crash_at_any_operation_loses_nothing_acknowledged_and_invents_nothing() {
    let steps = 60;
    let operations = {
        let disk = SimulatedDisk::new(0);
        let store = open(&disk);
        assert_eq!(work(&store, 0..steps, &mut Contents::new()), None);
        drop(store);
        disk.operations()
    };
    assert!(operations > 300, "{operations} operations are too few to show anything");
    for crash in [Crash::Process, Crash::Power] {
        for point in 0..operations {
            let disk = SimulatedDisk::new(point);
            disk.crash_after(point);
            let mut acknowledged = Contents::new();
            let describe = |_: &Key, _: &[u8]| Attributes::default();
            let under_way = match Store::open(disk.clone(), options(), describe) {
                Ok((store, _)) => work(&store, 0..steps, &mut acknowledged),
                Err(_) => None,
            };
            disk.restart(crash);

            let store = open(&disk);
            let found = contents(&store);
            assert!(
                found == acknowledged || Some(&found) == under_way.as_ref(),
                "{crash:?} at operation {point}: found {found:?}, acknowledged {acknowledged:?}, under way {under_way:?}"
            );
            // What was seen once must be seen again, whatever happens next.
            disk.restart(Crash::Power);
            let store = open(&disk);
            assert_eq!(
                contents(&store),
                found,
                "{crash:?} at operation {point}, then the power went"
            );
            let mut later = found;
            assert_eq!(work(&store, 1_000..1_003, &mut later), None);
            drop(store);
            assert_eq!(contents(&open(&disk)), later);
        }
    }
}

#[test]
fn a_refused_write_is_never_seen_and_never_comes_back() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed);
        let store = open(&disk);
        store.put(thing("a"), Value::new("kept")).wait().unwrap();
        let mut watch = store.watch(Scope::Resource(things()), Start::Now).unwrap();
        disk.fail_syncs(1);
        let error = store.put(thing("b"), Value::new("refused")).wait().unwrap_err();
        assert!(matches!(error, WriteError::Unavailable(_)), "{error}");
        assert!(matches!(store.health(), Health::Refusing(WriteError::Unavailable(_))));
        assert!(watch.try_next().is_none() && store.get(&thing("b")).is_none());
        assert_eq!(store.revision(), Revision::new(2));

        disk.restart(if seed % 2 == 0 { Crash::Process } else { Crash::Power });
        let store = open(&disk);
        assert_eq!(contents(&store), Contents::from([("a".to_owned(), "kept".to_owned())]));
    }
}

#[test]
fn the_next_log_voids_what_could_not_be_cut_off() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed);
        let store = open(&disk);
        store.put(thing("a"), Value::new("kept")).wait().unwrap();
        disk.fail_syncs(2);
        store.put(thing("b"), Value::new("refused")).wait().unwrap_err();
        assert_eq!(
            store.put(thing("c"), Value::new("kept")).wait().unwrap().revision,
            Revision::new(3)
        );
        assert!(matches!(store.health(), Health::Ready));
        disk.restart(if seed % 2 == 0 { Crash::Process } else { Crash::Power });
        assert_eq!(contents(&open(&disk)).into_keys().collect::<Vec<_>>(), ["a", "c"]);
    }
}

#[test]
fn a_full_disk_refuses_writes_while_reads_go_on_and_heals_when_there_is_room() {
    let disk = SimulatedDisk::new(1);
    let store = open(&disk);
    let mut expected = Contents::new();
    assert_eq!(work(&store, 0..5, &mut expected), None);
    disk.set_capacity(Some(700));
    assert!(work(&store, 5..100, &mut expected).is_some());
    assert!(matches!(store.health(), Health::Refusing(WriteError::StorageFull(_))));
    assert_eq!(contents(&store), expected);
    let refused = store.put(thing("z"), Value::new("z".repeat(1_000))).wait().unwrap_err();
    assert!(matches!(refused, WriteError::StorageFull(_)));

    disk.set_capacity(None);
    store.tidy();
    assert!(matches!(store.health(), Health::Ready));
    assert_eq!(work(&store, 100..110, &mut expected), None);
    disk.restart(Crash::Power);
    assert_eq!(contents(&open(&disk)), expected);
}

fn drain(watch: &mut Watch) -> Vec<u64> {
    std::iter::from_fn(|| watch.try_next())
        .map(|event| event.unwrap().revision().get())
        .collect()
}

#[test]
fn any_sequence_of_failures_leaves_what_was_acknowledged() {
    for seed in 0..300 {
        let mut random = Rng::with_seed(seed);
        let disk = SimulatedDisk::new(seed);
        let mut store = open(&disk);
        let mut watch = store.watch(Scope::Resource(things()), Start::Now).unwrap();
        let mut expected = Contents::new();
        for number in 0..80 {
            match random.u8(..20) {
                0 => disk.fail_syncs(1),
                1 => disk.set_capacity(Some(random.u64(..2_000))),
                2..=4 => disk.set_capacity(None),
                5 => {
                    disk.restart(if random.bool() { Crash::Process } else { Crash::Power });
                    // A directory that cannot be tidied for want of room is refused, and taken when there is some.
                    disk.set_capacity(None);
                    disk.fail_syncs(0);
                    store = open(&disk);
                    watch = store.watch(Scope::Resource(things()), Start::Now).unwrap();
                }
                _ => {}
            }
            let mut next = expected.clone();
            let before = store.revision();
            match store.commit(step(number, &mut next)) {
                Ok(committed) => {
                    assert_eq!(committed.revision.get(), before.get() + 1);
                    assert!(
                        drain(&mut watch)
                            .iter()
                            .all(|revision| *revision == committed.revision.get())
                    );
                    expected = next;
                }
                Err(WriteError::StorageFull(_) | WriteError::Unavailable(_)) => {
                    assert_eq!((store.revision(), drain(&mut watch)), (before, Vec::new()));
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            assert_eq!(contents(&store), expected, "seed {seed} at step {number}");
        }
    }
}

#[test]
fn whatever_is_done_to_the_files_nothing_is_served_that_was_not_written() {
    let mut outcomes = [0; 2];
    for seed in 0..2_000 {
        let mut random = Rng::with_seed(seed);
        let disk = SimulatedDisk::new(seed);
        let store = open(&disk);
        let mut history = vec![Contents::new()];
        for number in 0..20 {
            let mut next = history[history.len() - 1].clone();
            store.commit(step(number, &mut next)).unwrap();
            history.push(next);
        }
        drop(store);
        let names = disk.names().unwrap();
        disk.tamper(random.choice(&names).unwrap(), |bytes| match random.u8(..4) {
            0 => bytes.truncate(random.usize(..=bytes.len())),
            1 => bytes.extend((0..random.usize(..200)).map(|_| random.u8(..))),
            2 => bytes
                .iter_mut()
                .skip(random.usize(..100))
                .take(random.usize(..50))
                .for_each(|byte| *byte = 0),
            _ => bytes
                .iter_mut()
                .skip(random.usize(..100))
                .for_each(|byte| *byte ^= random.u8(..)),
        });
        let opened = Store::open(disk.clone(), options(), |_: &Key, _: &[u8]| Attributes::default());
        outcomes[usize::from(opened.is_ok())] += 1;
        if let Ok((store, _)) = opened {
            assert_eq!(contents(&store), history[20], "seed {seed}");
        }
        let options = DiskOptions {
            damage: Damage::KeepWhatComesBefore,
            ..options()
        };
        if let Ok((store, _)) = Store::open(disk, options, |_: &Key, _: &[u8]| Attributes::default()) {
            assert!(history.contains(&contents(&store)), "seed {seed}");
            assert!(store.revision() >= Revision::new(21), "seed {seed}");
        }
    }
    assert!(outcomes.iter().all(|count| *count > 100), "{outcomes:?}");
}

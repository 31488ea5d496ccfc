//! Many writers, many watchers, one history.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use moorline_store::disk::{Directory, DiskOptions};
use moorline_store::{
    At, Attributes, Event, Key, List, Options, Resource, Revision, Scope, Start, Store, Transaction, Value, WriteError,
};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(30);

fn describe(_: &Key, _: &[u8]) -> Attributes {
    Attributes::default()
}

fn counters() -> Resource {
    Resource::new("counters")
}

fn counter(number: usize) -> Key {
    Key::new(&counters(), "ns", format!("{number}"))
}

fn count(value: &[u8]) -> u64 {
    str::from_utf8(value).unwrap().parse().unwrap()
}

/// Counts up `keys` counters by compare-and-swap from `writers` threads while watchers look on, and checks that all agree
/// on one history.
fn count_up(store: &Store, writers: usize, keys: usize, rounds: u64) {
    for number in 0..keys {
        store.create(counter(number), Value::new("0")).wait().unwrap();
    }
    let began = store.revision();
    let increments = writers as u64 * rounds;
    thread::scope(|scope| {
        for writer in 0..writers {
            scope.spawn(move || {
                let mut random = Rng::with_seed(writer as u64);
                for _ in 0..rounds {
                    let key = counter(random.usize(..keys));
                    loop {
                        let record = store.get(&key).unwrap();
                        let value = Value::new((count(record.value()) + 1).to_string());
                        match store.update(key.clone(), value, record.mod_revision()).wait() {
                            Ok(committed) => break assert!(committed.revision > record.mod_revision()),
                            Err(WriteError::Conflict { actual, .. }) => assert!(actual > record.mod_revision()),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        for watcher in 0..4 {
            let mut watch = store.watch(Scope::Resource(counters()), Start::After(began)).unwrap();
            scope.spawn(move || {
                let mut random = Rng::with_seed(100 + watcher);
                let mut counts = vec![0; keys];
                for revision in 1..=increments {
                    let event = watch.next_within(LONG).unwrap().unwrap();
                    let Event::Modified { record, previous } = &event else {
                        panic!("{event:?}")
                    };
                    assert_eq!(event.revision(), Revision::new(began.get() + revision));
                    let known = &mut counts[record.key().name().parse::<usize>().unwrap()];
                    assert_eq!((count(previous.value()), count(record.value())), (*known, *known + 1));
                    *known += 1;
                    if random.u8(..10) == 0 {
                        thread::yield_now();
                    }
                }
                assert_eq!(counts.iter().sum::<u64>(), increments);
                assert!(watch.try_next().is_none());
            });
        }
        // Lists at any moment add up to the number of increments at that moment.
        scope.spawn(move || {
            for _ in 0..100 {
                let page = store.list(&List::all(Scope::Resource(counters()))).unwrap();
                let sum: u64 = page.records.iter().map(|record| count(record.value())).sum();
                assert_eq!(sum, page.revision.get() - began.get());
                let again = store
                    .list(&List::all(Scope::Resource(counters())).at(At::Exactly(page.revision)))
                    .unwrap();
                assert!(
                    page.records
                        .iter()
                        .zip(&again.records)
                        .all(|(one, other)| Arc::ptr_eq(one, other))
                );
            }
        });
    });
    assert_eq!(store.revision().get(), began.get() + increments);
}

#[test]
fn writers_in_memory_make_one_history_that_all_watchers_see() {
    count_up(&Store::memory(Options::default(), describe), 8, 5, 1_000);
}

#[test]
fn writers_on_disk_make_one_history_that_all_watchers_see() {
    let directory = TempDir::new().unwrap();
    let options = DiskOptions {
        snapshot_after_bytes: 20_000,
        log_bytes: 10_000,
        ..DiskOptions::default()
    };
    let files = Directory::at(directory.path()).unwrap();
    count_up(&Store::open(files, options, describe).unwrap().0, 8, 40, 150);
}

#[test]
fn a_transfer_is_never_seen_half_done() {
    let store = Store::memory(Options::default(), describe);
    for number in 0..2 {
        store.create(counter(number), Value::new("1000")).wait().unwrap();
    }
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let (from, to) = (store.get(&counter(0)).unwrap(), store.get(&counter(1)).unwrap());
                    let moved = |key: usize, value: u64, seen: Revision, transaction: Transaction| {
                        transaction.update(counter(key), Value::new(value.to_string()), seen)
                    };
                    let transaction = moved(
                        0,
                        count(from.value()).wrapping_sub(1),
                        from.mod_revision(),
                        Transaction::new(),
                    );
                    let transaction = moved(1, count(to.value()).wrapping_add(1), to.mod_revision(), transaction);
                    if let Err(error) = store.commit(transaction) {
                        assert!(matches!(error, WriteError::Conflict { .. }), "{error}");
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2_000 {
                let page = store.list(&List::all(Scope::Resource(counters()))).unwrap();
                let sum = page
                    .records
                    .iter()
                    .fold(0, |sum: u64, record| sum.wrapping_add(count(record.value())));
                assert_eq!(sum, 2_000);
            }
        });
    });
}

#[test]
fn one_write_reaches_a_thousand_watchers_within_fifty_milliseconds() {
    let store = Store::memory(Options::default(), describe);
    let others: Vec<_> = (0..1_000)
        .map(|_| {
            store
                .watch(Scope::Resource(Resource::new("others")), Start::Now)
                .unwrap()
        })
        .collect();
    let mut watches: Vec<_> = (0..1_000)
        .map(|_| store.watch(Scope::Resource(counters()), Start::Now).unwrap())
        .collect();
    // The quickest of a few, because a busy machine may do something else for a while.
    let times = (0..5).map(|number| {
        let began = Instant::now();
        let record = store
            .create(counter(number), Value::new("0"))
            .wait()
            .unwrap()
            .into_record();
        for watch in &mut watches {
            let event = watch.try_next().unwrap().unwrap();
            assert!(
                Arc::ptr_eq(event.record().unwrap(), &record),
                "the value is shared, not copied"
            );
        }
        began.elapsed()
    });
    let quickest = times.min().unwrap();
    assert!(quickest < Duration::from_millis(50), "{quickest:?}");
    assert!(others.into_iter().all(|mut watch| watch.try_next().is_none()));
}

#[test]
fn a_watcher_beginning_amid_writes_misses_nothing_and_sees_nothing_twice() {
    let store = Store::memory(Options::default(), describe);
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            for round in 0..5_000_u64 {
                store
                    .put(counter((round % 7) as usize), Value::new(round.to_string()))
                    .wait()
                    .unwrap();
            }
        });
        barrier.wait();
        for _ in 0..50 {
            let mut watch = store.watch(Scope::Resource(counters()), Start::Initial).unwrap();
            let mut initial = 0;
            let revision = loop {
                match watch.try_next().unwrap().unwrap() {
                    Event::InitialDone { revision } => break revision,
                    event => initial = initial.max(event.revision().get()),
                }
            };
            assert!(initial == revision.get() || (initial, revision) == (0, Revision::FIRST));
            let events = std::iter::from_fn(|| watch.try_next()).take(50);
            let revisions: Vec<u64> = events.map(|event| event.unwrap().revision().get()).collect();
            let expected: Vec<u64> = (revision.get() + 1..).take(revisions.len()).collect();
            assert_eq!(revisions, expected);
        }
    });
}

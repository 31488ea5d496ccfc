//! The store beside a model that keeps everything and looks at all of it: whatever is asked of both, at whatever
//! revision, both answer the same.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use fastrand::Rng;
use moorline_store::disk::{Committing, Crash, DiskOptions, SimulatedDisk};
use moorline_store::{
    At, Attributes, Event, Expect, Key, List, Options, Pairs, ReadError, Record, Resource, Revision, Scope, Start,
    Store, Transaction, Value, Watch, WatchError, Window, WriteError,
};

/// Every change ever made: when, to what, and the text after it.
#[derive(Default)]
struct Model {
    changes: Vec<(u64, Key, Option<String>)>,
    revision: u64,
}

impl Model {
    /// The objects at a revision: text without its revision, when last written, when created, how often written.
    fn at(&self, revision: u64) -> BTreeMap<Key, (String, u64, u64, u64)> {
        let mut objects: BTreeMap<Key, (String, u64, u64, u64)> = BTreeMap::new();
        for (at, key, text) in self.changes.iter().take_while(|(at, ..)| *at <= revision) {
            match text {
                None => drop(objects.remove(key)),
                Some(text) => {
                    let (created, version) = objects
                        .get(key)
                        .map_or((*at, 0), |(_, _, created, version)| (*created, *version));
                    objects.insert(key.clone(), (text.clone(), *at, created, version + 1));
                }
            }
        }
        objects
    }

    /// What one who sees only `filter` sees of the changes after `revision`.
    fn events(&self, scope: &Scope, filter: Filter, after: u64) -> Vec<(u64, String)> {
        let mut texts = self
            .at(after)
            .into_iter()
            .map(|(key, (text, ..))| (key, text))
            .collect::<BTreeMap<_, _>>();
        let mut events = Vec::new();
        for (at, key, text) in self.changes.iter().filter(|(at, ..)| *at > after) {
            let before = match text {
                Some(text) => texts.insert(key.clone(), text.clone()),
                None => texts.remove(key),
            };
            if !scope.contains(key) {
                continue;
            }
            let before = before.filter(|text| filter.passes_text(text));
            let now = text.as_ref().filter(|text| filter.passes_text(text));
            let name = format!("{}/{}", key.namespace(), key.name());
            match (before, now) {
                (None, None) => {}
                (None, Some(now)) => events.push((*at, format!("added {name} {now}{at}"))),
                (Some(_), Some(now)) => events.push((*at, format!("modified {name} {now}{at}"))),
                (Some(before), None) => events.push((*at, format!("deleted {name} {before}{at}"))),
            }
        }
        events
    }
}

/// Texts begin with a letter, which is their label.
#[derive(Clone, Copy, Debug)]
enum Filter {
    All,
    Letter(char),
}

impl Filter {
    fn passes_text(self, text: &str) -> bool {
        match self {
            Self::All => true,
            Self::Letter(letter) => text.starts_with(letter),
        }
    }

    fn passes(self, record: &Record) -> bool {
        match self {
            Self::All => true,
            Self::Letter(letter) => record.attributes().labels.get("letter") == Some(letter.encode_utf8(&mut [0; 4])),
        }
    }
}

fn describe(_: &Key, value: &[u8]) -> Attributes {
    let letter = char::from(value[0]).to_string();
    Attributes {
        labels: Pairs::from_iter([("letter", letter)]),
        ..Attributes::default()
    }
}

/// A watch, and what it still has to say according to the model.
struct Watched {
    watch: Watch,
    scope: Scope,
    filter: Filter,
    /// It has handed out everything up to here.
    seen: u64,
}

struct Trial {
    random: Rng,
    seed: u64,
    disk: Option<SimulatedDisk>,
    store: Store,
    model: Model,
    watches: Vec<Watched>,
}

fn window() -> Window {
    Window {
        changes: 40,
        ..Window::default()
    }
}

fn open(disk: &SimulatedDisk) -> Store {
    let options = DiskOptions {
        store: Options {
            window: window(),
            ..Options::default()
        },
        log_bytes: 500,
        snapshot_after_bytes: 2_000,
        committing: Committing::OnCallersThread,
        ..DiskOptions::default()
    };
    Store::open(disk.clone(), options, describe).unwrap().0
}

impl Trial {
    fn new(seed: u64, disk: Option<SimulatedDisk>) -> Self {
        let store = match &disk {
            None => Store::memory(
                Options {
                    window: window(),
                    ..Options::default()
                },
                describe,
            ),
            Some(disk) => open(disk),
        };
        let model = Model {
            changes: Vec::new(),
            revision: 1,
        };
        Self {
            random: Rng::with_seed(seed),
            seed,
            disk,
            store,
            model,
            watches: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.random.u8(..20) {
            0..=8 => self.write(),
            9..=11 => self.list(),
            12 => self.get(),
            13..=14 => self.begin_watch(),
            15..=17 => self.follow_watches(),
            18 => self.compact(),
            _ => self.reopen(),
        }
    }

    fn resource(&mut self) -> Resource {
        Resource::new(
            *self
                .random
                .choice(&["apps/things", "things", "things.example.org"])
                .unwrap(),
        )
    }

    fn key(&mut self) -> Key {
        let resource = self.resource();
        let namespace = *self.random.choice(&["", "a", "a-b", "b"]).unwrap();
        Key::new(&resource, namespace, format!("{}", self.random.u8(..5)))
    }

    fn scope(&mut self) -> Scope {
        let key = self.key();
        match self.random.u8(..4) {
            0 => Scope::Object(key),
            1 => Scope::namespace(key.resource(), key.namespace()),
            _ => Scope::Resource(key.resource().clone()),
        }
    }

    fn filter(&mut self) -> Filter {
        if self.random.bool() {
            Filter::All
        } else {
            Filter::Letter(*self.random.choice(&['r', 'g', 'b']).unwrap())
        }
    }

    fn revision(&mut self) -> u64 {
        self.random.u64(..self.model.revision + 3)
    }

    fn write(&mut self) {
        let now = self.model.at(self.model.revision);
        let next = self.model.revision + 1;
        let mut transaction = Transaction::new();
        let mut changes = Vec::new();
        let mut refused = None;
        let mut keys: Vec<Key> = (0..self.random.usize(1..4)).map(|_| self.key()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let current = now.get(&key).map(|(_, at, ..)| *at);
            let seen = if self.random.u8(..5) == 0 {
                self.revision()
            } else {
                current.unwrap_or(1)
            };
            let letter = *self.random.choice(&["r", "g", "b"]).unwrap();
            let text = format!("{letter} {} at ", "x".repeat(self.random.usize(..30)));
            let value = Value::with_revision_at(text.clone(), text.len());
            let mut change = Some((next, key.clone(), Some(text)));
            let expect;
            (transaction, expect) = match self.random.u8(..7) {
                0 => (transaction.create(key.clone(), value), Expect::Absent),
                1 => (transaction.replace(key.clone(), value), Expect::Present),
                2 => (
                    transaction.update(key.clone(), value, Revision::new(seen)),
                    Expect::At(Revision::new(seen)),
                ),
                3 | 4 => (transaction.put(key.clone(), value), Expect::Anything),
                5 => {
                    change = Some((next, key.clone(), None));
                    (
                        transaction.delete_at(key.clone(), Revision::new(seen)),
                        Expect::At(Revision::new(seen)),
                    )
                }
                _ => {
                    change = None;
                    (transaction.check(key.clone(), Expect::Present), Expect::Present)
                }
            };
            let verdict = match (expect, current) {
                (Expect::Anything, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => None,
                (Expect::At(seen), Some(current)) if seen.get() == current => None,
                (Expect::Absent, Some(current)) => Some(format!("{key} already exists at revision {current}")),
                (Expect::Present | Expect::At(_), None) => Some(format!("{key} does not exist")),
                (Expect::At(seen), Some(current)) => Some(format!(
                    "{key} was expected at revision {seen} and is at revision {current}"
                )),
            };
            refused = refused.or(verdict);
            changes.extend(change);
        }
        match self.store.commit(transaction) {
            Ok(committed) => {
                assert_eq!(refused, None, "seed {}", self.seed);
                assert_eq!(committed.records.len(), changes.len());
                if !changes.is_empty() {
                    self.model.revision = next;
                }
                assert_eq!(committed.revision.get(), self.model.revision);
                self.model.changes.extend(changes);
            }
            Err(error) => {
                assert!(!matches!(error, WriteError::Unavailable(_) | WriteError::Closed));
                assert_eq!(refused, Some(error.to_string()), "seed {}", self.seed);
            }
        }
        assert_eq!(self.store.revision().get(), self.model.revision);
    }

    /// What the store must say of a revision before it looks at anything.
    fn verdict(&self, revision: u64) -> Option<ReadError> {
        let (oldest, requested) = (self.store.oldest_revision(), Revision::new(revision));
        if revision > self.model.revision {
            Some(ReadError::Future {
                requested,
                current: Revision::new(self.model.revision),
            })
        } else {
            (requested < oldest).then_some(ReadError::Compacted { requested, oldest })
        }
    }

    fn list(&mut self) {
        let (scope, filter, revision) = (self.scope(), self.filter(), self.revision());
        let latest = self.random.bool();
        let mut list = List::all(scope.clone());
        if let Some(limit) = NonZeroUsize::new(self.random.usize(..6)) {
            list = list.limit(limit);
        }
        if !latest {
            list = list.at(At::Exactly(Revision::new(revision)));
            if let Some(expected) = self.verdict(revision) {
                assert_eq!(self.store.list(&list).unwrap_err(), expected, "seed {}", self.seed);
                return;
            }
        }
        let revision = if latest { self.model.revision } else { revision };
        let objects = self.model.at(revision);
        let mut expected = objects.iter().filter(|(key, _)| scope.contains(key)).peekable();
        loop {
            let page = match filter {
                Filter::All => self.store.list(&list),
                Filter::Letter(_) => self.store.list_matching(&list, |record| filter.passes(record)),
            };
            let page = match page {
                Err(ReadError::Compacted { .. }) => break,
                page => page.unwrap(),
            };
            assert_eq!(page.revision.get(), revision);
            for record in &page.records {
                let (key, (text, at, created, version)) = expected
                    .by_ref()
                    .find(|(_, (text, ..))| filter.passes_text(text))
                    .unwrap();
                assert_eq!(record.key(), key, "seed {}", self.seed);
                assert_eq!(*record.value(), format!("{text}{at}"));
                assert_eq!(
                    (
                        record.mod_revision().get(),
                        record.create_revision().get(),
                        record.version()
                    ),
                    (*at, *created, *version)
                );
            }
            let Some(more) = page.more else {
                assert!(
                    !expected.any(|(_, (text, ..))| filter.passes_text(text)),
                    "seed {}",
                    self.seed
                );
                break;
            };
            assert_eq!(more.remaining.get(), expected.clone().count());
            list = list.continued(page.revision, more.after);
            // What happens between two pages is not seen in the second.
            if self.random.bool() {
                self.write();
            }
        }
    }

    fn get(&mut self) {
        let (key, revision) = (self.key(), self.revision());
        match (
            self.store.get_at(&key, At::Exactly(Revision::new(revision))),
            self.verdict(revision),
        ) {
            (Err(error), expected) => assert_eq!(Some(error), expected),
            (Ok((record, _)), expected) => {
                assert_eq!(expected, None);
                let found = record.map(|record| str::from_utf8(record.value()).unwrap().to_owned());
                let expected = self
                    .model
                    .at(revision)
                    .remove(&key)
                    .map(|(text, at, ..)| format!("{text}{at}"));
                assert_eq!(found, expected, "seed {}", self.seed);
            }
        }
    }

    fn begin_watch(&mut self) {
        let (scope, filter, revision) = (self.scope(), self.filter(), self.revision());
        let start = match self.random.u8(..3) {
            0 => Start::Now,
            1 => Start::Initial,
            _ => Start::After(Revision::new(revision)),
        };
        let watch = self
            .store
            .watch_matching(scope.clone(), start, move |record| filter.passes(record));
        let mut watch = match (watch, start, self.verdict(revision)) {
            (Err(error), Start::After(_), expected) => return assert_eq!(Some(error), expected, "seed {}", self.seed),
            (watch, Start::After(_), expected) => {
                assert_eq!(expected, None);
                watch.unwrap()
            }
            (watch, ..) => watch.unwrap(),
        };
        let seen = if let Start::After(_) = start {
            revision
        } else {
            self.model.revision
        };
        if start == Start::Initial {
            // Writes that come between the beginning and the handing out are not part of the initial state.
            self.write();
            let expected: Vec<String> = self
                .model
                .at(seen)
                .into_iter()
                .filter(|(key, (text, ..))| scope.contains(key) && filter.passes_text(text))
                .map(|(key, (text, at, ..))| format!("added {}/{} {text}{at}", key.namespace(), key.name()))
                .collect();
            let mut found = Vec::new();
            loop {
                assert_eq!(watch.progress(), None);
                match watch.try_next().unwrap().unwrap() {
                    Event::InitialDone { revision } => break assert_eq!(revision.get(), seen),
                    event => found.push(show(&event)),
                }
            }
            assert_eq!(found, expected, "seed {}", self.seed);
        }
        self.watches.push(Watched {
            watch,
            scope,
            filter,
            seen,
        });
    }

    fn follow_watches(&mut self) {
        let oldest = self.store.oldest_revision();
        let (model, random, seed) = (&self.model, &mut self.random, self.seed);
        self.watches.retain_mut(|watched| {
            let expected = model.events(&watched.scope, watched.filter, watched.seen);
            let some = random.usize(..20);
            for (at, expected) in &expected[..some.min(expected.len())] {
                assert!(watched.watch.progress().unwrap().get() < *at, "seed {seed}");
                match watched.watch.try_next().unwrap() {
                    Ok(event) => assert_eq!(show(&event), *expected, "seed {seed}"),
                    Err(WatchError::Compacted { oldest: stated }) => {
                        assert!(stated == oldest && watched.seen < oldest.get(), "seed {seed}");
                        return false;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            if some <= expected.len() {
                // Events of one transaction that are not handed out yet would be expected again; so end here.
                return false;
            }
            match watched.watch.try_next() {
                None => {
                    assert_eq!(watched.watch.progress().unwrap().get(), model.revision, "seed {seed}");
                    watched.seen = model.revision;
                    true
                }
                Some(Err(WatchError::Compacted { .. })) => {
                    assert!(watched.seen < oldest.get(), "seed {seed}");
                    false
                }
                Some(other) => panic!("seed {seed}: {other:?}"),
            }
        });
    }

    fn compact(&mut self) {
        let before = self.store.oldest_revision();
        let wanted = Revision::new(self.random.u64(before.get().saturating_sub(2)..self.model.revision + 2));
        let compacted = self.store.compact(wanted);
        if wanted.get() > self.model.revision {
            assert!(matches!(compacted, Err(ReadError::Future { .. })));
        } else {
            compacted.unwrap();
            assert_eq!(self.store.oldest_revision(), before.max(wanted));
        }
    }

    fn reopen(&mut self) {
        let Some(disk) = &self.disk else { return };
        if self.random.bool() {
            self.store.close();
        }
        disk.restart(if self.random.bool() {
            Crash::Process
        } else {
            Crash::Power
        });
        self.store = open(disk);
        self.watches.clear();
        assert_eq!(self.store.revision().get(), self.model.revision, "seed {}", self.seed);
    }
}

fn show(event: &Event) -> String {
    let (kind, record) = match event {
        Event::Added { record, .. } => ("added", record),
        Event::Modified { record, .. } => ("modified", record),
        Event::Deleted { record, .. } => ("deleted", record),
        Event::InitialDone { .. } => panic!("the initial state ends only once"),
    };
    let key = record.key();
    format!(
        "{kind} {}/{} {}",
        key.namespace(),
        key.name(),
        str::from_utf8(record.value()).unwrap()
    )
}

#[test]
fn a_store_in_memory_answers_as_the_model_does() {
    for seed in 0..400 {
        let mut trial = Trial::new(seed, None);
        (0..250).for_each(|_| trial.step());
    }
}

#[test]
fn a_store_on_disk_answers_as_the_model_does_over_crashes() {
    for seed in 0..250 {
        let mut trial = Trial::new(seed, Some(SimulatedDisk::new(seed)));
        (0..250).for_each(|_| trial.step());
    }
}

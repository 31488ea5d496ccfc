//! A process that writes is killed at random moments, over and over on the same directory. Every write it was told of is
//! there afterwards, exactly as written; nothing is there that it did not hand in.
//!
//! `MOORLINE_KILL_POINTS` says how many times; `MOORLINE_KILL_SEED` replays the moments of another run.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test with a main of its own")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use fastrand::Rng;
use moorline_store::disk::{Directory, DiskOptions};
use moorline_store::{Attributes, Key, List, Resource, Scope, Store, Transaction, Value};
use tempfile::TempDir;

const NAME: &str = "a_killed_process_loses_nothing_acknowledged_and_invents_nothing";
const DIRECTORY: &str = "MOORLINE_KILL_DIRECTORY";
const ROUND: &str = "MOORLINE_KILL_ROUND";
const WRITERS: u64 = 6;
const KEYS: u64 = 12;

fn main() {
    if let Ok(directory) = env::var(DIRECTORY) {
        let round = env::var(ROUND).unwrap().parse().unwrap();
        return write_until_killed(Path::new(&directory), round);
    }
    let asked: Vec<String> = env::args().skip(1).collect();
    if asked.iter().any(|argument| argument == "--list") {
        return println!("{NAME}: test");
    }
    if asked
        .iter()
        .any(|argument| !argument.starts_with('-') && !NAME.contains(argument.as_str()))
    {
        return;
    }
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let points = number("MOORLINE_KILL_POINTS").unwrap_or(60);
    let seed = number("MOORLINE_KILL_SEED").unwrap_or(4);
    let began = Instant::now();
    let mut tally = Tally::default();
    a_killed_process_loses_nothing_acknowledged_and_invents_nothing(points, seed, &mut tally);
    println!("test {NAME} ... ok");
    println!(
        "{points} kills in {:.1} s with seed {seed}: {tally:?}",
        began.elapsed().as_secs_f64()
    );
}

#[derive(Debug, Default)]
struct Tally {
    acknowledged: u64,
    /// Writes that were under way when the process died, and are there.
    survived: u64,
    /// The same, and are not.
    vanished: u64,
    torn: u64,
}

fn open(path: &Path) -> (Store, bool) {
    let options = DiskOptions {
        log_bytes: 100 << 10,
        snapshot_after_bytes: 300 << 10,
        ..DiskOptions::default()
    };
    let describe = |_: &Key, _: &[u8]| Attributes::default();
    let (store, recovery) = Store::open(Directory::at(path).unwrap(), options, describe).unwrap();
    (store, !recovery.cut.is_empty())
}

fn things() -> Resource {
    Resource::new("things")
}

fn key(writer: u64, number: u64) -> Key {
    Key::new(&things(), format!("writer-{writer}"), format!("{number}"))
}

/// What a writer does at one step, so that the one who checks knows it too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    round: u64,
    writer: u64,
    number: u64,
}

impl Step {
    fn random(self) -> Rng {
        Rng::with_seed(self.round << 40 | self.writer << 32 | self.number)
    }

    /// The keys it touches, and the text it leaves at each; none to delete.
    fn effects(self) -> Vec<(u64, Option<String>)> {
        let mut random = self.random();
        let count = if random.u8(..8) == 0 { 3 } else { 1 };
        let first = random.u64(..KEYS);
        (0..count)
            .map(|index| {
                let letter = char::from(b'a' + random.u8(..26));
                let text = format!("{self:?} {}@", letter.to_string().repeat(random.usize(..3000)));
                ((first + index) % KEYS, (random.u8(..6) != 0).then_some(text))
            })
            .collect()
    }
}

fn write_until_killed(path: &Path, round: u64) {
    let (store, _) = open(path);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = &store;
            scope.spawn(move || {
                for number in 0.. {
                    let step = Step { round, writer, number };
                    let mut transaction = Transaction::new();
                    for (index, text) in step.effects() {
                        let key = key(writer, index);
                        transaction = match text {
                            Some(text) => {
                                let end = text.len();
                                transaction.put(key, Value::with_revision_at(text, end))
                            }
                            None if store.get(&key).is_some() => transaction.delete(key),
                            None => transaction,
                        };
                    }
                    // One write a line, so that a line is whole or not there.
                    say(&format!("handed {writer} {number}\n"));
                    let committed = store.commit(transaction).unwrap();
                    say(&format!("kept {writer} {number} {}\n", committed.revision));
                }
            });
        }
    });
}

fn say(line: &str) {
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// What is known of one writer in one round.
#[derive(Default)]
struct Said {
    kept: u64,
    handed: u64,
}

fn a_killed_process_loses_nothing_acknowledged_and_invents_nothing(points: u64, seed: u64, tally: &mut Tally) {
    let directory = TempDir::new().unwrap();
    let mut random = Rng::with_seed(seed);
    let mut expected: BTreeMap<Key, String> = BTreeMap::new();
    let mut highest = 0;
    for round in 0..points {
        let mut child = Command::new(env::current_exe().unwrap())
            .env(DIRECTORY, directory.path())
            .env(ROUND, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut heard = vec![lines.next().unwrap().unwrap()];
        let reader = thread::spawn(move || {
            heard.extend(lines.map_while(Result::ok));
            heard
        });
        // The moment is what the test is about; nothing is waited for here.
        let longest = random.choice([2_000, 20_000, 80_000]).unwrap();
        thread::sleep(Duration::from_micros(random.u64(..longest)));
        child.kill().unwrap();
        child.wait().unwrap();
        let heard = reader.join().unwrap();

        let mut said: Vec<Said> = (0..WRITERS).map(|_| Said::default()).collect();
        for line in &heard {
            let words: Vec<&str> = line.split(' ').collect();
            let said = &mut said[words[1].parse::<usize>().unwrap()];
            match words[..] {
                ["handed", _, number] => said.handed = number.parse::<u64>().unwrap() + 1,
                ["kept", _, number, revision] => {
                    said.kept = number.parse::<u64>().unwrap() + 1;
                    highest = highest.max(revision.parse().unwrap());
                    tally.acknowledged += 1;
                }
                _ => panic!("the writer said {line:?}"),
            }
        }

        let (store, torn) = open(directory.path());
        tally.torn += u64::from(torn);
        assert!(
            store.revision().get() >= highest,
            "round {round}: the revision went back"
        );
        let page = store.list(&List::all(Scope::Resource(things()))).unwrap();
        let found: BTreeMap<Key, String> = page
            .records
            .iter()
            .map(|record| {
                let text = str::from_utf8(record.value()).unwrap();
                let (text, revision) = text.rsplit_once('@').unwrap();
                assert_eq!(revision, record.mod_revision().to_string());
                (record.key().clone(), format!("{text}@"))
            })
            .collect();
        for (writer, said) in (0..).zip(said) {
            let of_writer = |all: &BTreeMap<Key, String>| -> BTreeMap<Key, String> {
                let own = all
                    .iter()
                    .filter(|(key, _)| key.namespace() == format!("writer-{writer}"));
                own.map(|(key, text)| (key.clone(), text.clone())).collect()
            };
            let mut certain = of_writer(&expected);
            for number in 0..said.kept {
                apply(&mut certain, Step { round, writer, number });
            }
            let found = of_writer(&found);
            let mut possible = certain.clone();
            if said.handed > said.kept {
                apply(
                    &mut possible,
                    Step {
                        round,
                        writer,
                        number: said.kept,
                    },
                );
                tally.survived += u64::from(found == possible);
                tally.vanished += u64::from(found != possible);
            }
            assert!(
                found == certain || found == possible,
                "round {round} with seed {seed}: writer {writer}"
            );
        }
        expected = found;
        highest = store.revision().get();
    }
}

fn apply(state: &mut BTreeMap<Key, String>, step: Step) {
    for (index, text) in step.effects() {
        match text {
            Some(text) => state.insert(key(step.writer, index), text),
            None => state.remove(&key(step.writer, index)),
        };
    }
}

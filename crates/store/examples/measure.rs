//! Measures the store on the disk of the directory given, or of the current one:
//! `cargo run --release -p moorline-store --example measure [DIRECTORY]`.
#![allow(clippy::print_stdout, reason = "what it measures is what it is for")]

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use moorline_store::disk::{Directory, DiskOptions};
use moorline_store::{Attributes, Key, List, Options, Pairs, Resource, Scope, Start, Store, Value};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const OBJECTS: u64 = 10_000;

fn main() -> Outcome {
    let root = env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let scratch = tempfile::Builder::new().prefix("store-measure-").tempdir_in(root)?;
    bare_sync(scratch.path())?;
    let durable = scratch.path().join("store");
    let (store, _) = Store::open(Directory::at(&durable)?, DiskOptions::default(), describe)?;
    puts(&store, "disk", 1, 4_000)?;
    puts(&store, "disk", 32, 60_000)?;
    put_to_watch(&store, "disk", 2_000)?;
    drop(store);
    reopening(&durable)?;

    let store = Store::memory(Options::default(), describe);
    puts(&store, "memory", 1, 100_000)?;
    put_to_watch(&store, "memory", 20_000)?;
    drop(store);
    lists()?;
    fan_out()?;
    Ok(())
}

fn describe(_: &Key, _: &[u8]) -> Attributes {
    Attributes {
        uid: "6b5f2c3e-5b1f-4d7e-9b8a-0c1d2e3f4a5b".into(),
        labels: Pairs::from_iter([
            ("app.kubernetes.io/name", "database"),
            ("app.kubernetes.io/instance", "orders"),
        ]),
        fields: Pairs::default(),
    }
}

fn things() -> Resource {
    Resource::new("things")
}

fn key(number: u64) -> Key {
    Key::new(&things(), "default", format!("object-{number:06}"))
}

/// 1 KB that carries its revision.
fn value() -> Value {
    let text = format!(r#"{{"resourceVersion":"","data":"{}"}}"#, "x".repeat(990));
    Value::with_revision_at(text, 20)
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100];
    println!("{what}: p50 {:?}, p99 {:?}", at(50), at(99));
}

fn bare_sync(path: &Path) -> Outcome {
    let file = File::create(path.join("bare"))?;
    let bytes = [7; 1024];
    let mut times = Vec::new();
    for round in 0..1_000 {
        let began = Instant::now();
        file.write_all_at(&bytes, round * 1024)?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    report("bare write and fdatasync of 1 KB", times);
    fs::remove_file(path.join("bare"))?;
    Ok(())
}

fn puts(store: &Store, name: &str, writers: u64, total: u64) -> Outcome {
    let next = AtomicU64::new(0);
    let began = Instant::now();
    let times = thread::scope(|scope| -> Outcome<Vec<Duration>> {
        let threads: Vec<_> = (0..writers)
            .map(|_| {
                scope.spawn(|| -> Outcome<Vec<Duration>> {
                    let mut times = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= total {
                            return Ok(times);
                        }
                        let began = Instant::now();
                        store.put(key(number % OBJECTS), value()).wait()?;
                        times.push(began.elapsed());
                    }
                })
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| "a writer panicked")??);
        }
        Ok(all)
    })?;
    let rate = total as f64 / began.elapsed().as_secs_f64();
    report(&format!("{name}, {writers} writers: {rate:.0} puts/s of 1 KB"), times);
    Ok(())
}

fn put_to_watch(store: &Store, name: &str, rounds: u64) -> Outcome {
    let mut watch = store.watch(Scope::Resource(things()), Start::Now)?;
    let mut times = Vec::new();
    for number in 0..rounds {
        let began = Instant::now();
        let pending = store.put(key(number % OBJECTS), value());
        watch.next_within(Duration::from_secs(10)).ok_or("no event came")??;
        times.push(began.elapsed());
        pending.wait()?;
    }
    report(&format!("{name}: put to watch event"), times);
    Ok(())
}

fn reopening(path: &Path) -> Outcome {
    let bytes: u64 = fs::read_dir(path)?
        .map(|entry| Ok(entry?.metadata()?.len()))
        .sum::<Outcome<u64>>()?;
    let began = Instant::now();
    let (_, recovery) = Store::open(Directory::at(path)?, DiskOptions::default(), describe)?;
    println!(
        "reopening {} objects from {} MB: {:?}",
        recovery.records,
        bytes >> 20,
        began.elapsed()
    );
    Ok(())
}

fn resident_bytes() -> Outcome<u64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').nth(1).ok_or("statm has a second field")?.parse()?;
    Ok(pages * 4096)
}

fn lists() -> Outcome {
    let before = resident_bytes()?;
    let mut options = Options::default();
    options.window.changes = 1;
    let store = Store::memory(options, describe);
    for number in 0..10 * OBJECTS {
        let key = Key::new(
            &Resource::new(if number < OBJECTS { "things" } else { "others" }),
            "default",
            format!("{number:06}"),
        );
        store.put(key, value()).wait()?;
    }
    let each = (resident_bytes()? - before) / (10 * OBJECTS);
    println!("memory: {each} bytes per object of 1 KB with two labels");

    let (mut times, mut filtered) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let began = Instant::now();
        let page = store.list(&List::all(Scope::Resource(things())))?;
        times.push(began.elapsed());
        assert_eq!(page.records.len() as u64, OBJECTS);
        let began = Instant::now();
        let page = store.list_matching(&List::all(Scope::Resource(things())), |record| {
            record.attributes().labels.get("app.kubernetes.io/instance") == Some("orders")
        })?;
        filtered.push(began.elapsed());
        assert_eq!(page.records.len() as u64, OBJECTS);
    }
    report("list of 10,000", times);
    report("list of 10,000 by label", filtered);
    Ok(())
}

fn fan_out() -> Outcome {
    let store = Store::memory(Options::default(), describe);
    let mut watches = Vec::new();
    for _ in 0..1_000 {
        watches.push(store.watch(Scope::Resource(things()), Start::Now)?);
    }
    let mut times = Vec::new();
    for number in 0..200 {
        let began = Instant::now();
        store.put(key(number), value()).wait()?;
        for watch in &mut watches {
            watch.try_next().ok_or("no event came")??;
        }
        times.push(began.elapsed());
    }
    report("one put taken by 1,000 watchers", times);
    Ok(())
}

//! What the tests of a store in memory share: coloured pods.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file takes what it needs"
)]

use std::sync::Arc;

use moorline_store::{Attributes, Event, Key, Options, Pairs, Record, Resource, Revision, Scope, Store, Value, Watch};

/// Values read `colour=red rv=`; the colour is the label.
pub fn describe(_: &Key, value: &[u8]) -> Attributes {
    let text = str::from_utf8(value).unwrap();
    let colour = text.split(' ').next().unwrap().strip_prefix("colour=").unwrap();
    Attributes {
        labels: Pairs::from_iter([("colour", colour)]),
        ..Attributes::default()
    }
}

/// A value of this colour that carries its revision.
pub fn value(colour: &str) -> Value {
    let text = format!("colour={colour} rv=!");
    let at = text.len() - 1;
    Value::with_revision_at(text, at)
}

/// Whether a record is red.
pub fn red(record: &Record) -> bool {
    record.attributes().labels.get("colour") == Some("red")
}

/// A store in memory.
pub fn store() -> Store {
    Store::memory(Options::default(), describe)
}

/// The resource that most tests use.
pub fn pods() -> Resource {
    Resource::new("pods")
}

/// The key of a pod.
pub fn pod(namespace: &str, name: &str) -> Key {
    Key::new(&pods(), namespace, name)
}

/// All of them.
pub fn all_pods() -> Scope {
    Scope::Resource(pods())
}

/// Writes a pod, whatever is there.
pub fn put(store: &Store, key: &Key, colour: &str) -> Revision {
    store.put(key.clone(), value(colour)).wait().unwrap().revision
}

/// Namespace and name of each.
pub fn names(records: &[Arc<Record>]) -> Vec<String> {
    records
        .iter()
        .map(|record| format!("{}/{}", record.key().namespace(), record.key().name()))
        .collect()
}

/// What a watch says next, in words.
pub fn next(watch: &mut Watch) -> String {
    match watch.try_next() {
        None => "nothing".to_owned(),
        Some(Err(error)) => error.to_string(),
        Some(Ok(event)) => {
            let kind = match &event {
                Event::Added { .. } => "added",
                Event::Modified { .. } => "modified",
                Event::Deleted { .. } => "deleted",
                Event::InitialDone { revision } => return format!("initial done at {revision}"),
            };
            let record = event.record().unwrap();
            format!(
                "{kind} {} {}",
                record.key().name(),
                str::from_utf8(record.value()).unwrap()
            )
        }
    }
}

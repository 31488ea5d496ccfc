//! What a store in memory does, one behaviour a test.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use moorline_store::{
    At, Attributes, Event, Expect, Key, List, Options, Pairs, ReadError, Record, Resource, Revision, Scope, Start,
    Store, Transaction, Value, Watch, WatchError, Window, WriteError,
};

/// Values read `colour=red rv=`; the colour is the label.
fn describe(_: &Key, value: &[u8]) -> Attributes {
    let text = str::from_utf8(value).unwrap();
    let colour = text.split(' ').next().unwrap().strip_prefix("colour=").unwrap();
    Attributes {
        labels: Pairs::from_iter([("colour", colour)]),
        ..Attributes::default()
    }
}

fn value(colour: &str) -> Value {
    let text = format!("colour={colour} rv=!");
    let at = text.len() - 1;
    Value::with_revision_at(text, at)
}

fn red(record: &Record) -> bool {
    record.attributes().labels.get("colour") == Some("red")
}

fn store() -> Store {
    Store::memory(Options::default(), describe)
}

fn pods() -> Resource {
    Resource::new("pods")
}

fn pod(namespace: &str, name: &str) -> Key {
    Key::new(&pods(), namespace, name)
}

fn all_pods() -> Scope {
    Scope::Resource(pods())
}

fn put(store: &Store, key: &Key, colour: &str) -> Revision {
    store.put(key.clone(), value(colour)).wait().unwrap().revision
}

fn names(records: &[Arc<Record>]) -> Vec<String> {
    records
        .iter()
        .map(|record| format!("{}/{}", record.key().namespace(), record.key().name()))
        .collect()
}

fn next(watch: &mut Watch) -> String {
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

#[test]
fn a_write_is_read_back_with_its_revision_inside() {
    let store = store();
    assert_eq!(store.revision(), Revision::FIRST);
    let record = store.create(pod("a", "x"), value("red")).wait().unwrap().into_record();
    assert_eq!(record.value(), "colour=red rv=2!");
    assert_eq!(
        (record.create_revision(), record.mod_revision(), record.version()),
        (Revision::new(2), Revision::new(2), 1)
    );
    let record = store
        .update(pod("a", "x"), value("blue"), Revision::new(2))
        .wait()
        .unwrap()
        .into_record();
    assert_eq!(
        (record.create_revision(), record.mod_revision(), record.version()),
        (Revision::new(2), Revision::new(3), 2)
    );
    assert_eq!(store.get(&pod("a", "x")).unwrap().value(), "colour=blue rv=3!");
    assert_eq!(store.get(&pod("a", "y")).map(|record| record.version()), None);
}

#[test]
fn creating_what_exists_is_refused() {
    let store = store();
    put(&store, &pod("a", "x"), "red");
    let error = store.create(pod("a", "x"), value("red")).wait().unwrap_err();
    assert!(matches!(error, WriteError::AlreadyExists { actual, .. } if actual == Revision::new(2)));
    assert_eq!(store.revision(), Revision::new(2));
}

#[test]
fn updating_or_deleting_what_is_not_there_is_refused() {
    let store = store();
    for pending in [
        store.update(pod("a", "x"), value("red"), Revision::new(1)),
        store.submit(Transaction::new().replace(pod("a", "x"), value("red"))),
        store.delete(pod("a", "x")),
        store.delete_at(pod("a", "x"), Revision::new(1)),
    ] {
        assert!(matches!(pending.wait().unwrap_err(), WriteError::NotFound { .. }));
    }
}

#[test]
fn a_write_on_a_stale_revision_conflicts() {
    let store = store();
    let seen = put(&store, &pod("a", "x"), "red");
    let now = put(&store, &pod("a", "x"), "blue");
    for pending in [
        store.update(pod("a", "x"), value("red"), seen),
        store.delete_at(pod("a", "x"), seen),
    ] {
        let error = pending.wait().unwrap_err();
        assert!(matches!(error, WriteError::Conflict { expected, actual, .. } if expected == seen && actual == now));
    }
}

#[test]
fn a_transaction_with_one_bad_condition_changes_nothing() {
    let store = store();
    put(&store, &pod("", "home"), "red");
    let transaction = Transaction::new()
        .create(pod("home", "x"), value("red"))
        .check(pod("", "home"), Expect::At(Revision::new(1)))
        .delete(pod("", "home"));
    assert!(matches!(
        store.commit(transaction).unwrap_err(),
        WriteError::Conflict { .. }
    ));
    assert_eq!(store.list(&List::all(all_pods())).unwrap().records.len(), 1);
    assert_eq!(store.revision(), Revision::new(2));
}

#[test]
fn a_transaction_takes_one_revision_for_all_its_keys() {
    let store = store();
    let (x, y) = (pod("a", "x"), pod("a", "y"));
    let committed = store
        .commit(
            Transaction::new()
                .create(x.clone(), value("red"))
                .create(y, value("blue")),
        )
        .unwrap();
    assert_eq!(committed.revision, Revision::new(2));
    assert!(
        committed
            .records
            .iter()
            .all(|record| record.mod_revision() == Revision::new(2))
    );
    let checked = store.commit(Transaction::new().check(x, Expect::Present)).unwrap();
    assert_eq!((checked.revision, checked.records.len()), (Revision::new(2), 0));
}

#[test]
fn a_transaction_that_writes_a_key_twice_is_refused() {
    let store = store();
    let transaction = Transaction::new()
        .put(pod("a", "x"), value("red"))
        .delete(pod("a", "x"));
    assert!(matches!(
        store.commit(transaction).unwrap_err(),
        WriteError::WrittenTwice { .. }
    ));
}

#[test]
fn a_transaction_beyond_the_limit_is_refused() {
    let store = Store::memory(
        Options {
            max_transaction_bytes: 30,
            ..Options::default()
        },
        describe,
    );
    let error = store
        .put(pod("a", "x"), value("a-colour-of-many-letters"))
        .wait()
        .unwrap_err();
    assert!(matches!(error, WriteError::TooLarge { limit: 30, .. }));
    put(&store, &pod("a", "x"), "red");
}

#[test]
fn a_deletion_answers_with_what_was_deleted_under_its_own_revision() {
    let store = store();
    for round in 0..6 {
        put(&store, &pod("a", &format!("filler-{round}")), "red");
    }
    put(&store, &pod("a", "x"), "red");
    put(&store, &pod("a", "y"), "red");
    let deleted = store.delete(pod("a", "x")).wait().unwrap().into_record();
    assert_eq!(deleted.value(), "colour=red rv=10!");
    assert!(store.get(&pod("a", "x")).is_none());
}

#[test]
fn a_namespace_lists_only_its_own() {
    let store = store();
    for (namespace, name) in [("a", "z"), ("a-b", "x"), ("a", "b"), ("", "a"), ("b", "a")] {
        put(&store, &pod(namespace, name), "red");
    }
    put(&store, &Key::new(&Resource::new("secrets"), "a", "x"), "red");
    let page = store.list(&List::all(Scope::namespace(&pods(), "a"))).unwrap();
    assert_eq!(names(&page.records), ["a/b", "a/z"]);
    assert_eq!(page.revision, store.revision());
    let page = store.list(&List::all(all_pods())).unwrap();
    assert_eq!(names(&page.records), ["/a", "a/b", "a/z", "a-b/x", "b/a"]);
    let page = store.list(&List::all(Scope::Object(pod("a", "z")))).unwrap();
    assert_eq!(names(&page.records), ["a/z"]);
}

#[test]
fn pages_of_one_list_show_one_moment() {
    let store = store();
    for name in ["a", "b", "c", "d", "e"] {
        put(&store, &pod("ns", name), "red");
    }
    let two = NonZeroUsize::new(2).unwrap();
    let list = List::all(all_pods()).limit(two);
    let first = store.list(&list).unwrap();
    let more = first.more.unwrap();
    assert_eq!(
        (names(&first.records), more.remaining.get()),
        (vec!["ns/a".to_owned(), "ns/b".to_owned()], 3)
    );

    store.delete(pod("ns", "c")).wait().unwrap();
    put(&store, &pod("ns", "d"), "blue");
    put(&store, &pod("ns", "bb"), "red");

    let second = store.list(&list.clone().continued(first.revision, more.after)).unwrap();
    assert_eq!(names(&second.records), ["ns/c", "ns/d"]);
    assert_eq!(second.records[1].value(), "colour=red rv=5!");
    let more = second.more.unwrap();
    assert_eq!(more.remaining.get(), 1);
    let third = store.list(&list.clone().continued(first.revision, more.after)).unwrap();
    assert_eq!((names(&third.records), third.more), (vec!["ns/e".to_owned()], None));
}

#[test]
fn a_filtered_page_goes_on_looking_until_it_is_full() {
    let store = store();
    for (name, colour) in [("a", "blue"), ("b", "red"), ("c", "blue"), ("d", "red"), ("e", "blue")] {
        put(&store, &pod("ns", name), colour);
    }
    let list = List::all(all_pods()).limit(NonZeroUsize::new(1).unwrap());
    let first = store.list_matching(&list, red).unwrap();
    assert_eq!(names(&first.records), ["ns/b"]);
    let second = store
        .list_matching(&list.clone().continued(first.revision, first.more.unwrap().after), red)
        .unwrap();
    assert_eq!(names(&second.records), ["ns/d"]);
    let third = store
        .list_matching(&list.clone().continued(first.revision, second.more.unwrap().after), red)
        .unwrap();
    assert_eq!((third.records.len(), third.more), (0, None));
}

#[test]
fn a_revision_not_yet_given_is_refused() {
    let store = store();
    let future = Revision::new(7);
    let expected = ReadError::Future {
        requested: future,
        current: Revision::FIRST,
    };
    for at in [At::Exactly(future), At::NotOlderThan(future)] {
        assert_eq!(store.list(&List::all(all_pods()).at(at)).unwrap_err(), expected);
        assert_eq!(store.get_at(&pod("a", "x"), at).unwrap_err(), expected);
    }
    assert_eq!(store.watch(all_pods(), Start::After(future)).unwrap_err(), expected);
    assert_eq!(store.compact(future).unwrap_err(), expected);
}

#[test]
fn what_lies_before_the_window_is_refused_as_compacted() {
    let store = store();
    let first = put(&store, &pod("a", "x"), "red");
    let second = put(&store, &pod("a", "x"), "blue");
    store.delete(pod("a", "x")).wait().unwrap();
    store.compact(second).unwrap();

    let expected = ReadError::Compacted {
        requested: first,
        oldest: second,
    };
    assert_eq!(store.oldest_revision(), second);
    assert_eq!(
        store.list(&List::all(all_pods()).at(At::Exactly(first))).unwrap_err(),
        expected
    );
    assert_eq!(store.watch(all_pods(), Start::After(first)).unwrap_err(), expected);
    let (record, _) = store.get_at(&pod("a", "x"), At::Exactly(second)).unwrap();
    assert_eq!(record.unwrap().value(), "colour=blue rv=3!");
    let mut watch = store.watch(all_pods(), Start::After(second)).unwrap();
    assert_eq!(next(&mut watch), "deleted x colour=blue rv=4!");
    store.compact(first).unwrap();
    assert_eq!(store.oldest_revision(), second);
}

#[test]
fn the_window_is_bounded_by_count() {
    let window = Window {
        changes: 3,
        ..Window::default()
    };
    let store = Store::memory(
        Options {
            window,
            ..Options::default()
        },
        describe,
    );
    for _ in 0..10 {
        put(&store, &pod("a", "x"), "red");
    }
    assert_eq!(
        (store.oldest_revision(), store.revision()),
        (Revision::new(8), Revision::new(11))
    );
}

#[test]
fn the_window_is_bounded_by_age() {
    let seconds = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&seconds);
    let window = Window {
        age: Duration::from_secs(10),
        ..Window::default()
    };
    let options = Options {
        window,
        clock: Arc::new(move || Duration::from_secs(clock.load(Ordering::SeqCst))),
        ..Options::default()
    };
    let store = Store::memory(options, describe);
    put(&store, &pod("a", "x"), "red");
    seconds.store(5, Ordering::SeqCst);
    put(&store, &pod("a", "x"), "red");
    put(&store, &pod("a", "x"), "red");
    seconds.store(11, Ordering::SeqCst);
    store.tidy();
    assert_eq!(store.oldest_revision(), Revision::new(2));
    seconds.store(60, Ordering::SeqCst);
    store.tidy();
    assert_eq!(
        (store.oldest_revision(), store.revision()),
        (Revision::new(3), Revision::new(4))
    );
}

#[test]
fn the_window_is_bounded_by_what_it_weighs() {
    let window = Window {
        bytes: 100_000,
        ..Window::default()
    };
    let store = Store::memory(
        Options {
            window,
            ..Options::default()
        },
        describe,
    );
    for _ in 0..100 {
        put(&store, &pod("a", "x"), &"red".repeat(3000));
    }
    let retained = store.revision().get() - store.oldest_revision().get();
    assert!((5..12).contains(&retained), "{retained}");
}

#[test]
fn a_watch_begins_after_the_revision_it_names() {
    let store = store();
    put(&store, &pod("a", "x"), "red");
    let seen = put(&store, &pod("a", "y"), "red");
    put(&store, &pod("a", "x"), "blue");
    let mut watch = store.watch(all_pods(), Start::After(seen)).unwrap();
    assert_eq!(watch.progress(), Some(seen));
    assert_eq!(next(&mut watch), "modified x colour=blue rv=4!");
    assert_eq!(next(&mut watch), "nothing");
    store.delete(pod("a", "y")).wait().unwrap();
    assert_eq!(next(&mut watch), "deleted y colour=red rv=5!");
    assert_eq!(watch.progress(), Some(store.revision()));
}

#[test]
fn a_watch_from_now_sees_only_what_comes() {
    let store = store();
    put(&store, &pod("a", "x"), "red");
    let mut watch = store.watch(all_pods(), Start::Now).unwrap();
    assert_eq!(next(&mut watch), "nothing");
    put(&store, &pod("a", "y"), "red");
    assert_eq!(next(&mut watch), "added y colour=red rv=3!");
}

#[test]
fn a_watch_with_initial_state_marks_where_it_ends() {
    let store = store();
    put(&store, &pod("a", "x"), "red");
    put(&store, &pod("a", "y"), "blue");
    let mut watch = store.watch_matching(all_pods(), Start::Initial, red).unwrap();
    put(&store, &pod("a", "z"), "red");
    assert_eq!(watch.progress(), None);
    assert_eq!(next(&mut watch), "added x colour=red rv=2!");
    assert_eq!(next(&mut watch), "initial done at 3");
    assert_eq!(watch.progress(), Some(Revision::new(3)));
    assert_eq!(next(&mut watch), "added z colour=red rv=4!");
    assert_eq!(next(&mut watch), "nothing");
}

#[test]
fn what_leaves_the_filter_is_deleted_under_the_revision_at_which_it_left() {
    let store = store();
    let mut watch = store.watch_matching(all_pods(), Start::Now, red).unwrap();
    for colour in ["blue", "red", "red", "blue", "blue", "red"] {
        put(&store, &pod("a", "x"), colour);
    }
    store.delete(pod("a", "x")).wait().unwrap();
    let events: Vec<String> = (0..5).map(|_| next(&mut watch)).collect();
    assert_eq!(
        events,
        [
            "added x colour=red rv=3!",
            "modified x colour=red rv=4!",
            "deleted x colour=red rv=5!",
            "added x colour=red rv=7!",
            "deleted x colour=red rv=8!",
        ]
    );
    assert_eq!(next(&mut watch), "nothing");
}

#[test]
fn watchers_of_one_departure_share_its_bytes() {
    let store = store();
    let mut watches = [(); 2].map(|()| store.watch(all_pods(), Start::Now).unwrap());
    put(&store, &pod("a", "x"), "red");
    store.delete(pod("a", "x")).wait().unwrap();
    let departed = watches.each_mut().map(|watch| {
        watch.try_next().unwrap().unwrap();
        Arc::clone(watch.try_next().unwrap().unwrap().record().unwrap())
    });
    assert!(Arc::ptr_eq(&departed[0], &departed[1]));
}

#[test]
fn progress_stays_before_a_transaction_until_all_of_it_is_handed_out() {
    let store = store();
    let mut watch = store.watch(all_pods(), Start::Now).unwrap();
    let transaction = Transaction::new()
        .put(pod("a", "x"), value("red"))
        .put(pod("a", "y"), value("red"));
    let revision = store.commit(transaction).unwrap().revision;
    assert_eq!(watch.progress(), Some(Revision::FIRST));
    next(&mut watch);
    assert_eq!(watch.progress(), Some(Revision::FIRST));
    next(&mut watch);
    assert_eq!(watch.progress(), Some(revision));
}

#[test]
fn progress_goes_on_while_only_others_change() {
    let store = store();
    let watch = store.watch(Scope::namespace(&pods(), "a"), Start::Now).unwrap();
    let revision = put(&store, &pod("b", "x"), "red");
    assert_eq!(watch.progress(), Some(revision));
}

#[test]
fn a_watcher_that_falls_behind_the_window_is_told() {
    let window = Window {
        changes: 4,
        ..Window::default()
    };
    let store = Store::memory(
        Options {
            window,
            ..Options::default()
        },
        describe,
    );
    let mut watch = store.watch(all_pods(), Start::Now).unwrap();
    for _ in 0..5 {
        put(&store, &pod("a", "x"), "red");
    }
    let oldest = store.oldest_revision();
    assert_eq!(watch.try_next().unwrap().unwrap_err(), WatchError::Compacted { oldest });
    assert_eq!(watch.try_next().unwrap().unwrap_err(), WatchError::Compacted { oldest });
}

#[test]
fn a_watcher_whom_nothing_concerned_never_falls_behind() {
    let window = Window {
        changes: 4,
        ..Window::default()
    };
    let store = Store::memory(
        Options {
            window,
            ..Options::default()
        },
        describe,
    );
    let mut watch = store.watch(Scope::Object(pod("a", "quiet")), Start::Now).unwrap();
    for _ in 0..50 {
        put(&store, &pod("a", "loud"), "red");
    }
    put(&store, &pod("a", "quiet"), "red");
    assert_eq!(next(&mut watch), "added quiet colour=red rv=52!");
}

#[test]
fn a_watcher_that_keeps_pace_never_falls_behind() {
    let window = Window {
        changes: 1,
        age: Duration::ZERO,
        bytes: 0,
    };
    let store = Store::memory(
        Options {
            window,
            ..Options::default()
        },
        describe,
    );
    let mut watch = store.watch(all_pods(), Start::Now).unwrap();
    for round in 2..50 {
        put(&store, &pod("a", "x"), "red");
        assert!(next(&mut watch).ends_with(&format!("rv={round}!")));
    }
}

#[test]
fn closing_refuses_writes_and_ends_watches_behind_the_last_event() {
    let store = store();
    let mut watch = store.watch(all_pods(), Start::Now).unwrap();
    put(&store, &pod("a", "x"), "red");
    store.close();
    assert!(matches!(
        store.delete(pod("a", "x")).wait().unwrap_err(),
        WriteError::Closed
    ));
    assert_eq!(next(&mut watch), "added x colour=red rv=2!");
    assert_eq!(watch.try_next().unwrap().unwrap_err(), WatchError::Closed);
    assert!(store.get(&pod("a", "x")).is_some());
}

#[test]
fn dropping_the_last_handle_ends_watches() {
    let store = store();
    let mut watch = store.watch(all_pods(), Start::Now).unwrap();
    drop(store.clone());
    assert_eq!(next(&mut watch), "nothing");
    drop(store);
    assert_eq!(watch.try_next().unwrap().unwrap_err(), WatchError::Closed);
}

/// Notes its number in a shared list when woken.
struct Bell {
    number: usize,
    rung: Arc<Mutex<Vec<usize>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.lock().unwrap().push(self.number);
    }
}

#[test]
fn a_write_wakes_those_whom_it_concerns_and_no_others() {
    let store = store();
    let rung = Arc::new(Mutex::new(Vec::new()));
    let scopes = [
        all_pods(),
        Scope::namespace(&pods(), "a"),
        Scope::Object(pod("a", "x")),
        Scope::namespace(&pods(), "b"),
        Scope::Object(pod("a", "y")),
        Scope::Resource(Resource::new("secrets")),
    ];
    let mut watches: Vec<Watch> = scopes
        .into_iter()
        .map(|scope| store.watch(scope, Start::Now).unwrap())
        .collect();
    for (number, watch) in watches.iter_mut().enumerate() {
        let waker = Waker::from(Arc::new(Bell {
            number,
            rung: Arc::clone(&rung),
        }));
        assert!(matches!(
            watch.poll_next(&mut Context::from_waker(&waker)),
            Poll::Pending
        ));
    }
    put(&store, &pod("a", "x"), "red");
    put(&store, &pod("a", "x"), "red");
    rung.lock().unwrap().sort_unstable();
    assert_eq!(*rung.lock().unwrap(), [0, 1, 2]);
}

#[test]
fn a_blocked_watcher_is_woken_by_a_write() {
    let store = store();
    let mut watch = store.watch(all_pods(), Start::Now).unwrap();
    let writer = std::thread::spawn({
        let store = store.clone();
        move || put(&store, &pod("a", "x"), "red")
    });
    let event = watch.next_within(Duration::from_secs(20)).unwrap().unwrap();
    assert_eq!(event.revision(), writer.join().unwrap());
    assert!(watch.next_within(Duration::from_millis(1)).is_none());
}

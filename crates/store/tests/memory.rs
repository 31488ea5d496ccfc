//! Writing, reading and forgetting, one behaviour a test.

mod kit;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kit::{all_pods, describe, names, next, pod, pods, put, red, store, value};
use moorline_store::{
    At, Expect, Key, List, Options, ReadError, Resource, Revision, Scope, Start, Store, Transaction, Window, WriteError,
};

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

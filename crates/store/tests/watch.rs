//! Watching, one behaviour a test.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod kit;

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use kit::{all_pods, describe, next, pod, pods, put, red, store, value};
use moorline_store::{
    Options, Resource, Revision, Scope, Start, Store, Transaction, Watch, WatchError, Window, WriteError,
};

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

#[test]
fn a_watch_may_travel_between_threads() {
    fn travels<T: Send + Sync>(_: &T) {}
    let store = store();
    travels(&store);
    travels(&store.watch(all_pods(), Start::Now).unwrap());
}

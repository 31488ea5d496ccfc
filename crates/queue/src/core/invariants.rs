//! The twenty-two invariants of the queue, one test each, named after it.
//!
//! D are the keys that are queued or dirty, Q those that are queued, P those that are processing.

use super::*;

type Queue = Core<&'static str>;

fn queue() -> Queue {
    Core::new(Config {
        backoff: crate::Backoff {
            jitter_percent: 0,
            ..Default::default()
        },
        ..Config::default()
    })
}

fn at(milliseconds: u64) -> Moment {
    Moment::START.after(Duration::from_millis(milliseconds))
}

fn add(queue: &mut Queue, key: &'static str) -> Added {
    queue.add(key, Ask::now(), at(0))
}

fn add_after(queue: &mut Queue, key: &'static str, milliseconds: u64) -> Added {
    queue.add(key, Ask::after(Duration::from_millis(milliseconds)), at(0))
}

fn get_at(queue: &mut Queue, now: Moment) -> Option<&'static str> {
    match queue.get(now) {
        Next::Key(handout) => Some(handout.key),
        Next::Wait { .. } | Next::Ended => None,
    }
}

fn get(queue: &mut Queue) -> Option<&'static str> {
    get_at(queue, at(0))
}

fn done(queue: &mut Queue, key: &'static str) -> Settled {
    queue.done(&key, Outcome::Done, at(0)).unwrap()
}

/// What is handed out when one worker takes and finishes all there is.
fn served(queue: &mut Queue) -> Vec<&'static str> {
    let mut served = Vec::new();
    while let Some(key) = get(queue) {
        served.push(key);
        done(queue, key);
    }
    served
}

#[test]
fn invariant_01_a_key_is_with_one_worker_at_a_time() {
    let mut queue = queue();
    add(&mut queue, "a");
    assert_eq!(get(&mut queue), Some("a"));
    add(&mut queue, "a");
    assert_eq!(get(&mut queue), None);
}

#[test]
fn invariant_02_what_is_queued_is_dirty_and_not_processing() {
    let mut queue = queue();
    add(&mut queue, "a");
    add(&mut queue, "b");
    get(&mut queue);
    add(&mut queue, "a");
    assert_eq!((queue.len(), queue.dirty(), queue.processing()), (1, 1, 1));
    done(&mut queue, "a");
    assert_eq!((queue.len(), queue.dirty(), queue.processing()), (2, 0, 0));
}

#[test]
fn invariant_03_the_queue_has_no_duplicates() {
    let mut queue = queue();
    for key in ["a", "b", "a", "b", "a"] {
        add(&mut queue, key);
    }
    assert_eq!(served(&mut queue), ["a", "b"]);
}

#[test]
fn invariant_04_adding_what_is_dirty_changes_nothing() {
    let mut queue = queue();
    add(&mut queue, "a");
    add(&mut queue, "b");
    assert_eq!(add(&mut queue, "a"), Added::Merged);
    assert_eq!(get(&mut queue), Some("a"));
    add(&mut queue, "a");
    assert_eq!(add(&mut queue, "a"), Added::Merged);
    assert_eq!((queue.len(), queue.dirty()), (1, 1));
}

#[test]
fn invariant_05_adding_what_is_processing_only_makes_it_dirty() {
    let mut queue = queue();
    add(&mut queue, "a");
    get(&mut queue);
    assert_eq!(add(&mut queue, "a"), Added::Dirty);
    assert_eq!((queue.len(), queue.dirty()), (0, 1));
}

#[test]
fn invariant_06_a_new_key_goes_to_the_back() {
    let mut queue = queue();
    add(&mut queue, "a");
    assert_eq!(add(&mut queue, "b"), Added::Queued);
    assert_eq!(served(&mut queue), ["a", "b"]);
}

#[test]
fn invariant_07_get_takes_the_front_and_makes_it_processing() {
    let mut queue = queue();
    add(&mut queue, "a");
    add(&mut queue, "b");
    assert_eq!(get(&mut queue), Some("a"));
    assert_eq!(queue.held().collect::<Vec<_>>(), [&"a"]);
    assert_eq!((queue.len(), queue.dirty()), (1, 0));
}

#[test]
fn invariant_08_get_on_an_empty_queue_waits_for_add_done_or_shutdown() {
    let mut queue = queue();
    assert_eq!(queue.get(at(0)), Next::Wait { until: None });
    add(&mut queue, "a");
    assert_eq!(get(&mut queue), Some("a"));
    add(&mut queue, "a");
    assert_eq!(queue.get(at(0)), Next::Wait { until: None });
    done(&mut queue, "a");
    assert_eq!(get(&mut queue), Some("a"));
    let _ = queue.shut_down(at(0));
    assert_eq!(queue.get(at(0)), Next::Ended);
}

#[test]
fn invariant_09_a_dirty_key_is_queued_once_when_it_is_done() {
    let mut queue = queue();
    add(&mut queue, "a");
    get(&mut queue);
    add(&mut queue, "a");
    add(&mut queue, "a");
    assert_eq!(done(&mut queue, "a"), Settled::Requeued);
    assert_eq!(queue.len(), 1);
    assert_eq!(served(&mut queue), ["a"]);
}

#[test]
fn invariant_10_a_clean_key_vanishes_when_it_is_done() {
    let mut queue = queue();
    add(&mut queue, "a");
    get(&mut queue);
    assert_eq!(done(&mut queue, "a"), Settled::Idle);
    assert_eq!(queue.slots.iter().count(), 0);
}

#[test]
fn invariant_11_what_is_added_after_its_hand_out_is_handed_out_again() {
    let mut queue = queue();
    add(&mut queue, "a");
    get(&mut queue);
    add(&mut queue, "a");
    done(&mut queue, "a");
    assert_eq!(get(&mut queue), Some("a"));
}

#[test]
fn invariant_12_many_adds_before_a_hand_out_are_one() {
    let mut queue = queue();
    for _ in 0..100 {
        add(&mut queue, "a");
    }
    assert_eq!(served(&mut queue), ["a"]);
}

#[test]
fn invariant_13_many_adds_during_processing_are_one_more_hand_out() {
    let mut queue = queue();
    add(&mut queue, "a");
    get(&mut queue);
    for _ in 0..100 {
        add(&mut queue, "a");
    }
    done(&mut queue, "a");
    assert_eq!(served(&mut queue), ["a"]);
}

#[test]
fn invariant_14_a_worker_that_asks_gets_a_key_while_one_is_queued() {
    let mut queue = queue();
    for key in ["a", "b", "c"] {
        add(&mut queue, key);
    }
    for left in (0..3).rev() {
        assert!(get(&mut queue).is_some());
        assert_eq!(queue.len(), left);
    }
}

#[test]
fn invariant_15_no_key_is_overtaken_by_a_later_arrival_of_its_priority() {
    let mut queue = queue();
    add(&mut queue, "long");
    get(&mut queue);
    add(&mut queue, "before");
    add(&mut queue, "long");
    for key in ["c", "d", "e"] {
        add(&mut queue, key);
    }
    done(&mut queue, "long");
    assert_eq!(served(&mut queue), ["before", "long", "c", "d", "e"]);
}

#[test]
fn invariant_15_holds_for_a_dirty_key_whose_turn_passed_while_it_was_processing() {
    let mut queue = queue();
    add(&mut queue, "long");
    get(&mut queue);
    add(&mut queue, "long");
    for key in ["b", "c", "d"] {
        add(&mut queue, key);
    }
    assert_eq!(get(&mut queue), Some("b"));
    done(&mut queue, "long");
    assert_eq!(served(&mut queue), ["long", "c", "d"]);
}

#[test]
fn invariant_16_all_sets_are_empty_when_no_more_is_added() {
    let mut queue = queue();
    for key in ["a", "b", "a"] {
        add(&mut queue, key);
    }
    add_after(&mut queue, "c", 10);
    get(&mut queue);
    add(&mut queue, "a");
    done(&mut queue, "a");
    served(&mut queue);
    assert_eq!(get_at(&mut queue, at(10)), Some("c"));
    done(&mut queue, "c");
    assert!(queue.is_idle());
    assert_eq!((queue.dirty(), queue.delayed(), queue.slots.iter().count()), (0, 0, 0));
}

#[test]
fn invariant_17_after_shutdown_adds_are_refused_and_the_queue_drains_then_ends() {
    let mut queue = queue();
    add(&mut queue, "a");
    add(&mut queue, "b");
    assert!(queue.shut_down(at(0)).is_empty());
    assert_eq!(add(&mut queue, "c"), Added::Refused);
    assert_eq!(add(&mut queue, "a"), Added::Refused);
    assert!(queue.shut_down(at(0)).is_empty());
    assert_eq!(served(&mut queue), ["a", "b"]);
    assert_eq!(queue.get(at(0)), Next::Ended);
    assert_eq!(queue.get(at(0)), Next::Ended);
}

#[test]
fn invariant_18_a_queue_is_drained_when_nothing_is_processing_and_nothing_queued() {
    let mut queue = queue();
    add(&mut queue, "a");
    let _ = queue.shut_down(at(0));
    assert!(!queue.is_idle());
    get(&mut queue);
    assert!(!queue.is_idle());
    done(&mut queue, "a");
    assert!(queue.is_idle());
}

#[test]
fn invariant_18_a_dirty_key_keeps_a_drain_waiting() {
    let mut queue = queue();
    add(&mut queue, "a");
    get(&mut queue);
    add(&mut queue, "a");
    let _ = queue.shut_down(at(0));
    done(&mut queue, "a");
    assert!(!queue.is_idle());
    assert_eq!(served(&mut queue), ["a"]);
    assert!(queue.is_idle());
}

#[test]
fn invariant_19_done_of_a_key_that_is_not_processing_is_an_error_and_changes_nothing() {
    let mut queue = queue();
    let stray = queue.done(&"a", Outcome::Done, at(0)).unwrap_err();
    assert_eq!(stray.to_string(), r#"cannot mark "a" as done, no worker holds it"#);
    add(&mut queue, "a");
    assert_eq!(queue.done(&"a", Outcome::Retry, at(0)), Err(NotProcessing { key: "a" }));
    assert_eq!((queue.len(), queue.delayed()), (1, 0));
    assert_eq!(served(&mut queue), ["a"]);
}

#[test]
fn invariant_19_a_hand_out_that_is_over_cannot_be_done_again() {
    let mut queue = queue();
    add(&mut queue, "a");
    let Next::Key(first) = queue.get(at(0)) else {
        panic!("a key is queued")
    };
    done(&mut queue, "a");
    add(&mut queue, "a");
    get(&mut queue);
    assert!(queue.done_handout(&first, Outcome::Done, at(0)).is_err());
    assert_eq!(queue.processing(), 1);
}

#[test]
fn invariant_19_holds_for_a_hand_out_whose_slot_was_numbered_anew() {
    let mut queue: Core<u32> = Core::new(Config::default());
    for key in 0..100_000 {
        queue.add(key, Ask::now(), at(0));
    }
    queue.add(u32::MAX, Ask::now().with_priority(Priority::HIGH), at(0));
    let Next::Key(held) = queue.get(at(0)) else {
        panic!("keys are queued")
    };
    assert_eq!(held.key, u32::MAX);
    while let Next::Key(handout) = queue.get(at(0)) {
        queue.done_handout(&handout, Outcome::Done, at(0)).unwrap();
    }
    assert!(
        queue
            .slots
            .run(held.ticket.slot)
            .is_none_or(|run| run.ticket != held.ticket.number)
    );
    assert_eq!(queue.done_handout(&held, Outcome::Done, at(0)), Ok(Settled::Idle));
    assert!(queue.done_handout(&held, Outcome::Done, at(0)).is_err());
}

#[test]
fn invariant_20_memory_after_quiescence_does_not_depend_on_the_keys_ever_seen() {
    let capacity = |queue: &Core<u32>| queue.slots.capacity() + queue.lanes.capacity() + queue.timers.capacity();
    let quiet_after = |keys: u32| {
        let mut queue = Core::new(Config::default());
        for key in 0..keys {
            let ask = if key % 2 == 0 {
                Ask::now()
            } else {
                Ask::after(Duration::from_millis(5))
            };
            queue.add(key, ask.with_priority(Priority::new((key % 64) as u8).unwrap()), at(0));
        }
        while let Next::Key(handout) = queue.get(at(5)) {
            let outcome = if handout.failures == 0 && handout.key % 3 == 0 {
                Outcome::Retry
            } else {
                Outcome::Done
            };
            queue.done(&handout.key, outcome, at(5)).unwrap();
        }
        while let Next::Key(handout) = queue.get(at(10_000)) {
            queue.done(&handout.key, Outcome::Done, at(10_000)).unwrap();
        }
        assert_eq!(queue.slots.iter().count(), 0);
        capacity(&queue)
    };
    assert!(quiet_after(200_000) <= 64 * 2 * 2048, "{}", quiet_after(200_000));
    assert!(quiet_after(400_000) <= quiet_after(200_000) + 4096);
}

#[test]
fn invariant_21_the_length_counts_only_what_is_queued() {
    let mut queue = queue();
    add(&mut queue, "processing");
    get(&mut queue);
    add(&mut queue, "processing");
    add_after(&mut queue, "delayed", 10);
    assert_eq!(queue.len(), 0);
    add(&mut queue, "queued");
    assert_eq!(queue.len(), 1);
}

#[test]
fn invariant_22_the_earliest_delay_of_a_key_wins_and_never_fires_early() {
    let mut queue = queue();
    add_after(&mut queue, "a", 30);
    add_after(&mut queue, "a", 10);
    add_after(&mut queue, "a", 20);
    assert_eq!(queue.get(at(0)), Next::Wait { until: Some(at(10)) });
    assert_eq!(get_at(&mut queue, at(10).before(Duration::from_nanos(1))), None);
    assert_eq!(get_at(&mut queue, at(10)), Some("a"));
    done(&mut queue, "a");
    assert_eq!(queue.get(at(100)), Next::Wait { until: None });
}

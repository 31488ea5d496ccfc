//! Priorities, delays, retries and endings, beyond the twenty-two invariants.

use std::num::NonZeroU32;

use super::*;
use crate::{Backoff, Rate};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Moment {
    Moment::START.after(Duration::from_secs(seconds))
}

fn config() -> Config {
    let backoff = Backoff {
        first: SECOND,
        most: 60 * SECOND,
        jitter_percent: 0,
    };
    Config {
        patience: 10 * SECOND,
        backoff,
        ..Config::default()
    }
}

fn urgent(priority: Priority) -> Ask {
    Ask::now().with_priority(priority)
}

fn get<O: Observer>(queue: &mut Core<u32, O>, now: Moment) -> Option<u32> {
    match queue.get(now) {
        Next::Key(handout) => Some(handout.key),
        Next::Wait { .. } | Next::Ended => None,
    }
}

fn serve<O: Observer>(queue: &mut Core<u32, O>, now: Moment) -> Option<u32> {
    let key = get(queue, now)?;
    queue.done(&key, Outcome::Done, now).unwrap();
    Some(key)
}

fn serve_all<O: Observer>(queue: &mut Core<u32, O>, now: Moment) -> Vec<u32> {
    std::iter::from_fn(|| serve(queue, now)).collect()
}

/// Runs a key that must be next, and lets it fail.
fn fail(queue: &mut Core<u32>, key: u32, now: Moment) -> Settled {
    assert_eq!(get(queue, now), Some(key));
    queue.done(&key, Outcome::Retry, now).unwrap()
}

#[test]
fn the_highest_priority_goes_first_and_arrival_decides_among_equals() {
    let mut queue = Core::new(config());
    for (key, priority) in [
        (1, Priority::LOW),
        (2, Priority::HIGH),
        (3, Priority::NORMAL),
        (4, Priority::HIGH),
        (5, Priority::LOWEST),
    ] {
        queue.add(key, urgent(priority), at(0));
    }
    assert_eq!(serve_all(&mut queue, at(0)), [2, 4, 3, 1, 5]);
}

#[test]
fn a_queued_key_takes_the_higher_priority_and_keeps_its_arrival() {
    let mut queue = Core::new(config());
    queue.add(1, urgent(Priority::LOW), at(0));
    queue.add(2, urgent(Priority::HIGH), at(0));
    queue.add(1, urgent(Priority::HIGH), at(0));
    assert_eq!((queue.depth(Priority::LOW), queue.depth(Priority::HIGH)), (0, 2));
    assert_eq!(serve_all(&mut queue, at(0)), [1, 2]);
}

#[test]
fn a_queued_key_asked_for_with_a_lower_priority_keeps_the_higher() {
    let mut queue = Core::new(config());
    queue.add(1, urgent(Priority::NORMAL), at(0));
    queue.add(2, urgent(Priority::HIGH), at(0));
    queue.add(2, urgent(Priority::LOW), at(0));
    assert_eq!(serve_all(&mut queue, at(0)), [2, 1]);
}

#[test]
fn a_dirty_key_takes_the_higher_priority_and_keeps_its_arrival() {
    for turn_has_passed in [false, true] {
        let mut queue = Core::new(config());
        queue.add(1, Ask::now(), at(0));
        get(&mut queue, at(0));
        queue.add(1, urgent(Priority::LOW), at(0));
        if turn_has_passed {
            queue.add(9, urgent(Priority::LOW), at(0));
            assert_eq!(serve(&mut queue, at(0)), Some(9));
        }
        queue.add(2, urgent(Priority::HIGH), at(0));
        queue.add(1, urgent(Priority::HIGH), at(0));
        queue.add(1, urgent(Priority::LOWEST), at(0));
        queue.done(&1, Outcome::Done, at(0)).unwrap();
        assert_eq!(
            serve_all(&mut queue, at(0)),
            [1, 2],
            "turn has passed: {turn_has_passed}"
        );
    }
}

#[test]
fn a_delayed_key_takes_the_higher_priority_and_the_earlier_time() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::after(5 * SECOND).with_priority(Priority::LOW), at(0));
    queue.add(1, Ask::after(9 * SECOND).with_priority(Priority::HIGH), at(0));
    queue.add(2, Ask::now(), at(5));
    assert_eq!(serve_all(&mut queue, at(5)), [1, 2]);
}

#[test]
fn a_low_key_among_endless_high_ones_waits_for_its_patience_and_no_longer() {
    let mut queue = Core::new(config());
    queue.add(0, urgent(Priority::LOWEST), at(0));
    for second in 0..100 {
        queue.add(second + 1, urgent(Priority::HIGHEST), at(u64::from(second)));
        queue.add(second + 1000, urgent(Priority::HIGHEST), at(u64::from(second)));
        if serve(&mut queue, at(u64::from(second))) == Some(0) {
            assert_eq!(second, 10);
            return;
        }
    }
    panic!("the low key was never handed out");
}

#[test]
fn an_overdue_key_with_n_older_ones_leaves_within_twice_n_plus_one_hand_outs() {
    let mut queue = Core::new(config());
    for key in 0..50 {
        queue.add(key, urgent(Priority::new((key % 3) as u8).unwrap()), at(0));
    }
    let mut handed_out = 0;
    for fresh in 1000.. {
        queue.add(fresh, urgent(Priority::HIGHEST), at(20));
        let key = serve(&mut queue, at(20)).unwrap();
        handed_out += 1;
        if key < 50 {
            assert!(handed_out <= 2 * (key + 1), "key {key} was hand-out {handed_out}");
            if key == 49 {
                return;
            }
        }
    }
}

#[test]
fn a_fresh_high_key_passes_an_overdue_backlog() {
    let mut queue = Core::new(config());
    for key in 0..1000 {
        queue.add(key, urgent(Priority::LOW), at(0));
    }
    queue.add(5000, urgent(Priority::HIGH), at(60));
    assert!((0..2).any(|_| serve(&mut queue, at(60)) == Some(5000)));
}

#[test]
fn endless_patience_means_that_priorities_are_strict() {
    let mut queue = Core::new(Config {
        patience: Duration::MAX,
        ..config()
    });
    queue.add(0, urgent(Priority::LOW), at(0));
    for fresh in 1..100 {
        queue.add(fresh, urgent(Priority::HIGH), at(u64::from(fresh) * 1_000_000));
        assert_eq!(serve(&mut queue, at(u64::from(fresh) * 1_000_000)), Some(fresh));
    }
}

#[test]
fn a_dirty_key_that_comes_back_overdue_is_seen_at_once() {
    let mut queue = Core::new(config());
    queue.add(0, urgent(Priority::LOW), at(0));
    get(&mut queue, at(0));
    queue.add(0, urgent(Priority::LOW), at(0));
    queue.add(1, urgent(Priority::LOW), at(9));
    queue.add(2, urgent(Priority::HIGH), at(9));
    queue.add(3, urgent(Priority::HIGH), at(9));
    assert_eq!(serve(&mut queue, at(9)), Some(2));
    queue.done(&0, Outcome::Done, at(10)).unwrap();
    assert_eq!(serve(&mut queue, at(10)), Some(0));
}

#[test]
fn an_immediate_add_supersedes_a_delay() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::after(SECOND), at(0));
    assert_eq!(queue.add(1, Ask::now(), at(0)), Added::Queued);
    assert_eq!(serve(&mut queue, at(0)), Some(1));
    assert_eq!(queue.get(at(5)), Next::Wait { until: None });
}

#[test]
fn a_delay_of_a_queued_or_dirty_key_adds_nothing() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    assert_eq!(queue.add(1, Ask::after(SECOND), at(0)), Added::Merged);
    get(&mut queue, at(0));
    queue.add(1, Ask::now(), at(0));
    assert_eq!(queue.add(1, Ask::after(SECOND), at(0)), Added::Merged);
    assert_eq!(queue.delayed(), 0);
}

#[test]
fn a_delay_that_ends_during_processing_makes_the_key_dirty() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    get(&mut queue, at(0));
    assert_eq!(queue.add(1, Ask::after(SECOND), at(0)), Added::Delayed);
    assert_eq!(queue.get(at(1)), Next::Wait { until: None });
    assert_eq!(queue.dirty(), 1);
    assert_eq!(queue.done(&1, Outcome::Done, at(2)), Ok(Settled::Requeued));
}

#[test]
fn a_delay_that_outlasts_processing_is_kept() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    get(&mut queue, at(0));
    queue.add(1, Ask::after(5 * SECOND), at(0));
    assert_eq!(
        queue.done(&1, Outcome::After(9 * SECOND), at(1)),
        Ok(Settled::Delayed { until: at(5) })
    );
    assert_eq!(get(&mut queue, at(5)), Some(1));
}

#[test]
fn delayed_keys_join_the_line_in_the_order_in_which_they_fall_due() {
    let mut queue = Core::new(config());
    queue.add(3, Ask::after(3 * SECOND), at(0));
    queue.add(1, Ask::after(SECOND), at(0));
    queue.add(2, Ask::after(SECOND), at(0));
    queue.add(9, Ask::now(), at(2));
    assert_eq!(serve_all(&mut queue, at(4)), [1, 2, 9, 3]);
}

#[test]
fn the_longest_delays_neither_overflow_nor_fire() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::after(Duration::MAX), at(7));
    queue.add(2, Ask::now(), at(7));
    get(&mut queue, at(7));
    queue.done(&2, Outcome::After(Duration::MAX), at(7)).unwrap();
    assert_eq!(queue.get(Moment::NEVER), Next::Wait { until: None });
    assert_eq!(queue.delayed(), 2);
}

#[test]
fn superseded_timers_and_abandoned_places_stay_bounded() {
    let mut queue = Core::new(config());
    queue.add(7, urgent(Priority::LOWEST), at(0));
    for round in 0..10_000 {
        let key = 100 + round % 10;
        queue.add(key, Ask::after(SECOND * 1000).with_priority(Priority::LOWEST), at(0));
        queue.add(key, Ask::after(SECOND * 500), at(0));
        queue.add(key, urgent(Priority::LOWEST), at(0));
        queue.add(key, urgent(Priority::HIGH), at(0));
        assert_eq!(serve(&mut queue, at(0)), Some(key));
        assert!(queue.timers.held() < 100 && queue.lanes.places() < 100);
    }
}

#[test]
fn time_that_goes_back_counts_as_standing_still() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(9));
    queue.add(2, Ask::after(SECOND), at(3));
    assert_eq!(serve_all(&mut queue, at(4)), [1]);
    assert_eq!(queue.get(at(5)), Next::Wait { until: Some(at(10)) });
}

#[test]
fn a_failing_key_rests_twice_as_long_each_time_and_forgets_on_success() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    assert_eq!(fail(&mut queue, 1, at(0)), Settled::Delayed { until: at(1) });
    assert_eq!(fail(&mut queue, 1, at(1)), Settled::Delayed { until: at(3) });
    assert_eq!(fail(&mut queue, 1, at(3)), Settled::Delayed { until: at(7) });
    assert_eq!(get(&mut queue, at(7)), Some(1));
    queue.done(&1, Outcome::After(SECOND), at(7)).unwrap();
    assert_eq!(fail(&mut queue, 1, at(8)), Settled::Delayed { until: at(9) });
}

#[test]
fn a_key_never_rests_longer_than_the_most() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    let mut now = at(0);
    for _ in 0..200 {
        let Settled::Delayed { until } = fail(&mut queue, 1, now) else {
            panic!("a failed key is delayed")
        };
        assert!(until.since(now) <= 60 * SECOND);
        now = until;
    }
}

#[test]
fn failures_of_runs_triggered_during_the_backoff_do_not_lengthen_it() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    fail(&mut queue, 1, at(0));
    fail(&mut queue, 1, at(1));
    for _ in 0..20 {
        queue.add(1, Ask::now(), at(1));
        assert_eq!(fail(&mut queue, 1, at(1)), Settled::Delayed { until: at(3) });
    }
    assert_eq!(fail(&mut queue, 1, at(3)), Settled::Delayed { until: at(7) });
}

#[test]
fn a_key_that_failed_while_it_was_asked_for_again_goes_back_in_line_at_once() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    get(&mut queue, at(0));
    queue.add(1, Ask::now(), at(0));
    assert_eq!(queue.done(&1, Outcome::Retry, at(0)), Ok(Settled::Requeued));
    let Next::Key(handout) = queue.get(at(0)) else {
        panic!("the key is queued")
    };
    assert_eq!(handout.failures, 1);
}

#[test]
fn a_retry_keeps_the_priority_of_its_run() {
    let mut queue = Core::new(config());
    queue.add(1, urgent(Priority::HIGH), at(0));
    fail(&mut queue, 1, at(0));
    queue.add(2, Ask::now(), at(1));
    assert_eq!(serve_all(&mut queue, at(1)), [1, 2]);
}

#[test]
fn the_bucket_spaces_retries_and_limited_adds() {
    let rate = Rate {
        every: 10 * SECOND,
        burst: NonZeroU32::new(2).unwrap(),
    };
    let mut queue = Core::new(Config {
        rate: Some(rate),
        ..config()
    });
    assert_eq!(queue.add(1, Ask::limited(), at(100)), Added::Queued);
    assert_eq!(fail(&mut queue, 1, at(100)), Settled::Delayed { until: at(101) });
    assert_eq!(queue.add(2, Ask::limited(), at(100)), Added::Delayed);
    assert_eq!(get(&mut queue, at(101)), Some(1));
    assert_eq!(queue.get(at(109)), Next::Wait { until: Some(at(110)) });
    assert_eq!(get(&mut queue, at(110)), Some(2));
}

#[test]
fn keys_that_wait_already_take_no_token() {
    let rate = Rate {
        every: 10 * SECOND,
        burst: NonZeroU32::new(2).unwrap(),
    };
    let mut queue = Core::new(Config {
        rate: Some(rate),
        ..config()
    });
    for _ in 0..100 {
        queue.add(1, Ask::limited(), at(100));
    }
    get(&mut queue, at(100));
    queue.add(1, Ask::now(), at(100));
    for _ in 0..100 {
        queue.add(1, Ask::limited(), at(100));
    }
    queue.done(&1, Outcome::Retry, at(100)).unwrap();
    assert_eq!(queue.add(2, Ask::limited(), at(100)), Added::Queued);
    assert_eq!(queue.add(3, Ask::limited(), at(100)), Added::Delayed);
}

#[test]
fn shutting_down_reports_the_delayed_keys_in_the_order_in_which_they_were_due() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    get(&mut queue, at(0));
    queue.add(1, Ask::after(2 * SECOND), at(0));
    queue.add(3, Ask::after(3 * SECOND), at(0));
    queue.add(2, Ask::after(SECOND), at(0));
    queue.add(4, Ask::now(), at(0));
    assert_eq!(
        queue.shut_down(at(0)),
        Dropped {
            queued: vec![],
            delayed: vec![2, 1, 3],
            dirty: vec![]
        }
    );
    assert_eq!(queue.done(&1, Outcome::Done, at(9)), Ok(Settled::Idle));
    assert_eq!(serve_all(&mut queue, at(9)), [4]);
}

#[test]
fn shutting_down_at_once_reports_all_that_waited() {
    let mut queue = Core::new(config());
    for key in [1, 2] {
        queue.add(key, Ask::now(), at(0));
        get(&mut queue, at(0));
    }
    queue.add(3, urgent(Priority::LOW), at(0));
    queue.add(2, Ask::now(), at(0));
    queue.add(1, Ask::now(), at(0));
    queue.add(4, Ask::now(), at(0));
    queue.add(5, Ask::after(SECOND), at(0));
    assert_eq!(serve(&mut queue, at(0)), Some(4));
    queue.add(4, Ask::now(), at(0));
    let dropped = queue.shut_down_now(at(0));
    assert_eq!(
        dropped,
        Dropped {
            queued: vec![3, 4],
            delayed: vec![5],
            dirty: vec![2, 1]
        }
    );
    assert_eq!(queue.get(at(0)), Next::Ended);
    assert_eq!((queue.len(), queue.dirty(), queue.processing()), (0, 0, 2));
    for key in [1, 2] {
        assert_eq!(queue.done(&key, Outcome::Done, at(0)), Ok(Settled::Idle));
    }
    assert!(queue.shut_down_now(at(0)).is_empty());
}

#[test]
fn a_retry_that_comes_after_shutdown_is_dropped_and_reported_once() {
    let mut queue = Core::new(config());
    queue.add(1, Ask::now(), at(0));
    get(&mut queue, at(0));
    let _ = queue.shut_down(at(0));
    assert_eq!(queue.done(&1, Outcome::Retry, at(0)), Ok(Settled::Dropped));
    assert_eq!(queue.shut_down(at(0)).delayed, [1]);
    assert!(queue.shut_down(at(0)).is_empty());
}

#[test]
fn running_times_are_known_while_they_last() {
    let mut queue = Core::new(config());
    for key in [1, 2] {
        queue.add(key, Ask::now(), at(0));
    }
    get(&mut queue, at(1));
    get(&mut queue, at(4));
    assert_eq!(queue.unfinished_work(at(10)), 15 * SECOND);
    assert_eq!(queue.longest_running(at(10)), 9 * SECOND);
    queue.done(&1, Outcome::Done, at(10)).unwrap();
    assert_eq!(queue.unfinished_work(at(10)), 6 * SECOND);
    queue.done(&2, Outcome::Done, at(10)).unwrap();
    assert_eq!(
        (queue.unfinished_work(at(99)), queue.longest_running(at(99))),
        (Duration::ZERO, Duration::ZERO)
    );
}

#[derive(Default)]
struct Diary(Vec<String>);

impl Observer for Diary {
    fn depth(&mut self, priority: Priority, depth: usize) {
        self.0.push(format!("depth {} {depth}", priority.level()));
    }
    fn added(&mut self, priority: Priority) {
        self.0.push(format!("added {}", priority.level()));
    }
    fn handed_out(&mut self, _: Priority, waited: Duration) {
        self.0.push(format!("waited {}", waited.as_secs()));
    }
    fn finished(&mut self, _: Priority, worked: Duration) {
        self.0.push(format!("worked {}", worked.as_secs()));
    }
    fn retried(&mut self, _: Priority, failures: u32) {
        self.0.push(format!("retried {failures}"));
    }
}

#[test]
fn an_observer_is_told_of_the_life_of_a_key() {
    let mut queue = Core::observed(config(), Diary::default());
    queue.add(1, Ask::now(), at(0));
    queue.add(1, urgent(Priority::HIGH), at(0));
    get(&mut queue, at(2));
    queue.done(&1, Outcome::Retry, at(5)).unwrap();
    get(&mut queue, at(6));
    let told = [
        "added 32",
        "depth 32 1",
        "depth 32 0",
        "depth 48 1",
        "waited 2",
        "depth 48 0",
        "worked 3",
        "retried 1",
        "added 48",
        "depth 48 1",
        "waited 0",
        "depth 48 0",
    ];
    assert_eq!(queue.observer().0, told);
}

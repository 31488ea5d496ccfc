//! What the steady path allocates: nothing.
#![cfg(not(any(loom, shuttle)))]

use std::time::Duration;

use allocation_counter::measure;
use moorline_queue::{Ask, Config, Core, Moment, Next, Outcome, Priority, Queue};

const CYCLES: u32 = 100_000;
const KEYS: u32 = 500;

/// Counts the allocations of many cycles after a warm-up of the same cycles.
fn assert_none(mut cycles: impl FnMut()) {
    cycles();
    let counted = measure(cycles);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn adding_getting_and_finishing_allocate_nothing() {
    let queue = Queue::new(Config::default());
    assert_none(|| {
        for cycle in 0..CYCLES {
            queue.add(cycle % KEYS);
            queue.try_get().unwrap().done().unwrap();
        }
    });
}

#[test]
fn hundreds_of_waiting_keys_added_again_and_raised_allocate_nothing() {
    let queue = Queue::new(Config::default());
    assert_none(|| {
        for cycle in 0..CYCLES {
            queue.add(cycle % KEYS);
            queue.add_with(
                cycle % 7,
                Ask::now().with_priority(Priority::new((cycle % 64) as u8).unwrap()),
            );
            if cycle % 2 == 0 {
                let work = queue.try_get().unwrap();
                queue.add(*work);
                queue.add(*work);
                work.done().unwrap();
            } else if let Some(work) = queue.try_get() {
                work.done().unwrap();
            }
        }
    });
}

#[test]
fn delays_and_retries_allocate_nothing() {
    let mut queue = Core::new(Config::default());
    let mut now = Moment::START;
    assert_none(|| {
        for cycle in 0..CYCLES {
            now = now.after(Duration::from_micros(100));
            queue.add(
                cycle % KEYS,
                Ask::after(Duration::from_millis(u64::from(cycle % 40))),
                now,
            );
            queue.add(
                cycle % KEYS,
                Ask::after(Duration::from_millis(u64::from(cycle % 20))),
                now,
            );
            if let Next::Key(handout) = queue.get(now) {
                let outcome = match cycle % 3 {
                    0 if handout.failures < 4 => Outcome::Retry,
                    1 => Outcome::After(Duration::from_millis(3)),
                    _ => Outcome::Done,
                };
                queue.done_handout(&handout, outcome, now).unwrap();
            }
        }
    });
}

//! Larger cases under schedules of chance, by shuttle. Run with `RUSTFLAGS="--cfg shuttle"`.
//!
//! A schedule that fails is printed and can be replayed.
#![cfg(shuttle)]
#![allow(
    clippy::unwrap_used,
    reason = "what runs inside a model is a test, though not marked as one"
)]

use std::collections::HashMap;
use std::future::{Future, Pending, pending};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use moorline_queue::{Added, Ask, Clock, Config, Moment, Outcome, Priority, Queue, Timer};
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;

const KEYS: u8 = 4;
const HOUR: Duration = Duration::from_hours(1);

/// Time moves by itself: a little at each look at the clock.
struct Ticking(Mutex<Moment>);

impl Clock for Ticking {
    fn now(&self) -> Moment {
        let mut now = self.0.lock().unwrap();
        *now = now.after(Duration::from_millis(1));
        *now
    }
}

impl Timer for Ticking {
    type Sleep = Pending<()>;

    fn sleep_until(&self, _: Moment) -> Pending<()> {
        pending()
    }
}

/// What the threads of one run know of a key, all of it written by its users, none by the queue.
#[derive(Default)]
struct Seen {
    held: bool,
    /// Grows with each add that was not refused, before the add.
    wanted: u64,
    /// What was wanted when the last run began.
    served: u64,
    hand_outs: u64,
}

type Ledger = Arc<Mutex<HashMap<u8, Seen>>>;

fn work_off(queue: &Queue<u8, Ticking>, ledger: &Ledger, asynchronous: bool) {
    loop {
        if asynchronous && thread_rng().gen_bool(0.2) {
            let mut cancelled = pin!(queue.get());
            if cancelled
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
            {
                thread::yield_now();
                continue;
            }
            // A key that is dropped with the future comes back after its backoff.
            continue;
        }
        let work = if asynchronous {
            block_on(queue.get())
        } else {
            queue.get_blocking()
        };
        let Some(work) = work else { return };
        {
            let mut ledger = ledger.lock().unwrap();
            let seen = ledger.entry(*work).or_default();
            assert!(!seen.held, "{} is with two workers", *work);
            seen.held = true;
            seen.served = seen.wanted;
            seen.hand_outs += 1;
        }
        thread::yield_now();
        ledger.lock().unwrap().get_mut(&work).unwrap().held = false;
        let outcome = if thread_rng().gen_bool(0.1) {
            Outcome::After(Duration::ZERO)
        } else {
            Outcome::Done
        };
        work.finish(outcome).unwrap();
    }
}

fn add_some(queue: &Queue<u8, Ticking>, ledger: &Ledger) {
    for _ in 0..6 {
        let key = thread_rng().gen_range(0..KEYS);
        let priority = Priority::new(thread_rng().gen_range(0..3)).unwrap();
        ledger.lock().unwrap().entry(key).or_default().wanted += 1;
        assert_ne!(queue.add_with(key, Ask::now().with_priority(priority)), Added::Refused);
        queue.inspect(|core, _| {
            assert!(core.len() + core.processing() <= usize::from(KEYS));
            assert!(core.dirty() <= core.processing());
        });
    }
}

fn fuzz(workers: usize, adders: usize) {
    let queue = Queue::with(Config::default(), Ticking(Mutex::new(Moment::START)), ());
    let ledger = Ledger::default();
    let workers: Vec<_> = (0..workers)
        .map(|number| {
            let (queue, ledger) = (queue.clone(), ledger.clone());
            thread::spawn(move || work_off(&queue, &ledger, number % 2 == 0))
        })
        .collect();
    let adders: Vec<_> = (0..adders)
        .map(|_| {
            let (queue, ledger) = (queue.clone(), ledger.clone());
            thread::spawn(move || add_some(&queue, &ledger))
        })
        .collect();
    for adder in adders {
        adder.join().unwrap();
    }
    let drained = queue.drain_blocking(HOUR);
    for worker in workers {
        worker.join().unwrap();
    }
    assert!(drained.unfinished.is_empty());
    assert!(drained.dropped.queued.is_empty() && drained.dropped.dirty.is_empty());
    queue.inspect(|core, _| assert!(core.is_idle() && core.dirty() == 0 && core.delayed() == 0));
    for (key, seen) in ledger.lock().unwrap().iter() {
        let retried_too_late = drained.dropped.delayed.contains(key);
        assert!(seen.served == seen.wanted || retried_too_late, "{key}: an add was lost");
    }
}

#[test]
fn no_schedule_of_chance_loses_a_key_or_shares_one() {
    shuttle::check_random(|| fuzz(3, 2), 3000);
}

#[test]
fn no_schedule_that_favours_rare_orders_loses_a_key_or_shares_one() {
    shuttle::check_pct(|| fuzz(3, 2), 3000, 4);
}

#[test]
fn shutting_down_from_everywhere_at_once_hangs_nobody_and_reports_each_key_once() {
    let case = || {
        let queue = Queue::with(Config::default(), Ticking(Mutex::new(Moment::START)), ());
        let held = {
            queue.add(0);
            queue.try_get().unwrap()
        };
        for key in 1..4 {
            queue.add(key);
        }
        queue.add_after(9, HOUR);
        queue.add(0);
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut served = 0;
                while let Some(work) = block_on(queue.get()) {
                    served += 1;
                    work.done().unwrap();
                }
                served
            })
        };
        let enders: Vec<_> = (0..3)
            .map(|number| {
                let queue = queue.clone();
                thread::spawn(move || match number {
                    0 => queue.shut_down().len(),
                    1 => queue.shut_down_now().len(),
                    _ => queue.drain_blocking(HOUR).dropped.len(),
                })
            })
            .collect();
        held.done().unwrap();
        let reported: usize = enders.into_iter().map(|ender| ender.join().unwrap()).sum();
        let served: usize = worker.join().unwrap();
        let left = queue.shut_down_now().len();
        assert_eq!(reported + served + left, 5);
    };
    shuttle::check_random(case, 3000);
}

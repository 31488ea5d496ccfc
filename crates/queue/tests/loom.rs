//! Every interleaving of small cases, explored by loom. Run with `RUSTFLAGS="--cfg loom"`.
//!
//! A lost wake-up shows as a deadlock, which loom reports.
#![cfg(loom)]
#![allow(
    clippy::unwrap_used,
    reason = "what runs inside a model is a test, though not marked as one"
)]

use std::future::{Future, Pending, pending};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::future::block_on;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use moorline_queue::{Clock, Config, Moment, Outcome, Queue, Settled, Timer};

const HOUR: Duration = Duration::from_hours(1);

/// Time stands still, so that every run of a schedule is the same.
struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment::START
    }
}

impl Timer for Still {
    type Sleep = Pending<()>;

    fn sleep_until(&self, _: Moment) -> Pending<()> {
        pending()
    }
}

fn queue() -> Queue<u8, Still> {
    Queue::with(Config::default(), Still, ())
}

/// Explores all schedules with up to this many unforced switches between threads.
fn explore(switches: usize, case: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(case);
}

fn serve(queue: &Queue<u8, Still>, served: &AtomicUsize) {
    while let Some(work) = queue.get_blocking() {
        served.fetch_add(1, Ordering::Relaxed);
        work.done().unwrap();
    }
}

#[test]
fn two_workers_serve_what_a_third_thread_adds() {
    explore(3, || {
        let queue = queue();
        let served = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (queue, served) = (queue.clone(), served.clone());
                thread::spawn(move || serve(&queue, &served))
            })
            .collect();
        queue.add(1);
        queue.add(2);
        assert!(queue.drain_blocking(HOUR).dropped.is_empty());
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(served.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn workers_that_finish_and_take_the_next_at_once_lose_no_wakeup() {
    explore(3, || {
        let queue = queue();
        let served = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (queue, served) = (queue.clone(), served.clone());
                thread::spawn(move || {
                    let mut next = queue.get_blocking();
                    while let Some(work) = next {
                        served.fetch_add(1, Ordering::Relaxed);
                        let finished = work.finish_and_try_get(Outcome::Done);
                        finished.settled.unwrap();
                        next = finished.next.or_else(|| queue.get_blocking());
                    }
                })
            })
            .collect();
        queue.add(1);
        queue.add(2);
        assert!(queue.drain_blocking(HOUR).dropped.is_empty());
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(served.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_key_added_while_its_worker_finishes_is_never_lost_and_never_shared() {
    explore(3, || {
        let queue = queue();
        queue.add(1);
        let work = queue.try_get().unwrap();
        let adder = {
            let queue = queue.clone();
            thread::spawn(move || queue.add(1))
        };
        let other = {
            let queue = queue.clone();
            thread::spawn(move || {
                let work = queue.get_blocking().unwrap();
                assert_eq!(queue.inspect(|core, _| core.processing()), 1);
                work.done().unwrap();
            })
        };
        assert_ne!(work.finish(Outcome::Done).unwrap(), Settled::Dropped);
        adder.join().unwrap();
        other.join().unwrap();
        assert!(queue.is_empty());
    });
}

#[test]
fn a_shutdown_ends_a_get_whenever_it_comes() {
    explore(3, || {
        let queue = queue();
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || assert!(queue.get_blocking().is_none()))
            })
            .collect();
        assert!(queue.shut_down().is_empty());
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn a_cancelled_get_hands_its_wake_up_on() {
    explore(3, || {
        let queue = queue();
        let cancelled = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut get = pin!(queue.get());
                let polled = get.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(Some(work)) = polled {
                    work.finish(Outcome::After(Duration::ZERO)).unwrap();
                }
            })
        };
        let waiting = {
            let queue = queue.clone();
            thread::spawn(move || block_on(queue.get()).unwrap().done().unwrap())
        };
        queue.add(1);
        cancelled.join().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn a_drain_ends_when_the_last_key_is_done() {
    explore(3, || {
        let queue = queue();
        queue.add(1);
        let work = queue.try_get().unwrap();
        let drain = {
            let queue = queue.clone();
            thread::spawn(move || block_on(queue.drain(HOUR)))
        };
        let blocking = {
            let queue = queue.clone();
            thread::spawn(move || queue.drain_blocking(HOUR))
        };
        work.done().unwrap();
        for drained in [drain.join().unwrap(), blocking.join().unwrap()] {
            assert!(drained.unfinished.is_empty());
        }
    });
}

#[test]
fn a_timekeeper_that_takes_a_key_leaves_the_time_to_another() {
    explore(3, || {
        let queue = queue();
        queue.add_after(9, HOUR);
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || block_on(queue.get()).unwrap().done().unwrap())
            })
            .collect();
        queue.add(1);
        queue.add(2);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

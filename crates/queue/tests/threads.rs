//! The blocking face, on real threads.
#![cfg(not(any(loom, shuttle)))]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use moorline_queue::{Backoff, Config, Outcome, Queue, Settled};

const SECOND: Duration = Duration::from_secs(1);

fn queue() -> Queue<u32> {
    let backoff = Backoff {
        first: Duration::from_millis(1),
        most: SECOND,
        jitter_percent: 0,
    };
    Queue::new(Config {
        backoff,
        ..Config::default()
    })
}

#[test]
fn threads_serve_every_key_and_end_when_the_queue_does() {
    let queue = queue();
    let (served, all) = mpsc::channel();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (queue, served) = (queue.clone(), served.clone());
            thread::spawn(move || {
                while let Some(work) = queue.get_blocking() {
                    served.send(*work).unwrap();
                    work.done().unwrap();
                }
            })
        })
        .collect();
    for key in 0..1000 {
        queue.add(key);
    }
    assert!(queue.drain_blocking(60 * SECOND).unfinished.is_empty());
    for worker in workers {
        worker.join().unwrap();
    }
    drop(served);
    let mut all: Vec<_> = all.iter().collect();
    all.sort_unstable();
    assert_eq!(all, (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_worker_that_finishes_takes_the_next_key_at_once() {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    let first = queue.try_get().unwrap();
    let finished = first.finish_and_try_get(Outcome::Done);
    assert_eq!(finished.settled, Ok(Settled::Idle));
    let second = finished.next.unwrap();
    assert_eq!(*second, 2);
    assert!(second.finish_and_try_get(Outcome::Done).next.is_none());
}

#[test]
fn a_key_asked_for_during_its_run_waits_for_earlier_arrivals_when_its_worker_takes_the_next() {
    let queue = queue();
    queue.add(1);
    let first = queue.try_get().unwrap();
    queue.add(2);
    queue.add(1);
    let finished = first.finish_and_try_get(Outcome::Done);
    assert_eq!(finished.settled, Ok(Settled::Requeued));
    let second = finished.next.unwrap();
    assert_eq!(*second, 2);
    assert_eq!(*second.finish_and_try_get(Outcome::Done).next.unwrap(), 1);
}

#[test]
fn a_key_finished_behind_its_workers_back_is_told_and_the_next_is_handed_out() {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    let first = queue.try_get().unwrap();
    queue.done(&1, Outcome::Done).unwrap();
    let finished = first.finish_and_try_get(Outcome::Done);
    assert_eq!(finished.settled.unwrap_err().key, 1);
    assert_eq!(*finished.next.unwrap(), 2);
}

#[test]
fn a_waiting_thread_gets_a_delayed_key_not_before_its_time() {
    let queue = queue();
    let delay = Duration::from_millis(20);
    let started = Instant::now();
    let waiting = thread::spawn({
        let queue = queue.clone();
        move || queue.get_blocking().map(|work| *work)
    });
    queue.add_after(1, delay);
    assert_eq!(waiting.join().unwrap(), Some(1));
    assert!(started.elapsed() >= delay);
}

#[test]
fn a_thread_that_panics_with_a_key_gives_it_back() {
    let queue = queue();
    queue.add(1);
    let panicking = thread::spawn({
        let queue = queue.clone();
        move || {
            let work = queue.get_blocking().unwrap();
            panic!("no luck with {}", *work);
        }
    });
    assert!(panicking.join().is_err());
    let work = queue.get_blocking().unwrap();
    assert_eq!((*work, work.failures()), (1, 1));
}

#[test]
fn a_drain_with_nobody_to_serve_ends_at_its_deadline() {
    let queue = queue();
    queue.add(1);
    assert_eq!(queue.drain_blocking(Duration::from_millis(10)).dropped.queued, [1]);
}

//! The async face, on a runtime whose clock stands still unless every task waits.
#![cfg(not(any(loom, shuttle)))]

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use moorline_queue::{Added, Ask, Backoff, Clock, Config, Moment, Outcome, Queue, Timer};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct TokioTimer(Instant);

impl Clock for TokioTimer {
    fn now(&self) -> Moment {
        Moment::from_start(self.0.elapsed())
    }
}

impl Timer for TokioTimer {
    type Sleep = Pin<Box<tokio::time::Sleep>>;

    fn sleep_until(&self, moment: Moment) -> Self::Sleep {
        Box::pin(tokio::time::sleep_until(self.0 + moment.since(Moment::START)))
    }
}

type Tasks = Queue<u32, TokioTimer>;

fn queue() -> Tasks {
    let backoff = Backoff {
        first: SECOND,
        most: 60 * SECOND,
        jitter_percent: 0,
    };
    Queue::with(
        Config {
            backoff,
            ..Config::default()
        },
        TokioTimer(Instant::now()),
        (),
    )
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn a_waiting_task_is_woken_by_an_add() {
    let queue = queue();
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await.map(|work| *work) }
    });
    tokio::task::yield_now().await;
    queue.add(7);
    assert_eq!(worker.await.unwrap(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_delayed_key_comes_exactly_when_it_is_due() {
    let queue = queue();
    let started = Instant::now();
    queue.add_after(1, 3 * SECOND);
    queue.add_after(2, SECOND);
    for (key, seconds) in [(2, 1), (1, 3)] {
        let work = queue.get().await.unwrap();
        assert_eq!((*work, started.elapsed()), (key, seconds * SECOND));
        work.done().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_earlier_delay_added_later_wakes_the_one_who_keeps_the_time() {
    let queue = queue();
    let started = Instant::now();
    queue.add_after(1, 60 * SECOND);
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                queue
                    .get()
                    .await
                    .map(|work| (work.into_key(), started.elapsed().as_secs()))
            })
        })
        .collect();
    tokio::task::yield_now().await;
    queue.add_after(2, 5 * SECOND);
    queue.add_after(3, 9 * SECOND);
    let mut served = Vec::new();
    for worker in workers {
        served.push(worker.await.unwrap().unwrap());
    }
    served.sort_unstable();
    assert_eq!(served, [(1, 60), (2, 5), (3, 9)]);
}

#[tokio::test(start_paused = true)]
async fn the_time_is_kept_on_when_the_one_who_kept_it_is_cancelled() {
    let queue = queue();
    let started = Instant::now();
    queue.add_after(1, 5 * SECOND);
    let keeper = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await.map(|work| *work) }
    });
    tokio::task::yield_now().await;
    let other = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await.map(|work| *work) }
    });
    tokio::task::yield_now().await;
    keeper.abort();
    assert_eq!(other.await.unwrap(), Some(1));
    assert_eq!(started.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_get_that_was_woken_and_is_dropped_passes_its_wake_up_on() {
    let queue = queue();
    let second = tokio::spawn({
        let queue = queue.clone();
        async move {
            tokio::task::yield_now().await;
            queue.get().await.map(|work| *work)
        }
    });
    {
        let mut first = pin!(queue.get());
        assert!(poll_once(first.as_mut()).is_pending());
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        queue.add(1);
    }
    assert_eq!(tokio::time::timeout(SECOND, second).await.unwrap().unwrap(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn cancelling_gets_at_any_time_loses_no_key() {
    let queue = queue();
    let mut seen = vec![0; 100];
    for key in 0..100 {
        queue.add_after(key, Duration::from_millis(u64::from(key) * 7));
    }
    while seen.contains(&0) {
        let patience = Duration::from_millis(short_time(seen.iter().sum::<u64>()));
        if let Ok(Some(work)) = tokio::time::timeout(patience, queue.get()).await {
            seen[*work as usize] += 1;
            work.done().unwrap();
        }
    }
    assert!(seen.iter().all(|count| *count == 1));
}

/// A spread of short times that is the same in every run.
fn short_time(step: u64) -> u64 {
    1 + step.wrapping_mul(2_654_435_761) % 11
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_cancelled_with_a_key_gives_it_back_after_its_backoff() {
    let queue = queue();
    queue.add(1);
    let started = Instant::now();
    let stuck = tokio::spawn({
        let queue = queue.clone();
        async move {
            let _work = queue.get().await;
            std::future::pending::<()>().await;
        }
    });
    tokio::task::yield_now().await;
    stuck.abort();
    let work = queue.get().await.unwrap();
    assert_eq!((*work, work.failures(), started.elapsed()), (1, 1, SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_panicking_task_delays_its_own_key_only() {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    let panicking = tokio::spawn({
        let queue = queue.clone();
        async move {
            let work = queue.get().await.unwrap();
            panic!("no luck with {}", *work);
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    let work = queue.get().await.unwrap();
    assert_eq!((*work, work.failures()), (2, 0));
    work.done().unwrap();
    let work = queue.get().await.unwrap();
    assert_eq!((*work, work.failures()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn shutting_down_ends_every_waiting_task() {
    let queue = queue();
    let workers: Vec<_> = (0..5)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.get().await.is_none() })
        })
        .collect();
    tokio::task::yield_now().await;
    assert!(queue.shut_down().is_empty());
    for worker in workers {
        assert!(worker.await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_what_is_queued_and_what_is_processing() {
    let queue = queue();
    let started = Instant::now();
    for key in 0..10 {
        queue.add(key);
    }
    queue.add_after(99, SECOND);
    for _ in 0..2 {
        let queue = queue.clone();
        tokio::spawn(async move {
            while let Some(work) = queue.get().await {
                tokio::time::sleep(SECOND).await;
                work.done().unwrap();
            }
        });
    }
    tokio::task::yield_now().await;
    let drained = queue.drain(60 * SECOND).await;
    assert_eq!(started.elapsed(), 5 * SECOND);
    assert_eq!((drained.dropped.delayed, drained.unfinished), (vec![99], vec![]));
    assert_eq!(queue.add(1), Added::Refused);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_runs_out_of_time_names_what_is_left() {
    let queue = queue();
    for key in [1, 2] {
        queue.add(key);
    }
    let stuck = queue.get().await.unwrap();
    queue.add(1);
    let drained = queue.drain(5 * SECOND).await;
    assert_eq!(
        (drained.dropped.queued, drained.dropped.dirty, drained.unfinished),
        (vec![2], vec![1], vec![1])
    );
    assert!(queue.get().await.is_none());
    stuck.done().unwrap();
    assert!(queue.drain(5 * SECOND).await.unfinished.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_drain_without_any_worker_ends_at_its_deadline() {
    let queue = queue();
    let started = Instant::now();
    queue.add(1);
    assert_eq!(queue.drain(5 * SECOND).await.dropped.queued, [1]);
    assert_eq!(started.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn many_drains_report_each_key_once() {
    let queue = queue();
    for key in 0..20 {
        queue.add_with(key, Ask::after(SECOND));
    }
    let held = {
        queue.add(100);
        queue.get().await.unwrap()
    };
    {
        let mut cancelled = pin!(queue.drain(SECOND));
        assert!(poll_once(cancelled.as_mut()).is_pending());
    }
    let drains: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.drain(60 * SECOND).await.dropped.len() })
        })
        .collect();
    tokio::task::yield_now().await;
    held.finish(Outcome::Retry).unwrap();
    let mut reported = 0;
    for drain in drains {
        reported += drain.await.unwrap();
    }
    assert_eq!(reported, 21);
}

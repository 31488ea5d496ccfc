//! The async face: the same waiting, as futures that need no particular runtime.

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::observer::Observer;
use crate::outcome::Drained;
use crate::queue::Queue;
use crate::time::{Moment, Timer};
use crate::waiting::{Sleep, WaiterId};
use crate::work::Work;

impl<K: Eq + Hash + Clone, T: Timer, O: Observer> Queue<K, T, O> {
    /// Waits for a key and takes it. `None` when the queue was shut down and nothing is queued.
    ///
    /// Dropping the future loses nothing: a key or a wake-up meant for it goes to another worker. A future that was
    /// polled and is then neither polled when woken nor dropped holds such a wake-up back, as everywhere in async Rust.
    pub fn get(&self) -> Get<'_, K, T, O> {
        Get {
            queue: self,
            waiter: None,
            alarm: Alarm::default(),
        }
    }

    /// Shuts down and waits until nothing is processing and nothing is queued.
    ///
    /// When that has not come about within the time given, all that waits is dropped, and the report names it along
    /// with what workers still hold. Any number of tasks and threads may drain at once; each dropped key is in the
    /// report of one of them. A drain that is itself dropped leaves the queue shut down, and its keys to the next
    /// report.
    pub fn drain(&self, within: Duration) -> Drain<'_, K, T, O> {
        Drain {
            queue: self,
            waiter: None,
            deadline: self.now().after(within),
            alarm: Alarm::default(),
        }
    }
}

/// Waits for a key: see [`Queue::get`].
#[must_use = "futures do nothing unless polled"]
pub struct Get<'q, K: Eq + Hash + Clone, T: Timer, O: Observer> {
    queue: &'q Queue<K, T, O>,
    waiter: Option<WaiterId>,
    alarm: Alarm<T::Sleep>,
}

impl<K: Eq + Hash + Clone, T: Timer, O: Observer> Future for Get<'_, K, T, O> {
    type Output = Option<Work<K, T, O>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match this.queue.poll_get(&mut this.waiter, context.waker()) {
                Ok(work) => return Poll::Ready(work),
                Err(Sleep::UntilWoken) => {
                    this.alarm = Alarm::default();
                    return Poll::Pending;
                }
                Err(Sleep::UntilWokenOr(due)) => {
                    if this.alarm.poll(due, this.queue.clock(), context).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl<K: Eq + Hash + Clone, T: Timer, O: Observer> Drop for Get<'_, K, T, O> {
    fn drop(&mut self) {
        self.queue.give_up(&mut self.waiter);
    }
}

/// Waits for the queue to be drained: see [`Queue::drain`].
#[must_use = "futures do nothing unless polled"]
pub struct Drain<'q, K: Eq + Hash + Clone, T: Timer, O: Observer> {
    queue: &'q Queue<K, T, O>,
    waiter: Option<WaiterId>,
    deadline: Moment,
    alarm: Alarm<T::Sleep>,
}

impl<K: Eq + Hash + Clone, T: Timer, O: Observer> Future for Drain<'_, K, T, O> {
    type Output = Drained<K>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Drained<K>> {
        let this = &mut *self;
        loop {
            if let Poll::Ready(drained) = this.queue.poll_drain(&mut this.waiter, context.waker(), this.deadline) {
                return Poll::Ready(drained);
            }
            if this.alarm.poll(this.deadline, this.queue.clock(), context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl<K: Eq + Hash + Clone, T: Timer, O: Observer> Drop for Drain<'_, K, T, O> {
    fn drop(&mut self) {
        self.queue.stop_draining(&mut self.waiter);
    }
}

/// A sleep that is started anew when the moment to wake up changes.
struct Alarm<S> {
    set: Option<(Moment, S)>,
}

impl<S> Default for Alarm<S> {
    fn default() -> Self {
        Self { set: None }
    }
}

impl<S: Future<Output = ()> + Unpin> Alarm<S> {
    fn poll<T: Timer<Sleep = S>>(&mut self, until: Moment, timer: &T, context: &mut Context<'_>) -> Poll<()> {
        if until == Moment::NEVER {
            return Poll::Pending;
        }
        if self.set.as_ref().is_none_or(|(moment, _)| *moment != until) {
            self.set = Some((until, timer.sleep_until(until)));
        }
        let (_, sleep) = self.set.as_mut().expect("it was set above");
        let rung = Pin::new(sleep).poll(context);
        if rung.is_ready() {
            self.set = None;
        }
        rung
    }
}

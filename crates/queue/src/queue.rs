//! The queue that threads and tasks share.

use std::hash::Hash;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::config::{Ask, Config};
use crate::core::Core;
use crate::observer::Observer;
use crate::outcome::{Added, Drained, Dropped, Handout, Next, NotProcessing, Outcome, Settled};
use crate::priority::Priority;
use crate::sync::{Mutex, Parker};
use crate::time::{Clock, Moment, SystemClock};
use crate::waiting::{Sleep, WaiterId, Waiting};
use crate::work::Work;

/// A [`Core`] behind a lock, with waiting. Clones share one queue.
///
/// Threads wait by [`get_blocking`](Self::get_blocking), tasks by [`get`](Self::get); both may serve one queue. The
/// lock is held for a fraction of a microsecond at a time and never while anybody is woken.
pub struct Queue<K, C = SystemClock, O = ()> {
    shared: Arc<Shared<K, C, O>>,
}

struct Shared<K, C, O> {
    clock: C,
    state: Mutex<State<K, O>>,
}

/// What the lock guards.
struct State<K, O> {
    core: Core<K, O>,
    /// For a key.
    workers: Waiting,
    /// For the queue to be drained.
    drainers: Waiting,
}

impl<K, C, O> Clone for Queue<K, C, O> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: Eq + Hash + Clone> Queue<K> {
    /// An empty queue on the machine's clock, observed by nobody.
    pub fn new(config: Config) -> Self {
        Self::with(config, SystemClock::default(), ())
    }
}

impl<K: Eq + Hash + Clone, C: Clock, O: Observer> Queue<K, C, O> {
    /// An empty queue on this clock, observed by `observer`.
    pub fn with(config: Config, clock: C, observer: O) -> Self {
        let core = Core::observed(config, observer);
        let state = State {
            core,
            workers: Waiting::default(),
            drainers: Waiting::default(),
        };
        Self {
            shared: Arc::new(Shared {
                clock,
                state: Mutex::new(state),
            }),
        }
    }

    /// Asks for a key to be handed out as soon as a worker is free.
    pub fn add(&self, key: K) -> Added {
        self.add_with(key, Ask::now())
    }

    /// Asks for a key to be handed out when `delay` has passed, if nothing asks for it earlier.
    pub fn add_after(&self, key: K, delay: Duration) -> Added {
        self.add_with(key, Ask::after(delay))
    }

    /// Asks for a key: see [`Core::add`].
    pub fn add_with(&self, key: K, ask: Ask) -> Added {
        self.change(|core, now| core.add(key, ask, now))
    }

    /// Takes the next key if one is queued.
    pub fn try_get(&self) -> Option<Work<K, C, O>> {
        match self.change(Core::get) {
            Next::Key(handout) => Some(self.work(handout)),
            Next::Wait { .. } | Next::Ended => None,
        }
    }

    /// Waits for a key and takes it. `None` when the queue was shut down and nothing is queued.
    ///
    /// For threads. It waits on the machine's clock, so the queue's clock must run as fast as that.
    pub fn get_blocking(&self) -> Option<Work<K, C, O>> {
        match self.change(Core::get) {
            Next::Key(handout) => return Some(self.work(handout)),
            Next::Ended => return None,
            Next::Wait { .. } => {}
        }
        let parker = Parker::new();
        let waker = Waker::from(Arc::clone(&parker));
        let mut waiter = None;
        loop {
            match self.poll_get(&mut waiter, &waker) {
                Ok(work) => return work,
                Err(Sleep::UntilWoken) => parker.park(None),
                Err(Sleep::UntilWokenOr(due)) => parker.park(Some(due.since(self.now()))),
            }
        }
    }

    /// A worker is done with a key that it took out of its [`Work`]: see [`Core::done`].
    pub fn done(&self, key: &K, outcome: Outcome) -> Result<Settled, NotProcessing<K>> {
        self.change(|core, now| core.done(key, outcome, now))
    }

    pub(crate) fn finish(&self, handout: &Handout<K>, outcome: Outcome) -> Result<Settled, NotProcessing<K>> {
        self.change(|core, now| core.done_handout(handout, outcome, now))
    }

    /// Both under one lock: where workers do little for each key, the lock is what they meet at.
    pub(crate) fn finish_and_try_get(
        &self,
        handout: &Handout<K>,
        outcome: Outcome,
    ) -> (Result<Settled, NotProcessing<K>>, Option<Handout<K>>) {
        self.change(|core, now| {
            let settled = core.done_handout(handout, outcome, now);
            match core.get(now) {
                Next::Key(handout) => (settled, Some(handout)),
                Next::Wait { .. } | Next::Ended => (settled, None),
            }
        })
    }

    /// Takes nothing in from now on; what is queued is still handed out: see [`Core::shut_down`].
    pub fn shut_down(&self) -> Dropped<K> {
        self.end(Core::shut_down)
    }

    /// Ends the queue and drops all that waits: see [`Core::shut_down_now`].
    pub fn shut_down_now(&self) -> Dropped<K> {
        self.end(Core::shut_down_now)
    }

    fn end(&self, ending: impl FnOnce(&mut Core<K, O>, Moment) -> Dropped<K>) -> Dropped<K> {
        let now = self.now();
        let mut state = self.shared.state.lock();
        let dropped = ending(&mut state.core, now);
        let mut woken = state.workers.all();
        if state.core.is_idle() {
            woken.extend(state.drainers.all());
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        dropped
    }

    /// Shuts down and waits, for a thread: see [`drain`](Self::drain).
    pub fn drain_blocking(&self, within: Duration) -> Drained<K> {
        let deadline = self.now().after(within);
        let parker = Parker::new();
        let waker = Waker::from(Arc::clone(&parker));
        let mut waiter = None;
        loop {
            if let Poll::Ready(drained) = self.poll_drain(&mut waiter, &waker, deadline) {
                return drained;
            }
            let left = deadline.since(self.now());
            parker.park((deadline != Moment::NEVER).then_some(left));
        }
    }

    /// Asks for a key on behalf of a waiter, who otherwise waits in line.
    pub(crate) fn poll_get(
        &self,
        waiter: &mut Option<WaiterId>,
        waker: &Waker,
    ) -> Result<Option<Work<K, C, O>>, Sleep> {
        let now = self.now();
        let mut state = self.shared.state.lock();
        let handout = match state.core.get(now) {
            Next::Wait { until } => return Err(state.workers.wait(waiter, waker, until)),
            Next::Key(handout) => Some(handout),
            Next::Ended => None,
        };
        state.workers.leave(waiter);
        let next = state.next();
        drop(state);
        next.wake();
        Ok(handout.map(|handout| self.work(handout)))
    }

    /// A waiter gives up. If a key or the time was entrusted to it, somebody else is woken.
    pub(crate) fn give_up(&self, waiter: &mut Option<WaiterId>) {
        if waiter.is_some() {
            let mut state = self.shared.state.lock();
            state.workers.leave(waiter);
            let next = state.next();
            drop(state);
            next.wake();
        }
    }

    pub(crate) fn poll_drain(
        &self,
        waiter: &mut Option<WaiterId>,
        waker: &Waker,
        deadline: Moment,
    ) -> Poll<Drained<K>> {
        let now = self.now();
        let mut state = self.shared.state.lock();
        let was_open = !state.core.is_shut_down();
        state.core.close(now);
        let idle = state.core.is_idle();
        if !idle && now >= deadline {
            state.core.close_now(now);
        } else if !idle {
            state.drainers.wait(waiter, waker, None);
            let woken = if was_open { state.workers.all() } else { Vec::new() };
            drop(state);
            woken.into_iter().for_each(Waker::wake);
            return Poll::Pending;
        }
        state.drainers.leave(waiter);
        let unfinished = state.core.held().cloned().collect();
        let dropped = state.core.report();
        let mut woken = state.workers.all();
        if state.core.is_idle() {
            woken.extend(state.drainers.all());
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        Poll::Ready(Drained { dropped, unfinished })
    }

    pub(crate) fn stop_draining(&self, waiter: &mut Option<WaiterId>) {
        if waiter.is_some() {
            self.shared.state.lock().drainers.leave(waiter);
        }
    }

    /// Changes the core, and wakes whoever that concerns.
    fn change<R>(&self, change: impl FnOnce(&mut Core<K, O>, Moment) -> R) -> R {
        let now = self.now();
        let mut state = self.shared.state.lock();
        let result = change(&mut state.core, now);
        let next = state.next();
        drop(state);
        next.wake();
        result
    }

    /// Asks the core something: its lengths, its running times, its observer.
    pub fn inspect<R>(&self, question: impl FnOnce(&Core<K, O>, Moment) -> R) -> R {
        let now = self.now();
        question(&self.shared.state.lock().core, now)
    }

    /// How many keys wait in line. Neither delayed nor dirty ones count.
    pub fn len(&self) -> usize {
        self.inspect(|core, _| core.len())
    }

    /// Whether no key waits in line.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys of this priority wait in line.
    pub fn depth(&self, priority: Priority) -> usize {
        self.inspect(|core, _| core.depth(priority))
    }

    pub(crate) fn clock(&self) -> &C {
        &self.shared.clock
    }

    pub(crate) fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    fn work(&self, handout: Handout<K>) -> Work<K, C, O> {
        Work::new(self.clone(), handout)
    }
}

/// Whom to wake once the lock is given back.
enum Wakeup {
    Nobody,
    Worker(Waker),
    Drainers(Vec<Waker>),
}

impl<K: Eq + Hash + Clone, O: Observer> State<K, O> {
    fn next(&mut self) -> Wakeup {
        let Self {
            core,
            workers,
            drainers,
        } = self;
        if core.is_shut_down() && core.is_idle() {
            return Wakeup::Drainers(drainers.all());
        }
        workers
            .next(core.len(), || core.next_due())
            .map_or(Wakeup::Nobody, Wakeup::Worker)
    }
}

impl Wakeup {
    fn wake(self) {
        match self {
            Self::Nobody => {}
            Self::Worker(waker) => waker.wake(),
            Self::Drainers(wakers) => wakers.into_iter().for_each(Waker::wake),
        }
    }
}

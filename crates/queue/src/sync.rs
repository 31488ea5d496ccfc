//! The locks, taken from the standard library or from the model checker that explores them.

#[cfg(loom)]
use loom::sync as primitives;
#[cfg(shuttle)]
use shuttle::sync as primitives;
#[cfg(not(any(loom, shuttle)))]
use std::sync as primitives;

use std::sync::{Arc, PoisonError};
use std::task::Wake;
use std::time::Duration;

/// A lock that a panic does not poison: what it guards is whole again before any foreign code can panic.
#[derive(Debug)]
pub(crate) struct Mutex<T>(primitives::Mutex<T>);

pub(crate) type Guard<'a, T> = primitives::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(primitives::Mutex::new(value))
    }

    /// Takes the lock, and keeps away from it for a while when another core has it.
    ///
    /// What the lock guards is used for less than it takes to bring it from one core to another. Two cores that take
    /// turns pay that at every turn; one that stays away for some microseconds lets the other do many in a row, and
    /// then does many itself. Sleeping, which the lock below does at once when others sleep already, costs more still.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        #[cfg(not(any(loom, shuttle)))]
        for pauses in [512, 1024, 2048] {
            match self.0.try_lock() {
                Ok(guard) => return guard,
                Err(primitives::TryLockError::Poisoned(guard)) => return guard.into_inner(),
                Err(primitives::TryLockError::WouldBlock) => (0..pauses).for_each(|_| std::hint::spin_loop()),
            }
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where one thread waits until it is woken. A wake-up that comes first is not lost.
pub(crate) struct Parker {
    woken: Mutex<bool>,
    changed: primitives::Condvar,
}

impl Parker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            woken: Mutex::new(false),
            changed: primitives::Condvar::new(),
        })
    }

    /// Waits for a wake-up, at most so long if a time is given. May return without either.
    pub(crate) fn park(&self, at_most: Option<Duration>) {
        let mut woken = self.woken.lock();
        if !*woken {
            woken = match at_most {
                None => self.changed.wait(woken).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    self.changed
                        .wait_timeout(woken, time)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        *woken = false;
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }
}

//! Who waits for a key, and whom to wake.

use std::collections::VecDeque;
use std::task::Waker;

use crate::time::Moment;

/// Tells one waiter from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterId(u64);

/// The workers, threads and tasks alike, that asked for a key and got none.
///
/// A waiter that is woken leaves the line, and comes back to it when it asks again in vain. Whatever may have changed
/// the answer, a waiter that left included, is followed by a call of [`Waiting::next`]; so as long as keys are queued,
/// either nobody waits or somebody is on the way.
///
/// One waiter, the timekeeper, sleeps no longer than until the first delayed key is due; the others sleep until they
/// are woken. So a delay that ends wakes one worker, not all.
#[derive(Default)]
pub(crate) struct Waiting {
    line: VecDeque<(WaiterId, Waker)>,
    timekeeper: Option<Timekeeper>,
    ids: u64,
}

/// Appointed by [`Waiting::next`] or by being the first to wait for a delay; dismissed by leaving.
#[derive(Clone, Copy)]
struct Timekeeper {
    id: WaiterId,
    /// It is asleep no longer than this, or on the way.
    until: Moment,
}

/// How long a waiter may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    UntilWoken,
    /// This waiter keeps the time for all.
    UntilWokenOr(Moment),
}

impl Waiting {
    /// Joins the line, or stays in it, with this waker.
    pub(crate) fn wait(&mut self, waiter: &mut Option<WaiterId>, waker: &Waker, due: Option<Moment>) -> Sleep {
        let id = *waiter.get_or_insert_with(|| {
            self.ids += 1;
            WaiterId(self.ids)
        });
        match self.line.iter_mut().find(|(other, _)| *other == id) {
            Some((_, known)) => known.clone_from(waker),
            None => self.line.push_back((id, waker.clone())),
        }
        if self.timekeeper.is_some_and(|keeper| keeper.id != id) {
            return Sleep::UntilWoken;
        }
        self.timekeeper = due.map(|until| Timekeeper { id, until });
        due.map_or(Sleep::UntilWoken, Sleep::UntilWokenOr)
    }

    /// Leaves: with a key, or because the queue ended, or because the waiter gave up.
    pub(crate) fn leave(&mut self, waiter: &mut Option<WaiterId>) {
        let Some(id) = waiter.take() else { return };
        if let Some(index) = self.position(id) {
            self.line.remove(index);
        }
        if self.timekeeper.is_some_and(|keeper| keeper.id == id) {
            self.timekeeper = None;
        }
    }

    /// The waiter to wake, if one must be, now that so many keys are queued and the next delayed one is due then.
    pub(crate) fn next(&mut self, queued: usize, due: impl FnOnce() -> Option<Moment>) -> Option<Waker> {
        let first = self.line.front()?.0;
        if queued > 0 {
            // The timekeeper only if it is alone: when it takes a key, another must be woken to keep the time.
            let is_keeper = self.timekeeper.is_some_and(|keeper| keeper.id == first);
            return self.wake(usize::from(is_keeper && self.line.len() > 1));
        }
        let until = due()?;
        match &mut self.timekeeper {
            None => {
                self.timekeeper = Some(Timekeeper { id: first, until });
                self.wake(0)
            }
            Some(keeper) if until < keeper.until => {
                keeper.until = until;
                let id = keeper.id;
                self.position(id).and_then(|index| self.wake(index))
            }
            Some(_) => None,
        }
    }

    /// Wakes everyone.
    pub(crate) fn all(&mut self) -> Vec<Waker> {
        self.line.drain(..).map(|(_, waker)| waker).collect()
    }

    fn wake(&mut self, index: usize) -> Option<Waker> {
        self.line.remove(index).map(|(_, waker)| waker)
    }

    fn position(&self, id: WaiterId) -> Option<usize> {
        self.line.iter().position(|(other, _)| *other == id)
    }
}

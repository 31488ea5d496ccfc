//! Who watches what, so that a change finds its watchers without asking the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use crate::{Key, Scope};

/// The watchers of one resource.
///
/// Guarded by a lock of its own so that a watch can begin under the shared lock of the state; publishing holds the
/// exclusive one, so the two never overlap.
#[derive(Default)]
pub(crate) struct Audience {
    seats: Mutex<HashMap<Scope, Vec<Arc<Seat>>>>,
}

/// Where one watcher stands. Touched only under the lock of the state, shared or exclusive.
#[derive(Default)]
pub(crate) struct Seat {
    place: Mutex<Place>,
}

#[derive(Default)]
pub(crate) struct Place {
    /// The first change in the history of the resource that may concern the watcher and that it has not taken; none when
    /// it has all.
    pub(crate) next: Option<u64>,
    pub(crate) waker: Option<Waker>,
}

impl Seat {
    pub(crate) fn place(&self) -> MutexGuard<'_, Place> {
        self.place
            .lock()
            .expect("no code panics while holding a watcher's place")
    }
}

impl Audience {
    fn seats(&self) -> MutexGuard<'_, HashMap<Scope, Vec<Arc<Seat>>>> {
        self.seats.lock().expect("no code panics while holding the seats")
    }

    pub(crate) fn join(&self, scope: &Scope, seat: &Arc<Seat>) {
        self.seats().entry(scope.clone()).or_default().push(Arc::clone(seat));
    }

    pub(crate) fn leave(&self, scope: &Scope, seat: &Arc<Seat>) {
        let mut seats = self.seats();
        if let Some(row) = seats.get_mut(scope) {
            row.retain(|other| !Arc::ptr_eq(other, seat));
            if row.is_empty() {
                seats.remove(scope);
            }
        }
    }

    /// Tells all whom `key` concerns that there is a change of it at `place`.
    pub(crate) fn notify(&self, key: &Key, place: u64, wake: &mut Vec<Waker>) {
        let seats = self.seats();
        if seats.is_empty() {
            return;
        }
        for seat in key.scopes().iter().filter_map(|scope| seats.get(scope)).flatten() {
            let mut standing = seat.place();
            standing.next.get_or_insert(place);
            wake.extend(standing.waker.take());
        }
    }

    pub(crate) fn wake_all(&self, wake: &mut Vec<Waker>) {
        let seats = self.seats();
        // In an order that does not differ from run to run, for those who replay one.
        let rows: BTreeMap<&Scope, &Vec<Arc<Seat>>> = seats.iter().collect();
        for seat in rows.into_values().flatten() {
            wake.extend(seat.place().waker.take());
        }
    }
}

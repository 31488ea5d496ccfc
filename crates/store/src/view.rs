use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::state::State;

/// The committed state and its lock. Readers share it; it is held exclusively only to make a commit visible or to forget
/// old versions, never over I/O.
pub(crate) struct View {
    state: RwLock<State>,
}

impl View {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state: RwLock::new(state),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        // A panic while publishing leaves whole changes behind, each applied or not: reads stay well defined.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

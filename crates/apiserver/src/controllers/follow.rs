//! Following a watch as a task.

use std::future::poll_fn;

use moorline_store::{Event, ReadError, Resource, Scope, Start, Store, Watch, WatchError};

/// The events of a resource, from what is there on. Begins anew when it has fallen behind.
pub(super) struct Follow {
    store: Store,
    resource: Resource,
    watch: Watch,
}

impl Follow {
    pub(super) fn all(store: &Store, resource: &Resource) -> Result<Self, ReadError> {
        let watch = store.watch(Scope::Resource(resource.clone()), Start::Initial)?;
        Ok(Self {
            store: store.clone(),
            resource: resource.clone(),
            watch,
        })
    }

    /// What is there already, without waiting.
    pub(super) fn try_next(&mut self) -> Option<Event> {
        self.watch.try_next()?.ok()
    }

    /// The next event; nothing once the store is closed.
    pub(super) async fn next(&mut self) -> Option<Event> {
        loop {
            match poll_fn(|context| self.watch.poll_next(context)).await {
                Ok(event) => return Some(event),
                Err(WatchError::Closed) => return None,
                // Whoever follows decides from what is there, so seeing all of it again does no harm.
                Err(WatchError::Compacted { .. }) => {
                    self.watch = self
                        .store
                        .watch(Scope::Resource(self.resource.clone()), Start::Initial)
                        .ok()?;
                }
            }
        }
    }
}

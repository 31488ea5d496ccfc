//! The part of a controller that follows its member clusters.

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
};

use moorline_queue::Ask;

use super::KeyQueue;
use crate::{
    cache::{Event, Listening, OWNER_LABEL, Selection},
    clusters::Clusters,
    kind::Kind,
    object::Key,
    sources::Sources,
    watches::Watches,
};

/// The index by which an owner in another cluster is found.
pub(super) const BY_UID: &str = "moorline.io/uid";

/// What is cached of each member.
#[derive(Default)]
pub(crate) struct Members(RwLock<BTreeMap<Arc<str>, Member>>);

struct Member {
    sources: Arc<Sources>,
    _listening: Vec<Listening>,
}

impl Members {
    /// What is cached of a member.
    pub(crate) fn sources(&self, name: &str) -> Option<Arc<Sources>> {
        let members = self.0.read().expect("nothing panics while it holds this");
        members.get(name).map(|member| Arc::clone(&member.sources))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0
            .read()
            .expect("nothing panics while it holds this")
            .keys()
            .map(ToString::to_string)
            .collect()
    }
}

/// Follows the members for as long as the future is polled.
pub(super) async fn follow(
    clusters: Clusters,
    members: Arc<Members>,
    watches: Watches,
    home: Arc<Sources>,
    queue: KeyQueue,
    field_owner: String,
) {
    let mut changes = clusters.changes();
    loop {
        changes.borrow_and_update();
        let names = clusters.names();
        let known = members.names();
        members
            .0
            .write()
            .expect("nothing panics while it holds this")
            .retain(|name, _| names.contains(name));
        for name in names.iter().filter(|name| !known.contains(&name.to_string())) {
            let Some(cache) = clusters.get(name) else { continue };
            cache.keep_ownership_of(&field_owner);
            let mut sources = Sources::default();
            let mut listening = Vec::new();
            for kind in watches.spread_kinds() {
                let collection = cache.collection(&Selection::all(kind.clone()).labelled(OWNER_LABEL));
                sources.add(kind.clone(), Arc::clone(&collection));
                let route = Wake {
                    home: Arc::clone(&home),
                    primary: watches.primary.clone(),
                    queue: queue.clone(),
                };
                listening.push(collection.listen(move |event| route.take(event)));
                tokio::spawn(wake_all(
                    collection,
                    Arc::clone(&home),
                    watches.primary.clone(),
                    queue.clone(),
                ));
            }
            let member = Member {
                sources: Arc::new(sources),
                _listening: listening,
            };
            members
                .0
                .write()
                .expect("nothing panics while it holds this")
                .insert(Arc::clone(name), member);
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Once a member is known, everybody looks at it.
async fn wake_all(collection: Arc<crate::cache::Collection>, home: Arc<Sources>, primary: Kind, queue: KeyQueue) {
    collection.synced().await;
    for object in home.list(&primary, None) {
        queue.add(Key::of(&object));
    }
}

/// From an object in a member to its owner at home.
struct Wake {
    home: Arc<Sources>,
    primary: Kind,
    queue: KeyQueue,
}

impl Wake {
    fn take(&self, event: &Event<'_>) {
        let Some(uid) = event.object().label(OWNER_LABEL) else {
            return;
        };
        for owner in self.home.indexed(&self.primary, BY_UID, uid).unwrap_or_default() {
            self.queue.add_with(Key::of(&owner), Ask::now());
        }
    }
}

//! Garbage collection by owner references: in the background, in the foreground, and by orphaning.
//!
//! A graph of what owns what is kept from watches; every decision is made from the store itself.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::poll_fn,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use moorline_machinery::{
    gvk::{GroupVersionKind, split_api_version},
    meta,
};
use moorline_store::{Event, Key, Record, Resource, Scope, Start, Watch, WatchError};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::{
    core::Core,
    resource::ResourceType,
    rest::{
        delete::{DeleteOptions, FOREGROUND, ORPHAN},
        internal,
    },
    strategy::Propagation,
    wire,
};

/// When an attempt that failed is made again.
const RETRY: Duration = Duration::from_millis(500);

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) {
    let collector = Collector {
        core: Arc::clone(core),
        watches: HashMap::new(),
        epoch: 0,
        followed: 0,
        nodes: HashMap::new(),
        dependents: HashMap::new(),
        due: VecDeque::new(),
        queued: HashSet::new(),
    };
    tasks.spawn(collector.run());
}

type Uid = Box<str>;

/// An object and whom it names as its owners.
struct Node {
    key: Key,
    owners: Vec<Uid>,
    /// Those of the owners that have to wait for it.
    blocked: Vec<Uid>,
}

struct Collector {
    core: Arc<Core>,
    watches: HashMap<Resource, Watch>,
    /// Of the registry when the watches were last looked after, and how many there were then.
    epoch: u64,
    followed: usize,
    nodes: HashMap<Uid, Node>,
    /// By owner, who names it. The owner itself need not be there.
    dependents: HashMap<Uid, HashSet<Uid>>,
    due: VecDeque<Uid>,
    queued: HashSet<Uid>,
}

/// What became of an attempt.
enum Attempt {
    Settled,
    Again,
}

impl Collector {
    async fn run(mut self) {
        let mut changes = self.core.registry.changes();
        let mut again = Vec::new();
        loop {
            self.watch_everything();
            while let Some(event) = self.take_ready() {
                self.note(&event);
            }
            while let Some(uid) = self.due.pop_front() {
                self.queued.remove(&uid);
                if let Attempt::Again = self.attend(&uid).await {
                    again.push(uid);
                }
                // What that changed is noted before the next attempt, so that a cascade goes on at once.
                while let Some(event) = self.take_ready() {
                    self.note(&event);
                }
            }
            let retry = tokio::time::sleep(RETRY);
            tokio::select! {
                event = poll_fn(|context| poll_any(&mut self.watches, context)) => match event {
                    Some(event) => self.note(&event),
                    None => return,
                },
                told = changes.changed() => if told.is_err() { return },
                () = retry, if !again.is_empty() => {
                    for uid in again.drain(..) {
                        self.enqueue(uid);
                    }
                }
            }
        }
    }

    /// Follows every resource that is served, and no other.
    fn watch_everything(&mut self) {
        let served = self.core.registry.served();
        if served.epoch == self.epoch && self.watches.len() >= self.followed {
            return;
        }
        self.epoch = served.epoch;
        for resource in served.preferred() {
            if !self.watches.contains_key(&resource.storage)
                && let Ok(watch) = self
                    .core
                    .store
                    .watch(Scope::Resource(resource.storage.clone()), Start::Initial)
            {
                self.watches.insert(resource.storage.clone(), watch);
            }
        }
        self.followed = self.watches.len();
    }

    fn take_ready(&mut self) -> Option<Event> {
        self.watches.values_mut().find_map(|watch| watch.try_next()?.ok())
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Added { record, .. } | Event::Modified { record, .. } => self.note_object(record),
            Event::Deleted { record, .. } => self.note_departure(&record.attributes().uid),
            Event::InitialDone { .. } => {}
        }
    }

    fn note_object(&mut self, record: &Record) {
        let object = wire::from_stored(record.value(), "", "");
        let meta = meta::of(&object);
        let uid: Uid = meta.uid().into();
        let owners: Vec<Uid> = meta.owner_references().map(|owner| owner.uid.into()).collect();
        let blocking = meta.owner_references().filter(|owner| owner.block_owner_deletion);
        let blocked: Vec<Uid> = blocking.map(|owner| owner.uid.into()).collect();
        let before = self.nodes.get(&uid).map(|node| node.owners.clone()).unwrap_or_default();
        let waited = self
            .nodes
            .get(&uid)
            .map(|node| node.blocked.clone())
            .unwrap_or_default();
        for owner in waited.into_iter().filter(|owner| !blocked.contains(owner)) {
            self.enqueue(owner);
        }
        for owner in before.iter().filter(|owner| !owners.contains(owner)) {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(&uid);
            }
            // An owner that waits for its dependents may have waited for this one.
            self.enqueue(owner.clone());
        }
        for owner in &owners {
            self.dependents.entry(owner.clone()).or_default().insert(uid.clone());
        }
        let waits = meta.is_deleting() && (meta.has_finalizer(FOREGROUND) || meta.has_finalizer(ORPHAN));
        if waits || owners != before {
            self.enqueue(uid.clone());
        }
        if waits && meta.has_finalizer(FOREGROUND) {
            for dependent in self
                .dependents
                .get(&uid)
                .into_iter()
                .flatten()
                .cloned()
                .collect::<Vec<_>>()
            {
                self.enqueue(dependent);
            }
        }
        self.nodes.insert(
            uid,
            Node {
                key: record.key().clone(),
                owners,
                blocked,
            },
        );
    }

    fn note_departure(&mut self, uid: &str) {
        let Some(node) = self.nodes.remove(uid) else { return };
        for owner in node.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
            self.enqueue(owner);
        }
        for dependent in self
            .dependents
            .get(uid)
            .into_iter()
            .flatten()
            .cloned()
            .collect::<Vec<_>>()
        {
            self.enqueue(dependent);
        }
    }

    fn enqueue(&mut self, uid: Uid) {
        if self.queued.insert(uid.clone()) {
            self.due.push_back(uid);
        }
    }

    /// Does for one object what is to be done for it now.
    async fn attend(&mut self, uid: &str) -> Attempt {
        let Some(node) = self.nodes.get(uid) else {
            return Attempt::Settled;
        };
        let Some(resource) = self.resource(node.key.resource()) else {
            return Attempt::Settled;
        };
        let Some(record) = self.core.store.get(&node.key) else {
            return Attempt::Settled;
        };
        let object = wire::from_stored(record.value(), "", "");
        if meta::of(&object).uid() != uid {
            return Attempt::Settled;
        }
        let key = node.key.clone();
        if meta::of(&object).is_deleting() {
            if meta::of(&object).has_finalizer(ORPHAN) {
                return self.orphan(&resource, &key, uid).await;
            }
            if meta::of(&object).has_finalizer(FOREGROUND) {
                return self.wait_for_dependents(&resource, &key, uid).await;
            }
            return Attempt::Settled;
        }
        self.judge(&resource, &key, &object).await
    }

    fn resource(&self, storage: &Resource) -> Option<Arc<ResourceType>> {
        self.core
            .registry
            .served()
            .preferred()
            .find(|resource| resource.storage == *storage)
            .cloned()
    }

    /// Keeps an object that has an owner, and deletes one whose owners are all gone.
    async fn judge(&mut self, resource: &Arc<ResourceType>, key: &Key, object: &Value) -> Attempt {
        let meta = meta::of(object);
        let mut gone: Vec<String> = Vec::new();
        let mut waiting: Vec<String> = Vec::new();
        let mut solid = 0;
        for owner in meta.owner_references() {
            match self.owner(&owner, key.namespace()) {
                Owner::Solid | Owner::Unknown => solid += 1,
                Owner::Gone => gone.push(owner.uid.to_owned()),
                Owner::WaitsForDependents => waiting.push(owner.uid.to_owned()),
            }
        }
        if gone.is_empty() && waiting.is_empty() {
            return Attempt::Settled;
        }
        if solid > 0 {
            let departed: HashSet<String> = gone.into_iter().chain(waiting).collect();
            return self.forget_owners(resource, key, meta.uid(), departed).await;
        }
        let has_dependents = self
            .dependents
            .get(meta.uid())
            .is_some_and(|dependents| !dependents.is_empty());
        let propagation = if meta.has_finalizer(ORPHAN) {
            Propagation::Orphan
        } else if meta.has_finalizer(FOREGROUND) || (!waiting.is_empty() && has_dependents) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let mut version = Some(meta.resource_version().to_owned());
        if propagation == Propagation::Foreground && self.closes_circle(meta.uid()) {
            if let Attempt::Again = self.unblock_owners(resource, key, meta.uid()).await {
                return Attempt::Again;
            }
            version = None;
        }
        let options = DeleteOptions {
            propagation: Some(propagation),
            uid: Some(meta.uid().to_owned()),
            resource_version: version,
            ..DeleteOptions::default()
        };
        match internal::delete_with(&self.core, resource, key.namespace(), key.name(), options).await {
            Ok(_) => Attempt::Settled,
            Err(error) if error.code() == 404 => Attempt::Settled,
            Err(_) => Attempt::Again,
        }
    }

    /// Whether something that an object owns already waits for what it owns in turn, so that the two may wait for each
    /// other.
    fn closes_circle(&self, uid: &str) -> bool {
        self.dependents_of(uid).iter().any(|(_, key)| {
            self.core.store.get(key).is_some_and(|record| {
                let object = wire::from_stored(record.value(), "", "");
                let meta = meta::of(&object);
                meta.is_deleting() && meta.has_finalizer(FOREGROUND)
            })
        })
    }

    /// Makes no owner wait for an object any more.
    async fn unblock_owners(&self, resource: &Arc<ResourceType>, key: &Key, uid: &str) -> Attempt {
        let edit = |object: &mut Value| {
            let owners = object["metadata"]["ownerReferences"].as_array_mut();
            for owner in owners
                .into_iter()
                .flatten()
                .filter(|owner| owner["blockOwnerDeletion"] == true)
            {
                owner["blockOwnerDeletion"] = false.into();
            }
        };
        self.edit(resource, key, uid, edit).await
    }

    /// Where an owner stands, by what is stored now.
    fn owner(&self, owner: &meta::OwnerReference<'_>, namespace: &str) -> Owner {
        let Some((group, version)) = split_api_version(owner.api_version) else {
            return Owner::Unknown;
        };
        let served = self.core.registry.served();
        let kind = GroupVersionKind::new(group, version, owner.kind);
        let Some(resource) = served.of_kind(&kind) else {
            return Owner::Unknown;
        };
        if resource.namespaced && namespace.is_empty() {
            // Something without a namespace cannot be owned by something in one.
            return Owner::Unknown;
        }
        let Some(record) = self.core.store.get(&resource.key(namespace, owner.name)) else {
            return Owner::Gone;
        };
        let object = wire::from_stored(record.value(), "", "");
        let meta = meta::of(&object);
        if meta.uid() != owner.uid {
            return Owner::Gone;
        }
        if meta.is_deleting() && meta.has_finalizer(FOREGROUND) {
            return Owner::WaitsForDependents;
        }
        Owner::Solid
    }

    async fn forget_owners(
        &self,
        resource: &Arc<ResourceType>,
        key: &Key,
        uid: &str,
        departed: HashSet<String>,
    ) -> Attempt {
        let edit = |object: &mut Value| {
            if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|owner| !owner["uid"].as_str().is_some_and(|uid| departed.contains(uid)));
                if owners.is_empty() {
                    object["metadata"]
                        .as_object_mut()
                        .map(|metadata| metadata.remove("ownerReferences"));
                }
            }
        };
        self.edit(resource, key, uid, edit).await
    }

    /// Lets go of everything that an object owns, then lets it go.
    async fn orphan(&mut self, resource: &Arc<ResourceType>, key: &Key, uid: &str) -> Attempt {
        for dependent in self.dependents_of(uid) {
            let Some(own) = self.resource(dependent.1.resource()) else {
                continue;
            };
            let departed = HashSet::from([uid.to_owned()]);
            if let Attempt::Again = self.forget_owners(&own, &dependent.1, &dependent.0, departed).await {
                return Attempt::Again;
            }
        }
        self.remove_finalizer(resource, key, uid, ORPHAN).await
    }

    /// Lets an object go once nothing is left that it has to wait for.
    async fn wait_for_dependents(&mut self, resource: &Arc<ResourceType>, key: &Key, uid: &str) -> Attempt {
        let blocks = |(_, dependent): &(Uid, Key)| {
            self.core.store.get(dependent).is_some_and(|record| {
                let object = wire::from_stored(record.value(), "", "");
                meta::of(&object)
                    .owner_references()
                    .any(|owner| owner.uid == uid && owner.block_owner_deletion)
            })
        };
        if self.dependents_of(uid).iter().any(blocks) {
            return Attempt::Settled;
        }
        self.remove_finalizer(resource, key, uid, FOREGROUND).await
    }

    fn dependents_of(&self, uid: &str) -> Vec<(Uid, Key)> {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        dependents
            .filter_map(|uid| Some((uid.clone(), self.nodes.get(uid)?.key.clone())))
            .collect()
    }

    async fn remove_finalizer(&self, resource: &Arc<ResourceType>, key: &Key, uid: &str, finalizer: &str) -> Attempt {
        let edit = |object: &mut Value| {
            if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
                finalizers.retain(|candidate| candidate != finalizer);
                if finalizers.is_empty() {
                    object["metadata"]
                        .as_object_mut()
                        .map(|metadata| metadata.remove("finalizers"));
                }
            }
        };
        self.edit(resource, key, uid, edit).await
    }

    async fn edit(
        &self,
        resource: &Arc<ResourceType>,
        key: &Key,
        uid: &str,
        edit: impl Fn(&mut Value) + Send + Sync,
    ) -> Attempt {
        match internal::change(&self.core, resource, key.namespace(), key.name(), uid, edit).await {
            Ok(_) => Attempt::Settled,
            Err(error) => {
                tracing::debug!(%key, %error, "garbage collection could not write an object");
                Attempt::Again
            }
        }
    }
}

/// Where an owner stands.
enum Owner {
    /// It is there.
    Solid,
    /// It is not there, or another one bears its name.
    Gone,
    /// It is being deleted and waits for what it owns.
    WaitsForDependents,
    /// Its kind is not served, so nothing can be said of it.
    Unknown,
}

/// The next event of any watch; nothing once the store is closed.
fn poll_any(watches: &mut HashMap<Resource, Watch>, context: &mut std::task::Context<'_>) -> Poll<Option<Event>> {
    let mut behind = None;
    for (resource, watch) in watches.iter_mut() {
        match watch.poll_next(context) {
            Poll::Ready(Ok(event)) => return Poll::Ready(Some(event)),
            Poll::Ready(Err(WatchError::Closed)) => return Poll::Ready(None),
            Poll::Ready(Err(WatchError::Compacted { .. })) => behind = Some(resource.clone()),
            Poll::Pending => {}
        }
    }
    if let Some(resource) = behind {
        // It is begun anew, with all that is there, when the resources are next looked through.
        watches.remove(&resource);
    }
    Poll::Pending
}

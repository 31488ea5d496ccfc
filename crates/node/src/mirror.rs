//! Objects of the API as they are now, followed by a watch.
//!
//! A narrow door: everything here that reads from the API and has to know of changes goes through [`Mirror`]. It holds
//! the objects of one kind, tells listeners of each change in order, and makes good for what it missed: after a break
//! it lists again and tells the difference.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::StreamExt as _;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::key::Key;

/// What happened to an object.
#[derive(Debug)]
pub(crate) enum Change<K> {
    /// It is there now, like this.
    Applied(Arc<K>),
    /// It is gone; this is how it was last seen.
    Deleted(Arc<K>),
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        match self {
            Change::Applied(object) => Change::Applied(object.clone()),
            Change::Deleted(object) => Change::Deleted(object.clone()),
        }
    }
}

impl<K: Resource> Change<K> {
    /// Which object.
    pub(crate) fn key(&self) -> Key {
        match self {
            Change::Applied(object) | Change::Deleted(object) => Key::of(&**object),
        }
    }
}

/// All objects of a kind, kept up to date.
pub(crate) struct Mirror<K> {
    shared: Arc<Shared<K>>,
    task: JoinHandle<()>,
}

struct Shared<K> {
    /// Guards objects and listeners together, so that a listener misses nothing and hears nothing twice.
    state: Mutex<Content<K>>,
    synced: watch::Sender<bool>,
    /// Counts changes, for those who wait for one object to be in some way.
    version: watch::Sender<u64>,
}

struct Content<K> {
    objects: HashMap<Key, Arc<K>>,
    listeners: Vec<mpsc::UnboundedSender<Change<K>>>,
}

impl<K> Drop for Mirror<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K> Mirror<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default,
{
    /// Begins to follow what the API shows.
    pub(crate) fn follow(api: Api<K>, config: watcher::Config) -> Self {
        let events = watcher(api, config).default_backoff();
        let shared = Arc::new(Shared {
            state: Mutex::new(Content {
                objects: HashMap::new(),
                listeners: Vec::new(),
            }),
            synced: watch::Sender::new(false),
            version: watch::Sender::new(0),
        });
        let task = tokio::spawn(follow(shared.clone(), events));
        Self { shared, task }
    }
}

impl<K> Mirror<K>
where
    K: Resource + Send + Sync + 'static,
{
    /// Waits until everything that was there at the start has been seen.
    pub(crate) async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        // The sender lives as long as this mirror.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// An object as it is now.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.shared.lock().objects.get(key).cloned()
    }

    /// All objects.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.shared.lock().objects.values().cloned().collect()
    }

    /// Waits until an object, or its absence, is as asked for; ask for a limit of time elsewhere.
    pub(crate) async fn wait_until(&self, key: &Key, holds: impl Fn(Option<&K>) -> bool) {
        let mut version = self.shared.version.subscribe();
        loop {
            version.borrow_and_update();
            if holds(self.get(key).as_deref()) {
                return;
            }
            if version.changed().await.is_err() {
                return;
            }
        }
    }

    /// Every object that is there, and from then on every change.
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<Change<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut content = self.shared.lock();
        for object in content.objects.values() {
            // The receiver is in our hands.
            let _ = sender.send(Change::Applied(object.clone()));
        }
        content.listeners.push(sender);
        receiver
    }
}

impl<K> Shared<K> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Content<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Content<K> {
    fn tell(&mut self, change: &Change<K>) {
        self.listeners.retain(|listener| listener.send(change.clone()).is_ok());
    }
}

async fn follow<K: Resource>(
    shared: Arc<Shared<K>>,
    events: impl futures_util::Stream<Item = watcher::Result<watcher::Event<K>>>,
) {
    let mut events = std::pin::pin!(events);
    let mut listing: HashMap<Key, Arc<K>> = HashMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listing.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listing.insert(Key::of(&object), Arc::new(object));
            }
            Ok(watcher::Event::InitDone) => {
                let mut content = shared.lock();
                let gone: Vec<_> = content
                    .objects
                    .keys()
                    .filter(|key| !listing.contains_key(key))
                    .cloned()
                    .collect();
                for key in gone {
                    if let Some(object) = content.objects.remove(&key) {
                        content.tell(&Change::Deleted(object));
                    }
                }
                for (key, object) in listing.drain() {
                    let before = content.objects.insert(key, object.clone());
                    let version = &object.meta().resource_version;
                    if before.is_none_or(|before| before.meta().resource_version != *version) {
                        content.tell(&Change::Applied(object));
                    }
                }
                drop(content);
                shared.synced.send_replace(true);
            }
            Ok(watcher::Event::Apply(object)) => {
                let object = Arc::new(object);
                let mut content = shared.lock();
                content.objects.insert(Key::of(&*object), object.clone());
                content.tell(&Change::Applied(object));
            }
            Ok(watcher::Event::Delete(object)) => {
                let mut content = shared.lock();
                content.objects.remove(&Key::of(&object));
                content.tell(&Change::Deleted(Arc::new(object)));
            }
            Err(error) => tracing::debug!(%error, "a watch broke and will be taken up again"),
        }
        shared.version.send_modify(|version| *version += 1);
    }
}

//! The cache: one watch per kind, scope and selector, shared by everybody in the process.
//!
//! ```text
//!   API ──list, watch──► reflector ──► Table (indexes) ──► listeners: events to keys
//!                                         ▲
//!                                         └── snapshots ask
//! ```

mod ahead;
mod lines;
mod reflect;
mod table;

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, Weak},
};

use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::table::Table;
pub use self::table::{IndexFunction, OWNER_LABEL};
use crate::{
    intern::intern,
    kind::Kind,
    object::{Key, Object},
};

/// What is watched: a kind, wholly or in part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection {
    /// The kind.
    pub kind: Kind,
    /// The namespace; all of them without one.
    pub namespace: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
    /// How much of each object.
    pub depth: Depth,
}

/// How much of each object is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Depth {
    /// All of it.
    Whole,
    /// Its metadata alone, which is all that an event to a key needs.
    Metadata,
}

impl Selection {
    /// Every object of a kind, in all namespaces.
    pub fn all(kind: Kind) -> Self {
        Self {
            kind,
            namespace: None,
            labels: None,
            fields: None,
            depth: Depth::Whole,
        }
    }

    /// Only those with these labels.
    #[must_use]
    pub fn labelled(self, labels: impl Into<String>) -> Self {
        Self {
            labels: Some(labels.into()),
            ..self
        }
    }

    /// Only those in a namespace.
    #[must_use]
    pub fn within(self, namespace: impl Into<String>) -> Self {
        Self {
            namespace: Some(namespace.into()),
            ..self
        }
    }

    /// Only their metadata.
    #[must_use]
    pub fn metadata(self) -> Self {
        Self {
            depth: Depth::Metadata,
            ..self
        }
    }
}

/// The caches of one cluster. Clones share them.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    client: kube::Client,
    /// The member cluster; none for the home.
    cluster: Option<Arc<str>>,
    watches: Mutex<HashMap<Selection, Watch>>,
    field_owners: RwLock<Arc<[Arc<str>]>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A watch under way.
struct Watch {
    collection: Arc<Collection>,
    stop: CancellationToken,
    /// Whether somebody declared it, who needs it for as long as there is a cache.
    declared: bool,
}

/// The objects of one watch.
pub struct Collection {
    selection: Selection,
    table: RwLock<Table>,
    /// Who is told of changes. A listener that was dropped is forgotten at the next change.
    listeners: Mutex<Vec<Weak<Listener>>>,
    progress: watch::Sender<Progress>,
    /// Why the watch is broken, while it has been for long.
    broken: watch::Sender<Option<Arc<str>>>,
    /// Changes when the watch has to begin anew.
    renewals: watch::Sender<()>,
}

/// How far a watch has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the first list is complete.
    pub synced: bool,
    /// The highest resource version that was seen.
    pub version: u64,
}

/// An object that came, changed or went.
#[derive(Clone, Debug)]
pub struct Event<'e> {
    /// As it was, if it was there.
    pub old: Option<&'e Object>,
    /// As it is, if it is there.
    pub new: Option<&'e Object>,
    /// Whether it was there before anybody looked, so that nobody waits for what follows from it.
    pub initial: bool,
}

type Listener = dyn Fn(&Event<'_>) + Send + Sync;

/// Keeps a listener alive; dropping it ends the telling.
pub struct Listening {
    _listener: Arc<Listener>,
}

impl Cache {
    /// Caches over a client. Watches start when they are first asked for, and end with the last clone or by
    /// [`stop`](Self::stop).
    pub fn new(client: kube::Client) -> Self {
        Self::over(client, None)
    }

    pub(crate) fn of_member(client: kube::Client, cluster: Arc<str>) -> Self {
        Self::over(client, Some(cluster))
    }

    fn over(client: kube::Client, cluster: Option<Arc<str>>) -> Self {
        Self {
            inner: Arc::new(Inner {
                client,
                cluster,
                watches: Mutex::default(),
                field_owners: RwLock::new(Arc::from([])),
                tasks: TaskTracker::new(),
                stop: CancellationToken::new(),
            }),
        }
    }

    /// The client that the caches read with.
    pub fn client(&self) -> &kube::Client {
        &self.inner.client
    }

    /// Remembers, of objects read from now on, what this field owner has applied: see [`Object::read`].
    pub fn keep_ownership_of(&self, field_owner: &str) {
        let mut owners = self
            .inner
            .field_owners
            .write()
            .expect("nothing panics while it holds this");
        if !owners.iter().any(|owner| **owner == *field_owner) {
            *owners = owners.iter().cloned().chain([intern(field_owner)]).collect();
        }
    }

    /// The collection of a selection; its watch starts with the first one who asks. Needs a tokio runtime.
    pub fn collection(&self, selection: &Selection) -> Arc<Collection> {
        self.watch(selection, true)
    }

    /// The collection of a selection for a time: [`let_go`](Self::let_go) ends its watch, and nothing waits for its
    /// first list to call this process ready.
    pub(crate) fn borrowed(&self, selection: &Selection) -> Arc<Collection> {
        self.watch(selection, false)
    }

    /// Gives back a collection that was borrowed. Its watch ends with the last one who has it.
    pub(crate) fn let_go(&self, collection: Arc<Collection>) {
        let selection = collection.selection().clone();
        drop(collection);
        let mut watches = self.watches();
        // One is ours and one is the reflector's. More come only from here, under this lock.
        let unused = |watch: &Watch| !watch.declared && Arc::strong_count(&watch.collection) == 2;
        if watches.get(&selection).is_some_and(unused)
            && let Some(watch) = watches.remove(&selection)
        {
            watch.stop.cancel();
        }
    }

    fn watch(&self, selection: &Selection, declared: bool) -> Arc<Collection> {
        let mut watches = self.watches();
        if let Some(watch) = watches.get_mut(selection) {
            watch.declared |= declared;
            return Arc::clone(&watch.collection);
        }
        let collection = Arc::new(Collection::new(selection.clone()));
        let stop = self.inner.stop.child_token();
        let watch = Watch {
            collection: Arc::clone(&collection),
            stop: stop.clone(),
            declared,
        };
        watches.insert(selection.clone(), watch);
        let reflector = reflect::Reflector::new(
            self.inner.client.clone(),
            Arc::clone(&collection),
            self.inner.cluster.clone(),
            self.inner
                .field_owners
                .read()
                .expect("nothing panics while it holds this")
                .clone(),
        );
        self.inner
            .tasks
            .spawn(async move { stop.run_until_cancelled(reflector.run()).await });
        collection
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<Selection, Watch>> {
        self.inner.watches.lock().expect("nothing panics while it holds this")
    }

    /// Whether every declared watch has its first list.
    pub fn is_synced(&self) -> bool {
        self.unsynced().is_empty()
    }

    /// The declared selections whose first list is not complete, for whoever wonders why nothing starts.
    pub fn unsynced(&self) -> Vec<Selection> {
        let watches = self.watches();
        let unsynced = watches
            .iter()
            .filter(|(_, watch)| watch.declared && !watch.collection.progress().synced);
        unsynced.map(|(selection, _)| selection.clone()).collect()
    }

    /// Begins all watches anew from where they are, as after an absence of the server: the connections that they had may
    /// be dead without knowing. Until the server answers, nobody relies on them.
    pub(crate) fn renew(&self) {
        for watch in self.watches().values() {
            let why = "the watch begins anew after an absence";
            watch.collection.note_broken(Some(why.to_owned()));
            watch.collection.renewals.send_replace(());
        }
    }

    /// Ends all watches and waits for that.
    pub async fn stop(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Collection {
    pub(crate) fn new(selection: Selection) -> Self {
        Self {
            selection,
            table: RwLock::default(),
            listeners: Mutex::default(),
            progress: watch::Sender::new(Progress::default()),
            broken: watch::Sender::new(None),
            renewals: watch::Sender::new(()),
        }
    }

    /// What is watched.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The object of a name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Object> {
        self.read().get(namespace, name).cloned()
    }

    /// All objects, in no particular order.
    pub fn list(&self) -> Vec<Object> {
        self.read().iter().cloned().collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How far the watch has come.
    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Waits for the first list.
    pub async fn synced(&self) {
        let mut progress = self.progress.subscribe();
        let waited = progress.wait_for(|progress| progress.synced).await;
        waited.expect("the sender is part of the collection");
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Waits until everything up to a version has been seen.
    pub async fn reached(&self, version: u64) {
        let mut progress = self.progress.subscribe();
        let waited = progress.wait_for(|progress| progress.version >= version).await;
        waited.expect("the sender is part of the collection");
    }

    /// Declares an index, for [`Snapshot::indexed`](crate::Snapshot::indexed).
    pub fn declare_index(&self, name: &str, values: IndexFunction) {
        let index = name.to_owned();
        // A panic in an actor's code must not take the table from everybody: this one object is not found by the index.
        let guarded = move |object: &Object| {
            catch_unwind(AssertUnwindSafe(|| values(object))).unwrap_or_else(|_| {
                tracing::error!(object = %object.target(), index, "an object was not indexed: the actor panicked");
                Vec::new()
            })
        };
        self.table
            .write()
            .expect("nothing panics while it holds the table")
            .declare(name, Arc::new(guarded));
    }

    /// Tells `listener` of everything that is there, and then of every change.
    ///
    /// It is called by the task of the watch, so it must be short and must not block.
    pub fn listen(&self, listener: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Listening {
        let listener: Arc<Listener> = Arc::new(listener);
        // Registered before reading, so that nothing falls between the two; being told twice is harmless.
        self.listeners
            .lock()
            .expect("nothing panics while it holds this")
            .push(Arc::downgrade(&listener));
        for object in self.list() {
            listener(&Event {
                old: None,
                new: Some(&object),
                initial: true,
            });
        }
        Listening { _listener: listener }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().expect("nothing panics while it holds the table")
    }

    /// Changes the table and then tells everybody, with no lock held.
    pub(crate) fn change(&self, edit: impl FnOnce(&mut Table) -> Vec<table::Change>) {
        let (changes, version) = {
            let mut table = self.table.write().expect("nothing panics while it holds the table");
            (edit(&mut table), table.seen())
        };
        let synced = self.progress().synced;
        if !changes.is_empty() {
            let listeners: Vec<Arc<Listener>> = {
                let mut listeners = self.listeners.lock().expect("nothing panics while it holds this");
                listeners.retain(|listener| listener.strong_count() > 0);
                listeners.iter().filter_map(Weak::upgrade).collect()
            };
            for change in &changes {
                let event = Event {
                    old: change.old.as_ref(),
                    new: change.new.as_ref(),
                    initial: !synced,
                };
                for listener in &listeners {
                    // It ends in an actor's code. A panic there loses what this one object would have woken.
                    if catch_unwind(AssertUnwindSafe(|| listener(&event))).is_err() {
                        let object = event.object().target();
                        tracing::error!(%object, "whom a change concerns was not found out: the actor panicked");
                    }
                }
            }
        }
        self.progress.send_if_modified(|progress| {
            let later = progress.version < version;
            progress.version = progress.version.max(version);
            // During the first list everybody waits for its end, and would only be woken to wait again.
            later && progress.synced
        });
    }

    pub(crate) fn forget_owner(&self, uid: &str) {
        self.table
            .write()
            .expect("nothing panics while it holds the table")
            .forget_owner(uid);
    }

    /// Why the watch is broken, while it has been for long: what is here may no longer be so.
    pub(crate) fn broken(&self) -> Option<Arc<str>> {
        self.broken.borrow().clone()
    }

    pub(crate) fn subscribe_broken(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.broken.subscribe()
    }

    /// Notes that the watch is broken, or that it is not any more. The first cause is kept.
    fn note_broken(&self, why: Option<String>) {
        self.broken.send_if_modified(|broken| {
            let changes = broken.is_some() != why.is_some();
            if changes {
                *broken = why.map(Arc::from);
            }
            changes
        });
    }

    fn complete(&self) {
        self.progress
            .send_if_modified(|progress| !std::mem::replace(&mut progress.synced, true));
    }
}

impl Event<'_> {
    /// The object as it is or, if it is gone, as it last was.
    pub fn object(&self) -> &Object {
        self.new
            .or(self.old)
            .expect("an event is of an object that is or was there")
    }

    /// The object's key.
    pub fn key(&self) -> Key {
        Key::of(self.object())
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl fmt::Debug for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collection")
            .field("selection", &self.selection)
            .finish_non_exhaustive()
    }
}

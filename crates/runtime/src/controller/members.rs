//! The part of a controller that follows its member clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, RwLock},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use moorline_plan::Failure;
use moorline_queue::Ask;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{KeyQueue, placement};
use crate::{
    cache::{Collection, Event, Listening, OWNER_LABEL, Selection},
    clusters::{self, Clusters},
    kind::{Kind, Scope},
    object::{Key, Object},
    reach::Reach,
    sources::Sources,
};

/// The index by which an owner in another cluster is found.
const BY_UID: &str = "moorline.io/uid";

/// What is cached of each member.
#[derive(Default)]
pub(crate) struct Members(RwLock<BTreeMap<Arc<str>, Member>>);

struct Member {
    sources: Arc<Sources>,
    reach: Arc<Reach>,
    _listening: Vec<Listening>,
    _waking: DropGuard,
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

    /// What belongs to an owner in a member. What is not known is neither none nor gone.
    pub(crate) fn owned(&self, kind: &Kind, owner: &str, cluster: &str) -> Result<Vec<Object>, Failure> {
        let (sources, reach) = {
            let members = self.0.read().expect("nothing panics while it holds this");
            let member = members
                .get(cluster)
                .ok_or_else(|| Failure::waiting(format!("the cluster {cluster} is not known here")))?;
            (Arc::clone(&member.sources), Arc::clone(&member.reach))
        };
        let collections = sources.collections(kind);
        if collections.is_empty() {
            let message = format!("the actor asked for objects of kind {kind} in a member, which it did not declare");
            return Err(Failure::terminal(message));
        }
        if let Some(why) = reach.away() {
            return Err(Failure::waiting(format!(
                "the cluster {cluster} does not answer: {why}"
            )));
        }
        if let Some(why) = collections.iter().find_map(|collection| collection.broken()) {
            return Err(Failure::waiting(format!(
                "objects of kind {kind} cannot be watched in the cluster {cluster}: {why}"
            )));
        }
        if !collections.iter().all(|collection| collection.progress().synced) {
            return Err(Failure::waiting(format!(
                "the cluster {cluster} has not been reached yet"
            )));
        }
        Ok(sources.owned(kind, owner))
    }
}

/// What a controller follows its members for.
pub(super) struct Following {
    pub(super) clusters: Clusters,
    pub(super) members: Arc<Members>,
    /// The kinds that are placed there.
    pub(super) kinds: Vec<Kind>,
    pub(super) namespaces: Vec<String>,
    pub(super) field_owner: String,
    pub(super) owners: Owners,
}

/// The objects at home that parts in members belong to.
#[derive(Clone)]
pub(super) struct Owners {
    pub(super) home: Arc<Sources>,
    pub(super) primary: Kind,
    /// The index of where they are placed.
    pub(super) by_place: Arc<str>,
    pub(super) queue: KeyQueue,
}

impl Owners {
    /// Declares the indexes by which they are found.
    pub(super) fn declare_indexes(&self, actor: &str) {
        let actor: Arc<str> = Arc::from(actor);
        for collection in self.home.collections(&self.primary) {
            collection.declare_index(BY_UID, Arc::new(|object| vec![object.uid().to_owned()]));
            let actor = Arc::clone(&actor);
            let places = move |object: &Object| placement::recorded(object, &actor).unwrap_or_default();
            collection.declare_index(
                &self.by_place,
                Arc::new(move |object| places(object).into_iter().collect()),
            );
        }
    }

    /// Those of whom something is or may be in a member look again.
    fn wake_placed_in(&self, cluster: &str) {
        for owner in self
            .home
            .indexed(&self.primary, &self.by_place, cluster)
            .unwrap_or_default()
        {
            self.queue.add(Key::of(&owner));
        }
    }

    fn wake_all(&self) {
        for owner in self.home.list(&self.primary, None) {
            self.queue.add(Key::of(&owner));
        }
    }

    /// From an object in a member to its owner at home, also to one that it has been taken from.
    fn wake_owner_of(&self, event: &Event<'_>) {
        let objects = event.old.into_iter().chain(event.new);
        for uid in objects.filter_map(|object| object.label(OWNER_LABEL)) {
            for owner in self.home.indexed(&self.primary, BY_UID, uid).unwrap_or_default() {
                self.queue.add_with(Key::of(&owner), Ask::now());
            }
        }
    }
}

impl Following {
    /// Follows the members for as long as the future is polled.
    pub(super) async fn run(self) {
        let mut changes = self.clusters.changes();
        let mut forgotten = self.clusters.forgotten();
        loop {
            changes.borrow_and_update();
            self.let_go();
            for name in self.clusters.names() {
                // One that was replaced has been let go just now, under whatever name.
                if self.members.sources(&name).is_none()
                    && let Some(member) = self.clusters.member(&name)
                {
                    self.take_up(name, &member);
                }
            }
            let given_up = self.clusters.forgotten();
            for name in given_up.difference(&forgotten) {
                self.owners.wake_placed_in(name);
            }
            forgotten = given_up;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Lets go of members that were removed or replaced: what was placed there is not known now.
    fn let_go(&self) {
        let mut gone = Vec::new();
        self.members
            .0
            .write()
            .expect("nothing panics while it holds this")
            .retain(|name, member| {
                let now = self.clusters.member(name);
                let is_same = now.is_some_and(|now| Arc::ptr_eq(&now.reach, &member.reach));
                if !is_same {
                    gone.push(Arc::clone(name));
                }
                is_same
            });
        for name in gone {
            self.owners.wake_placed_in(&name);
        }
    }

    fn take_up(&self, name: Arc<str>, member: &clusters::Member) {
        member.cache.keep_ownership_of(&self.field_owner);
        let mut sources = Sources::default();
        let mut listening = Vec::new();
        for kind in &self.kinds {
            for selection in self.selections(kind) {
                let collection = member.cache.collection(&selection);
                sources.add(kind.clone(), Arc::clone(&collection));
                let owners = self.owners.clone();
                listening.push(collection.listen(move |event| owners.wake_owner_of(event)));
            }
        }
        let sources = Arc::new(sources);
        let waking = CancellationToken::new();
        let telling = tell(
            Arc::clone(&name),
            Arc::clone(&sources),
            Arc::clone(&member.reach),
            self.owners.clone(),
        );
        tokio::spawn(waking.clone().run_until_cancelled_owned(telling));
        let member = Member {
            sources,
            reach: Arc::clone(&member.reach),
            _listening: listening,
            _waking: waking.drop_guard(),
        };
        self.members
            .0
            .write()
            .expect("nothing panics while it holds this")
            .insert(name, member);
    }

    fn selections(&self, kind: &Kind) -> Vec<Selection> {
        let all = Selection::all(kind.clone()).labelled(OWNER_LABEL);
        if self.namespaces.is_empty() || kind.scope() == Scope::Cluster {
            return vec![all];
        }
        // One that is named twice is watched once.
        let namespaces: BTreeSet<&String> = self.namespaces.iter().collect();
        let within = namespaces.into_iter().map(|namespace| all.clone().within(namespace));
        within.collect()
    }
}

/// Tells those whom it concerns when a member becomes known, goes away and comes back.
async fn tell(name: Arc<str>, sources: Arc<Sources>, reach: Arc<Reach>, owners: Owners) {
    let mut away = reach.subscribe();
    let mut watches: Vec<_> = sources.all().map(|collection| collection.subscribe_broken()).collect();
    let mut synced: FuturesUnordered<_> = sources.all().map(first_list).collect();
    loop {
        let is_away = away.borrow_and_update().is_some();
        let is_broken = watches.iter_mut().any(|broken| broken.borrow_and_update().is_some());
        match (is_away || is_broken, synced.is_empty()) {
            (true, true) => owners.wake_placed_in(&name),
            // Those that wait to be placed there are not recorded there yet, and are told why, or what they waited for.
            (true, false) | (false, true) => owners.wake_all(),
            (false, false) => {}
        }
        let broken = watches.iter_mut().map(|broken| Box::pin(broken.changed()));
        tokio::select! {
            _ = away.changed() => {}
            _ = futures_util::future::select_all(broken) => {}
            Some(()) = synced.next(), if !synced.is_empty() => {}
        }
    }
}

async fn first_list(collection: &Arc<Collection>) {
    collection.synced().await;
}

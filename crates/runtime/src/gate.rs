//! Read your writes: an object is not looked at again before the cache has seen what was written for it.

use std::time::Duration;

use moorline_plan::Failure;

use crate::{
    cache::Collection,
    controller::{Ground, Members},
    execute::{Expect, Write, refusal},
    object::Target,
    snapshot::Live,
    sources::Sources,
};

/// What came of waiting for the cache.
#[derive(Debug, PartialEq)]
pub(crate) enum Passed {
    /// It has seen everything.
    Seen,
    /// It was not fast enough: until it has seen these, looks take them from the server itself.
    Late(Vec<Write>),
}

/// Whether the cache has seen a write. What is not watched cannot be waited for.
pub(crate) fn is_seen(home: &Sources, members: &Members, write: &Write) -> bool {
    let member = match &write.target.cluster {
        Some(cluster) => match members.sources(cluster) {
            Some(member) => Some(member),
            None => return true,
        },
        None => None,
    };
    let sources = member.as_deref().unwrap_or(home);
    let collections = sources.collections(&write.target.kind);
    match &write.expect {
        Expect::Version(version) => collections
            .iter()
            .all(|collection| !hears_of(collection, &write.target) || collection.progress().version >= *version),
        Expect::Gone(uid) => sources.find(&write.target).is_none_or(|object| object.uid() != &**uid),
        Expect::Unknown => collections.is_empty(),
    }
}

/// A watch of one namespace never hears of another.
fn hears_of(collection: &Collection, target: &Target) -> bool {
    let namespace = collection.selection().namespace.as_deref();
    namespace.is_none_or(|namespace| namespace == &*target.namespace)
}

/// Waits until the cache has seen the writes, at most until the deadline.
pub(crate) async fn pass(
    ground: &Ground,
    sources: &Sources,
    members: &Members,
    mut writes: Vec<Write>,
    patience: Duration,
) -> Passed {
    writes.retain(|write| !is_seen(sources, members, write));
    if writes.is_empty() {
        return Passed::Seen;
    }
    let waiting = async {
        for write in &mut writes {
            if write.expect == Expect::Unknown {
                write.expect = resolve(ground, &write.target).await;
            }
            wait(sources, members, write).await;
        }
    };
    if tokio::time::timeout(patience, waiting).await.is_ok() {
        return Passed::Seen;
    }
    writes.retain(|write| !is_seen(sources, members, write));
    Passed::Late(writes)
}

/// Asks the server what became of a write whose answer was lost, until it tells.
async fn resolve(ground: &Ground, target: &Target) -> Expect {
    let Some(way) = ground.way_to(target) else {
        return Expect::Version(0);
    };
    let mut rest = Duration::from_millis(50);
    loop {
        match way.get(target).await {
            Ok(Some(object)) => return Expect::Version(object.version()),
            Ok(None) => return Expect::Version(0),
            Err(error) => {
                tracing::debug!(%target, %error, "cannot find out what became of a write");
                tokio::time::sleep(rest).await;
                rest = (rest * 2).min(Duration::from_secs(2));
            }
        }
    }
}

async fn wait(home: &Sources, members: &Members, write: &Write) {
    let member = write
        .target
        .cluster
        .as_deref()
        .and_then(|cluster| members.sources(cluster));
    let sources = member.as_deref().unwrap_or(home);
    let collections = sources.collections(&write.target.kind).iter();
    for collection in collections.filter(|collection| hears_of(collection, &write.target)) {
        let mut progress = collection.subscribe();
        while !is_seen(home, members, write) {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }
}

/// What was read from the server itself.
#[derive(Default)]
pub(crate) struct Answered {
    pub(crate) live: Live,
    /// What could not be read, and why not.
    pub(crate) unknown: Vec<(Target, Failure)>,
}

/// Reads from the server itself what the cache was too late for.
///
/// What cannot be read stays unknown: the cache is known to be behind, and a write that was given up may show later.
pub(crate) async fn read_live(ground: &Ground, targets: impl IntoIterator<Item = Target>) -> Answered {
    let asking = targets.into_iter().filter_map(|target| {
        let way = ground.way_to(&target)?;
        Some(async move { (way.get(&target).await, target) })
    });
    let mut answered = Answered::default();
    for (answer, target) in futures_util::future::join_all(asking).await {
        match answer {
            Ok(object) => {
                let object = object.map(|object| object.placed_in(target.cluster.clone()));
                answered.live.insert(target, object);
            }
            Err(error) => {
                tracing::warn!(%target, %error, "cannot read an object that the cache is late for");
                let failure = refusal("look at", &target, &error);
                answered.unknown.push((target, failure));
            }
        }
    }
    answered
}

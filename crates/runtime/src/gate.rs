//! Read your writes: an object is not looked at again before the cache has seen what was written for it.

use std::time::Duration;

use moorline_plan::Failure;

use crate::{
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
    /// It was not fast enough: the next look takes these from the server itself.
    Late(Vec<Target>),
}

/// Whether the cache has seen a write. What is not watched cannot be waited for.
fn is_seen(home: &Sources, members: &Members, write: &Write) -> bool {
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
        Expect::Version(version) => collections.iter().all(|collection| {
            // A watch of one namespace never hears of another.
            let elsewhere = collection
                .selection()
                .namespace
                .as_deref()
                .is_some_and(|n| n != &*write.target.namespace);
            elsewhere || collection.progress().version >= *version
        }),
        Expect::Gone(uid) => sources.find(&write.target).is_none_or(|object| object.uid() != &**uid),
        Expect::Unknown => collections.is_empty(),
    }
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
    Passed::Late(writes.into_iter().map(|write| write.target).collect())
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
    for collection in sources.collections(&write.target.kind) {
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
    /// Of those in members, the ones that could not be read, and why not.
    pub(crate) unknown: Vec<(Target, Failure)>,
}

/// Reads from the server itself what the cache was too late for.
///
/// What cannot be read at home is left to the cache: it is the same server that fills it. In a member it stays unknown,
/// since a write that was given up there may show long after the member is back.
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
                if target.cluster.is_some() {
                    let failure = refusal("look at", &target, &error);
                    answered.unknown.push((target, failure));
                }
            }
        }
    }
    answered
}

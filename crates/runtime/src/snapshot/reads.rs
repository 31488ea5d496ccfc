//! Questions to the caches, each answered once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use moorline_plan::Failure;
use serde::{Deserialize, Serialize};

use crate::{
    cache::OWNER_LABEL,
    controller::Members,
    kind::Kind,
    object::{Object, Target},
    sources::Sources,
};

/// A question that a snapshot can answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Query {
    /// The object of a name.
    Get {
        /// Of this kind.
        kind: Kind,
        /// In this namespace; empty for none.
        namespace: String,
        /// The name.
        name: String,
    },
    /// What somebody owns.
    Owned {
        /// Of this kind.
        kind: Kind,
        /// The owner's UID.
        owner: String,
    },
    /// What somebody owns in a member cluster.
    OwnedIn {
        /// Of this kind.
        kind: Kind,
        /// The owner's UID.
        owner: String,
        /// The member.
        cluster: String,
    },
    /// What a label selector selects.
    Select {
        /// Of this kind.
        kind: Kind,
        /// In this namespace, or in all.
        namespace: Option<String>,
        /// The selector as text.
        selector: String,
    },
    /// What a declared index finds.
    Indexed {
        /// Of this kind.
        kind: Kind,
        /// The index.
        index: String,
        /// The value.
        value: String,
    },
}

impl Query {
    fn kind(&self) -> &Kind {
        match self {
            Self::Get { kind, .. }
            | Self::Owned { kind, .. }
            | Self::OwnedIn { kind, .. }
            | Self::Select { kind, .. }
            | Self::Indexed { kind, .. } => kind,
        }
    }

    /// Whether an object is part of the answer; `None` when only an index can tell.
    fn takes(&self, object: &Object) -> Option<bool> {
        match self {
            Self::OwnedIn { owner, cluster, .. } => {
                Some(object.cluster() == Some(cluster) && object.label(OWNER_LABEL) == Some(owner))
            }
            _ if object.cluster().is_some() => Some(false),
            Self::Get { namespace, name, .. } => Some(object.namespace() == namespace && object.name() == name),
            Self::Owned { owner, .. } => Some(object.owners().iter().any(|reference| *reference.uid == **owner)),
            Self::Select {
                namespace, selector, ..
            } => {
                let selector: moorline_machinery::selector::LabelSelector = selector.parse().ok()?;
                let within = namespace
                    .as_ref()
                    .is_none_or(|namespace| object.namespace() == namespace);
                Some(within && selector.matches(object))
            }
            Self::Indexed { .. } => None,
        }
    }
}

/// What was read from the server itself because the cache had not seen it in time: an object, or that it is gone.
pub type Live = HashMap<Target, Option<Object>>;

/// Answers, and where new ones come from.
pub(crate) struct Reads {
    answers: Mutex<BTreeMap<Query, Vec<Object>>>,
    source: Source,
}

enum Source {
    Caches {
        sources: Arc<Sources>,
        members: Arc<Members>,
        live: Live,
    },
    /// A record: nothing but what was answered then.
    Record,
}

impl Reads {
    pub(crate) fn from_caches(sources: Arc<Sources>, members: Arc<Members>, live: Live) -> Self {
        Self {
            answers: Mutex::default(),
            source: Source::Caches { sources, members, live },
        }
    }

    pub(crate) fn from_record(answers: BTreeMap<Query, Vec<Object>>) -> Self {
        Self {
            answers: Mutex::new(answers),
            source: Source::Record,
        }
    }

    pub(crate) fn answers(&self) -> BTreeMap<Query, Vec<Object>> {
        self.answers
            .lock()
            .expect("nothing panics while it holds the answers")
            .clone()
    }

    pub(crate) fn ask(&self, query: Query) -> Result<Vec<Object>, Failure> {
        let mut answers = self.answers.lock().expect("nothing panics while it holds the answers");
        if let Some(answer) = answers.get(&query) {
            return Ok(answer.clone());
        }
        let Source::Caches { sources, members, live } = &self.source else {
            return Err(Failure::terminal(format!(
                "the record has no answer to {query:?}: it was not asked then"
            )));
        };
        let mut answer = match &query {
            Query::OwnedIn { kind, owner, cluster } => in_member(members, kind, owner, cluster)?,
            _ => answer(sources, &query)?,
        };
        for (target, object) in live.iter().filter(|(target, _)| target.kind == *query.kind()) {
            let place = answer.iter().position(|other| other.target() == *target);
            let takes = object
                .as_ref()
                .and_then(|object| query.takes(object))
                .unwrap_or(place.is_some());
            match (place, object) {
                (Some(place), Some(object)) if takes => answer[place] = object.clone(),
                (Some(place), _) => drop(answer.remove(place)),
                (None, Some(object)) if takes => answer.push(object.clone()),
                (None, _) => {}
            }
        }
        if !live.is_empty() {
            answer.sort_by(|a, b| (a.namespace(), a.name()).cmp(&(b.namespace(), b.name())));
        }
        answers.insert(query, answer.clone());
        Ok(answer)
    }
}

/// What is not known is neither none nor gone.
fn in_member(members: &Members, kind: &Kind, owner: &str, cluster: &str) -> Result<Vec<Object>, Failure> {
    let sources = members
        .sources(cluster)
        .ok_or_else(|| Failure::waiting(format!("the cluster {cluster} is not known here")))?;
    let collections = sources.collections(kind);
    if collections.is_empty() {
        let message = format!("the actor asked for objects of kind {kind} in a member, which it did not declare");
        return Err(Failure::terminal(message));
    }
    if !collections.iter().all(|collection| collection.progress().synced) {
        return Err(Failure::waiting(format!(
            "the cluster {cluster} has not been reached yet"
        )));
    }
    Ok(sources.owned(kind, owner))
}

fn answer(sources: &Sources, query: &Query) -> Result<Vec<Object>, Failure> {
    let kind = query.kind();
    if !sources.declares(kind) {
        let message = format!("the actor asked for objects of kind {kind}, which it did not declare in its watches");
        return Err(Failure::terminal(message));
    }
    Ok(match query {
        Query::Get { namespace, name, .. } => sources.get(kind, namespace, name).into_iter().collect(),
        Query::Owned { owner, .. } | Query::OwnedIn { owner, .. } => sources.owned(kind, owner),
        Query::Select {
            namespace, selector, ..
        } => {
            let selector = selector
                .parse()
                .map_err(|error| Failure::terminal(format!("{error}")))?;
            sources.select(kind, namespace.as_deref(), &selector)
        }
        Query::Indexed { index, value, .. } => sources.indexed(kind, index, value).ok_or_else(|| {
            Failure::terminal(format!(
                "no index of the name {index:?} was declared for objects of kind {kind}"
            ))
        })?,
    })
}

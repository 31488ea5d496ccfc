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
    scales::{Asking, Reference},
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
    /// How an object is scaled.
    Scale {
        /// Which one.
        of: Reference,
    },
}

impl Query {
    /// The kind that the caches are asked for.
    fn kind(&self) -> Option<&Kind> {
        match self {
            Self::Get { kind, .. }
            | Self::Owned { kind, .. }
            | Self::OwnedIn { kind, .. }
            | Self::Select { kind, .. }
            | Self::Indexed { kind, .. } => Some(kind),
            Self::Scale { .. } => None,
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
            Self::Indexed { .. } | Self::Scale { .. } => None,
        }
    }
}

/// What was read from the server itself because the cache had not seen it in time: an object, or that it is gone.
pub type Live = HashMap<Target, Option<Object>>;

/// What was asked, and the answers.
pub(crate) type Answers = BTreeMap<Query, Answer>;

/// What a question was answered with, or why it was not.
pub(crate) type Answer = Result<Vec<Object>, Failure>;

/// Answers, and where new ones come from.
pub(crate) struct Reads {
    answers: Mutex<Answers>,
    source: Source,
}

enum Source {
    Caches(Caches),
    /// A record: nothing but what was answered then.
    Record,
}

/// What there is to be asked.
pub(crate) struct Caches {
    pub(crate) sources: Arc<Sources>,
    pub(crate) members: Arc<Members>,
    pub(crate) live: Live,
    /// What was written in members and could not be read from there since.
    pub(crate) unknown: Vec<(Target, Failure)>,
    /// None if the actor did not declare that it asks for scales.
    pub(crate) scales: Option<Arc<Asking>>,
}

impl Reads {
    pub(crate) fn from_caches(caches: Caches) -> Self {
        Self {
            answers: Mutex::default(),
            source: Source::Caches(caches),
        }
    }

    pub(crate) fn from_record(answers: Answers) -> Self {
        Self {
            answers: Mutex::new(answers),
            source: Source::Record,
        }
    }

    pub(crate) fn answers(&self) -> Answers {
        self.answers
            .lock()
            .expect("nothing panics while it holds the answers")
            .clone()
    }

    pub(crate) fn ask(&self, query: Query) -> Answer {
        let mut answers = self.answers.lock().expect("nothing panics while it holds the answers");
        if let Some(answer) = answers.get(&query) {
            return answer.clone();
        }
        let Source::Caches(caches) = &self.source else {
            return Err(Failure::terminal(format!(
                "the record has no answer to {query:?}: it was not asked then"
            )));
        };
        let answer = caches.answer(&query);
        answers.insert(query, answer.clone());
        answer
    }
}

impl Caches {
    fn answer(&self, query: &Query) -> Answer {
        let mut answer = match query {
            Query::OwnedIn { kind, owner, cluster } => {
                let owned = self.members.owned(kind, owner, cluster)?;
                let is_there = |target: &Target| target.kind == *kind && target.cluster.as_deref() == Some(cluster);
                if let Some((_, why)) = self.unknown.iter().find(|(target, _)| is_there(target)) {
                    return Err(why.clone());
                }
                owned
            }
            Query::Scale { of } => {
                let scales = self.scales.as_ref().ok_or_else(|| {
                    let message =
                        format!("the actor asked for the scale of {of}, and did not declare that it sees scales");
                    Failure::terminal(message)
                })?;
                scales.ask(of)?
            }
            _ => answer(&self.sources, query)?,
        };
        let live = self.live.iter();
        for (target, object) in live.filter(|(target, _)| Some(&target.kind) == query.kind()) {
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
        if !self.live.is_empty() {
            answer.sort_by(|a, b| (a.namespace(), a.name()).cmp(&(b.namespace(), b.name())));
        }
        Ok(answer)
    }
}

fn answer(sources: &Sources, query: &Query) -> Answer {
    let Some(kind) = query.kind() else {
        return Ok(Vec::new());
    };
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
        Query::Scale { .. } => Vec::new(),
    })
}

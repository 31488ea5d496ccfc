use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::state::State;
use crate::{Key, ReadError, Record, Revision, Scope};

/// Which moment a read looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Now.
    Latest,
    /// Now, which must not be before this revision.
    NotOlderThan(Revision),
    /// Exactly this revision, which must be retained.
    Exactly(Revision),
}

/// A list to be made.
#[derive(Clone, Debug)]
pub struct List {
    /// Which objects.
    pub scope: Scope,
    /// As of when.
    pub at: At,
    /// Only objects behind this key: where the page before ended.
    pub after: Option<Key>,
    /// The most objects to return.
    pub limit: Option<NonZeroUsize>,
}

impl List {
    /// All of `scope` as it is now.
    pub fn all(scope: Scope) -> Self {
        Self {
            scope,
            at: At::Latest,
            after: None,
            limit: None,
        }
    }

    /// At most `limit` objects.
    #[must_use]
    pub fn limit(mut self, limit: NonZeroUsize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// As of another moment.
    #[must_use]
    pub fn at(mut self, at: At) -> Self {
        self.at = at;
        self
    }

    /// The page that follows one which ended with `after` at `revision`: it sees nothing that happened in between.
    #[must_use]
    pub fn continued(mut self, revision: Revision, after: Key) -> Self {
        self.at = At::Exactly(revision);
        self.after = Some(after);
        self
    }
}

/// A list, or a part of one.
#[derive(Clone, Debug)]
pub struct Page {
    /// In order of keys.
    pub records: Vec<Arc<Record>>,
    /// The moment that the list shows.
    pub revision: Revision,
    /// What lies behind the page; nothing when the list is complete.
    pub more: Option<More>,
}

/// How a list goes on behind a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct More {
    /// The last key that was looked at: the `after` of the next page.
    pub after: Key,
    /// How many objects follow, whether or not they pass the filter.
    pub remaining: NonZeroUsize,
}

impl Page {
    /// Reads a page while no filter applies.
    pub(crate) fn read(state: &State, list: &List) -> Result<Self, ReadError> {
        let revision = state.resolve(list.at)?;
        let mut range = state.range(&list.scope, list.after.as_ref(), revision);
        let limit = list.limit.map_or(usize::MAX, NonZeroUsize::get);
        let records: Vec<Arc<Record>> = range.by_ref().take(limit).cloned().collect();
        let remaining = if records.len() == limit { range.count() } else { 0 };
        let more = More::behind(records.last(), remaining);
        Ok(Self {
            records,
            revision,
            more,
        })
    }

    /// Cuts down a page of everything to what passes the filter, up to the limit.
    pub(crate) fn filtered(self, limit: Option<NonZeroUsize>, mut filter: impl FnMut(&Record) -> bool) -> Self {
        let limit = limit.map_or(usize::MAX, NonZeroUsize::get);
        let mut records = Vec::new();
        let mut more = None;
        let total = self.records.len();
        for (index, record) in self.records.into_iter().enumerate() {
            if !filter(&record) {
                continue;
            }
            records.push(record);
            if records.len() == limit {
                more = More::behind(records.last(), total - index - 1);
                break;
            }
        }
        Self {
            records,
            revision: self.revision,
            more,
        }
    }
}

impl More {
    fn behind(last: Option<&Arc<Record>>, remaining: usize) -> Option<Self> {
        Some(Self {
            after: last?.key().clone(),
            remaining: NonZeroUsize::new(remaining)?,
        })
    }
}

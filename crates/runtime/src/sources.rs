//! The caches that one actor declared, asked by kind.

use std::{collections::BTreeMap, sync::Arc};

use moorline_machinery::selector::LabelSelector;

use crate::{
    cache::Collection,
    kind::Kind,
    object::{Object, Target},
};

/// The collections behind each kind that an actor declared. A kind has several when namespaces are watched one by one.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    kinds: BTreeMap<Kind, Vec<Arc<Collection>>>,
}

impl Sources {
    pub(crate) fn add(&mut self, kind: Kind, collection: Arc<Collection>) {
        self.kinds.entry(kind).or_default().push(collection);
    }

    /// The collections of a kind; none when it was not declared.
    pub fn collections(&self, kind: &Kind) -> &[Arc<Collection>] {
        self.kinds.get(kind).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.kinds.values().flatten()
    }

    pub(crate) fn declares(&self, kind: &Kind) -> bool {
        self.kinds.contains_key(kind)
    }

    /// The object of a name.
    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Object> {
        self.collections(kind)
            .iter()
            .find_map(|collection| collection.get(namespace, name))
    }

    /// The object that a target names.
    pub fn find(&self, target: &Target) -> Option<Object> {
        self.get(&target.kind, &target.namespace, &target.name)
    }

    /// The objects that belong to an owner, sorted by name.
    pub fn owned(&self, kind: &Kind, owner: &str) -> Vec<Object> {
        self.gather(kind, |table, found| found.extend(table.owned_by(owner).cloned()))
    }

    /// The objects that a selector selects, sorted by name.
    pub fn select(&self, kind: &Kind, namespace: Option<&str>, selector: &LabelSelector) -> Vec<Object> {
        self.gather(kind, |table, found| {
            found.extend(table.select(namespace, selector).into_iter().cloned());
        })
    }

    /// All objects of a kind, or those in a namespace, sorted by name.
    pub fn list(&self, kind: &Kind, namespace: Option<&str>) -> Vec<Object> {
        self.gather(kind, |table, found| match namespace {
            Some(namespace) => found.extend(table.in_namespace(namespace).cloned()),
            None => found.extend(table.iter().cloned()),
        })
    }

    /// The objects that a declared index finds under a value, sorted by name; `None` when nobody declared it.
    pub fn indexed(&self, kind: &Kind, index: &str, value: &str) -> Option<Vec<Object>> {
        let mut declared = true;
        let found = self.gather(kind, |table, found| match table.indexed(index, value) {
            Some(objects) => found.extend(objects.into_iter().cloned()),
            None => declared = false,
        });
        declared.then_some(found)
    }

    pub(crate) fn ownership_changed(&self, kind: &Kind, owner: &str) -> u64 {
        let versions = self
            .collections(kind)
            .iter()
            .map(|collection| collection.read().ownership_changed(owner));
        versions.max().unwrap_or(0)
    }

    fn gather(&self, kind: &Kind, mut ask: impl FnMut(&crate::cache::Table, &mut Vec<Object>)) -> Vec<Object> {
        let mut found = Vec::new();
        for collection in self.collections(kind) {
            ask(&collection.read(), &mut found);
        }
        found.sort_unstable_by(|a, b| (a.namespace(), a.name()).cmp(&(b.namespace(), b.name())));
        found
    }
}

//! The index: objects of one watch, found by name, owner, label and whatever a controller declared.
//!
//! Synchronous and without I/O: the watch calls `put`, `remove` and `settle`, everybody else asks.

use std::{collections::HashMap, fmt, hash::BuildHasher, sync::Arc};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use moorline_machinery::selector::LabelSelector;
use slab::Slab;

use crate::object::{Key, Object};

/// Under which values a declared index finds an object.
pub type IndexFunction = Arc<dyn Fn(&Object) -> Vec<String> + Send + Sync>;

/// The label that stands for an owner where a reference cannot: the owner lives in another cluster.
pub const OWNER_LABEL: &str = "moorline.io/owner-uid";

/// The places of some objects, sorted.
type Places = Vec<u32>;

/// Objects of one kind and selection.
#[derive(Default)]
pub(crate) struct Table {
    objects: Slab<Object>,
    /// Places by the hash of namespace and name, so that names are held once.
    by_key: HashTable<u32>,
    hasher: FixedState,
    by_namespace: HashMap<Arc<str>, Places>,
    by_owner: HashMap<Arc<str>, Owned>,
    by_label: HashMap<(Arc<str>, Arc<str>), Places>,
    declared: Vec<Declared>,
    /// The highest resource version that the watch has told of.
    seen: u64,
}

/// What an owner owns.
#[derive(Default)]
struct Owned {
    places: Places,
    /// The version at which something was last added or taken away. It outlives the objects, so that names that are
    /// made from it do not come back after a deletion.
    changed: u64,
    /// Whether the owner itself is gone, so that nobody asks any more.
    is_gone: bool,
}

struct Declared {
    name: Arc<str>,
    values: IndexFunction,
    places: HashMap<String, Places>,
}

/// What `put` and `remove` did.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) old: Option<Object>,
    pub(crate) new: Option<Object>,
}

impl Table {
    /// Takes an object in. `None` when it is not newer than what is there.
    ///
    /// It says nothing of what else was seen: a list is not in the order of versions.
    pub(crate) fn put(&mut self, object: Object) -> Option<Change> {
        if let Some(place) = self.place(object.namespace(), object.name()) {
            let old = &self.objects[place as usize];
            if old.uid() == object.uid() && old.version() >= object.version() {
                return None;
            }
            let old = old.clone();
            // A replaced object of another UID was deleted in between.
            let identity_changed = old.uid() != object.uid();
            self.unlink(place, &old, identity_changed.then_some(object.version()));
            self.objects[place as usize] = object.clone();
            self.link(place, &object, &old);
            return Some(Change {
                old: Some(old),
                new: Some(object),
            });
        }
        let place = u32::try_from(self.objects.insert(object.clone())).expect("a cache holds fewer than 2^32 objects");
        let (objects, hasher) = (&self.objects, &self.hasher);
        let hash = hash_of(hasher, object.namespace(), object.name());
        self.by_key.insert_unique(hash, place, |place| {
            let object = &objects[*place as usize];
            hash_of(hasher, object.namespace(), object.name())
        });
        self.link_new(place, &object);
        Some(Change {
            old: None,
            new: Some(object),
        })
    }

    /// Takes an object out that was deleted at `version`. One that has come back since stays.
    pub(crate) fn remove(&mut self, namespace: &str, name: &str, uid: &str, version: u64) -> Option<Change> {
        self.seen = self.seen.max(version);
        let place = self.place(namespace, name)?;
        let object = self.objects[place as usize].clone();
        if object.uid() != uid {
            return None;
        }
        self.take(place, &object, version);
        Some(Change {
            old: Some(object),
            new: None,
        })
    }

    /// A list is complete as of `version`: what was there before and is not in it is gone.
    pub(crate) fn settle(&mut self, listed: &Listed, version: u64) -> Vec<Change> {
        let gone: Vec<u32> = self
            .objects
            .iter()
            .map(|(place, _)| u32::try_from(place).expect("places are 32 bits wide"))
            .filter(|place| !listed.contains(*place))
            .collect();
        let changes = gone
            .into_iter()
            .map(|place| {
                let object = self.objects[place as usize].clone();
                self.take(place, &object, version);
                Change {
                    old: Some(object),
                    new: None,
                }
            })
            .collect();
        self.advance(version);
        changes
    }

    /// The watch has told of everything up to `version`.
    pub(crate) fn advance(&mut self, version: u64) {
        self.seen = self.seen.max(version);
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&Object> {
        self.place(namespace, name).map(|place| &self.objects[place as usize])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter().map(|(_, object)| object)
    }

    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Object> {
        self.at(self.by_namespace.get(namespace))
    }

    pub(crate) fn owned_by(&self, uid: &str) -> impl Iterator<Item = &Object> {
        self.at(self.by_owner.get(uid).map(|owned| &owned.places))
    }

    /// The version at which what `uid` owns last became more or less.
    pub(crate) fn ownership_changed(&self, uid: &str) -> u64 {
        self.by_owner.get(uid).map_or(0, |owned| owned.changed)
    }

    /// Forgets an owner that is gone, at the latest with the last that it owned.
    pub(crate) fn forget_owner(&mut self, uid: &str) {
        if let Some(owned) = self.by_owner.get_mut(uid) {
            owned.is_gone = true;
            if owned.places.is_empty() {
                self.by_owner.remove(uid);
            }
        }
    }

    /// The objects that a selector selects, by the most telling of the labels that it names.
    pub(crate) fn select<'t>(&'t self, namespace: Option<&'t str>, selector: &'t LabelSelector) -> Vec<&'t Object> {
        let mut candidates = namespace.map(|namespace| self.by_namespace.get(namespace));
        for requirement in selector.requirements() {
            let Some(value) = selector.exact(requirement.key()) else {
                continue;
            };
            let pair = (crate::intern::intern(requirement.key()), crate::intern::intern(value));
            let places = self.by_label.get(&pair);
            let fewer = candidates.is_none_or(|others| places.map_or(0, Vec::len) < others.map_or(0, Vec::len));
            if fewer {
                candidates = Some(places);
            }
        }
        let fits = |object: &&Object| {
            namespace.is_none_or(|namespace| object.namespace() == namespace) && selector.matches(*object)
        };
        match candidates {
            Some(places) => self.at(places).filter(fits).collect(),
            None => self.iter().filter(fits).collect(),
        }
    }

    /// Declares an index. The same name means the same function.
    pub(crate) fn declare(&mut self, name: &str, values: IndexFunction) {
        if self.declared.iter().any(|declared| *declared.name == *name) {
            return;
        }
        let mut declared = Declared {
            name: Arc::from(name),
            values,
            places: HashMap::new(),
        };
        for (place, object) in &self.objects {
            declared.link(u32::try_from(place).expect("places are 32 bits wide"), object);
        }
        self.declared.push(declared);
    }

    /// The objects that a declared index finds under a value; `None` when nobody declared it.
    pub(crate) fn indexed(&self, index: &str, value: &str) -> Option<Vec<&Object>> {
        let declared = self.declared.iter().find(|declared| *declared.name == *index)?;
        Some(self.at(declared.places.get(value)).collect())
    }

    fn at<'t>(&'t self, places: Option<&'t Places>) -> impl Iterator<Item = &'t Object> {
        places.into_iter().flatten().map(|place| &self.objects[*place as usize])
    }

    fn place(&self, namespace: &str, name: &str) -> Option<u32> {
        let hash = hash_of(&self.hasher, namespace, name);
        let found = self.by_key.find(hash, |place| {
            let object = &self.objects[*place as usize];
            object.name() == name && object.namespace() == namespace
        });
        found.copied()
    }

    fn take(&mut self, place: u32, object: &Object, version: u64) {
        self.unlink(place, object, Some(version));
        remove_from(&mut self.by_namespace, &object.meta().namespace, place);
        let hash = hash_of(&self.hasher, object.namespace(), object.name());
        if let Ok(entry) = self.by_key.find_entry(hash, |other| *other == place) {
            entry.remove();
        }
        self.objects.remove(place as usize);
    }

    fn link_new(&mut self, place: u32, object: &Object) {
        insert(
            self.by_namespace
                .entry(Arc::clone(&object.meta().namespace))
                .or_default(),
            place,
        );
        for uid in owner_uids(object) {
            let owned = self.by_owner.entry(uid).or_default();
            insert(&mut owned.places, place);
            owned.changed = owned.changed.max(object.version());
        }
        self.link_values(place, object);
    }

    fn link(&mut self, place: u32, object: &Object, old: &Object) {
        for uid in owner_uids(object) {
            let newly = object.uid() != old.uid() || !owner_uids(old).any(|before| before == uid);
            let owned = self.by_owner.entry(uid).or_default();
            insert(&mut owned.places, place);
            if newly {
                owned.changed = owned.changed.max(object.version());
            }
        }
        self.link_values(place, object);
    }

    fn link_values(&mut self, place: u32, object: &Object) {
        for pair in &object.meta().labels {
            insert(self.by_label.entry(pair.clone()).or_default(), place);
        }
        for declared in &mut self.declared {
            declared.link(place, object);
        }
    }

    /// Takes a place out of the indexes; `gone` is the version at which the object itself went away.
    fn unlink(&mut self, place: u32, object: &Object, gone: Option<u64>) {
        for uid in owner_uids(object) {
            if let Some(owned) = self.by_owner.get_mut(&uid) {
                owned.places.retain(|other| *other != place);
                owned.changed = owned.changed.max(gone.unwrap_or(0));
                if owned.is_gone && owned.places.is_empty() {
                    self.by_owner.remove(&uid);
                }
            }
        }
        for pair in &object.meta().labels {
            remove_from(&mut self.by_label, pair, place);
        }
        for declared in &mut self.declared {
            for value in (declared.values)(object) {
                remove_from(&mut declared.places, &value, place);
            }
        }
    }
}

impl Declared {
    fn link(&mut self, place: u32, object: &Object) {
        for value in (self.values)(object) {
            insert(self.places.entry(value).or_default(), place);
        }
    }
}

/// Whom an object belongs to: its owners, and the one that its label names across clusters.
fn owner_uids(object: &Object) -> impl Iterator<Item = Arc<str>> {
    let labelled = object.meta().labels.iter().filter(|(key, _)| &**key == OWNER_LABEL);
    let references = object.owners().iter().map(|owner| Arc::clone(&owner.uid));
    references.chain(labelled.map(|(_, uid)| Arc::clone(uid)))
}

fn hash_of(hasher: &FixedState, namespace: &str, name: &str) -> u64 {
    hasher.hash_one((namespace, name))
}

fn insert(places: &mut Places, place: u32) {
    if let Err(position) = places.binary_search(&place) {
        places.insert(position, place);
    }
}

fn remove_from<K: std::hash::Hash + Eq>(map: &mut HashMap<K, Places>, key: &K, place: u32) {
    if let Some(places) = map.get_mut(key) {
        if let Ok(position) = places.binary_search(&place) {
            places.remove(position);
        }
        if places.is_empty() {
            map.remove(key);
        }
    }
}

/// Which places a list has confirmed.
#[derive(Default)]
pub(crate) struct Listed(Vec<u64>);

impl Listed {
    /// Notes that an object of this key is in the list.
    pub(crate) fn confirm(&mut self, table: &Table, key: &Key) {
        if let Some(place) = table.place(&key.namespace, &key.name) {
            let word = place as usize / 64;
            if self.0.len() <= word {
                self.0.resize(word + 1, 0);
            }
            self.0[word] |= 1 << (place % 64);
        }
    }

    fn contains(&self, place: u32) -> bool {
        self.0
            .get(place as usize / 64)
            .is_some_and(|word| word & (1 << (place % 64)) != 0)
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("objects", &self.len())
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::kind::Kind;

    fn pod(name: &str, uid: &str, version: u64, app: &str, owner: Option<&str>) -> Object {
        let owners: Vec<_> = owner
            .iter()
            .map(|uid| json!({ "apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": true }))
            .collect();
        let value = json!({ "metadata": { "name": name, "namespace": "n", "uid": uid, "ownerReferences": owners,
            "resourceVersion": version.to_string(), "labels": { "app": app } } });
        Object::from_value(&Kind::of::<Pod>(), &value).unwrap()
    }

    fn names(objects: impl IntoIterator<Item = impl std::ops::Deref<Target = Object>>) -> Vec<String> {
        let mut names: Vec<_> = objects.into_iter().map(|object| object.name().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_owner_that_went_first_is_forgotten_with_the_last_that_it_owned() {
        let mut table = Table::default();
        table.put(pod("a", "a", 1, "web", Some("o"))).unwrap();
        table.put(pod("b", "b", 2, "web", Some("stays"))).unwrap();
        table.forget_owner("o");
        assert_eq!(names(table.owned_by("o")), ["a"]);
        table.remove("n", "a", "a", 3).unwrap();
        table.remove("n", "b", "b", 4).unwrap();
        assert_eq!(table.ownership_changed("stays"), 4, "names are made from it");
        assert_eq!(table.by_owner.len(), 1);
    }

    #[test]
    fn a_list_says_how_much_was_seen_when_it_is_complete() {
        let mut table = Table::default();
        let mut listed = Listed::default();
        for (name, version) in [("a", 160), ("z", 150)] {
            let object = pod(name, name, version, "web", None);
            table.put(object).unwrap();
            listed.confirm(&table, &Key::new("n", name));
            assert_eq!(table.seen(), 0, "what has a lower version may still come");
        }
        table.settle(&listed, 170);
        assert_eq!(table.seen(), 170);
    }

    #[test]
    fn an_object_is_found_by_name_owner_label_and_declared_index() {
        let mut table = Table::default();
        table.declare("initial", Arc::new(|object| vec![object.name()[..1].to_owned()]));
        for (name, app, owner) in [("a1", "web", Some("o")), ("a2", "db", None), ("b1", "web", Some("o"))] {
            table.put(pod(name, name, 1, app, owner)).unwrap();
        }
        assert_eq!(table.get("n", "a2").unwrap().label("app"), Some("db"));
        assert_eq!(names(table.owned_by("o")), ["a1", "b1"]);
        assert_eq!(
            names(table.select(Some("n"), &"app=web".parse().unwrap())),
            ["a1", "b1"]
        );
        assert_eq!(names(table.select(None, &"app!=web".parse().unwrap())), ["a2"]);
        assert_eq!(names(table.indexed("initial", "a").unwrap()), ["a1", "a2"]);
        assert!(table.indexed("unknown", "a").is_none());
        table.put(pod("a1", "a1", 2, "db", None)).unwrap();
        assert_eq!(names(table.owned_by("o")), ["b1"]);
        assert_eq!(names(table.select(Some("n"), &"app=web".parse().unwrap())), ["b1"]);
    }

    #[test]
    fn an_older_or_equal_version_changes_nothing() {
        let mut table = Table::default();
        table.put(pod("a", "u", 5, "new", None)).unwrap();
        assert!(table.put(pod("a", "u", 4, "old", None)).is_none());
        assert!(table.put(pod("a", "u", 5, "old", None)).is_none());
        assert_eq!(table.get("n", "a").unwrap().label("app"), Some("new"));
    }

    #[test]
    fn a_deletion_of_an_earlier_object_of_the_name_leaves_the_later_one() {
        let mut table = Table::default();
        table.put(pod("a", "first", 1, "x", None)).unwrap();
        table.put(pod("a", "second", 3, "x", None)).unwrap();
        assert!(table.remove("n", "a", "first", 2).is_none());
        assert!(table.remove("n", "a", "second", 4).is_some());
        assert_eq!(table.len(), 0);
        assert!(table.by_namespace.is_empty() && table.by_label.is_empty());
    }

    #[test]
    fn a_list_takes_away_what_it_does_not_hold_and_keeps_the_very_objects_that_did_not_change() {
        let mut table = Table::default();
        let kept = pod("a", "a", 1, "x", None);
        table.put(kept.clone());
        table.put(pod("b", "b", 2, "x", None));
        let mut listed = Listed::default();
        for object in [pod("a", "a", 1, "x", None), pod("c", "c", 3, "x", None)] {
            let key = Key::of(&object);
            table.put(object);
            listed.confirm(&table, &key);
        }
        let changes = table.settle(&listed, 9);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].old.as_ref().unwrap().name(), "b");
        assert!(table.get("n", "a").unwrap().is_same(&kept));
        assert_eq!(table.seen(), 9);
    }

    #[test]
    fn the_version_of_an_ownership_changes_when_something_comes_or_goes_and_only_then() {
        let mut table = Table::default();
        table.put(pod("a", "a", 1, "x", Some("o")));
        assert_eq!(table.ownership_changed("o"), 1);
        table.put(pod("a", "a", 2, "y", Some("o")));
        assert_eq!(table.ownership_changed("o"), 1);
        table.remove("n", "a", "a", 3);
        assert_eq!(
            table.ownership_changed("o"),
            3,
            "it is remembered though nothing is owned now"
        );
        table.forget_owner("o");
        assert_eq!(table.ownership_changed("o"), 0);
    }
}

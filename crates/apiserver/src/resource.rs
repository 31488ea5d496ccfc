//! The resources that are served, built-in and custom alike: one generic handler works from what is written here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwap;
use moorline_machinery::{
    decode::StrictProblem,
    gvk::{GroupKind, GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource},
    schema::Schema,
    status::ApiError,
    table::Printer,
};
use moorline_store as store;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{builtin::conform::Purpose, custom::PrinterColumn, path::Verb, strategy::Strategy, wire::TypePrefix};

/// One version of a resource, as it is served.
pub(crate) struct ResourceType {
    /// Its place in the API.
    pub(crate) gvr: GroupVersionResource,
    /// What its objects call themselves.
    pub(crate) gvk: GroupVersionKind,
    /// What a list of them calls itself.
    pub(crate) list_kind: Arc<str>,
    /// The word for one of them.
    pub(crate) singular: Arc<str>,
    /// Abbreviations.
    pub(crate) short_names: Vec<Arc<str>>,
    /// Groups of kinds, such as `all`.
    pub(crate) categories: Vec<Arc<str>>,
    /// Whether its objects live in namespaces.
    pub(crate) namespaced: bool,
    /// What can be done.
    pub(crate) verbs: Vec<Verb>,
    /// Parts of its objects that are served on their own.
    pub(crate) subresources: Vec<Subresource>,
    /// Where its objects are kept, the same for all versions.
    pub(crate) storage: store::Resource,
    /// What is stored lacks the type; this puts it in front.
    pub(crate) prefix: TypePrefix,
    /// What is particular to the kind.
    pub(crate) strategy: Arc<dyn Strategy>,
    /// What its objects may look like; made when first needed.
    pub(crate) schema: LazySchema,
}

/// A part of an object with an address of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subresource {
    /// Such as `status`.
    pub(crate) name: Arc<str>,
    /// What travels there.
    pub(crate) gvk: GroupVersionKind,
    /// What can be done.
    pub(crate) verbs: Vec<Verb>,
}

/// A schema that is made when first needed: most servers never see most kinds.
pub(crate) struct LazySchema {
    made: OnceLock<Schema>,
    make: Box<dyn Fn() -> Schema + Send + Sync>,
    empty: OnceLock<Value>,
    printer: OnceLock<Printer>,
}

impl LazySchema {
    /// A schema to be made by `make`.
    pub(crate) fn new(make: impl Fn() -> Schema + Send + Sync + 'static) -> Self {
        Self {
            made: OnceLock::new(),
            make: Box::new(make),
            empty: OnceLock::new(),
            printer: OnceLock::new(),
        }
    }

    /// The schema.
    pub(crate) fn get(&self) -> &Schema {
        self.made.get_or_init(|| (self.make)())
    }
}

impl ResourceType {
    /// Group and resource, as errors name them.
    pub(crate) fn group_resource(&self) -> GroupResource {
        self.gvr.group_resource()
    }

    /// Group and kind, as some errors name them.
    pub(crate) fn group_kind(&self) -> GroupKind {
        self.gvk.group_kind()
    }

    /// The subresource of that name.
    pub(crate) fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| &*subresource.name == name)
    }

    /// Where an object is kept.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> store::Key {
        store::Key::new(&self.storage, if self.namespaced { namespace } else { "" }, name)
    }

    /// Reads an object as its type wants it, and takes out the fields that nobody knows; their paths.
    pub(crate) fn conform(&self, object: &mut Value) -> Result<Vec<String>, ApiError> {
        if let Some(fields) = object.as_object_mut() {
            fields.insert("apiVersion".to_owned(), self.gvk.api_version().into());
            fields.insert("kind".to_owned(), (*self.gvk.kind).into());
        }
        let unknown = self.schema.get().prune(object);
        self.strategy
            .conform(object, Purpose::Read)
            .map_err(ApiError::bad_request)?;
        Ok(unknown)
    }

    /// The same, with the fields as those who want to hear of them are told: those of the metadata first.
    pub(crate) fn unknown_fields(&self, object: &mut Value) -> Result<Vec<StrictProblem>, ApiError> {
        let mut unknown = self.conform(object)?;
        unknown.sort_by_key(|path| !path.starts_with("metadata."));
        Ok(unknown.into_iter().map(StrictProblem::UnknownField).collect())
    }

    /// What an object has before anybody writes to it; nobody comes to own that.
    pub(crate) fn empty(&self) -> &Value {
        self.schema.empty.get_or_init(|| {
            let mut object = json!({ "apiVersion": self.gvk.api_version(), "kind": &*self.gvk.kind });
            // An empty object breaks no rule of a type; rules that ask for content come later.
            let _ = self.strategy.conform(&mut object, Purpose::Read);
            object
        })
    }

    /// What a real API server calls the type of a kind, as some of its answers show.
    pub(crate) fn go_type(&self, kind: &str) -> String {
        if self.strategy.as_custom().is_some() {
            let list = if *kind == *self.list_kind { "List" } else { "" };
            return format!("unstructured.Unstructured{list}");
        }
        let package = match &*self.gvr.group {
            "" | "events.k8s.io" => "core",
            group => group.split('.').next().unwrap_or_default(),
        };
        format!("{package}.{kind}")
    }

    /// What a table of its objects shows.
    pub(crate) fn printer(&self) -> &Printer {
        self.schema
            .printer
            .get_or_init(|| match self.strategy.printer_columns() {
                None => Printer::builtin(&self.gvk.api_version(), &self.gvk.kind),
                Some(columns) => {
                    let columns: Vec<Value> = columns.iter().map(PrinterColumn::to_value).collect();
                    Printer::custom(&columns).unwrap_or_else(|_| Printer::builtin("", ""))
                }
            })
    }

    /// Fills in what a client may leave out.
    pub(crate) fn default(&self, object: &mut Value) {
        if self.strategy.as_custom().is_some() {
            self.schema.get().apply_defaults(object);
        } else {
            self.schema.get().apply_defaults_around_nulls(object);
        }
        self.strategy.default(object);
    }

    /// Whether the status is written apart from the rest.
    pub(crate) fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}

/// Everything that is served now. Readers take a snapshot; a change of the custom resources swaps it.
pub(crate) struct Registry {
    current: ArcSwap<Served>,
    /// The epoch of what is served, for those who want to hear of changes.
    epoch: watch::Sender<u64>,
}

/// A version of a group, and its resources by name.
type Version = (Arc<str>, BTreeMap<Arc<str>, Arc<ResourceType>>);

/// A snapshot of the registry.
#[derive(Default)]
pub(crate) struct Served {
    resources: HashMap<GroupVersionResource, Arc<ResourceType>>,
    /// By group, the versions in order of preference.
    groups: BTreeMap<Arc<str>, Vec<Version>>,
    /// Grows with every change.
    pub(crate) epoch: u64,
}

impl Registry {
    /// A registry of these resources.
    pub(crate) fn new(resources: impl IntoIterator<Item = Arc<ResourceType>>) -> Self {
        Self {
            current: ArcSwap::from_pointee(Served::of(resources, 1)),
            epoch: watch::Sender::new(1),
        }
    }

    /// What is served now.
    pub(crate) fn served(&self) -> Arc<Served> {
        self.current.load_full()
    }

    /// The resource of a group, version and name.
    pub(crate) fn find(&self, gvr: &GroupVersionResource) -> Option<Arc<ResourceType>> {
        self.current.load().resources.get(gvr).cloned()
    }

    /// Takes out what `remove` picks and puts `add` in, at once.
    pub(crate) fn change(&self, remove: impl Fn(&ResourceType) -> bool, add: &[Arc<ResourceType>]) {
        self.current.rcu(|served| {
            let kept = served.resources.values().filter(|resource| !remove(resource)).cloned();
            Served::of(kept.chain(add.iter().cloned()), served.epoch + 1)
        });
        self.epoch.send_replace(self.current.load().epoch);
    }

    /// Tells of changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }
}

impl Served {
    fn of(resources: impl IntoIterator<Item = Arc<ResourceType>>, epoch: u64) -> Self {
        let mut served = Self {
            epoch,
            ..Self::default()
        };
        for resource in resources {
            let versions = served.groups.entry(resource.gvr.group.clone()).or_default();
            let known = versions
                .iter()
                .position(|(version, _)| *version == resource.gvr.version);
            let at = known.unwrap_or_else(|| {
                versions.push((resource.gvr.version.clone(), BTreeMap::new()));
                versions.len() - 1
            });
            versions[at]
                .1
                .insert(resource.gvr.resource.clone(), Arc::clone(&resource));
            served.resources.insert(resource.gvr.clone(), resource);
        }
        for versions in served.groups.values_mut() {
            versions.sort_by_key(|(version, _)| std::cmp::Reverse(preference(version)));
        }
        served
    }

    /// Groups in the order of their names, the core one first, with their versions, the preferred one first.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&str, Vec<GroupVersion>)> {
        self.groups.iter().map(|(group, versions)| {
            let versions = versions
                .iter()
                .map(|(version, _)| GroupVersion::new(group.clone(), version.clone()));
            (&**group, versions.collect())
        })
    }

    /// Whether any version of a group is served.
    pub(crate) fn has_group(&self, group: &str) -> bool {
        self.groups.contains_key(group)
    }

    /// The resources of a version, in the order of their names; nothing if the version is not served.
    pub(crate) fn resources(&self, version: &GroupVersion) -> Option<impl Iterator<Item = &Arc<ResourceType>>> {
        let versions = self.groups.get(&version.group)?;
        versions
            .iter()
            .find(|(name, _)| *name == version.version)
            .map(|(_, resources)| resources.values())
    }

    /// Every served version of every resource.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ResourceType>> {
        self.groups
            .values()
            .flatten()
            .flat_map(|(_, resources)| resources.values())
    }

    /// Each stored resource once, in its preferred version.
    pub(crate) fn preferred(&self) -> impl Iterator<Item = &Arc<ResourceType>> {
        let mut seen = std::collections::HashSet::new();
        self.all().filter(move |resource| seen.insert(resource.storage.clone()))
    }

    /// The resource that serves a kind.
    pub(crate) fn of_kind(&self, gvk: &GroupVersionKind) -> Option<&Arc<ResourceType>> {
        let version = GroupVersion::new(gvk.group.clone(), gvk.version.clone());
        self.resources(&version)?.find(|resource| resource.gvk == *gvk)
    }
}

/// Kubernetes' order of versions: stable before beta before alpha, newer before older, all others last by name.
pub(crate) fn preference(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let name = std::cmp::Reverse(version.to_owned());
    let parsed = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major: u64 = rest[..digits].parse().ok()?;
        let (stage, minor) = match &rest[digits..] {
            "" => (3, 0),
            tail => match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
                (Some(minor), _) => (2, minor.parse().ok()?),
                (_, Some(minor)) => (1, minor.parse().ok()?),
                _ => return None,
            },
        };
        Some((stage, major, minor))
    };
    parsed().map_or((0, 0, 0, name.clone()), |(stage, major, minor)| {
        (stage, major, minor, name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_preferred_as_kubernetes_does() {
        let mut versions = [
            "foo1",
            "v1",
            "v10",
            "v11alpha2",
            "v11beta2",
            "v12alpha1",
            "v2",
            "v3beta1",
            "foo10",
        ];
        versions.sort_by_key(|version| std::cmp::Reverse(preference(version)));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v11beta2",
                "v3beta1",
                "v12alpha1",
                "v11alpha2",
                "foo1",
                "foo10"
            ]
        );
    }
}

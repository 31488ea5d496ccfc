//! What an actor sees: one object and, of all that it declared, whatever it asks for.

mod names;
mod reads;
mod steps;

use std::{ops::Deref, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1::Scale;
use moorline_machinery::selector::LabelSelector;
use moorline_plan::Failure;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use self::{
    names::Entropy,
    reads::{Live, Query},
};
pub(crate) use self::{
    reads::{Answers, Caches, Reads},
    steps::{AWAIT, UNMET},
};
use crate::{
    dependency::{Dependency, Met},
    kind::{Kind, Scope},
    object::{Object, Target},
    scales::Reference,
};

/// What is observed for one reconcile, and what else is given to it: the time, an id, names, randomness.
///
/// It reads the caches when it is asked, and remembers every answer: asking twice gives the same, and what was asked
/// is what the recorder keeps. So a plan is a function of its snapshot.
pub struct Snapshot<K> {
    object: Object,
    typed: Arc<K>,
    given: Given,
    reads: Arc<Reads>,
    dependencies: Arc<[Dependency]>,
}

/// What comes with a snapshot that is not in the caches.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Given {
    /// The time.
    pub now: Timestamp,
    /// The reconcile's id, which is in its logs and spans too.
    pub id: String,
    /// The version at which what the object owns last became more or less: names are made from it.
    pub epoch: u64,
    /// Under whose name fields are owned.
    pub field_owner: Arc<str>,
    /// The actor's name.
    pub actor: Arc<str>,
    /// The member clusters.
    #[serde(default)]
    pub clusters: Vec<String>,
    /// The members that do not come back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forgotten: Vec<String>,
    /// What secrets are made from. It is never written anywhere.
    #[serde(skip)]
    pub entropy: Entropy,
}

/// An object as it was seen: typed, and as the API has it.
pub struct Seen<T> {
    object: Object,
    typed: Arc<T>,
}

impl<K: DeserializeOwned + Send + Sync + 'static> Snapshot<K> {
    pub(crate) fn new(
        object: Object,
        given: Given,
        reads: Arc<Reads>,
        dependencies: Arc<[Dependency]>,
    ) -> Result<Self, Failure> {
        let typed = object.decode().map_err(|error| Failure::terminal(error.to_string()))?;
        Ok(Self {
            object,
            typed,
            given,
            reads,
            dependencies,
        })
    }
}

impl<K> Snapshot<K> {
    /// The object that the plan is for.
    pub fn object(&self) -> &K {
        &self.typed
    }

    /// The same as the API has it.
    pub fn raw(&self) -> &Object {
        &self.object
    }

    /// Which object the plan is for.
    pub fn target(&self) -> Target {
        self.object.target()
    }

    /// The time, which stands still.
    pub fn now(&self) -> Timestamp {
        self.given.now
    }

    /// The reconcile's id.
    pub fn id(&self) -> &str {
        &self.given.id
    }

    /// The objects of this type that the object owns, sorted by name.
    pub fn owned<T: Watchable>(&self) -> Result<Vec<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        seen(self.owned_objects(&Kind::of::<T>())?)
    }

    /// The objects of a kind that the object owns, sorted by name.
    pub fn owned_objects(&self, kind: &Kind) -> Result<Vec<Object>, Failure> {
        self.reads.ask(Query::Owned {
            kind: kind.clone(),
            owner: self.object.uid().into(),
        })
    }

    /// The objects of this type that another object owns, sorted by name.
    pub fn owned_by<T: Watchable>(&self, owner: &Object) -> Result<Vec<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        self.owned_by_uid(owner.uid())
    }

    /// The same, where the owner is only known by its uid.
    pub fn owned_by_uid<T: Watchable>(&self, owner: &str) -> Result<Vec<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        seen(self.reads.ask(Query::Owned {
            kind: Kind::of::<T>(),
            owner: owner.to_owned(),
        })?)
    }

    /// The member clusters, sorted by name.
    pub fn clusters(&self) -> &[String] {
        &self.given.clusters
    }

    /// The objects of this type that belong to the object in a member cluster, sorted by name. Waits if the member has
    /// not been reached or does not answer: what is not known is not gone.
    pub fn owned_in<T: Watchable>(&self, cluster: &str) -> Result<Vec<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        seen(self.owned_objects_in(&Kind::of::<T>(), cluster)?)
    }

    pub(crate) fn owned_objects_in(&self, kind: &Kind, cluster: &str) -> Result<Vec<Object>, Failure> {
        let (kind, owner) = (kind.clone(), self.object.uid().into());
        self.reads.ask(Query::OwnedIn {
            kind,
            owner,
            cluster: cluster.to_owned(),
        })
    }

    /// The object of this type and name; in the namespace of the object that the plan is for, if it is in one.
    pub fn get<T: Watchable>(&self, name: &str) -> Result<Option<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        self.get_in(self.object.namespace(), name)
    }

    /// The object of this type and name in a namespace.
    pub fn get_in<T: Watchable>(&self, namespace: &str, name: &str) -> Result<Option<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        Ok(seen(
            self.get_object(&Kind::of::<T>(), namespace, name)?
                .into_iter()
                .collect(),
        )?
        .pop())
    }

    /// The object of a kind and name.
    pub fn get_object(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Object>, Failure> {
        let namespace = if kind.scope() == Scope::Cluster { "" } else { namespace };
        let query = Query::Get {
            kind: kind.clone(),
            namespace: namespace.into(),
            name: name.into(),
        };
        Ok(self.reads.ask(query)?.pop())
    }

    /// The objects of this type that a selector selects, in the namespace of the object that the plan is for, sorted
    /// by name.
    pub fn select<T: Watchable>(&self, selector: &LabelSelector) -> Result<Vec<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        self.select_in(Some(self.object.namespace()), selector)
    }

    /// The objects of this type that a selector selects, in a namespace or in all of them, sorted by name.
    pub fn select_in<T: Watchable>(
        &self,
        namespace: Option<&str>,
        selector: &LabelSelector,
    ) -> Result<Vec<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        if selector.is_nothing() {
            return Ok(Vec::new());
        }
        let kind = Kind::of::<T>();
        let namespace = namespace
            .filter(|_| kind.scope() == Scope::Namespaced)
            .map(str::to_owned);
        seen(self.reads.ask(Query::Select {
            kind,
            namespace,
            selector: selector.to_string(),
        })?)
    }

    /// All objects of this type, in a namespace or in all of them, sorted by name.
    pub fn list<T: Watchable>(&self, namespace: Option<&str>) -> Result<Vec<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        self.select_in(namespace, &LabelSelector::EVERYTHING)
    }

    /// The objects of this type that a declared index finds under a value, sorted by name.
    pub fn indexed<T: Watchable>(&self, index: &str, value: &str) -> Result<Vec<Seen<T>>, Failure>
    where
        T::Scope: 'static,
    {
        let query = Query::Indexed {
            kind: Kind::of::<T>(),
            index: index.to_owned(),
            value: value.to_owned(),
        };
        seen(self.reads.ask(query)?)
    }

    /// How an object is scaled that is in the namespace of the object that the plan is for, whatever its kind: what its
    /// scale subresource says. `None` if there is no such object.
    ///
    /// Fails if the kind is not served or has no such subresource. That an answer has to be fetched first is a failure
    /// of [`Class::Waiting`](moorline_plan::Class): pass it on, and the plan is made once more when the answer is there.
    pub fn scale_of(&self, api_version: &str, kind: &str, name: &str) -> Result<Option<Seen<Scale>>, Failure> {
        let of = Reference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: self.object.namespace().to_owned(),
            name: name.to_owned(),
        };
        Ok(seen(self.reads.ask(Query::Scale { of })?)?.pop())
    }

    /// How a declared dependency stands.
    pub fn dependency(&self, name: &str) -> Result<Met, Failure> {
        let dependency = self
            .dependencies
            .iter()
            .find(|dependency| dependency.name == name)
            .ok_or_else(|| Failure::terminal(format!("no dependency of the name {name:?} was declared")))?;
        self.standing(dependency)
    }

    /// How every declared dependency stands, in the order of declaration.
    pub(crate) fn dependencies(&self) -> impl Iterator<Item = (&Dependency, Result<Met, Failure>)> {
        self.dependencies
            .iter()
            .map(|dependency| (dependency, self.standing(dependency)))
    }

    fn standing(&self, dependency: &Dependency) -> Result<Met, Failure> {
        let mut found = std::collections::BTreeMap::new();
        for key in dependency.keys(&self.object) {
            let object = self.get_object(&dependency.kind, &key.namespace, &key.name)?;
            found.insert(key, object);
        }
        Ok(dependency.met(&self.object, |key| found.get(key).cloned().flatten()))
    }

    pub(crate) fn given(&self) -> &Given {
        &self.given
    }
}

/// A type that can be watched: a resource that the API serves and that can be read.
pub trait Watchable: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static {}

impl<T: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static> Watchable for T {}

/// All or nothing: an object that cannot be read is unknown, and unknown is not gone.
fn seen<T: DeserializeOwned + Send + Sync + 'static>(objects: Vec<Object>) -> Result<Vec<Seen<T>>, Failure> {
    objects
        .into_iter()
        .map(|object| {
            let typed = object.decode().map_err(|error| Failure::terminal(error.to_string()))?;
            Ok(Seen { object, typed })
        })
        .collect()
}

impl<T> Seen<T> {
    /// The object as the API has it.
    pub fn raw(&self) -> &Object {
        &self.object
    }

    /// The typed object, shared.
    pub fn typed(&self) -> &Arc<T> {
        &self.typed
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.object.name()
    }

    /// Which one of its name it is.
    pub fn uid(&self) -> &str {
        self.object.uid()
    }

    /// Whether it has been deleted and only waits for its finalizers or its processes.
    pub fn is_deleting(&self) -> bool {
        self.object.is_deleting()
    }
}

impl<T> Deref for Seen<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.typed
    }
}

impl<T> Clone for Seen<T> {
    fn clone(&self) -> Self {
        Self {
            object: self.object.clone(),
            typed: Arc::clone(&self.typed),
        }
    }
}

impl<T> std::fmt::Debug for Seen<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.object.fmt(f)
    }
}

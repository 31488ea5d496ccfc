//! What one object relies on another for, told on the relying side.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    kind::Kind,
    object::{Key, Object},
    watches::MANAGED_LABEL,
};

/// A reference, a predicate and the watch that goes with them.
///
/// The object that is relied on knows nothing of it. A dependency gates the steps that are put behind it by
/// [`Snapshot::require`](crate::Snapshot::require), and nothing else: deleting, scaling in and rolling back the
/// dependant go on.
#[derive(Clone)]
pub struct Dependency {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) references: References,
    pub(crate) predicate: Predicate,
}

type References = Arc<dyn Fn(&Object) -> Vec<Key> + Send + Sync>;
type Predicate = Arc<dyn Fn(&Object) -> Result<(), String> + Send + Sync>;

/// How a dependency stands in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Met {
    /// Everything that is referred to is as it should be.
    Yes,
    /// Something is not; this names it and the unmet predicate.
    No(String),
}

impl Dependency {
    /// An object of type `K` relies on objects of type `T`.
    ///
    /// `references` reads from the dependant which objects those are; `predicate` tells what one of them lacks, in
    /// words that follow its name, such as "has no endpoint yet".
    pub fn on<K, T>(
        name: &'static str,
        references: impl Fn(&K) -> Vec<Key> + Send + Sync + 'static,
        predicate: impl Fn(&T) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self
    where
        K: DeserializeOwned + Send + Sync + 'static,
        T: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
        T::Scope: 'static,
    {
        Self {
            name,
            kind: Kind::of::<T>(),
            references: Arc::new(move |dependant| {
                dependant
                    .decode::<K>()
                    .map(|dependant| references(&dependant))
                    .unwrap_or_default()
            }),
            predicate: Arc::new(move |object| match object.decode::<T>() {
                Ok(object) => predicate(&object),
                Err(error) => Err(error.to_string()),
            }),
        }
    }

    /// The same between kinds that are only known at run time.
    pub fn between(
        name: &'static str,
        kind: Kind,
        references: impl Fn(&Object) -> Vec<Key> + Send + Sync + 'static,
        predicate: impl Fn(&Object) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            kind,
            references: Arc::new(references),
            predicate: Arc::new(predicate),
        }
    }

    /// The keys that an object refers to.
    pub(crate) fn keys(&self, dependant: &Object) -> Vec<Key> {
        (self.references)(dependant)
    }

    /// How it stands, given what is there.
    pub(crate) fn met(&self, dependant: &Object, find: impl Fn(&Key) -> Option<Object>) -> Met {
        let mut unmet = Vec::new();
        for key in self.keys(dependant) {
            match find(&key) {
                // Of these only some are watched, so whether there is one without the label is not known.
                None if self.kind.is_bulky() => unmet.push(format!(
                    "{} {key} does not exist, or is not among those that are watched (see the label {MANAGED_LABEL})",
                    self.kind
                )),
                None => unmet.push(format!("{} {key} does not exist", self.kind)),
                Some(object) if object.is_deleting() => unmet.push(format!("{} {key} is being deleted", self.kind)),
                Some(object) => {
                    if let Err(lacks) = (self.predicate)(&object) {
                        unmet.push(format!("{} {key} {lacks}", self.kind));
                    }
                }
            }
        }
        if unmet.is_empty() {
            Met::Yes
        } else {
            Met::No(unmet.join("; "))
        }
    }
}

impl fmt::Debug for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependency")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

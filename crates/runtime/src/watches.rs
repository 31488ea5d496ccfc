//! What an actor declares that it needs to see, and what wakes it.

use std::{collections::BTreeMap, sync::Arc};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    aftermath::{Aftermath, Failed},
    cache::{Depth, IndexFunction, Selection},
    dependency::Dependency,
    kind::Kind,
    object::{Key, Object},
    sources::Sources,
};

/// Whom an object of another kind concerns.
pub type Mapper = Arc<dyn Fn(&Object, &Sources) -> Vec<Key> + Send + Sync>;

/// What an actor watches. Only kinds that stand here can be asked for in a [`Snapshot`](crate::Snapshot).
///
/// Secrets and config maps are watched by label alone unless [`selecting`](Self::selecting) says otherwise: those that
/// this actor's field owner made carry [`MANAGED_LABEL`].
#[derive(Clone)]
pub struct Watches {
    pub(crate) primary: Kind,
    pub(crate) kinds: BTreeMap<Kind, Watched>,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) conditions: Conditions,
    pub(crate) deleted: Deleted,
    /// The kinds that are placed in member clusters.
    pub(crate) spread: Vec<Kind>,
    /// Whether it asks how objects of other kinds are scaled.
    pub(crate) scales: bool,
    /// What the events of failed steps are called.
    pub(crate) naming: Option<Naming>,
}

/// The label by which the secrets and config maps of a field owner are watched.
pub const MANAGED_LABEL: &str = "moorline.io/managed-by";

/// Whether the runtime writes `Ready`, `Progressing`, `Stalled` and `DependenciesReady` into the status.
#[derive(Clone)]
pub(crate) enum Conditions {
    Written,
    LeftToTheActor,
    /// The actor tells in conditions of its own what became of the steps.
    Concluded(Conclude),
}

/// Completes a status with what became of the steps.
pub(crate) type Conclude = Arc<dyn Fn(&mut Value, &Aftermath<'_>) + Send + Sync>;

/// The event, by reason and note, that tells of a step that failed.
pub(crate) type Naming = Arc<dyn Fn(&Failed<'_>) -> Option<(String, String)> + Send + Sync>;

/// Whether objects that are being deleted, and that this actor has no finalizer on, concern it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    LeftAlone,
    Seen,
}

/// What is watched of one kind.
#[derive(Clone, Default)]
pub(crate) struct Watched {
    /// `None` stands for every object or, for secrets and config maps, for those that the actor manages.
    pub(crate) selection: Option<Selection>,
    pub(crate) owned: Option<Owning>,
    pub(crate) mappers: Vec<Mapper>,
    pub(crate) indexes: Vec<(&'static str, IndexFunction)>,
}

/// What becomes of an owned object that the plan does not mention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owning {
    /// It is left alone.
    AsPlanned,
    /// It is deleted.
    Exactly,
}

impl Watches {
    /// An actor of this type of object.
    pub fn of<K>() -> Self
    where
        K: kube::Resource<DynamicType = ()> + 'static,
        K::Scope: 'static,
    {
        Self::of_kind(Kind::of::<K>())
    }

    /// An actor of a kind that is only known at run time.
    pub fn of_kind(primary: Kind) -> Self {
        Self {
            kinds: BTreeMap::from([(primary.clone(), Watched::default())]),
            primary,
            dependencies: Vec::new(),
            conditions: Conditions::Written,
            deleted: Deleted::LeftAlone,
            spread: Vec::new(),
            scales: false,
            naming: None,
        }
    }

    /// Looks at objects of this type; their changes wake nobody.
    #[must_use]
    pub fn sees<T>(self) -> Self
    where
        T: kube::Resource<DynamicType = ()> + 'static,
        T::Scope: 'static,
    {
        self.edit(Kind::of::<T>(), |_| {})
    }

    /// Owns objects of this type: their changes wake their controller. What the plan does not mention stays.
    #[must_use]
    pub fn owns<T>(self) -> Self
    where
        T: kube::Resource<DynamicType = ()> + 'static,
        T::Scope: 'static,
    {
        self.owns_kind(Kind::of::<T>())
    }

    /// Owns objects of a kind that is only known at run time.
    #[must_use]
    pub fn owns_kind(self, kind: Kind) -> Self {
        self.edit(kind, |watched| {
            watched.owned.get_or_insert(Owning::AsPlanned);
        })
    }

    /// Owns exactly those objects of this type that the plan mentions: any other that it owns is deleted.
    #[must_use]
    pub fn owns_exactly<T>(self) -> Self
    where
        T: kube::Resource<DynamicType = ()> + 'static,
        T::Scope: 'static,
    {
        self.owns_exactly_kind(Kind::of::<T>())
    }

    /// The same for a kind that is only known at run time.
    #[must_use]
    pub fn owns_exactly_kind(self, kind: Kind) -> Self {
        self.edit(kind, |watched| watched.owned = Some(Owning::Exactly))
    }

    /// Wakes those whom a change of an object of this type concerns. Called for the object before and after.
    #[must_use]
    pub fn maps<T>(self, mapper: impl Fn(&Object, &Sources) -> Vec<Key> + Send + Sync + 'static) -> Self
    where
        T: kube::Resource<DynamicType = ()> + 'static,
        T::Scope: 'static,
    {
        self.maps_kind(Kind::of::<T>(), mapper)
    }

    /// The same for a kind that is only known at run time.
    #[must_use]
    pub fn maps_kind(self, kind: Kind, mapper: impl Fn(&Object, &Sources) -> Vec<Key> + Send + Sync + 'static) -> Self {
        self.edit(kind, |watched| watched.mappers.push(Arc::new(mapper)))
    }

    /// Finds objects of this type by whatever `values` reads from them: see [`Snapshot::indexed`](crate::Snapshot).
    ///
    /// Indexes are shared by all that watch the same selection, so one name must mean one function.
    #[must_use]
    pub fn indexes<T>(self, name: &'static str, values: impl Fn(&T) -> Vec<String> + Send + Sync + 'static) -> Self
    where
        T: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
        T::Scope: 'static,
    {
        let of_object = move |object: &Object| object.decode::<T>().map(|typed| values(&typed)).unwrap_or_default();
        self.edit(Kind::of::<T>(), |watched| {
            watched.indexes.push((name, Arc::new(of_object)));
        })
    }

    /// Watches only some objects of a kind.
    #[must_use]
    pub fn selecting(self, selection: Selection) -> Self {
        self.edit(selection.kind.clone(), |watched| watched.selection = Some(selection))
    }

    /// Watches only those objects of this type that have these labels.
    #[must_use]
    pub fn labelled<T>(self, labels: &str) -> Self
    where
        T: kube::Resource<DynamicType = ()> + 'static,
        T::Scope: 'static,
    {
        let kind = Kind::of::<T>();
        self.edit(kind.clone(), |watched| {
            let selection = watched.selection.take().unwrap_or_else(|| Selection::all(kind));
            watched.selection = Some(selection.labelled(labels));
        })
    }

    /// Watches only the metadata of objects of this type.
    #[must_use]
    pub fn metadata_of<T>(self) -> Self
    where
        T: kube::Resource<DynamicType = ()> + 'static,
        T::Scope: 'static,
    {
        let kind = Kind::of::<T>();
        self.edit(kind.clone(), |watched| {
            let selection = watched.selection.take().unwrap_or_else(|| Selection::all(kind));
            watched.selection = Some(Selection {
                depth: Depth::Metadata,
                ..selection
            });
        })
    }

    /// Relies on another object: see [`Dependency`].
    #[must_use]
    pub fn depends_on(mut self, dependency: Dependency) -> Self {
        let kind = dependency.kind.clone();
        self.dependencies.push(dependency);
        self.edit(kind, |_| {})
    }

    /// Places objects of this type in member clusters: see [`Snapshot::apply_in`](crate::Snapshot::apply_in).
    ///
    /// They belong to the object by label, since an owner in another cluster cannot be referred to; when it goes, the
    /// runtime deletes them, behind a finalizer of its own. What the plan does not mention is deleted too.
    #[must_use]
    pub fn spreads<T>(mut self) -> Self
    where
        T: kube::Resource<DynamicType = ()> + 'static,
        T::Scope: 'static,
    {
        self.spread.push(Kind::of::<T>());
        self
    }

    /// Asks how objects are scaled, of whatever kind they are: see [`Snapshot::scale_of`](crate::Snapshot::scale_of).
    #[must_use]
    pub fn sees_scales(mut self) -> Self {
        self.scales = true;
        self
    }

    /// Leaves the conditions in the status to the actor, whose kind has its own.
    #[must_use]
    pub fn without_conditions(mut self) -> Self {
        self.conditions = Conditions::LeftToTheActor;
        self
    }

    /// Leaves the conditions to the actor, as [`without_conditions`](Self::without_conditions) does, and lets it
    /// complete the planned status when the steps have run: only then is it known which of them failed.
    #[must_use]
    pub fn concluding(mut self, conclude: impl Fn(&mut Value, &Aftermath<'_>) + Send + Sync + 'static) -> Self {
        self.conditions = Conditions::Concluded(Arc::new(conclude));
        self
    }

    /// Gives the events of failed steps a reason and a note of the actor's own. One that it has no name for, and every
    /// failure without this, is called `ReconcileFailed`.
    #[must_use]
    pub fn naming_failures(
        mut self,
        naming: impl Fn(&Failed<'_>) -> Option<(String, String)> + Send + Sync + 'static,
    ) -> Self {
        self.naming = Some(Arc::new(naming));
        self
    }

    /// Plans also for objects that are being deleted, as for any other: for an actor that takes away somebody else's
    /// finalizer. One that has its own says so in its [`Farewell`](crate::Farewell).
    #[must_use]
    pub fn while_deleted(mut self) -> Self {
        self.deleted = Deleted::Seen;
        self
    }

    fn edit(mut self, kind: Kind, edit: impl FnOnce(&mut Watched)) -> Self {
        edit(self.kinds.entry(kind).or_default());
        self
    }

    pub(crate) fn spread_kinds(&self) -> impl Iterator<Item = &Kind> {
        self.spread.iter()
    }

    pub(crate) fn owned_kinds(&self) -> impl Iterator<Item = (&Kind, Owning)> {
        self.kinds
            .iter()
            .filter_map(|(kind, watched)| watched.owned.map(|owning| (kind, owning)))
    }
}

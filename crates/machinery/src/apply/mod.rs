//! Server-side apply: several managers share an object, each owning the fields it cares for.
//!
//! An **apply** says everything that a manager wants. Its fields are laid over the object; those it wanted before and
//! no longer wants go, unless somebody else owns them; those it wants otherwise than their owner are conflicts, unless
//! it forces them. An **update** (create, replace, patch) comes with the whole object; who changed a field owns it.
//!
//! ```text
//!   live ─┬─ merge ◄── applied                      old ─┬─ compare ◄── new
//!         │    │ prune: no longer wanted, unowned        │    removed: nobody's
//!         │    ▼                                         │    modified, added: the updater's
//!         └─ compare ── changed fields of others?        ▼
//!                         └─► Conflicts              managedFields
//! ```
//!
//! Guarantees: an apply that changes nothing returns the object as it is; a manager owns only fields that exist; time
//! enters only as the caller's `now`. Entries of other API versions are read as if their paths were this version's.

mod conflict;
mod element;
mod fields_v1;
mod last_applied;
#[cfg(test)]
mod laws;
mod managed;
mod scale;
#[cfg(test)]
mod scenarios;
mod set;
mod typed;

use std::borrow::Cow;
use std::sync::LazyLock;

use serde_json::Value;

pub use conflict::{Conflict, Conflicts};
pub use element::{ElementError, PathElement, Scalar};
pub use last_applied::LAST_APPLIED;
pub use managed::{ManagedFields, ManagedFieldsError, Manager, Operation, Owned};
pub use scale::{Rescaled, rescale};
pub use set::FieldSet;

use crate::schema::Schema;
use typed::{At, Comparison, Duplicates, Emptied, compare, field_set, merge, name_ancestors, remove, settle};

/// Who writes, through which door, and when.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The name that the client gave itself (`fieldManager`).
    pub manager: &'a str,
    /// The `apiVersion` of the request.
    pub api_version: &'a str,
    /// The subresource written to; empty for the object itself.
    pub subresource: &'a str,
    /// The time of the request, as RFC 3339 in UTC without a fraction.
    pub now: &'a str,
    /// Fields that this door does not write, with all below them: `status` at the object, all else at its status.
    pub reset: &'a FieldSet,
}

/// Whether an applier takes fields from their owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// A field that somebody else owns is a conflict.
    No,
    /// It takes them.
    Yes,
}

/// What came of an apply.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// The object to be stored.
    Changed(Value),
    /// Nothing changed, not even who owns what; there is nothing to store.
    Unchanged,
}

/// Why an apply failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Others own fields that would change. 409.
    #[error("{0}")]
    Conflicts(Conflicts),
    /// The applied object carries what an applied object must not carry. 400.
    #[error("{0}")]
    BadRequest(String),
    /// The applied or the stored object cannot be read through the schema. 500, as at other API servers.
    #[error("{0}")]
    Untyped(String),
}

impl ApplyError {
    /// The HTTP status that tells of it.
    pub fn code(&self) -> u16 {
        match self {
            Self::Conflicts(_) => 409,
            Self::BadRequest(_) => 400,
            Self::Untyped(_) => 500,
        }
    }
}

/// Whether an object that is to be applied can be read through its schema.
pub fn check(applied: &Value, kind: &Kind<'_>) -> Result<(), ApplyError> {
    typed::check(applied, Some(kind.schema.place()), Duplicates::Refused).map_err(|reason| {
        ApplyError::Untyped(format!(
            "failed to create typed patch object ({}): {reason}",
            identity(applied)
        ))
    })
}

/// Lays what somebody wants of an object over it, list items being told apart as their schema says.
pub fn overlay(object: &mut Value, wanted: &Value, kind: &Kind<'_>) -> Result<(), ApplyError> {
    let at = Some(kind.schema.place());
    typed::check(wanted, at, Duplicates::Refused).map_err(ApplyError::Untyped)?;
    typed::merge(object, wanted, at);
    Ok(())
}

/// Updaters beyond this number are merged into one entry.
const MAX_UPDATERS: usize = 10;

/// Fields that are nobody's: they identify the object, or the server keeps them.
static NOBODYS: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields([
        "apiVersion",
        "kind",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.creationTimestamp",
        "metadata.selfLink",
        "metadata.uid",
        "metadata.clusterName",
        "metadata.generation",
        "metadata.managedFields",
        "metadata.resourceVersion",
    ])
});

/// What is to be known of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Kind<'a> {
    /// What its objects look like.
    pub schema: &'a Schema,
    /// An object that nobody has written to yet: `apiVersion`, `kind`, and those objects in it that are always there,
    /// for most built-in kinds `metadata`, `spec` and `status`. Nobody comes to own what is always there.
    pub empty: &'a Value,
}

/// Applies `applied` to `live`, what is stored, or creates the object if nothing is. The result is neither pruned nor
/// defaulted nor validated yet.
pub fn apply(
    live: Option<&Value>,
    applied: &Value,
    force: Force,
    writer: &Writer<'_>,
    kind: &Kind<'_>,
) -> Result<Applied, ApplyError> {
    let at = Some(kind.schema.place());
    if applied
        .pointer("/metadata/managedFields")
        .is_some_and(|fields| !fields.is_null())
    {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    let stored = live.unwrap_or(kind.empty);
    let recorded = ManagedFields::of(stored).map_err(|error| ApplyError::Untyped(error.to_string()))?;
    check(applied, kind)?;
    typed::check(stored, at, Duplicates::Allowed).map_err(|reason| {
        ApplyError::Untyped(format!(
            "failed to create typed live object ({}): {reason}",
            identity(stored)
        ))
    })?;
    let mut owners = recorded.clone();
    if owners.is_empty() && live.is_some() {
        own_changes(
            &mut owners,
            kind.empty,
            stored,
            &Writer {
                manager: "before-first-apply",
                ..*writer
            },
            at,
        );
    }
    let mut wanted = Cow::Borrowed(applied);
    if reaches(applied, writer.reset) {
        remove(wanted.to_mut(), writer.reset, Emptied::GoesUnless(&FieldSet::EMPTY), at);
    }
    let attempt = |force| merge_applied(stored, &wanted, &owners, force, writer, at);
    let result = match attempt(force) {
        Err(conflicts) if writer.manager == last_applied::KUBECTL => {
            match last_applied::still_applied(stored, writer.api_version, kind.schema) {
                None => Err(conflicts),
                Some(own) => {
                    let left: Vec<_> = conflicts
                        .0
                        .into_iter()
                        .filter(|conflict| !own.has(&conflict.path))
                        .collect();
                    if left.is_empty() {
                        attempt(Force::Yes)
                    } else {
                        Err(Conflicts(left))
                    }
                }
            }
        }
        other => other,
    };
    let (mut object, mut owners, manager) = result.map_err(ApplyError::Conflicts)?;
    if live != Some(&object)
        && let Some(owned) = owners.entries_mut().get_mut(&manager)
    {
        owned.time = Some(writer.now.to_owned());
    }
    if writer.manager == last_applied::KUBECTL {
        last_applied::keep(&mut object, applied);
    }
    if live == Some(&object) && owners.same_ownership(&recorded) {
        return Ok(Applied::Unchanged);
    }
    owners.store(&mut object);
    Ok(Applied::Changed(object))
}

/// Records in `new`, which is about to be stored, who owns what after a create (`old` is `None`) or an update.
///
/// The entries of `new` count, so that clients may edit them, unless they are missing or broken; an empty list of
/// entries starts anew. What the writer did not change keeps its time. An object that is stored without entries stays
/// without.
pub fn update(old: Option<&Value>, new: &mut Value, writer: &Writer<'_>, kind: &Kind<'_>) {
    let at = Some(kind.schema.place());
    let stored = old.unwrap_or(kind.empty);
    let mut owners = entries_for_update(stored, new, writer);
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if owners.is_empty() && old.is_some() {
        return;
    }
    let readable = |object: &Value| typed::check(object, at, Duplicates::Allowed).is_ok();
    if !readable(stored) || !readable(new) {
        return;
    }
    own_changes(&mut owners, stored, new, writer, at);
    owners.cap_updaters(MAX_UPDATERS);
    owners.store(new);
}

fn entries_for_update(old: &Value, new: &Value, writer: &Writer<'_>) -> ManagedFields {
    let stored = || ManagedFields::of(old).unwrap_or_default();
    if !writer.subresource.is_empty() {
        return stored();
    }
    if let Some(Value::Array(entries)) = new.pointer("/metadata/managedFields") {
        let starts_anew = match entries.as_slice() {
            [] => true,
            [one] => one.as_object().is_some_and(serde_json::Map::is_empty),
            _ => false,
        };
        if starts_anew {
            return ManagedFields::default();
        }
    }
    match ManagedFields::of(new) {
        Ok(owners) if !owners.is_empty() => owners,
        _ => stored(),
    }
}

/// Gives the writer of an update what it changed and takes it from all others.
fn own_changes(owners: &mut ManagedFields, old: &Value, new: &Value, writer: &Writer<'_>, at: At<'_>) {
    let changes = compare(old, new, at).without(writer.reset);
    for owned in owners.entries_mut().values_mut() {
        settle(&mut owned.fields, at);
    }
    take(owners, &changes, None);
    let mut fields = changes.modified.union(&changes.added);
    fields.subtract(&NOBODYS);
    if fields.is_empty() {
        return;
    }
    let manager = Manager::new(
        writer.manager,
        Operation::Update,
        writer.api_version,
        writer.subresource,
    );
    if let Some(before) = owners.get(&manager) {
        fields = fields.union(&before.fields);
    }
    let owned = Owned {
        fields,
        api_version: writer.api_version.to_owned(),
        time: Some(writer.now.to_owned()),
    };
    owners.entries_mut().insert(manager, owned);
}

/// Takes what changed and what went from everybody but `writer`.
fn take(owners: &mut ManagedFields, changes: &Comparison, writer: Option<&Manager>) {
    owners.entries_mut().retain(|manager, owned| {
        if writer == Some(manager) {
            return true;
        }
        for set in [&changes.modified, &changes.added, &changes.removed] {
            owned.fields.subtract(set);
        }
        !owned.fields.is_empty()
    });
}

type Merged = (Value, ManagedFields, Manager);

/// Lays `applied` over `live` and settles who owns what.
fn merge_applied(
    live: &Value,
    applied: &Value,
    owners: &ManagedFields,
    force: Force,
    writer: &Writer<'_>,
    at: At<'_>,
) -> Result<Merged, Conflicts> {
    let mut owners = owners.clone();
    for owned in owners.entries_mut().values_mut() {
        settle(&mut owned.fields, at);
    }
    let mut object = live.clone();
    merge(&mut object, applied, at);
    let manager = Manager::new(writer.manager, Operation::Apply, writer.api_version, writer.subresource);
    let mut fields = field_set(applied, at);
    fields.subtract_subtrees(writer.reset);
    let last = owners.entries_mut().remove(&manager);
    let time = last.as_ref().and_then(|last| last.time.clone());
    let owned = Owned {
        fields,
        api_version: writer.api_version.to_owned(),
        time,
    };
    owners.entries_mut().insert(manager.clone(), owned);
    if let Some(last) = last {
        prune(&mut object, &owners, &manager, &last.fields, at);
        // Nobody owns an empty list, so pruning may have taken one that is wanted.
        merge(&mut object, applied, at);
    }
    let changes = compare(live, &object, at).without(writer.reset);
    let touched = changes.modified.union(&changes.added);
    if force == Force::No && !touched.is_empty() {
        let conflicts = conflicts(&owners, &manager, &touched);
        if !conflicts.is_empty() {
            return Err(Conflicts(conflicts));
        }
    }
    take(&mut owners, &changes, Some(&manager));
    if let Some(owned) = owners.entries_mut().get_mut(&manager) {
        owned.fields.subtract(&NOBODYS);
        if owned.fields.is_empty() {
            owners.entries_mut().remove(&manager);
        }
    }
    Ok((object, owners, manager))
}

fn conflicts(owners: &ManagedFields, applier: &Manager, touched: &FieldSet) -> Vec<Conflict> {
    let mut all = Vec::new();
    for (manager, owned) in owners.iter().filter(|(manager, _)| *manager != applier) {
        let theirs = owned.fields.intersection(touched);
        theirs.visit(&mut Vec::new(), &mut |path| {
            all.push(Conflict {
                manager: manager.clone(),
                path: path.to_vec(),
            });
        });
    }
    all
}

/// Takes out what the applier wanted last time, does not want now, and nobody else owns.
fn prune(object: &mut Value, owners: &ManagedFields, applier: &Manager, last: &FieldSet, at: At<'_>) {
    let wanted = owners.get(applier).map(|owned| &owned.fields);
    if wanted.is_some_and(|wanted| last.is_subset(wanted)) {
        return;
    }
    let last = name_ancestors(last, at);
    let all = name_ancestors(&field_set(object, at), at);
    let mut without_last = object.clone();
    remove(&mut without_last, &last, Emptied::Null, at);
    let mut owned = FieldSet::new();
    for (_, entry) in owners.iter() {
        owned = owned.union(&entry.fields);
    }
    let kept = name_ancestors(&field_set(&without_last, at), at).union(&name_ancestors(&owned, at));
    let mut with_owned = object.clone();
    remove(&mut with_owned, &all.difference(&kept), Emptied::Null, at);
    let left = name_ancestors(&field_set(&with_owned, at), at);
    remove(
        object,
        &all.difference(&left).intersection(&last),
        Emptied::GoesUnless(&owned),
        at,
    );
}

/// Whether any path of `set` begins in `object`.
fn reaches(object: &Value, set: &FieldSet) -> bool {
    let name = |entry: &set::Entry| matches!(&entry.element, PathElement::Field(name) if object.get(&**name).is_some());
    set.entries().iter().any(name)
}

/// `namespace/name; group/version, Kind=Kind`
pub fn identity(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let version = text("/apiVersion");
    let version = if version.contains('/') {
        version.to_owned()
    } else {
        format!("/{version}")
    };
    format!(
        "{}/{}; {version}, Kind={}",
        text("/metadata/namespace"),
        text("/metadata/name"),
        text("/kind")
    )
}

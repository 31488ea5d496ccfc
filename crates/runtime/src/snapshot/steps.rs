//! Steps as actors mean them: what is applied, made or deleted for the object that the plan is for.

use std::{collections::BTreeMap, time::Duration};

use moorline_machinery::patch::merge_patch;
use moorline_plan::{Call, Draft, Failure, Step, StepKey};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Seen, Snapshot};
use crate::{
    applied,
    cache::OWNER_LABEL,
    dependency::Met,
    events::{self, EventType},
    execute::difference,
    kind::{Kind, Scope},
    object::{Object, Target},
    watches::MANAGED_LABEL,
};

/// The name of the call that stands for a dependency in a plan. It calls nobody.
pub(crate) const AWAIT: &str = "await";
pub(crate) const UNMET: &str = "unmet";

impl<K> Snapshot<K> {
    /// Server-side apply of an object that belongs to this one: own its fields, and only those.
    ///
    /// The namespace and the reference to the controlling owner are filled in. If the server has it already and this
    /// field owner owns exactly these fields, the step is a no-op.
    pub fn apply<T>(&self, desired: &T, reason: impl Into<String>) -> Result<Step<Object>, Failure>
    where
        T: kube::Resource<DynamicType = ()> + Serialize + 'static,
        T::Scope: 'static,
    {
        self.apply_value(&Kind::of::<T>(), value_of(desired)?, reason)
    }

    /// The same for an object of a kind that is only known at run time.
    pub fn apply_value(&self, kind: &Kind, desired: Value, reason: impl Into<String>) -> Result<Step<Object>, Failure> {
        let desired = self.belonging(kind, desired)?;
        let target = desired.target();
        let base = self.get_object(kind, &target.namespace, &target.name)?;
        if let Some(base) = &base
            && applied::is_in_place(base, &desired, &self.given().field_owner)
        {
            return Ok(Step::no_op(target, Some(base.clone()), reason));
        }
        Ok(Step::apply(desired, base, reason))
    }

    /// Server-side apply of an object that belongs to this one, in a member cluster.
    ///
    /// Its kind must have been declared by [`Watches::spreads`](crate::Watches::spreads). An object of that name which
    /// belongs to somebody else there is left alone, and the step fails.
    pub fn apply_in<T>(&self, cluster: &str, desired: &T, reason: impl Into<String>) -> Result<Step<Object>, Failure>
    where
        T: kube::Resource<DynamicType = ()> + Serialize + 'static,
        T::Scope: 'static,
    {
        let kind = Kind::of::<T>();
        let mut value = value_of(desired)?;
        value["apiVersion"] = kind.api_version().into();
        value["kind"] = kind.name().into();
        if kind.scope() == Scope::Namespaced && value["metadata"]["namespace"].is_null() {
            value["metadata"]["namespace"] = self.raw().namespace().into();
        }
        value["metadata"]["labels"][OWNER_LABEL] = self.raw().uid().into();
        let desired = read(&kind, &value)?.placed_in(Some(cluster.into()));
        let target = desired.target();
        let there = self.owned_objects_in(&kind, cluster)?;
        let base = there.into_iter().find(|object| object.target() == target);
        if let Some(base) = &base
            && applied::is_in_place(base, &desired, &self.given().field_owner)
        {
            return Ok(Step::no_op(target, Some(base.clone()), reason));
        }
        Ok(Step::apply(desired, base, reason))
    }

    /// Makes an object that belongs to this one. It must have a name: see [`fresh_name`](Self::fresh_name).
    pub fn create<T>(&self, desired: &T, reason: impl Into<String>) -> Result<Step<Object>, Failure>
    where
        T: kube::Resource<DynamicType = ()> + Serialize + 'static,
        T::Scope: 'static,
    {
        self.create_value(&Kind::of::<T>(), value_of(desired)?, reason)
    }

    /// The same for an object of a kind that is only known at run time.
    pub fn create_value(
        &self,
        kind: &Kind,
        desired: Value,
        reason: impl Into<String>,
    ) -> Result<Step<Object>, Failure> {
        Ok(Step::create(self.belonging(kind, desired)?, reason))
    }

    /// Changes an object by the difference between what was seen and what shall be, if nobody changed it meanwhile.
    pub fn patch<T>(&self, seen: &Seen<T>, desired: &T, reason: impl Into<String>) -> Result<Step<Object>, Failure>
    where
        T: kube::Resource<DynamicType = ()> + Serialize + 'static,
        T::Scope: 'static,
    {
        self.patch_value(seen.raw(), &changed(seen.raw(), &**seen, desired)?, reason)
    }

    /// The same for the object that the plan is for.
    pub fn patch_own(&self, desired: &K, reason: impl Into<String>) -> Result<Step<Object>, Failure>
    where
        K: Serialize,
    {
        self.patch_value(self.raw(), &changed(self.raw(), self.object(), desired)?, reason)
    }

    /// The same for an object of any kind.
    pub fn patch_value(
        &self,
        seen: &Object,
        desired: &Value,
        reason: impl Into<String>,
    ) -> Result<Step<Object>, Failure> {
        let desired = read(seen.kind(), desired)?;
        if desired == *seen {
            return Ok(Step::no_op(seen.target(), Some(seen.clone()), reason));
        }
        Ok(Step::patch(desired, seen.clone(), reason))
    }

    /// Deletes the very object that was seen, and no later one of its name.
    pub fn delete(&self, seen: &Object, reason: impl Into<String>) -> Step<Object> {
        Step::delete(seen.clone(), reason)
    }

    /// Makes this object the controller of one that has none.
    pub fn adopt(&self, orphan: &Object, reason: impl Into<String>) -> Result<Step<Object>, Failure> {
        let mut desired = orphan.value();
        self.own(&mut desired);
        // One that refers to us already, as to any owner, refers to its controller now.
        let references = desired["metadata"]["ownerReferences"].as_array_mut();
        let ours = references.into_iter().flatten();
        for reference in ours.filter(|reference| reference["uid"] == self.raw().uid()) {
            reference["controller"] = true.into();
            reference["blockOwnerDeletion"] = true.into();
        }
        self.patch_value(orphan, &desired, reason)
    }

    /// Gives up an object that this one controls, without deleting it.
    pub fn release(&self, owned: &Object, reason: impl Into<String>) -> Result<Step<Object>, Failure> {
        let mut desired = owned.value();
        if let Some(references) = desired["metadata"]["ownerReferences"].as_array_mut() {
            references.retain(|reference| reference["uid"] != self.raw().uid());
        }
        self.patch_value(owned, &desired, reason)
    }

    /// The status of the object that the plan is for. Put into the draft, it replaces the root.
    pub fn status(&self, status: &impl Serialize, reason: impl Into<String>) -> Result<Step<Object>, Failure> {
        self.status_with(status, &[], reason)
    }

    /// The same with annotations that belong to the status: written together with it, they are no change of what the
    /// object asks for, and do not count as a generation.
    pub fn status_with(
        &self,
        status: &impl Serialize,
        annotations: &[(&str, String)],
        reason: impl Into<String>,
    ) -> Result<Step<Object>, Failure> {
        let mut desired = self.raw().value();
        desired["status"] = value_of(status)?;
        for (name, value) in annotations {
            desired["metadata"]["annotations"][*name] = value.as_str().into();
        }
        Ok(Step::status(
            read(self.raw().kind(), &desired)?,
            self.raw().clone(),
            reason,
        ))
    }

    /// Something for people to read, published once however often it is asked for. Order it after what it tells of.
    pub fn event(&self, event: EventType, reason: &str, note: &str) -> Result<Step<Object>, Failure> {
        let event = events::compose(
            self.raw(),
            event,
            reason,
            note,
            &self.given().actor,
            &self.given().field_owner,
            self.now(),
        );
        Ok(Step::create(
            event.map_err(|error| Failure::terminal(error.to_string()))?,
            note.to_owned(),
        ))
    }

    /// Puts a step behind a declared dependency: it is not run while the dependency is unmet.
    pub fn require(
        &self,
        draft: &mut Draft<Object>,
        dependency: &str,
        gated: &StepKey<Target>,
    ) -> Result<Met, Failure> {
        let met = self.dependency(dependency)?;
        let unmet = match &met {
            Met::Yes => BTreeMap::new(),
            Met::No(what) => BTreeMap::from([(UNMET.to_owned(), what.clone())]),
        };
        let call = Call {
            name: format!("{AWAIT} {dependency}"),
            fingerprint: dependency.to_owned(),
            arguments: unmet,
            deadline: Duration::ZERO,
        };
        let reason = match &met {
            Met::Yes => format!("{dependency} is there"),
            Met::No(what) => what.clone(),
        };
        let gate = draft.put(Step::call(self.target(), call, None, reason));
        draft.after(gated, &gate)?;
        Ok(met)
    }

    /// An object as it shall be, with its namespace, its owner, and the label by which it is watched.
    fn belonging(&self, kind: &Kind, mut desired: Value) -> Result<Object, Failure> {
        desired["apiVersion"] = kind.api_version().into();
        desired["kind"] = kind.name().into();
        if kind.scope() == Scope::Namespaced && desired["metadata"]["namespace"].is_null() {
            desired["metadata"]["namespace"] = self.raw().namespace().into();
        }
        self.own(&mut desired);
        if kind.is_bulky() && desired["metadata"]["labels"][MANAGED_LABEL].is_null() {
            desired["metadata"]["labels"][MANAGED_LABEL] = (*self.given().field_owner).into();
        }
        let desired = read(kind, &desired)?;
        if desired.name().is_empty() {
            return Err(Failure::terminal(format!(
                "an object of kind {kind} was planned without a name"
            )));
        }
        Ok(desired)
    }

    /// Adds the reference to the controlling owner, unless it is there, or cannot be: what lives in no namespace or in
    /// another one cannot be owned by what lives in one.
    fn own(&self, desired: &mut Value) {
        let owner = self.raw();
        let reachable = owner.namespace().is_empty() || desired["metadata"]["namespace"] == owner.namespace();
        let references = &mut desired["metadata"]["ownerReferences"];
        let already = references
            .as_array()
            .is_some_and(|references| references.iter().any(|reference| reference["uid"] == owner.uid()));
        if already || !reachable {
            return;
        }
        let reference = json!({
            "apiVersion": owner.kind().api_version(), "kind": owner.kind().name(), "name": owner.name(),
            "uid": owner.uid(), "controller": true, "blockOwnerDeletion": true,
        });
        match references.as_array_mut() {
            Some(references) => references.push(reference),
            None => *references = json!([reference]),
        }
    }
}

/// An object with what a typed change changes. What the type does not know stays as it is.
fn changed<T: Serialize>(seen: &Object, before: &T, desired: &T) -> Result<Value, Failure> {
    let mut value = seen.value();
    if let Some(change) = difference(&value_of(before)?, &value_of(desired)?) {
        merge_patch(&mut value, &change).map_err(|error| Failure::terminal(error.to_string()))?;
    }
    Ok(value)
}

fn value_of(desired: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(desired)
        .map_err(|error| Failure::terminal(format!("a desired object cannot be written: {error}")))
}

fn read(kind: &Kind, desired: &Value) -> Result<Object, Failure> {
    Object::from_value(kind, desired).map_err(|error| Failure::terminal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Serialize, Deserialize)]
    struct Known {
        spec: KnownSpec,
    }

    #[derive(Clone, Serialize, Deserialize)]
    struct KnownSpec {
        size: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    }

    #[test]
    fn a_typed_change_leaves_alone_what_the_type_does_not_know() {
        let kind = Kind::new("test.moorline.io", "v1", "Box", "boxes", Scope::Namespaced);
        let value = json!({ "metadata": { "name": "a" }, "spec": { "size": 1, "note": "old", "colour": "red" } });
        let seen = Object::from_value(&kind, &value).unwrap();
        let before: Known = serde_json::from_value(value).unwrap();
        let mut desired = before.clone();
        desired.spec.size = 2;
        desired.spec.note = None;
        let changed = changed(&seen, &before, &desired).unwrap();
        assert_eq!(changed["spec"], json!({ "size": 2, "colour": "red" }));
        assert_eq!(changed["metadata"]["name"], "a");
    }
}

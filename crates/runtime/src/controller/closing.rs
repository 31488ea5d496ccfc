//! What the runtime adds to every plan: the finalizer before the first effect, and the deletion of what is not wanted.

use std::collections::HashSet;

use moorline_plan::{Action, Draft, End, Failure, LookAgain, Part, Step, StepKey};
use serde_json::{Value, json};

use crate::{
    kind::Kind,
    object::{Object, Target},
    snapshot::Snapshot,
};

/// The name that signs these steps.
pub(super) const RUNTIME: &str = "runtime";

/// Of a plan for an object that is wanted.
pub(super) fn wanted<K>(
    seen: &Snapshot<K>,
    draft: &mut Draft<Object>,
    end: &End,
    finalizer: Option<&str>,
    pruned: &[Kind],
    spread: &[Kind],
) -> Result<(), Failure> {
    if *end == End::Complete {
        prune(seen, draft, pruned)?;
        let mentioned: HashSet<Target> = draft.steps().map(|(key, _)| key.target.clone()).collect();
        for object in spread_objects(seen, spread).0 {
            if !object.is_deleting() && !mentioned.contains(&object.target()) {
                draft.put(Step::delete(object, "it is no longer wanted"));
            }
        }
    }
    if let Some(finalizer) = finalizer
        && !seen.raw().has_finalizer(finalizer)
        && draft
            .steps()
            .any(|(key, step)| key != draft.root_key() && !step.is_no_op())
    {
        // The actor may change its own object too; that and the finalizer are one patch.
        let own = StepKey {
            target: seen.target(),
            part: Part::Object,
        };
        let mut desired = match draft.get(&own).map(|step| &step.action) {
            None | Some(Action::NoOp { .. }) => seen.raw().value(),
            Some(Action::Patch { desired, .. }) => desired.value(),
            Some(other) => {
                let verb = other.verb();
                let message =
                    format!("cannot add the finalizer {finalizer}: the plan wants to {verb} the object itself");
                return Err(Failure::terminal(message));
            }
        };
        match desired["metadata"]["finalizers"].as_array_mut() {
            Some(finalizers) => finalizers.push(finalizer.into()),
            None => desired["metadata"]["finalizers"] = json!([finalizer]),
        }
        let reason = "it must not go before it has been cleaned up";
        let first = draft.put(Step::patch(read(seen, &desired)?, seen.raw().clone(), reason));
        draft.all_after(&first, |_, _| true)?;
    }
    Ok(())
}

/// Deletes what the object controls and the plan does not mention.
fn prune<K>(seen: &Snapshot<K>, draft: &mut Draft<Object>, kinds: &[Kind]) -> Result<(), Failure> {
    let mentioned: HashSet<Target> = draft.steps().map(|(key, _)| key.target.clone()).collect();
    for kind in kinds {
        for object in seen.owned_objects(kind)? {
            let controlled = object.controller().is_some_and(|owner| *owner.uid == *seen.raw().uid());
            if controlled && !object.is_deleting() && !mentioned.contains(&object.target()) {
                draft.put(Step::delete(object, "it is no longer wanted"));
            }
        }
    }
    Ok(())
}

/// What belongs to the object in every member that is known, and the words of those that are not.
fn spread_objects<K>(seen: &Snapshot<K>, kinds: &[Kind]) -> (Vec<Object>, Vec<String>) {
    let (mut objects, mut unknown) = (Vec::new(), Vec::new());
    for cluster in seen.clusters() {
        for kind in kinds {
            match seen.owned_objects_in(kind, cluster) {
                Ok(found) => objects.extend(found),
                Err(failure) => unknown.push(failure.message),
            }
        }
    }
    (objects, unknown)
}

/// Takes back what was placed in members. A member that is away is waited for: what is there must not be forgotten.
pub(super) fn take_back<K>(seen: &Snapshot<K>, draft: &mut Draft<Object>, kinds: &[Kind]) -> Result<bool, Failure> {
    let (objects, unknown) = spread_objects(seen, kinds);
    let any = !objects.is_empty();
    for object in objects {
        if object.is_deleting() {
            draft.put(Step::no_op(
                object.target(),
                Some(object.clone()),
                "it is on its way out",
            ));
        } else {
            draft.put(Step::delete(object, "its owner goes"));
        }
    }
    if unknown.is_empty() {
        Ok(any)
    } else {
        Err(Failure::waiting(unknown.join("; ")))
    }
}

/// Of a plan for an object that is being deleted: when nothing is left to do, the finalizer goes.
pub(super) fn unwanted<K>(
    seen: &Snapshot<K>,
    draft: &mut Draft<Object>,
    end: &End,
    look_again: Option<&LookAgain>,
    finalizer: &str,
    spread: &[Kind],
) -> Result<(), Failure> {
    if take_back(seen, draft, spread)? {
        return Ok(());
    }
    let acts = |step: &Step<Object>| match &step.action {
        Action::Create { desired } => !crate::events::is_event(desired),
        _ => !step.is_no_op(),
    };
    let busy = draft.steps().any(|(key, step)| key != draft.root_key() && acts(step));
    if busy || look_again.is_some() || matches!(end, End::Failed(_)) {
        return Ok(());
    }
    let mut desired = seen.raw().value();
    if let Some(finalizers) = desired["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|name| name != finalizer);
    }
    let last = draft.put(Step::patch(
        read(seen, &desired)?,
        seen.raw().clone(),
        "everything is cleaned up",
    ));
    let root = draft.root_key().clone();
    let others: Vec<_> = draft
        .steps()
        .map(|(key, _)| key.clone())
        .filter(|key| *key != last && *key != root)
        .collect();
    for other in others {
        draft.after(&last, &other)?;
    }
    Ok(())
}

fn read<K>(seen: &Snapshot<K>, desired: &Value) -> Result<Object, Failure> {
    Object::from_value(seen.raw().kind(), desired).map_err(|error| Failure::terminal(error.to_string()))
}

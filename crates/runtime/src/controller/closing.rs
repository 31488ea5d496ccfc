//! What the runtime adds to every plan: the finalizer before the first effect, and the deletion of what is not wanted.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use moorline_plan::{Action, Class, Draft, End, Failure, LookAgain, Part, Step, StepKey};
use serde_json::{Value, json};

use super::placement;
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
    let there = Spread::look(seen, spread);
    if *end == End::Complete {
        prune(seen, draft, pruned)?;
        let mentioned: HashSet<Target> = draft.steps().map(|(key, _)| key.target.clone()).collect();
        for object in &there.objects {
            if !object.is_deleting() && !mentioned.contains(&object.target()) {
                draft.put(Step::delete(object.clone(), "it is no longer wanted"));
            }
        }
    }
    let planned = placed_by(draft);
    let is_worked_on = finalizer.is_some_and(|name| seen.raw().has_finalizer(name));
    let acts = draft
        .steps()
        .any(|(key, step)| key != draft.root_key() && !step.is_no_op());
    let places = there.places(&planned, *end == End::Complete, is_worked_on);
    let finalizer = finalizer.filter(|_| !is_worked_on && (acts || !places.is_empty()));
    // An object that was never worked on and has no part anywhere is left as it is.
    let noted = there.recorded.as_ref();
    let places = Some(places)
        .filter(|places| noted != Some(places) && (noted.is_some() || finalizer.is_some() || !places.is_empty()))
        .filter(|_| !spread.is_empty());
    if finalizer.is_some() || places.is_some() {
        prepare(seen, draft, finalizer, places.as_ref())?;
    }
    match there.left_behind(&planned) {
        Some(failure) if *end == End::Complete => Err(failure),
        _ => Ok(()),
    }
}

/// Puts what must be true of the object before anything else is done for it before everything else.
fn prepare<K>(
    seen: &Snapshot<K>,
    draft: &mut Draft<Object>,
    finalizer: Option<&str>,
    places: Option<&BTreeSet<String>>,
) -> Result<(), Failure> {
    // The actor may change its own object too; all that is one patch.
    let own = StepKey {
        target: seen.target(),
        part: Part::Object,
    };
    let mut desired = match draft.get(&own).map(|step| &step.action) {
        None | Some(Action::NoOp { .. }) => seen.raw().value(),
        Some(Action::Patch { desired, .. }) => desired.value(),
        Some(other) => {
            let verb = other.verb();
            let what = finalizer.map_or_else(
                || "note where its parts are".to_owned(),
                |name| format!("add the finalizer {name}"),
            );
            let message = format!("cannot {what}: the plan wants to {verb} the object itself");
            return Err(Failure::terminal(message));
        }
    };
    let mut reason = "its parts are to be found again";
    if let Some(finalizer) = finalizer {
        reason = "it must not go before it has been cleaned up";
        match desired["metadata"]["finalizers"].as_array_mut() {
            Some(finalizers) => finalizers.push(finalizer.into()),
            None => desired["metadata"]["finalizers"] = json!([finalizer]),
        }
    }
    if let Some(places) = places {
        placement::record(&mut desired, &seen.given().actor, places);
    }
    let first = draft.put(Step::patch(read(seen, &desired)?, seen.raw().clone(), reason));
    draft.all_after(&first, |_, _| true)?;
    Ok(())
}

/// The members that the plan has steps in.
fn placed_by(draft: &Draft<Object>) -> BTreeSet<String> {
    draft
        .steps()
        .filter_map(|(key, _)| key.target.cluster.as_deref().map(str::to_owned))
        .collect()
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

/// What belongs to the object in members, as far as they can be asked.
struct Spread {
    /// Where it stands on the object that something is or may be.
    recorded: Option<BTreeSet<String>>,
    objects: Vec<Object>,
    /// The members of which that is not known, and why.
    unknown: BTreeMap<String, Failure>,
    /// The members that do not come back.
    forgotten: BTreeSet<String>,
}

impl Spread {
    fn look<K>(seen: &Snapshot<K>, kinds: &[Kind]) -> Self {
        let mut there = Self {
            recorded: None,
            objects: Vec::new(),
            unknown: BTreeMap::new(),
            forgotten: seen.given().forgotten.iter().cloned().collect(),
        };
        if kinds.is_empty() {
            return there;
        }
        there.recorded = placement::recorded(seen.raw(), &seen.given().actor);
        let mut clusters: BTreeSet<&String> = seen.clusters().iter().collect();
        clusters.extend(
            there
                .recorded
                .iter()
                .flatten()
                .filter(|name| !there.forgotten.contains(*name)),
        );
        for cluster in clusters {
            for kind in kinds {
                match seen.owned_objects_in(kind, cluster) {
                    Ok(found) => there.objects.extend(found),
                    Err(failure) => drop(there.unknown.insert(cluster.clone(), failure)),
                }
            }
        }
        there
    }

    /// What is to stand on the object before the plan runs. What has been found empty is left out, if the plan is whole.
    fn places(&self, planned: &BTreeSet<String>, is_whole: bool, is_worked_on: bool) -> BTreeSet<String> {
        let found = self
            .objects
            .iter()
            .filter_map(|object| object.cluster().map(str::to_owned));
        let mut places: BTreeSet<String> = planned.iter().cloned().chain(found).collect();
        match &self.recorded {
            Some(recorded) => {
                let is_open = |name: &String| !is_whole || self.unknown.contains_key(name);
                let kept = recorded
                    .iter()
                    .filter(|name| is_open(name) && !self.forgotten.contains(*name));
                places.extend(kept.cloned());
            }
            // Somebody took the note away: whoever cannot be asked may have something.
            None if is_worked_on => places.extend(self.unknown.keys().cloned()),
            None => {}
        }
        places
    }

    /// Why it is not known whether something is left where the plan wants nothing.
    fn left_behind(&self, planned: &BTreeSet<String>) -> Option<Failure> {
        let left = self.unknown.iter().filter(|(name, _)| {
            let is_noted = self.recorded.as_ref().is_some_and(|recorded| recorded.contains(*name));
            is_noted && !planned.contains(*name)
        });
        all_of(left)
    }

    /// Why it is not known whether everything is gone. Without a note, every member may have something.
    fn in_doubt(&self) -> Option<Failure> {
        all_of(
            self.unknown
                .iter()
                .filter(|(name, _)| self.recorded.as_ref().is_none_or(|recorded| recorded.contains(*name))),
        )
    }
}

/// What is not known is waited for, unless nobody would tell when it is.
fn all_of<'s>(unknown: impl Iterator<Item = (&'s String, &'s Failure)>) -> Option<Failure> {
    let unknown: Vec<&Failure> = unknown.map(|(_, why)| why).collect();
    let words: Vec<&str> = unknown.iter().map(|why| why.message.as_str()).collect();
    let other = unknown
        .iter()
        .map(|why| why.class)
        .find(|class| *class != Class::Waiting);
    (!unknown.is_empty()).then(|| Failure {
        class: other.unwrap_or(Class::Waiting),
        message: words.join("; "),
    })
}

/// Takes back what was placed in members. A member that is away is waited for, if something may be there: it must not be
/// forgotten.
fn take_back<K>(seen: &Snapshot<K>, draft: &mut Draft<Object>, kinds: &[Kind]) -> Result<bool, Failure> {
    let there = Spread::look(seen, kinds);
    let in_doubt = there.in_doubt();
    let any = !there.objects.is_empty();
    for object in there.objects {
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
    in_doubt.map_or(Ok(any), Err)
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

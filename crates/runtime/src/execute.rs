//! The hands: steps of a plan become requests.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Method, StatusCode};
use moorline_plan::{Action, Executor, Failure, Outcomes, Part, Plan, Propagation, Step, StepKey};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use tracing::Instrument as _;

use crate::{
    cache::OWNER_LABEL,
    controller::Ground,
    events::{Tells, is_event},
    object::{Object, Target},
    reach::Way,
    request::{self, RequestError, path_of, query},
    settled::Settled,
    snapshot::{AWAIT, UNMET},
};

/// What a step did to the world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Nothing: it was so already.
    None,
    /// The object is now at this version.
    Written {
        /// The resource version.
        version: u64,
    },
    /// The object is gone.
    Deleted,
}

/// A write whose effect the cache has to show before the next look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) target: Target,
    pub(crate) expect: Expect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// This version, or a later one.
    Version(u64),
    /// That the object of this UID is gone.
    Gone(Arc<str>),
    /// Whatever the server says: the answer was lost, or somebody else wrote first.
    Unknown,
}

/// Completes the status with what became of the steps.
pub(crate) type Conclude<'r> = dyn Fn(&mut Value, &Outcomes<Target, Effect>) + Sync + 'r;

/// Runs the steps of one reconcile.
pub(crate) struct Hands<'r> {
    pub(crate) ground: &'r Ground,
    pub(crate) plan: &'r Plan<Object>,
    pub(crate) field_owner: &'r str,
    pub(crate) settled: &'r Settled,
    pub(crate) events: &'r crate::events::Published,
    pub(crate) conclude: Option<&'r Conclude<'r>>,
    pub(crate) writes: Arc<Mutex<Vec<Write>>>,
    /// The version of the object that the plan is for, as its own steps move it.
    pub(crate) own_version: Mutex<u64>,
    /// Whether somebody else wrote first, so that everything has to be looked at again.
    pub(crate) conflicted: AtomicBool,
    /// The steps that changed something.
    pub(crate) effective: Mutex<HashSet<StepKey<Target>>>,
    /// The uid of the object that the plan is for, as the server has it now; none if it is gone or going.
    pub(crate) may_adopt: OnceCell<Option<String>>,
}

impl Executor<Object> for Hands<'_> {
    type Yield = Effect;

    async fn run(&self, step: &Step<Object>) -> Result<Effect, Failure> {
        let span = tracing::debug_span!("step", verb = step.action.verb(), object = %step.target);
        let effect = self.act(step).instrument(span).await?;
        if effect != Effect::None {
            self.effective().insert(step.key());
        }
        Ok(effect)
    }

    async fn run_root(&self, root: &Step<Object>, outcomes: &Outcomes<Target, Effect>) -> Result<Effect, Failure> {
        let (Some(desired), Some(base)) = (root.desired(), root.base()) else {
            return Ok(Effect::None);
        };
        let mut desired = match self.conclude {
            // Nobody has anything to add to what nobody planned to change.
            None if desired.is_same(base) => return Ok(Effect::None),
            _ => desired.value(),
        };
        if let Some(conclude) = self.conclude {
            conclude(&mut desired["status"], outcomes);
        }
        let version = *self.own_version.lock().expect("nothing panics while it holds this");
        let span = tracing::debug_span!("step", verb = root.action.verb(), object = %root.target);
        self.status(base, &desired, version).instrument(span).await
    }
}

impl Hands<'_> {
    async fn act(&self, step: &Step<Object>) -> Result<Effect, Failure> {
        let attempted = || format!("{} {}", step.action.verb(), step.target);
        match &step.action {
            Action::NoOp { .. } => Ok(Effect::None),
            Action::Call { call, .. } if call.name.starts_with(AWAIT) => match call.arguments.get(UNMET) {
                Some(unmet) => Err(Failure::waiting(unmet.clone())),
                None => Ok(Effect::None),
            },
            Action::Call { call, .. } => Err(Failure::terminal(format!(
                "{}: nobody here knows the call {:?}",
                attempted(),
                call.name
            ))),
            Action::Create { desired } if is_event(desired) => {
                // What was put behind a step that did something tells of it.
                let happened = {
                    let effective = self.effective();
                    self.plan
                        .earlier_than(&step.key())
                        .any(|earlier| effective.contains(earlier))
                };
                let tells = if happened { Tells::Happening } else { Tells::State };
                if self.ground.fence.check().is_ok() {
                    self.events.publish(self.ground.cache.client(), desired, tells).await;
                }
                Ok(Effect::None)
            }
            Action::Create { desired } => self.create(desired).await,
            Action::Apply { desired, base } => self.apply(desired, base.as_ref()).await,
            Action::Patch { desired, base } => self.patch(desired, base).await,
            Action::Delete { base, propagation } => self.delete(base, *propagation).await,
            Action::Status { desired, base } => self.status(base, &desired.value(), base.version()).await,
        }
    }

    async fn create(&self, desired: &Object) -> Result<Effect, Failure> {
        let target = desired.target();
        let path = target
            .kind
            .path((!target.namespace.is_empty()).then_some(&*target.namespace));
        let path = format!("{path}?{}", query(&[("fieldManager", self.field_owner)]));
        let content = ("application/json", desired.json().to_vec());
        let answer = self.write(Method::POST, &path, content, &target).await;
        match answer {
            Ok(object) => Ok(written(&object)),
            Err(error) if error.reason() == "AlreadyExists" => self.accept_existing(desired, &target).await,
            Err(error) => Err(refusal("create", &target, &error)),
        }
    }

    /// A create that finds its own object, whose answer was lost, has succeeded.
    async fn accept_existing(&self, desired: &Object, target: &Target) -> Result<Effect, Failure> {
        let existing = self.way_to(target)?.get(target).await;
        let existing = existing.map_err(|error| refusal("look at", target, &error))?;
        let owner = desired.controller().map(|owner| &owner.uid);
        match existing {
            Some(existing) if existing.controller().map(|owner| &owner.uid) == owner && !existing.is_deleting() => {
                Ok(written(&existing))
            }
            Some(existing) if existing.is_deleting() => {
                Err(Failure::waiting(format!("{target} exists and is being deleted")))
            }
            Some(_) => Err(Failure::retry(format!(
                "cannot create {target}: it exists and belongs to somebody else"
            ))),
            None => Err(Failure::waiting(format!(
                "{target} was there and is gone, looking again"
            ))),
        }
    }

    async fn apply(&self, desired: &Object, base: Option<&Object>) -> Result<Effect, Failure> {
        let target = desired.target();
        let step = StepKey {
            target: target.clone(),
            part: Part::Object,
        };
        if base.is_some_and(|base| self.settled.holds(&step, desired.json(), base.version())) {
            return Ok(Effect::None);
        }
        // In a member only what carries our label is watched, so what somebody else has there is not seen before.
        let is_ours = match base {
            None if target.cluster.is_some() => self.is_ours_in_member(desired, &target).await?,
            _ => true,
        };
        let force = if is_ours { "true" } else { "false" };
        let parameters = [("fieldManager", self.field_owner), ("force", force)];
        let path = format!("{}?{}", path_of(&target), query(&parameters));
        let content = ("application/apply-patch+yaml", desired.json().to_vec());
        let object = self
            .write(Method::PATCH, &path, content, &target)
            .await
            .map_err(|error| refusal("apply", &target, &error))?;
        self.settled.remember(step, desired.json(), object.version());
        if base.is_some_and(|base| base.version() == object.version()) {
            return Ok(Effect::None);
        }
        Ok(written(&object))
    }

    /// Whether an object in a member, which the cache does not show, is there and ours. Fails if it is somebody else's.
    async fn is_ours_in_member(&self, desired: &Object, target: &Target) -> Result<bool, Failure> {
        let existing = self.way_to(target)?.get_keeping(target, self.field_owner).await;
        let existing = existing.map_err(|error| refusal("look at", target, &error))?;
        let Some(existing) = existing else {
            return Ok(false);
        };
        let is_ours = match existing.label(OWNER_LABEL) {
            owner @ Some(_) => owner == desired.label(OWNER_LABEL),
            // What we applied and somebody took the label from.
            None => !existing.meta().applied.is_empty(),
        };
        if is_ours {
            Ok(true)
        } else {
            Err(Failure::retry(format!(
                "cannot apply {target}: it exists and belongs to somebody else"
            )))
        }
    }

    async fn patch(&self, desired: &Object, base: &Object) -> Result<Effect, Failure> {
        let target = desired.target();
        let uid_of = |object: &Object| object.controller().map(|owner| Arc::clone(&owner.uid));
        if uid_of(base).is_none()
            && let (Some(adopter), Some(own)) = (uid_of(desired), self.plan.root().base())
            && *adopter == *own.uid()
        {
            self.may_adopt(&adopter, &target).await?;
        }
        let difference = difference(&base.value(), &desired.value()).unwrap_or_else(|| json!({}));
        let Some(object) = self.merge(&target, "", difference, base.uid(), base.version()).await? else {
            self.conflicted.store(true, Ordering::Relaxed);
            return Err(Failure::waiting(format!("{target} is gone, looking again")));
        };
        self.note_own(base, object.version());
        // What the server makes of a change may be what was there.
        if object.version() == base.version() {
            return Ok(Effect::None);
        }
        Ok(written(&object))
    }

    /// Before an object is taken under control, whoever takes it is asked for by name: one that has been deleted, which
    /// the cache may not know yet, would take it along.
    async fn may_adopt(&self, uid: &str, orphan: &Target) -> Result<(), Failure> {
        let own = &self.plan.root().target;
        let adopter = self.may_adopt.get_or_try_init(|| async {
            let found = self.way_to(own)?.get(own).await;
            let found = found.map_err(|error| refusal("look at", own, &error))?;
            Ok::<_, Failure>(
                found
                    .filter(|found| !found.is_deleting())
                    .map(|found| found.uid().to_owned()),
            )
        });
        if adopter.await?.as_deref() == Some(uid) {
            return Ok(());
        }
        self.conflicted.store(true, Ordering::Relaxed);
        Err(Failure::waiting(format!(
            "{own} has been deleted, so {orphan} is left alone"
        )))
    }

    /// Writes the status, and with it the annotations that belong to it.
    async fn status(&self, base: &Object, desired: &Value, version: u64) -> Result<Effect, Failure> {
        let target = base.target();
        let before = base.value();
        let mut patch = Map::new();
        if let Some(difference) = difference(&before["status"], &desired["status"]) {
            patch.insert("status".to_owned(), difference);
        }
        let annotations = |of: &Value| of["metadata"]["annotations"].clone();
        if let Some(difference) = difference(&annotations(&before), &annotations(desired)) {
            patch.insert("metadata".to_owned(), json!({ "annotations": difference }));
        }
        if patch.is_empty() {
            return Ok(Effect::None);
        }
        let wanted = format!("{}{}", desired["status"], annotations(desired));
        let step = StepKey {
            target: target.clone(),
            part: Part::Status,
        };
        if self.settled.holds(&step, wanted.as_bytes(), version) {
            return Ok(Effect::None);
        }
        let Some(object) = self
            .merge(&target, "/status", Value::Object(patch), base.uid(), version)
            .await?
        else {
            // Nobody is left to be told; it went with its last finalizer, or behind our back.
            return Ok(Effect::None);
        };
        self.settled.remember(step, wanted.as_bytes(), object.version());
        self.note_own(base, object.version());
        Ok(written(&object))
    }

    /// A merge patch that only takes effect on the very object and version that was seen; `None` when it is gone.
    async fn merge(
        &self,
        target: &Target,
        part: &str,
        mut patch: Value,
        uid: &str,
        version: u64,
    ) -> Result<Option<Object>, Failure> {
        patch["metadata"]["uid"] = uid.into();
        patch["metadata"]["resourceVersion"] = version.to_string().into();
        let place = format!(
            "{}{part}?{}",
            path_of(target),
            query(&[("fieldManager", self.field_owner)])
        );
        let content = ("application/merge-patch+json", patch.to_string().into_bytes());
        match self.write(Method::PATCH, &place, content, target).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            Err(error) => Err(refusal("patch", target, &error)),
        }
    }

    async fn delete(&self, base: &Object, propagation: Propagation) -> Result<Effect, Failure> {
        let target = base.target();
        // It has been asked for; now its finalizers have their time.
        if base.is_deleting() {
            return Ok(Effect::None);
        }
        let policy = match propagation {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        };
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy,
            "preconditions": { "uid": base.uid() },
        });
        let way = self.way_to(&target)?;
        let fenced = |fenced| Failure::retry(format!("cannot delete {target}: {fenced}"));
        self.ground.fence.check().map_err(fenced)?;
        let place = self.begin(&target);
        let content = ("application/json", options.to_string().into_bytes());
        let answer = way.send(Method::DELETE, &path_of(&target), Some(content)).await;
        match answer {
            Ok(bytes) => {
                // The object while it waits for its finalizers, a status when it is gone.
                let left = request::read(&target.kind, &bytes).ok();
                let left = left.filter(|object| object.uid() == base.uid() && object.is_deleting());
                if let Some(object) = left {
                    self.settle(place, Expect::Version(object.version()));
                    Ok(Effect::Written {
                        version: object.version(),
                    })
                } else {
                    self.settle(place, Expect::Gone(base.meta().uid.clone()));
                    Ok(Effect::Deleted)
                }
            }
            Err(error) if matches!(error.status(), Some(StatusCode::NOT_FOUND | StatusCode::CONFLICT)) => {
                // Gone, or another object has the name now; either way the one that was seen is not there.
                self.settle(place, Expect::Gone(base.meta().uid.clone()));
                Ok(Effect::Deleted)
            }
            Err(error) => {
                if !error.is_uncertain() {
                    self.settle(place, Expect::Version(0));
                }
                Err(refusal("delete", &target, &error))
            }
        }
    }

    fn effective(&self) -> MutexGuard<'_, HashSet<StepKey<Target>>> {
        self.effective.lock().expect("nothing panics while it holds this")
    }

    fn way_to(&self, target: &Target) -> Result<Way, Failure> {
        let unknown = || Failure::retry(format!("cannot reach {target}: its cluster is not known here"));
        self.ground.way_to(target).ok_or_else(unknown)
    }

    /// Sends a write whose answer is the object.
    async fn write(
        &self,
        method: Method,
        path: &str,
        content: (&str, Vec<u8>),
        target: &Target,
    ) -> Result<Object, RequestError> {
        let unsent = |why: String| RequestError::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: String::new(),
            message: why,
        };
        let way = self.ground.way_to(target);
        let way = way.ok_or_else(|| unsent("its cluster is not known here".to_owned()))?;
        self.ground.fence.check().map_err(|fenced| unsent(fenced.to_string()))?;
        let place = self.begin(target);
        let answer = way.send(method, path, Some(content)).await;
        let answer = answer.and_then(|bytes| request::read(&target.kind, &bytes));
        match &answer {
            Ok(object) => self.settle(place, Expect::Version(object.version())),
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => {
                self.conflicted.store(true, Ordering::Relaxed);
            }
            Err(error) if error.is_uncertain() => {}
            Err(_) => self.settle(place, Expect::Version(0)),
        }
        answer
    }

    /// Notes a write before it is sent: a future that is dropped leaves it behind as unknown.
    fn begin(&self, target: &Target) -> usize {
        let mut writes = self.writes.lock().expect("nothing panics while it holds this");
        writes.push(Write {
            target: target.clone(),
            expect: Expect::Unknown,
        });
        writes.len() - 1
    }

    fn settle(&self, place: usize, expect: Expect) {
        self.writes.lock().expect("nothing panics while it holds this")[place].expect = expect;
    }

    fn note_own(&self, base: &Object, version: u64) {
        let mut own = self.own_version.lock().expect("nothing panics while it holds this");
        if *own == base.version() {
            *own = version;
        }
    }
}

fn written(object: &Object) -> Effect {
    Effect::Written {
        version: object.version(),
    }
}

/// What a refusal means for the reconcile.
pub(crate) fn refusal(verb: &str, target: &Target, error: &RequestError) -> Failure {
    let message = format!("cannot {verb} {target}: {error}");
    match error.status() {
        // Whoever waits for a member is woken when it answers again.
        _ if error.is_of_absence() => Failure::waiting(message),
        // Somebody was faster: the next look, which waits for the cache to have seen it, decides anew.
        Some(StatusCode::CONFLICT) => Failure::waiting(message),
        Some(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) => Failure::terminal(message),
        _ => Failure::retry(message),
    }
}

/// The merge patch that turns one value into another; `None` when they are equal.
pub(crate) fn difference(from: &Value, to: &Value) -> Option<Value> {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            let mut patch = Map::new();
            for (name, value) in to {
                match from.get(name) {
                    Some(before) => {
                        if let Some(change) = difference(before, value) {
                            patch.insert(name.clone(), change);
                        }
                    }
                    None if value.is_null() => {}
                    None => {
                        patch.insert(name.clone(), value.clone());
                    }
                }
            }
            for (name, value) in from {
                if !to.contains_key(name) && !value.is_null() {
                    patch.insert(name.clone(), Value::Null);
                }
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        _ => (from != to).then(|| to.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_changes_one_value_into_the_other_and_nothing_else() {
        let from = json!({ "a": 1, "b": { "c": [1, 2], "d": 2 }, "gone": true });
        let to = json!({ "a": 1, "b": { "c": [1], "d": 2, "e": 3 }, "null": null });
        let patch = difference(&from, &to).unwrap();
        assert_eq!(patch, json!({ "b": { "c": [1], "e": 3 }, "gone": null }));
        assert_eq!(difference(&to, &to), None);
        assert_eq!(difference(&Value::Null, &json!({ "a": 1 })), Some(json!({ "a": 1 })));
    }

    #[test]
    fn what_a_refusal_means_depends_on_its_status() {
        let kind = crate::kind::Kind::of::<k8s_openapi::api::core::v1::Pod>();
        let target = Object::from_value(&kind, &json!({ "metadata": { "name": "a" } }))
            .unwrap()
            .target();
        let refused = |status| RequestError::Refused {
            status,
            reason: String::new(),
            message: "no".to_owned(),
        };
        let class = |status| refusal("apply", &target, &refused(status)).class;
        assert_eq!(class(StatusCode::CONFLICT), moorline_plan::Class::Waiting);
        assert_eq!(class(StatusCode::UNPROCESSABLE_ENTITY), moorline_plan::Class::Terminal);
        assert_eq!(class(StatusCode::FORBIDDEN), moorline_plan::Class::Retry);
        assert_eq!(
            refusal("apply", &target, &refused(StatusCode::FORBIDDEN)).message,
            "cannot apply Pod a: no"
        );
    }
}

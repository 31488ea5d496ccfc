//! `ReplicaSet` and `ReplicationController`: so many pods of one template.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    Pod, PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use moorline_machinery::selector::LabelSelector;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Aftermath, EventType, Kind, Object, Planner, Seen, Snapshot, Watchable, Watches};
use serde_json::{Value, json};

use crate::claim::{Candidate, claim, selector_of, selector_of_labels};
use crate::pods::{self, Availability};
use crate::wake;

/// At most so many pods are created or deleted in one reconcile.
const BURST: usize = 500;

/// The condition of a set whose pods cannot be made or taken away.
pub(crate) const FAILURE: &str = "ReplicaFailure";

/// What a kind that keeps replicas says of itself.
pub(crate) trait Replicated: Watchable + Sized {
    /// The name of its controller.
    const CONTROLLER: &'static str;
    fn replicas(&self) -> i32;
    fn selector(&self) -> Result<LabelSelector, Failure>;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn min_ready_seconds(&self) -> i32;
    fn status(&self, counted: &Counted, generation: i64) -> Result<Value, Failure>;
}

/// How many pods there are of each sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    all: i32,
    fully_labelled: i32,
    ready: i32,
    available: i32,
    terminating: i32,
}

/// Keeps as many pods of a template as are wanted.
pub(crate) struct Replicas<K>(std::marker::PhantomData<fn() -> K>);

impl<K> Replicas<K> {
    pub(crate) fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<K: Replicated> Actor for Replicas<K>
where
    K::Scope: 'static,
{
    type Object = K;

    fn name(&self) -> &str {
        K::CONTROLLER
    }

    fn watches(&self) -> Watches {
        Watches::of::<K>()
            .owns::<Pod>()
            .maps::<Pod>(wake::selecting(Kind::of::<K>()))
            .concluding(tell_failures)
            .naming_failures(pods::failures)
            .while_deleted()
    }

    fn plan(&self, plan: Planner<K>) -> Planner<K> {
        plan.transformer(transformer("replicas", keep_replicas::<K>))
    }
}

fn keep_replicas<K: Replicated>(snapshot: &Snapshot<K>, draft: &mut Draft<Object>) -> Result<Verdict, Failure>
where
    K::Scope: 'static,
{
    let set = snapshot.object();
    // A pod that has ended is left to whoever had it: it is no replica, and its log may be wanted.
    let candidate = |pod: &Seen<Pod>| {
        if pods::has_ended(pod) {
            Candidate::Settled
        } else {
            Candidate::Yes
        }
    };
    let claimed: Vec<Seen<Pod>> = claim(snapshot, &set.selector()?, draft, candidate)?;
    let counted = count(set, &claimed, snapshot.now());
    let mut active: Vec<Seen<Pod>> = claimed.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
    if !snapshot.raw().is_deleting() {
        let wanted = usize::try_from(set.replicas()).unwrap_or(0);
        if active.len() < wanted {
            create(snapshot, wanted - active.len(), draft)?;
        } else if active.len() > wanted {
            let surplus = active.len() - wanted;
            delete(snapshot, &mut active, surplus, draft)?;
        }
    }
    let status = set.status(&counted, snapshot.raw().generation())?;
    draft.put(snapshot.status(
        &status,
        format!("{} of {} pods are ready", counted.ready, set.replicas()),
    )?);
    Ok(look_again(set.min_ready_seconds(), &claimed, snapshot.now()))
}

fn create<K: Replicated>(snapshot: &Snapshot<K>, missing: usize, draft: &mut Draft<Object>) -> Result<(), Failure> {
    let template = snapshot.object().template();
    let template =
        template.ok_or_else(|| Failure::terminal("spec.template is missing: there is nothing to make pods of"))?;
    let prefix = format!("{}-", snapshot.raw().name());
    let mut made = Vec::with_capacity(missing.min(BURST));
    for nth in 0..missing.min(BURST) {
        let mut pod = pods::of_template(template);
        pod.metadata.generate_name = Some(prefix.clone());
        pod.metadata.name = Some(snapshot.fresh_name(&prefix, nth));
        let reason = format!(
            "{} replicas are wanted, {missing} are missing",
            snapshot.object().replicas()
        );
        let created = draft.put(snapshot.create(&pod, reason)?);
        // One is tried, then two, then four: where none can be made, as with a quota that is used up, one is refused.
        if nth > 0 {
            draft.after(&created, &made[(nth - 1) / 2])?;
        }
        made.push(created.clone());
        let note = format!("Created pod: {}", pod.metadata.name.as_deref().unwrap_or_default());
        let event = draft.put(snapshot.event(EventType::Normal, "SuccessfulCreate", &note)?);
        draft.after(&event, &created)?;
    }
    Ok(())
}

/// Tells in the condition `ReplicaFailure` why a pod could not be made or taken away; the next success withdraws it.
fn tell_failures(status: &mut Value, aftermath: &Aftermath<'_>) {
    let pod = Kind::of::<Pod>();
    let failed = aftermath
        .failed()
        .find(|failed| failed.step.target.kind == pod && matches!(failed.step.action.verb(), "create" | "delete"));
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let (known, mut conditions): (Vec<Value>, Vec<Value>) = conditions
        .into_iter()
        .partition(|condition| condition["type"] == FAILURE);
    if let Some(failed) = failed {
        let reason = if failed.step.action.verb() == "create" {
            "FailedCreate"
        } else {
            "FailedDelete"
        };
        let known = known.into_iter().find(|known| known["reason"] == reason);
        conditions.push(known.unwrap_or_else(|| {
            json!({
                "type": FAILURE, "status": "True", "reason": reason, "message": failed.why,
                "lastTransitionTime": Time(aftermath.now()),
            })
        }));
    }
    status["conditions"] = if conditions.is_empty() {
        Value::Null
    } else {
        conditions.into()
    };
}

fn delete<K: Replicated>(
    snapshot: &Snapshot<K>,
    active: &mut [Seen<Pod>],
    surplus: usize,
    draft: &mut Draft<Object>,
) -> Result<(), Failure>
where
    K::Scope: 'static,
{
    let on_node = peers_on_nodes(snapshot)?;
    pods::cheapest_first(active, |node| on_node.get(node).copied().unwrap_or(0));
    for pod in active.iter().take(surplus.min(BURST)) {
        let wanted = snapshot.object().replicas();
        let step = snapshot.delete(pod.raw(), format!("only {wanted} replicas are wanted"));
        // One that is being adopted is ours to delete when it is ours.
        if draft.get(&step.key()).is_some() {
            continue;
        }
        let deleted = draft.put(step);
        let note = format!("Deleted pod: {}", pod.name());
        let event = draft.put(snapshot.event(EventType::Normal, "SuccessfulDelete", &note)?);
        draft.after(&event, &deleted)?;
    }
    Ok(())
}

/// How many pods there are on each node of all the sets of the deployment that this set belongs to: in a roll-out old
/// pods beside new ones go first. A set of its own has no peers.
fn peers_on_nodes<K: Replicated>(snapshot: &Snapshot<K>) -> Result<HashMap<String, usize>, Failure>
where
    K::Scope: 'static,
{
    let mut on_node = HashMap::new();
    let Some(above) = snapshot.raw().controller() else {
        return Ok(on_node);
    };
    for set in snapshot.owned_by_uid::<K>(&above.uid)? {
        for pod in snapshot.owned_by::<Pod>(set.raw())? {
            if pods::is_active(&pod) {
                *on_node.entry(node_of(&pod)).or_default() += 1;
            }
        }
    }
    Ok(on_node)
}

fn node_of(pod: &Pod) -> String {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_default()
}

fn count<K: Replicated>(set: &K, claimed: &[Seen<Pod>], now: Timestamp) -> Counted {
    let labels = set
        .template()
        .and_then(|template| template.metadata.as_ref())
        .and_then(|meta| meta.labels.clone());
    let labels = labels.unwrap_or_default();
    let mut counted = Counted::default();
    for pod in claimed {
        if pod.is_deleting() && !pods::has_ended(pod) {
            counted.terminating += 1;
        }
        if !pods::is_active(pod) {
            continue;
        }
        counted.all += 1;
        counted.fully_labelled += i32::from(labels.iter().all(|(key, value)| pod.raw().label(key) == Some(value)));
        counted.ready += i32::from(pods::is_ready(pod));
        let availability = pods::availability(pod, set.min_ready_seconds(), now);
        counted.available += i32::from(availability == Availability::Available);
    }
    counted
}

/// A pod that is ready becomes available by the passing of time alone, which no event tells.
pub(crate) fn look_again(min_ready_seconds: i32, pods: &[Seen<Pod>], now: Timestamp) -> Verdict {
    let soonest: Option<Duration> = pods
        .iter()
        .filter(|pod| pods::is_active(pod))
        .filter_map(|pod| match pods::availability(pod, min_ready_seconds, now) {
            Availability::In(left) => Some(left),
            _ => None,
        })
        .min();
    match soonest {
        Some(after) => Verdict::LookAgain {
            after,
            reason: "a ready pod is not available yet".to_owned(),
        },
        None => Verdict::Continue,
    }
}

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn selector(&self) -> Result<LabelSelector, Failure> {
        self.spec
            .as_ref()
            .map_or(Ok(LabelSelector::NOTHING), |spec| selector_of(&spec.selector))
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn status(&self, counted: &Counted, generation: i64) -> Result<Value, Failure> {
        let conditions: Option<Vec<ReplicaSetCondition>> =
            self.status.as_ref().and_then(|status| status.conditions.clone());
        written(&ReplicaSetStatus {
            replicas: counted.all,
            fully_labeled_replicas: positive(counted.fully_labelled),
            ready_replicas: positive(counted.ready),
            available_replicas: positive(counted.available),
            terminating_replicas: Some(counted.terminating),
            observed_generation: Some(generation),
            conditions,
        })
    }
}

impl Replicated for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn selector(&self) -> Result<LabelSelector, Failure> {
        let labels = self.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        labels.map_or(Ok(LabelSelector::NOTHING), selector_of_labels)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn status(&self, counted: &Counted, generation: i64) -> Result<Value, Failure> {
        let conditions: Option<Vec<ReplicationControllerCondition>> =
            self.status.as_ref().and_then(|status| status.conditions.clone());
        written(&ReplicationControllerStatus {
            replicas: counted.all,
            fully_labeled_replicas: positive(counted.fully_labelled),
            ready_replicas: positive(counted.ready),
            available_replicas: positive(counted.available),
            observed_generation: Some(generation),
            conditions,
        })
    }
}

/// A count as the API writes it: none stands for zero.
pub(crate) fn positive(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

pub(crate) fn written(status: &impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(status).map_err(|error| Failure::terminal(format!("cannot write the status: {error}")))
}

//! `PodDisruptionBudget`: how many pods may be taken away on purpose right now.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use moorline_machinery::selector::LabelSelector;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Key, Kind, Object, Planner, Seen, Snapshot, Sources, Watches};

use crate::claim::selector_of;
use crate::deployment::{Rounding, scaled};
use crate::pods;

/// A pod that was to be evicted and is still there after this time was not evicted after all.
const EVICTION: Duration = Duration::from_mins(2);

/// Keeps the budgets' status.
pub(crate) struct DisruptionBudgets;

impl Actor for DisruptionBudgets {
    type Object = PodDisruptionBudget;

    fn name(&self) -> &'static str {
        "disruption-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<PodDisruptionBudget>()
            .maps::<Pod>(budgets_of)
            .sees::<ReplicaSet>()
            .sees::<Deployment>()
            .sees::<StatefulSet>()
            .sees::<ReplicationController>()
            .without_conditions()
    }

    fn plan(&self, plan: Planner<PodDisruptionBudget>) -> Planner<PodDisruptionBudget> {
        plan.transformer(transformer("budget", keep_budget))
    }
}

/// The budgets that a pod counts for.
fn budgets_of(pod: &Object, sources: &Sources) -> Vec<Key> {
    let budgets = sources
        .list(&Kind::of::<PodDisruptionBudget>(), Some(pod.namespace()))
        .into_iter();
    let selects = |budget: &Object| {
        let selector = budget.value()["spec"]["selector"].clone();
        !selector.is_null() && LabelSelector::from_json(Some(&selector)).is_ok_and(|selector| selector.matches(pod))
    };
    budgets.filter(selects).map(|budget| Key::of(&budget)).collect()
}

fn keep_budget(snapshot: &Snapshot<PodDisruptionBudget>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let spec = snapshot.object().spec.clone().unwrap_or_default();
    let selector = spec.selector.as_ref().map_or(Ok(LabelSelector::NOTHING), selector_of)?;
    let pods = snapshot.select::<Pod>(&selector)?;
    let (disrupted, again) = still_disrupted(snapshot, &pods);
    let now = snapshot.now();
    let healthy = pods
        .iter()
        .filter(|pod| pods::is_ready(pod) && !pod.is_deleting() && !disrupted.contains_key(pod.name()))
        .count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let counted = i32::try_from(pods.iter().filter(|pod| !pods::has_ended(pod)).count()).unwrap_or(i32::MAX);
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let expected = controlled(snapshot, &pods)?;
            (expected, (expected - scaled(most, expected, Rounding::Up)).max(0))
        }
        (None, Some(IntOrString::Int(least))) => (counted, *least),
        (None, Some(least)) => {
            let expected = controlled(snapshot, &pods)?;
            (expected, scaled(least, expected, Rounding::Up))
        }
        (None, None) => (counted, counted),
    };
    let allowed = if expected == 0 { 0 } else { (healthy - desired).max(0) };
    let generation = snapshot.raw().generation();
    let before = snapshot.object().status.clone().unwrap_or_default();
    let status = PodDisruptionBudgetStatus {
        observed_generation: Some(generation),
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        conditions: Some(conditions(before, allowed, generation, now)),
    };
    draft.put(snapshot.status(&status, format!("{healthy} pods are healthy, {desired} have to be"))?);
    Ok(again.map_or(Verdict::Continue, |after| Verdict::LookAgain {
        after,
        reason: "an eviction is under way".to_owned(),
    }))
}

/// The conditions with ours renewed; what others wrote stays.
fn conditions(before: PodDisruptionBudgetStatus, allowed: i32, generation: i64, now: Timestamp) -> Vec<Condition> {
    let (status, reason) = if allowed > 0 {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    let mut conditions = before.conditions.unwrap_or_default();
    let place = conditions
        .iter()
        .position(|condition| condition.type_ == "DisruptionAllowed");
    let known = place
        .map(|place| &conditions[place])
        .filter(|known| known.status == status);
    let ours = Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        observed_generation: Some(generation),
        last_transition_time: known.map_or(Time(now), |known| known.last_transition_time.clone()),
    };
    match place {
        Some(place) => conditions[place] = ours,
        None => conditions.push(ours),
    }
    conditions
}

/// Pods that were promised to an eviction and are not gone yet, and when the first promise runs out.
fn still_disrupted(
    snapshot: &Snapshot<PodDisruptionBudget>,
    pods: &[Seen<Pod>],
) -> (BTreeMap<String, Time>, Option<Duration>) {
    let status = snapshot.object().status.as_ref();
    let promised = status
        .and_then(|status| status.disrupted_pods.clone())
        .unwrap_or_default();
    let mut soonest: Option<Duration> = None;
    let mut still = BTreeMap::new();
    for (name, since) in promised {
        let left = EVICTION.saturating_sub(pods::elapsed(since.0, snapshot.now()));
        let is_there = pods.iter().any(|pod| pod.name() == name && !pod.is_deleting());
        if is_there && !left.is_zero() {
            soonest = Some(soonest.map_or(left, |soonest| soonest.min(left)));
            still.insert(name, since);
        }
    }
    (still, soonest)
}

/// How many pods the controllers of these pods are meant to have.
fn controlled(snapshot: &Snapshot<PodDisruptionBudget>, pods: &[Seen<Pod>]) -> Result<i32, Failure> {
    let mut scales: HashMap<String, i32> = HashMap::new();
    for pod in pods {
        let Some(owner) = pod.raw().controller() else { continue };
        let name = &*owner.name;
        let (uid, replicas) = match &*owner.kind {
            "ReplicaSet" => {
                let Some(set) = snapshot.get::<ReplicaSet>(name)? else {
                    continue;
                };
                let above = set
                    .raw()
                    .controller()
                    .filter(|owner| &*owner.kind == "Deployment")
                    .map(|owner| owner.name.clone());
                let deployment = match above {
                    Some(name) => snapshot.get::<Deployment>(&name)?,
                    None => None,
                };
                match deployment {
                    Some(deployment) => (
                        deployment.uid().to_owned(),
                        deployment.spec.as_ref().and_then(|spec| spec.replicas),
                    ),
                    None => (set.uid().to_owned(), set.spec.as_ref().and_then(|spec| spec.replicas)),
                }
            }
            "StatefulSet" => {
                let Some(set) = snapshot.get::<StatefulSet>(name)? else {
                    continue;
                };
                (set.uid().to_owned(), set.spec.as_ref().and_then(|spec| spec.replicas))
            }
            "ReplicationController" => {
                let Some(set) = snapshot.get::<ReplicationController>(name)? else {
                    continue;
                };
                (set.uid().to_owned(), set.spec.as_ref().and_then(|spec| spec.replicas))
            }
            _ => continue,
        };
        scales.insert(uid, replicas.unwrap_or(1));
    }
    Ok(scales.values().sum())
}

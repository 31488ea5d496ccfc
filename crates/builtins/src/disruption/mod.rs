//! `PodDisruptionBudget`: how many pods may be taken away on purpose right now.

mod expected;
mod stale;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use moorline_machinery::selector::LabelSelector;
use moorline_plan::{Class, Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Key, Kind, Object, Planner, Seen, Snapshot, Sources, Watches};

use self::expected::{Expectation, expectation};
pub(crate) use self::stale::StaleDisruptions;
use crate::claim::selector_of;
use crate::pods;

/// A pod that was to be evicted and is still there after this time was not evicted after all.
const EVICTION: Duration = Duration::from_mins(2);
/// When to look again at what could not be counted: its kind may be served by then.
const RECOUNT: Duration = Duration::from_mins(1);

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
            .sees_scales()
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
    if pods.is_empty() {
        draft.put(snapshot.event(EventType::Normal, "NoPods", "No matching pods found")?);
    }
    let expectation = match expectation(snapshot, &spec, &pods) {
        Ok(expectation) => expectation,
        Err(waiting) if waiting.class == Class::Waiting => return Err(waiting),
        Err(failure) => return fail_safe(snapshot, draft, &failure.message),
    };
    if expectation.unmanaged {
        let note = format!(
            "Some of the pods that this budget selects ({selector}) have no controller, so nobody says how many there \
             should be and they are not expected. Set .spec.minAvailable to a number to account for them."
        );
        draft.put(snapshot.event(EventType::Warning, "UnmanagedPods", &note)?);
    }
    let Expectation { expected, desired, .. } = expectation;
    let (disrupted, again) = still_disrupted(snapshot, &pods);
    let now = snapshot.now();
    let healthy = pods
        .iter()
        .filter(|pod| pods::is_ready(pod) && !pod.is_deleting() && !disrupted.contains_key(pod.name()))
        .count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    // Where no pod is expected none may go, so that the first ones are safe until they have been counted.
    let allowed = if expected == 0 { 0 } else { (healthy - desired).max(0) };
    let generation = snapshot.raw().generation();
    let before = snapshot.object().status.clone().unwrap_or_default();
    let standing = if allowed > 0 {
        ("True", "SufficientPods", "")
    } else {
        ("False", "InsufficientPods", "")
    };
    let status = PodDisruptionBudgetStatus {
        observed_generation: Some(generation),
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        conditions: Some(conditions(before.conditions, standing, Some(generation), now)),
    };
    draft.put(snapshot.status(&status, format!("{healthy} pods are healthy, {desired} have to be"))?);
    Ok(again.map_or(Verdict::Continue, |after| Verdict::LookAgain {
        after,
        reason: "an eviction is under way".to_owned(),
    }))
}

/// How many have to be there cannot be told: until it can, none may go.
fn fail_safe(
    snapshot: &Snapshot<PodDisruptionBudget>,
    draft: &mut Draft<Object>,
    why: &str,
) -> Result<Verdict, Failure> {
    let note = format!("Failed to calculate the number of expected pods: {why}");
    draft.put(snapshot.event(EventType::Warning, "CalculateExpectedPodCountFailed", &note)?);
    let before = snapshot.object().status.clone().unwrap_or_default();
    let standing = ("False", "SyncFailed", why);
    let status = PodDisruptionBudgetStatus {
        current_healthy: before.current_healthy.or(Some(0)),
        desired_healthy: before.desired_healthy.or(Some(0)),
        expected_pods: before.expected_pods.or(Some(0)),
        disruptions_allowed: Some(0),
        conditions: Some(conditions(
            before.conditions,
            standing,
            before.observed_generation,
            snapshot.now(),
        )),
        ..before
    };
    draft.put(snapshot.status(&status, why)?);
    Ok(Verdict::LookAgain {
        after: RECOUNT,
        reason: why.to_owned(),
    })
}

/// The conditions with ours renewed (status, reason, message); what others wrote stays.
fn conditions(
    before: Option<Vec<Condition>>,
    (status, reason, message): (&str, &str, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = before.unwrap_or_default();
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
        message: message.to_owned(),
        observed_generation: generation,
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

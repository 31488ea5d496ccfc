//! Pods that were about to be disrupted, and are still there because whoever meant to did not.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Object, Planner, Snapshot, Watches};

use crate::pods;

/// How long a pod may say that it is about to be disrupted before nobody believes it any more.
const PATIENCE: Duration = Duration::from_mins(2);
const TARGET: &str = "DisruptionTarget";

/// Takes the condition `DisruptionTarget` back from pods that nobody deleted.
pub(crate) struct StaleDisruptions;

impl Actor for StaleDisruptions {
    type Object = Pod;

    fn name(&self) -> &'static str {
        "stale-disruption-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Pod>().without_conditions()
    }

    fn plan(&self, plan: Planner<Pod>) -> Planner<Pod> {
        plan.transformer(transformer("take back", take_back))
    }
}

fn take_back(snapshot: &Snapshot<Pod>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let pod = snapshot.object();
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    let place = conditions.unwrap_or_default().iter().position(is_target);
    let (Some(place), Some(status)) = (place, &pod.status) else {
        return Ok(Verdict::Continue);
    };
    if pods::has_ended(pod) {
        return Ok(Verdict::Continue);
    }
    let mut status = status.clone();
    let Some(condition) = status
        .conditions
        .as_mut()
        .and_then(|conditions| conditions.get_mut(place))
    else {
        return Ok(Verdict::Continue);
    };
    let since = condition.last_transition_time.as_ref();
    let lasted = since.map_or(PATIENCE, |since| pods::elapsed(since.0, snapshot.now()));
    let left = PATIENCE.saturating_sub(lasted);
    if !left.is_zero() {
        return Ok(Verdict::LookAgain {
            after: left,
            reason: "a disruption is under way".to_owned(),
        });
    }
    *condition = PodCondition {
        type_: TARGET.to_owned(),
        status: "False".to_owned(),
        observed_generation: condition.observed_generation,
        last_transition_time: Some(Time(snapshot.now())),
        ..PodCondition::default()
    };
    draft.put(snapshot.status(&status, "it was to be disrupted, and nobody did")?);
    Ok(Verdict::Continue)
}

/// What the kubelet says about itself may take as long as it likes.
fn is_target(condition: &PodCondition) -> bool {
    let by_kubelet = condition.reason.as_deref() == Some("TerminationByKubelet");
    condition.type_ == TARGET && condition.status == "True" && !by_kubelet
}

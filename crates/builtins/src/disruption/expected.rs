//! How many pods there should be, by what their controllers are meant to have, and how many of them have to be well.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use moorline_plan::Failure;
use moorline_runtime::{Owner, Seen, Snapshot};

use crate::deployment::{Rounding, scaled};

/// What a budget expects of the pods that it selects.
#[derive(Default)]
pub(super) struct Expectation {
    /// How many there should be.
    pub(super) expected: i32,
    /// How many of them have to be healthy.
    pub(super) desired: i32,
    /// Whether some have no controller and were left out for that.
    pub(super) unmanaged: bool,
}

pub(super) fn expectation(
    snapshot: &Snapshot<PodDisruptionBudget>,
    spec: &PodDisruptionBudgetSpec,
    pods: &[Seen<Pod>],
) -> Result<Expectation, Failure> {
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let (expected, unmanaged) = controlled(snapshot, pods)?;
            Ok(Expectation {
                expected,
                desired: (expected - scaled(most, expected, Rounding::Up)).max(0),
                unmanaged,
            })
        }
        (None, Some(IntOrString::Int(least))) => Ok(Expectation {
            expected: i32::try_from(pods.len()).unwrap_or(i32::MAX),
            desired: *least,
            unmanaged: false,
        }),
        (None, Some(least)) => {
            let (expected, unmanaged) = controlled(snapshot, pods)?;
            Ok(Expectation {
                expected,
                desired: scaled(least, expected, Rounding::Up),
                unmanaged,
            })
        }
        (None, None) => Ok(Expectation::default()),
    }
}

/// How many pods the controllers of these pods are meant to have, and whether some have none.
fn controlled(snapshot: &Snapshot<PodDisruptionBudget>, pods: &[Seen<Pod>]) -> Result<(i32, bool), Failure> {
    let mut scales: HashMap<String, i32> = HashMap::new();
    let mut asked = HashSet::new();
    let mut unmanaged = false;
    for pod in pods {
        let Some(owner) = pod.raw().controller() else {
            unmanaged = true;
            continue;
        };
        if !asked.insert(&owner.uid) {
            continue;
        }
        let (uid, replicas) = scale_of(snapshot, owner)?
            .ok_or_else(|| Failure::retry(format!("found no controllers for pod {:?}", pod.name())))?;
        scales.insert(uid, replicas);
    }
    let sum = scales.into_values().fold(0, i32::saturating_add);
    Ok((sum, unmanaged))
}

/// Which controller counts for an owner, and how many pods it is meant to have; `None` if it is not there.
fn scale_of(snapshot: &Snapshot<PodDisruptionBudget>, owner: &Owner) -> Result<Option<(String, i32)>, Failure> {
    let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let name = &*owner.name;
    let of_set =
        |uid: &str, replicas: Option<i32>| (uid == &*owner.uid).then(|| (uid.to_owned(), replicas.unwrap_or(1)));
    Ok(match (group, &*owner.kind) {
        ("apps" | "extensions", "ReplicaSet") => {
            let set = snapshot.get::<ReplicaSet>(name)?.filter(|set| set.uid() == &*owner.uid);
            let Some(set) = set else { return Ok(None) };
            match set.raw().controller().filter(|owner| &*owner.kind == "Deployment") {
                // A roll-out has two sets, and is still meant to have as many pods as its deployment says.
                Some(above) => {
                    let deployment = snapshot.get::<Deployment>(&above.name)?;
                    let deployment = deployment.filter(|deployment| deployment.uid() == &*above.uid);
                    deployment.map(|deployment| {
                        let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
                        (deployment.uid().to_owned(), replicas.unwrap_or(1))
                    })
                }
                None => of_set(set.uid(), set.spec.as_ref().and_then(|spec| spec.replicas)),
            }
        }
        ("apps", "StatefulSet") => snapshot
            .get::<StatefulSet>(name)?
            .and_then(|set| of_set(set.uid(), set.spec.as_ref().and_then(|spec| spec.replicas))),
        ("", "ReplicationController") => snapshot
            .get::<ReplicationController>(name)?
            .and_then(|set| of_set(set.uid(), set.spec.as_ref().and_then(|spec| spec.replicas))),
        _ => {
            let scale = snapshot.scale_of(&owner.api_version, &owner.kind, name)?;
            scale.and_then(|scale| {
                let replicas = scale.spec.as_ref().and_then(|spec| spec.replicas);
                (scale.uid() == &*owner.uid).then(|| (scale.uid().to_owned(), replicas.unwrap_or(0)))
            })
        }
    })
}

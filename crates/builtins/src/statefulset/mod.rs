//! `StatefulSet`: pods with names and claims of their own, started and stopped in order.
//!
//! ```text
//!   web-0 ready ──► web-1 ready ──► web-2          growing, one after another
//!   web-0 ◄── web-1 gone ◄── web-2 gone            shrinking and updating, from the end
//! ```

mod claims;
mod instance;
mod status;

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use moorline_plan::{Draft, Failure, StepKey, Verdict, transformer};
use moorline_runtime::{Actor, Kind, Object, Planner, Seen, Snapshot, Target, Watches};

use self::instance::Making;
use crate::claim::{Candidate, claim, selector_of};
use crate::pods::{self, Availability};
use crate::replicas::look_again;
use crate::revisions::{Mark, REVISION_HASH, Revision, Revisions, named_after};
use crate::wake;

/// Runs stateful sets.
pub(crate) struct StatefulSets;

impl Actor for StatefulSets {
    type Object = StatefulSet;

    fn name(&self) -> &'static str {
        "statefulset-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<StatefulSet>()
            .owns::<Pod>()
            .owns::<ControllerRevision>()
            .maps::<Pod>(wake::selecting(Kind::of::<StatefulSet>()))
            .maps::<ControllerRevision>(named_after)
            .maps::<PersistentVolumeClaim>(claims::set_of)
            .without_conditions()
            .naming_failures(instance::failures)
            // One that is deleted in the foreground still tells how many are left.
            .while_deleted()
    }

    fn plan(&self, plan: Planner<StatefulSet>) -> Planner<StatefulSet> {
        plan.transformer(transformer("instances", keep_instances))
    }
}

/// A set as it was seen, with what follows from its specification.
pub(crate) struct Set<'s> {
    snapshot: &'s Snapshot<StatefulSet>,
    spec: StatefulSetSpec,
    revisions: Revisions,
    /// The revision that pods are made of below the partition while an update is under way.
    current: Revision,
    pods: BTreeMap<i32, Seen<Pod>>,
}

fn keep_instances(snapshot: &Snapshot<StatefulSet>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let set = Set::observe(snapshot, draft)?;
    let mut leaving = None;
    if !snapshot.raw().is_deleting() {
        let before_shrinking = set.claims(draft)?;
        leaving = set.keep(&before_shrinking, draft)?;
        let used: HashSet<String> = set
            .pods
            .values()
            .filter_map(|pod| pod.raw().label(REVISION_HASH).map(str::to_owned))
            .chain([set.current.name.clone()])
            .collect();
        set.revisions
            .clean_up(snapshot, &used, set.spec.revision_history_limit, draft);
    }
    status::write(&set, leaving, draft)?;
    let pods: Vec<Seen<Pod>> = set.pods.values().cloned().collect();
    Ok(look_again(set.min_ready(), &pods, snapshot.now()))
}

impl<'s> Set<'s> {
    fn observe(snapshot: &'s Snapshot<StatefulSet>, draft: &mut Draft<Object>) -> Result<Self, Failure> {
        let object = snapshot.object();
        let spec = object
            .spec
            .clone()
            .ok_or_else(|| Failure::terminal("spec is missing"))?;
        let status = object.status.as_ref();
        let collisions = status.and_then(|status| status.collision_count);
        let revisions = Revisions::observe(snapshot, Mark::Name, &spec.selector, &spec.template, collisions, draft)?;
        let current = status
            .and_then(|status| status.current_revision.as_deref())
            .and_then(|name| revisions.get(name));
        let current = current.unwrap_or_else(|| revisions.update.clone());
        let name = snapshot.raw().name();
        let candidate = |pod: &Seen<Pod>| {
            if instance::is_member(name, pod.name()) {
                Candidate::Yes
            } else {
                Candidate::No
            }
        };
        let claimed: Vec<Seen<Pod>> = claim(snapshot, &selector_of(&spec.selector)?, draft, candidate)?;
        let pods = claimed
            .into_iter()
            .filter_map(|pod| Some((instance::ordinal(name, pod.name())?, pod)))
            .collect();
        Ok(Self {
            snapshot,
            spec,
            revisions,
            current,
            pods,
        })
    }

    fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn first(&self) -> i32 {
        self.spec
            .ordinals
            .as_ref()
            .and_then(|ordinals| ordinals.start)
            .unwrap_or(0)
    }

    fn ordinals(&self) -> std::ops::Range<i32> {
        self.first()..self.first() + self.replicas()
    }

    fn is_parallel(&self) -> bool {
        self.spec.pod_management_policy.as_deref() == Some("Parallel")
    }

    fn is_updated_by_hand(&self) -> bool {
        self.spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref())
            == Some("OnDelete")
    }

    /// From which instance on an update goes; none if the strategy has no settings.
    fn partition(&self) -> Option<i32> {
        let strategy = self.spec.update_strategy.as_ref()?;
        Some(strategy.rolling_update.as_ref()?.partition.unwrap_or(0))
    }

    /// The revision that an instance is made of.
    ///
    /// Instances below the partition keep the current one, also when they are lost and made again. Without a partition,
    /// so do as many as were of the current one at the last look: those that the update has not come to.
    fn revision_for(&self, ordinal: i32) -> &Revision {
        let status = self.snapshot.object().status.as_ref();
        let current = || status.and_then(|status| status.current_replicas).unwrap_or(0);
        let kept = self.partition().unwrap_or_else(current);
        if !self.is_updated_by_hand() && ordinal < self.first().saturating_add(kept) {
            &self.current
        } else {
            &self.revisions.update
        }
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pods::availability(pod, self.min_ready(), self.snapshot.now()) == Availability::Available
    }

    /// Brings the instances to what is wanted, as far as order allows for now. Returns the one that goes to be updated.
    fn keep(&self, before_shrinking: &[StepKey<Target>], draft: &mut Draft<Object>) -> Result<Option<i32>, Failure> {
        let ordered = !self.is_parallel();
        let mut is_any_refused = false;
        // What is to be there, from the first.
        for ordinal in self.ordinals() {
            let Some(pod) = self.pods.get(&ordinal) else {
                is_any_refused |= self.create(ordinal, draft)? == Making::Refused;
                if ordered {
                    return Ok(None);
                }
                continue;
            };
            if pods::has_ended(pod) && !pod.is_deleting() {
                let reason = format!("it has ended as {} and is made again", pods::phase(pod));
                self.delete(pod, reason, draft)?;
                if ordered {
                    return Ok(None);
                }
                continue;
            }
            self.repair(ordinal, pod, draft)?;
            if ordered && !self.is_well(pod) {
                return Ok(None);
            }
        }
        if is_any_refused {
            return Ok(None);
        }
        // What is too much, from the last.
        let wanted = self.ordinals();
        let condemned = self.pods.iter().rev().filter(|(ordinal, _)| !wanted.contains(ordinal));
        let mut condemned = condemned.peekable();
        let any_condemned = condemned.peek().is_some();
        let first_unwell = self.pods.iter().find(|(_, pod)| !self.is_well(pod));
        let first_unwell = first_unwell.map(|(ordinal, _)| ordinal);
        for (ordinal, pod) in condemned {
            // One that is not well may be what keeps the others up: nothing goes but the first of those that are not.
            let is_waited_for = pod.is_deleting() || (!self.is_well(pod) && Some(ordinal) != first_unwell);
            if ordered && is_waited_for {
                return Ok(None);
            }
            if pod.is_deleting() {
                continue;
            }
            let reason = format!("only {} replicas are wanted", self.replicas());
            let deleted = self.delete(pod, reason, draft)?;
            for claim in before_shrinking {
                draft.after(&deleted, claim)?;
            }
            if ordered {
                return Ok(None);
            }
        }
        if any_condemned && ordered {
            return Ok(None);
        }
        self.update(draft)
    }

    /// Whether an instance can be counted on and is there to stay.
    fn is_well(&self, pod: &Seen<Pod>) -> bool {
        !pod.is_deleting() && self.is_available(pod)
    }

    /// Deletes the last instance that is of another revision, if all behind it are updated and well. It comes back
    /// updated. How those before it fare does not matter: the update may be what mends them.
    fn update(&self, draft: &mut Draft<Object>) -> Result<Option<i32>, Failure> {
        if self.is_updated_by_hand() {
            return Ok(None);
        }
        let target = &self.revisions.update;
        let first = self.first().saturating_add(self.partition().unwrap_or(0));
        for ordinal in self.ordinals().rev().take_while(|ordinal| *ordinal >= first) {
            let Some(pod) = self.pods.get(&ordinal) else {
                return Ok(None);
            };
            if !target.made(pod.raw()) && !pod.is_deleting() {
                self.delete(pod, format!("it is not of revision {}", target.name), draft)?;
                return Ok(Some(ordinal));
            }
            if !self.is_well(pod) {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

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
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Kind, Object, Planner, Seen, Snapshot, Watches};

use crate::claim::{Candidate, claim, selector_of};
use crate::deployment::{Rounding, scaled};
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
            .sees::<PersistentVolumeClaim>()
            .without_conditions()
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
    if !snapshot.raw().is_deleting() {
        set.keep(draft)?;
        set.claims(draft)?;
        let used: HashSet<String> = set
            .pods
            .values()
            .filter_map(|pod| pod.raw().label(REVISION_HASH).map(str::to_owned))
            .chain([set.current.name.clone()])
            .collect();
        set.revisions
            .clean_up(snapshot, &used, set.spec.revision_history_limit, draft);
    }
    status::write(&set, draft)?;
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
        let claimed: Vec<Seen<Pod>> = claim(snapshot, &selector_of(&spec.selector)?, draft, |_| Candidate::Yes)?;
        let pods = claimed
            .into_iter()
            .filter_map(|pod| Some((instance::ordinal(snapshot.raw().name(), pod.name())?, pod)))
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

    fn partition(&self) -> i32 {
        let rolling = self
            .spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref());
        rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
    }

    /// How many instances may be away at once while an update is under way.
    fn most_unavailable(&self) -> usize {
        let rolling = self
            .spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref());
        let most = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        most.map_or(1, |most| {
            usize::try_from(scaled(most, self.replicas(), Rounding::Up))
                .unwrap_or(1)
                .max(1)
        })
    }

    /// The revision that an instance is made of.
    ///
    /// Instances below the partition keep the current one, also when they are lost and made again.
    fn revision_for(&self, ordinal: i32) -> &Revision {
        let is_updating = self.current.name != self.revisions.update.name;
        let below_partition = !self.is_updated_by_hand() && ordinal < self.first() + self.partition();
        if is_updating && below_partition {
            &self.current
        } else {
            &self.revisions.update
        }
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pods::availability(pod, self.min_ready(), self.snapshot.now()) == Availability::Available
    }

    /// Brings the instances to what is wanted, as far as order allows for now.
    fn keep(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let ordered = !self.is_parallel();
        // What is to be there, from the first.
        for ordinal in self.ordinals() {
            let Some(pod) = self.pods.get(&ordinal) else {
                self.create(ordinal, draft)?;
                if ordered {
                    return Ok(());
                }
                continue;
            };
            if pods::has_ended(pod) && !pod.is_deleting() {
                let reason = format!("it has ended as {} and is made again", pods::phase(pod));
                draft.put(self.snapshot.delete(pod.raw(), reason));
                if ordered {
                    return Ok(());
                }
                continue;
            }
            self.repair(ordinal, pod, draft)?;
            if ordered && (pod.is_deleting() || !self.is_available(pod)) {
                return Ok(());
            }
        }
        // What is too much, from the last.
        let wanted = self.ordinals();
        let mut condemned: Vec<(&i32, &Seen<Pod>)> = self
            .pods
            .iter()
            .filter(|(ordinal, _)| !wanted.contains(ordinal))
            .collect();
        condemned.reverse();
        let any_condemned = !condemned.is_empty();
        let is_healthy = |pod: &Seen<Pod>| pods::is_ready(pod) && !pod.is_deleting();
        let first_unhealthy = self
            .pods
            .iter()
            .find(|(_, pod)| !is_healthy(pod))
            .map(|(ordinal, _)| ordinal);
        for (ordinal, pod) in condemned {
            if pod.is_deleting() {
                if ordered {
                    return Ok(());
                }
                continue;
            }
            // One that is not well may be what keeps the others up: nothing goes but the first of those that are not.
            if ordered && !is_healthy(pod) && Some(ordinal) != first_unhealthy {
                return Ok(());
            }
            draft.put(
                self.snapshot
                    .delete(pod.raw(), format!("only {} replicas are wanted", self.replicas())),
            );
            if ordered {
                return Ok(());
            }
        }
        if any_condemned && ordered {
            return Ok(());
        }
        self.update(draft);
        Ok(())
    }

    /// Deletes instances of another revision, from the last, while the others hold out. They come back updated.
    fn update(&self, draft: &mut Draft<Object>) {
        if self.is_updated_by_hand() {
            return;
        }
        let target = &self.revisions.update;
        let mut away = self
            .ordinals()
            .filter(|ordinal| {
                self.pods
                    .get(ordinal)
                    .is_none_or(|pod| pod.is_deleting() || !self.is_available(pod))
            })
            .count();
        let room = self.most_unavailable();
        for ordinal in self
            .ordinals()
            .rev()
            .filter(|ordinal| *ordinal >= self.first() + self.partition())
        {
            let Some(pod) = self.pods.get(&ordinal) else { continue };
            let is_old = !target.made(pod.raw());
            if pod.is_deleting() {
                continue;
            }
            let is_away = !self.is_available(pod);
            if is_old && (is_away || away < room) {
                draft.put(
                    self.snapshot
                        .delete(pod.raw(), format!("it is not of revision {}", target.name)),
                );
                away += usize::from(!is_away);
                if is_away && room == 1 {
                    return;
                }
            }
            if away >= room {
                return;
            }
        }
    }
}

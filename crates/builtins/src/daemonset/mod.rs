//! `DaemonSet`: one pod on every node that fits.

mod failures;
mod keep;
mod pod;
mod update;

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, Key, Kind, Object, Planner, Seen, Snapshot, Sources, Watches};

pub(crate) use self::failures::FAILED_DAEMONS;
use self::keep::Kept;
use crate::claim::{Candidate, claim, selector_of};
use crate::pods::{self, Availability};
use crate::replicas::{look_again, positive};
use crate::revisions::{Mark, REVISION_HASH, Revisions, named_after};
use crate::{placement, wake};

/// Runs daemon sets.
pub(crate) struct DaemonSets;

impl Actor for DaemonSets {
    type Object = DaemonSet;

    fn name(&self) -> &'static str {
        "daemonset-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<DaemonSet>()
            .owns::<Pod>()
            .owns::<ControllerRevision>()
            .maps::<Pod>(wake::selecting(Kind::of::<DaemonSet>()))
            .maps::<ControllerRevision>(named_after)
            .maps::<Node>(everyone)
            .without_conditions()
            .naming_failures(pods::failures)
    }

    fn plan(&self, plan: Planner<DaemonSet>) -> Planner<DaemonSet> {
        plan.transformer(transformer("daemons", keep_daemons))
    }
}

/// A node that changes may fit any of them.
fn everyone(_: &Object, sources: &Sources) -> Vec<Key> {
    sources
        .list(&Kind::of::<DaemonSet>(), None)
        .iter()
        .map(Key::of)
        .collect()
}

/// A set as it was seen, node by node.
pub(crate) struct Set<'s> {
    snapshot: &'s Snapshot<DaemonSet>,
    spec: DaemonSetSpec,
    revisions: Revisions,
    nodes: BTreeMap<String, OnNode>,
    /// The revisions that pods are of, those included that are only waiting to be gone.
    used: HashSet<String>,
}

/// What the set has on one node.
struct OnNode {
    wants: Wants,
    /// Those that are placed first, then by age. Those that have been deleted are included until they end.
    pods: Vec<Seen<Pod>>,
}

impl OnNode {
    /// The pods that nobody has deleted.
    fn standing(&self) -> impl Iterator<Item = &Seen<Pod>> {
        self.pods.iter().filter(|pod| !pod.is_deleting())
    }
}

/// Whether a node is one that the set wants to be on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    /// A pod shall run there.
    Run,
    /// A pod that is there may stay, a new one is not made.
    Stay,
    /// No pod shall be there.
    Nothing,
    /// There is no such node.
    IsGone,
}

fn keep_daemons(snapshot: &Snapshot<DaemonSet>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let set = Set::observe(snapshot, draft)?;
    let kept = set.keep(draft)?;
    if !kept.is_anything_planned {
        set.update(draft)?;
    }
    set.revisions
        .clean_up(snapshot, &set.used, set.spec.revision_history_limit, draft);
    set.tell(&kept, draft)?;
    let pods: Vec<Seen<Pod>> = set.nodes.values().flat_map(|node| node.pods.iter().cloned()).collect();
    let for_readiness = look_again(set.min_ready(), &pods, snapshot.now());
    Ok(match (for_readiness, kept.pause) {
        (Verdict::LookAgain { after, reason }, Some(pause)) if after <= pause => Verdict::LookAgain { after, reason },
        (_, Some(pause)) => Verdict::LookAgain {
            after: pause,
            reason: "a pod has failed again and is not replaced yet".to_owned(),
        },
        (verdict, None) => verdict,
    })
}

impl<'s> Set<'s> {
    fn observe(snapshot: &'s Snapshot<DaemonSet>, draft: &mut Draft<Object>) -> Result<Self, Failure> {
        let object = snapshot.object();
        let spec = object
            .spec
            .clone()
            .ok_or_else(|| Failure::terminal("spec is missing"))?;
        let collisions = object.status.as_ref().and_then(|status| status.collision_count);
        let revisions = Revisions::observe(snapshot, Mark::Hash, &spec.selector, &spec.template, collisions, draft)?;
        let template = spec.template.spec.clone().unwrap_or_default();
        let tolerations = pod::tolerations(&template);
        let mut nodes: BTreeMap<String, OnNode> = BTreeMap::new();
        for node in snapshot.list::<Node>(None)? {
            let wanted = placement::is_wanted(&template, &node);
            let wants = if wanted && placement::is_tolerated(&tolerations, &node, &["NoSchedule", "NoExecute"]) {
                Wants::Run
            } else if wanted && placement::is_tolerated(&tolerations, &node, &["NoExecute"]) {
                Wants::Stay
            } else {
                Wants::Nothing
            };
            let pods = Vec::new();
            nodes.insert(node.name().to_owned(), OnNode { wants, pods });
        }
        let mut claimed: Vec<Seen<Pod>> = claim(snapshot, &selector_of(&spec.selector)?, draft, |_| Candidate::Yes)?;
        claimed.sort_by_key(|pod| {
            let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (!pod::is_placed(pod), created, pod.name().to_owned())
        });
        let marks = claimed.iter().filter_map(|pod| pod.raw().label(REVISION_HASH));
        let used = marks.map(str::to_owned).collect();
        for pod in claimed {
            // One that has ended and is deleted is waiting for somebody's finalizer; its node waits no longer.
            if pods::has_ended(&pod) && pod.is_deleting() {
                continue;
            }
            let Some(node) = pod::target_node(&pod) else {
                continue;
            };
            let gone = || OnNode {
                wants: Wants::IsGone,
                pods: Vec::new(),
            };
            nodes.entry(node).or_insert_with(gone).pods.push(pod);
        }
        Ok(Self {
            snapshot,
            spec,
            revisions,
            nodes,
            used,
        })
    }

    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pods::availability(pod, self.min_ready(), self.snapshot.now()) == Availability::Available
    }

    /// Plans the status. Of several pods on a node the first speaks for it: while an old one serves beside a new one,
    /// the node is not updated.
    fn tell(&self, kept: &Kept, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let before = self.snapshot.object().status.as_ref();
        let mut status = DaemonSetStatus {
            observed_generation: Some(self.snapshot.raw().generation()),
            collision_count: self.revisions.collisions,
            conditions: before.and_then(|status| status.conditions.clone()),
            ..DaemonSetStatus::default()
        };
        let (mut updated, mut available) = (0, 0);
        for node in self.nodes.values() {
            let first = node.pods.first();
            match node.wants {
                Wants::Run => status.desired_number_scheduled += 1,
                Wants::Stay | Wants::Nothing => {
                    status.number_misscheduled += i32::from(first.is_some());
                    continue;
                }
                Wants::IsGone => continue,
            }
            let Some(pod) = first else { continue };
            status.current_number_scheduled += 1;
            status.number_ready += i32::from(pods::is_ready(pod));
            available += i32::from(self.is_available(pod));
            updated += i32::from(self.is_updated(pod));
        }
        status.updated_number_scheduled = positive(updated);
        status.number_available = positive(available);
        status.number_unavailable = positive(status.desired_number_scheduled - available);
        let reason = format!(
            "{} of {} daemons are ready",
            status.number_ready, status.desired_number_scheduled
        );
        let failures = kept
            .failures
            .as_ref()
            .map(|failures| (FAILED_DAEMONS, failures.written()));
        let annotations: Vec<(&str, String)> = failures.into_iter().collect();
        draft.put(self.snapshot.status_with(&status, &annotations, reason)?);
        Ok(())
    }
}

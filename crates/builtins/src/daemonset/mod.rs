//! `DaemonSet`: one pod on every node that fits.

mod update;

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Key, Kind, Object, Planner, Seen, Snapshot, Sources, Watches};

use crate::claim::{Candidate, claim, selector_of};
use crate::pods::{self, Availability};
use crate::replicas::{look_again, positive};
use crate::revisions::{Mark, REVISION_HASH, Revisions, named_after};
use crate::{placement, template, wake};

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
}

/// What the set has on one node.
struct OnNode {
    wants: Wants,
    /// Oldest first; those that have been deleted included.
    pods: Vec<Seen<Pod>>,
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
}

fn keep_daemons(snapshot: &Snapshot<DaemonSet>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let set = Set::observe(snapshot, draft)?;
    if !snapshot.raw().is_deleting() {
        set.keep(draft)?;
        set.update(draft)?;
        let pods = set.nodes.values().flat_map(|node| &node.pods);
        let used: HashSet<String> = pods
            .filter_map(|pod| pod.raw().label(REVISION_HASH).map(str::to_owned))
            .collect();
        set.revisions
            .clean_up(snapshot, &used, set.spec.revision_history_limit, draft);
    }
    set.tell(draft)?;
    let pods: Vec<Seen<Pod>> = set.nodes.values().flat_map(|node| node.pods.iter().cloned()).collect();
    Ok(look_again(set.min_ready(), &pods, snapshot.now()))
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
        let tolerations = tolerations(&template);
        let mut nodes: BTreeMap<String, OnNode> = BTreeMap::new();
        for node in snapshot.list::<Node>(None)? {
            let wanted = placement::is_wanted(&template, &node) && !node.is_deleting();
            let wants = if wanted && placement::is_tolerated(&tolerations, &node, &["NoSchedule", "NoExecute"]) {
                Wants::Run
            } else if wanted && placement::is_tolerated(&tolerations, &node, &["NoExecute"]) {
                Wants::Stay
            } else {
                Wants::Nothing
            };
            nodes.insert(
                node.name().to_owned(),
                OnNode {
                    wants,
                    pods: Vec::new(),
                },
            );
        }
        let mut claimed: Vec<Seen<Pod>> = claim(snapshot, &selector_of(&spec.selector)?, draft, |_| Candidate::Yes)?;
        claimed.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        for pod in claimed {
            let node = target_node(&pod);
            nodes
                .entry(node)
                .or_insert(OnNode {
                    wants: Wants::Nothing,
                    pods: Vec::new(),
                })
                .pods
                .push(pod);
        }
        Ok(Self {
            snapshot,
            spec,
            revisions,
            nodes,
        })
    }

    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pods::availability(pod, self.min_ready(), self.snapshot.now()) == Availability::Available
    }

    fn is_updated(&self, pod: &Seen<Pod>) -> bool {
        pod.raw().label(REVISION_HASH) == Some(&self.revisions.update.mark)
    }

    /// One pod on each node that wants one, none elsewhere. Pods that have ended are replaced.
    fn keep(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let mut fresh = 0;
        for (name, node) in &self.nodes {
            let there: Vec<&Seen<Pod>> = node.pods.iter().filter(|pod| !pod.is_deleting()).collect();
            let (ended, alive): (Vec<&Seen<Pod>>, Vec<&Seen<Pod>>) =
                there.into_iter().partition(|pod| pods::has_ended(pod));
            if node.wants == Wants::Nothing {
                for pod in ended.into_iter().chain(alive) {
                    draft.put(self.snapshot.delete(pod.raw(), format!("node {name} does not fit")));
                }
                continue;
            }
            for pod in &ended {
                let phase = pods::phase(pod);
                let note = format!(
                    "Found failed daemon pod {}/{} on node {name}, will try to kill it",
                    pod.raw().namespace(),
                    pod.name()
                );
                if phase == "Failed" {
                    draft.put(self.snapshot.event(EventType::Warning, "FailedDaemonPod", &note)?);
                }
                draft.put(self.snapshot.delete(pod.raw(), format!("it has ended as {phase}")));
            }
            // One that is on its way out still has its place: the next comes when it is gone.
            if node.pods.is_empty() && node.wants == Wants::Run {
                self.create(name, &mut fresh, draft)?;
            } else if self.surge() == 0 {
                for pod in alive.iter().skip(1) {
                    draft.put(self.snapshot.delete(pod.raw(), format!("node {name} has another one")));
                }
            }
        }
        Ok(())
    }

    /// Plans a pod for a node, which the scheduler may place there only.
    fn create(&self, node: &str, fresh: &mut usize, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let mut pod = pods::of_template(&self.spec.template);
        let prefix = format!("{}-", self.snapshot.raw().name());
        pod.metadata.generate_name = Some(prefix.clone());
        pod.metadata.name = Some(self.snapshot.fresh_name(&prefix, node_number(node, *fresh)));
        *fresh += 1;
        template::label(&mut pod.metadata.labels, REVISION_HASH, &self.revisions.update.mark);
        let spec = pod.spec.get_or_insert_default();
        spec.tolerations = Some(tolerations(spec));
        bind_to(spec, node);
        let key = draft.put(self.snapshot.create(&pod, format!("node {node} has none"))?);
        self.revisions.come_first(&key, draft)?;
        let told = format!("Created pod: {}", pod.metadata.name.unwrap_or_default());
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulCreate", &told)?);
        draft.after(&event, &key)?;
        Ok(())
    }

    fn tell(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let mut status = DaemonSetStatus {
            observed_generation: Some(self.snapshot.raw().generation()),
            collision_count: self.revisions.collisions,
            conditions: self
                .snapshot
                .object()
                .status
                .as_ref()
                .and_then(|status| status.conditions.clone()),
            ..DaemonSetStatus::default()
        };
        let (mut updated, mut available) = (0, 0);
        for node in self.nodes.values() {
            let alive: Vec<&Seen<Pod>> = node.pods.iter().filter(|pod| pods::is_active(pod)).collect();
            if node.wants != Wants::Run {
                status.number_misscheduled += i32::from(!alive.is_empty() && node.wants == Wants::Nothing);
                if node.wants == Wants::Nothing || alive.is_empty() {
                    continue;
                }
            }
            status.desired_number_scheduled += 1;
            status.current_number_scheduled += i32::from(!alive.is_empty());
            status.number_ready += i32::from(alive.iter().any(|pod| pods::is_ready(pod)));
            available += i32::from(alive.iter().any(|pod| self.is_available(pod)));
            updated += i32::from(alive.iter().any(|pod| self.is_updated(pod)));
        }
        status.updated_number_scheduled = positive(updated);
        status.number_available = positive(available);
        status.number_unavailable = positive(status.desired_number_scheduled - available);
        let reason = format!(
            "{} of {} daemons are ready",
            status.number_ready, status.desired_number_scheduled
        );
        draft.put(self.snapshot.status(&status, reason)?);
        Ok(())
    }
}

/// A number that is another one for each node, so that names stay the same whatever happens on other nodes.
fn node_number(node: &str, nth: usize) -> usize {
    let hash = template::short_hash(&node, None);
    hash.bytes().fold(nth, |number, byte| {
        number.wrapping_mul(31).wrapping_add(usize::from(byte))
    })
}

/// The node that a pod was made for, whether or not it has been placed.
fn target_node(pod: &Pod) -> String {
    let Some(spec) = pod.spec.as_ref() else {
        return String::new();
    };
    if let Some(node) = spec.node_name.clone().filter(|node| !node.is_empty()) {
        return node;
    }
    let terms = required(spec)
        .map(|required| required.node_selector_terms.as_slice())
        .unwrap_or_default();
    let fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    fields
        .filter(|field| field.key == "metadata.name")
        .find_map(|field| field.values.as_ref()?.first().cloned())
        .unwrap_or_default()
}

fn required(spec: &PodSpec) -> Option<&NodeSelector> {
    spec.affinity
        .as_ref()?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()
}

/// Restricts a pod to one node, within whatever else it asks for.
fn bind_to(spec: &mut PodSpec, node: &str) {
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    // The node was chosen by the whole affinity, so its name alone may stand for it.
    for term in &mut required.node_selector_terms {
        term.match_expressions = None;
        term.match_fields = Some(vec![by_name.clone()]);
    }
    required.node_selector_terms.truncate(1);
}

/// What daemons tolerate beyond what they say: that their node is in trouble.
fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut tolerations = spec.tolerations.clone().unwrap_or_default();
    let network = spec.host_network == Some(true);
    let always = [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ];
    let of_network = [("node.kubernetes.io/network-unavailable", "NoSchedule")];
    for (key, effect) in always.into_iter().chain(of_network.into_iter().filter(|_| network)) {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    tolerations
}

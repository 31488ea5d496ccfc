//! A daemon's pod: what it has from being on its node.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use moorline_plan::{Draft, Failure};
use moorline_runtime::{EventType, Object, Seen};

use super::Set;
use crate::revisions::REVISION_HASH;
use crate::{pods, template};

/// The label by which a pod tells how often the template had changed when it was made, and the set's annotation that
/// tells how often it has. Both are from before revisions, and hold on where a revision is lost.
const GENERATION: &str = "pod-template-generation";
const GENERATION_OF_SET: &str = "deprecated.daemonset.template.generation";

impl Set<'_> {
    /// How often the template has changed, if the set says so.
    fn template_generation(&self) -> Option<i64> {
        pods::annotation(&self.snapshot.object().metadata, GENERATION_OF_SET)?
            .parse()
            .ok()
    }

    /// Whether a pod is of the present template.
    pub(super) fn is_updated(&self, pod: &Seen<Pod>) -> bool {
        let generation = self.template_generation().map(|generation| generation.to_string());
        self.revisions.update.made(pod.raw())
            || (generation.is_some() && pod.raw().label(GENERATION) == generation.as_deref())
    }

    /// Plans a pod for a node, which the scheduler may place there only.
    pub(super) fn create(&self, node: &str, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let mut pod = pods::of_template(&self.spec.template);
        let prefix = format!("{}-", self.snapshot.raw().name());
        pod.metadata.generate_name = Some(prefix.clone());
        pod.metadata.name = Some(self.snapshot.fresh_name(&prefix, node_number(node)));
        template::label(&mut pod.metadata.labels, REVISION_HASH, &self.revisions.update.mark);
        if let Some(generation) = self.template_generation() {
            template::label(&mut pod.metadata.labels, GENERATION, &generation.to_string());
        }
        let spec = pod.spec.get_or_insert_default();
        spec.tolerations = Some(tolerations(spec));
        bind_to(spec, node);
        let key = draft.put(self.snapshot.create(&pod, format!("node {node} wants one"))?);
        self.revisions.come_first(&key, draft)?;
        let told = format!("Created pod: {}", pod.metadata.name.unwrap_or_default());
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulCreate", &told)?);
        draft.after(&event, &key)?;
        Ok(())
    }

    /// Plans the end of a pod.
    pub(super) fn delete(&self, pod: &Seen<Pod>, reason: String, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let key = draft.put(self.snapshot.delete(pod.raw(), reason));
        let told = format!("Deleted pod: {}", pod.name());
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulDelete", &told)?);
        draft.after(&event, &key)?;
        Ok(())
    }
}

/// A number that is another one for each node, so that names stay the same whatever happens on other nodes.
fn node_number(node: &str) -> usize {
    let hash = template::short_hash(&node, None);
    hash.bytes().fold(0_usize, |number, byte| {
        number.wrapping_mul(31).wrapping_add(usize::from(byte))
    })
}

/// The node that a pod was made for, whether or not it has been placed.
pub(super) fn target_node(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if is_placed(pod) {
        return spec.node_name.clone();
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let mut fields = required
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    let name = fields.find(|field| field.key == "metadata.name" && field.operator == "In")?;
    match name.values.as_deref()? {
        [node] => Some(node.clone()),
        _ => None,
    }
}

/// Whether a scheduler has given it a node.
pub(super) fn is_placed(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
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

/// What daemons tolerate beyond what they say: that their node is in trouble, for however long.
pub(super) fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
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
        let is_the_same = |given: &Toleration| {
            let endless = Toleration {
                toleration_seconds: None,
                ..given.clone()
            };
            endless == toleration
        };
        // The shorter of two would rule, so one that ends gives way.
        match tolerations.iter_mut().find(|given| is_the_same(given)) {
            Some(given) => *given = toleration,
            None => tolerations.push(toleration),
        }
    }
    tolerations
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_toleration_that_ends_gives_way_to_the_one_that_does_not() {
        let spec: PodSpec = serde_json::from_value(json!({ "containers": [], "tolerations": [
            { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 },
            { "key": "mine", "operator": "Exists", "tolerationSeconds": 7 },
        ] }))
        .unwrap();
        let tolerations = tolerations(&spec);
        assert_eq!(tolerations.len(), 7);
        assert_eq!(
            (tolerations[0].toleration_seconds, tolerations[1].toleration_seconds),
            (None, Some(7))
        );
    }

    #[test]
    fn a_pod_that_names_no_single_node_is_nobodys() {
        let pod = |operator: &str, values: &[&str]| -> Pod {
            serde_json::from_value(
                json!({ "metadata": {}, "spec": { "containers": [], "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchFields": [
                    { "key": "metadata.name", "operator": operator, "values": values }] }] } } } } }),
            )
            .unwrap()
        };
        assert_eq!(target_node(&pod("In", &["a"])).as_deref(), Some("a"));
        assert_eq!(target_node(&pod("NotIn", &["a"])), None);
        assert_eq!(target_node(&pod("In", &["a", "b"])), None);
        assert_eq!(target_node(&Pod::default()), None);
    }
}

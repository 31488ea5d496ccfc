//! The conditions of a node as taints, by which pods keep away from it.

use std::sync::Arc;

use moorline_machinery::{gvk::GroupVersionResource, meta, time};
use moorline_store::{Event, ReadError, Record};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::follow::Follow;
use crate::{admission::plugins::nodes::NOT_READY, builtin, core::Core, rest::internal, wire};

/// A condition, the status in which it keeps pods away, and the taint that says so.
const KEEPS_AWAY: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    let mut nodes = Follow::all(&core.store, &builtin::storage("", "nodes"))?;
    let core = Arc::clone(core);
    tasks.spawn(async move {
        while let Some(event) = nodes.next().await {
            if let Event::Added { record, .. } | Event::Modified { record, .. } = event {
                attend(&core, &record).await;
            }
        }
    });
    Ok(())
}

async fn attend(core: &Arc<Core>, record: &Record) {
    let now = time::format(core.world.now());
    let node = wire::from_stored(record.value(), "v1", "Node");
    if tainted(&node, &now).is_none() {
        return;
    }
    let Some(resource) = core.registry.find(&GroupVersionResource::new("", "v1", "nodes")) else {
        return;
    };
    let edit = |node: &mut Value| {
        if let Some(taints) = tainted(node, &now) {
            node["spec"]["taints"] = taints.into();
        }
    };
    let meta = meta::of(&node);
    if let Err(error) = internal::change(core, &resource, "", meta.name(), meta.uid(), edit).await {
        tracing::warn!(node = meta.name(), %error, "the taints of a node do not tell its conditions");
    }
}

/// The taints that a node should have; nothing when it has them. Those that tell no condition stay. A node that has not
/// said whether it is ready keeps the taint that it was made with.
fn tainted(node: &Value, now: &str) -> Option<Vec<Value>> {
    let status = |kind: &str| {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let mut of_kind = conditions.filter(|condition| condition["type"] == kind);
        of_kind.next().and_then(|condition| condition["status"].as_str())
    };
    let silent = status("Ready").is_none();
    let mut wanted: Vec<&str> = KEEPS_AWAY
        .iter()
        .filter(|(kind, keeps_away, _)| status(kind) == Some(keeps_away))
        .map(|(_, _, taint)| *taint)
        .collect();
    if node["spec"]["unschedulable"] == true {
        wanted.push(UNSCHEDULABLE);
    }
    let told = |taint: &Value| {
        let key = taint["key"].as_str().unwrap_or_default();
        let known = key == UNSCHEDULABLE || KEEPS_AWAY.iter().any(|(_, _, known)| *known == key);
        known && taint["effect"] == "NoSchedule" && !(silent && key == NOT_READY)
    };
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let mut next: Vec<Value> = taints
        .iter()
        .filter(|taint| !told(taint) || wanted.iter().any(|key| taint["key"] == *key))
        .cloned()
        .collect();
    for key in wanted {
        if !next
            .iter()
            .any(|taint| taint["key"] == key && taint["effect"] == "NoSchedule")
        {
            next.push(json!({ "key": key, "effect": "NoSchedule", "timeAdded": now }));
        }
    }
    (next != taints).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: Option<&str>, taints: &[&str]) -> Value {
        let taints: Vec<Value> = taints
            .iter()
            .map(|key| json!({ "key": key, "effect": "NoSchedule" }))
            .collect();
        let conditions: Vec<Value> = ready
            .iter()
            .map(|status| json!({ "type": "Ready", "status": status }))
            .collect();
        json!({ "spec": { "taints": taints }, "status": { "conditions": conditions } })
    }

    fn keys(node: &Value) -> Option<Vec<String>> {
        let taints = tainted(node, "2026-01-01T00:00:00Z")?;
        Some(
            taints
                .iter()
                .map(|taint| taint["key"].as_str().unwrap().to_owned())
                .collect(),
        )
    }

    #[test]
    fn a_node_that_becomes_ready_loses_the_taint_and_keeps_those_of_others() {
        assert_eq!(
            keys(&node(Some("True"), &[NOT_READY, "own"])),
            Some(vec!["own".to_owned()])
        );
        assert_eq!(keys(&node(Some("True"), &["own"])), None);
    }

    #[test]
    fn a_node_that_says_nothing_keeps_the_taint_that_it_began_with() {
        assert_eq!(keys(&node(None, &[NOT_READY])), None);
    }

    #[test]
    fn a_node_that_is_silent_or_closed_is_tainted() {
        let mut closed = node(Some("Unknown"), &[NOT_READY]);
        closed["spec"]["unschedulable"] = json!(true);
        assert_eq!(
            keys(&closed),
            Some(vec![
                "node.kubernetes.io/unreachable".to_owned(),
                UNSCHEDULABLE.to_owned()
            ])
        );
    }
}

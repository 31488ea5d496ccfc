//! What follows from the silence of a node and from taints.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};

use crate::scheduler::tolerates;

/// For how long a node may be silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(50);
/// For how long pods stay on a node that is not ready or not reachable, if they say nothing about it.
const PATIENCE: i64 = 300;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Whether a node has to be marked as unknown: nobody has heard of it since `heard`.
pub(crate) fn is_silent(node: &Node, heard: Timestamp, now: Timestamp) -> bool {
    let ready = condition(node, "Ready");
    let silent = Duration::try_from(now.duration_since(heard)).unwrap_or_default() > SILENCE;
    silent && ready != Some("Unknown")
}

fn condition<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == name)
        .map(|condition| condition.status.as_str())
}

/// The taints that a node should have for its conditions, with those that others gave it; nothing if it has them.
pub(crate) fn taints(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.clone().unwrap_or_default();
    let present = spec.taints.unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    match condition(node, "Ready") {
        Some("True") => {}
        Some("Unknown") => wanted.extend([(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        _ => wanted.extend([(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
    }
    if spec.unschedulable == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    for (name, key) in [
        ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
        ("DiskPressure", "node.kubernetes.io/disk-pressure"),
        ("PIDPressure", "node.kubernetes.io/pid-pressure"),
        ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
    ] {
        if condition(node, name) == Some("True") {
            wanted.push((key, "NoSchedule"));
        }
    }
    let ours = |taint: &Taint| {
        let known = [
            NOT_READY,
            UNREACHABLE,
            UNSCHEDULABLE,
            "node.kubernetes.io/memory-pressure",
            "node.kubernetes.io/disk-pressure",
            "node.kubernetes.io/pid-pressure",
            "node.kubernetes.io/network-unavailable",
        ];
        known.contains(&taint.key.as_str())
    };
    let matches = |taint: &Taint| {
        wanted
            .iter()
            .any(|(key, effect)| taint.key == *key && taint.effect == *effect)
    };
    let mut result: Vec<Taint> = present
        .iter()
        .filter(|taint| !ours(taint) || matches(taint))
        .cloned()
        .collect();
    for (key, effect) in &wanted {
        if !result.iter().any(|taint| taint.key == *key && taint.effect == *effect) {
            let added = (*effect == "NoExecute").then_some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
            result.push(Taint {
                key: (*key).to_owned(),
                effect: (*effect).to_owned(),
                time_added: added,
                value: None,
            });
        }
    }
    (result != present).then_some(result)
}

/// When a pod has to leave a node because of its taints; nothing if it may stay.
pub(crate) fn leaves_at(pod: &Pod, taints: &[Taint], now: Timestamp) -> Option<Timestamp> {
    let mut tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.clone())
        .unwrap_or_default();
    for key in [NOT_READY, UNREACHABLE] {
        let said = tolerations.iter().any(|toleration| {
            toleration.key.as_deref().is_none_or(|own| own.is_empty() || own == key)
                && toleration
                    .effect
                    .as_deref()
                    .is_none_or(|effect| effect.is_empty() || effect == "NoExecute")
        });
        if !said {
            tolerations.push(Toleration {
                key: Some(key.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                toleration_seconds: Some(PATIENCE),
                value: None,
            });
        }
    }
    let mut first: Option<Timestamp> = None;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let covering = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
        let mut shortest: Option<i64> = None;
        let mut covered = false;
        for toleration in covering {
            covered = true;
            if let Some(seconds) = toleration.toleration_seconds {
                shortest = Some(shortest.map_or(seconds, |before| before.min(seconds)));
            }
        }
        let since = taint.time_added.as_ref().map_or(now, |time| time.0);
        let at = match (covered, shortest) {
            (false, _) => now,
            (true, None) => continue,
            (true, Some(seconds)) => since + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        };
        first = Some(first.map_or(at, |before| before.min(at)));
    }
    first
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "literals read better where they are handed in whole"
    )]
    fn node(ready: &str, taints: serde_json::Value) -> Node {
        serde_json::from_value(json!({
            "spec": { "taints": taints },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "literals read better where they are handed in whole"
    )]
    fn pod(tolerations: serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "spec": { "containers": [], "tolerations": tolerations } })).unwrap()
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn no_execute(key: &str) -> Taint {
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(NOW);
        Taint {
            key: key.to_owned(),
            effect: "NoExecute".to_owned(),
            time_added: Some(time),
            value: None,
        }
    }

    #[test]
    fn a_silent_node_is_marked_once() {
        let later = NOW + Duration::from_secs(51);
        assert!(is_silent(&node("True", json!([])), NOW, later));
        assert!(!is_silent(&node("Unknown", json!([])), NOW, later));
        assert!(!is_silent(&node("True", json!([])), NOW, NOW + Duration::from_secs(50)));
    }

    #[test]
    fn taints_follow_conditions_and_leave_others_alone() {
        let mine = json!([{ "key": "mine", "effect": "NoSchedule" }]);
        let tainted = taints(&node("Unknown", mine.clone()), NOW).unwrap();
        let keys: Vec<_> = tainted
            .iter()
            .map(|taint| (taint.key.as_str(), taint.effect.as_str()))
            .collect();
        assert_eq!(
            keys,
            [
                ("mine", "NoSchedule"),
                (UNREACHABLE, "NoSchedule"),
                (UNREACHABLE, "NoExecute")
            ]
        );
        let healed = node("True", serde_json::to_value(&tainted).unwrap());
        assert_eq!(taints(&healed, NOW).unwrap(), [tainted[0].clone()]);
        assert_eq!(taints(&node("True", mine), NOW), None);
    }

    #[test]
    fn a_pod_leaves_when_its_patience_is_over() {
        let taint = [no_execute(UNREACHABLE)];
        assert_eq!(
            leaves_at(&pod(json!([])), &taint, NOW),
            Some(NOW + Duration::from_mins(5))
        );
        let short =
            json!([{ "key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 }]);
        assert_eq!(leaves_at(&pod(short), &taint, NOW), Some(NOW + Duration::from_secs(5)));
        let forever = json!([{ "operator": "Exists" }]);
        assert_eq!(leaves_at(&pod(forever), &taint, NOW), None);
        let now = leaves_at(&pod(json!([])), &[no_execute("evil")], NOW);
        assert_eq!(now, Some(NOW), "a taint that nobody spoke of is obeyed at once");
        assert_eq!(leaves_at(&pod(json!([])), &[], NOW), None);
    }
}

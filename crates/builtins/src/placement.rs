//! Whether a pod may run on a node, as far as the two say so themselves.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};

/// Whether a node has what a pod asks for by name, selector and required affinity.
pub(crate) fn is_wanted(spec: &PodSpec, node: &Node) -> bool {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let label = |key: &str| {
        node.metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
    };
    let by_name = spec
        .node_name
        .as_deref()
        .is_none_or(|wanted| wanted.is_empty() || wanted == name);
    let by_selector = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| label(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let by_affinity =
        required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)));
    by_name && by_selector && by_affinity
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let label = |key: &str| {
        node.metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
    };
    let field = |key: &str| {
        (key == "metadata.name")
            .then_some(node.metadata.name.as_deref())
            .flatten()
    };
    expressions
        .iter()
        .all(|wanted| requirement_holds(wanted, label(&wanted.key)))
        && fields
            .iter()
            .all(|wanted| requirement_holds(wanted, field(&wanted.key)))
}

fn requirement_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = values.first().and_then(|value| number(value));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.iter().any(|wanted| wanted == value)),
        "NotIn" => value.is_none_or(|value| values.iter().all(|unwanted| unwanted != value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value
            .and_then(number)
            .zip(bound)
            .is_some_and(|(value, bound)| value > bound),
        "Lt" => value
            .and_then(number)
            .zip(bound)
            .is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Whether every taint of these effects is tolerated.
pub(crate) fn is_tolerated(tolerations: &[Toleration], node: &Node, effects: &[&str]) -> bool {
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
        .all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    let by_effect = empty(&toleration.effect) || toleration.effect.as_deref() == Some(&taint.effect);
    let by_key = empty(&toleration.key) || toleration.key.as_deref() == Some(&taint.key);
    let by_value = match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "Equal" | "" => {
            !empty(&toleration.key)
                && toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    };
    by_effect && by_key && by_value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(value: serde_json::Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_selector_and_an_affinity_both_have_to_fit() {
        let node = node(json!({"metadata": {"name": "a", "labels": {"disk": "ssd", "cores": "8"}}}));
        assert!(is_wanted(
            &spec(json!({"containers": [], "nodeSelector": {"disk": "ssd"}})),
            &node
        ));
        assert!(!is_wanted(
            &spec(json!({"containers": [], "nodeSelector": {"disk": "hdd"}})),
            &node
        ));
        let affine = |operator: &str, values: serde_json::Value| {
            spec(
                json!({"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "cores", "operator": operator, "values": values}]}]}}}}),
            )
        };
        assert!(is_wanted(&affine("Gt", json!(["4"])), &node));
        assert!(!is_wanted(&affine("Lt", json!(["4"])), &node));
        assert!(!is_wanted(&affine("NotIn", json!(["8"])), &node));
    }

    #[test]
    fn a_taint_keeps_out_who_does_not_tolerate_it() {
        let node = node(
            json!({"metadata": {"name": "a"}, "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}),
        );
        let tolerations = |value: serde_json::Value| -> Vec<Toleration> { serde_json::from_value(value).unwrap() };
        assert!(!is_tolerated(&[], &node, &["NoSchedule"]));
        assert!(is_tolerated(&[], &node, &["NoExecute"]));
        assert!(is_tolerated(
            &tolerations(json!([{"key": "k", "value": "v"}])),
            &node,
            &["NoSchedule"]
        ));
        assert!(is_tolerated(
            &tolerations(json!([{"operator": "Exists"}])),
            &node,
            &["NoSchedule"]
        ));
        assert!(!is_tolerated(
            &tolerations(json!([{"key": "k", "value": "w"}])),
            &node,
            &["NoSchedule"]
        ));
    }
}

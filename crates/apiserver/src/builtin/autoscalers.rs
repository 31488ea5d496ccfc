//! Autoscalers are stored in their second form. The first knows a target for the processor alone; what it cannot say
//! travels in annotations, so that a client of the first form loses nothing by writing back what it read.

use serde_json::{Map, Value, json};

/// Fields of the specification, with the annotation that carries each in the first form.
const IN_SPEC: [(&str, &str); 2] = [
    ("metrics", "autoscaling.alpha.kubernetes.io/metrics"),
    ("behavior", "autoscaling.alpha.kubernetes.io/behavior"),
];
/// The same for the status.
const IN_STATUS: [(&str, &str); 2] = [
    ("currentMetrics", "autoscaling.alpha.kubernetes.io/current-metrics"),
    ("conditions", "autoscaling.alpha.kubernetes.io/conditions"),
];
const PROCESSOR: &str = "cpu";

/// Brings an autoscaler of the first form into the second.
pub(super) fn to_second(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v2".into();
    let target = take(&mut object["spec"], "targetCPUUtilizationPercentage");
    for (field, annotation) in IN_SPEC {
        if let Some(carried) = take_annotation(object, annotation) {
            object["spec"][field] = carried;
        }
    }
    if let Some(target) = target {
        let metric = json!({ "type": "Resource", "resource": {
            "name": PROCESSOR, "target": { "type": "Utilization", "averageUtilization": target },
        } });
        prepend(&mut object["spec"], "metrics", metric);
    }
    let current = take(&mut object["status"], "currentCPUUtilizationPercentage");
    for (field, annotation) in IN_STATUS {
        if let Some(carried) = take_annotation(object, annotation) {
            object["status"][field] = carried;
        }
    }
    if let Some(current) = current {
        let metric = json!({ "type": "Resource", "resource": {
            "name": PROCESSOR, "current": { "averageUtilization": current },
        } });
        prepend(&mut object["status"], "currentMetrics", metric);
    } else if object["status"].is_object() && object["status"]["currentMetrics"].is_null() {
        object["status"]["currentMetrics"] = Value::Null;
    }
}

/// Brings an autoscaler of the second form into the first.
pub(super) fn to_first(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v1".into();
    let target = split(&mut object["spec"], "metrics", "/resource/target/averageUtilization");
    if let Some(target) = target {
        object["spec"]["targetCPUUtilizationPercentage"] = target;
    }
    let current = split(
        &mut object["status"],
        "currentMetrics",
        "/resource/current/averageUtilization",
    );
    if let Some(current) = current {
        object["status"]["currentCPUUtilizationPercentage"] = current;
    }
    for (holder, fields) in [("spec", IN_SPEC), ("status", IN_STATUS)] {
        for (field, annotation) in fields {
            let carried = take(&mut object[holder], field);
            if let Some(carried) = carried.filter(|value| !is_empty(value)) {
                object["metadata"]["annotations"][annotation] = carried.to_string().into();
            }
        }
    }
    if object["status"].is_object() {
        for count in ["currentReplicas", "desiredReplicas"] {
            if object["status"][count].is_null() {
                object["status"][count] = json!(0);
            }
        }
    }
}

/// Takes the metric of the processor out of a list: the number that the first form has for it.
fn split(holder: &mut Value, list: &str, number: &str) -> Option<Value> {
    let metrics = holder.get_mut(list)?.as_array_mut()?;
    let at = metrics.iter().position(|metric| {
        metric["type"] == "Resource" && metric["resource"]["name"] == PROCESSOR && metric.pointer(number).is_some()
    })?;
    metrics.remove(at).pointer(number).cloned()
}

fn prepend(holder: &mut Value, list: &str, metric: Value) {
    match holder[list].as_array_mut() {
        Some(metrics) => metrics.insert(0, metric),
        None => holder[list] = json!([metric]),
    }
}

fn take(holder: &mut Value, field: &str) -> Option<Value> {
    let taken = holder.as_object_mut()?.remove(field)?;
    (!taken.is_null()).then_some(taken)
}

fn take_annotation(object: &mut Value, name: &str) -> Option<Value> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let text = annotations.remove(name)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok()
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_first_form_cannot_say_survives_it() {
        let second = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": "a" },
            "spec": { "maxReplicas": 3, "behavior": { "scaleDown": { "stabilizationWindowSeconds": 1 } }, "metrics": [
                { "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } } },
                { "type": "Resource", "resource": { "name": "memory", "target": { "type": "Utilization", "averageUtilization": 5 } } },
            ] },
            "status": { "currentReplicas": 1, "desiredReplicas": 1, "conditions": [{ "type": "AbleToScale" }], "currentMetrics": [
                { "type": "Resource", "resource": { "name": "cpu", "current": { "averageUtilization": 7 } } },
            ] },
        });
        let mut first = second.clone();
        to_first(&mut first);
        assert_eq!(first["spec"]["targetCPUUtilizationPercentage"], 80);
        assert_eq!(first["status"]["currentCPUUtilizationPercentage"], 7);
        assert_eq!(first["spec"].get("metrics"), None);
        to_second(&mut first);
        assert_eq!(first, second);
    }
}

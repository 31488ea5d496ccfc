//! The state in which a built-in object begins, and what of it an update may not touch.
//!
//! Assumes: the object was conformed, so what is there has the right type. It is to be conformed again afterwards: what
//! is put in place of something absent may be null.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use moorline_machinery::meta;
use serde_json::{Map, Value, json};

/// Brings a new object into its first state: the status is the server's, not the client's.
pub(super) fn first(group: &str, kind: &str, object: &mut Value) {
    if let Some(status) = first_status(group, kind, object) {
        object["status"] = status;
    }
    match (group, kind) {
        ("", "Namespace") => {
            let finalizers = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
            if !finalizers.contains(&json!("kubernetes")) {
                let mut finalizers = finalizers;
                finalizers.push(json!("kubernetes"));
                object["spec"]["finalizers"] = json!(finalizers);
            }
        }
        ("", "Pod") => whole_grace(object),
        ("", "Service") => {
            let one = object["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
            if !one.is_empty() && is_empty(&object["spec"]["clusterIPs"]) {
                object["spec"]["clusterIPs"] = json!([one]);
            }
        }
        ("", "PersistentVolumeClaim") => data_source(object),
        ("apps", "StatefulSet") => no_unavailable(object),
        ("apps", "DaemonSet") => set_template_generation(object, 1),
        ("batch", "Job") => job_selector(object),
        _ => {}
    }
}

/// What an update of the status keeps of the old object, beyond all that is not status.
pub(super) fn next_status(group: &str, kind: &str, object: &mut Value, old: &Value) {
    match (group, kind) {
        ("apps", "DaemonSet") => {
            let before = template_generation(old).and_then(|text| text.parse().ok()).unwrap_or(0);
            set_template_generation(object, before);
        }
        // It follows from the specification, so who leaves it out does not mean it.
        ("", "Pod") if is_empty(&object["status"]["qosClass"]) => {
            object["status"]["qosClass"] = old["status"]["qosClass"].clone();
        }
        _ => {}
    }
}

/// How often the template of a daemon set changed: a field once, now kept among the annotations.
pub(super) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Value) -> Option<&str> {
    meta::of(object).annotation(TEMPLATE_GENERATION)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    object["metadata"]["annotations"][TEMPLATE_GENERATION] = generation.to_string().into();
}

/// A pod cannot be given less than no time; the API takes such a number for the shortest time there is.
fn whole_grace(object: &mut Value) {
    if object["spec"]["terminationGracePeriodSeconds"]
        .as_i64()
        .is_some_and(|seconds| seconds < 0)
    {
        object["spec"]["terminationGracePeriodSeconds"] = json!(1);
    }
}

/// The field belongs to a feature that is off unless asked for.
fn no_unavailable(object: &mut Value) {
    if let Some(rolling) = object
        .pointer_mut("/spec/updateStrategy/rollingUpdate")
        .and_then(Value::as_object_mut)
    {
        rolling.remove("maxUnavailable");
    }
}

/// The two fields that say what a new volume shall contain tell the same; what the older one cannot say is dropped.
fn data_source(object: &mut Value) {
    let Some(spec) = object["spec"].as_object_mut() else {
        return;
    };
    let known = spec.get("dataSource").is_some_and(|source| {
        let group = source["apiGroup"].as_str().unwrap_or_default();
        matches!(
            (group, source["kind"].as_str().unwrap_or_default()),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    });
    if !known {
        spec.remove("dataSource");
    }
    let get = |name: &str| spec.get(name).filter(|source| !source.is_null()).cloned();
    match (get("dataSource"), get("dataSourceRef")) {
        (Some(source), None) => drop(spec.insert("dataSourceRef".to_owned(), source)),
        (None, Some(mut reference)) if reference["namespace"].as_str().unwrap_or_default().is_empty() => {
            reference.as_object_mut().map(|fields| fields.remove("namespace"));
            spec.insert("dataSource".to_owned(), reference);
        }
        _ => {}
    }
}

/// Null, or nothing in it.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

/// What an update keeps of the old object.
pub(super) fn next(group: &str, kind: &str, object: &mut Value, old: &Value) {
    match (group, kind) {
        ("", "Secret") if object["type"].as_str().unwrap_or_default().is_empty() => {
            object["type"] = old["type"].clone();
        }
        ("", "Namespace") => {
            object["spec"]["finalizers"] = old["spec"]["finalizers"].clone();
            object["status"] = old["status"].clone();
        }
        ("", "Service") => keep_addresses(object, old),
        ("", "Pod") if old["spec"]["terminationGracePeriodSeconds"].as_i64() != Some(-1) => whole_grace(object),
        ("apps", "StatefulSet") => no_unavailable(object),
        // What was asked for once cannot be asked for otherwise.
        ("certificates.k8s.io", "CertificateSigningRequest") => object["spec"] = old["spec"].clone(),
        ("apps", "DaemonSet") => {
            let before: i64 = template_generation(old).and_then(|text| text.parse().ok()).unwrap_or(0);
            let changed = !meta::equal(&object["spec"]["template"], &old["spec"]["template"]);
            set_template_generation(object, before + i64::from(changed));
        }
        _ => {}
    }
}

/// Of a pod that is written for its ephemeral containers, everything else stays as it was.
pub(crate) fn only_ephemeral_containers(object: &mut Value, old: &Value) {
    let containers = object["spec"]["ephemeralContainers"].take();
    object["spec"] = old["spec"].clone();
    object["status"] = old["status"].clone();
    if let Some(spec) = object["spec"].as_object_mut() {
        match containers {
            Value::Null => drop(spec.remove("ephemeralContainers")),
            containers => drop(spec.insert("ephemeralContainers".to_owned(), containers)),
        }
    }
}

/// Of a pod that is written to be resized, everything but resources and how they are resized stays as it was.
/// Containers that were added or left out are kept so: validation refuses them.
pub(crate) fn only_resources(object: &mut Value, old: &Value) {
    let given = object["spec"].take();
    object["spec"] = old["spec"].clone();
    object["status"] = old["status"].clone();
    for list in ["containers", "initContainers"] {
        let containers = given[list].as_array().cloned().unwrap_or_default();
        let former = old["spec"][list].as_array().cloned().unwrap_or_default();
        if containers.len() != former.len() {
            object["spec"][list] = containers.into();
            continue;
        }
        for container in object["spec"][list].as_array_mut().into_iter().flatten() {
            let name = container["name"].clone();
            // Init containers that are not restarted have had what they asked for.
            let runs_along = list == "containers" || container["restartPolicy"] == "Always";
            let Some(given) = containers
                .iter()
                .find(|given| given["name"] == name)
                .filter(|_| runs_along)
            else {
                continue;
            };
            for field in ["resources", "resizePolicy"] {
                match &given[field] {
                    Value::Null => drop(container.as_object_mut().map(|fields| fields.remove(field))),
                    value => container[field] = value.clone(),
                }
            }
        }
    }
    if !given["resources"].is_null() {
        object["spec"]["resources"] = given["resources"].clone();
    }
}

/// The status of a new object; none for kinds whose status is not kept apart.
fn first_status(group: &str, kind: &str, object: &Value) -> Option<Value> {
    Some(match (group, kind) {
        ("", "Pod") => json!({ "phase": "Pending", "qosClass": quality_of_service(&object["spec"]) }),
        ("", "Namespace") => json!({ "phase": "Active" }),
        ("", "PersistentVolumeClaim") => json!({ "phase": "Pending" }),
        ("", "PersistentVolume") => json!({
            "phase": "Pending", "lastPhaseTransitionTime": meta::of(object).creation_timestamp(),
        }),
        ("", "ReplicationController") | ("apps", "ReplicaSet") => json!({ "replicas": 0 }),
        ("apps", "StatefulSet") => json!({ "replicas": 0, "availableReplicas": 0 }),
        ("apps", "DaemonSet") => json!({
            "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
        }),
        ("", "Service") | ("networking.k8s.io", "Ingress") => json!({ "loadBalancer": {} }),
        ("policy", "PodDisruptionBudget") => json!({
            "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
        }),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            if object["apiVersion"] == "autoscaling/v1" {
                json!({ "currentReplicas": 0, "desiredReplicas": 0 })
            } else {
                json!({ "desiredReplicas": 0, "currentMetrics": null })
            }
        }
        ("", "ResourceQuota")
        | ("apps", "Deployment")
        | ("batch" | "flowcontrol.apiserver.k8s.io", _)
        | ("certificates.k8s.io", "CertificateSigningRequest") => json!({}),
        _ => return None,
    })
}

/// What a client writes as text is stored as data.
pub(super) fn encode_string_data(object: &mut Value) {
    let Some(texts) = object.as_object_mut().and_then(|fields| fields.remove("stringData")) else {
        return;
    };
    for (name, text) in texts.as_object().into_iter().flatten() {
        let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
        object["data"][name.as_str()] = encoded.into();
    }
}

/// A job that names no pods finds its own by its UID.
fn job_selector(object: &mut Value) {
    if object["spec"]["manualSelector"] == json!(true) {
        return;
    }
    let uid = meta::of(object).uid().to_owned();
    let name = meta::of(object).name().to_owned();
    let labels = &mut object["spec"]["template"]["metadata"]["labels"];
    for (label, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ] {
        // What was written by hand stays, and is refused where it does not fit.
        if labels[label].is_null() {
            labels[label] = value.as_str().into();
        }
    }
    let selected = &mut object["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"];
    if selected.is_null() {
        *selected = uid.into();
    }
}

/// A service keeps its address unless it becomes one that has none, and loses what its new type has no use for.
fn keep_addresses(object: &mut Value, old: &Value) {
    agree_on_address(object, old);
    let (now, before) = (ServiceType::of(object), ServiceType::of(old));
    if now.has_address() && before.has_address() {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if is_empty(&object["spec"][field]) && !old["spec"][field].is_null() {
                object["spec"][field] = old["spec"][field].clone();
            }
        }
    }
    let mut lost: Vec<&str> = Vec::new();
    if before.has_address() && !now.has_address() && object["spec"]["clusterIP"] == old["spec"]["clusterIP"] {
        lost.extend([
            "clusterIP",
            "clusterIPs",
            "ipFamilies",
            "ipFamilyPolicy",
            "internalTrafficPolicy",
        ]);
    }
    if before.is_outside() && !now.is_outside() {
        lost.push("externalTrafficPolicy");
    }
    if before == ServiceType::LoadBalancer && now != ServiceType::LoadBalancer {
        lost.extend([
            "allocateLoadBalancerNodePorts",
            "loadBalancerClass",
            "healthCheckNodePort",
        ]);
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        for field in lost {
            // What the writer changed at the same time was meant.
            if field.starts_with("ip") || field.starts_with("cluster") || spec.get(field) == old["spec"].get(field) {
                spec.remove(field);
            }
        }
    }
    node_ports(object, old, now);
}

/// `clusterIP` and the first of `clusterIPs` are one; who changes the one means both.
fn agree_on_address(object: &mut Value, old: &Value) {
    let (one, list) = (
        object["spec"]["clusterIP"].clone(),
        object["spec"]["clusterIPs"].clone(),
    );
    let text = one.as_str().unwrap_or_default();
    if is_empty(&old["spec"]["clusterIP"]) && is_empty(&list) && !text.is_empty() {
        object["spec"]["clusterIPs"] = json!([text]);
    } else if one != old["spec"]["clusterIP"] && list == old["spec"]["clusterIPs"] {
        object["spec"]["clusterIPs"] = if text.is_empty() { Value::Null } else { json!([text]) };
    } else if !text.is_empty() && is_empty(&list) && one != old["spec"]["clusterIP"] {
        object["spec"]["clusterIPs"] = json!([text]);
    }
}

/// A port keeps its node port while the type has such; one that is left over from another type goes.
fn node_ports(object: &mut Value, old: &Value, now: ServiceType) {
    let former = old["spec"]["ports"].as_array().cloned().unwrap_or_default();
    for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
        let former = former
            .iter()
            .find(|old| old["port"] == port["port"] && old["protocol"] == port["protocol"]);
        let former = former.map(|former| former["nodePort"].clone()).unwrap_or_default();
        if now.is_outside() {
            if is_empty(&port["nodePort"]) && !former.is_null() {
                port["nodePort"] = former;
            }
        } else if !former.is_null() && port["nodePort"] == former {
            port.as_object_mut().map(|fields| fields.remove("nodePort"));
        }
    }
}

/// What sort of service it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServiceType {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

impl ServiceType {
    fn of(service: &Value) -> Self {
        match service["spec"]["type"].as_str() {
            Some("NodePort") => Self::NodePort,
            Some("LoadBalancer") => Self::LoadBalancer,
            Some("ExternalName") => Self::ExternalName,
            _ => Self::ClusterIp,
        }
    }

    fn has_address(self) -> bool {
        self != Self::ExternalName
    }

    fn is_outside(self) -> bool {
        matches!(self, Self::NodePort | Self::LoadBalancer)
    }
}

/// How well a pod is served when resources run short.
pub(crate) fn quality_of_service(spec: &Value) -> &'static str {
    let containers = ["containers", "initContainers"];
    let containers: Vec<&Value> = containers
        .iter()
        .filter_map(|list| spec[*list].as_array())
        .flatten()
        .collect();
    let resources = |container: &Value, which: &str| -> Map<String, Value> {
        let all = container["resources"][which].as_object().cloned().unwrap_or_default();
        all.into_iter()
            .filter(|(name, value)| matches!(name.as_str(), "cpu" | "memory") && *value != json!("0"))
            .collect()
    };
    let any = containers
        .iter()
        .any(|c| !resources(c, "requests").is_empty() || !resources(c, "limits").is_empty());
    if !any {
        return "BestEffort";
    }
    let guaranteed = containers.iter().all(|container| {
        let limits = resources(container, "limits");
        limits.len() == 2 && resources(container, "requests") == limits
    });
    if guaranteed { "Guaranteed" } else { "Burstable" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quality_of_service_follows_from_requests_and_limits() {
        let with = |resources: Value| json!({ "containers": [{ "resources": resources }] });
        assert_eq!(quality_of_service(&with(json!({}))), "BestEffort");
        assert_eq!(
            quality_of_service(&with(json!({ "requests": { "cpu": "1" } }))),
            "Burstable"
        );
        let both = json!({ "cpu": "1", "memory": "1Gi" });
        assert_eq!(
            quality_of_service(&with(json!({ "requests": both, "limits": both }))),
            "Guaranteed"
        );
        assert_eq!(
            quality_of_service(&with(json!({ "limits": { "cpu": "1" } }))),
            "Burstable"
        );
    }

    #[test]
    fn text_in_a_secret_becomes_data() {
        let mut secret = json!({ "stringData": { "a": "b" }, "data": { "c": "ZA==" } });
        encode_string_data(&mut secret);
        assert_eq!(secret, json!({ "data": { "a": "Yg==", "c": "ZA==" } }));
    }
}

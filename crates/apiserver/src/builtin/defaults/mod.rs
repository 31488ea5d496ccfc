//! What a client may leave out of a built-in kind, and what then stands there.
//!
//! Schemas know constant defaults; these here depend on the rest of the object.

mod pod;
mod workload;

use serde_json::{Map, Value, json};

/// Fills in an object of the core group, or of another one, by its kind.
pub(crate) fn fill(group: &str, kind: &str, object: &mut Value) {
    let Some(fields) = object.as_object_mut() else { return };
    match (group, kind) {
        ("", "Pod") => {
            if let Some(spec) = part(fields, "spec") {
                pod::spec(spec);
                pod::requests_of_pod(spec);
                absent(spec, "enableServiceLinks", || json!(true));
            }
        }
        ("", "PodTemplate") => {
            if let Some(template) = part(fields, "template") {
                pod::template(template);
            }
        }
        ("", "ReplicationController") => workload::replication_controller(fields),
        ("", "Service") => service(fields),
        ("", "Secret") => absent(fields, "type", || json!("Opaque")),
        ("", "Namespace") => namespace(fields),
        ("", "Node") => node(fields),
        ("", "PersistentVolumeClaim") => {
            let spec = object_at(fields, "spec");
            absent(spec, "volumeMode", || json!("Filesystem"));
            absent(object_at(fields, "status"), "phase", || json!("Pending"));
        }
        ("", "PersistentVolume") => {
            let spec = object_at(fields, "spec");
            absent(spec, "persistentVolumeReclaimPolicy", || json!("Retain"));
            absent(spec, "volumeMode", || json!("Filesystem"));
            if let Some(path) = part(spec, "hostPath") {
                absent(path, "type", || json!(""));
            }
            absent(object_at(fields, "status"), "phase", || json!("Pending"));
        }
        ("", "Endpoints") => {
            for subset in each(fields, "subsets") {
                for port in each(subset, "ports") {
                    absent(port, "protocol", || json!("TCP"));
                }
            }
        }
        ("", "LimitRange") => limit_range(fields),
        ("apps", "Deployment") => workload::deployment(fields),
        ("apps", "ReplicaSet") => workload::replica_set(fields),
        ("apps", "StatefulSet") => workload::stateful_set(fields),
        ("apps", "DaemonSet") => workload::daemon_set(fields),
        ("batch", "Job") => workload::job(fields),
        ("batch", "CronJob") => workload::cron_job(fields),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler(fields),
        ("networking.k8s.io", "IngressClass") => {
            if let Some(parameters) = part(object_at(fields, "spec"), "parameters") {
                absent(parameters, "scope", || json!("Cluster"));
            }
        }
        ("networking.k8s.io", "NetworkPolicy") => network_policy(fields),
        ("storage.k8s.io", "StorageClass") => {
            absent(fields, "reclaimPolicy", || json!("Delete"));
            absent(fields, "volumeBindingMode", || json!("Immediate"));
        }
        ("storage.k8s.io", "CSIDriver") => csi_driver(fields),
        ("discovery.k8s.io", "EndpointSlice") => {
            for port in each(fields, "ports") {
                absent(port, "name", || json!(""));
                absent(port, "protocol", || json!("TCP"));
            }
        }
        ("scheduling.k8s.io", "PriorityClass") => absent(fields, "preemptionPolicy", || json!("PreemptLowerPriority")),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => role_binding(fields),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration") => {
            for webhook in each(fields, "webhooks") {
                self::webhook(webhook, kind.starts_with("Mutating"));
            }
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => custom_resource_definition(fields),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy") => {
            let spec = object_at(fields, "spec");
            absent(spec, "failurePolicy", || json!("Fail"));
            match_resources(spec, "matchConstraints");
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding") => {
            match_resources(object_at(fields, "spec"), "matchResources");
        }
        ("apiregistration.k8s.io", "APIService") => {
            if let Some(service) = part(object_at(fields, "spec"), "service") {
                absent(service, "port", || json!(443));
            }
        }
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => {
            zero(object_at(fields, "spec"), "matchingPrecedence", || json!(1000));
        }
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => priority_level(fields),
        _ => {}
    }
}

/// Puts a value where there is none, or null.
fn absent(fields: &mut Map<String, Value>, name: &str, value: impl FnOnce() -> Value) {
    let slot = fields.entry(name).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value();
    }
}

/// The same, with the empty text counting as none.
fn empty(fields: &mut Map<String, Value>, name: &str, value: impl FnOnce() -> Value) {
    let slot = fields.entry(name).or_insert(Value::Null);
    if slot.is_null() || slot.as_str() == Some("") {
        *slot = value();
    }
}

/// The same, with zero counting as none.
fn zero(fields: &mut Map<String, Value>, name: &str, value: impl FnOnce() -> Value) {
    let slot = fields.entry(name).or_insert(Value::Null);
    if slot.is_null() || slot.as_i64() == Some(0) {
        *slot = value();
    }
}

/// The value at a path of names, if there is one.
fn dig<'f>(fields: &'f Map<String, Value>, path: &[&str]) -> Option<&'f Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(fields.get(*first)?, |value, name| value.get(name))
}

/// The text of a value; empty if there is none.
fn text(value: Option<&Value>) -> String {
    value.and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Whether a field holds this text.
fn is(fields: &Map<String, Value>, name: &str, text: &str) -> bool {
    fields.get(name).is_some_and(|value| value == text)
}

/// The object at a name, if there is one.
fn part<'f>(fields: &'f mut Map<String, Value>, name: &str) -> Option<&'f mut Map<String, Value>> {
    fields.get_mut(name)?.as_object_mut()
}

/// The object at a name, made where it is missing.
fn object_at<'f>(fields: &'f mut Map<String, Value>, name: &str) -> &'f mut Map<String, Value> {
    let slot = fields.entry(name).or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut().expect("it was just made an object")
}

/// The objects of the list at a name.
fn each<'f>(fields: &'f mut Map<String, Value>, name: &str) -> impl Iterator<Item = &'f mut Map<String, Value>> {
    fields
        .get_mut(name)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// A node's one range of addresses is also the first of its list of them.
fn node(fields: &mut Map<String, Value>) {
    if let Some(spec) = part(fields, "spec") {
        let range = text(spec.get("podCIDR"));
        if !range.is_empty() {
            absent(spec, "podCIDRs", || json!([range]));
        }
    }
}

fn namespace(fields: &mut Map<String, Value>) {
    let name = text(dig(fields, &["metadata", "name"]));
    if !name.is_empty() {
        // Selectors over namespaces go by labels, so every namespace carries its name as one.
        let metadata = object_at(fields, "metadata");
        object_at(metadata, "labels").insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
    empty(object_at(fields, "status"), "phase", || json!("Active"));
}

fn service(fields: &mut Map<String, Value>) {
    let Some(spec) = part(fields, "spec") else { return };
    empty(spec, "sessionAffinity", || json!("None"));
    if is(spec, "sessionAffinity", "None") {
        spec.remove("sessionAffinityConfig");
    }
    if is(spec, "sessionAffinity", "ClientIP") {
        let config = object_at(spec, "sessionAffinityConfig");
        absent(object_at(config, "clientIP"), "timeoutSeconds", || json!(10_800));
    }
    empty(spec, "type", || json!("ClusterIP"));
    for port in each(spec, "ports") {
        empty(port, "protocol", || json!("TCP"));
        let target = port.get("targetPort").cloned().unwrap_or_default();
        if target.is_null() || target == json!(0) || target == json!("") {
            let own = port.get("port").cloned().unwrap_or(json!(0));
            port.insert("targetPort".to_owned(), own);
        }
    }
    let kind = text(spec.get("type"));
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        empty(spec, "externalTrafficPolicy", || json!("Cluster"));
    }
    if kind != "ExternalName" {
        empty(spec, "internalTrafficPolicy", || json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        absent(spec, "allocateLoadBalancerNodePorts", || json!(true));
    }
    absent(object_at(fields, "status"), "loadBalancer", || json!({}));
}

fn limit_range(fields: &mut Map<String, Value>) {
    let Some(spec) = part(fields, "spec") else { return };
    for limit in each(spec, "limits").filter(|limit| limit.get("type").is_some_and(|kind| kind == "Container")) {
        // A maximum is a default limit, a default limit a default request, a minimum a lower one.
        let max = limit.get("max").cloned();
        inherit(object_at(limit, "default"), max.as_ref());
        let default = limit.get("default").cloned();
        let min = limit.get("min").cloned();
        let request = object_at(limit, "defaultRequest");
        inherit(request, default.as_ref());
        inherit(request, min.as_ref());
        for name in ["default", "defaultRequest"] {
            if limit.get(name).and_then(Value::as_object).is_some_and(Map::is_empty) {
                limit.remove(name);
            }
        }
    }
}

fn inherit(fields: &mut Map<String, Value>, from: Option<&Value>) {
    for (name, value) in from.and_then(Value::as_object).into_iter().flatten() {
        absent(fields, name, || value.clone());
    }
}

fn network_policy(fields: &mut Map<String, Value>) {
    let Some(spec) = part(fields, "spec") else { return };
    for rules in ["ingress", "egress"] {
        for rule in each(spec, rules) {
            for port in each(rule, "ports") {
                absent(port, "protocol", || json!("TCP"));
            }
        }
    }
    let egress = spec
        .get("egress")
        .and_then(Value::as_array)
        .is_some_and(|rules| !rules.is_empty());
    absent(spec, "policyTypes", || {
        if egress {
            json!(["Ingress", "Egress"])
        } else {
            json!(["Ingress"])
        }
    });
}

fn match_resources(spec: &mut Map<String, Value>, name: &str) {
    let Some(resources) = part(spec, name) else { return };
    absent(resources, "matchPolicy", || json!("Equivalent"));
    absent(resources, "namespaceSelector", || json!({}));
    absent(resources, "objectSelector", || json!({}));
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in each(resources, list) {
            absent(rule, "scope", || json!("*"));
        }
    }
}

fn priority_level(fields: &mut Map<String, Value>) {
    let spec = object_at(fields, "spec");
    if let Some(limited) = part(spec, "limited") {
        absent(limited, "nominalConcurrencyShares", || json!(30));
        absent(limited, "lendablePercent", || json!(0));
        if let Some(queuing) = part(limited, "limitResponse").and_then(|response| part(response, "queuing")) {
            zero(queuing, "handSize", || json!(8));
            zero(queuing, "queues", || json!(64));
            zero(queuing, "queueLengthLimit", || json!(50));
        }
    }
    if let Some(exempt) = part(spec, "exempt") {
        absent(exempt, "nominalConcurrencyShares", || json!(0));
        absent(exempt, "lendablePercent", || json!(0));
    }
}

/// An autoscaler scales by four fifths of the processor time unless told otherwise.
fn autoscaler(fields: &mut Map<String, Value>) {
    let first_version = fields
        .get("apiVersion")
        .is_some_and(|version| version == "autoscaling/v1");
    let spec = object_at(fields, "spec");
    absent(spec, "minReplicas", || json!(1));
    if first_version {
        absent(spec, "targetCPUUtilizationPercentage", || json!(80));
        return;
    }
    if spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let target = json!({ "type": "Utilization", "averageUtilization": 80 });
        spec.insert(
            "metrics".to_owned(),
            json!([{ "type": "Resource", "resource": { "name": "cpu", "target": target } }]),
        );
    }
    let Some(behavior) = part(spec, "behavior") else { return };
    let percent = json!({ "type": "Percent", "value": 100, "periodSeconds": 15 });
    let pods = json!({ "type": "Pods", "value": 4, "periodSeconds": 15 });
    let up = object_at(behavior, "scaleUp");
    absent(up, "stabilizationWindowSeconds", || json!(0));
    absent(up, "policies", || json!([pods, percent]));
    absent(up, "selectPolicy", || json!("Max"));
    let down = object_at(behavior, "scaleDown");
    absent(down, "policies", || json!([percent]));
    absent(down, "selectPolicy", || json!("Max"));
}

fn csi_driver(fields: &mut Map<String, Value>) {
    let spec = object_at(fields, "spec");
    absent(spec, "attachRequired", || json!(true));
    absent(spec, "podInfoOnMount", || json!(false));
    absent(spec, "storageCapacity", || json!(false));
    absent(spec, "fsGroupPolicy", || json!("ReadWriteOnceWithFSType"));
    absent(spec, "volumeLifecycleModes", || json!(["Persistent"]));
    absent(spec, "requiresRepublish", || json!(false));
    absent(spec, "seLinuxMount", || json!(false));
}

fn role_binding(fields: &mut Map<String, Value>) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    empty(object_at(fields, "roleRef"), "apiGroup", || json!(GROUP));
    for subject in each(fields, "subjects") {
        if matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")) {
            empty(subject, "apiGroup", || json!(GROUP));
        }
    }
}

fn webhook(webhook: &mut Map<String, Value>, mutating: bool) {
    absent(webhook, "failurePolicy", || json!("Fail"));
    absent(webhook, "matchPolicy", || json!("Equivalent"));
    absent(webhook, "namespaceSelector", || json!({}));
    absent(webhook, "objectSelector", || json!({}));
    absent(webhook, "timeoutSeconds", || json!(10));
    if mutating {
        absent(webhook, "reinvocationPolicy", || json!("Never"));
    }
    for rule in each(webhook, "rules") {
        absent(rule, "scope", || json!("*"));
    }
    service_port(webhook);
}

fn service_port(webhook: &mut Map<String, Value>) {
    if let Some(service) = part(webhook, "clientConfig").and_then(|config| part(config, "service")) {
        absent(service, "port", || json!(443));
    }
}

fn custom_resource_definition(fields: &mut Map<String, Value>) {
    let Some(spec) = part(fields, "spec") else { return };
    absent(object_at(spec, "conversion"), "strategy", || json!("None"));
    if let Some(webhook) = part(object_at(spec, "conversion"), "webhook") {
        service_port(webhook);
    }
    let names = object_at(spec, "names");
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    empty(names, "singular", || kind.to_lowercase().into());
    empty(names, "listKind", || format!("{kind}List").into());
}

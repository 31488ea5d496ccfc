//! The cells that need more than a look at a path.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde_json::Value;

use super::subject::{Subject, at, integer, items, quantity, text, with_more};
use crate::time::human_duration;

fn or_none(text: String) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn join<'a>(texts: impl Iterator<Item = &'a str>, separator: &str) -> String {
    texts.collect::<Vec<_>>().join(separator)
}

// Services and endpoints.

pub(super) fn cluster_ip(service: &Subject<'_>) -> Value {
    match service.items("spec.clusterIPs").first().and_then(Value::as_str) {
        Some(address) => address.into(),
        None => service.text_or("spec.clusterIP", "<none>").into(),
    }
}

pub(super) fn external_ip(service: &Subject<'_>) -> Value {
    let external = join(service.items("spec.externalIPs").iter().filter_map(Value::as_str), ",");
    match service.text("spec.type") {
        "ClusterIP" | "NodePort" => or_none(external),
        "LoadBalancer" => match (load_balancer(service), external) {
            (balancer, external) if balancer.is_empty() && external.is_empty() => "<pending>".into(),
            (balancer, external) if balancer.is_empty() || external.is_empty() => (balancer + &external).into(),
            (balancer, external) => format!("{balancer},{external}").into(),
        },
        "ExternalName" => service.text("spec.externalName").into(),
        _ => "<unknown>".into(),
    }
}

pub(super) fn service_ports(service: &Subject<'_>) -> Value {
    let ports = service.items("spec.ports").iter().map(|port| {
        let (number, protocol) = (integer(port, "port"), text(port, "protocol"));
        match integer(port, "nodePort") {
            node @ 1.. => format!("{number}:{node}/{protocol}"),
            _ => format!("{number}/{protocol}"),
        }
    });
    or_none(ports.collect::<Vec<_>>().join(","))
}

pub(super) fn service_selector(service: &Subject<'_>) -> Value {
    service.labels("spec.selector").into()
}

pub(super) fn load_balancer_address(subject: &Subject<'_>) -> Value {
    load_balancer(subject).into()
}

fn load_balancer(subject: &Subject<'_>) -> String {
    let addresses: BTreeSet<&str> = subject
        .items("status.loadBalancer.ingress")
        .iter()
        .map(|ingress| {
            if text(ingress, "ip").is_empty() {
                text(ingress, "hostname")
            } else {
                text(ingress, "ip")
            }
        })
        .filter(|address| !address.is_empty())
        .collect();
    join(addresses.into_iter(), ",")
}

pub(super) fn endpoints(endpoints: &Subject<'_>) -> Value {
    let subsets = endpoints.items("subsets");
    if subsets.is_empty() {
        return "<none>".into();
    }
    let mut shown = Vec::new();
    for subset in subsets {
        let addresses = || items(subset, "addresses").iter().map(|address| text(address, "ip"));
        let ports = items(subset, "ports");
        if ports.is_empty() {
            shown.extend(addresses().map(str::to_owned));
        }
        for port in ports {
            let port = integer(port, "port");
            shown.extend(addresses().map(|address| {
                if address.contains(':') {
                    format!("[{address}]:{port}")
                } else {
                    format!("{address}:{port}")
                }
            }));
        }
    }
    let count = shown.len();
    with_more(shown, 3, count, ",").into()
}

pub(super) fn slice_ports(slice: &Subject<'_>) -> Value {
    let ports: Vec<String> = slice
        .items("ports")
        .iter()
        .map(|port| {
            match (
                at(port, "port").and_then(Value::as_i64),
                at(port, "name").and_then(Value::as_str),
            ) {
                (Some(number), _) => number.to_string(),
                (None, Some(name)) => name.to_owned(),
                (None, None) => "*".to_owned(),
            }
        })
        .collect();
    listed(ports)
}

pub(super) fn slice_endpoints(slice: &Subject<'_>) -> Value {
    let endpoints = slice
        .items("endpoints")
        .iter()
        .flat_map(|endpoint| items(endpoint, "addresses"));
    listed(endpoints.filter_map(Value::as_str).map(str::to_owned).collect())
}

fn listed(shown: Vec<String>) -> Value {
    match shown.len() {
        0 => "<unset>".into(),
        count => with_more(shown, 3, count, ",").into(),
    }
}

// Ingresses and network policies.

pub(super) fn ingress_hosts(ingress: &Subject<'_>) -> Value {
    let rules = ingress.items("spec.rules");
    let hosts: Vec<String> = rules
        .iter()
        .map(|rule| text(rule, "host"))
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .collect();
    match hosts.len() {
        0 => "*".into(),
        1 | 2 => hosts.join(",").into(),
        _ => with_more(hosts, 3, rules.len(), ",").into(),
    }
}

pub(super) fn ingress_ports(ingress: &Subject<'_>) -> Value {
    if ingress.items("spec.tls").is_empty() {
        "80".into()
    } else {
        "80, 443".into()
    }
}

pub(super) fn ingress_class_name(class: &Subject<'_>) -> Value {
    marked_default(class, &["ingressclass.kubernetes.io/is-default-class"])
}

pub(super) fn ingress_class_parameters(class: &Subject<'_>) -> Value {
    let Some(parameters) = class.at("spec.parameters").filter(|parameters| parameters.is_object()) else {
        return "<none>".into();
    };
    let (kind, name) = (text(parameters, "kind"), text(parameters, "name"));
    match text(parameters, "apiGroup") {
        "" => format!("{kind}/{name}"),
        group => format!("{kind}.{group}/{name}"),
    }
    .into()
}

pub(super) fn pod_selector(policy: &Subject<'_>) -> Value {
    policy.selector("spec.podSelector").into()
}

fn marked_default(class: &Subject<'_>, annotations: &[&str]) -> Value {
    let default = annotations
        .iter()
        .any(|annotation| class.meta().annotation(annotation) == Some("true"));
    if default {
        format!("{} (default)", class.name()).into()
    } else {
        class.name().into()
    }
}

// Nodes.

pub(super) fn node_status(node: &Subject<'_>) -> Value {
    let mut status = match node.condition("Ready") {
        Some(ready) if text(ready, "status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.at("spec.unschedulable") == Some(&Value::Bool(true)) {
        status.push_str(",SchedulingDisabled");
    }
    status.into()
}

pub(super) fn node_roles(node: &Subject<'_>) -> Value {
    let labels = node.meta().labels().into_iter().flatten();
    let roles: BTreeSet<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    or_none(join(roles.into_iter(), ","))
}

pub(super) fn node_internal_ip(node: &Subject<'_>) -> Value {
    node_address(node, "InternalIP")
}

pub(super) fn node_external_ip(node: &Subject<'_>) -> Value {
    node_address(node, "ExternalIP")
}

fn node_address(node: &Subject<'_>, kind: &str) -> Value {
    let mut addresses = node.items("status.addresses").iter();
    addresses
        .find(|address| text(address, "type") == kind)
        .map_or("<none>", |address| text(address, "address"))
        .into()
}

pub(super) fn node_kernel(node: &Subject<'_>) -> Value {
    let kernel = node.text_or("status.nodeInfo.kernelVersion", "<unknown>");
    match node.text("status.nodeInfo.architecture") {
        "" => kernel.into(),
        architecture => format!("{kernel} ({architecture})").into(),
    }
}

// Events. The two groups call the same things by different names.

fn either<'a>(event: &Subject<'a>, old: &str, new: &str) -> &'a str {
    match event.text(old) {
        "" => event.text(new),
        text => text,
    }
}

pub(super) fn event_first_seen(event: &Subject<'_>) -> Value {
    let first = match either(event, "firstTimestamp", "deprecatedFirstTimestamp") {
        "" => event.text("eventTime"),
        first => first,
    };
    event.since(Some(first)).into()
}

pub(super) fn event_last_seen(event: &Subject<'_>) -> Value {
    if event.at("series").is_some_and(Value::is_object) {
        return event.since(Some(event.text("series.lastObservedTime"))).into();
    }
    match either(event, "lastTimestamp", "deprecatedLastTimestamp") {
        "" => event_first_seen(event),
        last => event.since(Some(last)).into(),
    }
}

pub(super) fn event_object(event: &Subject<'_>) -> Value {
    let kind = either(event, "involvedObject.kind", "regarding.kind").to_lowercase();
    match either(event, "involvedObject.name", "regarding.name") {
        "" => kind.into(),
        name => format!("{kind}/{name}").into(),
    }
}

pub(super) fn event_subobject(event: &Subject<'_>) -> Value {
    either(event, "involvedObject.fieldPath", "regarding.fieldPath").into()
}

pub(super) fn event_source(event: &Subject<'_>) -> Value {
    let first = |old, deprecated, new| match either(event, old, deprecated) {
        "" => event.text(new),
        text => text,
    };
    let component = match first("source.component", "deprecatedSource.component", "reportingComponent") {
        "" => event.text("reportingController"),
        component => component,
    };
    match first("source.host", "deprecatedSource.host", "reportingInstance") {
        "" => component.into(),
        instance => format!("{component}, {instance}").into(),
    }
}

pub(super) fn event_message(event: &Subject<'_>) -> Value {
    either(event, "message", "note").trim().into()
}

pub(super) fn event_count(event: &Subject<'_>) -> Value {
    if event.at("series").is_some_and(Value::is_object) {
        return event.integer("series.count").into();
    }
    match event.integer("count").max(event.integer("deprecatedCount")) {
        // What happened once is not counted.
        0 => 1.into(),
        count => count.into(),
    }
}

// Volumes.

pub(super) fn volume_capacity(volume: &Subject<'_>) -> Value {
    quantity(volume.at("spec.capacity.storage")).into()
}

pub(super) fn volume_access_modes(volume: &Subject<'_>) -> Value {
    access_modes(volume.items("spec.accessModes"))
}

pub(super) fn volume_phase(volume: &Subject<'_>) -> Value {
    if volume.meta().is_deleting() {
        "Terminating".into()
    } else {
        volume.text("status.phase").into()
    }
}

pub(super) fn volume_claim(volume: &Subject<'_>) -> Value {
    match volume.at("spec.claimRef").filter(|claim| claim.is_object()) {
        Some(claim) => format!("{}/{}", text(claim, "namespace"), text(claim, "name")).into(),
        None => "".into(),
    }
}

pub(super) fn storage_class_of(volume: &Subject<'_>) -> Value {
    let annotated = volume.meta().annotation("volume.beta.kubernetes.io/storage-class");
    annotated.unwrap_or_else(|| volume.text("spec.storageClassName")).into()
}

pub(super) fn claim_capacity(claim: &Subject<'_>) -> Value {
    match claim.text("spec.volumeName") {
        "" => "".into(),
        _ => quantity(claim.at("status.capacity.storage")).into(),
    }
}

pub(super) fn claim_access_modes(claim: &Subject<'_>) -> Value {
    match claim.text("spec.volumeName") {
        "" => "".into(),
        _ => access_modes(claim.items("status.accessModes")),
    }
}

fn access_modes(modes: &[Value]) -> Value {
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let given = short.iter().filter(|(mode, _)| modes.iter().any(|given| given == mode));
    join(given.map(|(_, short)| *short), ",").into()
}

pub(super) fn storage_class_name(class: &Subject<'_>) -> Value {
    marked_default(
        class,
        &[
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ],
    )
}

// Configuration, quotas and budgets.

pub(super) fn config_map_data(config_map: &Subject<'_>) -> Value {
    (config_map.count("data") + config_map.count("binaryData")).into()
}

pub(super) fn quota_requests(quota: &Subject<'_>) -> Value {
    quota_share(quota, |resource| !resource.starts_with("limits."))
}

pub(super) fn quota_limits(quota: &Subject<'_>) -> Value {
    quota_share(quota, |resource| resource.starts_with("limits."))
}

fn quota_share(quota: &Subject<'_>, shown: impl Fn(&str) -> bool) -> Value {
    let hard = quota.at("status.hard").and_then(Value::as_object).into_iter().flatten();
    let used = quota.at("status.used");
    let shares = hard.filter(|(resource, _)| shown(resource)).map(|(resource, hard)| {
        let used = used.and_then(|used| used.get(resource));
        format!("{resource}: {}/{}", quantity(used), quantity(Some(hard)))
    });
    shares.collect::<Vec<_>>().join(", ").into()
}

pub(super) fn min_available(budget: &Subject<'_>) -> Value {
    number_or_percent(budget, "spec.minAvailable")
}

pub(super) fn max_unavailable(budget: &Subject<'_>) -> Value {
    number_or_percent(budget, "spec.maxUnavailable")
}

fn number_or_percent(budget: &Subject<'_>, path: &str) -> Value {
    match budget.at(path) {
        Some(Value::Number(number)) => number.to_string().into(),
        Some(Value::String(text)) => text.as_str().into(),
        _ => "N/A".into(),
    }
}

// Autoscalers.

pub(super) fn scale_target(autoscaler: &Subject<'_>) -> Value {
    let target = |key: &str| autoscaler.text(&format!("spec.scaleTargetRef.{key}")).to_owned();
    format!("{}/{}", target("kind"), target("name")).into()
}

pub(super) fn min_replicas(autoscaler: &Subject<'_>) -> Value {
    match autoscaler.at("spec.minReplicas").and_then(Value::as_i64) {
        Some(min) => min.to_string().into(),
        None => "<unset>".into(),
    }
}

pub(super) fn scale_metrics(autoscaler: &Subject<'_>) -> Value {
    if let Some(target) = autoscaler
        .at("spec.targetCPUUtilizationPercentage")
        .and_then(Value::as_i64)
    {
        let current =
            percent(autoscaler.at("status.currentCPUUtilizationPercentage")).unwrap_or("<unknown>".to_owned());
        return format!("cpu: {current}/{target}%").into();
    }
    let current = autoscaler.items("status.currentMetrics");
    let metrics: Vec<String> = autoscaler
        .items("spec.metrics")
        .iter()
        .enumerate()
        .map(|(index, metric)| scale_metric(metric, current.get(index)))
        .collect();
    match metrics.len() {
        0 => "<none>".into(),
        count => with_more(metrics, 2, count, ", ").into(),
    }
}

fn scale_metric(metric: &Value, status: Option<&Value>) -> String {
    let (source, named) = match text(metric, "type") {
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "External" => ("external", false),
        _ => return "<unknown type>".to_owned(),
    };
    let target = |key: &str| at(metric, &format!("{source}.target.{key}"));
    let current = |key: &str| status.and_then(|status| at(status, &format!("{source}.current.{key}")));
    let amount = |value: Option<&Value>| value.map_or("<unknown>".to_owned(), |value| quantity(Some(value)));
    let prefix = if named {
        format!("{}: ", text(metric, &format!("{source}.name")))
    } else {
        String::new()
    };
    match target("averageValue") {
        Some(wanted) => {
            let suffix = if matches!(source, "object" | "external") {
                " (avg)"
            } else {
                ""
            };
            format!(
                "{prefix}{}/{}{suffix}",
                amount(current("averageValue")),
                quantity(Some(wanted))
            )
        }
        None if named => {
            let current = percent(current("averageUtilization")).unwrap_or("<unknown>".to_owned());
            format!(
                "{prefix}{current}/{}",
                percent(target("averageUtilization")).unwrap_or("<auto>".to_owned())
            )
        }
        None => format!("{}/{}", amount(current("value")), quantity(target("value"))),
    }
}

fn percent(value: Option<&Value>) -> Option<String> {
    value?.as_i64().map(|value| format!("{value}%"))
}

// Permissions, certificates and API services.

pub(super) fn role_reference(binding: &Subject<'_>) -> Value {
    format!("{}/{}", binding.text("roleRef.kind"), binding.text("roleRef.name")).into()
}

pub(super) fn subject_users(binding: &Subject<'_>) -> Value {
    subjects(binding, "User")
}

pub(super) fn subject_groups(binding: &Subject<'_>) -> Value {
    subjects(binding, "Group")
}

pub(super) fn subject_service_accounts(binding: &Subject<'_>) -> Value {
    subjects(binding, "ServiceAccount")
}

fn subjects(binding: &Subject<'_>, kind: &str) -> Value {
    let named = binding
        .items("subjects")
        .iter()
        .filter(|subject| text(subject, "kind") == kind)
        .map(|subject| {
            let name = text(subject, "name");
            if kind == "ServiceAccount" {
                format!("{}/{name}", text(subject, "namespace"))
            } else {
                name.to_owned()
            }
        });
    named.collect::<Vec<_>>().join(", ").into()
}

pub(super) fn csr_duration(request: &Subject<'_>) -> Value {
    match request.at("spec.expirationSeconds").and_then(Value::as_i64) {
        Some(seconds) => human_duration(SignedDuration::from_secs(seconds)).into(),
        None => "<none>".into(),
    }
}

pub(super) fn csr_condition(request: &Subject<'_>) -> Value {
    let has = |name| request.condition(name).is_some();
    let mut words = vec![if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }];
    if has("Failed") {
        words.push("Failed");
    }
    if !request.text("status.certificate").is_empty() {
        words.push("Issued");
    }
    words.join(",").into()
}

pub(super) fn api_service_backend(service: &Subject<'_>) -> Value {
    match service.at("spec.service").filter(|service| service.is_object()) {
        Some(backend) => format!("{}/{}", text(backend, "namespace"), text(backend, "name")).into(),
        None => "Local".into(),
    }
}

pub(super) fn api_service_available(service: &Subject<'_>) -> Value {
    match service.condition("Available") {
        None => "Unknown".into(),
        Some(condition) if text(condition, "status") == "True" => "True".into(),
        Some(condition) => format!("{} ({})", text(condition, "status"), text(condition, "reason")).into(),
    }
}

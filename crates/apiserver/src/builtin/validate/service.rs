//! Services. Their addresses are the business of [`super::super::service_addresses`].

use std::collections::HashSet;

use moorline_machinery::{
    field::{ErrorKind, FieldError},
    names,
};
use serde_json::Value;

use super::{
    at::{At, Errors, dig, internal_value, same},
    endpoints, pod, text,
};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// A service.
pub(super) fn service(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let kind = spec.at("type");
    let is_headless = spec.at("clusterIP").text() == "None";
    if spec.at("ports").items().is_empty() && !is_headless && kind.text() != "ExternalName" {
        spec.at("ports").missing(errors, "");
    }
    by_type(&spec, errors);
    ports(&spec.at("ports"), errors);
    spec.at("selector").labels(errors);
    session_affinity(&spec, errors);
    cluster_addresses(&spec, errors);
    spec.at("externalIPs").each(|address| {
        let complaints = text::address(address.text());
        if complaints.is_empty() {
            endpoints::routable(address, errors);
        }
        for complaint in complaints {
            address.invalid(errors, complaint);
        }
    });
    kind.require_one_of(errors, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    unique_ports(&spec.at("ports"), errors);
    load_balancer(&spec, errors);
    external_traffic(&spec, errors);
    let internal = spec.at("internalTrafficPolicy");
    if internal.is_set() {
        internal.one_of(errors, &["Cluster", "Local"]);
    } else if matches!(kind.text(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        internal.missing(errors, "");
    }
    let distribution = spec.at("trafficDistribution");
    distribution.one_of_if_set(errors, &["PreferClose", "PreferSameZone", "PreferSameNode"]);
}

fn by_type(spec: &At<'_>, errors: &mut Errors) {
    let kind = spec.at("type").text();
    let headless = spec.at("clusterIP").text() == "None";
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let list = spec.at("clusterIPs");
            let first = At {
                value: list.value,
                path: list.path.index(0),
            };
            first.invalid_as(errors, "None", format!("may not be set to 'None' for {kind} services"));
        }
        "ExternalName" => {
            if !spec.at("clusterIP").text().is_empty() {
                spec.at("clusterIPs")
                    .forbidden(errors, "may not be set for ExternalName services");
            }
            let name = spec.at("externalName");
            // A trailing dot makes a name absolute.
            let shown = name.text().strip_suffix('.').unwrap_or(name.text());
            if shown.is_empty() {
                name.missing(errors, "");
            } else {
                for complaint in names::dns_subdomain(shown) {
                    name.invalid_as(errors, shown, complaint);
                }
            }
        }
        _ => {}
    }
}

fn ports(ports: &At<'_>, errors: &mut Errors) {
    let several = ports.len() > 1;
    let mut seen = HashSet::new();
    ports.each(|port| {
        let name = port.at("name");
        if name.text().is_empty() {
            if several {
                name.missing(errors, "");
            }
        } else {
            name.follow(errors, names::dns_label);
            if !seen.insert(name.text().to_owned()) {
                name.duplicate(errors, name.text());
            }
        }
        port.at("port").port(errors);
        port.at("protocol").require_one_of(errors, &["SCTP", "TCP", "UDP"]);
        pod::port_or_name(&port.at("targetPort"), errors);
        port.at("appProtocol").follow_if_set(errors, names::qualified_name);
    });
}

fn unique_ports(ports: &At<'_>, errors: &mut Errors) {
    let (mut seen, mut node_ports) = (HashSet::new(), HashSet::new());
    ports.each(|port| {
        let (protocol, number) = (port.at("protocol").text().to_owned(), port.at("port").number());
        if !seen.insert((protocol.clone(), number)) {
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":\"{protocol}\",\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}"
            );
            errors.push(internal_value(ErrorKind::Duplicate, &port.path, &shown, ""));
        }
        let node_port = port.at("nodePort").number();
        if node_port != 0 && !node_ports.insert((protocol, node_port)) {
            port.at("nodePort").duplicate(errors, node_port);
        }
    });
}

fn session_affinity(spec: &At<'_>, errors: &mut Errors) {
    let affinity = spec.at("sessionAffinity");
    affinity.require_one_of(errors, &["ClientIP", "None"]);
    let config = spec.at("sessionAffinityConfig");
    if affinity.text() == "ClientIP" {
        let seconds = dig(config.value, &["clientIP", "timeoutSeconds"]).as_i64();
        match seconds {
            None => {
                let why = format!("when session affinity type is {}", affinity.text());
                config.missing(errors, &why);
            }
            Some(seconds) if !(1..=86_400).contains(&seconds) => {
                let client = config.path.child("clientIP");
                let path = client.child("timeoutSeconds");
                errors.push(FieldError::invalid(
                    &path,
                    seconds,
                    "must be greater than 0 and less than 86400",
                ));
            }
            Some(_) => {}
        }
    } else if affinity.text() == "None" && config.is_set() {
        config.forbidden(errors, "must not be set when session affinity is None");
    }
}

fn cluster_addresses(spec: &At<'_>, errors: &mut Errors) {
    let (one, list) = (spec.at("clusterIP"), spec.at("clusterIPs"));
    families(spec, errors);
    if one.text().is_empty() && !list.items().is_empty() {
        list.invalid(errors, "must be empty when `clusterIP` is not specified");
        return;
    }
    if let Some(first) = list.items().first()
        && first != one.value
    {
        list.invalid(errors, "first value must match `clusterIP`");
    }
    if list.items().is_empty() && !matches!(one.text(), "" | "None") && spec.at("type").text() != "ExternalName" {
        for complaint in text::address(one.text()) {
            let first = At {
                value: one.value,
                path: list.path.index(0),
            };
            first.invalid(errors, complaint);
        }
    }
    let wanted: Vec<&str> = spec.value["ipFamilies"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut position = 0;
    list.each(|address| {
        if address.text() != "None" {
            let complaints = text::address(address.text());
            let is_v6 = address.text().contains(':');
            match wanted.get(position) {
                Some(&"IPv6") if complaints.is_empty() && !is_v6 => address.invalid(
                    errors,
                    format!("expected an IPv6 value as indicated by `ipFamilies[{position}]`"),
                ),
                Some(&"IPv4") if complaints.is_empty() && is_v6 => address.invalid(
                    errors,
                    format!("expected an IPv4 value as indicated by `ipFamilies[{position}]`"),
                ),
                _ => {}
            }
            for complaint in complaints {
                address.invalid(errors, complaint);
            }
        }
        position += 1;
    });
    if list.len() > 2 {
        list.invalid(errors, "may only hold up to 2 values");
    }
}

fn families(spec: &At<'_>, errors: &mut Errors) {
    spec.at("ipFamilyPolicy")
        .one_of_if_set(errors, &["PreferDualStack", "RequireDualStack", "SingleStack"]);
    let mut seen = HashSet::new();
    spec.at("ipFamilies").each(|family| {
        family.one_of(errors, &FAMILIES);
        if !seen.insert(family.text().to_owned()) {
            family.duplicate(errors, family.text());
        }
    });
}

fn load_balancer(spec: &At<'_>, errors: &mut Errors) {
    let kind = spec.at("type").text();
    let balanced = kind == "LoadBalancer";
    let ranges = spec.at("loadBalancerSourceRanges");
    if !ranges.items().is_empty() {
        // The name as Kubernetes has it here.
        let shown = spec.at("LoadBalancerSourceRanges").path;
        let shown = At {
            value: ranges.value,
            path: shown,
        };
        if balanced {
            shown.each(|range| {
                for complaint in text::range(range.text().trim()) {
                    range.invalid(errors, complaint);
                }
            });
        } else {
            shown.forbidden(errors, "may only be used when `type` is 'LoadBalancer'");
        }
    }
    let allocate = spec.at("allocateLoadBalancerNodePorts");
    if balanced {
        if !allocate.is_set() {
            allocate.missing(errors, "");
        }
    } else if allocate.is_set() {
        allocate.forbidden(errors, "may only be used when `type` is 'LoadBalancer'");
    }
    if matches!(kind, "ClusterIP") {
        spec.at("ports").each(|port| {
            if port.at("nodePort").number() != 0 {
                port.at("nodePort")
                    .forbidden(errors, "may not be used when `type` is 'ClusterIP'");
            }
        });
    }
    let class = spec.at("loadBalancerClass");
    if class.is_set() {
        if balanced {
            class.follow(errors, names::qualified_name);
        } else {
            class.forbidden(errors, "may only be used when `type` is 'LoadBalancer'");
        }
    }
}

fn external_traffic(spec: &At<'_>, errors: &mut Errors) {
    let policy = spec.at("externalTrafficPolicy");
    let kind = spec.at("type").text();
    let outside = matches!(kind, "LoadBalancer" | "NodePort")
        || (kind == "ClusterIP" && !spec.at("externalIPs").items().is_empty());
    if !policy.text().is_empty() && !outside {
        policy.invalid(errors, "may only be set for externally-accessible services");
    } else if outside && policy.text().is_empty() && kind != "ClusterIP" {
        policy.missing(errors, "");
    } else if outside && !policy.text().is_empty() {
        policy.one_of(errors, &["Cluster", "Local"]);
    }
    let port = spec.at("healthCheckNodePort");
    if port.number() != 0 && !(kind == "LoadBalancer" && policy.text() == "Local") {
        port.invalid(
            errors,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        );
    }
}

/// A change of a service: it keeps its address.
pub(super) fn change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let before = dig(old, &["spec"]);
    let has_address = |kind: &Value| !matches!(kind.as_str(), Some("ExternalName") | None);
    if has_address(spec.at("type").value) && has_address(dig(before, &["type"])) {
        let list = spec.at("clusterIPs");
        let former = dig(before, &["clusterIPs"]).as_array().cloned().unwrap_or_default();
        if let (Some(now), Some(first)) = (list.items().first(), former.first())
            && now != first
            && now == spec.at("clusterIP").value
        {
            let path = list.path.index(0);
            errors.push(FieldError::invalid(
                &path,
                list.value.clone(),
                "may not change once set",
            ));
        }
        let families = spec.at("ipFamilies");
        let former = dig(before, &["ipFamilies"]).as_array().cloned().unwrap_or_default();
        if let (Some(now), Some(first)) = (families.items().first(), former.first())
            && now != first
            && list.items().is_empty()
        {
            families.invalid(errors, "primary ipFamily can not be changed");
        }
    }
    let both_balanced = spec.at("type").text() == "LoadBalancer" && dig(before, &["type"]) == "LoadBalancer";
    if both_balanced && !same(spec.at("loadBalancerClass").value, dig(before, &["loadBalancerClass"])) {
        spec.at("loadBalancerClass").invalid(errors, "may not change once set");
    }
}

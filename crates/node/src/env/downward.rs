//! What a pod may know of itself.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr};

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceFieldSelector},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use moorline_machinery::quantity::Quantity;

use crate::amounts::{Amounts, Side};

/// A pod with what only its node knows.
pub(crate) struct Facts<'a> {
    pub(crate) pod: &'a Pod,
    /// The container that asks; volumes ask for none.
    pub(crate) container: Option<&'a Container>,
    pub(crate) pod_ips: &'a [IpAddr],
    pub(crate) host_ips: &'a [IpAddr],
    pub(crate) allocatable: &'a Amounts,
}

/// The value of a field of the pod.
pub(crate) fn field(facts: &Facts<'_>, path: &str) -> Result<String, String> {
    let meta = &facts.pod.metadata;
    let spec = facts.pod.spec.as_ref();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => return Err(format!("invalid fieldPath {path:?}")),
        };
        return Ok(map.and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => spec.map(|spec| text(&spec.node_name)).unwrap_or_default(),
        "spec.serviceAccountName" => spec.map(|spec| text(&spec.service_account_name)).unwrap_or_default(),
        "spec.restartPolicy" => spec.map(|spec| text(&spec.restart_policy)).unwrap_or_default(),
        "status.phase" => facts
            .pod
            .status
            .as_ref()
            .map(|status| text(&status.phase))
            .unwrap_or_default(),
        "status.podIP" => first(facts.pod_ips),
        "status.hostIP" => first(facts.host_ips),
        "status.podIPs" => all(facts.pod_ips),
        "status.hostIPs" => all(facts.host_ips),
        _ => return Err(format!("unsupported fieldPath: {path}")),
    })
}

fn first(ips: &[IpAddr]) -> String {
    ips.first().map(ToString::to_string).unwrap_or_default()
}

fn all(ips: &[IpAddr]) -> String {
    ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// `metadata.labels['key']` as map and key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// `key="value"` a line, as files and variables show maps.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", quoted(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Go's `%q`.
fn quoted(text: &str) -> String {
    let mut result = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => result.push_str("\\\""),
            '\\' => result.push_str("\\\\"),
            '\n' => result.push_str("\\n"),
            '\r' => result.push_str("\\r"),
            '\t' => result.push_str("\\t"),
            '\u{7}' => result.push_str("\\a"),
            '\u{8}' => result.push_str("\\b"),
            '\u{c}' => result.push_str("\\f"),
            '\u{b}' => result.push_str("\\v"),
            letter if u32::from(letter) < 0x20 || letter == '\u{7f}' => {
                // Writing to a string cannot fail.
                let _ = write!(result, "\\x{:02x}", u32::from(letter));
            }
            letter => result.push(letter),
        }
    }
    result.push('"');
    result
}

/// A request or limit of a container, in units of the divisor; where there is no limit, what the node has to give.
pub(crate) fn resource(facts: &Facts<'_>, wanted: &ResourceFieldSelector) -> Result<String, String> {
    let spec = facts.pod.spec.as_ref();
    let container = match wanted.container_name.as_deref().filter(|name| !name.is_empty()) {
        None => facts.container,
        Some(name) => {
            let containers = spec
                .into_iter()
                .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
            containers.into_iter().find(|container| container.name == name)
        }
    };
    let Some(container) = container else {
        return Err(format!(
            "container {} not found",
            wanted.container_name.as_deref().unwrap_or("")
        ));
    };
    let Some((side, name)) = wanted.resource.split_once('.') else {
        return Err(format!("unsupported container resource : {}", wanted.resource));
    };
    let known = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    let side = match side {
        "limits" if known => Side::Limits,
        "requests" if known => Side::Requests,
        _ => return Err(format!("unsupported container resource : {}", wanted.resource)),
    };
    let mut amount = side.of(container.resources.as_ref()).get(name);
    if amount == 0 && side == Side::Limits {
        amount = facts.allocatable.get(name);
    }
    if amount == 0 && side == Side::Requests {
        amount = Side::Limits.of(container.resources.as_ref()).get(name);
    }
    let divisor = divisor(name, wanted.divisor.as_ref());
    Ok((amount.div_euclid(divisor) + i64::from(amount.rem_euclid(divisor) > 0)).to_string())
}

/// In thousandths for processors, in units for the rest; one when none is given.
fn divisor(name: &str, divisor: Option<&ApiQuantity>) -> i64 {
    let quantity: Quantity = divisor
        .and_then(|divisor| divisor.0.parse().ok())
        .unwrap_or(Quantity::ZERO);
    match (name, quantity.is_zero()) {
        ("cpu", true) => 1000,
        (_, true) => 1,
        ("cpu", false) => quantity.milli_value().max(1),
        (_, false) => quantity.value().max(1),
    }
}

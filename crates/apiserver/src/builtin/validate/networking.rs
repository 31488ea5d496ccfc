//! Ingresses, network policies and the addresses of services.

use std::collections::HashSet;

use moorline_machinery::{
    field::{ErrorKind, FieldError},
    names,
};
use serde_json::Value;

use super::{
    at::{At, Errors, dig, internal_value, same, shown},
    pod, text,
};

/// An ingress.
pub(super) fn ingress(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let (rules, default) = (spec.at("rules"), spec.at("defaultBackend"));
    if rules.items().is_empty() && !default.is_set() {
        spec.invalid_as(
            errors,
            Value::Null,
            "either `defaultBackend` or `rules` must be specified",
        );
    }
    if default.is_set() {
        backend(&default, errors);
    }
    rules.each(|rule| ingress_rule(rule, errors));
    spec.at("tls").each(|tls| {
        tls.at("hosts").each(|host| host_name(host, errors));
        tls.at("secretName").follow_if_set(errors, names::dns_subdomain);
    });
    let class = spec.at("ingressClassName");
    if class.is_set() {
        class.follow(errors, names::dns_subdomain);
    }
}

fn ingress_rule(rule: &At<'_>, errors: &mut Errors) {
    let host = rule.at("host");
    if !host.text().is_empty() {
        if host.text().parse::<std::net::IpAddr>().is_ok() {
            host.invalid(errors, "must be a DNS name, not an IP address");
        } else {
            host_name(&host, errors);
        }
    }
    let http = rule.at("http");
    if !http.is_set() {
        return;
    }
    if http.at("paths").items().is_empty() {
        http.at("paths").missing(errors, "");
    }
    http.at("paths").each(|path| http_path(path, errors));
}

/// A host, or all below one.
fn host_name(host: &At<'_>, errors: &mut Errors) {
    let text = host.text();
    if !text.contains('*') {
        host.follow(errors, names::dns_subdomain);
        return;
    }
    let holds = text.strip_prefix("*.").is_some_and(names::is_dns_subdomain);
    if !holds {
        host.invalid(
            errors,
            text::expression_complaint(
                "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
                 consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
                r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
                &["*.example.com"],
            ),
        );
    }
}

fn http_path(path: &At<'_>, errors: &mut Errors) {
    let (text, kind) = (path.at("path"), path.at("pathType"));
    if !kind.is_set() {
        kind.missing(errors, "pathType must be specified");
        return;
    }
    match kind.text() {
        "Exact" | "Prefix" => {
            if !text.text().starts_with('/') {
                text.invalid_as(errors, text.text(), "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if text.text().contains(part) {
                    text.invalid(errors, format!("must not contain '{part}'"));
                }
            }
            for end in ["/..", "/."] {
                if text.text().ends_with(end) {
                    text.invalid(errors, format!("cannot end with '{end}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !text.text().is_empty() && !text.text().starts_with('/') {
                text.invalid(errors, "must be an absolute path");
            }
        }
        _ => kind.one_of(errors, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
    backend(&path.at("backend"), errors);
}

fn backend(backend: &At<'_>, errors: &mut Errors) {
    let (service, resource) = (backend.at("service"), backend.at("resource"));
    match (service.is_set(), resource.is_set()) {
        (true, true) => backend.invalid_as(errors, "", "cannot set both resource and service backends"),
        (false, false) => backend.invalid_as(errors, "", "resource or service backend is required"),
        (false, true) => {
            resource.at("kind").require(errors);
            resource.at("name").require(errors);
        }
        (true, false) => {
            let name = service.at("name");
            if name.text().is_empty() {
                name.missing(errors, "");
            } else {
                name.follow(errors, names::dns_label);
            }
            let port = service.at("port");
            let (number, port_name) = (port.at("number"), port.at("name"));
            match (number.number() != 0, !port_name.text().is_empty()) {
                (true, true) => backend.invalid_as(errors, "", "cannot set both port name & port number"),
                (false, false) => backend.missing(errors, "port name or number is required"),
                (true, false) => number.port(errors),
                (false, true) => port_name.follow(errors, text::port_name),
            }
        }
    }
}

/// An ingress class.
pub(super) fn ingress_class(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let controller = spec.at("controller");
    controller.max_length(errors, 250);
    domain_prefixed_path(&controller, errors);
    let parameters = spec.at("parameters");
    if !parameters.is_set() {
        return;
    }
    let group = parameters.at("apiGroup");
    if group.is_set() {
        group.follow(errors, names::dns_subdomain);
    }
    parameters.at("kind").require(errors);
    parameters.at("name").require(errors);
    let (scope, namespace) = (parameters.at("scope"), parameters.at("namespace"));
    if !scope.is_set() {
        scope.missing(errors, "");
        return;
    }
    match scope.text() {
        "Namespace" => {
            if namespace.is_set() {
                namespace.follow(errors, names::dns_label);
            } else {
                namespace.missing(errors, "`parameters.scope` is set to 'Namespace'");
            }
        }
        "Cluster" => {
            if namespace.is_set() {
                namespace.forbidden(errors, "`parameters.scope` is set to 'Cluster'");
            }
        }
        _ => scope.one_of(errors, &["Cluster", "Namespace"]),
    }
}

/// A change of an ingress class.
pub(super) fn ingress_class_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    new.at("spec")
        .at("controller")
        .unchanged(errors, dig(old, &["spec", "controller"]));
}

/// A domain and a path below it.
pub(super) fn domain_prefixed_path(at: &At<'_>, errors: &mut Errors) {
    if at.text().is_empty() {
        at.missing(errors, "");
        return;
    }
    let Some((domain, path)) = at
        .text()
        .split_once('/')
        .filter(|(domain, path)| !domain.is_empty() && !path.is_empty())
    else {
        at.invalid(errors, "must be a domain-prefixed path (such as \"acme.io/foo\")");
        return;
    };
    for complaint in names::dns_subdomain(domain) {
        at.invalid_as(errors, domain, complaint);
    }
    let plain = path
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte));
    if !plain {
        at.invalid_as(
            errors,
            path,
            text::expression_complaint("Invalid path", r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", &[]),
        );
    }
}

/// A network policy.
pub(super) fn network_policy(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    spec.at("podSelector").label_selector(errors);
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        spec.at(rules).each(|rule| {
            rule.at("ports").each(|port| policy_port(port, errors));
            rule.at(peers).each(|peer| self::peer(peer, errors));
        });
    }
    let types = spec.at("policyTypes");
    if types.len() > 2 {
        types.invalid(errors, "may not specify more than two policyTypes");
        return;
    }
    types.each(|kind| kind.one_of(errors, &["Ingress", "Egress"]));
}

fn policy_port(port: &At<'_>, errors: &mut Errors) {
    let (protocol, number, end) = (port.at("protocol"), port.at("port"), port.at("endPort"));
    protocol.one_of_if_set(errors, &["TCP", "UDP", "SCTP"]);
    if number.is_set() {
        pod::port_or_name(&number, errors);
    }
    let Some(last) = end.optional_number() else { return };
    match number.value {
        Value::Null => end.invalid(errors, "may not be specified when `port` is not specified"),
        Value::String(_) => end.invalid(errors, "may not be specified when `port` is non-numeric"),
        _ => {
            if last < number.number() {
                end.invalid_as(errors, number.number(), "must be greater than or equal to `port`");
            }
            end.port(errors);
        }
    }
}

fn peer(peer: &At<'_>, errors: &mut Errors) {
    let (pods, namespaces, block) = (peer.at("podSelector"), peer.at("namespaceSelector"), peer.at("ipBlock"));
    pods.label_selector(errors);
    namespaces.label_selector(errors);
    if block.is_set() {
        ip_block(&block, errors);
    }
    if !pods.is_set() && !namespaces.is_set() && !block.is_set() {
        peer.missing(errors, "must specify a peer");
    } else if block.is_set() && (pods.is_set() || namespaces.is_set()) {
        peer.forbidden(errors, "may not specify both ipBlock and another peer");
    }
}

fn ip_block(block: &At<'_>, errors: &mut Errors) {
    let range = block.at("cidr");
    if range.text().is_empty() {
        range.missing(errors, "");
        return;
    }
    range.follow(errors, text::range);
    let whole = text::parse_range(range.text());
    block.at("except").each(|except| {
        let Some(part) = text::parse_range(except.text()) else {
            except.follow(errors, text::range);
            return;
        };
        if whole.is_some_and(|whole| !is_strict_subset(part, whole)) {
            except.invalid(errors, "must be a strict subset of `cidr`");
        }
    });
}

fn is_strict_subset(part: (std::net::IpAddr, u8), whole: (std::net::IpAddr, u8)) -> bool {
    part.0.is_ipv4() == whole.0.is_ipv4() && part.1 > whole.1 && base(part.0, whole.1) == base(whole.0, whole.1)
}

/// The address with all bits beyond the prefix cleared.
fn base(address: std::net::IpAddr, bits: u8) -> u128 {
    let (value, width) = match address {
        std::net::IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
        std::net::IpAddr::V6(address) => (u128::from(address), 128),
    };
    let free = width - u32::from(bits);
    value.checked_shr(free).unwrap_or(0).checked_shl(free).unwrap_or(0)
}

/// An address of a service.
pub(super) fn ip_address(object: &At<'_>, errors: &mut Errors) {
    let metadata = object.at("metadata");
    let name = metadata.at("name");
    name.follow(errors, text::address);
    let spec = object.at("spec");
    let parent = spec.at("parentRef");
    if !parent.is_set() {
        parent.missing(errors, "");
        return;
    }
    parent.at("resource").require(errors);
    parent.at("name").require(errors);
}

/// A change of such an address: it belongs to whom it belongs.
pub(super) fn ip_address_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let parent = spec.at("parentRef");
    if !same(parent.value, dig(old, &["spec", "parentRef"])) {
        let part = |name: &str| Value::from(parent.at(name).text()).to_string();
        let text = format!(
            "{{\"Group\":{},\"Resource\":{},\"Namespace\":{},\"Name\":{}}}",
            part("group"),
            part("resource"),
            part("namespace"),
            part("name")
        );
        errors.push(internal_value(
            ErrorKind::Invalid,
            &parent.path,
            &text,
            super::at::IMMUTABLE,
        ));
    }
}

/// A range that services get addresses from.
pub(super) fn service_cidr(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let ranges = spec.at("cidrs");
    if ranges.items().is_empty() {
        ranges.missing(errors, "at least one CIDR required");
        return;
    }
    if ranges.len() > 2 {
        let text = format!("{{\"CIDRs\":{}}}", shown(ranges.value));
        errors.push(internal_value(
            ErrorKind::Invalid,
            &ranges.path,
            &text,
            "may only hold up to 2 values",
        ));
        return;
    }
    let families: HashSet<bool> = ranges
        .items()
        .iter()
        .filter_map(Value::as_str)
        .map(|range| range.contains(':'))
        .collect();
    if ranges.len() == 2 && families.len() == 1 {
        ranges.invalid(
            errors,
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
        );
    }
    ranges.each(|range| match text::parse_range(range.text()) {
        None => range.follow(errors, text::range),
        Some((address, bits)) => {
            let whole = match address {
                std::net::IpAddr::V4(address) => u128::from(u32::from(address)),
                std::net::IpAddr::V6(address) => u128::from(address),
            };
            if base(address, bits) != whole {
                range.invalid(errors, "must not have bits set beyond the prefix length");
            }
        }
    });
}

/// A change of such a range: addresses were given out of it.
pub(super) fn service_cidr_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let spec = new.at("spec");
    let ranges = spec.at("cidrs");
    let before = dig(old, &["spec", "cidrs"]).as_array().cloned().unwrap_or_default();
    for (position, (now, before)) in ranges.items().iter().zip(&before).enumerate() {
        if now != before {
            let path = ranges.path.index(position);
            errors.push(FieldError::invalid(&path, now.clone(), super::at::IMMUTABLE));
        }
    }
}

//! Kinds with few rules each: disruption budgets, priorities, leases, runtimes, certificates, API services.

use moorline_machinery::{
    field::{ErrorKind, FieldError},
    names,
};
use serde_json::Value;

use super::{
    apps,
    at::{At, Errors, dig, internal_value, same, shown},
    pod,
};
use crate::builtin::certificate_requests::Request;

/// A disruption budget.
pub(super) fn disruption_budget(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let (least, most) = (spec.at("minAvailable"), spec.at("maxUnavailable"));
    if least.is_set() && most.is_set() {
        let text = format!(
            "{{\"MinAvailable\":{},\"Selector\":{},\"MaxUnavailable\":{},\"UnhealthyPodEvictionPolicy\":{}}}",
            shown(least.value),
            shown(spec.at("selector").value),
            shown(most.value),
            shown(spec.at("unhealthyPodEvictionPolicy").value)
        );
        let why = "minAvailable and maxUnavailable cannot be both set";
        errors.push(internal_value(ErrorKind::Invalid, &spec.path, &text, why));
    }
    for at in [&least, &most] {
        if at.is_set() {
            apps::count_or_share(at, errors);
            apps::at_most_all(at, errors);
        }
    }
    spec.at("selector").label_selector(errors);
    spec.at("unhealthyPodEvictionPolicy")
        .one_of_if_set(errors, &["AlwaysAllow", "IfHealthyBudget"]);
}

/// The highest priority that is not the system's.
const PRIORITY_MAX: i64 = 1_000_000_000;

/// A priority class.
pub(super) fn priority_class(object: &At<'_>, errors: &mut Errors) {
    let metadata = object.at("metadata");
    let name = metadata.at("name");
    let known = match name.text() {
        "system-cluster-critical" => Some(2_000_000_000),
        "system-node-critical" => Some(2_000_001_000),
        _ => None,
    };
    if name.text().starts_with("system-") {
        if known != object.at("value").optional_number() {
            let why = if known.is_some() {
                format!(
                    "value of {} PriorityClass must be {}",
                    name.text(),
                    known.unwrap_or_default()
                )
            } else {
                format!("{} is not a known system priority class", name.text())
            };
            name.forbidden(
                errors,
                format!("priority class names with 'system-' prefix are reserved for system use only. error: {why}"),
            );
        }
    } else if object.at("value").number() > PRIORITY_MAX {
        object.at("value").forbidden(
            errors,
            format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}"),
        );
    }
    object
        .at("preemptionPolicy")
        .one_of_if_set(errors, &["PreemptLowerPriority", "Never"]);
}

/// A change of a priority class: pods keep the priority they were promised.
pub(super) fn priority_class_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    if new.at("value").number() != dig(old, &["value"]).as_i64().unwrap_or_default() {
        new.at("value").forbidden(errors, "may not be changed in an update.");
    }
    new.at("preemptionPolicy")
        .unchanged(errors, dig(old, &["preemptionPolicy"]));
}

/// A lease.
pub(super) fn lease(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let seconds = spec.at("leaseDurationSeconds");
    if seconds.optional_number().is_some_and(|seconds| seconds <= 0) {
        seconds.invalid(errors, "must be greater than 0");
    }
    spec.at("leaseTransitions").not_negative(errors);
}

/// A runtime class.
pub(super) fn runtime_class(object: &At<'_>, errors: &mut Errors) {
    object.at("handler").require_following(errors, names::dns_label);
    let overhead = object.at("overhead");
    pod::overhead(&overhead.with(overhead.at("podFixed").value), errors);
    let scheduling = object.at("scheduling");
    scheduling.at("nodeSelector").labels(errors);
    pod::tolerations(&scheduling.at("tolerations"), errors);
}

/// A change of a runtime class.
pub(super) fn runtime_class_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    new.at("handler").unchanged(errors, dig(old, &["handler"]));
}

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// A request for a certificate.
pub(super) fn signing_request(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let request = spec.at("request");
    if let Err(why) = Request::parse(request.text()) {
        request.invalid(errors, why);
    }
    let usages = spec.at("usages");
    if usages.items().is_empty() {
        usages.missing(errors, "");
    }
    let mut seen = std::collections::HashSet::new();
    usages.each(|usage| {
        usage.one_of(errors, &USAGES);
        if !seen.insert(usage.text().to_owned()) {
            usage.duplicate(errors, usage.text());
        }
    });
    signer_name(&spec.at("signerName"), errors);
    let seconds = spec.at("expirationSeconds");
    if seconds.optional_number().is_some_and(|seconds| seconds < 600) {
        seconds.invalid(errors, "may not specify a duration less than 600 seconds (10 minutes)");
    }
}

fn signer_name(name: &At<'_>, errors: &mut Errors) {
    if name.text().is_empty() {
        name.missing(errors, "");
        return;
    }
    let Some((domain, path)) = name.text().split_once('/') else {
        name.invalid(
            errors,
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        );
        return;
    };
    for complaint in names::dns_subdomain(domain) {
        name.invalid_as(
            errors,
            domain,
            format!(
                "validating label {}: {complaint}",
                moorline_machinery::field::quote(domain)
            ),
        );
    }
    if !domain.contains('.') {
        name.invalid_as(
            errors,
            domain,
            "should be a domain with at least two segments separated by dots",
        );
    }
    for complaint in names::dns_subdomain(path) {
        name.invalid_as(errors, path, complaint);
    }
}

/// A change of a request: what is asked for stays, and so does what was decided.
pub(super) fn signing_request_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let conditions = |object: &Value, kind: &str| -> Vec<Value> {
        let all = dig(object, &["status", "conditions"])
            .as_array()
            .cloned()
            .unwrap_or_default();
        all.into_iter().filter(|condition| condition["type"] == kind).collect()
    };
    let status = new.at("status");
    for kind in ["Approved", "Denied", "Failed"] {
        let (now, before) = (conditions(new.value, kind), conditions(old, kind));
        if now.len() < before.len() {
            status.at("conditions").forbidden(
                errors,
                format!(
                    "updates may not remove a condition of type {}",
                    moorline_machinery::field::quote(kind)
                ),
            );
        } else if now.len() > before.len() && kind != "Failed" {
            let other = if kind == "Approved" { "Denied" } else { "Approved" };
            if !conditions(new.value, other).is_empty() {
                status.at("conditions").invalid_as(
                    errors,
                    kind,
                    "Approved and Denied conditions are mutually exclusive",
                );
            }
        }
    }
    let certificate = dig(old, &["status", "certificate"]);
    if !certificate.is_null() && !same(status.at("certificate").value, certificate) {
        let why = "updates may not set or modify certificate";
        errors.push(FieldError::forbidden(&status.at("certificate").path, why));
    }
}

/// An API service.
pub(super) fn api_service(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let (group, version) = (spec.at("group"), spec.at("version"));
    let metadata = object.at("metadata");
    let name = metadata.at("name");
    let wanted = format!("{}.{}", version.text(), group.text());
    if name.text() != wanted {
        name.invalid(
            errors,
            format!(
                "must be `spec.version+\".\"+spec.group`: {}",
                moorline_machinery::field::quote(&wanted)
            ),
        );
    }
    if !group.text().is_empty() {
        group.follow(errors, names::dns_subdomain);
    } else if version.text() != "v1" {
        group.missing(errors, "only v1 may have an empty group and it better be legacy kube");
    }
    version.follow(errors, names::dns1035_label);
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
        let priority = spec.at(field);
        if !(1..=most).contains(&priority.number()) {
            priority.invalid_as(
                errors,
                priority.number(),
                format!("must be positive and less than {most}"),
            );
        }
    }
    let service = spec.at("service");
    let insecure = spec.at("insecureSkipTLSVerify");
    if !service.is_set() {
        if !spec.at("caBundle").text().is_empty() {
            spec.at("caBundle").invalid_as(
                errors,
                spec.at("caBundle").text(),
                "local APIServices may not have a caBundle",
            );
        }
        if insecure.flag() {
            insecure.invalid(errors, "local APIServices may not have insecureSkipTLSVerify");
        }
        return;
    }
    service.at("namespace").require(errors);
    service.at("name").require(errors);
    let port = service.at("port");
    if let Some(number) = port.optional_number().filter(|number| !(1..=65_535).contains(number)) {
        port.invalid_as(
            errors,
            number,
            "port is not valid: must be between 1 and 65535, inclusive",
        );
    }
    if insecure.flag() && !spec.at("caBundle").text().is_empty() {
        insecure.invalid(errors, "may not be true if caBundle is present");
    }
}

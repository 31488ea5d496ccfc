//! How requests are queued: flow schemas and priority levels.

use moorline_machinery::{field::ErrorKind, names};

use super::at::{At, Errors, internal_value};

const PRECEDENCE_MAX: i64 = 10_000;
const QUEUES_MAX: i64 = 10_000_000;

/// A flow schema.
pub(super) fn flow_schema(object: &At<'_>, errors: &mut Errors) {
    let name = object.value["metadata"]["name"].as_str().unwrap_or_default();
    let spec = object.at("spec");
    let precedence = spec.at("matchingPrecedence");
    if precedence.number() <= 0 {
        precedence.invalid_as(errors, precedence.number(), "must be a positive value");
    }
    if precedence.number() > PRECEDENCE_MAX {
        precedence.invalid(errors, format!("must not be greater than {PRECEDENCE_MAX}"));
    }
    if precedence.number() == 1 && name != "exempt" {
        precedence.invalid(errors, "only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = spec.at("distinguisherMethod");
    if method.is_set() && !matches!(method.at("type").text(), "ByNamespace" | "ByUser") {
        let kind = method.at("type");
        let text = format!("{{\"Type\":\"{}\"}}", kind.text());
        let why = "supported values: \"ByNamespace\", \"ByUser\"";
        errors.push(internal_value(ErrorKind::NotSupported, &kind.path, &text, why));
    }
    let level = spec.at("priorityLevelConfiguration");
    let level = level.at("name");
    if level.text().is_empty() {
        level.missing(errors, "must reference a priority level");
    } else {
        level.follow(errors, names::dns_subdomain);
    }
    spec.at("rules").each(|rule| self::rule(rule, errors));
}

fn rule(rule: &At<'_>, errors: &mut Errors) {
    let subjects = rule.at("subjects");
    if subjects.items().is_empty() {
        subjects.missing(errors, "subjects must contain at least one value");
    }
    subjects.each(|subject| self::subject(subject, errors));
    let (resources, others) = (rule.at("resourceRules"), rule.at("nonResourceRules"));
    if resources.items().is_empty() && others.items().is_empty() {
        rule.missing(
            errors,
            "at least one of resourceRules and nonResourceRules has to be non-empty",
        );
    }
    resources.each(|resource| resource_rule(resource, errors));
    others.each(|other| non_resource_rule(other, errors));
}

fn subject(subject: &At<'_>, errors: &mut Errors) {
    let kind = subject.at("kind");
    let field = match kind.text() {
        "ServiceAccount" => "serviceAccount",
        "User" => "user",
        "Group" => "group",
        _ => {
            kind.one_of(errors, &["Group", "ServiceAccount", "User"]);
            return;
        }
    };
    let one = subject.at(field);
    if !one.is_set() {
        one.missing(
            errors,
            &format!("{field} is required when subject kind is '{}'", kind.text()),
        );
        return;
    }
    if one.at("name").text().is_empty() {
        one.at("name").missing(errors, "");
    } else if field == "serviceAccount" && one.at("name").text() != "*" {
        one.at("name").follow(errors, names::dns_subdomain);
    }
    if field == "serviceAccount" {
        let namespace = one.at("namespace");
        if namespace.text().is_empty() {
            namespace.missing(errors, "must specify namespace for service account");
        } else {
            namespace.follow(errors, names::dns_label);
        }
    }
}

fn star_alone(list: &At<'_>, why: &str, errors: &mut Errors) {
    if list.len() > 1 && list.items().iter().any(|item| item == "*") {
        list.invalid(errors, why);
    }
}

fn verbs(verbs: &At<'_>, errors: &mut Errors) {
    if verbs.items().is_empty() {
        verbs.missing(errors, "verbs must contain at least one value");
        return;
    }
    star_alone(verbs, "if '*' is present, must not specify other verbs", errors);
}

fn resource_rule(rule: &At<'_>, errors: &mut Errors) {
    verbs(&rule.at("verbs"), errors);
    let groups = rule.at("apiGroups");
    if groups.items().is_empty() {
        groups.missing(errors, "resource rules must supply at least one api group");
    }
    star_alone(&groups, "if '*' is present, must not specify other api groups", errors);
    let resources = rule.at("resources");
    if resources.items().is_empty() {
        resources.missing(errors, "resource rules must supply at least one resource");
    }
    star_alone(
        &resources,
        "if '*' is present, must not specify other resources",
        errors,
    );
    let (namespaces, cluster) = (rule.at("namespaces"), rule.at("clusterScope"));
    if namespaces.items().is_empty() && !cluster.flag() {
        namespaces.missing(
            errors,
            "resource rules that are not cluster scoped must supply at least one namespace",
        );
    }
    star_alone(
        &namespaces,
        "if '*' is present, must not specify other namespaces",
        errors,
    );
    namespaces.each(|namespace| {
        if namespace.text() != "*" {
            namespace.follow(errors, names::dns_label);
        }
    });
}

fn non_resource_rule(rule: &At<'_>, errors: &mut Errors) {
    verbs(&rule.at("verbs"), errors);
    let urls = rule.at("nonResourceURLs");
    if urls.items().is_empty() {
        urls.missing(errors, "nonResourceURLs must contain at least one value");
    }
    star_alone(
        &urls,
        "if '*' is present, must not specify other non-resource URLs",
        errors,
    );
    urls.each(|url| {
        let text = url.text();
        if text == "*" {
            return;
        }
        if text.is_empty() {
            url.invalid(errors, "nonResourceURL must not be empty");
        } else if !text.starts_with('/') {
            url.invalid(errors, "must start with slash");
        } else if text.contains(' ') {
            url.invalid(errors, "must not contain white-space");
        } else if text.contains("//") {
            url.invalid(errors, "must not contain double slash");
        } else if text.trim_end_matches("/*").contains('*') {
            url.invalid(errors, "wildcard can only do suffix matching");
        }
    });
}

/// A priority level.
pub(super) fn priority_level(object: &At<'_>, errors: &mut Errors) {
    let name = object.value["metadata"]["name"].as_str().unwrap_or_default();
    let spec = object.at("spec");
    let kind = spec.at("type");
    if (name == "exempt") != (kind.text() == "Exempt") && matches!(kind.text(), "Exempt" | "Limited") {
        kind.invalid(errors, "must be 'Exempt' if and only if `name` is 'exempt'");
    }
    let limited = spec.at("limited");
    match kind.text() {
        "Exempt" => {
            if limited.is_set() {
                limited.forbidden(errors, "must be nil if the type is not Limited");
            }
        }
        "Limited" => {
            if spec.at("exempt").is_set() {
                spec.at("exempt")
                    .forbidden(errors, "must be nil if the type is Limited");
            }
            if limited.is_set() {
                limits(&limited, errors);
            } else {
                limited.missing(errors, "must not be empty when type is Limited");
            }
        }
        _ => kind.require_one_of(errors, &["Exempt", "Limited"]),
    }
}

fn limits(limited: &At<'_>, errors: &mut Errors) {
    let shares = limited.at("nominalConcurrencyShares");
    if shares.number() < 0 {
        shares.invalid(errors, "must be a non-negative integer");
    }
    response(&limited.at("limitResponse"), errors);
    let lendable = limited.at("lendablePercent");
    if lendable.is_set() {
        lendable.within(errors, 0, 100);
    }
    let borrowing = limited.at("borrowingLimitPercent");
    if borrowing.number() < 0 {
        borrowing.invalid(errors, "if specified, must be a non-negative integer");
    }
}

fn response(response: &At<'_>, errors: &mut Errors) {
    let (kind, queuing) = (response.at("type"), response.at("queuing"));
    match kind.text() {
        "Reject" => {
            if queuing.is_set() {
                queuing.forbidden(errors, "must be nil if limited.limitResponse.type is not Limited");
            }
        }
        "Queue" => {
            if queuing.is_set() {
                self::queuing(&queuing, errors);
            } else {
                queuing.missing(errors, "must not be empty if limited.limitResponse.type is Limited");
            }
        }
        _ => kind.require_one_of(errors, &["Queue", "Reject"]),
    }
}

fn queuing(queuing: &At<'_>, errors: &mut Errors) {
    let (length, queues, hand) = (
        queuing.at("queueLengthLimit"),
        queuing.at("queues"),
        queuing.at("handSize"),
    );
    for at in [&length, &queues] {
        if at.number() <= 0 {
            at.invalid_as(errors, at.number(), "must be positive");
        }
    }
    if queues.number() > QUEUES_MAX {
        queues.invalid(errors, format!("must not be greater than {QUEUES_MAX}"));
    }
    if hand.number() <= 0 {
        hand.invalid_as(errors, hand.number(), "must be positive");
    } else if hand.number() > queues.number() {
        hand.invalid(
            errors,
            format!("should not be greater than queues ({})", queues.number()),
        );
    }
}

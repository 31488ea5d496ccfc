//! Webhooks and admission policies.

use std::collections::HashSet;

use moorline_machinery::{cel::Program, field::FieldError, gvk, names};
use serde_json::Value;

use super::at::{At, Errors, is_empty};

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
/// What the expressions of webhooks may speak of.
const OF_WEBHOOKS: [&str; 4] = ["object", "oldObject", "request", "authorizer"];
/// The same of policies.
const OF_POLICIES: [&str; 7] = [
    "object",
    "oldObject",
    "request",
    "authorizer",
    "params",
    "namespaceObject",
    "variables",
];

/// A configuration of webhooks, of either sort.
pub(super) fn webhook_configuration(object: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    object.at("webhooks").each(|webhook| {
        self::webhook(webhook, errors);
        review_versions(&webhook.at("admissionReviewVersions"), errors);
        let name = webhook.at("name");
        if !name.text().is_empty() && !seen.insert(name.text().to_owned()) {
            name.duplicate(errors, name.text());
        }
    });
}

fn webhook(webhook: &At<'_>, errors: &mut Errors) {
    let name = webhook.at("name");
    if name.text().is_empty() {
        name.missing(errors, "");
    } else {
        let mut complaints = names::dns_subdomain(name.text());
        if complaints.is_empty() && name.text().split('.').count() < 3 {
            complaints.push("should be a domain with at least three segments separated by dots".to_owned());
        }
        for complaint in complaints {
            name.invalid(errors, complaint);
        }
    }
    webhook.at("rules").each(|rule| self::rule(rule, errors));
    webhook.at("failurePolicy").one_of_if_set(errors, &["Fail", "Ignore"]);
    webhook
        .at("matchPolicy")
        .one_of_if_set(errors, &["Equivalent", "Exact"]);
    webhook
        .at("reinvocationPolicy")
        .one_of_if_set(errors, &["IfNeeded", "Never"]);
    let effects = webhook.at("sideEffects");
    if effects.is_set() {
        effects.one_of(errors, &["None", "NoneOnDryRun"]);
    } else {
        effects.missing(errors, "must specify one of None, NoneOnDryRun");
    }
    let timeout = webhook.at("timeoutSeconds");
    if timeout
        .optional_number()
        .is_some_and(|seconds| !(1..=30).contains(&seconds))
    {
        timeout.invalid(errors, "the timeout value must be between 1 and 30 seconds");
    }
    webhook.at("namespaceSelector").label_selector(errors);
    webhook.at("objectSelector").label_selector(errors);
    client_config(&webhook.at("clientConfig"), errors);
    match_conditions(&webhook.at("matchConditions"), &OF_WEBHOOKS, errors);
}

fn review_versions(versions: &At<'_>, errors: &mut Errors) {
    if versions.items().is_empty() {
        versions.missing(errors, "must specify one of v1, v1beta1");
        return;
    }
    let mut seen = HashSet::new();
    versions.each(|version| {
        if !seen.insert(version.text().to_owned()) {
            version.invalid(errors, "duplicate version");
            return;
        }
        version.follow(errors, names::dns1035_label);
    });
    if !REVIEWS.iter().any(|known| seen.contains(*known)) {
        versions.invalid(errors, "must include at least one of v1, v1beta1");
    }
}

fn client_config(config: &At<'_>, errors: &mut Errors) {
    let (url, service) = (config.at("url"), config.at("service"));
    if url.is_set() == service.is_set() {
        config.missing(errors, "exactly one of url or service is required");
        return;
    }
    if url.is_set() {
        webhook_url(&url, errors);
    } else {
        webhook_service(&service, errors);
    }
}

/// Where a webhook listens: `https`, a host, and perhaps a path.
fn webhook_url(url: &At<'_>, errors: &mut Errors) {
    const FORM: &str = "desired format: https://host[/path]";
    let text = url.text();
    // Without a scheme, all of it is a path, and a path does not begin with what looks like one.
    let before = text.split(':').next().unwrap_or_default();
    let is_scheme = before.starts_with(|first: char| first.is_ascii_alphabetic())
        && before
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    if !is_scheme && text.split('/').next().is_some_and(|first| first.contains(':')) {
        let why = if before.is_empty() {
            "missing protocol scheme"
        } else {
            "first path segment in URL cannot contain colon"
        };
        url.missing(
            errors,
            &format!("url must be a valid URL: parse {text:?}: {why}; {FORM}"),
        );
        return;
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    if scheme != "https" {
        url.invalid_as(
            errors,
            scheme,
            format!("'https' is the only allowed URL scheme; {FORM}"),
        );
    }
    let rest = if scheme.is_empty() { "" } else { rest };
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        url.invalid_as(errors, host, format!("host must be specified; {FORM}"));
    }
    if !user.is_empty() {
        url.invalid_as(errors, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        url.invalid_as(errors, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        url.invalid_as(errors, query, "query parameters are not permitted in the URL");
    }
}

fn webhook_service(service: &At<'_>, errors: &mut Errors) {
    service.at("name").require(errors);
    service.at("namespace").require(errors);
    let port = service.at("port");
    if let Some(number) = port.optional_number().filter(|number| !(1..=65_535).contains(number)) {
        port.invalid_as(
            errors,
            number,
            "port is not valid: must be between 1 and 65535, inclusive",
        );
    }
    let path = service.at("path");
    if matches!(path.text(), "" | "/") {
        return;
    }
    if !path.text().starts_with('/') {
        path.invalid(errors, "must start with a '/'");
    }
    let inner = path.text().get(1..).unwrap_or_default();
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    for (position, segment) in inner.split('/').enumerate() {
        if segment.is_empty() {
            path.invalid(errors, format!("segment[{position}] may not be empty"));
            continue;
        }
        for complaint in names::dns_subdomain(segment) {
            path.invalid(errors, format!("segment[{position}]: {complaint}"));
        }
    }
}

/// Which requests are meant.
fn rule(rule: &At<'_>, errors: &mut Errors) {
    let operations = rule.at("operations");
    if operations.items().is_empty() {
        operations.missing(errors, "");
    }
    star_alone(&operations, "operations", errors);
    operations.each(|operation| operation.one_of(errors, &OPERATIONS));
    for (name, what) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let list = rule.at(name);
        if list.items().is_empty() {
            list.missing(errors, "");
        }
        star_alone(&list, what, errors);
        if name == "apiVersions" {
            list.each(|version| {
                if version.text().is_empty() {
                    version.missing(errors, "");
                }
            });
        }
    }
    resources(&rule.at("resources"), errors);
    rule.at("scope").one_of_if_set(errors, &["*", "Cluster", "Namespaced"]);
}

fn star_alone(list: &At<'_>, what: &str, errors: &mut Errors) {
    if list.len() > 1 && list.items().iter().any(|item| item == "*") {
        list.invalid(errors, format!("if '*' is present, must not specify other {what}"));
    }
}

fn resources(resources: &At<'_>, errors: &mut Errors) {
    if resources.items().is_empty() {
        resources.missing(errors, "");
    }
    let texts: Vec<&str> = resources.items().iter().filter_map(Value::as_str).collect();
    let mut whole = HashSet::new();
    let mut below_any = HashSet::new();
    resources.each(|resource| {
        if resource.text().is_empty() {
            resource.missing(errors, "");
        }
        let Some((name, below)) = resource.text().split_once('/') else {
            return;
        };
        if whole.contains(name) {
            resource.invalid(
                errors,
                format!("if '{name}/*' is present, must not specify {}", resource.text()),
            );
        }
        if below_any.contains(below) {
            resource.invalid(
                errors,
                format!("if '*/{below}' is present, must not specify {}", resource.text()),
            );
        }
        if below == "*" {
            whole.insert(name.to_owned());
        }
        if name == "*" {
            below_any.insert(below.to_owned());
        }
    });
    if texts.len() > 1 && texts.contains(&"*/*") {
        resources.invalid(errors, "if '*/*' is present, must not specify other resources");
    }
    if texts.contains(&"*") && texts.iter().any(|text| *text != "*" && !text.contains('/')) {
        resources.invalid(
            errors,
            "if '*' is present, must not specify other resources without subresources",
        );
    }
}

/// Refuses an expression that nobody could evaluate.
fn compiles(expression: &At<'_>, variables: &[&str], errors: &mut Errors) {
    if expression.text().trim().is_empty() {
        return;
    }
    if let Err(error) = Program::compile(expression.text(), variables) {
        expression.invalid(errors, error.to_string());
    }
}

fn match_conditions(conditions: &At<'_>, variables: &[&str], errors: &mut Errors) {
    if conditions.len() > 64 {
        errors.push(FieldError::too_many(&conditions.path, conditions.len(), 64));
    }
    let mut seen = HashSet::new();
    conditions.each(|condition| {
        condition.at("expression").require(errors);
        compiles(&condition.at("expression"), variables, errors);
        let name = condition.at("name");
        if name.text().is_empty() {
            name.missing(errors, "");
        } else {
            name.follow(errors, names::qualified_name);
            if !seen.insert(name.text().to_owned()) {
                name.duplicate(errors, name.text());
            }
        }
    });
}

/// A validating admission policy.
pub(super) fn policy(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let failure = spec.at("failurePolicy");
    if failure.is_set() {
        failure.one_of(errors, &["Fail", "Ignore"]);
    } else {
        failure.missing(errors, "");
    }
    let kind = spec.at("paramKind");
    if kind.is_set() {
        param_kind(&kind, errors);
    }
    let constraints = spec.at("matchConstraints");
    if constraints.is_set() {
        match_resources(&constraints, errors);
        if constraints.at("resourceRules").items().is_empty() {
            constraints.at("resourceRules").missing(errors, "");
        }
    } else {
        constraints.missing(errors, "");
    }
    match_conditions(&spec.at("matchConditions"), &OF_POLICIES, errors);
    spec.at("variables").each(|variable| {
        let name = variable.at("name");
        if name.text().is_empty() {
            name.missing(errors, "name is not specified");
        } else if !is_identifier(name.text()) {
            name.invalid(errors, "must be a valid CEL identifier");
        }
        if variable.at("expression").text().trim().is_empty() {
            variable.at("expression").missing(errors, "expression is not specified");
        }
        compiles(&variable.at("expression"), &OF_POLICIES, errors);
    });
    let (validations, annotations) = (spec.at("validations"), spec.at("auditAnnotations"));
    if validations.items().is_empty() && annotations.items().is_empty() {
        for list in [&validations, &annotations] {
            list.missing(errors, "validations or auditAnnotations must contain at least one item");
        }
    }
    validations.each(|validation| self::validation(validation, errors));
    audit_annotations(object, &annotations, errors);
}

fn is_identifier(name: &str) -> bool {
    let first = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    first && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn param_kind(kind: &At<'_>, errors: &mut Errors) {
    let version = kind.at("apiVersion");
    if version.text().is_empty() {
        version.missing(errors, "");
    } else if gvk::split_api_version(version.text()).is_none() {
        version.invalid(errors, format!("unexpected GroupVersion string: {}", version.text()));
    }
    kind.at("kind").require(errors);
}

fn validation(validation: &At<'_>, errors: &mut Errors) {
    let (expression, message) = (validation.at("expression"), validation.at("message"));
    if expression.text().trim().is_empty() {
        expression.missing(errors, "expression is not specified");
    }
    compiles(&expression, &OF_POLICIES, errors);
    compiles(&validation.at("messageExpression"), &OF_POLICIES, errors);
    let text = message.text();
    if !text.is_empty() && text.trim().is_empty() {
        message.invalid(errors, "must be non-empty if specified");
    } else if text.trim().contains(['\n', '\r']) {
        message.invalid(errors, "must not contain line breaks");
    }
    validation
        .at("reason")
        .one_of_if_set(errors, &["Forbidden", "Invalid", "RequestEntityTooLarge"]);
}

fn audit_annotations(object: &At<'_>, annotations: &At<'_>, errors: &mut Errors) {
    let policy = object.value["metadata"]["name"].as_str().unwrap_or_default();
    annotations.each(|annotation| {
        let key = annotation.at("key");
        let whole = format!("{policy}/{}", key.text());
        for complaint in names::qualified_name(&whole) {
            key.invalid_as(errors, whole.as_str(), complaint);
        }
        if annotation.at("valueExpression").text().trim().is_empty() {
            annotation
                .at("valueExpression")
                .missing(errors, "valueExpression is not specified");
        }
    });
}

fn match_resources(resources: &At<'_>, errors: &mut Errors) {
    resources
        .at("matchPolicy")
        .one_of_if_set(errors, &["Equivalent", "Exact"]);
    resources.at("namespaceSelector").label_selector(errors);
    resources.at("objectSelector").label_selector(errors);
    for list in ["resourceRules", "excludeResourceRules"] {
        resources.at(list).each(|rule| {
            self::rule(rule, errors);
            let mut seen = HashSet::new();
            rule.at("resourceNames").each(|name| {
                if !seen.insert(name.text().to_owned()) {
                    name.duplicate(errors, name.text());
                }
            });
        });
    }
}

/// A binding of a policy.
pub(super) fn policy_binding(object: &At<'_>, errors: &mut Errors) {
    let spec = object.at("spec");
    let name = spec.at("policyName");
    if name.text().is_empty() {
        name.missing(errors, "");
    } else {
        name.follow(errors, names::dns_subdomain);
    }
    let reference = spec.at("paramRef");
    if reference.is_set() {
        param_reference(&reference, errors);
    }
    let resources = spec.at("matchResources");
    if resources.is_set() {
        match_resources(&resources, errors);
    }
    let actions = spec.at("validationActions");
    if actions.items().is_empty() {
        actions.missing(errors, "at least one validation action is required");
    }
    let mut seen = HashSet::new();
    actions.each(|action| {
        action.one_of(errors, &["Audit", "Deny", "Warn"]);
        if !seen.insert(action.text().to_owned()) {
            action.duplicate(errors, action.text());
        }
    });
    if seen.contains("Deny") && seen.contains("Warn") {
        actions.invalid(
            errors,
            "must not contain both Deny and Warn (repeating the same validation failure information in the API response \
             and headers serves no purpose)",
        );
    }
}

fn param_reference(reference: &At<'_>, errors: &mut Errors) {
    let (name, selector) = (reference.at("name"), reference.at("selector"));
    match (!name.text().is_empty(), selector.is_set()) {
        (true, true) => {
            for at in [&name, &selector] {
                at.forbidden(errors, "name and selector are mutually exclusive");
            }
        }
        (false, false) => reference.missing(errors, "one of name or selector must be specified"),
        (true, false) => {
            name.follow(errors, |text| names::path_segment(text, names::NamePart::Whole));
        }
        (false, true) => selector.label_selector(errors),
    }
    let action = reference.at("parameterNotFoundAction");
    if is_empty(action.value) {
        action.missing(errors, "");
    } else {
        action.one_of(errors, &["Deny", "Allow"]);
    }
}

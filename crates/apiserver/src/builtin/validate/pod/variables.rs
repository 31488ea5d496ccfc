//! The environment of a container.

use moorline_machinery::names;

use super::super::{
    at::{At, Errors},
    text,
};

const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// The fields that a volume can show; labels and annotations as a whole among them.
pub(super) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Whether a reference to resources must say whose.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// It is the container around it.
    Own,
    /// It names the container.
    Named,
}

pub(super) fn variables(variables: &At<'_>, errors: &mut Errors) {
    variables.each(|variable| {
        variable.at("name").require_following(errors, text::variable_name);
        let from = variable.at("valueFrom");
        if from.is_set() {
            source(&from, !variable.at("value").text().is_empty(), errors);
        }
    });
}

fn source(from: &At<'_>, has_value: bool, errors: &mut Errors) {
    let mut count = 0;
    let field = from.at("fieldRef");
    if field.is_set() {
        count += 1;
        field_reference(&field, &FIELDS, errors);
    }
    let resource = from.at("resourceFieldRef");
    if resource.is_set() {
        count += 1;
        resource_reference(&resource, Whose::Own, errors);
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        let key = from.at(name);
        if key.is_set() {
            count += 1;
            key.at("key").require_following(errors, text::config_key);
        }
    }
    let file = from.at("fileKeyRef");
    if file.is_set() {
        count += 1;
        for name in ["volumeName", "path", "key"] {
            file.at(name).require(errors);
        }
    }
    if count == 0 {
        from.invalid_as(
            errors,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if has_value {
        from.invalid_as(errors, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        from.invalid_as(errors, "", "may not have more than one field specified at a time");
    }
}

pub(super) fn field_reference(reference: &At<'_>, supported: &[&str], errors: &mut Errors) {
    if !reference.at("apiVersion").require(errors) || !reference.at("fieldPath").require(errors) {
        return;
    }
    let path = reference.at("fieldPath");
    let version = reference.at("apiVersion").text();
    if version != "v1" {
        path.invalid(
            errors,
            format!("error converting fieldPath: unsupported pod version: {version}"),
        );
        return;
    }
    let (name, subscript) = subscripted(path.text());
    let known = FIELDS.contains(&name) || VOLUME_FIELDS.contains(&name);
    let with_subscript = matches!(name, "metadata.labels" | "metadata.annotations");
    if !known || (subscript.is_some() && !with_subscript) {
        let what = if subscript.is_some() {
            "does not support subscript"
        } else {
            "not supported"
        };
        path.invalid(
            errors,
            format!("error converting fieldPath: field label {what}: {}", path.text()),
        );
        return;
    }
    let Some(subscript) = subscript else {
        path.one_of(errors, supported);
        return;
    };
    match name {
        "metadata.labels" => complain(names::qualified_name(subscript), reference, subscript, errors),
        _ => complain(
            names::qualified_name(&subscript.to_lowercase()),
            reference,
            subscript,
            errors,
        ),
    }
}

fn complain(complaints: Vec<String>, path: &At<'_>, shown: &str, errors: &mut Errors) {
    for complaint in complaints {
        path.invalid_as(errors, shown, complaint);
    }
}

/// `metadata.labels['a']` is `metadata.labels` and `a`.
fn subscripted(path: &str) -> (&str, Option<&str>) {
    let parts = path.strip_suffix("']").and_then(|path| path.split_once("['"));
    match parts {
        Some((name, subscript)) if !name.is_empty() => (name, Some(subscript)),
        _ => (path, None),
    }
}

pub(super) fn resource_reference(reference: &At<'_>, whose: Whose, errors: &mut Errors) {
    if whose == Whose::Named && reference.at("containerName").text().is_empty() {
        reference.at("containerName").missing(errors, "");
        return;
    }
    let resource = reference.at("resource");
    if !resource.require(errors) {
        return;
    }
    let text = resource.text();
    let huge = text.starts_with("requests.hugepages-") || text.starts_with("limits.hugepages-");
    if !RESOURCES.contains(&text) && !huge {
        resource.one_of(errors, &RESOURCES);
    }
    divisor(&reference.at("divisor"), text, errors);
}

fn divisor(divisor: &At<'_>, resource: &str, errors: &mut Errors) {
    const CPU: [&str; 2] = ["1", "1m"];
    const BYTES: [&str; 13] = [
        "1", "1E", "1Ei", "1G", "1Gi", "1K", "1Ki", "1M", "1Mi", "1P", "1Pi", "1T", "1Ti",
    ];
    let Some(amount) = divisor.quantity().filter(|amount| !amount.is_zero()) else {
        return;
    };
    let supported: &[&str] = match resource {
        "limits.cpu" | "requests.cpu" => &CPU,
        _ => &BYTES,
    };
    let text = amount.to_string();
    if !supported.contains(&text.as_str()) && text != "1k" {
        let subject = match resource.split_once('.').map_or("", |(_, name)| name) {
            "cpu" => "only divisor's values 1m and 1 are supported with the cpu resource",
            "memory" => {
                "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the \
                 memory resource"
            }
            "ephemeral-storage" => {
                "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the \
                 local ephemeral storage resource"
            }
            _ => {
                "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the \
                 hugepages resource"
            }
        };
        divisor.invalid_as(errors, resource, subject);
    }
}

pub(super) fn sources(sources: &At<'_>, errors: &mut Errors) {
    sources.each(|source| {
        source.at("prefix").follow_if_set(errors, text::variable_name);
        let mut count = 0;
        for name in ["configMapRef", "secretRef"] {
            let reference = source.at(name);
            if reference.is_set() {
                count += 1;
                reference.at("name").require(errors);
            }
        }
        match count {
            0 => sources.invalid_as(errors, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => sources.invalid_as(errors, "", "may not have more than one field specified at a time"),
        }
    });
}

//! Amounts of resources: what is asked for and what is the limit.

use std::collections::HashSet;

use moorline_machinery::{
    field::{FieldError, Path},
    names,
    quantity::Quantity,
};
use serde_json::Value;

use super::super::at::{self, At, Errors, NOT_NEGATIVE};

/// Whose resources.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourcesOf {
    /// A container's.
    Container,
    /// A pod's as a whole.
    Pod,
}

/// Limits and requests.
pub(super) fn resource_requirements(resources: &At<'_>, of: ResourcesOf, errors: &mut Errors) {
    let (limits, requests) = (resources.at("limits"), resources.at("requests"));
    let (mut has_huge, mut has_base) = (false, false);
    for list in [&limits, &requests] {
        let is_requests = std::ptr::eq(list, &raw const requests);
        for (name, value) in list.entries() {
            let path = list.path.key(name);
            resource_name(name, of, &path, errors);
            self::amount(name, value, &path, errors);
            has_huge |= name.starts_with("hugepages-");
            has_base |= matches!(name, "cpu" | "memory");
            if is_requests {
                compare(name, value, &limits, list, errors);
            }
            huge_page_size(name, value, &path, errors);
        }
    }
    if has_huge && !has_base {
        resources.forbidden(errors, "HugePages require cpu or memory");
    }
    claims(&resources.at("claims"), errors);
}

fn compare(name: &str, request: &Value, limits: &At<'_>, requests: &At<'_>, errors: &mut Errors) {
    let Some(request) = at::quantity(request) else { return };
    let limit = limits.value.get(name).and_then(at::quantity);
    match limit {
        Some(limit) if !is_overcommitable(name) && request != limit => requests.invalid_as(
            errors,
            request.to_string(),
            format!("must be equal to {name} limit of {limit}"),
        ),
        Some(limit) if is_overcommitable(name) && request > limit => requests.invalid_as(
            errors,
            request.to_string(),
            format!("must be less than or equal to {name} limit of {limit}"),
        ),
        None if !is_overcommitable(name) => {
            limits.missing(errors, "Limit must be set for non overcommitable resources");
        }
        _ => {}
    }
}

fn huge_page_size(name: &str, value: &Value, path: &Path<'_>, errors: &mut Errors) {
    let size: Option<Quantity> = name.strip_prefix("hugepages-").and_then(|size| size.parse().ok());
    let (Some(size), Some(amount)) = (size, at::quantity(value)) else {
        return;
    };
    if size.value() > 0 && amount.value() % size.value() != 0 {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            format!("{amount} is not positive integer multiple of {name}"),
        ));
    }
}

fn claims(claims: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    claims.each(|claim| {
        let name = claim.at("name");
        if name.text().is_empty() {
            claim.missing(errors, "");
        } else if !seen.insert((name.text().to_owned(), claim.at("request").text().to_owned())) {
            claim.duplicate(errors, name.text());
        }
    });
}

/// The name of a resource must be known, or belong to somebody.
fn resource_name(name: &str, of: ResourcesOf, path: &Path<'_>, errors: &mut Errors) {
    match of {
        ResourcesOf::Container => container_resource_name(name, path, errors),
        ResourcesOf::Pod => {
            if !plain_resource_name(name, path, errors) {
                return;
            }
            if !matches!(name, "cpu" | "memory") && !name.starts_with("hugepages-") {
                errors.push(FieldError::not_supported(path, name, ["cpu", "hugepages-", "memory"]));
            }
        }
    }
}

/// The name of a resource that a container can have.
pub(in super::super) fn container_resource_name(name: &str, path: &Path<'_>, errors: &mut Errors) {
    plain_resource_name(name, path, errors);
    if !name.contains('/') {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
            errors.push(FieldError::invalid(
                path,
                name,
                "must be a standard resource for containers",
            ));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(FieldError::invalid(
            path,
            name,
            "doesn't follow extended resource name standard",
        ));
    }
}

/// The name of any resource. Tells whether it is one.
pub(in super::super) fn plain_resource_name(name: &str, path: &Path<'_>, errors: &mut Errors) -> bool {
    let before = errors.len();
    errors.extend(
        names::qualified_name(name)
            .into_iter()
            .map(|complaint| FieldError::invalid(path, name, complaint)),
    );
    if errors.len() == before && !name.contains('/') && !is_standard(name) {
        errors.push(FieldError::invalid(
            path,
            name,
            "must be a standard resource type or fully qualified",
        ));
    }
    errors.len() == before
}

fn is_standard(name: &str) -> bool {
    matches!(
        name,
        "cpu"
            | "memory"
            | "ephemeral-storage"
            | "requests.cpu"
            | "requests.memory"
            | "requests.ephemeral-storage"
            | "limits.cpu"
            | "limits.memory"
            | "limits.ephemeral-storage"
            | "pods"
            | "resourcequotas"
            | "services"
            | "replicationcontrollers"
            | "secrets"
            | "configmaps"
            | "persistentvolumeclaims"
            | "storage"
            | "requests.storage"
            | "services.nodeports"
            | "services.loadbalancers"
    ) || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// Whether a resource is Kubernetes' own.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource is somebody else's.
fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Whether more of a resource may be promised than there is.
fn is_overcommitable(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}

/// An amount must not be negative, and whole where it counts things.
pub(in super::super) fn amount(name: &str, value: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(amount) = at::quantity(value) else { return };
    if amount.signum() < 0 {
        errors.push(FieldError::invalid(path, amount.to_string(), NOT_NEGATIVE));
    }
    if counts_things(name) && amount.milli_value() % 1000 != 0 {
        errors.push(FieldError::invalid(path, amount.to_string(), "must be an integer"));
    }
}

fn counts_things(name: &str) -> bool {
    matches!(
        name,
        "pods"
            | "resourcequotas"
            | "services"
            | "replicationcontrollers"
            | "secrets"
            | "configmaps"
            | "persistentvolumeclaims"
            | "services.nodeports"
            | "services.loadbalancers"
    ) || is_extended(name)
}

pub(super) fn resize_policy(policies: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    policies.each(|policy| {
        let name = policy.at("resourceName");
        if !seen.insert(name.text().to_owned()) {
            policy.duplicate(errors, name.text());
        }
        policies.with(name.value).require_one_of(errors, &["cpu", "memory"]);
        policies
            .with(policy.at("restartPolicy").value)
            .require_one_of(errors, &["NotRequired", "RestartContainer"]);
    });
}

pub(in super::super) fn overhead(overhead: &At<'_>, errors: &mut Errors) {
    let limits = overhead.path.child("limits");
    for (name, value) in overhead.entries() {
        let path = limits.key(name);
        container_resource_name(name, &path, errors);
        amount(name, value, &path, errors);
    }
}

/// What a pod asks for as a whole must cover what its containers ask for.
pub(super) fn of_pod(spec: &At<'_>, errors: &mut Errors) {
    let resources = spec.at("resources");
    if !resources.is_set() {
        return;
    }
    resource_requirements(&resources, ResourcesOf::Pod, errors);
    if !resources.at("claims").items().is_empty() {
        resources
            .at("claims")
            .forbidden(errors, "claims may not be set for Resources at pod-level");
    }
    let requests = resources.at("requests");
    for (name, value) in requests.entries() {
        let sum = spec
            .at("containers")
            .items()
            .iter()
            .filter_map(|c| at::quantity(&c["resources"]["requests"][name]));
        let sum = sum.fold(Quantity::ZERO, |sum, one| sum.checked_add(&one).unwrap_or(sum));
        if at::quantity(value).is_some_and(|whole| whole < sum) {
            let path = requests.path.key(name);
            let why = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.push(FieldError::invalid(&path, value.clone(), why));
        }
    }
    let limits = resources.at("limits");
    let containers = resources
        .at("containers")
        .with(spec.at("containers").value)
        .value
        .clone();
    for (position, container) in containers.as_array().into_iter().flatten().enumerate() {
        for (name, whole) in limits.entries() {
            let limit = at::quantity(&container["resources"]["limits"][name]);
            if let (Some(limit), Some(whole)) = (limit, at::quantity(whole))
                && limit > whole
            {
                let list = resources.path.child("containers");
                let at = list.index(position);
                let at = at.key(name);
                let why = format!("must be less than or equal to pod limits of {whole}");
                errors.push(FieldError::invalid(&at.child("limits"), limit.to_string(), why));
            }
        }
    }
}

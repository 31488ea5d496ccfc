//! Roles and bindings.

use moorline_machinery::{
    field::ErrorKind,
    names::{self, NamePart},
    selector::LabelSelector,
};
use serde_json::Value;

use super::at::{At, Errors, dig, internal_value, same};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Where a role or binding has effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Namespace,
    Cluster,
}

/// A role.
pub(super) fn role(object: &At<'_>, errors: &mut Errors) {
    rules(&object.at("rules"), Reach::Namespace, errors);
}

/// A cluster role.
pub(super) fn cluster_role(object: &At<'_>, errors: &mut Errors) {
    rules(&object.at("rules"), Reach::Cluster, errors);
    let aggregation = object.at("aggregationRule");
    if !aggregation.is_set() {
        return;
    }
    let selectors = aggregation.at("clusterRoleSelectors");
    if selectors.items().is_empty() {
        selectors.missing(
            errors,
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        );
    }
    selectors.each(|selector| {
        selector.label_selector(errors);
        if LabelSelector::from_json(Some(selector.value)).is_err() {
            selector.invalid_as(errors, Value::Null, "invalid label selector.");
        }
    });
}

fn rules(rules: &At<'_>, reach: Reach, errors: &mut Errors) {
    rules.each(|rule| {
        if rule.at("verbs").items().is_empty() {
            rule.at("verbs")
                .missing(errors, "verbs must contain at least one value");
        }
        let (urls, groups, resources) = (rule.at("nonResourceURLs"), rule.at("apiGroups"), rule.at("resources"));
        if !urls.items().is_empty() {
            if reach == Reach::Namespace {
                urls.invalid(errors, "namespaced rules cannot apply to non-resource URLs");
            }
            let others = [&groups, &resources, &rule.at("resourceNames")]
                .iter()
                .any(|list| !list.items().is_empty());
            if others {
                urls.invalid(
                    errors,
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            return;
        }
        if groups.items().is_empty() {
            groups.missing(errors, "resource rules must supply at least one api group");
        }
        if resources.items().is_empty() {
            resources.missing(errors, "resource rules must supply at least one resource");
        }
    });
}

/// A role binding.
pub(super) fn role_binding(object: &At<'_>, errors: &mut Errors) {
    binding(object, Reach::Namespace, &["Role", "ClusterRole"], errors);
}

/// A cluster role binding.
pub(super) fn cluster_role_binding(object: &At<'_>, errors: &mut Errors) {
    binding(object, Reach::Cluster, &["ClusterRole"], errors);
}

fn binding(object: &At<'_>, reach: Reach, roles: &[&str], errors: &mut Errors) {
    let role = object.at("roleRef");
    role.at("apiGroup").one_of(errors, &[GROUP]);
    role.at("kind").one_of(errors, roles);
    let name = role.at("name");
    if name.text().is_empty() {
        name.missing(errors, "");
    } else {
        name.follow(errors, |text| names::path_segment(text, NamePart::Whole));
    }
    object
        .at("subjects")
        .each(|subject| self::subject(subject, reach, errors));
}

fn subject(subject: &At<'_>, reach: Reach, errors: &mut Errors) {
    let (kind, name, group) = (subject.at("kind"), subject.at("name"), subject.at("apiGroup"));
    if name.text().is_empty() {
        name.missing(errors, "");
    }
    match kind.text() {
        "ServiceAccount" => {
            name.follow_if_set(errors, names::dns_subdomain);
            if !group.text().is_empty() {
                group.one_of(errors, &[""]);
            }
            if reach == Reach::Cluster && subject.at("namespace").text().is_empty() {
                subject.at("namespace").missing(errors, "");
            }
        }
        "User" | "Group" => group.one_of(errors, &[GROUP]),
        _ => kind.one_of(errors, &["ServiceAccount", "User", "Group"]),
    }
}

/// A change of a binding: who has which role may change, which role not.
pub(super) fn binding_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    let role = new.at("roleRef");
    if !same(role.value, dig(old, &["roleRef"])) {
        let part = |name: &str| Value::from(role.at(name).text()).to_string();
        let text = format!(
            "{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}",
            part("apiGroup"),
            part("kind"),
            part("name")
        );
        errors.push(internal_value(
            ErrorKind::Invalid,
            &role.path,
            &text,
            "cannot change roleRef",
        ));
    }
}

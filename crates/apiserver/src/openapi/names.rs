//! The names that `OpenAPI` documents use.

use moorline_machinery::gvk::{GroupVersion, GroupVersionKind};

use crate::builtin::schema;

pub(super) const RESOURCE_LIST: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList";
pub(super) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
pub(super) const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// The name of a kind's definition; nothing for a built-in kind of which no texts are known.
pub(super) fn definition(gvk: &GroupVersionKind) -> Option<String> {
    if !is_built_in(gvk) {
        return Some(custom_definition(gvk));
    }
    let name_of = |kind: &str| schema::definition_name(&gvk.group, &gvk.version, kind);
    // Lists live beside their kinds.
    name_of(&gvk.kind).map(std::borrow::Cow::into_owned).or_else(|| {
        let item = gvk.kind.strip_suffix("List")?;
        Some(format!("{}List", name_of(item)?))
    })
}

/// A custom kind is named after its group, read backwards.
pub(super) fn custom_definition(gvk: &GroupVersionKind) -> String {
    let group: Vec<&str> = gvk.group.rsplit('.').collect();
    format!("{}.{}.{}", group.join("."), gvk.version, gvk.kind)
}

/// Whether a kind is one of Kubernetes' own. Custom groups always have a dot and a domain of someone else.
pub(super) fn is_built_in(gvk: &GroupVersionKind) -> bool {
    crate::discovery::is_built_in(&gvk.group)
}

/// Where a version begins, without a slash at the end.
pub(super) fn root(version: &GroupVersion) -> String {
    format!("/{}", index_key(version))
}

/// What a version is called in the index of documents.
pub(super) fn index_key(version: &GroupVersion) -> String {
    if version.group.is_empty() {
        format!("api/{}", version.version)
    } else {
        format!("apis/{version}")
    }
}

/// A version as part of an operation's name: `AppsV1`, `RbacAuthorizationV1`, `CoreV1`.
pub(super) fn of_version(version: &GroupVersion) -> String {
    format!("{}{}", title(&group_name(version)), title(&version.version))
}

/// A version as the tag of operations: `apps_v1`, `rbacAuthorization_v1`.
pub(super) fn tag(version: &GroupVersion) -> String {
    format!("{}_{}", group_name(version), version.version)
}

/// A group in camel case, without the domain of Kubernetes' own.
fn group_name(version: &GroupVersion) -> String {
    let short = version.group.strip_suffix(".k8s.io").unwrap_or(&version.group);
    let mut parts = short.split(['.', '-']);
    let first = parts.next().filter(|first| !first.is_empty()).unwrap_or("core");
    parts.fold(first.to_owned(), |name, part| name + &title(part))
}

/// A word with its first letter made large.
pub(super) fn title(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

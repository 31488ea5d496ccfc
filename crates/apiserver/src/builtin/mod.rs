//! The built-in kinds: what Kubernetes itself serves, as data for the generic handler.
//!
//! Facts come from two tables beside the sources (`facts/`), made from the published API modules and by hand; what
//! depends on an object as a whole is code, one module a concern.

mod autoscalers;
pub(crate) mod certificate_requests;
pub(crate) mod conform;
mod defaults;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod schema;
pub(crate) mod service_addresses;
pub(crate) mod states;
mod strategy;
pub(crate) mod validate;
mod warnings;

use std::sync::{Arc, LazyLock};

use moorline_machinery::{
    facts::resources::{self, Resource},
    gvk::{GroupVersionKind, GroupVersionResource, split_api_version},
};
use moorline_store as store;

use crate::{
    path::Verb,
    resource::{LazySchema, ResourceType, Subresource},
    wire::TypePrefix,
};
use strategy::Builtin;

/// Every built-in resource.
pub(crate) fn resources() -> &'static [Resource] {
    static RESOURCES: LazyLock<Vec<Resource>> = LazyLock::new(|| {
        resources::parse(include_str!("../../facts/resources.txt")).expect("the resources are tested with the program")
    });
    &RESOURCES
}

/// The built-in kinds, ready to be served.
pub(crate) fn resource_types() -> Vec<Arc<ResourceType>> {
    resources()
        .iter()
        .map(|resource| Arc::new(resource_type(resource)))
        .collect()
}

/// Where the objects of a built-in resource are kept. Two groups that show the same objects share the place.
pub(crate) fn storage(group: &str, plural: &str) -> store::Resource {
    match (group, plural) {
        ("" | "events.k8s.io", plural) => store::Resource::new(plural),
        (group, plural) => store::Resource::new(format!("{plural}.{group}")),
    }
}

/// Where namespaces are kept.
pub(crate) fn namespaces_storage() -> store::Resource {
    static NAMESPACES: LazyLock<store::Resource> = LazyLock::new(|| store::Resource::new("namespaces"));
    NAMESPACES.clone()
}

/// A built-in resource, ready to be served.
pub(crate) fn resource_type(resource: &'static Resource) -> ResourceType {
    let (group, version) = (resource.group(), resource.version());
    let storage = storage(group, resource.plural);
    let gvk = GroupVersionKind::new(group, version, resource.kind);
    let schema_of = gvk.clone();
    ResourceType {
        gvr: GroupVersionResource::new(group, version, resource.plural),
        list_kind: format!("{}List", resource.kind).into(),
        singular: resource.singular().into(),
        short_names: resource.short_names.iter().map(|name| Arc::from(*name)).collect(),
        categories: resource.categories.iter().map(|name| Arc::from(*name)).collect(),
        namespaced: resource.namespaced,
        verbs: verbs(&resource.verbs),
        subresources: resource
            .subresources
            .iter()
            .map(|subresource| {
                let (group, version) = split_api_version(subresource.api_version).unwrap_or_default();
                Subresource {
                    name: subresource.name.into(),
                    gvk: GroupVersionKind::new(group, version, subresource.kind),
                    verbs: verbs(&subresource.verbs),
                }
            })
            .collect(),
        prefix: TypePrefix::new(resource.api_version, resource.kind),
        strategy: Arc::new(Builtin::new(resource)),
        schema: LazySchema::new(move || schema::schema(&schema_of)),
        storage,
        gvk,
    }
}

fn verbs(names: &[&str]) -> Vec<Verb> {
    names
        .iter()
        .filter_map(|name| Verb::ALL.into_iter().find(|verb| verb.as_str() == *name))
        .collect()
}

//! A small registry for the tests of what clients are told: a few built-in kinds, and a custom one.

use std::sync::Arc;

use moorline_machinery::{
    gvk::{GroupVersionKind, GroupVersionResource},
    schema::Schema,
};
use moorline_store as store;

use crate::{
    path::Verb,
    resource::{LazySchema, Registry, ResourceType, Subresource},
    strategy::Plain,
    wire::TypePrefix,
};

/// Every verb that a stored resource has.
pub(crate) const ALL: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];
const OBJECT: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];

/// A resource that is stored, in namespaces.
pub(crate) fn resource(api_version: &str, plural: &str, kind: &str) -> ResourceType {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ResourceType {
        gvr: GroupVersionResource::new(group, version, plural),
        gvk: GroupVersionKind::new(group, version, kind),
        list_kind: format!("{kind}List").into(),
        singular: kind.to_lowercase().into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        verbs: ALL.to_vec(),
        subresources: Vec::new(),
        storage: store::Resource::new(plural),
        prefix: TypePrefix::new(api_version, kind),
        strategy: Arc::new(Plain),
        schema: LazySchema::new(Schema::anything),
    }
}

/// A part of an object.
pub(crate) fn part(name: &str, api_version: &str, kind: &str, verbs: &[Verb]) -> Subresource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Subresource {
        name: name.into(),
        gvk: GroupVersionKind::new(group, version, kind),
        verbs: verbs.to_vec(),
    }
}

/// A custom kind with a status and a scale.
pub(crate) fn custom(api_version: &str) -> ResourceType {
    ResourceType {
        subresources: vec![
            part("status", api_version, "Database", OBJECT),
            part("scale", "autoscaling/v1", "Scale", OBJECT),
        ],
        ..resource(api_version, "databases", "Database")
    }
}

/// Everything that the tests are about.
pub(crate) fn registry() -> Registry {
    let pods = ResourceType {
        short_names: vec!["po".into()],
        categories: vec!["all".into()],
        subresources: vec![
            part("eviction", "policy/v1", "Eviction", &[Verb::Create]),
            part("exec", "v1", "PodExecOptions", &[Verb::Create, Verb::Get]),
            part("log", "v1", "Pod", &[Verb::Get]),
            part("status", "v1", "Pod", OBJECT),
        ],
        ..resource("v1", "pods", "Pod")
    };
    let deployments = ResourceType {
        subresources: vec![
            part("scale", "autoscaling/v1", "Scale", OBJECT),
            part("status", "apps/v1", "Deployment", OBJECT),
        ],
        ..resource("apps/v1", "deployments", "Deployment")
    };
    let reviews = ResourceType {
        namespaced: false,
        verbs: vec![Verb::Create],
        ..resource(
            "authorization.k8s.io/v1",
            "selfsubjectaccessreviews",
            "SelfSubjectAccessReview",
        )
    };
    let definitions = ResourceType {
        namespaced: false,
        ..resource(
            "apiextensions.k8s.io/v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
        )
    };
    let served = [
        pods,
        ResourceType {
            namespaced: false,
            ..resource("v1", "namespaces", "Namespace")
        },
        resource("v1", "services", "Service"),
        deployments,
        reviews,
        definitions,
        resource("autoscaling/v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
        resource("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
        resource("events.k8s.io/v1", "events", "Event"),
        custom("db.example.com/v1"),
        custom("db.example.com/v1beta1"),
        resource("acme.example.com/v1", "anvils", "Anvil"),
    ];
    Registry::new(served.map(Arc::new))
}

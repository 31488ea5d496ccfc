//! What webhooks are told a write is about, which for some writes is not the object that is stored.

use std::{borrow::Cow, sync::Arc};

use moorline_machinery::{gvk::GroupVersionKind, meta, status::ApiError};
use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::{resource::ResourceType, rest::scale, strategy::ScalePaths};

/// The group whose objects say who is asked. Nobody is asked about those: a webhook could not be got rid of.
const EXEMPT: &str = "admissionregistration.k8s.io";

/// A write as webhooks see it.
pub(super) struct Subject<'a> {
    pub(super) attributes: &'a Attributes<'a>,
    /// The kind that travels, which for some subresources is not that of the object.
    pub(super) kind: GroupVersionKind,
    pub(super) subresource: &'a str,
    pub(super) operation: &'static str,
    /// Of a namespace, its own name.
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) old: Option<Cow<'a, Value>>,
    pub(super) options: Value,
    /// The same objects under other groups and versions.
    pub(super) equivalents: Vec<Arc<ResourceType>>,
    shape: Shape,
}

/// What of an object travels.
enum Shape {
    Whole,
    Scale(ScalePaths),
    /// Where a pod goes.
    Binding,
    /// That a pod goes away.
    Eviction,
}

impl<'a> Subject<'a> {
    /// The subject of a write; nothing when webhooks have no say in it.
    pub(super) fn of(attributes: &'a Attributes<'a>) -> Option<Self> {
        let call = attributes.call;
        let resource = &call.resource;
        if &*resource.gvr.group == EXEMPT {
            return None;
        }
        let mut subresource = call.path.subresource.as_str();
        let shape = match (attributes.operation, subresource) {
            (Operation::Bind, _) => Shape::Binding,
            (Operation::Delete, "eviction") => Shape::Eviction,
            (_, "scale") => Shape::Scale(resource.strategy.scale()?),
            _ => Shape::Whole,
        };
        if matches!(shape, Shape::Binding) {
            subresource = "binding";
        }
        let operation = match (attributes.operation, &shape) {
            (Operation::Create | Operation::Bind, _) | (_, Shape::Eviction) => "CREATE",
            (Operation::Update, _) => "UPDATE",
            (Operation::Delete, _) => "DELETE",
            (Operation::Connect, _) => "CONNECT",
        };
        let kind = resource
            .subresource(subresource)
            .map_or(&resource.gvk, |subresource| &subresource.gvk);
        let old = match &shape {
            Shape::Whole => attributes.old.map(Cow::Borrowed),
            Shape::Scale(paths) => attributes.old.map(|old| Cow::Owned(scale::scale_of(old, paths))),
            Shape::Binding | Shape::Eviction => None,
        };
        let options = match (&attributes.options, &shape) {
            (_, Shape::Eviction) => json!({ "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" }),
            (Value::Null, _) if attributes.operation == Operation::Connect => Value::Null,
            (Value::Null, _) => json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1" }),
            (given, _) => given.clone(),
        };
        let served = call.core.registry.served();
        let equivalents = served.all().filter(|other| {
            let has_part = subresource.is_empty() || other.subresource(subresource).is_some();
            other.storage == resource.storage && other.gvr != resource.gvr && has_part
        });
        Some(Self {
            attributes,
            kind: kind.clone(),
            subresource,
            operation,
            namespace: if is_namespace(resource) {
                &attributes.name
            } else {
                &call.path.namespace
            },
            name: &attributes.name,
            old,
            options,
            equivalents: equivalents.cloned().collect(),
            shape,
        })
    }

    pub(super) fn resource(&self) -> &Arc<ResourceType> {
        &self.attributes.call.resource
    }

    /// Whether it is about a namespace itself.
    pub(super) fn is_namespace(&self) -> bool {
        is_namespace(self.resource())
    }

    /// What of the object travels.
    pub(super) fn show<'o>(&self, object: &'o Value) -> Cow<'o, Value> {
        let metadata = || json!({ "name": self.name, "namespace": self.namespace });
        match &self.shape {
            Shape::Whole => Cow::Borrowed(object),
            Shape::Scale(paths) => Cow::Owned(scale::scale_of(object, paths)),
            Shape::Binding => Cow::Owned(json!({
                "kind": "Binding", "apiVersion": "v1", "metadata": metadata(),
                "target": { "kind": "Node", "name": object["spec"]["nodeName"] },
            })),
            Shape::Eviction => Cow::Owned(json!({
                "kind": "Eviction", "apiVersion": "policy/v1", "metadata": metadata(),
                "deleteOptions": self.attributes.options,
            })),
        }
    }

    /// Takes over what webhooks made of what they were shown.
    pub(super) fn adopt(&self, shown: Value, object: &mut Value) -> Result<(), ApiError> {
        match &self.shape {
            Shape::Whole => *object = shown,
            Shape::Scale(paths) => *object = scale::rescaled(object, &shown, paths)?,
            Shape::Binding => object["spec"]["nodeName"] = shown["target"]["name"].clone(),
            // The pod goes as it was asked to: what its eviction carries besides is for those who judge it.
            Shape::Eviction => {}
        }
        Ok(())
    }

    /// Reads what a webhook made of an object in some version as the type wants it.
    pub(super) fn conform(&self, resource: &ResourceType, object: &mut Value) -> Result<(), ApiError> {
        if !object.get("metadata").is_some_and(Value::is_object) {
            return Err(ApiError::internal("the patched object has no metadata"));
        }
        if matches!(self.shape, Shape::Whole) {
            resource.conform(object).map_err(ApiError::internal)?;
            resource.default(object);
        }
        Ok(())
    }

    /// An object of one of the equivalent resources as another of them has it.
    pub(super) async fn convert(
        &self,
        object: Value,
        from: &ResourceType,
        to: &ResourceType,
    ) -> Result<Value, ApiError> {
        if object.is_null() || from.gvr == to.gvr || !matches!(self.shape, Shape::Whole) {
            return Ok(object);
        }
        if let Some(custom) = to.strategy.as_custom() {
            let family = custom.family();
            let Some(version) = family.version(&to.gvr.version) else {
                return Err(ApiError::internal(format!(
                    "{} is not a version of {}",
                    to.gvr.version, from.gvr
                )));
            };
            let mut converted = family.to_version(vec![object], version).await?;
            return Ok(converted.pop().expect("as many objects come back as were sent"));
        }
        let mut object = object;
        from.strategy.on_store(&mut object);
        object["apiVersion"] = to.gvk.api_version().into();
        object["kind"] = (*to.gvk.kind).into();
        if to.strategy.changes_on_read() {
            to.strategy.on_read(&mut object);
        }
        Ok(object)
    }

    /// The labels by which an object is selected.
    pub(super) fn labels(object: &Value) -> Option<&serde_json::Map<String, Value>> {
        meta::of(object).labels()
    }
}

fn is_namespace(resource: &ResourceType) -> bool {
    resource.gvr.group.is_empty() && &*resource.gvr.resource == "namespaces"
}

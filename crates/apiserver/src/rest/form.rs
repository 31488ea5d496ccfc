//! Stored objects in the form that a client asked for.

use std::sync::Arc;

use bytes::{BufMut as _, BytesMut};
use moorline_machinery::table::{self, Headers, IncludeObject};
use moorline_store::{Record, Revision};
use serde_json::{Value, json};

use crate::{core::Core, custom, negotiate::Form, resource::ResourceType};

/// How single objects of a resource are written for one client.
#[derive(Clone)]
pub(crate) struct ObjectForm {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: Arc<ResourceType>,
    pub(crate) form: Form,
    /// How much of the object a table's row carries.
    pub(crate) include: IncludeObject,
}

impl ObjectForm {
    /// Whether what was written at a revision can be answered with as it is stored, behind the type.
    pub(crate) fn is_as_stored(&self, written: Revision) -> bool {
        self.form == Form::Whole && self.resource.strategy.serves_as_stored(written)
    }

    /// Whether stored objects can be brought into this form without asking anybody.
    pub(crate) fn converts_at_once(&self) -> bool {
        let custom = self.resource.strategy.as_custom();
        custom.is_none_or(|custom| custom.family().converts_at_once())
    }

    /// Appends an object that was written at a revision; one that departs bears a later one.
    pub(crate) fn append(&self, to: &mut BytesMut, record: &Record, written: Revision, headers: Headers) {
        if self.is_as_stored(written) {
            self.resource.prefix.append(to, record.value());
        } else {
            let object = self.shape(custom::served_now(&self.resource, record), headers);
            serde_json::to_writer(to.writer(), &object).expect("a JSON value can be written");
        }
    }

    /// An object, or a list, in this form.
    pub(crate) fn shape(&self, object: Value, headers: Headers) -> Value {
        match self.form {
            Form::Whole => object,
            Form::Metadata(_) if object.get("items").is_some_and(Value::is_array) => {
                table::partial_object_metadata_list(&object)
            }
            Form::Metadata(_) => table::partial_object_metadata(&object),
            Form::Table => self
                .resource
                .printer()
                .table(&object, self.core.world.now(), self.include, headers),
        }
    }

    /// What a watch says when nothing has happened.
    pub(crate) fn bookmark(&self, revision: Revision, annotations: Option<Value>) -> Value {
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        match self.form {
            Form::Whole => json!({
                "kind": &*self.resource.gvk.kind, "apiVersion": self.resource.gvk.api_version(), "metadata": metadata,
            }),
            Form::Metadata(_) => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
            Form::Table => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": { "resourceVersion": revision.to_string() },
                "columnDefinitions": null,
                "rows": [{ "cells": null, "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                }}],
            }),
        }
    }
}

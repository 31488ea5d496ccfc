//! Which stored objects a list or a watch means.

use std::sync::Arc;

use moorline_machinery::{
    selector::{FieldSelector, LabelSelector, Lookup},
    status::ApiError,
};
use moorline_store::{Pairs, Record};
use serde_json::Value;

use crate::{custom, query::ListOptions, resource::ResourceType};

/// The selectors of a request, ready to be held against stored objects.
#[derive(Clone)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    /// Set where fields are asked for that the store does not keep beside the object: those of custom kinds.
    parsed: Option<Arc<ResourceType>>,
}

impl Selection {
    /// Refuses fields that the resource cannot be selected by.
    pub(crate) fn new(resource: &Arc<ResourceType>, options: &ListOptions) -> Result<Self, ApiError> {
        let names = resource.strategy.selectable_field_names();
        let mut beyond_names = false;
        for term in options.fields.terms() {
            let field = term.field();
            let of_every_kind = field == "metadata.name" || (field == "metadata.namespace" && resource.namespaced);
            if !of_every_kind && !names.iter().any(|name| **name == *field) {
                return Err(ApiError::bad_request(resource.strategy.unknown_field(field)));
            }
            beyond_names |= !of_every_kind;
        }
        let parsed = (beyond_names && resource.strategy.as_custom().is_some()).then(|| Arc::clone(resource));
        Ok(Self {
            labels: options.labels.clone(),
            fields: options.fields.clone(),
            parsed,
        })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether fields are asked for that are known only once a webhook has converted the object: [`Self::contains`] says
    /// nothing of them then, and [`Self::contains_served`] has the last word.
    pub(crate) fn waits_for_conversion(&self) -> bool {
        let custom = self.parsed.as_ref().and_then(|resource| resource.strategy.as_custom());
        custom.is_some_and(|custom| !custom.family().converts_at_once())
    }

    /// Whether an object is meant, in the version in which it is served.
    pub(crate) fn contains_served(&self, object: &Value) -> bool {
        self.parsed
            .as_ref()
            .is_none_or(|resource| custom::matches_fields(resource, object, &self.fields))
    }

    pub(crate) fn contains(&self, record: &Record) -> bool {
        let attributes = record.attributes();
        if !self.labels.matches(&Labels(&attributes.labels)) {
            return false;
        }
        if let Some(resource) = &self.parsed {
            return self.waits_for_conversion() || self.contains_served(&custom::served_now(resource, record));
        }
        self.fields.matches_with(|field| match field {
            "metadata.name" => Some(record.key().name()),
            "metadata.namespace" => Some(record.key().namespace()),
            field => attributes.fields.get(field),
        })
    }
}

struct Labels<'r>(&'r Pairs);

impl Lookup for Labels<'_> {
    fn value_of(&self, key: &str) -> Option<&str> {
        self.0.get(key)
    }
}

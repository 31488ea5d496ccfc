//! Which writes a webhook or a policy is about: by what they do, to what, where.

use std::sync::Arc;

use moorline_machinery::{
    gvk::{GroupResource, GroupVersionKind},
    meta,
    selector::{LabelSelector, SelectorError},
    status::ApiError,
};
use moorline_store::Key;
use serde_json::Value;

use super::{
    rule::{Asked, Rule},
    subject::Subject,
};
use crate::{builtin, resource::ResourceType, wire};

/// What somebody wants to hear of.
pub(super) struct Criteria {
    rules: Vec<Rule>,
    /// What is not meant, although a rule means it.
    excluded: Vec<Rule>,
    pub(super) policy: MatchPolicy,
    pub(super) namespaces: Result<LabelSelector, SelectorError>,
    objects: Result<LabelSelector, SelectorError>,
}

/// Whether a rule about one version of a resource means the others too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchPolicy {
    Exact,
    Equivalent,
}

impl Criteria {
    /// Reads valid criteria; `rules` is the name of the field that has the rules.
    pub(super) fn read(given: &Value, rules: &str) -> Self {
        let list = |name: &str| -> Vec<Rule> {
            let rules = given[name].as_array().map(Vec::as_slice).unwrap_or_default();
            rules.iter().map(Rule::read).collect()
        };
        let selector = |name: &str| match given.get(name) {
            None | Some(Value::Null) => Ok(LabelSelector::all(Vec::new())),
            given => LabelSelector::from_json(given),
        };
        Self {
            rules: list(rules),
            excluded: list("excludeResourceRules"),
            policy: match given["matchPolicy"].as_str() {
                Some("Exact") => MatchPolicy::Exact,
                _ => MatchPolicy::Equivalent,
            },
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
        }
    }

    /// Whether no rule is given, which for a binding means that those of its policy are enough.
    pub(super) fn has_no_rules(&self) -> bool {
        self.rules.is_empty()
    }

    /// The version in which a write is to be told, with the kind that travels; nothing when it is not meant.
    pub(super) fn version(
        &self,
        subject: &Subject<'_>,
        object: &Value,
    ) -> Result<Option<(Arc<ResourceType>, GroupVersionKind)>, ApiError> {
        // What is wrong with the selection is only told to those whom the rules concern.
        let in_namespace = self.selects_namespace(subject, object);
        if matches!(in_namespace, Ok(false)) {
            return Ok(None);
        }
        let selected = self.selects_object(subject, object);
        if matches!(selected, Ok(false)) {
            return Ok(None);
        }
        let Some(found) = self.version_for(subject) else {
            return Ok(None);
        };
        in_namespace?;
        selected?;
        Ok(Some(found))
    }

    /// Whether a write lies where it is selected, whatever the rules say.
    pub(super) fn selects(&self, subject: &Subject<'_>, object: &Value) -> Result<bool, ApiError> {
        Ok(self.selects_namespace(subject, object)? && self.selects_object(subject, object)?)
    }

    /// The version of the resource that a rule names, the requested one first, with the kind that travels.
    fn version_for(&self, subject: &Subject<'_>) -> Option<(Arc<ResourceType>, GroupVersionKind)> {
        let matches = |rule: &Rule, resource: &ResourceType| {
            rule.matches(&Asked {
                operation: subject.operation,
                resource: &resource.gvr,
                subresource: subject.subresource,
                name: subject.name,
                namespaced: !subject.namespace.is_empty() && !subject.is_namespace(),
            })
        };
        let requested = subject.resource();
        let excluded = |resource: &ResourceType| self.excluded.iter().any(|rule| matches(rule, resource));
        if excluded(requested) {
            return None;
        }
        if self.rules.iter().any(|rule| matches(rule, requested)) {
            return Some((Arc::clone(requested), subject.kind.clone()));
        }
        if self.policy == MatchPolicy::Exact || subject.equivalents.iter().any(|other| excluded(other)) {
            return None;
        }
        let equivalents = |rule| subject.equivalents.iter().find(move |other| matches(rule, other));
        let other = self.rules.iter().find_map(equivalents)?;
        let kind = other
            .subresource(subject.subresource)
            .map_or(&other.gvk, |subresource| &subresource.gvk);
        Some((Arc::clone(other), kind.clone()))
    }

    fn selects_namespace(&self, subject: &Subject<'_>, object: &Value) -> Result<bool, ApiError> {
        if subject.namespace.is_empty() && !subject.is_namespace() {
            return Ok(true);
        }
        let selector = self.namespaces.as_ref().map_err(ApiError::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        // What a namespace becomes counts, not what it is.
        if subject.is_namespace() && subject.subresource.is_empty() && object.is_object() {
            return Ok(selector.matches(&Subject::labels(object)));
        }
        let key = Key::new(&builtin::namespaces_storage(), "", subject.namespace);
        let Some(record) = subject.attributes.call.core.store.get(&key) else {
            return Err(ApiError::not_found(
                &GroupResource::from("namespaces"),
                subject.namespace,
            ));
        };
        let namespace = wire::from_stored(record.value(), "v1", "Namespace");
        Ok(selector.matches(&meta::of(&namespace).labels()))
    }

    fn selects_object(&self, subject: &Subject<'_>, object: &Value) -> Result<bool, ApiError> {
        let selector = self.objects.as_ref().map_err(ApiError::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let selects =
            |selector: &LabelSelector, object: &Value| object.is_object() && selector.matches(&Subject::labels(object));
        let old = subject.old.as_deref();
        Ok(selects(selector, object) || old.is_some_and(|old| selects(selector, old)))
    }
}

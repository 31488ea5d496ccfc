//! The policies that are there, read anew whenever they or their bindings have changed.

use std::sync::Arc;

use arc_swap::ArcSwap;
use moorline_machinery::{
    cel::{CelError, Program},
    gvk::{GroupVersionKind, split_api_version},
    meta,
    selector::LabelSelector,
    status::ApiError,
};
use moorline_store::{List, Record, Revision, Scope, Store};
use serde_json::Value;

use super::{super::roster::Condition, mutation::Mutation};
use crate::{
    admission::{criteria::Criteria, roster::OnFailure, subject::Subject},
    builtin, custom, wire,
};

/// The variables that expressions of policies speak of.
pub(super) const SCOPE: [&str; 6] = [
    "object",
    "oldObject",
    "request",
    "params",
    "namespaceObject",
    "variables",
];
const GROUP: &str = "admissionregistration.k8s.io";

/// All policies of one of the two sorts.
pub(super) struct Roster {
    policies: List,
    bindings: List,
    current: ArcSwap<Compiled>,
}

/// The policies of a moment, in the order of their names.
#[derive(Default)]
pub(super) struct Compiled {
    /// When each policy and each binding was written. No revision is used twice.
    revisions: Vec<Revision>,
    pub(super) policies: Vec<Policy>,
    pub(super) bindings: Vec<Binding>,
}

impl Roster {
    pub(super) fn new(policies: &str, bindings: &str) -> Self {
        let all = |plural: &str| List::all(Scope::Resource(builtin::storage(GROUP, plural)));
        Self {
            policies: all(policies),
            bindings: all(bindings),
            current: ArcSwap::default(),
        }
    }

    /// What is in force now. The store is asked every time, so what was acknowledged is never missed.
    pub(super) fn now(&self, store: &Store) -> Result<Arc<Compiled>, ApiError> {
        let list = |list: &List| -> Result<Vec<Arc<Record>>, ApiError> {
            Ok(store.list(list).map_err(ApiError::internal)?.records)
        };
        let (policies, bindings) = (list(&self.policies)?, list(&self.bindings)?);
        let current = self.current.load_full();
        let written = policies.iter().chain(&bindings).map(|record| record.mod_revision());
        if written.clone().eq(current.revisions.iter().copied()) {
            return Ok(current);
        }
        let read = |record: &Arc<Record>| wire::from_stored(record.value(), "", "");
        let compiled = Arc::new(Compiled {
            revisions: written.collect(),
            policies: policies.iter().map(|record| Policy::read(&read(record))).collect(),
            bindings: bindings.iter().map(|record| Binding::read(&read(record))).collect(),
        });
        self.current.store(Arc::clone(&compiled));
        Ok(compiled)
    }
}

/// What somebody wants to hold for writes.
pub(super) struct Policy {
    pub(super) name: String,
    /// The kind of its parameters, for policies that take some.
    pub(super) parameter: Option<GroupVersionKind>,
    pub(super) criteria: Criteria,
    pub(super) conditions: Vec<Condition>,
    pub(super) variables: Vec<(String, Result<Program, CelError>)>,
    pub(super) validations: Vec<Validation>,
    pub(super) mutations: Vec<Mutation>,
    pub(super) on_failure: OnFailure,
}

/// One rule of a policy.
pub(super) struct Validation {
    pub(super) expression: String,
    pub(super) program: Result<Program, CelError>,
    message: Option<String>,
    told: Option<Program>,
    pub(super) reason: String,
}

/// Where a policy holds.
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) policy: String,
    pub(super) criteria: Criteria,
    pub(super) parameters: Option<Reference>,
    pub(super) denies: bool,
    pub(super) warns: bool,
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

impl Policy {
    fn read(policy: &Value) -> Self {
        let spec = &policy["spec"];
        let parameter = split_api_version(text(&spec["paramKind"], "apiVersion"))
            .filter(|_| !spec["paramKind"].is_null())
            .map(|(group, version)| GroupVersionKind::new(group, version, text(&spec["paramKind"], "kind")));
        let variables = list(spec, "variables").iter().map(|variable| {
            let program = Program::compile(text(variable, "expression"), &SCOPE);
            (text(variable, "name").to_owned(), program)
        });
        let conditions = list(spec, "matchConditions").iter();
        Self {
            name: meta::of(policy).name().to_owned(),
            parameter,
            criteria: Criteria::read(&spec["matchConstraints"], "resourceRules"),
            conditions: conditions.map(|condition| Condition::read(condition, &SCOPE)).collect(),
            variables: variables.collect(),
            validations: list(spec, "validations").iter().map(Validation::read).collect(),
            mutations: list(spec, "mutations").iter().map(Mutation::read).collect(),
            on_failure: match text(spec, "failurePolicy") {
                "Ignore" => OnFailure::Ignore,
                _ => OnFailure::Refuse,
            },
        }
    }
}

impl Validation {
    fn read(validation: &Value) -> Self {
        let expression = text(validation, "expression").to_owned();
        let told = Some(text(validation, "messageExpression")).filter(|told| !told.is_empty());
        Self {
            program: Program::compile(&expression, &SCOPE),
            message: validation["message"]
                .as_str()
                .filter(|message| !message.is_empty())
                .map(str::to_owned),
            told: told.and_then(|told| Program::compile(told, &SCOPE).ok()),
            reason: text(validation, "reason").to_owned(),
            expression,
        }
    }

    /// What is said where the rule does not hold.
    pub(super) fn message(&self, bindings: &[(&str, &Value)]) -> String {
        let told = self.told.as_ref().and_then(|told| told.evaluate(bindings).ok());
        let told = told.as_ref().and_then(Value::as_str).map(str::trim);
        let told = told.filter(|told| !told.is_empty() && !told.contains('\n'));
        match (told, &self.message) {
            (Some(told), _) => told.to_owned(),
            (None, Some(message)) => message.clone(),
            (None, None) => format!("failed expression: {}", self.expression.trim()),
        }
    }
}

impl Binding {
    fn read(binding: &Value) -> Self {
        let spec = &binding["spec"];
        let has = |action: &str| list(spec, "validationActions").iter().any(|own| own == action);
        Self {
            name: meta::of(binding).name().to_owned(),
            policy: text(spec, "policyName").to_owned(),
            criteria: Criteria::read(&spec["matchResources"], "resourceRules"),
            parameters: Reference::read(&spec["paramRef"]),
            denies: has("Deny"),
            warns: has("Warn"),
        }
    }
}

/// Which objects parametrize a policy.
pub(super) struct Reference {
    name: Option<String>,
    namespace: Option<String>,
    selector: Option<LabelSelector>,
    /// Whether a write is let through that no parameters are found for.
    lenient: bool,
}

/// What was found for a reference.
pub(super) enum Parameters {
    Found(Vec<Value>),
    /// There are none, and that is no harm.
    Nobody,
    /// There are none, and there should be.
    Missing(String),
}

impl Reference {
    fn read(reference: &Value) -> Option<Self> {
        if !reference.is_object() {
            return None;
        }
        let given = |name: &str| {
            reference[name]
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let selector = reference.get("selector").filter(|selector| !selector.is_null());
        Some(Self {
            name: given("name"),
            namespace: given("namespace"),
            selector: selector.and_then(|selector| LabelSelector::from_json(Some(selector)).ok()),
            lenient: text(reference, "parameterNotFoundAction") == "Allow",
        })
    }

    pub(super) fn find(&self, kind: &GroupVersionKind, subject: &Subject<'_>) -> Parameters {
        let core = subject.attributes.call.core;
        let served = core.registry.served();
        let Some(resource) = served.of_kind(kind) else {
            return Parameters::Missing(format!("failed to find resource referenced by paramKind: '{kind}'"));
        };
        let namespace = match (resource.namespaced, &self.namespace) {
            (false, _) => "",
            (true, Some(namespace)) => namespace,
            (true, None) => subject.namespace,
        };
        let scope = if resource.namespaced {
            Scope::namespace(&resource.storage, namespace)
        } else {
            Scope::Resource(resource.storage.clone())
        };
        let records = core
            .store
            .list(&List::all(scope))
            .map(|page| page.records)
            .unwrap_or_default();
        let found: Vec<Value> = records
            .iter()
            .map(|record| custom::served_now(resource, record))
            .filter(|object| match (&self.name, &self.selector) {
                (Some(name), _) => meta::of(object).name() == name,
                (None, Some(selector)) => selector.matches(&meta::of(object).labels()),
                (None, None) => false,
            })
            .collect();
        match (found.is_empty(), self.lenient) {
            (false, _) => Parameters::Found(found),
            (true, true) => Parameters::Nobody,
            (true, false) => {
                Parameters::Missing("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned())
            }
        }
    }
}

//! Admission policies: rules in CEL that the cluster's administrators add, without anybody being called.
//!
//! ```text
//!   policy (what is said) ◄─ binding (where it holds, with which parameters, what follows)
//!        └─► matched by rules, selectors and conditions ─► variables ─► validations, or mutations
//! ```
//!
//! Guarantees: a policy is in force for every write that begins after it and its binding were acknowledged. Policies
//! are held against a write in the order of their names. There is no authorizer in expressions, and no budget.

mod mutation;
mod roster;

use moorline_machinery::{
    apply, meta, patch,
    status::{ApiError, Reason},
};
use serde_json::{Map, Value};

use super::{
    Attributes,
    matching::{self, Invocation},
    roster::OnFailure,
    subject::Subject,
};
use mutation::Made;
use roster::{Binding, Parameters, Policy, Roster, Validation};

/// All admission policies.
pub(super) struct Policies {
    validating: Roster,
    mutating: Roster,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            validating: Roster::new("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
            mutating: Roster::new("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
        }
    }
}

/// A binding that holds for a write.
struct Held<'p> {
    policy: &'p Policy,
    binding: &'p Binding,
    /// Each of these is held against the write on its own; one that is null where the policy takes none.
    parameters: Vec<Value>,
}

impl Policies {
    /// Changes an object as the mutating policies say, each seeing what those before it made of it.
    pub(super) async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let roster = self.mutating.now(&attributes.call.core.store)?;
        if roster.policies.is_empty() || object.is_null() {
            return Ok(());
        }
        let Some(subject) = Subject::of(attributes) else {
            return Ok(());
        };
        let namespace = namespace_of(&subject);
        for policy in &roster.policies {
            let shown = subject.show(object).into_owned();
            let Some(invocation) = matching::told(&policy.criteria, &subject, &shown).await? else {
                continue;
            };
            let mut changed = (*invocation.object).clone();
            for held in held(policy, &roster.bindings, &subject, &shown)? {
                for parameters in &held.parameters {
                    let result = change(&held, &subject, &invocation, parameters, &namespace, &mut changed);
                    refuse_failure(policy, &subject, result)?;
                }
            }
            if changed != *invocation.object {
                let resource = std::sync::Arc::clone(&invocation.resource);
                drop(invocation);
                subject.conform(&resource, &mut changed)?;
                let changed = subject.convert(changed, &resource, subject.resource()).await?;
                subject.adopt(changed, object)?;
            }
        }
        Ok(())
    }

    /// Holds a write against the validating policies.
    pub(super) async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let roster = self.validating.now(&attributes.call.core.store)?;
        if roster.policies.is_empty() {
            return Ok(());
        }
        let Some(subject) = Subject::of(attributes) else {
            return Ok(());
        };
        let namespace = namespace_of(&subject);
        let shown = subject.show(object);
        for policy in &roster.policies {
            let Some(invocation) = matching::told(&policy.criteria, &subject, &shown).await? else {
                continue;
            };
            for held in held(policy, &roster.bindings, &subject, &shown)? {
                for parameters in &held.parameters {
                    judge(&held, &subject, &invocation, parameters, &namespace, warnings)?;
                }
            }
        }
        Ok(())
    }
}

/// The namespace that a write is in; null outside of any.
fn namespace_of(subject: &Subject<'_>) -> Value {
    if subject.namespace.is_empty() || subject.is_namespace() {
        return Value::Null;
    }
    let core = subject.attributes.call.core;
    crate::rest::internal::get(core, "v1", "namespaces", "", subject.namespace).unwrap_or_default()
}

/// The bindings of a policy that hold for a write.
fn held<'p>(
    policy: &'p Policy,
    bindings: &'p [Binding],
    subject: &Subject<'_>,
    object: &Value,
) -> Result<Vec<Held<'p>>, ApiError> {
    let mut found = Vec::new();
    for binding in bindings.iter().filter(|binding| binding.policy == policy.name) {
        let applies = if binding.criteria.has_no_rules() {
            binding.criteria.selects(subject, object)?
        } else {
            binding.criteria.version(subject, object)?.is_some()
        };
        if !applies {
            continue;
        }
        let parameters = match (&policy.parameter, &binding.parameters) {
            (Some(kind), Some(reference)) => match reference.find(kind, subject) {
                Parameters::Found(found) => found,
                Parameters::Nobody => Vec::new(),
                Parameters::Missing(why) => {
                    refuse_failure(policy, subject, Err(why))?;
                    Vec::new()
                }
            },
            _ => vec![Value::Null],
        };
        found.push(Held {
            policy,
            binding,
            parameters,
        });
    }
    Ok(found)
}

/// A policy that cannot be held against a write refuses it, unless it says otherwise.
fn refuse_failure(policy: &Policy, subject: &Subject<'_>, result: Result<(), String>) -> Result<(), ApiError> {
    match result {
        Err(why) if policy.on_failure == OnFailure::Refuse => Err(ApiError::forbidden(
            &subject.resource().group_resource(),
            subject.name,
            format_args!("policy '{}' failed: {why}", policy.name),
        )),
        _ => Ok(()),
    }
}

/// What expressions of a policy speak of.
struct Scope<'s> {
    bindings: Vec<(&'s str, &'s Value)>,
    variables: Value,
}

impl<'s> Scope<'s> {
    /// The scope of a policy for a write; nothing when its conditions do not hold.
    fn of(
        held: &Held<'_>,
        subject: &Subject<'_>,
        invocation: &'s Invocation<'_>,
        parameters: &'s Value,
        namespace: &'s Value,
    ) -> Result<Option<Self>, ApiError> {
        let mut bindings = invocation.bindings();
        bindings.extend([("params", parameters), ("namespaceObject", namespace)]);
        let policy = held.policy;
        let met = matching::meets_conditions(&policy.name, &policy.conditions, policy.on_failure, subject, &bindings)?;
        if !met {
            return Ok(None);
        }
        let mut variables = Value::Object(Map::new());
        for (name, program) in &policy.variables {
            let mut known = bindings.clone();
            known.push(("variables", &variables));
            // One that fails is missing, which whoever uses it will find.
            let value = program.as_ref().ok().and_then(|program| program.evaluate(&known).ok());
            if let Some(value) = value {
                variables[name.as_str()] = value;
            }
        }
        Ok(Some(Self { bindings, variables }))
    }

    fn all(&self) -> Vec<(&str, &Value)> {
        let mut all = self.bindings.clone();
        all.push(("variables", &self.variables));
        all
    }
}

fn judge(
    held: &Held<'_>,
    subject: &Subject<'_>,
    invocation: &Invocation<'_>,
    parameters: &Value,
    namespace: &Value,
    warnings: &mut Vec<String>,
) -> Result<(), ApiError> {
    let Some(scope) = Scope::of(held, subject, invocation, parameters, namespace)? else {
        return Ok(());
    };
    let bindings = scope.all();
    for validation in &held.policy.validations {
        let holds = match &validation.program {
            Ok(program) => program.matches(&bindings).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let message = match holds {
            Ok(true) => continue,
            Ok(false) => validation.message(&bindings),
            Err(_) if held.policy.on_failure == OnFailure::Ignore => continue,
            Err(why) => format!("expression '{}' resulted in error: {why}", validation.expression),
        };
        let (policy, binding) = (&held.policy.name, &held.binding.name);
        if held.binding.warns {
            warnings.push(format!(
                "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {message}"
            ));
        }
        if held.binding.denies {
            return Err(denial(held, subject, validation, &message));
        }
    }
    Ok(())
}

fn denial(held: &Held<'_>, subject: &Subject<'_>, validation: &Validation, message: &str) -> ApiError {
    let resource = subject.resource().group_resource();
    let (policy, binding) = (&held.policy.name, &held.binding.name);
    let said = format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}");
    let forbidden = ApiError::forbidden(&resource, subject.name, said);
    let (code, reason) = match validation.reason.as_str() {
        "Unauthorized" => (401, Reason::Unauthorized),
        "Forbidden" => (403, Reason::Forbidden),
        "RequestEntityTooLarge" => (413, Reason::RequestEntityTooLarge),
        _ => (422, Reason::Invalid),
    };
    let mut status = forbidden.status().clone();
    status.code = code;
    status.reason = reason;
    ApiError::from_status(status).with_cause("", message, "")
}

/// Changes an object by the mutations of a policy.
fn change(
    held: &Held<'_>,
    subject: &Subject<'_>,
    invocation: &Invocation<'_>,
    parameters: &Value,
    namespace: &Value,
    object: &mut Value,
) -> Result<(), String> {
    let scope = Scope::of(held, subject, invocation, parameters, namespace).map_err(|error| error.to_string())?;
    let Some(scope) = scope else { return Ok(()) };
    for mutation in &held.policy.mutations {
        let seen = object.clone();
        let mut bindings = scope.all();
        bindings.retain(|(name, _)| *name != "object");
        bindings.push(("object", &seen));
        match mutation.make(&bindings)? {
            Made::Configuration(wanted) => {
                if ["apiVersion", "kind"].iter().any(|field| !wanted[*field].is_null()) || renames(&wanted) {
                    return Err("a mutation may not change what an object is or is called".to_owned());
                }
                let resource = &invocation.resource;
                let kind = apply::Kind {
                    schema: resource.schema.get(),
                    empty: resource.empty(),
                };
                apply::overlay(object, &wanted, &kind).map_err(|error| error.to_string())?;
            }
            Made::Patch(operations) => {
                patch::json_patch(object, &operations).map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(())
}

fn renames(wanted: &Value) -> bool {
    let meta = meta::of(wanted);
    !meta.name().is_empty() || !meta.namespace().is_empty() || !meta.uid().is_empty()
}

//! What Kubernetes itself adds to writes and objects to, before anybody else is asked: its admission plugins.
//!
//! ```text
//!   mutate:   limits ─► service account ─► node restriction ─► taints ─► priority ─► tolerations ─► storage
//!             ─► runtime class ─► ingress class
//!   validate: limits, pod security, certificates, priority classes; quotas last, when nothing else objects
//! ```
//!
//! Each is one file, and looks at the kinds that it is about alone.

mod certificates;
mod classes;
mod limits;
pub(crate) mod nodes;
mod pod_security;
mod priority;
pub(crate) mod resources;
mod service_accounts;
pub(crate) mod storage;
mod tolerations;

use moorline_machinery::status::ApiError;
use moorline_store::{List, Scope};
use serde_json::Value;

use super::{Attributes, Operation};
use crate::{builtin, wire};

/// Adds to a write what Kubernetes adds, and refuses what it refuses early. The object is null for a delete.
pub(super) async fn mutate(attributes: &Attributes<'_>, object: &mut Value) -> Result<(), ApiError> {
    limits::fill_in(attributes, object);
    service_accounts::fill_in(attributes, object).await?;
    nodes::restrict(attributes, object)?;
    nodes::taint(attributes, object);
    priority::fill_in(attributes, object)?;
    tolerations::fill_in(attributes, object);
    storage::protect(attributes, object);
    storage::note_transition(attributes, object);
    storage::fill_in_class(attributes, object);
    classes::runtime(attributes, object)?;
    classes::ingress(attributes, object);
    Ok(())
}

/// Objects to a write where Kubernetes does.
pub(super) fn validate(
    attributes: &Attributes<'_>,
    object: &Value,
    warnings: &mut Vec<String>,
) -> Result<(), ApiError> {
    limits::check(attributes, object)?;
    service_accounts::check(attributes, object)?;
    priority::check(attributes, object)?;
    pod_security::check(attributes, object, warnings)?;
    certificates::check(attributes, object)?;
    storage::check_resize(attributes, object)
}

impl Attributes<'_> {
    /// Whether the write is about an object of a built-in resource as a whole, or about a part of one.
    fn is(&self, group: &str, resource: &str, part: &str) -> bool {
        let path = &self.call.path;
        let gvr = &self.call.resource.gvr;
        *gvr.group == *group && *gvr.resource == *resource && path.subresource == part
    }

    /// Whether a pod as a whole is written.
    fn is_pod(&self) -> bool {
        self.is("", "pods", "") && self.operation != Operation::Bind
    }

    fn creates(&self) -> bool {
        self.operation == Operation::Create
    }

    /// Objects of a built-in resource: all of them, or those of the write's namespace.
    fn stored(&self, group: &str, plural: &str, reach: Reach) -> Vec<Value> {
        let storage = builtin::storage(group, plural);
        let scope = match reach {
            Reach::Everywhere => Scope::Resource(storage),
            Reach::Namespace => Scope::namespace(&storage, self.call.path.namespace.as_str()),
        };
        let page = self.call.core.store.list(&List::all(scope));
        let records = page.map(|page| page.records).unwrap_or_default();
        records
            .iter()
            .map(|record| wire::from_stored(record.value(), "", ""))
            .collect()
    }

    /// One object of a built-in resource.
    fn found(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = moorline_store::Key::new(&builtin::storage(group, plural), namespace, name);
        let record = self.call.core.store.get(&key)?;
        Some(wire::from_stored(record.value(), "", ""))
    }
}

/// Where objects are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Everywhere,
    Namespace,
}

/// The text of a field; empty where there is none.
fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

/// The items of a list; none where there is none.
fn items<'v>(value: &'v Value, field: &str) -> std::slice::Iter<'v, Value> {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// Adds an item to a list that may not be there yet.
fn push(value: &mut Value, field: &str, item: Value) {
    match value[field].as_array_mut() {
        Some(items) => items.push(item),
        None => value[field] = Value::Array(vec![item]),
    }
}

/// The containers of one of the lists of a pod, to be changed.
fn containers_mut<'v>(pod: &'v mut Value, list: &str) -> impl Iterator<Item = &'v mut Value> {
    let containers = pod.get_mut("spec").and_then(|spec| spec.get_mut(list));
    containers.and_then(Value::as_array_mut).into_iter().flatten()
}

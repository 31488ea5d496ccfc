//! Resource quotas: how much a namespace may hold, what it holds, and what still fits.
//!
//! ```text
//!   write ─► admit: stored + on their way + this one ≤ hard? ─► Claim ─► stored ─► (claim dropped)
//!   anything changed in the namespace ─► controllers::quotas: status.used
//! ```
//!
//! Guarantees: what is admitted never exceeds a quota, also when many write at once: what has been admitted and is not
//! stored yet counts. Usage is measured on what is stored, never remembered, so it cannot drift.

mod scope;
mod usage;

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use moorline_machinery::{meta, quantity::Quantity, status::ApiError};
use moorline_store::{Key, List, Scope, Store};
use serde_json::Value;

use crate::{
    admission::{Attributes, Operation},
    builtin,
    core::Core,
    resource::{Registry, ResourceType},
    wire,
};
pub(crate) use usage::Amounts;

/// What has been admitted and is not stored yet.
#[derive(Default)]
pub(crate) struct Ledger {
    claims: Mutex<HashMap<u64, Claimed>>,
}

struct Claimed {
    key: Key,
    /// The usage of the object, by the name of each quota that it counts for.
    by_quota: HashMap<String, Amounts>,
}

/// What an object that is about to be stored holds of quotas. Dropped once it is stored, or is not.
#[must_use = "what is claimed is free again once the claim is dropped"]
pub(crate) struct Claim<'c> {
    ledger: &'c Ledger,
    id: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.ledger.lock().remove(&self.id);
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Claimed>> {
        // One insertion or removal is done under the lock, so nothing half done is left behind.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The quotas of a namespace, in the order of their names.
pub(crate) fn quotas(store: &Store, namespace: &str) -> Vec<Value> {
    let scope = Scope::namespace(&builtin::storage("", "resourcequotas"), namespace);
    let page = store.list(&List::all(scope));
    let records = page.map(|page| page.records).unwrap_or_default();
    records
        .iter()
        .map(|record| wire::from_stored(record.value(), "v1", "ResourceQuota"))
        .collect()
}

/// What is used of what a quota limits.
pub(crate) fn used(core: &Core, quota: &Value, namespace: &str) -> Amounts {
    measure(&core.registry, &core.store, quota, namespace, |_| {})
}

/// Adds up what is stored in a namespace and counts for a quota; `also` is told each object that was counted.
fn measure(registry: &Registry, store: &Store, quota: &Value, namespace: &str, mut also: impl FnMut(&Key)) -> Amounts {
    let hard = usage::amounts(&quota["spec"]["hard"]);
    let mut sum: Amounts = hard
        .keys()
        .map(|name| (name.clone(), Quantity::new(0, usage::style(name))))
        .collect();
    let served = registry.served();
    for resource in served.preferred().filter(|resource| resource.namespaced) {
        if !hard.keys().any(|name| usage::concerns(name, resource)) {
            continue;
        }
        let page = store.list(&List::all(Scope::namespace(&resource.storage, namespace)));
        for record in page.map(|page| page.records).unwrap_or_default() {
            let object = wire::from_stored(record.value(), "", "");
            if scope::covers(quota, resource, &object) {
                usage::add_known(&mut sum, &usage::of(resource, &object));
                also(record.key());
            }
        }
    }
    sum
}

/// Refuses a write that would hold more of a quota than is left. What it holds is claimed until it is stored.
pub(crate) fn admit<'c>(attributes: &Attributes<'c>, object: &Value) -> Result<Option<Claim<'c>>, ApiError> {
    let call = attributes.call;
    let resource = &call.resource;
    if !concerns_quotas(attributes) {
        return Ok(None);
    }
    let namespace = call.path.namespace.as_str();
    let quotas = quotas(&call.core.store, namespace);
    if quotas.is_empty() {
        return Ok(None);
    }
    let key = resource.key(namespace, &attributes.name);
    let wanted = usage::of(resource, object);
    let ledger: &'c Ledger = &call.core.quotas;
    let mut claims = ledger.lock();
    let mut by_quota = HashMap::new();
    for quota in quotas.iter().filter(|quota| scope::covers(quota, resource, object)) {
        let hard = usage::amounts(&quota["spec"]["hard"]);
        let name = meta::of(quota).name().to_owned();
        let limited: Amounts = wanted
            .iter()
            .filter(|(name, _)| hard.contains_key(*name))
            .map(|(name, amount)| (name.clone(), amount.clone()))
            .collect();
        if is_pod(resource) {
            let missing = usage::missing(object, &hard);
            if !missing.is_empty() {
                return Err(attributes.refuse(format_args!("failed quota: {name}: must specify {missing}")));
            }
        }
        let mut stored_too = false;
        let mut used = measure(&call.core.registry, &call.core.store, quota, namespace, |counted| {
            stored_too |= *counted == key;
        });
        for claimed in claims.values().filter(|claimed| claimed.key != key) {
            if let Some(amounts) = claimed
                .by_quota
                .get(&name)
                .filter(|_| call.core.store.get(&claimed.key).is_none())
            {
                usage::add_known(&mut used, amounts);
            }
        }
        // A change adds only what it has more than before.
        let before = attributes
            .old
            .filter(|_| stored_too)
            .map(|old| usage::of(resource, old))
            .unwrap_or_default();
        let more: Amounts = limited
            .iter()
            .filter_map(|(name, amount)| {
                let more = before
                    .get(name)
                    .map_or_else(|| Some(amount.clone()), |before| amount.checked_sub(before))?;
                (more.signum() > 0).then(|| (name.clone(), more))
            })
            .collect();
        let exceeded: Vec<&String> = more
            .iter()
            .filter(|(name, more)| used[*name].checked_add(more).is_none_or(|sum| sum > hard[*name]))
            .map(|(name, _)| name)
            .collect();
        if !exceeded.is_empty() {
            let told = |amounts: &Amounts| {
                let pairs = exceeded.iter().map(|name| format!("{name}={}", amounts[*name]));
                pairs.collect::<Vec<_>>().join(",")
            };
            return Err(attributes.refuse(format_args!(
                "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
                told(&more),
                told(&used),
                told(&hard)
            )));
        }
        if attributes.operation == Operation::Create && !limited.is_empty() {
            by_quota.insert(name, limited);
        }
    }
    if by_quota.is_empty() || attributes.dry_run {
        return Ok(None);
    }
    let id = call.core.world.random();
    claims.insert(id, Claimed { key, by_quota });
    drop(claims);
    Ok(Some(Claim { ledger, id }))
}

/// Whether a write can use up anything of a quota.
fn concerns_quotas(attributes: &Attributes<'_>) -> bool {
    let resource = &attributes.call.resource;
    let part = attributes.call.path.subresource.as_str();
    if !resource.namespaced {
        return false;
    }
    match (attributes.operation, part) {
        (Operation::Create, "") => true,
        (Operation::Update, "resize") => is_pod(resource),
        (Operation::Update, "") => {
            resource.gvr.group.is_empty() && matches!(&*resource.gvr.resource, "services" | "persistentvolumeclaims")
        }
        _ => false,
    }
}

fn is_pod(resource: &ResourceType) -> bool {
    resource.gvr.group.is_empty() && &*resource.gvr.resource == "pods"
}

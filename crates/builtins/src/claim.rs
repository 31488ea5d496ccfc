//! Which objects belong to a controller: those that it controls and selects. Orphans that it selects are adopted,
//! those that it controls and no longer selects are let go.

use moorline_machinery::selector::LabelSelector;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen, Snapshot, Watchable};
use serde::Serialize;
use serde_json::Value;

/// The selector of a typed `LabelSelector`; one that is not given selects nothing.
pub(crate) fn selector_of(selector: &impl Serialize) -> Result<LabelSelector, Failure> {
    let json = serde_json::to_value(selector)
        .map_err(|error| Failure::terminal(format!("cannot write the selector: {error}")))?;
    LabelSelector::from_json(Some(&json))
        .map_err(|error| Failure::terminal(format!("spec.selector is not valid: {error}")))
}

/// The selector of a plain map of labels; one without labels selects nothing.
pub(crate) fn selector_of_labels<'l>(
    labels: impl IntoIterator<Item = (&'l String, &'l String)>,
) -> Result<LabelSelector, Failure> {
    let labels: serde_json::Map<String, Value> = labels
        .into_iter()
        .map(|(key, value)| (key.clone(), value.clone().into()))
        .collect();
    if labels.is_empty() {
        return Ok(LabelSelector::NOTHING);
    }
    selector_of(&serde_json::json!({ "matchLabels": labels }))
}

/// The objects of this type that belong to the one that the plan is for, orphans that are adopted by the plan included.
pub(crate) fn claim<K, T: Watchable>(
    snapshot: &Snapshot<K>,
    selector: &LabelSelector,
    draft: &mut Draft<Object>,
) -> Result<Vec<Seen<T>>, Failure>
where
    T::Scope: 'static,
{
    let mut claimed = Vec::new();
    for owned in snapshot.owned::<T>()? {
        let is_controlled = owned
            .raw()
            .controller()
            .is_some_and(|owner| *owner.uid == *snapshot.raw().uid());
        if !is_controlled {
            continue;
        }
        if selector.matches(owned.raw()) {
            claimed.push(owned);
        } else if !owned.is_deleting() {
            draft.put(snapshot.release(owned.raw(), "its labels no longer match the selector")?);
        }
    }
    if snapshot.raw().is_deleting() {
        return Ok(claimed);
    }
    for orphan in snapshot.select::<T>(selector)? {
        if orphan.raw().controller().is_none() && !orphan.is_deleting() {
            draft.put(snapshot.adopt(orphan.raw(), "its labels match the selector and nobody controls it")?);
            claimed.push(orphan);
        }
    }
    claimed.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(claimed)
}

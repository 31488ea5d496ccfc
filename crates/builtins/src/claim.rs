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

/// Whether an object can belong to somebody, its labels apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// Its labels decide.
    Yes,
    /// It cannot: it is let go.
    No,
    /// It stays whose it is.
    Settled,
}

/// The objects of this type that belong to the one that the plan is for, orphans that are adopted by the plan included.
pub(crate) fn claim<K, T: Watchable>(
    snapshot: &Snapshot<K>,
    selector: &LabelSelector,
    draft: &mut Draft<Object>,
    candidate: impl Fn(&Seen<T>) -> Candidate,
) -> Result<Vec<Seen<T>>, Failure>
where
    T::Scope: 'static,
{
    let mut claimed = Vec::new();
    // Whoever is going takes nobody in and lets nobody go.
    let is_deleting = snapshot.raw().is_deleting();
    for owned in snapshot.owned::<T>()? {
        let is_controlled = owned
            .raw()
            .controller()
            .is_some_and(|owner| *owner.uid == *snapshot.raw().uid());
        if !is_controlled {
            continue;
        }
        let candidate = candidate(&owned);
        if candidate != Candidate::No && selector.matches(owned.raw()) {
            claimed.push(owned);
        } else if candidate != Candidate::Settled && !owned.is_deleting() && !is_deleting {
            draft.put(snapshot.release(owned.raw(), "the selector does not select it")?);
        }
    }
    if is_deleting {
        return Ok(claimed);
    }
    for orphan in snapshot.select::<T>(selector)? {
        let is_free = orphan.raw().controller().is_none() && !orphan.is_deleting();
        if is_free && candidate(&orphan) == Candidate::Yes {
            draft.put(snapshot.adopt(orphan.raw(), "its labels match the selector and nobody controls it")?);
            claimed.push(orphan);
        }
    }
    claimed.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(claimed)
}

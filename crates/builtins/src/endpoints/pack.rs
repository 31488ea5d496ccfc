//! Which endpoints are in which slice: in pieces of a hundred, and in such a way that few slices change.

use std::collections::HashMap;

use k8s_openapi::api::discovery::v1::Endpoint;

use crate::template;

pub(super) const MOST: usize = 100;

/// How the endpoints of one set of ports lie in slices.
pub(super) struct Packed<S> {
    /// Slices that stay, with what is in them now.
    pub(super) kept: Vec<(S, Vec<Endpoint>)>,
    /// Slices of which nothing is left.
    pub(super) emptied: Vec<S>,
    /// What is in slices that are not there yet.
    pub(super) fresh: Vec<Vec<Endpoint>>,
}

/// A slice, and whether it has to be written anyhow.
struct Place<S> {
    slice: S,
    endpoints: Vec<Endpoint>,
    changes: bool,
}

/// Puts endpoints into slices, of which it is given what is in them. What is in one already stays there. What is new goes
/// into slices that change anyway, then into one other that takes all the rest, or else into new ones.
pub(super) fn pack<S>(wanted: Vec<Endpoint>, slices: Vec<(S, Vec<Endpoint>)>) -> Packed<S> {
    let mut order = Vec::with_capacity(wanted.len());
    let mut unplaced: HashMap<String, Endpoint> = HashMap::with_capacity(wanted.len());
    for endpoint in wanted {
        let name = identity(&endpoint);
        if unplaced.insert(name.clone(), endpoint).is_none() {
            order.push(name);
        }
    }
    let (mut places, mut emptied) = (Vec::new(), Vec::new());
    for (slice, before) in slices {
        let mut changes = false;
        let mut endpoints = Vec::with_capacity(before.len());
        for old in &before {
            let Some(new) = unplaced.remove(&identity(old)) else {
                changes = true;
                continue;
            };
            changes |= !is_same(old, &new);
            endpoints.push(new);
        }
        if changes && endpoints.is_empty() {
            emptied.push(slice);
        } else {
            places.push(Place {
                slice,
                endpoints,
                changes,
            });
        }
    }
    let rest = order.into_iter().filter_map(|name| unplaced.remove(&name)).collect();
    let fresh = fill(&mut places, rest);
    let kept = places.into_iter().map(|place| (place.slice, place.endpoints)).collect();
    Packed { kept, emptied, fresh }
}

/// Fills the places with what is new, and says what is to be in new ones.
fn fill<S>(places: &mut [Place<S>], mut rest: Vec<Endpoint>) -> Vec<Vec<Endpoint>> {
    let mut changing: Vec<&mut Place<S>> = places.iter_mut().filter(|place| place.changes).collect();
    changing.sort_by_key(|place| std::cmp::Reverse(place.endpoints.len()));
    for place in changing {
        let room = MOST.saturating_sub(place.endpoints.len()).min(rest.len());
        place.endpoints.extend(rest.drain(..room));
    }
    let mut fresh = Vec::new();
    while !rest.is_empty() {
        let fitting = places
            .iter_mut()
            .filter(|place| !place.changes && place.endpoints.len() + rest.len() <= MOST);
        match fitting.max_by_key(|place| place.endpoints.len()) {
            Some(place) => place.endpoints.append(&mut rest),
            None => fresh.push(rest.drain(..rest.len().min(MOST)).collect()),
        }
    }
    fresh
}

/// What makes an endpoint the same as before: its pod, and the address of that.
pub(super) fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint
        .target_ref
        .as_ref()
        .and_then(|reference| reference.uid.as_deref())
        .unwrap_or_default();
    format!("{uid} {}", endpoint.addresses.join(","))
}

pub(super) fn is_same(before: &Endpoint, after: &Endpoint) -> bool {
    let normal = |endpoint: &Endpoint| {
        let mut value = serde_json::to_value(endpoint).unwrap_or_default();
        template::leave_out_empty(&mut value);
        value
    };
    normal(before) == normal(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(numbers: std::ops::Range<usize>) -> Vec<Endpoint> {
        let endpoint = |number| Endpoint {
            addresses: vec![format!("10.0.0.{number}")],
            ..Endpoint::default()
        };
        numbers.map(endpoint).collect()
    }

    fn sizes(packed: &Packed<&'static str>) -> (Vec<(&'static str, usize)>, usize, usize) {
        let kept = packed.kept.iter().map(|(name, endpoints)| (*name, endpoints.len()));
        (kept.collect(), packed.emptied.len(), packed.fresh.len())
    }

    #[test]
    fn what_is_new_goes_where_something_changes_anyway() {
        let slices = vec![
            ("a", endpoints(0..50)),
            ("b", endpoints(50..80)),
            ("c", endpoints(80..90)),
        ];
        // One of b is gone, and five are new.
        let packed = pack([endpoints(0..79), endpoints(80..95)].concat(), slices);
        assert_eq!(sizes(&packed), (vec![("a", 50), ("b", 34), ("c", 10)], 0, 0));
    }

    #[test]
    fn what_is_new_fills_one_slice_that_has_room_for_all_of_it() {
        let slices = || {
            vec![
                ("a", endpoints(0..40)),
                ("b", endpoints(40..100)),
                ("c", endpoints(100..195)),
            ]
        };
        let packed = pack(endpoints(0..215), slices());
        assert_eq!(sizes(&packed), (vec![("a", 40), ("b", 80), ("c", 95)], 0, 0));
        let packed = pack(endpoints(0..265), slices());
        assert_eq!(sizes(&packed), (vec![("a", 40), ("b", 60), ("c", 95)], 0, 1));
    }

    #[test]
    fn a_slice_of_which_nothing_is_left_is_given_back() {
        let packed = pack(endpoints(10..120), vec![("a", endpoints(0..10))]);
        assert_eq!(sizes(&packed), (vec![], 1, 2));
    }
}

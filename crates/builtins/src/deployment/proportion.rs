//! Sharing out replicas between sets that are active at once, each by its size.

use k8s_openapi::api::apps::v1::ReplicaSet;
use moorline_runtime::Seen;

use super::sets::{most_of, replicas_of};

/// How many replicas each of the sets gets, when together they may have `most`. What rounding leaves goes to the first.
pub(crate) fn shares<'s>(sets: &[&'s Seen<ReplicaSet>], wanted: i32, most: i32) -> Vec<(&'s Seen<ReplicaSet>, i32)> {
    let sizes: Vec<Size> = sets
        .iter()
        .map(|set| Size {
            replicas: replicas_of(set),
            most: most_of(set).unwrap_or(wanted),
        })
        .collect();
    sets.iter().copied().zip(share_out(&sizes, most)).collect()
}

/// A set's replicas, and the most that its deployment had allowed in all when it was last scaled.
#[derive(Clone, Copy, Debug)]
struct Size {
    replicas: i32,
    most: i32,
}

fn share_out(sizes: &[Size], most: i32) -> Vec<i32> {
    let total: i32 = sizes.iter().map(|size| size.replicas).sum();
    let change = most - total;
    let mut left = change;
    let mut shares = Vec::with_capacity(sizes.len());
    for size in sizes {
        let before = if size.most > 0 { size.most } else { total };
        let exact = f64::from(size.replicas) * f64::from(most) / f64::from(before.max(1));
        #[expect(clippy::cast_possible_truncation, reason = "a share of a 32-bit number")]
        let part = (exact.round() as i32) - size.replicas;
        // Never past what is left to share, nor against the direction of the change.
        let part = if change > 0 {
            part.clamp(0, left.max(0))
        } else {
            part.clamp(left.min(0), 0)
        };
        left -= part;
        shares.push(size.replicas + part);
    }
    if let Some(first) = shares.first_mut() {
        *first = (*first + left).max(0);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(replicas: i32, most: i32) -> Size {
        Size { replicas, most }
    }

    #[test]
    fn growing_is_shared_out_by_size() {
        assert_eq!(share_out(&[size(8, 13), size(5, 13)], 33), [20, 13]);
    }

    #[test]
    fn what_rounding_leaves_goes_to_the_largest() {
        assert_eq!(share_out(&[size(5, 10), size(3, 10), size(2, 10)], 11), [6, 3, 2]);
    }

    #[test]
    fn shrinking_to_nothing_takes_everything() {
        assert_eq!(share_out(&[size(8, 13), size(5, 13)], 0), [0, 0]);
    }
}

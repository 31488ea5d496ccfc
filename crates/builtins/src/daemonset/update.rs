//! How daemons move to a new template: node by node, within what may be away or doubled.

use k8s_openapi::api::apps::v1::RollingUpdateDaemonSet;
use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen};

use super::{Set, Wants};
use crate::deployment::{Rounding, scaled};

impl Set<'_> {
    fn wanted(&self) -> i32 {
        let wanted = self.nodes.values().filter(|node| node.wants == Wants::Run).count();
        i32::try_from(wanted).unwrap_or(i32::MAX)
    }

    /// On how many nodes an old and a new pod may run at once, of so many.
    fn surge_of(&self, nodes: i32) -> usize {
        let surge = self.rolling().and_then(|rolling| rolling.max_surge.as_ref());
        surge.map_or(0, |surge| {
            usize::try_from(scaled(surge, nodes, Rounding::Up)).unwrap_or(0)
        })
    }

    /// Whether an old and a new pod may run on one node at all.
    pub(super) fn may_double(&self) -> bool {
        self.surge_of(1) > 0
    }

    fn most_unavailable(&self) -> usize {
        let most = self.rolling().and_then(|rolling| rolling.max_unavailable.as_ref());
        let most = most.map_or(1, |most| {
            usize::try_from(scaled(most, self.wanted(), Rounding::Up)).unwrap_or(0)
        });
        let surge = self.surge_of(self.wanted());
        if most == 0 && surge == 0 { 1 } else { most }
    }

    fn is_updated_by_hand(&self) -> bool {
        let strategy = self.spec.update_strategy.as_ref();
        strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
    }

    /// The settings of a rolling update, which an update by hand may still have and does not heed.
    fn rolling(&self) -> Option<&RollingUpdateDaemonSet> {
        let strategy = self.spec.update_strategy.as_ref()?;
        strategy.rolling_update.as_ref().filter(|_| !self.is_updated_by_hand())
    }

    pub(super) fn update(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        if self.is_updated_by_hand() {
            return Ok(());
        }
        match self.surge_of(self.wanted()) {
            0 => self.update_in_place(draft),
            surge => self.update_by_surge(surge, draft),
        }
    }

    /// The nodes that have pods or shall have one, and what stands there.
    fn stands(&self) -> impl Iterator<Item = (&str, Wants, Stands<'_>)> {
        let nodes = self.nodes.iter();
        let nodes = nodes.filter(|(_, node)| node.wants == Wants::Run || !node.pods.is_empty());
        nodes.map(|(name, node)| {
            let (new, old): (Vec<_>, Vec<_>) = node.standing().partition(|pod| self.is_updated(pod));
            let stands = match (new.as_slice(), old.as_slice()) {
                ([], []) => Stands::Nothing,
                ([new], []) => Stands::New(new),
                ([], [old]) => Stands::Old(old),
                ([new], [old]) => Stands::Both { new, old },
                _ => Stands::TooMany,
            };
            (name.as_str(), node.wants, stands)
        })
    }

    /// Old pods go, those that serve nobody at once and others while few enough are away; new ones take their places.
    fn update_in_place(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let mut away = 0;
        let (mut idle, mut serving) = (Vec::new(), Vec::new());
        for (name, _, stands) in self.stands() {
            match stands {
                Stands::New(new) if self.is_available(new) => {}
                Stands::Old(old) if self.is_available(old) => serving.push((name, old)),
                Stands::Old(old) => {
                    away += 1;
                    idle.push((name, old));
                }
                Stands::New(_) | Stands::Nothing | Stands::Both { .. } | Stands::TooMany => away += 1,
            }
        }
        let room = self.most_unavailable().saturating_sub(away);
        for (name, pod) in idle.into_iter().chain(serving.into_iter().take(room)) {
            self.delete(pod, format!("node {name} gets one of the present template"), draft)?;
        }
        Ok(())
    }

    /// A new pod comes beside the old one, which goes once the new one serves.
    fn update_by_surge(&self, surge: usize, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let (mut doubled, mut serving) = (0, 0);
        // Old pods on nodes that want one, and on those that only let it stay.
        let (mut to_double, mut misplaced) = (Vec::new(), Vec::new());
        for (name, wants, stands) in self.stands() {
            let shown = match stands {
                Stands::New(pod) | Stands::Old(pod) | Stands::Both { old: pod, .. } => Some(pod),
                Stands::Nothing | Stands::TooMany => None,
            };
            serving += i32::from(shown.is_some_and(|pod| self.is_available(pod)));
            match stands {
                Stands::Old(_) if wants == Wants::IsGone => {}
                Stands::Old(old) if wants == Wants::Run && self.is_available(old) => to_double.push(name),
                // Nobody is served there, so it needs no room beside others.
                Stands::Old(_) if wants == Wants::Run => self.create(name, draft)?,
                Stands::Old(old) if self.is_available(old) => misplaced.push((name, old)),
                Stands::Old(old) => self.delete(old, format!("node {name} no longer wants one"), draft)?,
                Stands::Both { new, old } if self.is_available(new) => {
                    self.delete(old, format!("node {name} has one of the present template"), draft)?;
                }
                Stands::Both { .. } | Stands::TooMany => doubled += 1,
                Stands::New(_) | Stands::Nothing => {}
            }
        }
        for name in to_double.into_iter().take(surge.saturating_sub(doubled)) {
            self.create(name, draft)?;
        }
        // Where a set moves to other nodes, an old pod goes when there is one for it elsewhere.
        let spare = usize::try_from(serving - self.wanted()).unwrap_or(0);
        for (name, pod) in misplaced.into_iter().take(spare) {
            self.delete(pod, format!("node {name} no longer wants one"), draft)?;
        }
        Ok(())
    }
}

/// The pods of a node that nobody has deleted.
#[derive(Clone, Copy)]
enum Stands<'n> {
    Nothing,
    New(&'n Seen<Pod>),
    Old(&'n Seen<Pod>),
    Both {
        new: &'n Seen<Pod>,
        old: &'n Seen<Pod>,
    },
    /// Several of one template, of which all but one are about to go.
    TooMany,
}

//! How daemons move to a new template: node by node, within what may be away or doubled.

use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen};

use super::{Set, Wants};
use crate::deployment::{Rounding, scaled};
use crate::pods;

impl Set<'_> {
    fn wanted(&self) -> i32 {
        let wanted = self.nodes.values().filter(|node| node.wants == Wants::Run).count();
        i32::try_from(wanted).unwrap_or(i32::MAX)
    }

    /// On how many nodes an old and a new pod may run at once.
    pub(super) fn surge(&self) -> usize {
        let rolling = self
            .spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        surge.map_or(0, |surge| {
            usize::try_from(scaled(surge, self.wanted(), Rounding::Up)).unwrap_or(0)
        })
    }

    fn most_unavailable(&self) -> usize {
        let rolling = self
            .spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref());
        let most = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let most = most.map_or(1, |most| {
            usize::try_from(scaled(most, self.wanted(), Rounding::Up)).unwrap_or(0)
        });
        if most == 0 && self.surge() == 0 { 1 } else { most }
    }

    pub(super) fn update(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let strategy = self
            .spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref());
        if strategy == Some("OnDelete") {
            return Ok(());
        }
        if self.surge() > 0 {
            self.update_by_surge(draft)
        } else {
            self.update_in_place(draft);
            Ok(())
        }
    }

    fn alive<'n>(&self, node: &'n super::OnNode) -> (Vec<&'n Seen<Pod>>, Vec<&'n Seen<Pod>>) {
        node.pods
            .iter()
            .filter(|pod| pods::is_active(pod))
            .partition(|pod| self.is_updated(pod))
    }

    /// Old pods go, those that serve nobody at once and others while few enough are away; new ones take their places.
    fn update_in_place(&self, draft: &mut Draft<Object>) {
        let nodes = || self.nodes.iter().filter(|(_, node)| node.wants == Wants::Run);
        let serves = |pods: &[&Seen<Pod>]| pods.iter().any(|pod| self.is_available(pod));
        let mut away = nodes()
            .filter(|(_, node)| {
                let (new, old) = self.alive(node);
                !serves(&new) && !serves(&old)
            })
            .count();
        let room = self.most_unavailable();
        for (name, node) in nodes() {
            let (_, old) = self.alive(node);
            for pod in old {
                let is_serving = self.is_available(pod);
                if is_serving && away >= room {
                    continue;
                }
                away += usize::from(is_serving);
                draft.put(
                    self.snapshot
                        .delete(pod.raw(), format!("node {name} gets one of the present template")),
                );
            }
        }
    }

    /// A new pod comes beside the old one, which goes once the new one serves.
    fn update_by_surge(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let nodes = || self.nodes.iter().filter(|(_, node)| node.wants == Wants::Run);
        let mut doubled = nodes()
            .filter(|(_, node)| {
                let (new, old) = self.alive(node);
                !new.is_empty() && !old.is_empty()
            })
            .count();
        let mut fresh = 0;
        for (name, node) in nodes() {
            let (new, old) = self.alive(node);
            let Some(first) = old.first() else { continue };
            if new.iter().any(|pod| self.is_available(pod)) {
                for pod in &old {
                    draft.put(
                        self.snapshot
                            .delete(pod.raw(), format!("node {name} has one of the present template")),
                    );
                }
            } else if new.is_empty() && !self.is_available(first) {
                draft.put(
                    self.snapshot
                        .delete(first.raw(), format!("node {name} gets one of the present template")),
                );
            } else if new.is_empty() && doubled < self.surge() {
                doubled += 1;
                self.create(name, &mut fresh, draft)?;
            }
        }
        Ok(())
    }
}

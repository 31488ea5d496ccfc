//! The end of a definition: its objects go first.

use std::{sync::Arc, time::Duration};

use moorline_machinery::meta;
use moorline_store::{List, Record, Scope, Start};
use serde_json::{Value, json};

use super::{Controller, Of, Writes, serving::overlaps_built_in};
use crate::{
    custom::{
        condition::{self, Condition},
        definition::CLEANUP,
        family::Family,
        kinds,
    },
    wire,
};

impl Controller {
    /// Brings a deleted definition closer to its end.
    pub(super) fn close(&mut self, name: &str, record: &Arc<Record>, definition: &Value) -> Option<Writes> {
        if !meta::of(definition).has_finalizer(CLEANUP) {
            self.closing.remove(name);
            return None;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (group, plural) = (
            text(&definition["spec"]["group"]),
            text(&definition["status"]["acceptedNames"]["plural"]),
        );
        let over = |reason, message| Condition::new(condition::TERMINATING, false, reason, message);
        if overlaps_built_in(self.served.registry(), &group, &plural) {
            let message = "instances overlap with built-in resources in storage";
            return Some(self.end(record, definition, &over("OverlappingBuiltInResource", message)));
        }
        let family = self
            .known
            .get(name)
            .and_then(|known| known.served.as_ref())
            .map(|served| &served.family);
        let Some(family) = family.filter(|_| condition::holds(definition, condition::ESTABLISHED)) else {
            return Some(self.end(
                record,
                definition,
                &over("NeverEstablished", "resource was never established"),
            ));
        };
        let family = Arc::clone(family);
        let scope = Scope::Resource(kinds::storage(&group, &plural));
        // Watched before they are counted, so that none slips through between the two.
        let watch = self
            .store
            .watch(scope.clone(), Start::Now)
            .expect("only the past can be out of reach");
        self.closing.insert(name.to_owned(), watch);
        let objects = self
            .store
            .list(&List::all(scope))
            .expect("only the past can be out of reach")
            .records;
        if objects.is_empty() {
            return Some(self.end(
                record,
                definition,
                &over("InstanceDeletionCompleted", "removed all instances"),
            ));
        }
        let kind = text(&definition["status"]["acceptedNames"]["kind"]);
        let pending: Vec<_> = objects
            .iter()
            .filter_map(|object| self.delete(object, &family, &kind))
            .collect();
        if !pending.is_empty() {
            return Some(Writes {
                of: Of::Objects,
                pending,
            });
        }
        let message = "CustomResource deletion is in progress";
        let waiting = Condition::new(condition::TERMINATING, true, "InstanceDeletionInProgress", message);
        if Condition::of(definition, condition::TERMINATING).as_ref() == Some(&waiting) {
            return None;
        }
        let mut next = definition.clone();
        waiting.set(&mut next, self.world.now());
        Some(self.update(record, definition, next))
    }

    /// Deletes an object, or marks it if something keeps it; nothing if that is done.
    fn delete(&self, record: &Arc<Record>, family: &Family, kind: &str) -> Option<moorline_store::Pending> {
        let version = wire::stored_version(record.value()).unwrap_or(family.storage().api_version());
        let mut object = wire::from_stored(record.value(), version, kind);
        let (key, seen) = (record.key().clone(), record.mod_revision());
        if meta::of(&object).finalizers().next().is_none() {
            return Some(self.store.delete_at(key, seen));
        }
        if meta::of(&object).is_deleting() {
            return None;
        }
        family.refresh(&mut object);
        meta::mark_deleted(&mut object, self.world.now(), Some(Duration::ZERO));
        Some(self.store.update(key, wire::to_stored_with_version(&object), seen))
    }

    /// Lets go of a definition whose objects need not be waited for.
    fn end(&mut self, record: &Arc<Record>, definition: &Value, said: &Condition) -> Writes {
        let finalizers: Vec<&str> = meta::of(definition)
            .finalizers()
            .filter(|name| *name != CLEANUP)
            .collect();
        if finalizers.is_empty() {
            let pending = self.store.delete_at(record.key().clone(), record.mod_revision());
            return Writes {
                of: Of::End,
                pending: vec![pending],
            };
        }
        let mut next = definition.clone();
        next["metadata"]["finalizers"] = json!(finalizers);
        said.set(&mut next, self.world.now());
        self.update(record, definition, next)
    }
}

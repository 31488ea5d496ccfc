//! What a definition makes the server serve, kept in the registry.

use std::sync::Arc;

use moorline_machinery::meta;
use moorline_store::{Record, Resource};
use serde_json::Value;

use super::Controller;
use crate::{
    core::World,
    custom::{
        condition,
        conversion::{Conversion, WebhookConverter},
        family::Family,
        kind::Life,
        kinds,
        webhook_client::WebhookClient,
    },
    resource::{Registry, ResourceType},
};

/// What a definition made the server serve.
pub(super) struct Served {
    pub(super) family: Arc<Family>,
    pub(super) storage: Resource,
    /// The specification that it was made from.
    made_from: MadeFrom,
    life: Life,
}

/// Tells one specification from another: it changes with the generation.
#[derive(PartialEq)]
struct MadeFrom {
    uid: String,
    generation: i64,
    names: Value,
}

impl Controller {
    /// Registers what a definition makes the server serve, if that has changed.
    pub(super) fn serve(&mut self, record: &Record, definition: &Value) {
        let before = self
            .known
            .get(record.key().name())
            .and_then(|known| known.served.as_ref());
        let before = before.map(|served| served.storage.clone());
        if let Some(resources) = self.make(record, definition) {
            let name = record.key().name();
            let now = self
                .known
                .get(name)
                .and_then(|known| known.served.as_ref())
                .map(|served| &served.storage);
            let storages: Vec<&Resource> = before.iter().chain(now).collect();
            let old = |resource: &ResourceType| storages.iter().any(|storage| is_custom_at(resource, storage));
            self.served.registry().change(old, &resources);
        }
    }

    /// The resources of a definition, if they differ from what is served for it.
    pub(super) fn make(&mut self, record: &Record, definition: &Value) -> Option<Vec<Arc<ResourceType>>> {
        let names = &definition["status"]["acceptedNames"];
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let plural = names["plural"].as_str().unwrap_or_default();
        let accepted = [condition::NAMES_ACCEPTED, condition::ESTABLISHED]
            .iter()
            .any(|name| condition::holds(definition, name));
        let known = self.known.get_mut(record.key().name())?;
        if !accepted || overlaps_built_in(self.served.registry(), group, plural) {
            return known.served.take().map(|_| Vec::new());
        }
        let life = if condition::holds(definition, condition::TERMINATING) {
            Life::Closing
        } else {
            Life::Open
        };
        let of = meta::of(definition);
        let made_from = MadeFrom {
            uid: of.uid().to_owned(),
            generation: of.generation(),
            names: names.clone(),
        };
        let family = match &known.served {
            Some(served) if served.made_from == made_from && served.life == life => return None,
            // Compiled schemas outlive the announcement that the definition goes.
            Some(served) if served.made_from == made_from => Arc::clone(&served.family),
            _ => {
                let conversion = conversion(definition, &self.client, &self.world);
                let kind = names["kind"].as_str().unwrap_or_default();
                Arc::new(Family::of(definition, kind, conversion, record.mod_revision())?)
            }
        };
        let resources = kinds::resources(definition, &family, life);
        known.served = Some(Served {
            family,
            storage: kinds::storage(group, plural),
            made_from,
            life,
        });
        Some(resources)
    }
}

pub(super) fn is_custom_at(resource: &ResourceType, storage: &Resource) -> bool {
    resource.storage == *storage && resource.strategy.as_custom().is_some()
}

/// Whether a kind would have the place of a built-in one.
pub(super) fn overlaps_built_in(registry: &Registry, group: &str, plural: &str) -> bool {
    let served = registry.served();
    served.all().any(|resource| {
        *resource.gvr.group == *group && *resource.gvr.resource == *plural && resource.strategy.as_custom().is_none()
    })
}

fn conversion(definition: &Value, client: &Arc<WebhookClient>, world: &Arc<dyn World>) -> Conversion {
    let conversion = &definition["spec"]["conversion"];
    match conversion["strategy"].as_str() {
        Some("Webhook") => {
            let converter = WebhookConverter::new(conversion, Arc::clone(client), Arc::clone(world));
            Conversion::Through(Arc::new(converter))
        }
        _ => Conversion::TypeOnly,
    }
}

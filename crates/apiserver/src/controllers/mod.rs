//! What the server does by itself, straight on the store: the work of no client.
//!
//! Each controller watches what concerns it and acts on what is there, never on what it remembers of an event, so a
//! server that was stopped at any moment goes on from what it finds.

pub(crate) mod bootstrap;
mod collector;
mod endpoints;
mod events;
mod follow;
pub(crate) mod identity;
mod namespaces;
mod node_taints;
mod quotas;
mod roles;
mod service_accounts;
pub(crate) mod services;
mod storage;

use std::sync::Arc;

use moorline_store::ReadError;
use tokio::task::JoinSet;

use crate::{core::Core, server::Upkeep};

/// Starts the controllers.
pub(crate) fn spawn(core: &Arc<Core>, upkeep: Upkeep, tasks: &mut JoinSet<()>) -> Result<(), ReadError> {
    roles::spawn(core, tasks)?;
    events::spawn(core, tasks);
    if upkeep == Upkeep::Own {
        return Ok(());
    }
    service_accounts::spawn(core, tasks)?;
    namespaces::spawn(core, tasks)?;
    storage::spawn(core, tasks)?;
    endpoints::spawn(core, tasks)?;
    quotas::spawn(core, tasks)?;
    node_taints::spawn(core, tasks)?;
    collector::spawn(core, tasks);
    Ok(())
}

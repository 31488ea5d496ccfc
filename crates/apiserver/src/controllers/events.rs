//! Events are forgotten after an hour.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use moorline_machinery::{meta, time};
use moorline_store::{List, Record, Scope};
use tokio::task::JoinSet;

use crate::{builtin, core::Core, wire};

const KEPT: SignedDuration = SignedDuration::from_hours(1);
const LOOKED_AT_EVERY: Duration = Duration::from_mins(1);

pub(super) fn spawn(core: &Arc<Core>, tasks: &mut JoinSet<()>) {
    let core = Arc::clone(core);
    tasks.spawn(async move {
        loop {
            tokio::time::sleep(LOOKED_AT_EVERY).await;
            forget(&core).await;
        }
    });
}

/// Deletes events that nobody has written to for an hour.
pub(super) async fn forget(core: &Core) {
    let events = builtin::storage("", "events");
    let Ok(page) = core.store.list(&List::all(Scope::Resource(events))) else {
        return;
    };
    let now = core.world.now();
    for record in page.records.iter().filter(|record| is_old(record, now)) {
        // One that was written to meanwhile is not old.
        let _ = core.store.delete_at(record.key().clone(), record.mod_revision()).await;
    }
}

fn is_old(record: &Record, now: Timestamp) -> bool {
    let event = wire::from_stored(record.value(), "v1", "Event");
    let series = event.pointer("/series/lastObservedTime").and_then(|time| time.as_str());
    let times = [
        series,
        event["lastTimestamp"].as_str(),
        event["eventTime"].as_str(),
        meta::of(&event).creation_timestamp(),
    ];
    let last = times
        .into_iter()
        .flatten()
        .filter_map(|text| time::parse(text).ok())
        .max();
    last.is_some_and(|last| now.duration_since(last) > KEPT)
}

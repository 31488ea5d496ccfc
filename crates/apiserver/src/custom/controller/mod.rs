//! Keeps what is served in step with the definitions in the store, and tells them so in their status.
//!
//! ```text
//!   definition seen ─► names settled ─► resources registered ─► status written (Established)
//!                                                                       │ deleted
//!            unregistered ◄── finalizer removed ◄── objects gone ◄── Closing: no new objects
//! ```
//!
//! It decides from what is stored, never from what it did before: it may be stopped anywhere and begun again.

mod cleanup;
mod naming;
mod serving;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use moorline_machinery::{
    apply::{self, FieldSet, Kind, Writer},
    meta, time,
};
use moorline_store::{
    Committed, Event, Key, Pending, Record, Revision, Scope, Start, Store, Watch, WatchError, WriteError,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    condition::{self, Condition},
    definition, kinds,
    webhook_client::WebhookClient,
};
use crate::{
    core::{Core, World},
    resource::{Registry, ResourceType},
    wire,
};
use naming::Taken;
use serving::{Served, is_custom_at};

/// The controller of definitions.
pub(crate) struct Controller {
    store: Store,
    world: Arc<dyn World>,
    served: Arc<dyn HasRegistry>,
    client: Arc<WebhookClient>,
    /// The resource that definitions are.
    definitions: Arc<ResourceType>,
    watch: Watch,
    /// By name.
    known: BTreeMap<String, Known>,
    /// Definitions that wait for their objects to go, by name.
    closing: BTreeMap<String, Watch>,
    /// Definitions whose last write the store refused.
    refused: BTreeSet<String>,
}

/// After which time a write that the store refused is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Has a say in what is served.
trait HasRegistry: Send + Sync {
    fn registry(&self) -> &Registry;
}

impl HasRegistry for Core {
    fn registry(&self) -> &Registry {
        &self.registry
    }
}

/// What is remembered of a definition.
struct Known {
    /// Which version of it was last dealt with.
    revision: Revision,
    group: String,
    accepted: Value,
    /// Whether it waits for a name that another has.
    in_conflict: bool,
    served: Option<Served>,
}

/// Why the controller cannot begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// There is nothing to work on.
    #[error("starting the controller of custom resource definitions: the server does not serve definitions")]
    NoDefinitions,
    /// The definitions cannot be watched.
    #[error("starting the controller of custom resource definitions: they cannot be watched")]
    Watch(#[from] moorline_store::ReadError),
}

impl Controller {
    /// Serves all definitions that are stored. Blocks until that is done; [`run`](Self::run) goes on from there.
    pub(crate) fn start(core: Arc<Core>, client: Arc<WebhookClient>) -> Result<Self, StartError> {
        Self::begin(core.store.clone(), Arc::clone(&core.world), core, client)
    }

    fn begin(
        store: Store,
        world: Arc<dyn World>,
        served: Arc<dyn HasRegistry>,
        client: Arc<WebhookClient>,
    ) -> Result<Self, StartError> {
        let definitions = served
            .registry()
            .find(&kinds::definitions())
            .ok_or(StartError::NoDefinitions)?;
        let scope = Scope::Resource(definitions.storage.clone());
        let mut watch = store.watch(scope, Start::Initial)?;
        let mut records = Vec::new();
        while let Some(Ok(Event::Added { record, .. })) = watch.try_next() {
            records.push(record);
        }
        let mut this = Self {
            store,
            world,
            served,
            client,
            definitions,
            watch,
            known: BTreeMap::new(),
            closing: BTreeMap::new(),
            refused: BTreeSet::new(),
        };
        // Names are first come, first served: all that were given are known before more are given out.
        let stored: Vec<(Arc<Record>, Value)> = records.into_iter().map(|record| this.read(record)).collect();
        for (record, definition) in &stored {
            this.remember(record, definition);
        }
        let mut resources = Vec::new();
        for (record, definition) in &stored {
            resources.extend(this.make(record, definition).unwrap_or_default());
        }
        this.served.registry().change(|_| false, &resources);
        for (record, _) in &stored {
            this.see_anew(record.key().name());
        }
        let mut names: BTreeSet<String> = stored
            .iter()
            .map(|(record, _)| record.key().name().to_owned())
            .collect();
        while let Some(name) = names.pop_first() {
            while let Some(writes) = this.decide(&name) {
                let outcomes = writes.pending.into_iter().map(Pending::wait).collect();
                if this.wrote(&name, writes.of, outcomes, &mut names) == After::Rest {
                    break;
                }
            }
        }
        Ok(this)
    }

    /// Follows the definitions until the store closes.
    pub(crate) async fn run(mut self) {
        loop {
            let mut names = tokio::select! {
                seen = poll_fn(|context| self.poll_seen(context)) => match seen {
                    Seen::Definition(name) => BTreeSet::from([name]),
                    Seen::Everything => self.start_over(),
                    Seen::End => return,
                },
                () = sleep(RETRY), if !self.refused.is_empty() => self.take_refused(),
            };
            while let Some(name) = names.pop_first() {
                while let Some(writes) = self.decide(&name) {
                    let mut outcomes = Vec::with_capacity(writes.pending.len());
                    for pending in writes.pending {
                        outcomes.push(pending.await);
                    }
                    if self.wrote(&name, writes.of, outcomes, &mut names) == After::Rest {
                        break;
                    }
                }
                if self.store.get(&self.key(&name)).is_none() {
                    names.extend(self.forget(&name));
                }
            }
        }
    }

    fn take_refused(&mut self) -> BTreeSet<String> {
        let names = std::mem::take(&mut self.refused);
        for name in &names {
            self.see_anew(name);
        }
        names
    }

    /// Makes a definition count as not dealt with.
    fn see_anew(&mut self, name: &str) {
        if let Some(known) = self.known.get_mut(name) {
            known.revision = Revision::new(0);
        }
    }

    fn poll_seen(&mut self, context: &mut Context<'_>) -> Poll<Seen> {
        loop {
            match self.watch.poll_next(context) {
                Poll::Ready(Ok(Event::InitialDone { .. })) => {}
                Poll::Ready(Ok(event)) => {
                    let Some(record) = event.record() else { continue };
                    return Poll::Ready(Seen::Definition(record.key().name().to_owned()));
                }
                Poll::Ready(Err(WatchError::Closed)) => return Poll::Ready(Seen::End),
                Poll::Ready(Err(WatchError::Compacted { .. })) => return Poll::Ready(Seen::Everything),
                Poll::Pending => break,
            }
        }
        for (name, watch) in &mut self.closing {
            if watch.poll_next(context).is_ready() {
                return Poll::Ready(Seen::Definition(name.clone()));
            }
        }
        Poll::Pending
    }

    /// After the watch was too slow: everything may have changed.
    fn start_over(&mut self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = self.known.keys().cloned().collect();
        let scope = Scope::Resource(self.definitions.storage.clone());
        let watch = self
            .store
            .watch(scope, Start::Initial)
            .expect("only the past can be out of reach");
        self.watch = watch;
        while let Some(Ok(Event::Added { record, .. })) = self.watch.try_next() {
            names.insert(record.key().name().to_owned());
        }
        names
    }

    /// Does about a definition what takes no write, and hands in the writes that it takes: the caller waits for them,
    /// tells [`wrote`](Self::wrote), and asks again. Nothing means that there is nothing to do until something changes.
    fn decide(&mut self, name: &str) -> Option<Writes> {
        let record = self.store.get(&self.key(name))?;
        let is_closing = self.closing.contains_key(name);
        if self
            .known
            .get(name)
            .is_some_and(|known| known.revision == record.mod_revision())
            && !is_closing
        {
            return None;
        }
        let (record, definition) = self.read(record);
        self.remember(&record, &definition);
        if meta::of(&definition).is_deleting() {
            self.serve(&record, &definition);
            return self.close(name, &record, &definition);
        }
        let now = self.world.now();
        let mut next = definition.clone();
        let settled = naming::settle(&definition, &self.taken(&definition));
        next["status"]["acceptedNames"] = settled.names;
        let established = established(&definition, settled.established);
        let approval = definition::approval_condition(&definition);
        for said in [settled.accepted, established].into_iter().chain(approval) {
            if Condition::of(&definition, said.name).as_ref() != Some(&said) {
                said.set(&mut next, now);
            }
        }
        // First served, then said so: whoever reads that a kind is established finds it.
        self.serve(&record, &next);
        (next != definition).then(|| self.update(&record, &definition, next))
    }

    /// Hands in a new status of a definition.
    fn update(&self, record: &Record, old: &Value, mut new: Value) -> Writes {
        let gvk = &self.definitions.gvk;
        let (api_version, now) = (gvk.api_version(), time::format(self.world.now()));
        let empty = json!({ "apiVersion": api_version, "kind": &*gvk.kind, "metadata": {}, "spec": {}, "status": {} });
        let writer = Writer {
            manager: "kube-apiserver",
            api_version: &api_version,
            subresource: "status",
            now: &now,
            reset: &FieldSet::default(),
        };
        apply::update(
            Some(old),
            &mut new,
            &writer,
            &Kind {
                schema: self.definitions.schema.get(),
                empty: &empty,
            },
        );
        let pending = self
            .store
            .update(record.key().clone(), wire::to_stored(&new), record.mod_revision());
        Writes {
            of: Of::Definition,
            pending: vec![pending],
        }
    }

    /// Takes note of what became of writes, and of the definitions that this may concern.
    fn wrote(
        &mut self,
        name: &str,
        of: Of,
        outcomes: Vec<Result<Committed, WriteError>>,
        concerned: &mut BTreeSet<String>,
    ) -> After {
        let serious = |error: &WriteError| !matches!(error, WriteError::Conflict { .. } | WriteError::NotFound { .. });
        let failed = outcomes
            .iter()
            .find_map(|outcome| outcome.as_ref().err().filter(|error| serious(error)));
        if let Some(error) = failed {
            tracing::warn!(definition = name, %error, "a custom resource definition was not brought up to date");
            self.refused.insert(name.to_owned());
            return After::Rest;
        }
        let definition = outcomes
            .into_iter()
            .find_map(Result::ok)
            .filter(|_| of == Of::Definition);
        if let Some(committed) = definition {
            let (record, definition) = self.read(committed.into_record());
            let before = self.known.get(name).map(|known| known.accepted.clone());
            self.remember(&record, &definition);
            if before.as_ref() != Some(&definition["status"]["acceptedNames"]) {
                concerned.extend(self.neighbours(name));
            }
        }
        // Where somebody was faster, what they wrote is what to look at.
        After::Again
    }

    /// The names that definitions of the same group have been given.
    fn taken(&self, definition: &Value) -> Taken<'_> {
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let mut taken = Taken::default();
        self.known
            .values()
            .filter(|known| known.group == group)
            .for_each(|known| taken.add(&known.accepted));
        taken
    }

    /// Other definitions of the group that wait for a name, which this one may have had.
    fn neighbours(&mut self, name: &str) -> Vec<String> {
        let Some((_, group)) = name.split_once('.') else {
            return Vec::new();
        };
        let others = self
            .known
            .iter()
            .filter(|(other, known)| known.group == group && *other != name);
        let waiting: Vec<String> = others
            .filter(|(_, known)| known.in_conflict)
            .map(|(name, _)| name.clone())
            .collect();
        for name in &waiting {
            self.see_anew(name);
        }
        waiting
    }

    fn remember(&mut self, record: &Record, definition: &Value) {
        let name = record.key().name();
        let served = self.known.remove(name).and_then(|known| known.served);
        let known = Known {
            revision: record.mod_revision(),
            group: definition["spec"]["group"].as_str().unwrap_or_default().to_owned(),
            accepted: definition["status"]["acceptedNames"].clone(),
            in_conflict: !condition::holds(definition, condition::NAMES_ACCEPTED),
            served,
        };
        self.known.insert(name.to_owned(), known);
    }

    /// A definition is gone: its kind is served no more, and its names are free.
    fn forget(&mut self, name: &str) -> Vec<String> {
        self.closing.remove(name);
        let Some(known) = self.known.remove(name) else {
            return Vec::new();
        };
        if let Some(served) = known.served {
            self.served
                .registry()
                .change(|resource| is_custom_at(resource, &served.storage), &[]);
        }
        self.neighbours(name)
    }

    fn read(&self, record: Arc<Record>) -> (Arc<Record>, Value) {
        let gvk = &self.definitions.gvk;
        let definition = wire::from_stored(record.value(), &gvk.api_version(), &gvk.kind);
        (record, definition)
    }

    fn key(&self, name: &str) -> Key {
        Key::new(&self.definitions.storage, "", name)
    }
}

/// What came in.
enum Seen {
    /// A definition changed, or the objects of one that waits for them to go.
    Definition(String),
    /// Too much to be told.
    Everything,
    /// The store closed.
    End,
}

/// Writes that were handed in.
struct Writes {
    of: Of,
    pending: Vec<Pending>,
}

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The definition, once.
    Definition,
    /// The definition goes.
    End,
    /// Objects of its kind.
    Objects,
}

/// What to do after writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// Look at the definition again.
    Again,
    /// Leave it for a while.
    Rest,
}

/// A webhook that cannot be trusted keeps a kind from being served.
fn established(definition: &Value, settled: Condition) -> Condition {
    let bundle = definition
        .pointer("/spec/conversion/webhook/clientConfig/caBundle")
        .and_then(Value::as_str);
    let broken = bundle.is_some_and(|bundle| definition::ca_bundle_fault(bundle).is_some());
    let was = condition::holds(definition, condition::ESTABLISHED);
    if !broken || !settled.holds || was {
        return settled;
    }
    let message = "The conversion webhook CABundle is invalid";
    Condition::new(condition::ESTABLISHED, false, "InvalidCABundle", message)
}

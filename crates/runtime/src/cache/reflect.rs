//! The watch of one selection: lists, follows, and starts again where it must, by difference.
//!
//! ```text
//!             ┌────────────── 410 Gone ─────────────────┐
//!             ▼                                          │
//!   Beginning ──► Streaming ──► Following ──closed──► Following (from the last version)
//!        │  refused   ▲ the list ends
//!        └──► Paging ─┘
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{
    Collection, Depth, Table,
    ahead::{Read, ReadAhead, Reader, usual_put},
    lines::Lines,
    table::Listed,
};
use crate::{
    decode::glance,
    object::{Key, Object},
    request::{chain, query},
};

/// How long a page of a list may take.
const PAGE_PATIENCE: Duration = Duration::from_mins(1);
/// How many objects a page of a list holds.
const PAGE: usize = 250;
/// How long the server is asked to keep a watch open; the real figure varies, so that watches do not end together.
const WATCH: Duration = Duration::from_mins(4);
/// What a watch may be late to end before the connection counts as dead.
const GRACE: Duration = Duration::from_secs(30);
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long a watch may fail before it counts as broken.
const TOLERATED: Duration = Duration::from_secs(10);

pub(crate) struct Reflector {
    client: kube::Client,
    collection: Arc<Collection>,
    reader: Arc<Reader>,
    /// Whether the server is known not to stream lists.
    pages_only: bool,
    /// Whether the watch has told of a change since it was last asked for.
    told: AtomicBool,
    /// Whether the server has answered since the state was last looked at.
    answered: AtomicBool,
}

/// How a request ended that did not fail.
enum Went {
    /// Something is left to be asked for at once.
    On,
    /// The watch is over.
    Ended,
}

enum State {
    /// Nothing is known that a watch could continue from. Left by the first answer.
    Beginning,
    /// In the middle of a list by pages. Left by its last page, or by 410 back to the beginning.
    Paging { token: String, listed: Listed },
    /// Everything up to this version is here. Left by 410 to the beginning.
    Following { version: u64 },
}

#[derive(Debug, thiserror::Error)]
enum Interruption {
    /// The version that was asked for is no longer there.
    #[error("the version is gone")]
    Gone,
    #[error("the server refused: {0}")]
    Refused(StatusCode, String),
    #[error(transparent)]
    Client(#[from] kube::Error),
    #[error("the answer is not what was asked for: {0}")]
    Unreadable(String),
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    token: Option<String>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl Reflector {
    pub(crate) fn new(
        client: kube::Client,
        collection: Arc<Collection>,
        cluster: Option<Arc<str>>,
        keep: Arc<[Arc<str>]>,
    ) -> Self {
        let kind = collection.selection().kind.clone();
        Self {
            client,
            collection,
            reader: Arc::new(Reader { kind, cluster, keep }),
            pages_only: false,
            told: AtomicBool::new(false),
            answered: AtomicBool::new(false),
        }
    }

    /// Reflects for ever; dropping the future ends it.
    pub(crate) async fn run(mut self) {
        let mut state = State::Beginning;
        let mut rest = FIRST_REST;
        let mut failing: Option<Instant> = None;
        let mut renewals = self.collection.renewals.subscribe();
        loop {
            let started = Instant::now();
            self.told.store(false, Ordering::Relaxed);
            let went = tokio::select! {
                went = self.step(&mut state) => went,
                // Whoever asks for it knows better than to wait for what may be dead.
                Ok(()) = renewals.changed() => Ok(Went::On),
            };
            if self.answered.swap(false, Ordering::Relaxed) {
                failing = None;
            }
            // A list alone proves nothing: one that is asked for again and again must be asked for ever more rarely.
            let lasted = matches!(state, State::Following { .. }) && started.elapsed() >= LONGEST_REST;
            let was_well = self.told.load(Ordering::Relaxed) || lasted;
            if was_well {
                rest = FIRST_REST;
            }
            match went {
                Ok(Went::On) => continue,
                // A watch that ends by itself is the rule; one that ends at once must not be asked for in a whirl.
                Ok(Went::Ended) if was_well && started.elapsed() >= FIRST_REST => continue,
                Ok(Went::Ended) => {}
                Err(Interruption::Gone) => {
                    state = State::Beginning;
                    if was_well {
                        continue;
                    }
                }
                Err(interruption) => {
                    let selection = self.collection.selection();
                    tracing::warn!(kind = ?selection.kind, namespace = selection.namespace, %interruption,
                        "a watch was interrupted, trying again");
                    if failing.get_or_insert(started).elapsed() >= TOLERATED {
                        self.collection.note_broken(Some(chain(&interruption)));
                    }
                    if matches!(state, State::Paging { .. }) {
                        state = State::Beginning;
                    }
                }
            }
            let jitter = fastrand::f64() * 0.5 + 0.75;
            tokio::select! {
                () = tokio::time::sleep(rest.mul_f64(jitter)) => rest = (rest * 2).min(LONGEST_REST),
                Ok(()) = renewals.changed() => rest = FIRST_REST,
            }
        }
    }

    async fn step(&mut self, state: &mut State) -> Result<Went, Interruption> {
        match state {
            State::Beginning if !self.pages_only => match self.stream(state).await {
                Err(Interruption::Refused(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, _)) => {
                    self.pages_only = true;
                    Ok(Went::On)
                }
                other => other.map(|()| Went::Ended),
            },
            State::Beginning => {
                *state = State::Paging {
                    token: String::new(),
                    listed: Listed::default(),
                };
                Ok(Went::On)
            }
            State::Paging { token, listed } => {
                let page = tokio::time::timeout(PAGE_PATIENCE, self.page(token, listed)).await;
                let late = |_| Interruption::Unreadable(format!("no page of the list came within {PAGE_PATIENCE:?}"));
                if let Some(version) = page.map_err(late)?? {
                    *state = State::Following { version };
                    self.collection.complete();
                }
                Ok(Went::On)
            }
            State::Following { .. } => self.stream(state).await.map(|()| Went::Ended),
        }
    }

    /// One page of a list; the list's version after the last.
    async fn page(&self, token: &mut String, listed: &mut Listed) -> Result<Option<u64>, Interruption> {
        let limit = PAGE.to_string();
        let mut parameters = self.selecting();
        parameters.push(("limit", &limit));
        if !token.is_empty() {
            parameters.push(("continue", token));
        }
        let body = self.send(&parameters).await?.collect().await?.to_bytes();
        let list: List<'_> =
            serde_json::from_slice(&body).map_err(|error| Interruption::Unreadable(error.to_string()))?;
        // What has not changed is not taken in a second time, so that listing anew needs no room for a second copy.
        let (same, other): (Vec<Listing<'_>>, Vec<Listing<'_>>) = {
            let table = self.collection.read();
            let items = list.items.iter().flatten().map(|item| Listing::of(item.get(), &table));
            items.partition(|listing| matches!(listing, Listing::Same(_)))
        };
        let objects: Vec<Object> = other
            .into_iter()
            .filter_map(|listing| self.read(listing.json()?))
            .collect();
        let version = version_of(&list.metadata.resource_version)?;
        let next = list.metadata.token.filter(|token| !token.is_empty());
        self.collection.change(|table| {
            let mut changes = Vec::new();
            for key in same.iter().filter_map(Listing::key) {
                listed.confirm(table, key);
            }
            for object in objects {
                let key = Key::of(&object);
                changes.extend(table.put(object));
                listed.confirm(table, &key);
            }
            if next.is_none() {
                changes.extend(table.settle(listed, version));
            }
            changes
        });
        *token = next.unwrap_or_default();
        Ok(token.is_empty().then_some(version))
    }

    /// A watch, until it ends. From the beginning it asks for the list as events first.
    async fn stream(&self, state: &mut State) -> Result<(), Interruption> {
        let seconds = WATCH.as_secs() + fastrand::u64(0..60);
        let timeout = seconds.to_string();
        let mut parameters = self.selecting();
        parameters.extend([
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &timeout),
        ]);
        let from;
        let mut listing = None;
        match state {
            State::Following { version } => {
                from = version.to_string();
                parameters.push(("resourceVersion", &from));
            }
            State::Beginning | State::Paging { .. } => {
                listing = Some(Listed::default());
                parameters.extend([("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]);
            }
        }
        let patience = Duration::from_secs(seconds) + GRACE;
        let watching = async {
            let mut body = self.send(&parameters).await?;
            let mut lines = Lines::default();
            let mut ahead = ReadAhead::new(Arc::clone(&self.reader));
            while let Some(frame) = body.frame().await {
                let frame = frame?;
                let Ok(data) = frame.into_data() else { continue };
                lines.feed(data);
                while let Some(line) = lines.next() {
                    if listing.is_none() {
                        self.told.store(true, Ordering::Relaxed);
                        self.take(&line, state, &mut listing)?;
                    } else if usual_put(&line).is_some() {
                        self.take_read(ahead.push(line).await, state, &mut listing)?;
                    } else {
                        self.take_read(ahead.rest().await, state, &mut listing)?;
                        self.take(&line, state, &mut listing)?;
                    }
                }
            }
            Ok(())
        };
        tokio::time::timeout(patience, watching).await.unwrap_or(Ok(()))
    }

    fn take_read(&self, read: Read, state: &mut State, listing: &mut Option<Listed>) -> Result<(), Interruption> {
        // Most lines only join a batch. Nothing is touched for them.
        if read.is_empty() {
            return Ok(());
        }
        let mut usual = Vec::with_capacity(read.len());
        for one in read {
            match one {
                Ok(object) => usual.push(object),
                Err(line) => {
                    self.put(std::mem::take(&mut usual), state, listing);
                    self.take(&line, state, listing)?;
                }
            }
        }
        self.put(usual, state, listing);
        Ok(())
    }

    fn take(&self, line: &[u8], state: &mut State, listing: &mut Option<Listed>) -> Result<(), Interruption> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let unreadable = |error: serde_json::Error| Interruption::Unreadable(error.to_string());
        if let Some(object) = usual_put(line).and_then(|json| self.reader.read(json).ok()) {
            self.put([object], state, listing);
            return Ok(());
        }
        let line: Line<'_> = serde_json::from_slice(line).map_err(unreadable)?;
        match line.kind {
            "ADDED" | "MODIFIED" => {
                if let Some(object) = self.read(line.object.get()) {
                    self.put([object], state, listing);
                }
            }
            "DELETED" => {
                let Some(object) = self.read(line.object.get()) else {
                    return Ok(());
                };
                let version = object.version();
                self.collection.change(|table| {
                    let change = table.remove(object.namespace(), object.name(), object.uid(), version);
                    change.into_iter().collect()
                });
                progressed(state, version);
            }
            "BOOKMARK" => {
                let bookmark: Bookmark = serde_json::from_str(line.object.get()).map_err(unreadable)?;
                let version = version_of(&bookmark.metadata.resource_version)?;
                let list_ends = bookmark
                    .metadata
                    .annotations
                    .get("k8s.io/initial-events-end")
                    .is_some_and(|end| end == "true");
                if let Some(listed) = list_ends.then(|| listing.take()).flatten() {
                    self.collection.change(|table| table.settle(&listed, version));
                    *state = State::Following { version };
                    self.collection.complete();
                } else {
                    self.collection.change(|table| {
                        table.advance(version);
                        Vec::new()
                    });
                    progressed(state, version);
                }
            }
            "ERROR" => {
                let problem: Problem = serde_json::from_str(line.object.get()).map_err(unreadable)?;
                return Err(match problem.code {
                    410 => Interruption::Gone,
                    code => Interruption::Refused(
                        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                        problem.message,
                    ),
                });
            }
            other => return Err(Interruption::Unreadable(format!("an event of type {other:?}"))),
        }
        Ok(())
    }

    fn put(&self, objects: impl IntoIterator<Item = Object>, state: &mut State, listing: &mut Option<Listed>) {
        let mut told = 0;
        self.collection.change(|table| {
            let mut changes = Vec::new();
            for object in objects {
                told = told.max(object.version());
                let key = listing.is_some().then(|| Key::of(&object));
                changes.extend(table.put(object));
                if let Some((listed, key)) = listing.as_mut().zip(key) {
                    listed.confirm(table, &key);
                }
            }
            if listing.is_none() {
                table.advance(told);
            }
            changes
        });
        progressed(state, told);
    }

    /// An object that cannot be read hurts only itself.
    fn read(&self, json: &str) -> Option<Object> {
        self.reader
            .read(json.as_bytes())
            .inspect_err(|error| tracing::error!(%error, "an object is left out of the cache"))
            .ok()
    }

    fn selecting(&self) -> Vec<(&str, &str)> {
        let selection = self.collection.selection();
        let labels = selection.labels.as_deref().map(|labels| ("labelSelector", labels));
        let fields = selection.fields.as_deref().map(|fields| ("fieldSelector", fields));
        labels.into_iter().chain(fields).collect()
    }

    async fn send(&self, parameters: &[(&str, &str)]) -> Result<Body, Interruption> {
        let selection = self.collection.selection();
        let path = selection.kind.path(selection.namespace.as_deref());
        let accept = match selection.depth {
            Depth::Whole => "application/json",
            Depth::Metadata if parameters.iter().any(|(name, _)| *name == "watch") => {
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            }
            Depth::Metadata => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        };
        let request = Request::get(format!("{path}?{}", query(parameters)))
            .header(http::header::ACCEPT, accept)
            .header(http::header::ACCEPT_ENCODING, "identity")
            .body(Body::empty())
            .map_err(|error| Interruption::Unreadable(error.to_string()))?;
        let response = self.client.send(request).await?;
        let status = response.status();
        if status.is_success() {
            self.answered.store(true, Ordering::Relaxed);
            self.collection.note_broken(None);
            return Ok(response.into_body());
        }
        if status == StatusCode::GONE {
            return Err(Interruption::Gone);
        }
        let body = response.into_body().collect().await?.to_bytes();
        let message = serde_json::from_slice::<Problem>(&body)
            .map(|problem| problem.message)
            .unwrap_or_default();
        Err(Interruption::Refused(status, message))
    }
}

/// An item of a list beside what is already there.
enum Listing<'l> {
    /// The same version.
    Same(Key),
    /// Another one, or nothing.
    Other(&'l str),
}

impl<'l> Listing<'l> {
    fn of(json: &'l str, table: &Table) -> Self {
        let Some(glance) = glance(json) else {
            return Self::Other(json);
        };
        match table.get(&glance.namespace, &glance.name) {
            Some(there) if there.uid() == glance.uid && there.version() == glance.version => Self::Same(Key::of(there)),
            _ => Self::Other(json),
        }
    }

    fn key(&self) -> Option<&Key> {
        match self {
            Self::Same(key) => Some(key),
            Self::Other(_) => None,
        }
    }

    fn json(&self) -> Option<&'l str> {
        match self {
            Self::Same(_) => None,
            Self::Other(json) => Some(json),
        }
    }
}

/// A watch that follows continues from the last version it was told of.
fn progressed(state: &mut State, told: u64) {
    if let State::Following { version } = state {
        *version = (*version).max(told);
    }
}

fn version_of(text: &str) -> Result<u64, Interruption> {
    text.parse()
        .map_err(|_| Interruption::Unreadable(format!("a resource version that is no number: {text:?}")))
}

//! Watch: the changes of a scope as a stream of JSON lines.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use moorline_machinery::{status::ApiError, table::Headers};
use moorline_store::{Event, ReadError, Record, Revision, Start, Watch, WatchError};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Call, form::ObjectForm, read};
use crate::{body::Stream, custom, query::ListOptions, select::Selection};

/// How often a quiet watch says how far it has come, to those who want to know.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// How long before its end a watch says so for the last time.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// How long a watch lasts that names no time: from this to twice this, so that not all end at once.
const LASTS: Duration = Duration::from_mins(30);

/// A watch on its way to a client.
pub(crate) struct Events {
    watch: Option<Watch>,
    form: ObjectForm,
    /// The client wants the mark that closes the initial state.
    marks_initial: bool,
    bookmarks: bool,
    bookmark_at: Pin<Box<Sleep>>,
    ends_at: Pin<Box<Sleep>>,
    /// The last bookmark's revision; saying it again helps nobody.
    said: Option<Revision>,
    /// An answer that ends the watch right away.
    error: Option<ApiError>,
    /// Whether the columns of a table are still to be told.
    headers: Headers,
    /// Done when what is watched is served no more, or otherwise; nothing for built-in kinds, which stay.
    outdated: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Events whose objects a webhook is bringing into the watched version.
    converting: Option<Converting>,
    /// What is meant by fields that only converted objects have.
    selection: Option<Arc<Selection>>,
}

/// Events on their way through a webhook.
struct Converting {
    events: Vec<Event>,
    /// What the watch ended with right after them.
    failure: Option<WatchError>,
    objects: Pin<Box<dyn Future<Output = Result<Vec<Value>, ApiError>> + Send>>,
}

/// The most events that are converted with one call.
const BATCH: usize = 100;

/// Begins the watch that a request asks for.
pub(crate) fn watch(call: &Call<'_>, options: &ListOptions, form: ObjectForm) -> Result<Events, ApiError> {
    let selection = Selection::new(&call.resource, options)?;
    let scope = read::scope(&call.resource, &call.path.namespace, &call.path.name, &options.fields);
    let start = match (options.resource_version, options.send_initial_events) {
        (_, Some(true)) | (None | Some(0), None) => Start::Initial,
        (None | Some(0), Some(false)) => Start::Now,
        (Some(revision), _) => Start::After(Revision::new(revision)),
    };
    let store = &call.core.store;
    let selection = Arc::new(selection);
    let selected = Arc::clone(&selection);
    let mut begun = store.watch_matching(scope.clone(), start, move |record| selected.contains(record));
    if let Err(ReadError::Future { requested, .. }) = begun {
        // Nothing is told until that has come to pass.
        let selected = Arc::clone(&selection);
        let is_later = move |record: &Record| record.mod_revision() > requested && selected.contains(record);
        begun = store.watch_matching(scope, Start::Now, is_later);
    }
    let now = Instant::now();
    let lasts = options
        .timeout
        .filter(|timeout| !timeout.is_zero())
        .unwrap_or_else(|| LASTS + Duration::from_secs(call.core.world.random() % LASTS.as_secs()));
    let (watch, error) = match begun {
        Ok(watch) => (Some(watch), None),
        Err(ReadError::Compacted { requested, oldest }) => {
            (None, Some(ApiError::watch_too_old(requested.get(), oldest.get())))
        }
        Err(ReadError::Future { requested, current }) => {
            return Err(ApiError::resource_version_too_large(requested.get(), current.get()));
        }
    };
    Ok(Events {
        watch,
        form,
        // Whoever wants no bookmarks is not told where the beginning ends either.
        marks_initial: options.send_initial_events == Some(true) && options.bookmarks,
        bookmarks: options.bookmarks,
        bookmark_at: Box::pin(sleep_until(next_bookmark(now, now + lasts))),
        ends_at: Box::pin(sleep_until(now + lasts)),
        said: None,
        error,
        headers: Headers::Shown,
        outdated: outdated(call),
        converting: None,
        selection: selection.waits_for_conversion().then_some(selection),
    })
}

/// When to tell next how far a watch has come: from time to time, and once more shortly before it ends. What comes after
/// the end is never told.
fn next_bookmark(now: Instant, ends: Instant) -> Instant {
    let last = ends.checked_sub(LAST_BOOKMARK).filter(|last| *last > now);
    last.unwrap_or(ends + BOOKMARK_EVERY).min(now + BOOKMARK_EVERY)
}

/// Waits until a custom kind is served no more, or in another way: whoever watches has to look anew then.
fn outdated(call: &Call<'_>) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
    let watched = Arc::clone(call.resource.strategy.as_custom()?.family());
    let (core, gvr) = (Arc::clone(call.core), call.resource.gvr.clone());
    let mut changes = core.registry.changes();
    Some(Box::pin(async move {
        loop {
            let now = core.registry.find(&gvr);
            let same = now.is_some_and(|now| {
                let custom = now.strategy.as_custom();
                custom.is_some_and(|custom| Arc::ptr_eq(custom.family(), &watched))
            });
            if !same || changes.changed().await.is_err() {
                return;
            }
        }
    }))
}

impl Stream for Events {
    fn poll_piece(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut piece = BytesMut::new();
        let at_once = self.form.converts_at_once();
        if let Some(error) = self.error.take() {
            append_event(&mut piece, "ERROR", &error.status().to_value());
            return Poll::Ready(Some(piece.freeze()));
        }
        loop {
            if let Some(converting) = &mut self.converting {
                match converting.objects.as_mut().poll(context) {
                    Poll::Ready(objects) => self.append_converted(&mut piece, objects),
                    Poll::Pending if piece.is_empty() => break,
                    Poll::Pending => return Poll::Ready(Some(piece.freeze())),
                }
            }
            let Some(watch) = self.watch.as_mut() else {
                return Poll::Ready((!piece.is_empty()).then(|| piece.freeze()));
            };
            // Many events at once make few writes.
            if piece.len() > 32 << 10 {
                return Poll::Ready(Some(piece.freeze()));
            }
            match watch.poll_next(context) {
                Poll::Ready(Ok(event)) if event.record().is_some() && !at_once => {
                    self.convert(event, context);
                }
                Poll::Ready(Ok(event)) => self.append(&mut piece, &event),
                Poll::Ready(Err(failure)) => self.fail(&mut piece, &failure),
                Poll::Pending if !piece.is_empty() => return Poll::Ready(Some(piece.freeze())),
                Poll::Pending => break,
            }
        }
        if self.converting.is_none()
            && let Some(outdated) = &mut self.outdated
            && outdated.as_mut().poll(context).is_ready()
        {
            self.watch = None;
            return Poll::Ready(None);
        }
        if self.ends_at.as_mut().poll(context).is_ready() {
            self.watch = None;
            return Poll::Ready(None);
        }
        if self.bookmarks && self.bookmark_at.as_mut().poll(context).is_ready() {
            self.append_bookmark(&mut piece);
            let next = next_bookmark(Instant::now(), self.ends_at.deadline());
            self.bookmark_at.as_mut().reset(next);
            // Polling the new deadline leaves our waker there.
            let _ = self.bookmark_at.as_mut().poll(context);
            if !piece.is_empty() {
                return Poll::Ready(Some(piece.freeze()));
            }
        }
        Poll::Pending
    }
}

impl Events {
    /// Has a webhook convert the object of an event, and those of the events that have come right after it.
    fn convert(&mut self, event: Event, context: &mut Context<'_>) {
        let mut events = vec![event];
        let mut failure = None;
        while let (true, Some(watch)) = (events.len() < BATCH, self.watch.as_mut()) {
            match watch.poll_next(context) {
                Poll::Ready(Ok(next)) => {
                    let ends = next.record().is_none();
                    events.push(next);
                    if ends {
                        break;
                    }
                }
                Poll::Ready(Err(error)) => {
                    failure = Some(error);
                    break;
                }
                Poll::Pending => break,
            }
        }
        let mut records: Vec<Arc<Record>> = Vec::new();
        for event in &events {
            records.extend(event.record().cloned());
            // Whether it was meant before decides what its change is called.
            if let (Event::Modified { previous, .. }, true) = (event, self.selection.is_some()) {
                records.push(Arc::clone(previous));
            }
        }
        let resource = Arc::clone(&self.form.resource);
        self.converting = Some(Converting {
            events,
            failure,
            objects: Box::pin(async move { custom::served(&resource, &records).await }),
        });
    }

    /// Passes on what a webhook made of the objects of events. Where it failed, so does the watch.
    fn append_converted(&mut self, piece: &mut BytesMut, objects: Result<Vec<Value>, ApiError>) {
        let Some(Converting { events, failure, .. }) = self.converting.take() else {
            return;
        };
        let mut objects = match objects {
            Ok(objects) => objects.into_iter(),
            Err(error) => {
                append_event(piece, "ERROR", &error.status().to_value());
                self.watch = None;
                return;
            }
        };
        for event in &events {
            match kind_of(event) {
                None => self.append(piece, event),
                Some((kind, ..)) => {
                    let mut next = || objects.next().expect("as many objects come back as were sent");
                    let object = next();
                    let told = match &self.selection {
                        None => Some((kind, object)),
                        Some(selection) => {
                            let before = matches!(event, Event::Modified { .. }).then(&mut next);
                            meant(selection, kind, object, before)
                        }
                    };
                    if let Some((kind, object)) = told {
                        let headers = self.next_headers();
                        append_event(piece, kind, &self.form.shape(object, headers));
                    }
                }
            }
        }
        if let Some(failure) = failure {
            self.fail(piece, &failure);
        }
    }

    /// Ends the watch as the store ended it.
    fn fail(&mut self, piece: &mut BytesMut, failure: &WatchError) {
        if let WatchError::Compacted { oldest } = failure {
            let reached = self.watch.as_ref().and_then(Watch::progress).map_or(0, Revision::get);
            let error = ApiError::watch_too_old(reached, oldest.get());
            append_event(piece, "ERROR", &error.status().to_value());
        }
        self.watch = None;
    }

    fn append(&mut self, piece: &mut BytesMut, event: &Event) {
        let Some((kind, record, written)) = kind_of(event) else {
            if let (Event::InitialDone { revision }, true) = (event, self.marks_initial) {
                let annotations = json!({ "k8s.io/initial-events-end": "true" });
                append_event(piece, "BOOKMARK", &self.form.bookmark(*revision, Some(annotations)));
            }
            return;
        };
        piece.put_slice(b"{\"type\":\"");
        piece.put_slice(kind.as_bytes());
        piece.put_slice(b"\",\"object\":");
        let headers = self.next_headers();
        self.form.append(piece, record, written.mod_revision(), headers);
        piece.put_slice(b"}\n");
    }

    /// The columns of a table are told once.
    fn next_headers(&mut self) -> Headers {
        std::mem::replace(&mut self.headers, Headers::Omitted)
    }

    fn append_bookmark(&mut self, piece: &mut BytesMut) {
        // What is still being converted has been taken, but not told.
        let tells = self.bookmarks && self.converting.is_none();
        let progress = self.watch.as_ref().and_then(Watch::progress).filter(|_| tells);
        if let Some(revision) = progress.filter(|revision| self.said != Some(*revision)) {
            self.said = Some(revision);
            append_event(piece, "BOOKMARK", &self.form.bookmark(revision, None));
        }
    }
}

/// What is told of an event to somebody who means only some objects; nothing if it is about none of them.
fn meant(
    selection: &Selection,
    kind: &'static str,
    object: Value,
    before: Option<Value>,
) -> Option<(&'static str, Value)> {
    let Some(mut before) = before else {
        return selection.contains_served(&object).then_some((kind, object));
    };
    match (selection.contains_served(&before), selection.contains_served(&object)) {
        (false, false) => None,
        (false, true) => Some(("ADDED", object)),
        (true, true) => Some((kind, object)),
        (true, false) => {
            // As it was last seen, under the revision at which it went.
            before["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
            Some(("DELETED", before))
        }
    }
}

/// What an event is called, the object that it is about, and the one that tells when that was written.
fn kind_of(event: &Event) -> Option<(&'static str, &Arc<Record>, &Arc<Record>)> {
    match event {
        Event::Added { record, .. } => Some(("ADDED", record, record)),
        Event::Modified { record, .. } => Some(("MODIFIED", record, record)),
        Event::Deleted { record, previous } => Some(("DELETED", record, previous)),
        Event::InitialDone { .. } => None,
    }
}

fn append_event(piece: &mut BytesMut, kind: &str, object: &Value) {
    piece.put_slice(json!({ "type": kind, "object": object }).to_string().as_bytes());
    piece.put_slice(b"\n");
}

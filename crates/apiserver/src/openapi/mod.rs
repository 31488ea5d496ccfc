//! `OpenAPI`, v3 by group and version and v2 in one piece, for built-in and custom kinds alike.
//!
//! Nothing is made before it is asked for. The index of v3 needs a digest of every document; the documents themselves
//! are kept from their first request on, and made anew only where a resource has changed.
//!
//! ```text
//!   served ──► operations ─┬─► v3: one document a version ──► JSON
//!          └─► definitions ┴─► v2: one document ──► JSON, protobuf (gnostic)
//! ```

mod custom_kinds;
mod definitions;
#[cfg(test)]
pub(crate) mod fixtures;
mod gnostic;
mod names;
mod operations;
#[cfg(test)]
mod tests;
mod texts;
mod v2;
mod v3;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use jiff::Timestamp;
use moorline_machinery::gvk::GroupVersion;
use serde_json::{Map, Value, json};

use crate::{
    body::Body,
    core::Core,
    custom,
    digest::{self, Tagged},
    heap, negotiate,
    query::Query,
    resource::{ResourceType, Served},
    respond,
};

/// Answers a path at or below `/openapi`.
pub(crate) async fn handle(core: &Arc<Core>, path: &str, query: &Query, headers: &HeaderMap) -> Response<Body> {
    let source = Arc::clone(core);
    let written = move |resource: &ResourceType| written_schema(&custom::crd_of(&source, &resource.gvr)?, resource);
    let request = Asked {
        path,
        query,
        headers,
        now: core.world.now(),
    };
    core.openapi
        .answer(core.registry.served(), Box::new(written), request)
        .await
}

/// Reads the schema of a custom kind as its author wrote it; nothing where there is none to publish.
pub(crate) type WrittenSchemas = dyn Fn(&ResourceType) -> Option<Value> + Send + Sync;

/// What was asked for, and when.
pub(crate) struct Asked<'r> {
    pub(crate) path: &'r str,
    pub(crate) query: &'r Query,
    pub(crate) headers: &'r HeaderMap,
    pub(crate) now: Timestamp,
}

/// The schema of a version in its definition. Objects that keep every field have none to speak of.
fn written_schema(definition: &Value, resource: &ResourceType) -> Option<Value> {
    if definition["spec"]["preserveUnknownFields"] == true {
        return None;
    }
    let versions = definition["spec"]["versions"].as_array()?;
    let version = versions
        .iter()
        .find(|version| version["name"] == *resource.gvr.version)?;
    version["schema"].get("openAPIV3Schema").cloned()
}

/// The documents that were made so far.
#[derive(Default)]
pub(crate) struct OpenApi {
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    versions: HashMap<GroupVersion, Version>,
    /// Of which epoch, and the index.
    index: Option<(u64, Tagged)>,
    v2: Option<(u64, V2)>,
}

/// What is known of the document of a version.
struct Version {
    /// What it was made from. Holding on to these makes their addresses tell whether anything has changed.
    made_from: Vec<Arc<ResourceType>>,
    digest: String,
    /// Kept once someone has asked for it.
    document: Option<Tagged>,
}

#[derive(Clone)]
struct V2 {
    json: Tagged,
    protobuf: Tagged,
}

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Index,
    Version(GroupVersion),
    V2(Encoding),
}

/// How the document of v2 is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Json,
    Protobuf,
}

impl OpenApi {
    /// Answers with a document. One that is not there yet is made off the async threads.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        served: Arc<Served>,
        written: Box<WrittenSchemas>,
        asked: Asked<'_>,
    ) -> Response<Body> {
        let headers = asked.headers;
        let subject = match subject(asked.path, headers) {
            Ok(subject) => subject,
            Err(status) => return refusal(status),
        };
        let document = match self.find(&served, &subject) {
            Found::Document(document) => Some(document),
            Found::Nothing => None,
            Found::Unmade => {
                let (this, subject) = (Arc::clone(self), subject.clone());
                let making = move || {
                    let made = this.make(&served, &*written, &subject);
                    heap::give_back();
                    made
                };
                tokio::task::spawn_blocking(making)
                    .await
                    .expect("making a document does not panic, and is not cancelled")
            }
        };
        let Some(document) = document else {
            return refusal(StatusCode::NOT_FOUND);
        };
        match subject {
            Subject::Index | Subject::V2(Encoding::Json) => {
                digest::answer(&document, HeaderValue::from_static(JSON), headers)
            }
            Subject::V2(Encoding::Protobuf) => digest::answer(&document, HeaderValue::from_static(PROTOBUF), headers),
            Subject::Version(version) => answer_version(&document, &version, &asked),
        }
    }

    fn find(&self, served: &Served, subject: &Subject) -> Found {
        let cache = self.cache();
        let found = match subject {
            Subject::Index => cache
                .index
                .as_ref()
                .filter(|(epoch, _)| *epoch == served.epoch)
                .map(|(_, made)| made.clone()),
            Subject::V2(encoding) => {
                let made = cache.v2.as_ref().filter(|(epoch, _)| *epoch == served.epoch);
                made.map(|(_, document)| document.encoded(*encoding))
            }
            Subject::Version(version) => {
                let Some(resources) = made_from(served, version) else {
                    return Found::Nothing;
                };
                let known = cache.versions.get(version).filter(|known| known.is_of(&resources));
                known.and_then(|known| known.document.clone())
            }
        };
        found.map_or(Found::Unmade, Found::Document)
    }

    fn make(&self, served: &Served, written: &WrittenSchemas, subject: &Subject) -> Option<Tagged> {
        match subject {
            Subject::Index => Some(self.make_index(served, written)),
            Subject::V2(encoding) => Some(self.make_v2(served, written).encoded(*encoding)),
            Subject::Version(version) => self.make_version(served, written, version, Keep::Document)?.1,
        }
    }

    fn make_index(&self, served: &Served, written: &WrittenSchemas) -> Tagged {
        let versions: Vec<GroupVersion> = served.groups().flat_map(|(_, versions)| versions).collect();
        let mut paths = Map::new();
        for version in &versions {
            let Some((digest, _)) = self.make_version(served, written, version, Keep::Digest) else {
                continue;
            };
            let key = names::index_key(version);
            let url = versioned_url(&key, &digest);
            paths.insert(key, json!({"serverRelativeURL": url}));
        }
        let index = Tagged::json(&json!({"paths": paths}));
        let mut cache = self.cache();
        cache.versions.retain(|version, _| versions.contains(version));
        cache.index = Some((served.epoch, index.clone()));
        index
    }

    fn make_version(
        &self,
        served: &Served,
        written: &WrittenSchemas,
        version: &GroupVersion,
        keep: Keep,
    ) -> Option<(String, Option<Tagged>)> {
        let resources = made_from(served, version)?;
        if let Some(known) = self
            .cache()
            .versions
            .get(version)
            .filter(|known| known.is_of(&resources))
            && (known.document.is_some() || keep == Keep::Digest)
        {
            return Some((known.digest.clone(), known.document.clone()));
        }
        let document = Tagged::json(&v3::document(served, version, written));
        let digest = document.digest.clone();
        let kept = (keep == Keep::Document).then_some(document);
        let made = Version {
            made_from: resources,
            digest: digest.clone(),
            document: kept.clone(),
        };
        self.cache().versions.insert(version.clone(), made);
        Some((digest, kept))
    }

    fn make_v2(&self, served: &Served, written: &WrittenSchemas) -> V2 {
        let document: Value = v2::document(served, written);
        let made = V2 {
            json: Tagged::json(&document),
            protobuf: Tagged::new(gnostic::document(&document)),
        };
        self.cache().v2 = Some((served.epoch, made.clone()));
        made
    }

    /// A document is complete or not there: one who panicked while holding the lock has spoilt nothing.
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a search for a document ends.
enum Found {
    Document(Tagged),
    /// It has to be made first.
    Unmade,
    /// There is no such document.
    Nothing,
}

/// What to keep of a document that is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Digest,
    Document,
}

impl Version {
    fn is_of(&self, resources: &[Arc<ResourceType>]) -> bool {
        self.made_from.len() == resources.len()
            && self
                .made_from
                .iter()
                .zip(resources)
                .all(|(ours, theirs)| Arc::ptr_eq(ours, theirs))
    }
}

impl V2 {
    fn encoded(&self, encoding: Encoding) -> Tagged {
        match encoding {
            Encoding::Json => self.json.clone(),
            Encoding::Protobuf => self.protobuf.clone(),
        }
    }
}

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

fn made_from(served: &Served, version: &GroupVersion) -> Option<Vec<Arc<ResourceType>>> {
    served.resources(version).map(|resources| resources.cloned().collect())
}

fn subject(path: &str, headers: &HeaderMap) -> Result<Subject, StatusCode> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let subject = match segments[..] {
        ["openapi", "v2"] => return negotiated(headers, true).map(Subject::V2),
        // The index is JSON whatever the client says it accepts.
        ["openapi", "v3"] => return Ok(Subject::Index),
        ["openapi", "v3", "api", version] => Subject::Version(GroupVersion::new("", version)),
        ["openapi", "v3", "apis", group, version] => Subject::Version(GroupVersion::new(group, version)),
        _ => return Err(StatusCode::NOT_FOUND),
    };
    negotiated(headers, false).map(|_| subject)
}

/// The first form that the client accepts and that there is.
fn negotiated(headers: &HeaderMap, protobuf: bool) -> Result<Encoding, StatusCode> {
    let choices = negotiate::choices(headers);
    if choices.is_empty() {
        return Ok(Encoding::Json);
    }
    let served = choices.iter().find_map(|choice| match choice.media_type {
        "application/json" | "application/*" | "*/*" => Some(Encoding::Json),
        "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        | "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
        | "application/com.github.proto-openapi.spec.v2.v1+protobuf"
            if protobuf =>
        {
            Some(Encoding::Protobuf)
        }
        _ => None,
    });
    served.ok_or(StatusCode::NOT_ACCEPTABLE)
}

/// Where a document is found that never changes.
fn versioned_url(key: &str, digest: &str) -> String {
    format!("/openapi/v3/{key}?hash={digest}")
}

/// One who names the digest may keep the answer for ever, and is sent on when the document has changed since.
fn answer_version(document: &Tagged, version: &GroupVersion, asked: &Asked<'_>) -> Response<Body> {
    const YEAR: Duration = Duration::from_hours(365 * 24);
    let Some(hash) = asked.query.get("hash").filter(|hash| !hash.is_empty()) else {
        return digest::answer(document, HeaderValue::from_static(JSON), asked.headers);
    };
    if hash != document.digest {
        let mut moved = Response::new(Body::empty());
        *moved.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(url) = versioned_url(&names::index_key(version), &document.digest).parse() {
            moved.headers_mut().insert(header::LOCATION, url);
        }
        return moved;
    }
    let mut response = digest::answer(document, HeaderValue::from_static(JSON), asked.headers);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    let expires = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&(asked.now + YEAR));
    if let Some(expires) = expires.ok().and_then(|text| text.parse().ok()) {
        response.headers_mut().insert(header::EXPIRES, expires);
    }
    response
}

fn refusal(status: StatusCode) -> Response<Body> {
    if status == StatusCode::NOT_FOUND {
        return respond::text(status, "404 page not found\n");
    }
    let mut refusal = Response::new(Body::empty());
    *refusal.status_mut() = status;
    refusal
}

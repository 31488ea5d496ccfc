//! Events for people, each published once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    kind::Kind,
    object::{DecodeError, Object},
    request::{self, path_of},
};

/// How long an event that was published is not published again.
const QUIET: Duration = Duration::from_mins(10);
/// How often something may happen in that time and be counted every time.
const COUNTED: u32 = 25;
/// How many are remembered.
const REMEMBERED: usize = 4096;

/// Whether an event tells of the ordinary or of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The ordinary.
    Normal,
    /// Trouble.
    Warning,
}

/// An event as an object. Its name is a digest of what it says, so that saying it twice is one event.
pub(crate) fn compose(
    regarding: &Object,
    event: EventType,
    reason: &str,
    note: &str,
    actor: &str,
    field_owner: &str,
    now: Timestamp,
) -> Result<Object, DecodeError> {
    let namespace = if regarding.namespace().is_empty() {
        "default"
    } else {
        regarding.namespace()
    };
    let mut digest = Sha256::new();
    for part in [regarding.uid(), reason, note] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let digest = digest.finalize();
    let digest = u64::from_be_bytes(digest[..8].try_into().expect("a digest has eight bytes and more"));
    let stem: String = regarding.name().chars().take(230).collect();
    let value = json!({
        "metadata": { "name": format!("{stem}.{digest:016x}"), "namespace": namespace },
        "type": match event { EventType::Normal => "Normal", EventType::Warning => "Warning" },
        "reason": reason,
        "note": note.chars().take(1024).collect::<String>(),
        "action": "Reconcile",
        "reportingController": actor,
        "reportingInstance": field_owner,
        "eventTime": format!("{now:.6}"),
        "regarding": {
            "apiVersion": regarding.kind().api_version(), "kind": regarding.kind().name(),
            "name": regarding.name(), "namespace": regarding.namespace(), "uid": regarding.uid(),
            "resourceVersion": regarding.version().to_string(),
        },
    });
    Object::from_value(&Kind::of::<k8s_openapi::api::events::v1::Event>(), &value)
}

/// What has been published lately. Names of events are digests of what they say, so equal names are equal events.
#[derive(Debug, Default)]
pub(crate) struct Published(Mutex<HashMap<Arc<str>, Lately>>);

#[derive(Debug)]
struct Lately {
    since: Instant,
    times: u32,
}

/// What an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tells {
    /// How things are: once is enough.
    State,
    /// What has just happened: every time counts.
    Happening,
}

pub(crate) fn is_event(object: &Object) -> bool {
    object.kind().is("events.k8s.io", "Event")
}

impl Published {
    /// Publishes an event unless it was lately. Events are a courtesy: that one is lost is logged and no more.
    pub(crate) async fn publish(&self, client: &kube::Client, event: &Object, tells: Tells) {
        if !self.is_news(event, tells) {
            return;
        }
        let target = event.target();
        let path = target.kind.path(Some(&target.namespace));
        let content = ("application/json", event.json().to_vec());
        let answer = request::send(client, Method::POST, &path, Some(content)).await;
        let answer = match answer {
            Err(error) if error.reason() == "AlreadyExists" => self.count(client, event).await,
            other => other.map(drop),
        };
        if let Err(error) = answer {
            tracing::warn!(event = %target, %error, "an event was not published");
        }
    }

    /// The server has it from before: it happened once more.
    async fn count(&self, client: &kube::Client, event: &Object) -> Result<(), request::RequestError> {
        let target = event.target();
        let Some(there) = request::get(client, &target).await? else {
            return Ok(());
        };
        let count = there.value()["series"]["count"].as_i64().unwrap_or(1) + 1;
        let patch = json!({ "series": { "count": count, "lastObservedTime": event.value()["eventTime"] } });
        let content = ("application/merge-patch+json", patch.to_string().into_bytes());
        request::send(client, Method::PATCH, &path_of(&target), Some(content))
            .await
            .map(drop)
    }

    fn is_news(&self, event: &Object, tells: Tells) -> bool {
        let now = Instant::now();
        let mut published = self.0.lock().expect("nothing panics while it holds this");
        if published.len() >= REMEMBERED {
            published.retain(|_, lately| now.duration_since(lately.since) < QUIET);
            if published.len() >= REMEMBERED {
                published.clear();
            }
        }
        let name = Arc::clone(&event.meta().name);
        let known = published.get_mut(&name);
        if let Some(lately) = known.filter(|lately| now.duration_since(lately.since) < QUIET) {
            lately.times += 1;
            return tells == Tells::Happening && lately.times <= COUNTED;
        }
        published.insert(name, Lately { since: now, times: 1 });
        true
    }
}

//! Events, as the components of a node write them: repeated ones are counted, not written anew.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::mpsc;

/// Whether someone should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

/// Takes events and writes them in the background, in order. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Recorder {
    source: EventSource,
    sender: mpsc::Sender<(ObjectReference, EventSource, Severity, String, String)>,
}

/// How many events may wait to be written; beyond, they are dropped, as they are news and not state.
const WAITING: usize = 4096;
/// How many different events are remembered for counting.
const REMEMBERED: usize = 4096;

impl Recorder {
    /// A recorder that says who writes, with the task that does the writing.
    pub(crate) fn new(client: Client, component: &str, host: Option<&str>) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(write(client, receiver));
        let source = EventSource {
            component: Some(component.to_owned()),
            host: host.map(str::to_owned),
        };
        Self { source, sender }
    }

    /// The same writer under another name.
    pub(crate) fn on_behalf_of(&self, component: &str, host: Option<&str>) -> Self {
        let source = EventSource {
            component: Some(component.to_owned()),
            host: host.map(str::to_owned),
        };
        Self {
            source,
            sender: self.sender.clone(),
        }
    }

    /// Tells something about an object.
    pub(crate) fn tell<K>(&self, object: &K, severity: Severity, reason: &str, message: impl Into<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        self.tell_of(object.object_ref(&()), severity, reason, message);
    }

    /// Tells something about one container of a pod.
    pub(crate) fn tell_container(
        &self,
        pod: &k8s_openapi::api::core::v1::Pod,
        field: &str,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
    ) {
        let mut reference = pod.object_ref(&());
        reference.field_path = Some(field.to_owned());
        self.tell_of(reference, severity, reason, message);
    }

    fn tell_of(&self, object: ObjectReference, severity: Severity, reason: &str, message: impl Into<String>) {
        let event = (object, self.source.clone(), severity, reason.to_owned(), message.into());
        if self.sender.try_send(event).is_err() {
            tracing::debug!(reason, "an event was dropped: too many wait to be written");
        }
    }
}

/// What makes two events the same.
type Same = (Option<String>, Option<String>, String, String);

async fn write(client: Client, mut receiver: mpsc::Receiver<(ObjectReference, EventSource, Severity, String, String)>) {
    let mut seen: HashMap<Same, (String, i32)> = HashMap::new();
    while let Some((object, source, severity, reason, message)) = receiver.recv().await {
        let namespace = object.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let same = (
            object.uid.clone(),
            object.field_path.clone(),
            reason.clone(),
            message.clone(),
        );
        let before = seen.get(&same).cloned();
        let now = Time(seconds(Timestamp::now()));
        if let Some((name, count)) = before {
            let patch = Patch::Merge(json!({ "count": count + 1, "lastTimestamp": now }));
            if api.patch(&name, &PatchParams::default(), &patch).await.is_ok() {
                seen.insert(same, (name, count + 1));
                continue;
            }
        }
        let stamp = Timestamp::now().as_nanosecond();
        let name = format!("{}.{stamp:x}", object.name.as_deref().unwrap_or("object"));
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: object,
            reason: Some(reason),
            message: Some(message),
            type_: Some(format!("{severity:?}")),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            reporting_component: source.component.clone(),
            reporting_instance: source.host.clone().or_else(|| Some(String::new())),
            source: Some(source),
            ..Event::default()
        };
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {
                if seen.len() >= REMEMBERED {
                    seen.clear();
                }
                seen.insert(same, (name, 1));
            }
            Err(error) => tracing::debug!(%error, "an event could not be written"),
        }
    }
}

/// A moment without its fraction of a second, as the API keeps it.
pub(crate) fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

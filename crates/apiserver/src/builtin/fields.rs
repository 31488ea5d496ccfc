//! The fields that built-in kinds can be selected by, and what the store keeps beside each object for selecting.

use std::collections::HashMap;

use moorline_store::{Attributes, Describe, Key, Pairs};
use serde::Deserialize;
use serde_json::Value;

/// A field as selectors name it, and where its value is found. Several places are tried in turn.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) pointers: &'static [&'static str],
}

const fn field(name: &'static str, pointers: &'static [&'static str]) -> Field {
    Field { name, pointers }
}

const PODS: &[Field] = &[
    field("spec.nodeName", &["/spec/nodeName"]),
    field("spec.restartPolicy", &["/spec/restartPolicy"]),
    field("spec.schedulerName", &["/spec/schedulerName"]),
    field("spec.serviceAccountName", &["/spec/serviceAccountName"]),
    field("spec.hostNetwork", &["/spec/hostNetwork"]),
    field("status.phase", &["/status/phase"]),
    field("status.podIP", &["/status/podIP"]),
    field("status.nominatedNodeName", &["/status/nominatedNodeName"]),
];

/// An event is stored in the old form, whichever API wrote it.
const EVENTS: &[Field] = &[
    field("involvedObject.kind", &["/involvedObject/kind"]),
    field("involvedObject.namespace", &["/involvedObject/namespace"]),
    field("involvedObject.name", &["/involvedObject/name"]),
    field("involvedObject.uid", &["/involvedObject/uid"]),
    field("involvedObject.apiVersion", &["/involvedObject/apiVersion"]),
    field("involvedObject.resourceVersion", &["/involvedObject/resourceVersion"]),
    field("involvedObject.fieldPath", &["/involvedObject/fieldPath"]),
    field("reason", &["/reason"]),
    field("reportingComponent", &["/reportingComponent"]),
    field("source", &["/source/component", "/reportingComponent"]),
    field("type", &["/type"]),
];

/// The fields of a stored resource, besides name and namespace.
pub(crate) fn of(storage: &str) -> &'static [Field] {
    match storage {
        "pods" => PODS,
        "events" => EVENTS,
        "nodes" => const { &[field("spec.unschedulable", &["/spec/unschedulable"])] },
        "namespaces" => const { &[field("status.phase", &["/status/phase"])] },
        "secrets" => const { &[field("type", &["/type"])] },
        "services" => {
            const {
                &[
                    field("spec.clusterIP", &["/spec/clusterIP"]),
                    field("spec.type", &["/spec/type"]),
                ]
            }
        }
        "replicationcontrollers" | "replicasets.apps" => const { &[field("status.replicas", &["/status/replicas"])] },
        "jobs.batch" => const { &[field("status.successful", &["/status/succeeded"])] },
        "certificatesigningrequests.certificates.k8s.io" => {
            const { &[field("spec.signerName", &["/spec/signerName"])] }
        }
        _ => &[],
    }
}

impl Field {
    fn value(&self, object: &Value) -> String {
        let found = self.pointers.iter().find_map(|pointer| object.pointer(pointer));
        match found {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => self.zero().to_owned(),
            Some(other) => other.to_string(),
        }
    }

    /// How Kubernetes prints a value that is not there.
    fn zero(&self) -> &'static str {
        match self.name {
            "spec.hostNetwork" | "spec.unschedulable" => "false",
            "status.replicas" | "status.successful" => "0",
            _ => "",
        }
    }
}

/// Works out what selectors look at, once per write.
pub(crate) struct Describer;

/// The part of an object that every kind has; the rest is skipped over.
#[derive(Deserialize)]
struct Described {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    labels: Option<HashMap<String, String>>,
}

impl Describe for Describer {
    fn describe(&self, key: &Key, value: &[u8]) -> Attributes {
        let fields = of(key.resource().as_str());
        // Only JSON of ours is stored; an object that does not read simply cannot be selected.
        let Ok(described) = serde_json::from_slice::<Described>(value) else {
            return Attributes::default();
        };
        let object: Value = if fields.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(value).unwrap_or_default()
        };
        Attributes {
            uid: described.metadata.uid.into(),
            labels: described.metadata.labels.unwrap_or_default().into_iter().collect(),
            fields: fields
                .iter()
                .map(|field| (field.name, field.value(&object)))
                .collect::<Pairs>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use moorline_store::Resource;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_described_by_its_labels_and_fields() {
        let pod = json!({
            "metadata": { "uid": "u", "labels": { "app": "a" } },
            "spec": { "nodeName": "n" }, "status": { "phase": "Running" },
        });
        let key = Key::new(&Resource::new("pods"), "n", "p");
        let attributes = Describer.describe(&key, pod.to_string().as_bytes());
        assert_eq!(&*attributes.uid, "u");
        assert_eq!(attributes.labels.get("app"), Some("a"));
        assert_eq!(attributes.fields.get("spec.nodeName"), Some("n"));
        assert_eq!(attributes.fields.get("status.phase"), Some("Running"));
        assert_eq!(attributes.fields.get("spec.hostNetwork"), Some("false"));
    }
}

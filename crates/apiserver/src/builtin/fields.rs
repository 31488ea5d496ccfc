//! The fields that built-in kinds can be selected by, and what the store keeps beside each object for selecting.

use std::{collections::HashMap, sync::LazyLock};

use moorline_store::{Attributes, Describe, Key, Pairs};
use serde::Deserialize;
use serde_json::Value;

/// A field as selectors name it, and where its value is found. Several places are tried in turn.
struct Field {
    name: &'static str,
    pointers: Vec<String>,
}

/// The fields of a stored resource, besides name and namespace.
fn of(storage: &str) -> &'static [Field] {
    static FIELDS: LazyLock<HashMap<String, Vec<Field>>> = LazyLock::new(|| {
        let mut fields: HashMap<String, Vec<Field>> = HashMap::new();
        // Where two groups show the same objects, they can be selected by the fields of both.
        for resource in super::resources().iter().filter(|resource| !resource.fields.is_empty()) {
            let storage = super::storage(resource.group(), resource.plural);
            let known = fields.entry(storage.as_str().to_owned()).or_default();
            known.extend(resource.fields.iter().map(Field::new));
        }
        fields
    });
    FIELDS.get(storage).map_or(&[], Vec::as_slice)
}

impl Field {
    fn new((name, path): &(&'static str, &'static str)) -> Self {
        // Events are stored in their first form, whichever API they are asked for by.
        let stored = path
            .replace("regarding.", "involvedObject.")
            .replace("reportingController", "reportingComponent");
        let mut pointers = vec![format!("/{}", stored.replace('.', "/"))];
        if *name == "source" {
            // Events of the later API name their source under another field.
            pointers.push("/reportingComponent".to_owned());
        }
        Self { name, pointers }
    }

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

    #[test]
    fn an_event_is_found_by_the_fields_of_both_its_faces() {
        let event = json!({ "metadata": {}, "involvedObject": { "name": "p" }, "reportingComponent": "c" });
        let key = Key::new(&Resource::new("events"), "n", "e");
        let fields = Describer.describe(&key, event.to_string().as_bytes()).fields;
        assert_eq!(fields.get("involvedObject.name"), Some("p"));
        assert_eq!(fields.get("regarding.name"), Some("p"));
        assert_eq!(fields.get("reportingController"), Some("c"));
        assert_eq!(fields.get("source"), Some("c"));
    }
}

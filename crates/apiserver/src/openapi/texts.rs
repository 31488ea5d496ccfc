//! What is said of the fields that every object has.

use std::sync::OnceLock;

use moorline_machinery::gvk::GroupVersionKind;
use serde_json::Value;

use super::names;
use crate::builtin::schema::{Collector, Dialect};

/// The schemas of the type, and the words for the metadata, of any object.
pub(super) struct ObjectTexts {
    pub(super) api_version: Value,
    pub(super) kind: Value,
    pub(super) metadata: String,
    pub(super) list_metadata: String,
}

impl ObjectTexts {
    /// As built-in kinds have them; read off one of the smallest.
    pub(super) fn get() -> &'static Self {
        static TEXTS: OnceLock<ObjectTexts> = OnceLock::new();
        TEXTS.get_or_init(|| {
            let sample = GroupVersionKind::new("", "v1", "ConfigMap");
            let mut collector = Collector::new(Dialect::V3);
            collector.add(&sample);
            let definitions = collector.finish();
            let sample = names::definition(&sample)
                .and_then(|name| definitions.get(&name))
                .unwrap_or(&Value::Null);
            let list = definitions.get(names::STATUS).unwrap_or(&Value::Null);
            let described = |kind: &Value, field: &str| {
                kind["properties"][field]["description"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            Self {
                api_version: sample["properties"]["apiVersion"].clone(),
                kind: sample["properties"]["kind"].clone(),
                metadata: described(sample, "metadata"),
                list_metadata: described(list, "metadata"),
            }
        })
    }
}

//! In which members something of an object is or may be: kept on the object itself, where a restart finds it.

use std::{borrow::Cow, collections::BTreeMap, collections::BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::object::Object;

/// The annotation that one actor keeps it in. Actors may place parts of the same object without knowing of each other.
pub(super) fn annotation(actor: &str) -> String {
    format!("placed-in.moorline.io/{actor}")
}

/// The members that stand on the object; `None` if nothing was ever written, or somebody took it away.
pub(super) fn recorded(object: &Object, actor: &str) -> Option<BTreeSet<String>> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Part<'o> {
        #[serde(borrow)]
        metadata: Metadata<'o>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata<'o> {
        #[serde(borrow)]
        annotations: Option<BTreeMap<Cow<'o, str>, Cow<'o, str>>>,
    }
    // An object that cannot be read so has no annotations that anybody could have written.
    let part: Part<'_> = serde_json::from_slice(object.json()).unwrap_or_default();
    let annotations = part.metadata.annotations?;
    let names = annotations.get(annotation(actor).as_str())?;
    let names = names.split(',').filter(|name| !name.is_empty());
    Some(names.map(str::to_owned).collect())
}

/// Writes the members onto the object that shall be.
pub(super) fn record(desired: &mut Value, actor: &str, places: &BTreeSet<String>) {
    let names: Vec<&str> = places.iter().map(String::as_str).collect();
    desired["metadata"]["annotations"][annotation(actor)] = names.join(",").into();
}

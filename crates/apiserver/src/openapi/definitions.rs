//! The definitions that a document needs: kinds, their lists, and everything that these refer to.

use std::sync::Arc;

use moorline_machinery::gvk::{GroupVersion, GroupVersionKind};
use serde_json::{Map, Value, json};

use super::{WrittenSchemas, custom_kinds, names, texts::ObjectTexts};
use crate::{
    builtin::schema::{Collector, Dialect, group_version_kinds},
    path::Verb,
    resource::{ResourceType, Served},
};

/// The definitions of all kinds of some versions.
pub(super) fn collect(
    served: &Served,
    versions: &[GroupVersion],
    written: &WrittenSchemas,
    dialect: Dialect,
) -> Map<String, Value> {
    let resources: Vec<&Arc<ResourceType>> = versions
        .iter()
        .filter_map(|version| served.resources(version))
        .flatten()
        .collect();
    let mut collector = Collector::new(dialect);
    for resource in &resources {
        let kinds = std::iter::once(&resource.gvk).chain(resource.subresources.iter().map(|part| &part.gvk));
        kinds
            .filter(|gvk| names::is_built_in(gvk))
            .for_each(|gvk| collector.add(gvk));
    }
    let mut definitions = collector.finish();
    let texts = ObjectTexts::get();
    for resource in resources {
        add_custom(&mut definitions, resource, written, dialect, texts);
        add_list(&mut definitions, resource, dialect, texts);
    }
    if let Some(options) = definitions.get_mut(names::DELETE_OPTIONS) {
        let core = GroupVersion::new("", "v1");
        let others = versions.iter().filter(|version| **version != core);
        let kinds: Vec<_> = std::iter::once(&core)
            .chain(others)
            .map(|version| version.with_kind("DeleteOptions"))
            .collect();
        options[GVK] = group_version_kinds(&kinds);
    }
    definitions
}

const GVK: &str = "x-kubernetes-group-version-kind";

fn add_custom(
    definitions: &mut Map<String, Value>,
    resource: &ResourceType,
    written: &WrittenSchemas,
    dialect: Dialect,
    texts: &ObjectTexts,
) {
    if names::is_built_in(&resource.gvk) {
        return;
    }
    let mut definition = custom_kinds::definition(written(resource), dialect, texts);
    definition[GVK] = group_version_kinds([&resource.gvk]);
    let selectable = resource.strategy.selectable_field_names();
    if !selectable.is_empty() {
        let fields: Vec<Value> = selectable.iter().map(|field| json!({"fieldPath": field})).collect();
        definition["x-kubernetes-selectable-fields"] = fields.into();
    }
    definitions.insert(names::custom_definition(&resource.gvk), definition);
}

fn add_list(definitions: &mut Map<String, Value>, resource: &ResourceType, dialect: Dialect, texts: &ObjectTexts) {
    let list = GroupVersionKind {
        kind: resource.list_kind.clone(),
        ..resource.gvk.clone()
    };
    let names = names::definition(&list).zip(names::definition(&resource.gvk));
    let Some((list_name, item_name)) = names.filter(|_| resource.verbs.contains(&Verb::List)) else {
        return;
    };
    let definition = json!({
        "description": format!("{} is a list of {}", list.kind, resource.gvk.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": texts.api_version,
            "kind": texts.kind,
            "metadata": dialect.described_reference(names::LIST_META, &texts.list_metadata),
            "items": {
                "description": format!("the {} of this page", resource.gvr.resource),
                "type": "array",
                "items": {"$ref": dialect.reference(&item_name)},
            },
        },
        GVK: group_version_kinds([&list]),
    });
    definitions.insert(list_name, definition);
}

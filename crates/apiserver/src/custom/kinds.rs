//! From a definition to the resources that it makes the server serve, one for each served version.

use std::sync::Arc;

use moorline_machinery::gvk::{GroupVersionKind, GroupVersionResource};
use moorline_store::{Key, Resource};
use serde_json::Value;

use super::{
    family::Family,
    kind::{CustomKind, CustomScale, Life, PrinterColumn, SelectableField, StatusSubresource},
};
use crate::{
    core::Core,
    path::Verb,
    resource::{LazySchema, ResourceType, Subresource, preference},
    strategy::ScalePaths,
    wire::{self, TypePrefix},
};

/// Where definitions are kept.
pub(crate) fn definitions() -> GroupVersionResource {
    GroupVersionResource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

/// Where the objects of a kind are kept.
pub(crate) fn storage(group: &str, plural: &str) -> Resource {
    Resource::new(format!("{group}/{plural}"))
}

/// The definition behind a resource, if it is a custom one and the version is one of its versions.
pub(crate) fn crd_of(core: &Core, gvr: &GroupVersionResource) -> Option<Value> {
    let definitions = core.registry.find(&definitions())?;
    let name = format!("{}.{}", gvr.resource, gvr.group);
    let record = core.store.get(&Key::new(&definitions.storage, "", name))?;
    let definition = wire::from_stored(record.value(), &definitions.gvk.api_version(), &definitions.gvk.kind);
    let versions = definition["spec"]["versions"].as_array()?;
    versions
        .iter()
        .any(|version| version["name"] == *gvr.version)
        .then_some(definition)
}

/// What a definition makes the server serve, under the names that were accepted.
pub(super) fn resources(definition: &Value, family: &Arc<Family>, life: Life) -> Vec<Arc<ResourceType>> {
    let versions = definition["spec"]["versions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let served = versions.iter().filter(|version| version["served"] == true);
    served
        .filter_map(|version| resource(definition, version, family, life))
        .map(Arc::new)
        .collect()
}

fn resource(definition: &Value, version: &Value, family: &Arc<Family>, life: Life) -> Option<ResourceType> {
    let (spec, names) = (&definition["spec"], &definition["status"]["acceptedNames"]);
    let group: Arc<str> = spec["group"].as_str()?.into();
    let name = Arc::clone(family.version(version["name"].as_str()?)?.name());
    let plural: Arc<str> = names["plural"].as_str()?.into();
    let kind: Arc<str> = names["kind"].as_str()?.into();
    let gvk = GroupVersionKind::new(Arc::clone(&group), Arc::clone(&name), Arc::clone(&kind));
    let status = if version["subresources"]["status"].is_object() {
        StatusSubresource::Served
    } else {
        StatusSubresource::Absent
    };
    let scale = scale(&version["subresources"]["scale"]);
    let selectable = selectable(&version["selectableFields"]);
    let strategy = CustomKind {
        family: Arc::clone(family),
        version: Arc::clone(&name),
        kind,
        status,
        selectable_names: selectable.iter().map(|field| field.name.clone()).collect(),
        selectable,
        columns: columns(&version["additionalPrinterColumns"]),
        deprecation: deprecation(spec, version, &gvk),
        life,
        scale,
    };
    let lazy = (Arc::clone(family), Arc::clone(&name));
    Some(ResourceType {
        gvr: GroupVersionResource::new(Arc::clone(&group), name, Arc::clone(&plural)),
        list_kind: names["listKind"].as_str()?.into(),
        singular: names["singular"].as_str()?.into(),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        verbs: vec![
            Verb::Delete,
            Verb::DeleteCollection,
            Verb::Get,
            Verb::List,
            Verb::Patch,
            Verb::Create,
            Verb::Update,
            Verb::Watch,
        ],
        subresources: subresources(&strategy, &gvk),
        storage: storage(&group, &plural),
        prefix: TypePrefix::new(&gvk.api_version(), &gvk.kind),
        gvk,
        strategy: Arc::new(strategy),
        schema: LazySchema::new(move || {
            let (family, name) = &lazy;
            family
                .version(name)
                .expect("the resource was made from this version")
                .schema()
                .clone()
        }),
    })
}

fn subresources(kind: &CustomKind, gvk: &GroupVersionKind) -> Vec<Subresource> {
    let part = |name: &str, gvk: GroupVersionKind| Subresource {
        name: name.into(),
        gvk,
        verbs: vec![Verb::Get, Verb::Patch, Verb::Update],
    };
    let mut parts = Vec::new();
    if kind.status == StatusSubresource::Served {
        parts.push(part("status", gvk.clone()));
    }
    if kind.scale.is_some() {
        parts.push(part("scale", GroupVersionKind::new("autoscaling", "v1", "Scale")));
    }
    parts
}

fn scale(scale: &Value) -> Option<CustomScale> {
    let spec_path = scale["specReplicasPath"].as_str()?.to_owned();
    let status_path = scale["statusReplicasPath"].as_str()?.to_owned();
    let selector_path = scale["labelSelectorPath"]
        .as_str()
        .filter(|path| !path.is_empty())
        .map(str::to_owned);
    let pointers = ScalePaths {
        spec: pointer(&spec_path),
        status: pointer(&status_path),
        selector: selector_path.as_deref().map(pointer),
    };
    Some(CustomScale {
        pointers,
        spec_path,
        status_path,
        selector_path,
    })
}

fn selectable(fields: &Value) -> Vec<SelectableField> {
    let paths = fields
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|field| field["jsonPath"].as_str());
    let field = |path: &str| SelectableField {
        name: path.strip_prefix('.').unwrap_or(path).into(),
        pointer: pointer(path),
    };
    paths.map(field).collect()
}

fn columns(columns: &Value) -> Vec<PrinterColumn> {
    let column = |column: &Value| {
        let text = |key: &str| column[key].as_str().unwrap_or_default().to_owned();
        PrinterColumn {
            name: text("name"),
            kind: text("type"),
            format: text("format"),
            description: text("description"),
            priority: column["priority"].as_i64().unwrap_or_default(),
            json_path: text("jsonPath"),
        }
    };
    columns.as_array().into_iter().flatten().map(column).collect()
}

/// A path such as `.spec.replicas` as a JSON pointer.
fn pointer(path: &str) -> String {
    let names = path.strip_prefix('.').unwrap_or(path).split('.');
    names.fold(String::new(), |pointer, name| {
        pointer + "/" + &name.replace('~', "~0").replace('/', "~1")
    })
}

/// What users of a deprecated version are told: what its author says, or which version to use instead.
fn deprecation(spec: &Value, version: &Value, gvk: &GroupVersionKind) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(warning) = version["deprecationWarning"].as_str() {
        return Some(warning.to_owned());
    }
    let versions = spec["versions"].as_array().into_iter().flatten();
    let better = versions
        .filter(|other| other["served"] == true && other["deprecated"] != true)
        .filter_map(|other| other["name"].as_str())
        .filter(|other| preference(other) > preference(&gvk.version))
        .max_by_key(|other| preference(other));
    let said = format!("{} {} is deprecated", gvk.group_version(), gvk.kind);
    Some(match better {
        Some(better) => format!("{said}; use {}/{better} {}", gvk.group, gvk.kind),
        None => said,
    })
}

fn texts(texts: &Value) -> Vec<Arc<str>> {
    texts
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(Into::into)
        .collect()
}

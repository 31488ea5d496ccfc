//! What is particular to a custom kind in one of its versions.

use std::sync::Arc;

use moorline_machinery::{
    field::{ErrorKind, FieldError, Path},
    meta::{Generation, UnversionedUpdate},
    selector::FieldSelector,
    status::ApiError,
};
use moorline_store::{Record, Revision, Value as StoredValue};
use serde_json::{Value, json};

use super::{
    family::{Family, Member},
    go_type,
};
use crate::{
    resource::ResourceType,
    strategy::{Findings, ScalePaths, Strategy},
    wire,
};

/// One version of a custom kind.
pub(crate) struct CustomKind {
    pub(super) family: Arc<Family>,
    /// The name of the version, which the family has.
    pub(super) version: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) status: StatusSubresource,
    pub(super) scale: Option<CustomScale>,
    pub(super) selectable: Vec<SelectableField>,
    pub(super) selectable_names: Vec<Box<str>>,
    pub(super) columns: Vec<PrinterColumn>,
    pub(super) deprecation: Option<String>,
    pub(super) life: Life,
}

/// Whether the status is written apart from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusSubresource {
    Served,
    Absent,
}

/// Whether a kind is here to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It takes new objects.
    Open,
    /// Its definition is being deleted: it takes no new objects.
    Closing,
}

/// The scale of a custom kind.
pub(crate) struct CustomScale {
    pub(super) pointers: ScalePaths,
    /// The same as they are written in the definition, for messages.
    pub(super) spec_path: String,
    pub(super) status_path: String,
    pub(super) selector_path: Option<String>,
}

/// A field that objects can be selected by.
pub(crate) struct SelectableField {
    /// As selectors name it, such as `spec.color`.
    pub(super) name: Box<str>,
    /// As a JSON pointer.
    pub(super) pointer: String,
}

/// A column of a table of custom objects, as its definition describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrinterColumn {
    /// Its title.
    pub(crate) name: String,
    /// The type of its values, such as `integer` or `date`.
    pub(crate) kind: String,
    /// How values of the type are to be read; may be empty.
    pub(crate) format: String,
    /// What it shows; may be empty.
    pub(crate) description: String,
    /// Above zero only in wide tables.
    pub(crate) priority: i64,
    /// Where its values are found, such as `.spec.replicas`.
    pub(crate) json_path: String,
}

impl PrinterColumn {
    /// As it is written in a definition.
    pub(crate) fn to_value(&self) -> Value {
        json!({
            "name": self.name, "type": self.kind, "format": self.format, "description": self.description,
            "priority": self.priority, "jsonPath": self.json_path,
        })
    }
}

impl CustomKind {
    /// The versions that this is one of.
    pub(crate) fn family(&self) -> &Arc<Family> {
        &self.family
    }

    fn this(&self) -> &Member {
        self.family
            .version(&self.version)
            .expect("a kind is made for a version that its family has")
    }

    /// An object as it is stored, under the version that it is stored in.
    fn stored_object(&self, record: &Record) -> Value {
        let version = wire::stored_version(record.value()).unwrap_or(self.family.storage().api_version());
        wire::from_stored(record.value(), version, &self.kind)
    }

    fn check_rules(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let blocking = |error: &FieldError| {
            matches!(
                error.kind,
                ErrorKind::NotSupported
                    | ErrorKind::Required
                    | ErrorKind::TooLong
                    | ErrorKind::TooMany
                    | ErrorKind::TypeInvalid
            )
        };
        if errors.iter().any(blocking) {
            // A rule may rely on what the schema promises.
            let detail = "some validation rules were not checked because the object was invalid; correct the existing \
                          errors to complete validation";
            errors.push(FieldError::invalid(&Path::OBJECT, Value::Null, detail));
        } else {
            errors.extend(self.this().schema().check_rules(object, old));
        }
    }

    fn check_scale(&self, object: &Value, errors: &mut Vec<FieldError>) {
        let Some(scale) = &self.scale else { return };
        for (path, pointer) in [
            (&scale.spec_path, &scale.pointers.spec),
            (&scale.status_path, &scale.pointers.status),
        ] {
            let found = object.pointer(pointer).filter(|value| !value.is_null());
            let Some(number) = found else { continue };
            let (shown, detail) = match number.as_i64() {
                None => (
                    0,
                    format!(
                        "{path} accessor error: {number} is of the type {}, expected int64",
                        go_type(number)
                    ),
                ),
                Some(number) if number < 0 => (number, "should be a non-negative integer".to_owned()),
                Some(number) if number > i64::from(i32::MAX) => {
                    (number, format!("should be less than or equal to {}", i32::MAX))
                }
                Some(_) => continue,
            };
            errors.push(FieldError::invalid(&Path::root(path), shown, detail));
        }
        if let (Some(path), Some(pointer)) = (&scale.selector_path, &scale.pointers.selector)
            && let Some(other) = object
                .pointer(pointer)
                .filter(|value| !value.is_string() && !value.is_null())
        {
            let detail = format!(
                "{path} accessor error: {other} is of the type {}, expected string",
                go_type(other)
            );
            errors.push(FieldError::invalid(&Path::root(path), "", detail));
        }
    }
}

impl Strategy for CustomKind {
    fn as_custom(&self) -> Option<&CustomKind> {
        Some(self)
    }

    fn unversioned_update(&self) -> UnversionedUpdate {
        UnversionedUpdate::Refused
    }

    fn generation(&self) -> Generation {
        match self.status {
            StatusSubresource::Served => Generation::ButStatus,
            StatusSubresource::Absent => Generation::ButMetadata,
        }
    }

    fn changes_on_read(&self) -> bool {
        true
    }

    fn serves_as_stored(&self, written: Revision) -> bool {
        self.family.serves_as_stored(written)
    }

    fn on_read(&self, object: &mut Value) {
        self.family.serve_now(object, self.this());
    }

    fn items_carry_type(&self) -> bool {
        true
    }

    fn scale(&self) -> Option<ScalePaths> {
        self.scale.as_ref().map(|scale| scale.pointers.clone())
    }

    fn drop_status(&self, object: &mut Value) {
        if let (StatusSubresource::Served, Some(fields)) = (self.status, object.as_object_mut()) {
            fields.remove("status");
        }
    }

    fn selectable_field_names(&self) -> &[Box<str>] {
        &self.selectable_names
    }

    fn selectable_field(&self, object: &Value, field: &str) -> String {
        let known = self.selectable.iter().find(|selectable| *selectable.name == *field);
        match known.and_then(|selectable| object.pointer(&selectable.pointer)) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }

    fn unknown_field(&self, field: &str) -> String {
        format!("field label not supported: {field}")
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = self.this().schema().validate(object);
        self.check_scale(object, &mut errors);
        self.check_rules(object, None, &mut errors);
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value) -> Findings {
        let mut errors = self.this().schema().validate_update(object, old);
        self.check_scale(object, &mut errors);
        self.check_rules(object, Some(old), &mut errors);
        Findings {
            object: Vec::new(),
            change: errors,
        }
    }

    fn validate_status_update(&self, object: &Value, old: &Value) -> Findings {
        let mut errors = self.this().schema().validate_field_update("status", object, old);
        self.check_scale(object, &mut errors);
        self.check_rules(object, Some(old), &mut errors);
        Findings {
            object: Vec::new(),
            change: errors,
        }
    }

    fn printer_columns(&self) -> Option<&[PrinterColumn]> {
        Some(&self.columns)
    }

    fn deprecation(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    fn creation_refused(&self) -> Option<&'static str> {
        match self.life {
            Life::Open => None,
            Life::Closing => Some("create not allowed while custom resource definition is terminating"),
        }
    }
}

/// What to store for an object of a resource: as it is for built-in kinds, in the storage version for custom ones.
pub(crate) async fn to_stored(resource: &ResourceType, object: &Value) -> Result<StoredValue, ApiError> {
    match resource.strategy.as_custom() {
        None if resource.strategy.changes_on_read() => {
            let mut object = object.clone();
            resource.strategy.on_store(&mut object);
            Ok(wire::to_stored(&object))
        }
        None => Ok(wire::to_stored(object)),
        Some(custom) => Ok(wire::to_stored_with_version(
            &custom.family.store(object.clone()).await?,
        )),
    }
}

/// Stored objects as a resource serves them. Where that takes a webhook, it is called once for all.
pub(crate) async fn served(resource: &ResourceType, records: &[Arc<Record>]) -> Result<Vec<Value>, ApiError> {
    match resource.strategy.as_custom() {
        Some(custom) if !custom.family.converts_at_once() => {
            let stored = records.iter().map(|record| custom.stored_object(record)).collect();
            custom.family.serve(stored, custom.this()).await
        }
        _ => Ok(records.iter().map(|record| served_now(resource, record)).collect()),
    }
}

/// A stored object as a resource serves it. Not for kinds whose conversion takes a webhook: theirs come as they are
/// stored, under the version that they are stored in.
pub(crate) fn served_now(resource: &ResourceType, record: &Record) -> Value {
    if let Some(custom) = resource.strategy.as_custom() {
        let mut object = custom.stored_object(record);
        if custom.family.converts_at_once() {
            custom.family.serve_now(&mut object, custom.this());
        }
        return object;
    }
    let mut object = wire::from_stored(record.value(), &resource.gvk.api_version(), &resource.gvk.kind);
    if resource.strategy.changes_on_read() {
        resource.strategy.on_read(&mut object);
    }
    object
}

/// Whether a stored object has the fields that are asked for, as a resource serves it. What a webhook would have to
/// convert is judged as it is stored.
pub(crate) fn matches_fields(resource: &ResourceType, object: &Value, fields: &FieldSelector) -> bool {
    let metadata = &object["metadata"];
    let strategy = &resource.strategy;
    let names = strategy.selectable_field_names().iter();
    let values: Vec<(&str, String)> = names
        .map(|name| (&**name, strategy.selectable_field(object, name)))
        .collect();
    fields.matches_with(|field| match field {
        "metadata.name" => metadata["name"].as_str(),
        "metadata.namespace" => metadata["namespace"].as_str(),
        field => values
            .iter()
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value.as_str()),
    })
}

#[cfg(test)]
mod tests {
    use moorline_store::{Attributes, Key, Options, Store};
    use serde_json::json;

    use super::*;
    use crate::custom::{
        conversion::Conversion,
        kinds::{resources, storage},
    };

    fn resource(change: impl FnOnce(&mut Value)) -> Arc<ResourceType> {
        let mut definition = json!({
            "spec": { "group": "example.com", "scope": "Namespaced", "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": {
                        "engine": { "type": "string", "enum": ["postgres", "mysql"], "default": "postgres" },
                        "replicas": {
                            "type": "integer",
                            "x-kubernetes-validations": [{ "rule": "self >= oldSelf", "message": "only up" }],
                        },
                    }},
                }}},
                "subresources": { "status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                }},
                "selectableFields": [{ "jsonPath": ".spec.engine" }, { "jsonPath": ".spec.replicas" }],
                "additionalPrinterColumns": [{ "name": "Engine", "type": "string", "jsonPath": ".spec.engine" }],
            }]},
            "status": { "acceptedNames": {
                "plural": "databases", "singular": "database", "kind": "Database", "listKind": "DatabaseList",
            }},
        });
        change(&mut definition["spec"]["versions"][0]);
        let family = Family::of(&definition, "Database", Conversion::TypeOnly, Revision::new(1)).unwrap();
        resources(&definition, &Arc::new(family), Life::Open).remove(0)
    }

    fn object(spec: &Value) -> Value {
        json!({ "apiVersion": "example.com/v1", "kind": "Database", "metadata": { "name": "d" }, "spec": spec })
    }

    fn said(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_wait_until_the_object_has_the_shape_that_they_rely_on() {
        let strategy = &resource(|_| {}).strategy;
        assert_eq!(
            said(&strategy.validate(&object(&json!({ "engine": "oracle" })))),
            [
                "spec.engine: Unsupported value: \"oracle\": supported values: \"postgres\", \"mysql\"",
                "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
                 correct the existing errors to complete validation",
            ]
        );
    }

    #[test]
    fn a_change_is_held_against_rules_about_what_was_before() {
        let strategy = &resource(|_| {}).strategy;
        let (two, three) = (object(&json!({ "replicas": 2 })), object(&json!({ "replicas": 3 })));
        assert_eq!(strategy.validate_update(&three, &two).change, Vec::new());
        assert_eq!(
            said(&strategy.validate_update(&two, &three).change),
            ["spec.replicas: Invalid value: 2: only up"]
        );
    }

    #[test]
    fn a_scale_is_a_small_number() {
        let strategy = &resource(|_| {}).strategy;
        assert_eq!(
            said(&strategy.validate(&object(&json!({ "replicas": -1 })))),
            [".spec.replicas: Invalid value: -1: should be a non-negative integer"]
        );
        assert_eq!(
            said(&strategy.validate(&object(&json!({ "replicas": 1_i64 << 40 })))),
            [".spec.replicas: Invalid value: 1099511627776: should be less than or equal to 2147483647"]
        );
    }

    #[test]
    fn what_raises_the_generation_depends_on_who_writes_the_status() {
        let with_status = resource(|_| {});
        assert_eq!(with_status.strategy.generation(), Generation::ButStatus);
        assert_eq!(with_status.subresources.len(), 2);
        let without = resource(|version| version["subresources"] = Value::Null);
        assert_eq!(without.strategy.generation(), Generation::ButMetadata);
        assert!(without.subresources.is_empty() && without.strategy.scale().is_none());
    }

    #[test]
    fn a_deprecated_version_names_a_better_one() {
        let warning = |change: fn(&mut Value)| resource(change).strategy.deprecation().map(str::to_owned);
        assert_eq!(warning(|_| {}), None);
        assert_eq!(
            warning(|version| version["deprecated"] = true.into()).as_deref(),
            Some("example.com/v1 Database is deprecated")
        );
        let own = warning(|version| {
            version["deprecated"] = true.into();
            version["deprecationWarning"] = "gone soon".into();
        });
        assert_eq!(own.as_deref(), Some("gone soon"));
    }

    #[tokio::test]
    async fn objects_are_stored_with_their_version_and_selected_by_their_fields() {
        let resource = resource(|_| {});
        let store = Store::memory(Options::default(), |_: &Key, _: &[u8]| Attributes::default());
        let key = Key::new(&storage("example.com", "databases"), "n", "d");
        let value = to_stored(&resource, &object(&json!({ "replicas": 2, "unknown": 1 })))
            .await
            .unwrap();
        let record = store.create(key, value).wait().unwrap().into_record();
        assert_eq!(wire::stored_version(record.value()), Some("example.com/v1"));
        let served = served(&resource, std::slice::from_ref(&record)).await.unwrap();
        assert_eq!(served[0]["spec"], json!({ "replicas": 2, "engine": "postgres" }));
        for (selector, matches) in [
            ("spec.engine=postgres", true),
            ("spec.engine=postgres,spec.replicas=2", true),
            ("spec.replicas!=2", false),
            ("metadata.name=d,spec.engine=mysql", false),
        ] {
            let selector: FieldSelector = selector.parse().unwrap();
            assert_eq!(
                matches_fields(&resource, &served[0], &selector),
                matches,
                "{selector:?}"
            );
        }
    }
}

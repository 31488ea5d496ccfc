//! What is particular to a custom kind in one of its versions.

use std::sync::Arc;

use moorline_machinery::{
    field::{ErrorKind, FieldError, Path},
    meta::{Generation, UnversionedUpdate},
    status::ApiError,
};
use moorline_store::{Record, Revision, Value as StoredValue};
use serde_json::{Value, json};

use super::{
    family::{Family, Version},
    go_type,
};
use crate::{
    resource::ResourceType,
    strategy::{ScalePaths, Strategy},
    wire,
};

/// One version of a custom kind.
pub struct CustomKind {
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
pub struct PrinterColumn {
    /// Its title.
    pub name: String,
    /// The type of its values, such as `integer` or `date`.
    pub kind: String,
    /// How values of the type are to be read; may be empty.
    pub format: String,
    /// What it shows; may be empty.
    pub description: String,
    /// Above zero only in wide tables.
    pub priority: i64,
    /// Where its values are found, such as `.spec.replicas`.
    pub json_path: String,
}

impl PrinterColumn {
    /// As it is written in a definition.
    pub fn to_value(&self) -> Value {
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

    fn this(&self) -> &Version {
        self.family.version(&self.version).expect("a kind is made for a version that its family has")
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
        for (path, pointer) in [(&scale.spec_path, &scale.pointers.spec), (&scale.status_path, &scale.pointers.status)]
        {
            let found = object.pointer(pointer).filter(|value| !value.is_null());
            let Some(number) = found else { continue };
            let (shown, detail) = match number.as_i64() {
                None => (0, format!("{path} accessor error: {number} is of the type {}, expected int64", go_type(number))),
                Some(number) if number < 0 => (number, "should be a non-negative integer".to_owned()),
                Some(number) if number > i64::from(i32::MAX) => {
                    (number, format!("should be less than or equal to {}", i32::MAX))
                }
                Some(_) => continue,
            };
            errors.push(FieldError::invalid(&Path::root(path), shown, detail));
        }
        if let (Some(path), Some(pointer)) = (&scale.selector_path, &scale.pointers.selector)
            && let Some(other) = object.pointer(pointer).filter(|value| !value.is_string() && !value.is_null())
        {
            let detail = format!("{path} accessor error: {other} is of the type {}, expected string", go_type(other));
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

    fn unknown_field(&self, field: &str, _: bool) -> String {
        format!("field label not supported: {field}")
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = self.this().schema().validate(object);
        self.check_scale(object, &mut errors);
        self.check_rules(object, None, &mut errors);
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = self.this().schema().validate_update(object, old);
        self.check_scale(object, &mut errors);
        self.check_rules(object, Some(old), &mut errors);
        errors
    }

    fn published_schema(&self) -> Option<Arc<Value>> {
        self.this().written().cloned()
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
        None => Ok(wire::to_stored(object)),
        Some(custom) => Ok(wire::to_stored_with_version(&custom.family.store(object.clone()).await?)),
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
    match resource.strategy.as_custom() {
        Some(custom) => {
            let mut object = custom.stored_object(record);
            if custom.family.converts_at_once() {
                custom.family.serve_now(&mut object, custom.this());
            }
            object
        }
        None => {
            let mut object = wire::from_stored(record.value(), &resource.gvk.api_version(), &resource.gvk.kind);
            if resource.strategy.changes_on_read() {
                resource.strategy.on_read(&mut object);
            }
            object
        }
    }
}

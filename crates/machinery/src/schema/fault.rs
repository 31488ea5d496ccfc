//! Field errors for fields whose path is text: the checks of schemas compose paths that are no paths of an object.

use serde_json::Value;

use crate::field::{ErrorKind, FieldError, quote};

pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    new(ErrorKind::Required, field, None, detail)
}

pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    new(ErrorKind::Forbidden, field, None, detail)
}

pub(crate) fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
    new(ErrorKind::Invalid, field, Some(value.into()), detail)
}

pub(crate) fn type_invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
    new(ErrorKind::TypeInvalid, field, Some(value.into()), detail)
}

pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> FieldError {
    new(ErrorKind::Duplicate, field, Some(value.into()), "")
}

pub(crate) fn not_supported<S: AsRef<str>>(
    field: impl Into<String>,
    value: impl Into<Value>,
    supported: impl IntoIterator<Item = S>,
) -> FieldError {
    let supported: Vec<_> = supported.into_iter().map(|value| quote(value.as_ref())).collect();
    let detail = format!("supported values: {}", supported.join(", "));
    new(ErrorKind::NotSupported, field, Some(value.into()), detail)
}

pub(crate) fn too_long(field: impl Into<String>, max: u64) -> FieldError {
    let unit = if max == 1 { "byte" } else { "bytes" };
    new(
        ErrorKind::TooLong,
        field,
        None,
        format!("may not be more than {max} {unit}"),
    )
}

pub(crate) fn too_many(field: impl Into<String>, actual: usize, max: u64) -> FieldError {
    let unit = if max == 1 { "item" } else { "items" };
    new(
        ErrorKind::TooMany,
        field,
        Some(actual.into()),
        format!("must have at most {max} {unit}"),
    )
}

pub(crate) fn new(
    kind: ErrorKind,
    field: impl Into<String>,
    value: Option<Value>,
    detail: impl Into<String>,
) -> FieldError {
    FieldError {
        kind,
        field: field.into(),
        value,
        detail: detail.into(),
    }
}

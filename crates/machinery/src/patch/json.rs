//! JSON patch, RFC 6902, with the limits of an API server.

use json_patch::jsonptr::Pointer;
use json_patch::{AddOperation, PatchErrorKind, PatchOperation};
use serde_json::Value;

use super::PatchError;
use crate::decode::json_type;

/// A patch of more operations is refused.
pub const MAX_OPERATIONS: usize = 10_000;

/// Copies may add this many bytes in total: a patch of a few lines could otherwise double a document without end.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// A document may be nested this deep. Deeper ones cannot come in as JSON, only be built by moves and copies.
const MAX_DEPTH: usize = 256;

/// Applies `patch` to `document`, which is left half patched when it fails.
pub fn json_patch(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        Value::Null => &[],
        other => {
            return Err(PatchError::Malformed(format!(
                "error decoding patch: json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp",
                json_type(other)
            )));
        }
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations(operations.len()));
    }
    let mut copied = 0;
    for json in operations {
        let operation = lenient(document, decode(json)?);
        guard(document, &operation, &mut copied)?;
        if tests_absence(document, &operation) {
            continue;
        }
        json_patch::patch(document, std::slice::from_ref(&operation))
            .map_err(|error| inapplicable(&operation, &error))?;
    }
    Ok(())
}

/// A replacement of a member that an object does not have adds it: API servers never held that part of the RFC, and
/// `kubectl rollout undo` counts on it. Nor did they hold that what is copied must be there: a member that an object
/// does not have is copied as null.
fn lenient(document: &Value, operation: PatchOperation) -> PatchOperation {
    match operation {
        PatchOperation::Replace(replace)
            if (replace.path.parent())
                .is_some_and(|parent| resolve(document, parent).is_some_and(Value::is_object)) =>
        {
            PatchOperation::Add(AddOperation {
                path: replace.path,
                value: replace.value,
            })
        }
        PatchOperation::Copy(copy)
            if resolve(document, &copy.from).is_none()
                && (copy.from.parent())
                    .is_some_and(|parent| resolve(document, parent).is_some_and(Value::is_object)) =>
        {
            PatchOperation::Add(AddOperation {
                path: copy.path,
                value: Value::Null,
            })
        }
        other => other,
    }
}

fn decode(json: &Value) -> Result<PatchOperation, PatchError> {
    let malformed = |found: &Value, wanted: &str| {
        PatchError::Malformed(format!(
            "error decoding patch: json: cannot unmarshal {} into Go {wanted}",
            json_type(found)
        ))
    };
    if !matches!(json, Value::Object(_) | Value::Null) {
        return Err(malformed(json, "value of type handlers.jsonPatchOp"));
    }
    for name in ["op", "path", "from"] {
        match json.get(name) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => {
                let wanted = format!("struct field jsonPatchOp.{name} of type string");
                return Err(malformed(other, &wanted));
            }
        }
    }
    let op = json.get("op").and_then(Value::as_str).unwrap_or("unknown");
    if !matches!(op, "add" | "remove" | "replace" | "move" | "copy" | "test") {
        return Err(PatchError::Inapplicable(format!("Unexpected kind: {op}")));
    }
    serde_json::from_value(json.clone())
        .map_err(|error| PatchError::Inapplicable(format!("{op} operation failed to decode: {error}")))
}

/// Refuses what would make the document too large or too deep.
fn guard(document: &Value, operation: &PatchOperation, copied: &mut usize) -> Result<(), PatchError> {
    let (path, value) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Move(from) => (&from.path, resolve(document, &from.from)),
        PatchOperation::Copy(from) => (&from.path, resolve(document, &from.from)),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    let Some(value) = value else { return Ok(()) };
    if matches!(operation, PatchOperation::Copy(_)) {
        *copied = copied.saturating_add(value.to_string().len());
        if *copied > MAX_COPIED_BYTES {
            return Err(PatchError::Inapplicable(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
            )));
        }
    }
    if path.tokens().count() + depth(value) > MAX_DEPTH {
        return Err(PatchError::Inapplicable(format!(
            "the document would be nested deeper than {MAX_DEPTH} levels"
        )));
    }
    Ok(())
}

fn resolve<'a>(document: &'a Value, pointer: &Pointer) -> Option<&'a Value> {
    document.pointer(pointer.as_str())
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// A test for null holds where there is nothing.
fn tests_absence(document: &Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Test(test) = operation else {
        return false;
    };
    if !test.value.is_null() || resolve(document, &test.path).is_some() {
        return false;
    }
    test.path
        .parent()
        .is_some_and(|parent| resolve(document, parent).is_some_and(Value::is_object))
}

fn inapplicable(operation: &PatchOperation, error: &json_patch::PatchError) -> PatchError {
    let path = operation.path().as_str();
    let text = match (operation, &error.kind) {
        (PatchOperation::Test(_), PatchErrorKind::TestFailed) => format!("testing value {path} failed: test failed"),
        (PatchOperation::Test(_), _) => format!("testing value {path} failed: missing value"),
        (PatchOperation::Add(_), _) => {
            format!("add operation does not apply: doc is missing path: \"{path}\": missing value")
        }
        (PatchOperation::Remove(_), _) => {
            format!("remove operation does not apply: doc is missing path: \"{path}\": missing value")
        }
        (PatchOperation::Replace(_), _) => {
            format!("replace operation does not apply: doc is missing key: {path}: missing value")
        }
        (PatchOperation::Move(from), _) => {
            format!(
                "move operation does not apply: doc is missing from path: {}: missing value",
                from.from
            )
        }
        (PatchOperation::Copy(from), _) => {
            format!(
                "copy operation does not apply: doc is missing from path: {}: missing value",
                from.from
            )
        }
    };
    PatchError::Inapplicable(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{MAX_OPERATIONS, json_patch};

    fn patched(document: &Value, patch: &Value) -> Result<Value, (u16, String)> {
        let mut document = document.clone();
        json_patch(&mut document, patch)
            .map(|()| document)
            .map_err(|error| (error.code(), error.to_string()))
    }

    #[test]
    fn every_operation_applies() {
        let document = json!({"a": {"b": 1}, "list": [1, 2, 3], "x/y": 1});
        for (patch, expected) in [
            (
                json!({"op": "add", "path": "/a/c", "value": 2}),
                json!({"a": {"b": 1, "c": 2}, "list": [1, 2, 3], "x/y": 1}),
            ),
            (
                json!({"op": "add", "path": "/list/-", "value": 4}),
                json!({"a": {"b": 1}, "list": [1, 2, 3, 4], "x/y": 1}),
            ),
            (
                json!({"op": "add", "path": "/list/0", "value": 0}),
                json!({"a": {"b": 1}, "list": [0, 1, 2, 3], "x/y": 1}),
            ),
            (
                json!({"op": "remove", "path": "/x~1y"}),
                json!({"a": {"b": 1}, "list": [1, 2, 3]}),
            ),
            (
                json!({"op": "replace", "path": "/a", "value": null}),
                json!({"a": null, "list": [1, 2, 3], "x/y": 1}),
            ),
            (
                json!({"op": "move", "from": "/a/b", "path": "/c"}),
                json!({"a": {}, "list": [1, 2, 3], "x/y": 1, "c": 1}),
            ),
            (
                json!({"op": "copy", "from": "/a", "path": "/c"}),
                json!({"a": {"b": 1}, "list": [1, 2, 3], "x/y": 1, "c": {"b": 1}}),
            ),
            (
                json!({"op": "replace", "path": "/a/c", "value": 2}),
                json!({"a": {"b": 1, "c": 2}, "list": [1, 2, 3], "x/y": 1}),
            ),
            (json!({"op": "test", "path": "/a/b", "value": 1}), document.clone()),
            (
                json!({"op": "test", "path": "/a/none", "value": null}),
                document.clone(),
            ),
        ] {
            assert_eq!(patched(&document, &json!([patch])), Ok(expected), "{patch}");
        }
    }

    #[test]
    fn what_does_not_apply_is_told_with_its_code() {
        let document = json!({"a": {"b": 1}, "list": [1]});
        for (patch, code, text) in [
            (
                json!([{"op": "test", "path": "/a/b", "value": 2}]),
                422,
                "testing value /a/b failed: test failed",
            ),
            (
                json!([{"op": "test", "path": "/x/y", "value": null}]),
                422,
                "testing value /x/y failed: missing value",
            ),
            (
                json!([{"op": "remove", "path": "/x"}]),
                422,
                "remove operation does not apply: doc is missing path: \"/x\": missing value",
            ),
            (
                json!([{"op": "replace", "path": "/list/9", "value": 1}]),
                422,
                "replace operation does not apply: doc is missing key: /list/9: missing value",
            ),
            (
                json!([{"op": "add", "path": "/x/y", "value": 1}]),
                422,
                "add operation does not apply: doc is missing path: \"/x/y\": missing value",
            ),
            (
                json!([{"op": "add", "path": "/list/9", "value": 1}]),
                422,
                "add operation does not apply: doc is missing path: \"/list/9\": missing value",
            ),
            (
                json!([{"op": "copy", "from": "/x/z", "path": "/y"}]),
                422,
                "copy operation does not apply: doc is missing from path: /x/z: missing value",
            ),
            (json!([{"op": "fly", "path": "/x"}]), 422, "Unexpected kind: fly"),
            (json!([{"path": "/x"}]), 422, "Unexpected kind: unknown"),
            (
                json!({"op": "add"}),
                400,
                "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
            ),
            (
                json!([1]),
                400,
                "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
            ),
        ] {
            assert_eq!(patched(&document, &patch), Err((code, text.to_owned())), "{patch}");
        }
        let bad_pointer = patched(&document, &json!([{"op": "add", "path": "a", "value": 1}])).unwrap_err();
        assert_eq!(bad_pointer.0, 422);
    }

    #[test]
    fn a_patch_has_a_bounded_number_of_operations() {
        let patch = |count: usize| Value::Array(vec![json!({"op": "test", "path": "/a", "value": 1}); count]);
        assert!(patched(&json!({"a": 1}), &patch(MAX_OPERATIONS)).is_ok());
        assert_eq!(
            patched(&json!({"a": 1}), &patch(MAX_OPERATIONS + 1)),
            Err((
                413,
                "The allowed maximum operations in a JSON patch is 10000, got 10001".to_owned()
            ))
        );
    }

    #[test]
    fn copies_cannot_make_a_document_grow_without_end() {
        let wide = json!({"a": "x".repeat(1024), "l": []});
        let copies = vec![json!({"op": "copy", "from": "", "path": "/l/-"}); 40];
        let (code, text) = patched(&wide, &Value::Array(copies)).unwrap_err();
        assert_eq!(code, 422);
        assert!(
            text.contains("exceeding the limit") || text.contains("nested deeper"),
            "{text}"
        );
        let deep = vec![json!({"op": "copy", "from": "", "path": "/a"}); 5000];
        let (code, text) = patched(&json!({"a": null}), &Value::Array(deep)).unwrap_err();
        assert_eq!(
            (code, text.as_str()),
            (422, "the document would be nested deeper than 256 levels")
        );
    }
}

//! JSON merge patch, RFC 7386.

use serde_json::Value;

use super::PatchError;
use crate::decode::json_type;

/// Merges `patch` into `document`: null removes, objects are merged, everything else replaces.
pub fn merge_patch(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    match patch {
        Value::Object(_) => {}
        Value::Null => return Err(PatchError::Malformed("Invalid JSON Patch".to_owned())),
        other => {
            return Err(PatchError::Malformed(format!(
                "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                json_type(other)
            )));
        }
    }
    json_patch::merge(document, patch);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::merge_patch;

    #[test]
    fn nulls_remove_objects_merge_and_the_rest_replaces() {
        for (document, patch, expected) in [
            (json!({"a": 1}), json!({"a": 2}), json!({"a": 2})),
            (json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2})),
            (
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": null, "d": 3}}),
                json!({"a": {"c": 2, "d": 3}}),
            ),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (
                json!({}),
                json!({"a": {"b": null, "c": {"d": null}}}),
                json!({"a": {"c": {}}}),
            ),
            (json!({"a": "x"}), json!({"a": {"b": 1}}), json!({"a": {"b": 1}})),
        ] {
            let mut document = document;
            merge_patch(&mut document, &patch).unwrap();
            assert_eq!(document, expected);
        }
    }

    #[test]
    fn a_patch_that_is_no_object_is_malformed() {
        let error = merge_patch(&mut json!({}), &json!([])).unwrap_err();
        assert_eq!(error.code(), 400);
    }
}

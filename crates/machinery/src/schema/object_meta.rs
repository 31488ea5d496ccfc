//! The schema of `metadata`, which custom kinds do not spell out but every object has.

use serde_json::{Value, json};

/// Names, types and list types of the fields of an object's metadata.
pub(crate) fn schema() -> Value {
    let text = || json!({"type": "string"});
    let texts = || json!({"type": "object", "additionalProperties": {"type": "string"}});
    json!({
        "type": "object",
        "properties": {
            "name": text(),
            "generateName": text(),
            "namespace": text(),
            "selfLink": text(),
            "uid": text(),
            "resourceVersion": text(),
            "generation": {"type": "integer", "format": "int64"},
            "creationTimestamp": {"type": "string", "format": "date-time", "nullable": true},
            "deletionTimestamp": {"type": "string", "format": "date-time", "nullable": true},
            "deletionGracePeriodSeconds": {"type": "integer", "format": "int64", "nullable": true},
            "labels": texts(),
            "annotations": texts(),
            "finalizers": {
                "type": "array", "items": text(), "x-kubernetes-list-type": "set",
                "x-kubernetes-patch-strategy": "merge",
            },
            "ownerReferences": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["uid"],
                "x-kubernetes-patch-strategy": "merge",
                "x-kubernetes-patch-merge-key": "uid",
                "items": {
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "required": ["apiVersion", "kind", "name", "uid"],
                    "properties": {
                        "apiVersion": text(), "kind": text(), "name": text(), "uid": text(),
                        "controller": {"type": "boolean"}, "blockOwnerDeletion": {"type": "boolean"},
                    },
                },
            },
            "managedFields": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "properties": {
                        "manager": text(), "operation": text(), "apiVersion": text(),
                        "time": {"type": "string", "format": "date-time", "nullable": true},
                        "fieldsType": text(), "subresource": text(),
                        "fieldsV1": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    },
                },
            },
        },
    })
}

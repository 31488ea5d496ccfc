#![expect(clippy::needless_pass_by_value, reason = "tables read better with values")]

use serde_json::{Value, json};

use super::check_structural;

const AT: &str = "spec.validation.openAPIV3Schema";

fn faults(schema: &Value) -> Vec<String> {
    check_structural(schema, AT)
        .iter()
        .map(|error| error.to_string().replace(AT, ""))
        .collect()
}

fn with(property: Value) -> Value {
    json!({"type": "object", "properties": {"x": property}})
}

#[test]
fn what_is_not_structural_is_told() {
    for (schema, expected) in [
        (json!({}), vec![".type: Required value: must not be empty at the root"]),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            vec![".type: Invalid value: \"array\": must be object at the root"],
        ),
        (
            with(json!({})),
            vec![".properties[x].type: Required value: must not be empty for specified object fields"],
        ),
        (
            with(json!({"type": "array"})),
            vec![".properties[x].items: Required value: must be specified"],
        ),
        (
            with(json!({"type": "array", "items": {}})),
            vec![".properties[x].items.type: Required value: must not be empty for specified array items"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            vec![".additionalProperties: Forbidden: must not be used at the root"],
        ),
        (
            with(json!({"type": "string", "anyOf": [{"type": "string"}]})),
            vec![".properties[x].anyOf[0].type: Forbidden: must be empty to be structural"],
        ),
        (
            with(json!({"type": "object", "allOf": [{"properties": {"y": {"minimum": 1}}}]})),
            vec![],
        ),
        (
            json!({"type": "object", "allOf": [{"properties": {"y": {"minimum": 1}}}]}),
            vec![".properties[y]: Required value: because it is defined in .allOf[0].properties[y]"],
        ),
        (
            with(json!({"type": "string", "not": {"default": "x", "nullable": true, "description": "d"}})),
            vec![
                ".properties[x].not.default: Forbidden: must be undefined to be structural",
                ".properties[x].not.description: Forbidden: must be empty to be structural",
                ".properties[x].not.nullable: Forbidden: must be false to be structural",
            ],
        ),
        (with(json!({"type": "string", "pattern": "("})), vec![]),
        (
            with(json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true})),
            vec![
                ".properties[x].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
            ],
        ),
        (
            with(json!({"x-kubernetes-embedded-resource": true})),
            vec![
                ".properties[x].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
                ".properties[x].type: Required value: must be object if x-kubernetes-embedded-resource is true",
            ],
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            vec![
                ".properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        ),
        (
            json!({"type": "object", "properties": {"kind": {"type": "integer"}}}),
            vec![".properties[kind].type: Invalid value: \"integer\": must be string"],
        ),
    ] {
        let found = faults(&schema);
        if schema["properties"]["x"]["pattern"] == json!("(") {
            assert!(
                found[0].starts_with(
                    ".properties[x].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: "
                ),
                "{found:?}"
            );
        } else {
            assert_eq!(found, expected, "{schema}");
        }
    }
}

#[test]
fn a_sound_schema_passes() {
    let schema = json!({
        "type": "object", "description": "d", "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}}},
            "spec": {"type": "object", "properties": {
                "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "size": {"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "^1"}]},
                "free": {"x-kubernetes-preserve-unknown-fields": true},
                "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
                "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
                    "items": {"type": "object", "required": ["a"], "properties": {
                        "a": {"type": "string"}, "b": {"type": "string", "default": "TCP"},
                        "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}}},
                "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
            }, "x-kubernetes-validations": [
                {"rule": "has(self.mode) && self.list.all(i, i.a != '')", "message": "m", "fieldPath": ".mode", "reason": "FieldValueRequired"},
                {"rule": "self.?mode.orValue('x') != 'y'", "messageExpression": "'mode is ' + self.mode"},
            ]},
        },
    });
    assert_eq!(faults(&schema), [""; 0]);
}

#[test]
fn keywords_are_limited() {
    for (property, expected) in [
        (
            json!({"type": "strin"}),
            ".type: Unsupported value: \"strin\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            ".uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            json!({"type": "string", "$ref": "#/x"}),
            ".$ref: Forbidden: $ref is not supported",
        ),
        (
            json!({"type": "object", "patternProperties": {"a": {}}}),
            ".patternProperties: Forbidden: patternProperties is not supported",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false}),
            ".additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
            ".x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
        ),
        (
            json!({"type": "string", "x-kubernetes-map-type": "atomic"}),
            ".type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
        ),
        (
            json!({"type": "object", "x-kubernetes-map-type": "x"}),
            ".x-kubernetes-map-type: Unsupported value: \"x\": supported values: \"atomic\", \"granular\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "x"}),
            ".x-kubernetes-list-type: Unsupported value: \"x\": supported values: \"atomic\", \"set\", \"map\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-map-keys": ["a"]}),
            ".x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
        ),
        (
            json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}),
            ".x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
            ".x-kubernetes-list-map-keys: Invalid value: [\"a\"]: entries must all be names of item properties",
        ),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
            ".items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ),
        (
            json!({"type": "array", "items": {"type": "string", "nullable": true}, "x-kubernetes-list-type": "set"}),
            ".items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set",
        ),
        (
            json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"}),
            ".items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ),
    ] {
        assert_eq!(
            faults(&with(property.clone())),
            [format!(".properties[x]{expected}")],
            "{property}"
        );
    }
    assert_eq!(
        faults(&json!({"type": "object", "properties": {"kind": {"type": "string", "default": "x"}}})),
        [".properties[kind].default: Forbidden: must not be set in top-level kind"]
    );
    assert_eq!(
        faults(&json!({"type": "object", "nullable": true})),
        [".nullable: Forbidden: nullable cannot be true at the root"]
    );
}

#[test]
fn a_default_must_be_valid_and_pruned() {
    for (property, expected) in [
        (
            json!({"type": "string", "default": 1}),
            ".default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
        ),
        (
            json!({"type": "string", "enum": ["a"], "default": "b"}),
            ".default: Unsupported value: \"b\": supported values: \"a\"",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"b": 1}}),
            ".default: Invalid value: {\"b\":1}: must not have unknown fields",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"a": 1}}),
            ".default.a: Invalid value: \"integer\": a in body must be of type string: \"integer\"",
        ),
        (
            json!({"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 1", "message": "m"}]}),
            ".default: Invalid value: 1: m",
        ),
    ] {
        assert_eq!(
            faults(&with(property.clone())),
            [format!(".properties[x]{expected}")],
            "{property}"
        );
    }
}

#[test]
fn rules_are_compiled_when_they_are_written() {
    let rule = |rule: Value| {
        with(json!({"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [rule]}))
    };
    let at = ".properties[x].x-kubernetes-validations[0]";
    for (json, start) in [
        (json!({"rule": " "}), ".rule: Required value: rule is not specified"),
        (
            json!({"rule": "self.a ==", "message": "m"}),
            ".rule: Invalid value: {\"message\":\"m\",\"rule\":\"self.a ==\"}: compilation failed: ERROR: Syntax error",
        ),
        (
            json!({"rule": "self.b == ''"}),
            ".rule: Invalid value: {\"rule\":\"self.b == ''\"}: compilation failed: ERROR: undefined field 'b'",
        ),
        (
            json!({"rule": "self.a"}),
            ".rule: Invalid value: {\"rule\":\"self.a\"}: compilation failed: ERROR: must evaluate to bool",
        ),
        (
            json!({"rule": "other.a == ''"}),
            ".rule: Invalid value: {\"rule\":\"other.a == ''\"}: compilation failed: ERROR: undeclared reference to 'other'",
        ),
        (
            json!({"rule": "true", "messageExpression": "nope"}),
            ".messageExpression: Invalid value",
        ),
        (
            json!({"rule": "true", "message": "a\nb"}),
            ".message: Invalid value: \"a\\nb\": must not contain line breaks",
        ),
        (
            json!({"rule": "true ||\n false"}),
            ".message: Required value: message must be specified if rule contains line breaks",
        ),
        (
            json!({"rule": "true", "reason": "x"}),
            ".reason: Unsupported value: \"x\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
        ),
        (
            json!({"rule": "true", "fieldPath": ".nope"}),
            ".fieldPath: Invalid value: \".nope\": must be a valid path",
        ),
        (
            json!({"rule": "true", "fieldPath": "a"}),
            ".fieldPath: Invalid value: \"a\": must be a valid path",
        ),
        (
            json!({"rule": "true", "optionalOldSelf": true}),
            ".optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
        ),
    ] {
        let found = faults(&rule(json.clone()));
        assert_eq!(found.len(), 1, "{json}: {found:?}");
        assert!(found[0].starts_with(&format!("{at}{start}")), "{json}: {found:?}");
    }
}

#[test]
fn the_old_self_is_refused_where_items_have_none() {
    let schema = with(
        json!({"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}),
    );
    assert_eq!(
        faults(&schema),
        [
            ".properties[x].items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within .properties[x]"
        ]
    );
}

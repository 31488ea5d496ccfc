#![expect(clippy::needless_pass_by_value, reason = "tables read better with values")]

use serde_json::{Value, json};

use super::{Definitions, Schema};

fn lines(schema: &Value, object: &Value) -> Vec<String> {
    Schema::custom_resource(schema)
        .unwrap()
        .validate(object)
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn field(schema: Value, value: Value) -> Vec<String> {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": schema}}}});
    lines(&schema, &json!({"spec": {"x": value}}))
}

#[test]
fn a_number_that_is_no_integer_is_told_of_twice() {
    assert_eq!(
        field(json!({"type": "integer"}), json!(1.5)),
        [
            "spec.x: Invalid value: \"number\": spec.x in body must be of type integer: \"number\"",
            "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.x",
        ]
    );
}

#[test]
fn each_check_says_what_an_api_server_says() {
    for (schema, value, line) in [
        (
            json!({"type": "integer"}),
            json!("abc"),
            "Invalid value: \"string\": spec.x in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "string"}),
            json!(1),
            "Invalid value: \"integer\": spec.x in body must be of type string: \"integer\"",
        ),
        (
            json!({"type": "string"}),
            json!(null),
            "Invalid value: \"null\": spec.x in body must be of type string: \"null\"",
        ),
        (
            json!({"type": "object"}),
            json!([]),
            "Invalid value: \"array\": spec.x in body must be of type object: \"array\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!({}),
            "Invalid value: \"object\": spec.x in body must be of type array: \"object\"",
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(true),
            "Invalid value: \"\": spec.x in body must be of type int32: \"\"",
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!(3),
            "Invalid value: \"int64\": spec.x in body must be of type date-time: \"int64\"",
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("x"),
            "Invalid value: \"x\": spec.x in body must be of type date-time: \"x\"",
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            "Invalid value: \"boolean\": spec.x in body must be of type integer,string: \"boolean\"",
        ),
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            "Invalid value: 0: spec.x in body should be greater than or equal to 1",
        ),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
            json!(1),
            "Invalid value: 1: spec.x in body should be greater than 1",
        ),
        (
            json!({"type": "integer", "maximum": 2_000_000}),
            json!(2_000_001),
            "Invalid value: 2000001: spec.x in body should be less than or equal to 2000000",
        ),
        (
            json!({"type": "number", "maximum": 2, "exclusiveMaximum": true}),
            json!(2.0),
            "Invalid value: 2: spec.x in body should be less than 2",
        ),
        (
            json!({"type": "integer", "multipleOf": 3}),
            json!(4),
            "Invalid value: 4: spec.x in body should be a multiple of 3",
        ),
        (
            json!({"type": "string", "maxLength": 5}),
            json!("123456"),
            "Too long: may not be more than 5 bytes",
        ),
        (
            json!({"type": "string", "minLength": 1}),
            json!(""),
            "Invalid value: \"\": spec.x in body should be at least 1 chars long",
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            "Invalid value: \"b\": spec.x in body should match '^a+$'",
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            "Unsupported value: \"c\": supported values: \"a\", \"b\"",
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!(3),
            "Unsupported value: 3: supported values: \"1\", \"2\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            json!([]),
            "Invalid value: 0: spec.x in body should have at least 1 items",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            "Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            "Invalid value: 0: spec.x in body should have at least 1 properties",
        ),
        (
            json!({"type": "object", "maxProperties": 1}),
            json!({"a": 1, "b": 2}),
            "Too many: 2: must have at most 1 item",
        ),
    ] {
        assert_eq!(
            field(schema.clone(), value.clone()),
            [format!("spec.x: {line}")],
            "{schema} on {value}"
        );
    }
}

#[test]
fn values_that_fit_pass() {
    for (schema, value) in [
        (json!({"type": "integer"}), json!(2.0)),
        (json!({"type": "number"}), json!(2)),
        (json!({"type": "string", "nullable": true}), json!(null)),
        (json!({"x-kubernetes-int-or-string": true}), json!("1")),
        (json!({"x-kubernetes-int-or-string": true}), json!(1)),
        (json!({"type": "string", "maxLength": 2}), json!("éé")),
        (json!({"type": "string", "format": "unknown"}), json!("x")),
        (json!({"type": "number", "enum": [1.0]}), json!(1)),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3)),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({"a": {"b": []}}),
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^1"}),
            json!("1x"),
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^1"}),
            json!(7),
        ),
    ] {
        assert_eq!(field(schema.clone(), value.clone()), [""; 0], "{schema} on {value}");
    }
}

#[test]
fn all_faults_are_told_at_once_and_missing_fields_are_named() {
    let schema = json!({"type": "object", "required": ["spec"], "properties": {"spec": {
        "type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string"}, "b": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    }}}});
    assert_eq!(
        lines(
            &schema,
            &json!({"spec": {"a": 1, "list": [{}, {"n": "x"}], "map": {"k.v": "w"}}})
        ),
        [
            "spec.a: Invalid value: \"integer\": spec.a in body must be of type string: \"integer\"",
            "spec.list[0].n: Required value",
            "spec.list[1].n: Invalid value: \"string\": spec.list[1].n in body must be of type integer: \"string\"",
            "spec.map.k.v: Invalid value: \"string\": spec.map.k.v in body must be of type integer: \"string\"",
            "spec.b: Required value",
        ]
    );
    assert_eq!(lines(&schema, &json!({})), ["spec: Required value"]);
}

#[test]
fn alternatives_are_judged_as_a_whole_and_the_nearest_is_told() {
    let one = |max: i64| json!({"maximum": max});
    assert_eq!(
        field(json!({"type": "integer", "anyOf": [one(1), one(2)]}), json!(3)),
        [
            "<nil>: Invalid value: \"\": \"spec.x\" must validate at least one schema (anyOf)",
            "spec.x: Invalid value: 3: spec.x in body should be less than or equal to 1",
        ]
    );
    assert!(field(json!({"type": "integer", "anyOf": [one(1), one(2)]}), json!(2)).is_empty());
    assert_eq!(
        field(json!({"type": "integer", "oneOf": [one(1), one(2)]}), json!(1)),
        [
            "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    assert!(field(json!({"type": "integer", "oneOf": [one(1), one(2)]}), json!(2)).is_empty());
    assert_eq!(
        field(json!({"type": "integer", "allOf": [one(1), one(2)]}), json!(2)),
        [
            "spec.x: Invalid value: 2: spec.x in body should be less than or equal to 1",
            "<nil>: Invalid value: \"\": \"spec.x\" must validate all the schemas (allOf)",
        ]
    );
    assert_eq!(
        field(json!({"type": "integer", "not": one(1)}), json!(1)),
        ["<nil>: Invalid value: \"\": \"spec.x\" must not validate the schema (not)"]
    );
}

#[test]
fn int32_is_checked_for_its_range() {
    assert_eq!(
        field(json!({"type": "integer", "format": "int32"}), json!(3_000_000_000_i64)),
        ["<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.x"]
    );
}

#[test]
fn sets_and_map_lists_hold_no_item_twice() {
    let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "protocol"],
        "items": {"type": "object", "properties": {"name": {"type": "string"}, "protocol": {"type": "string"}, "set": {
            "type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}}}});
    let item = |name: &str| json!({"name": name, "protocol": "TCP"});
    assert!(field(list.clone(), json!([item("a"), item("b")])).is_empty());
    assert_eq!(
        field(list.clone(), json!([item("a"), item("b"), item("a"), item("a")])),
        ["spec.x[2]: Duplicate value: {\"name\":\"a\",\"protocol\":\"TCP\"}"]
    );
    assert_eq!(
        field(list, json!([{"name": "a", "set": ["1", "2", "1"]}])),
        ["spec.x[0].set[2]: Duplicate value: \"1\""]
    );
}

#[test]
fn an_update_is_not_blamed_for_what_was_stored_before() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "old": {"type": "string", "maxLength": 1}, "new": {"type": "string", "maxLength": 1},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}},
        "atomic": {"type": "array", "items": {"type": "string", "maxLength": 1}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    }}}});
    let schema = Schema::custom_resource(&schema).unwrap();
    let old =
        json!({"spec": {"old": "long", "list": [{"name": "a", "v": "long"}], "atomic": ["long"], "set": ["a", "a"]}});
    let update = |new: &Value| -> Vec<String> {
        schema
            .validate_update(new, &old)
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(update(&old), [""; 0]);
    assert_eq!(
        update(
            &json!({"spec": {"old": "long", "new": "long", "list": [{"name": "b", "v": "x"}, {"name": "a", "v": "long"}],
            "atomic": ["long"], "set": ["a", "a"]}})
        ),
        ["spec.new: Too long: may not be more than 1 byte"]
    );
    assert_eq!(
        update(&json!({"spec": {"list": [{"name": "a", "v": "longer"}], "atomic": ["long", "x"]}})),
        [
            "spec.atomic[0]: Too long: may not be more than 1 byte",
            "spec.list[0].v: Too long: may not be more than 1 byte"
        ]
    );
}

#[test]
fn references_are_followed_and_may_go_round() {
    let definitions = Definitions::from_map(
        json!({
            "io.Tree": {"type": "object", "properties": {
                "name": {"type": "string"},
                "kids": {"type": "array", "items": {"$ref": "#/definitions/io.Tree"}},
                "free": {"$ref": "#/definitions/io.Raw"},
                "wrapped": {"allOf": [{"$ref": "#/definitions/io.Leaf"}], "default": {}},
                "maybe": {"anyOf": [{"$ref": "#/definitions/io.Leaf"}, {"type": "null"}]},
            }},
            "io.Leaf": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}},
            "io.Raw": {"type": "object"},
        })
        .as_object()
        .unwrap()
        .clone(),
    );
    definitions.check().unwrap();
    let schema = Schema::definition("io.Tree", &definitions).unwrap();
    let mut object = json!({"name": "a", "kids": [{"kids": [{"name": 1, "odd": 1}], "wrapped": {"n": 2}, "maybe": null}], "free": {"x": 1}});
    assert_eq!(schema.prune(&mut object), ["kids[0].kids[0].odd"]);
    schema.apply_defaults(&mut object);
    assert_eq!(object["wrapped"], json!({"n": 1}));
    assert_eq!(object["kids"][0]["maybe"], json!(null));
    assert_eq!(object["free"], json!({"x": 1}));
    let errors: Vec<_> = schema.validate(&object).iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "kids[0].kids[0].name: Invalid value: \"integer\": kids[0].kids[0].name in body must be of type string: \"integer\""
        ]
    );
    assert!(Schema::definition("io.None", &definitions).is_none());
}

#[test]
fn a_schema_that_is_no_schema_is_refused() {
    assert!(Schema::custom_resource(&json!("x")).is_err());
    assert!(Schema::custom_resource(&json!({"properties": {"a": 3}})).is_err());
    let mut deep = json!({"type": "string"});
    for _ in 0..200 {
        deep = json!({"type": "array", "items": deep});
    }
    assert!(Schema::custom_resource(&deep).is_err());
}

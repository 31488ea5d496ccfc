#![expect(clippy::needless_pass_by_value, reason = "tables read better with values")]

use serde_json::{Value, json};

use super::{CelError, Program};
use crate::schema::Schema;

fn broken(schema: &Value, object: &Value, old: Option<&Value>) -> Vec<String> {
    let schema = Schema::custom_resource(schema).unwrap();
    schema
        .check_rules(object, old)
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn spec_with(rules: Value, properties: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {
        "type": "object", "properties": properties, "x-kubernetes-validations": rules,
    }}})
}

#[test]
fn expressions_over_plain_values_hold() {
    let object = json!({
        "a": 1, "s": "Hello", "list": [3, 1, 2], "map": {"x": {"n": 1}, "y": {"n": 2}}, "f": 1.5, "nothing": null,
        "items": [{"name": "b", "w": 2}, {"name": "a", "w": 1}],
    });
    for expression in [
        "object.a == 1",
        "object.a in [1, 2, 3]",
        "object.list.sum() == 6",
        "has(object.s) && !has(object.t)",
        "object.s.lowerAscii() == 'hello'",
        "object.s.matches('^H')",
        "object.list.all(x, x > 0) && object.list.exists(x, x == 3) && object.list.exists_one(x, x == 3)",
        "object.list.map(x, x * 2).filter(x, x > 2).size() == 2",
        "object.?t.orValue('none') == 'none'",
        "object.?s.orValue('none') == 'Hello'",
        "object.?t.?u.hasValue() == false",
        "object.?map.?x.?n.orValue(0) == 1",
        "object.list[?9].orValue(7) == 7",
        "object.map[?'x'].hasValue()",
        "object.?a.optMap(v, v + 1).orValue(0) == 2",
        "!object.?t.optMap(v, v + 1).hasValue()",
        "object.?a.optFlatMap(v, optional.of(v)).hasValue()",
        "cel.bind(n, object.a + 1, n * n == 4)",
        "object.list.all(i, v, v > 0 && i < 3)",
        "object.map.exists(k, v, k == 'y' && v.n == 2)",
        "object.map.existsOne(k, v, v.n > 1)",
        "object.list.transformList(i, v, v + i) == [3, 2, 4]",
        "object.list.transformList(i, v, i > 0, v) == [1, 2]",
        "object.map.transformMap(k, v, v.n * 10) == {'x': 10, 'y': 20}",
        "object.items.sortBy(i, i.w).map(i, i.name) == ['a', 'b']",
        "object.list.sortBy(x, -x) == [3, 2, 1]",
        "type(object.a) == int && type(object.s) == string && type(object.nothing) == null_type",
        "dyn(object.a) == 1",
        "quantity('1Gi').isGreaterThan(quantity('500Mi'))",
        "url('https://a.b:80/c').getHostname() == 'a.b'",
        "isIP('10.0.0.1') && !isIP('x')",
        "object.nothing == null",
        "'%s-%d'.format([object.s, object.a]) == 'Hello-1'",
        "object.s.split('l') == ['He', '', 'o']",
        "sets.contains(object.list, [1, 2])",
        "true ? object.a == 1 : object.missing == 1",
        "object.missing == 1 || object.a == 1",
        "timestamp('2024-01-01T00:00:00Z') < timestamp('2025-01-01T00:00:00Z')",
        "duration('1h') > duration('59m')",
        "object.f > 1.0",
        "object.list.isSorted() == false",
        "[1, 2, 3].slice(0, 2) == [1, 2]",
    ] {
        let program = Program::compile(expression, &["object"]).unwrap_or_else(|e| panic!("{expression}: {e}"));
        assert_eq!(program.matches(&[("object", &object)]), Ok(true), "{expression}");
    }
}

#[test]
fn what_cannot_be_compiled_is_refused_with_its_reason() {
    for (expression, reason) in [
        ("object.", "Syntax error"),
        ("", "Syntax error"),
        ("foo == 1", "undeclared reference to 'foo'"),
        ("object.list.frobnicate()", "undeclared reference to 'frobnicate'"),
        ("[1].all(x, y > 0)", "undeclared reference to 'y'"),
        ("Foo{a: 1} == 1", "Foo"),
    ] {
        match Program::compile(expression, &["object"]) {
            Err(CelError::Compile(message)) => assert!(message.contains(reason), "{expression}: {message}"),
            other => panic!("{expression}: {other:?}"),
        }
    }
}

#[test]
fn a_condition_that_is_no_bool_or_reaches_nothing_is_an_error_when_it_runs() {
    let object = json!({"a": 1});
    for expression in ["object.a", "object.b == 1", "object.a == 1 && object.b", "1 / 0 == 1"] {
        let program = Program::compile(expression, &["object"]).unwrap();
        assert!(
            matches!(program.matches(&[("object", &object)]), Err(CelError::Evaluate(_))),
            "{expression}"
        );
    }
}

#[test]
fn match_conditions_see_request_and_both_objects() {
    let program = Program::compile(
        "request.operation != 'DELETE' && object.metadata.name != oldObject.metadata.name",
        &["object", "oldObject", "request"],
    )
    .unwrap();
    let request = json!({"operation": "UPDATE"});
    let (new, old) = (json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "b"}}));
    assert_eq!(
        program.matches(&[("object", &new), ("oldObject", &old), ("request", &request)]),
        Ok(true)
    );
    assert_eq!(
        program.matches(&[("object", &new), ("oldObject", &new), ("request", &request)]),
        Ok(false)
    );
}

#[test]
fn a_broken_rule_tells_its_message_field_and_reason() {
    let properties = json!({"min": {"type": "integer"}, "max": {"type": "integer"}, "a-b": {"type": "string"}});
    for (rule, line) in [
        (
            json!({"rule": "self.min <= self.max"}),
            "spec: Invalid value: failed rule: self.min <= self.max",
        ),
        (
            json!({"rule": "self.min <= self.max", "message": " too big "}),
            "spec: Invalid value: too big",
        ),
        (
            json!({"rule": "self.min <= self.max", "messageExpression": "'%d > %d'.format([self.min, self.max])"}),
            "spec: Invalid value: 5 > 3",
        ),
        (
            json!({"rule": "self.min <= self.max", "message": "fallback", "messageExpression": "self.min > 0 ? '' : ''"}),
            "spec: Invalid value: fallback",
        ),
        (
            json!({"rule": "self.min <= self.max", "message": "m", "reason": "FieldValueForbidden", "fieldPath": ".min"}),
            "spec.min: Forbidden: m",
        ),
        (
            json!({"rule": "self.min <= self.max", "message": "m", "reason": "FieldValueRequired", "fieldPath": "['a-b']"}),
            "spec[a-b]: Required value: m",
        ),
    ] {
        let schema = spec_with(json!([rule]), properties.clone());
        assert_eq!(broken(&schema, &json!({"spec": {"min": 5, "max": 3}}), None), [line]);
        assert!(broken(&schema, &json!({"spec": {"min": 1, "max": 3}}), None).is_empty());
    }
}

#[test]
fn a_rule_on_a_scalar_shows_its_value() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3", "message": "small"}]},
        "m": {"type": "object", "additionalProperties": {"type": "string",
            "x-kubernetes-validations": [{"rule": "self != 'x'", "message": "no x"}]}},
    }}}});
    let object = json!({"spec": {"n": 1, "m": {"a/b": "x"}}});
    assert_eq!(
        broken(&schema, &object, None),
        [
            "spec.m[a/b]: Invalid value: \"x\": no x",
            "spec.n: Invalid value: 1: small"
        ]
    );
}

#[test]
fn rules_see_values_as_the_schema_types_them() {
    let properties = json!({
        "at": {"type": "string", "format": "date-time"},
        "for": {"type": "string", "format": "duration"},
        "bytes": {"type": "string", "format": "byte"},
        "ratio": {"type": "number"},
        "port": {"x-kubernetes-int-or-string": true},
        "namespace": {"type": "string"},
        "a-b.c/d": {"type": "string"},
        "x_y": {"type": "string"},
        "x__y": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    });
    let object = json!({"spec": {
        "at": "2024-05-01T00:00:00Z", "for": "1h30m", "bytes": "aGk=", "ratio": 2, "port": 80, "namespace": "n",
        "a-b.c/d": "v", "x_y": "1", "x__y": "2", "labels": {"a-b": "c"},
    }});
    for rule in [
        "self.at > timestamp('2024-01-01T00:00:00Z')",
        "self.__for__ == duration('90m')",
        "self.bytes.size() == 2",
        "self.ratio / 4.0 == 0.5",
        "type(self.port) == int && self.port > 1",
        "self.__namespace__ == 'n'",
        "self.a__dash__b__dot__c__slash__d == 'v'",
        "self.x_y == '1' && self.x__underscores__y == '2'",
        "self.labels['a-b'] == 'c' && 'a-b' in self.labels",
    ] {
        let schema = spec_with(json!([{"rule": rule}]), properties.clone());
        assert_eq!(broken(&schema, &object, None), [""; 0], "{rule}");
    }
}

#[test]
fn a_transition_rule_runs_only_where_there_is_an_old_value() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "shrinks"}]},
    }}}});
    let at = |n: i64| json!({"spec": {"n": n}});
    assert!(broken(&schema, &at(1), None).is_empty());
    assert!(broken(&schema, &at(2), Some(&at(1))).is_empty());
    assert_eq!(
        broken(&schema, &at(1), Some(&at(2))),
        ["spec.n: Invalid value: 1: shrinks"]
    );
    assert!(broken(&schema, &at(1), Some(&json!({"spec": {}}))).is_empty());
}

#[test]
fn an_optional_old_self_lets_a_rule_tell_creation_from_update() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "x-kubernetes-validations": [
        {"rule": "oldSelf.hasValue() ? self == oldSelf.value() : self == 1", "optionalOldSelf": true, "message": "m"},
    ]}}});
    let at = |n: i64| json!({"n": n});
    assert!(broken(&schema, &at(1), None).is_empty());
    assert_eq!(broken(&schema, &at(2), None), ["n: Invalid value: 2: m"]);
    assert!(broken(&schema, &at(2), Some(&at(2))).is_empty());
    assert_eq!(broken(&schema, &at(3), Some(&at(2))), ["n: Invalid value: 3: m"]);
}

#[test]
fn items_of_a_map_list_meet_their_old_selves_whatever_the_order() {
    let schema = json!({"type": "object", "properties": {"list": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.v == oldSelf.v", "message": "fixed"}]},
    }}});
    let old = json!({"list": [{"name": "a", "v": 1}, {"name": "b", "v": 2}]});
    let new = json!({"list": [{"name": "b", "v": 3}, {"name": "c", "v": 9}, {"name": "a", "v": 1}]});
    assert_eq!(broken(&schema, &new, Some(&old)), ["list[0]: Invalid value: fixed"]);
}

#[test]
fn values_that_did_not_change_are_not_held_against_a_new_rule() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string", "x-kubernetes-validations": [{"rule": "self.startsWith('x')", "message": "m"}]},
        "b": {"type": "string"},
    }}}});
    let old = json!({"spec": {"a": "y", "b": "1"}});
    assert!(broken(&schema, &json!({"spec": {"a": "y", "b": "2"}}), Some(&old)).is_empty());
    assert_eq!(
        broken(&schema, &json!({"spec": {"a": "z", "b": "1"}}), Some(&old)),
        ["spec.a: Invalid value: \"z\": m"]
    );
}

#[test]
fn an_error_while_evaluating_is_told_with_the_rule() {
    let schema = spec_with(json!([{"rule": "self.a.size() > 0"}]), json!({"a": {"type": "string"}}));
    let lines = broken(&schema, &json!({"spec": {}}), None);
    assert_eq!(
        lines,
        ["spec: Invalid value: \"object\": no such key: a evaluating rule: failed rule: self.a.size() > 0"]
    );
}

#[test]
fn a_mutation_makes_an_object() {
    let program = Program::compile_mutation(
        "Object{metadata: Object.metadata{annotations: {\"by\": object.kind}}, spec: Object.spec{replicas: 1 + 2}}",
        &["object"],
    );
    let made = program
        .unwrap()
        .evaluate(&[("object", &json!({ "kind": "A" }))])
        .unwrap();
    assert_eq!(
        made,
        json!({ "metadata": { "annotations": { "by": "A" } }, "spec": { "replicas": 3 } })
    );
    assert!(Program::compile("Object{}", &[]).is_err());
}

#[test]
fn the_deepest_expression_is_parsed_by_a_thread_with_a_small_stack() {
    let source = format!("{}true{}", "(".repeat(48), ")".repeat(48));
    let compile = move || Program::compile(&source, &[]).map(|program| program.matches(&[]));
    let thread = std::thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(compile)
        .unwrap();
    assert_eq!(thread.join().unwrap(), Ok(Ok(true)));
}

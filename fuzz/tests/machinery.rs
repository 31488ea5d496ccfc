//! The decoders of API objects and of what refers to them.

use std::{panic::AssertUnwindSafe, sync::LazyLock};

use jiff::Timestamp;
use moorline_fuzz::target;
use moorline_machinery::{
    apply::{self, FieldSet, Force, Kind, ManagedFields, PathElement, Writer},
    cel::Program,
    decode::{self, Limits},
    duration::GoDuration,
    facts::Facts,
    gvk::GroupVersion,
    meta, names,
    patch::{json_patch, merge_patch, strategic_merge_patch},
    protobuf,
    quantity::Quantity,
    schema::{Schema, check_structural},
    selector::{FieldSelector, LabelSelector},
    table::{IncludeObject, JsonPath, Printer},
    time,
};
use serde_json::{Value, json};

const OBJECTS: [&str; 4] = [
    r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","labels":{"x":"y"},"annotations":{"n":"\u00e9\n"}},"data":{"a":"Yg=="},"immutable":true}"#,
    r#"{"spec":{"n":1.5e3,"list":[1,2,{"a":[]}],"items":[{"name":"a","v":1},{"name":"b"}],"set":["x","y"]},"status":null}"#,
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"A","value":"b"}]}]}}"#,
    r#"{"a":{"b":{"c":{"d":{"e":[[[[{}]]]]}}}},"a":1}"#,
];

const YAML: [&str; 4] = [
    "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  a: |\n    text\n  b: >-\n    folded\n",
    "a: &x [1, 2]\nb: *x\nc: {<<: {d: 1}}\n",
    "- 0x1F\n- 0o17\n- 1_000\n- .inf\n- ~\n- !!str 5\n- 2020-01-01\n",
    "%YAML 1.2\n---\n? complex\n: value\n...\n",
];

/// An object that may be anything, from a draft that is JSON often enough.
fn value(bytes: &[u8]) -> Value {
    decode::json(bytes, &Limits::default()).map_or(Value::Null, |decoded| decoded.value)
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer", "default": 3, "minimum": 1},
        "text": {"type": "string", "pattern": "^[a-z]+$", "format": "date-time"},
        "port": {"x-kubernetes-int-or-string": true},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "integer"}}}},
        "list": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
    }, "x-kubernetes-validations": [{"rule": "self.n > 0 || has(self.text)"}]}}})
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::custom_resource(&schema()).expect("a valid schema"));
static FACTS: LazyLock<Facts> = LazyLock::new(|| {
    Facts::parse(include_str!("../../crates/apiserver/facts/builtin.txt")).expect("the facts that the server has")
});

#[test]
fn json_bodies() {
    target!(|draft| decode::json(&draft.of(&OBJECTS), &Limits::default()));
}

#[test]
fn yaml_bodies() {
    target!(|draft| decode::yaml(&draft.of(&YAML), &Limits::default()));
}

#[test]
fn protobuf_envelopes() {
    let pod = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x2e\x0a\x0b\x0a\x01p\x12\x00\x1a\x02ns\x22\x00\x12\x1d\x12\x1b\x0a\x01c\x12\x01i\x1a\x01x\x1a\x01y\x2a\x00\x32\x0a\x0a\x01h\x10\x01\x18\x50\x22\x03TCP\x1a\x00\x22\x00";
    let secret = b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x1a\x0a\x0a\x0a\x01s\x1a\x02ns\x22\x01u\x12\x07\x0a\x01a\x12\x02bb\x1a\x03typ";
    target!(|draft| protobuf::decode(&FACTS, &draft.of(&[pod.as_slice(), secret.as_slice()])));
}

#[test]
fn protobuf_messages() {
    let kinds: Vec<_> = FACTS.kinds().collect();
    let bodies = [
        b"\x0a\x0b\x0a\x01p\x12\x00\x1a\x02ns\x22\x00\x12\x05\x08\x96\x01\x10\x01".as_slice(),
        b"\x12\x1d\x12\x1b\x0a\x01c",
    ];
    target!(|draft| {
        let bytes = draft.of(&bodies);
        let chosen = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % kinds.len();
        protobuf::decode_message(&FACTS, kinds[chosen].2, &bytes)
    });
}

#[test]
fn label_selectors() {
    target!(|draft| draft
        .text(&["a=b,c!=d,e in (f,g),h notin (i),j,!k", "size>5,size<7", "x/y==z"])
        .parse::<LabelSelector>());
}

#[test]
fn field_selectors() {
    target!(|draft| draft
        .text(&["metadata.name=a,spec.nodeName!=b", r"a=b\,c,d==e\\"])
        .parse::<FieldSelector>());
}

#[test]
fn json_patches() {
    let patches = [
        r#"[{"op":"add","path":"/spec/list/-","value":1},{"op":"remove","path":"/status"},{"op":"test","path":"/spec/n","value":1}]"#,
        r#"[{"op":"move","from":"/spec/set","path":"/spec/other"},{"op":"copy","from":"/spec","path":"/spec/list/0"}]"#,
    ];
    target!(|draft| {
        let mut object = value(OBJECTS[1].as_bytes());
        json_patch(&mut object, &value(&draft.of(&patches)))
    });
}

#[test]
fn merge_patches() {
    target!(|draft| {
        let mut object = value(OBJECTS[1].as_bytes());
        merge_patch(&mut object, &value(&draft.of(&OBJECTS)))
    });
}

#[test]
fn strategic_merge_patches() {
    let patches = [
        r#"{"spec":{"items":[{"name":"a","$patch":"delete"},{"name":"c"}],"$setElementOrder/items":[{"name":"c"}]}}"#,
        r#"{"spec":{"$retainKeys":["n"],"n":2,"$deleteFromPrimitiveList/set":["x"],"list":[{"$patch":"replace"}]}}"#,
    ];
    target!(|draft| strategic_merge_patch(&value(OBJECTS[1].as_bytes()), &value(&draft.of(&patches)), &SCHEMA));
}

#[test]
fn applied_objects() {
    let live = json!({"apiVersion": "e/v1", "kind": "K", "metadata": {"name": "a", "managedFields": [{"manager": "m", "operation": "Apply",
        "apiVersion": "e/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:n": {}, "f:items": {"k:{\"name\":\"a\"}": {".": {}, "f:v": {}}}}}}]},
        "spec": {"n": 1, "items": [{"name": "a", "v": 1}]}});
    let empty = json!({"apiVersion": "e/v1", "kind": "K"});
    let reset = FieldSet::new();
    let writer = Writer {
        manager: "other",
        api_version: "e/v1",
        subresource: "",
        now: "2026-01-01T00:00:00Z",
        reset: &reset,
    };
    let kind = AssertUnwindSafe(Kind {
        schema: &SCHEMA,
        empty: &empty,
    });
    target!(|draft| {
        let applied = value(&draft.of(&OBJECTS));
        let mut updated = applied.clone();
        if updated.is_object() {
            apply::update(Some(&live), &mut updated, &writer, &kind);
        }
        (
            apply::apply(Some(&live), &applied, Force::No, &writer, &kind),
            apply::apply(Some(&updated), &live, Force::Yes, &writer, &kind).ok(),
        )
    });
}

#[test]
fn sets_of_fields() {
    let sets = [
        r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:items":{"k:{\"name\":\"a\",\"port\":80}":{".":{}},"v:\"x\"":{},"i:3":{}}}}"#,
        r#"{".":{},"f:":{},"k:{}":{},"v:null":{}}"#,
    ];
    target!(|draft| {
        let json = value(&draft.of(&sets));
        FieldSet::from_fields_v1(&json).map(|set| {
            let again = FieldSet::from_fields_v1(&set.to_fields_v1()).expect("what is written can be read");
            assert_eq!(again, set);
        })
    });
}

#[test]
fn path_elements() {
    target!(|draft| PathElement::parse(&draft.text(&["f:name", r#"k:{"a":1,"b":"x"}"#, "v:5", "i:2"])));
}

#[test]
fn managed_fields() {
    let objects = [
        r#"{"metadata":{"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:a":{}},"subresource":"status"}]}}"#,
    ];
    target!(|draft| ManagedFields::of(&value(&draft.of(&objects))));
}

#[test]
fn quantities() {
    target!(|draft| {
        draft
            .text(&["1.5Gi", "100m", "-1e9", "+0.000001", "12345678901234567890E"])
            .parse::<Quantity>()
            .map(|quantity| {
                let again: Quantity = quantity.to_string().parse().expect("what is written can be read");
                assert_eq!(again.to_string(), quantity.to_string());
                (
                    quantity.as_f64(),
                    quantity.value(),
                    quantity.milli_value(),
                    quantity.checked_add(&again),
                )
            })
    });
}

#[test]
fn durations() {
    target!(|draft| draft
        .text(&["1h2m3.5s", "-1.5µs", "9223372036854775807ns", "0"])
        .parse::<GoDuration>());
}

#[test]
fn times() {
    target!(|draft| time::parse(&draft.text(&["2026-01-01T00:00:00Z", "0001-01-01T00:00:00.123456+14:00"])));
}

#[test]
fn names_and_versions() {
    target!(|draft| {
        let text = draft.text(&["a.b-c", "example.com/Key_1", "v1", "apps/v1beta2"]);
        (
            text.parse::<GroupVersion>().is_ok(),
            names::qualified_name(&text),
            names::dns_subdomain(&text),
            names::label_value(&text),
        )
    });
}

#[test]
fn schemas_of_custom_kinds() {
    let text = schema().to_string();
    target!(|draft| {
        let json = value(&draft.of(&[text.as_str()]));
        let problems = check_structural(&json, "schema");
        (
            problems,
            Schema::custom_resource(&json)
                .map(|schema| {
                    let mut object = value(OBJECTS[1].as_bytes());
                    schema.apply_defaults(&mut object);
                    (
                        schema.prune(&mut object),
                        schema.validate(&object),
                        schema.check_rules(&object, None),
                    )
                })
                .ok(),
        )
    });
}

#[test]
fn objects_under_a_schema() {
    target!(|draft| {
        let mut object = value(&draft.of(&OBJECTS));
        SCHEMA.apply_defaults(&mut object);
        let pruned = SCHEMA.prune(&mut object);
        (
            pruned,
            SCHEMA.validate(&object),
            SCHEMA.check_rules(&object, None),
            meta::of(&object).name().len(),
        )
    });
}

#[test]
fn cel_expressions() {
    let sources = [
        "self.spec.items.all(i, i.name.matches('^[a-z]+$') && size(i.name) < 5)",
        "has(self.spec.n) ? self.spec.n * 2 > 4 : self.metadata.name.startsWith('a')",
        "[1, 2, 3].map(x, x * x).exists(x, x == 4) || 'a' in {'a': 1}",
        "quantity('1Gi').isGreaterThan(quantity('1M')) && url('https://a/b').getHost() == 'a'",
    ];
    let object = value(OBJECTS[1].as_bytes());
    target!(|draft| {
        Program::compile(&draft.text(&sources), &["self"])
            .map(|expression| expression.matches(&[("self", &object)]).is_ok())
    });
}

#[test]
fn paths_of_columns() {
    let object = value(OBJECTS[1].as_bytes());
    target!(|draft| {
        draft
            .text(&[
                ".spec.items[0].name",
                ".spec.items[?(@.name==\"a\")].v",
                "{.metadata['x\\.y']}",
                "..name",
            ])
            .parse::<JsonPath>()
            .map(|path| path.first(&object).is_some())
    });
}

#[test]
fn rows_of_tables() {
    target!(|draft| Printer::builtin("v1", "Pod").row(
        &value(&draft.of(&OBJECTS)),
        Timestamp::UNIX_EPOCH,
        IncludeObject::Metadata
    ));
}

//! Custom kinds: their definitions, and objects that their schemas prune, default, refuse and rule on.

use fastrand::Rng;
use serde_json::{Value, json};

use super::{Place, pick};
use crate::step::{Step, Until};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub(super) fn steps(rng: &mut Rng, place: &Place) -> Vec<Step> {
    let group = format!("{}.example.com", place.namespace);
    let name = format!("widgets.{group}");
    let one_definition = format!("{DEFINITIONS}/{name}");
    let mut steps = refused_definitions(rng, &group);
    steps.push(Step::post(DEFINITIONS, &definition(&group)));
    let all = format!("/apis/{group}/v1/namespaces/{}/widgets", place.namespace);
    let one = format!("{all}/w");
    steps.push(Step::get(&all).until(Until::Found));
    steps.push(Step::get(format!("/apis/{group}/v1")).until(Until::Found));
    steps.push(Step::get(format!("/apis/{group}")));
    let object = |spec: Value| json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "w"}, "spec": spec});
    steps.push(
        Step::post(
            format!("{all}?fieldManager=creator"),
            &object(json!({"size": 3, "unknown": 1})),
        )
        .keep("old", "/metadata/resourceVersion"),
    );
    for _ in 0..10 {
        let spec = spec(rng);
        let validation = *pick(rng, &["", "&fieldValidation=Strict", "&fieldValidation=Ignore"]);
        steps.push(Step::post(
            format!("{all}?dryRun=All{validation}"),
            &json!({"apiVersion": format!("{group}/v1"),
            "kind": "Widget", "metadata": {"name": "other"}, "spec": spec}),
        ));
    }
    for _ in 0..8 {
        let manager = *pick(rng, &["alice", "bob"]);
        let step = match rng.u8(0..5) {
            0 => Step::patch(
                format!("{one}?fieldManager={manager}"),
                "merge",
                &json!({"spec": spec(rng)}),
            ),
            1 => Step::put(&one, &object(spec(rng))),
            2 => Step::patch(&one, "strategic-merge", &json!({"spec": {}})),
            _ => Step::apply(&one, manager, rng.bool(), &object(spec(rng))),
        };
        steps.push(step);
    }
    steps.push(Step::put(
        format!("{one}/status"),
        &json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"size": 8}, "status": {"ready": 2, "extra": 1}}),
    ));
    steps.push(Step::patch(
        format!("{one}/status"),
        "merge",
        &json!({"status": {"ready": "two"}}),
    ));
    steps.push(Step::get(format!("{one}/scale")));
    steps.push(Step::patch(
        format!("{one}/scale"),
        "merge",
        &json!({"spec": {"replicas": 4}}),
    ));
    steps.push(Step::get(&one));
    steps.push(Step::get(&one).header("accept", "application/json;as=Table;g=meta.k8s.io;v=v1"));
    steps.push(Step::get(format!(
        "/apis/{group}/v1beta1/namespaces/{}/widgets/w",
        place.namespace
    )));
    steps.push(Step::get(format!(
        "/apis/{group}/v1/widgets?fieldSelector=spec.color%3Dred"
    )));
    steps.push(Step::get(format!(
        "/apis/{group}/v1/widgets?fieldSelector=spec.size%3D1"
    )));
    steps.push(Step::patch(
        &one_definition,
        "json",
        &json!([{"op": "remove", "path": "/spec/versions/1"}]),
    ));
    steps.push(Step::delete(&one).keep("gone", "/metadata/name"));
    steps.push(Step::get(&one));
    steps.push(Step::delete(&one_definition));
    steps.push(Step::get(&one_definition).until(Until::NotFound));
    steps.push(Step::get(&all).until(Until::NotFound));
    steps
}

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
            "color": {"type": "string", "enum": ["red", "green", "blue"]},
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8},
            "when": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": true},
            "replicas": {"type": "integer"},
            "ratio": {"type": "number", "exclusiveMinimum": true, "minimum": 0},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 4},
            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}}}},
            "box": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "maybe": {"type": "string", "nullable": true},
            "frozen": {"type": "string", "maxLength": 20, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "it stays"}]}
        }, "x-kubernetes-validations": [
            {"rule": "!has(self.color) || self.color != 'blue' || self.size < 50", "message": "blue is small"},
            {"rule": "!has(self.replicas) || self.replicas <= self.size", "messageExpression": "'no more than ' + (self.size > 9 ? 'many' : 'few')", "reason": "FieldValueForbidden", "fieldPath": ".replicas"}
        ]},
        "status": {"type": "object", "properties": {"ready": {"type": "integer"}, "replicas": {"type": "integer"}, "selector": {"type": "string"}}}
    }})
}

fn definition(group: &str) -> Value {
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema()},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector"}},
            "selectableFields": [{"jsonPath": ".spec.color"}],
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]})
    };
    let mut beta = version("v1beta1", false);
    beta["deprecated"] = json!(true);
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("widgets.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget",
            "shortNames": ["wd"], "categories": ["all"]}, "versions": [version("v1", true), beta]}})
}

/// Definitions with something wrong in them, which must be refused in the same words.
fn refused_definitions(rng: &mut Rng, group: &str) -> Vec<Step> {
    let changes: [(&str, Value); 22] = [
        ("/spec/versions/0/schema/openAPIV3Schema/type", json!("array")),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/type",
            json!(""),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/default",
            json!("text"),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/default",
            json!(1000),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/name/pattern",
            json!("("),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/parts/x-kubernetes-list-map-keys",
            json!(["other"]),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/parts/x-kubernetes-list-type",
            json!("heap"),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/tags/uniqueItems",
            json!(true),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations/0/rule",
            json!("self.nothing == 1"),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations/0/rule",
            json!("self.size +"),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations/0/rule",
            json!(""),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/box/properties",
            json!({"a": {"type": "string"}}),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/$ref",
            json!("#/x"),
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/metadata",
            json!({"type": "object", "properties": {"labels": {"type": "object"}}}),
        ),
        ("/spec/versions/0/storage", json!(false)),
        ("/spec/versions/1/storage", json!(true)),
        ("/spec/versions/1/name", json!("v1")),
        ("/spec/versions/0/name", json!("V1!")),
        ("/spec/names/plural", json!("gadgets")),
        ("/spec/names/kind", json!("lower case")),
        ("/spec/scope", json!("Everywhere")),
        (
            "/spec/versions/0/subresources/scale/specReplicasPath",
            json!("spec.replicas"),
        ),
    ];
    (0..6)
        .map(|_| {
            let (pointer, value) = pick(rng, &changes);
            let mut broken = definition(group);
            let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
            if let Some(parent) = broken.pointer_mut(parent) {
                parent[key] = value.clone();
            }
            Step::post(format!("{DEFINITIONS}?dryRun=All"), &broken)
        })
        .collect()
}

fn spec(rng: &mut Rng) -> Value {
    let mut spec = json!({});
    let fields: [(&str, &[Value]); 13] = [
        (
            "size",
            &[
                json!(5),
                json!(60),
                json!(-1),
                json!(101),
                json!("5"),
                json!(1.5),
                json!(null),
            ],
        ),
        ("color", &[json!("red"), json!("blue"), json!("pink"), json!(5)]),
        ("name", &[json!("abc"), json!("ABC"), json!("toolongname"), json!("")]),
        ("when", &[json!("2020-01-01T00:00:00Z"), json!("yesterday")]),
        ("port", &[json!(80), json!("http"), json!(true), json!(1.5)]),
        ("replicas", &[json!(1), json!(99)]),
        ("ratio", &[json!(0.5), json!(0), json!("half")]),
        ("any", &[json!({"a": {"b": [1]}}), json!([])]),
        (
            "tags",
            &[
                json!(["a", "b"]),
                json!(["a", "a"]),
                json!(["a", "b", "c", "d", "e"]),
                json!([5]),
            ],
        ),
        (
            "parts",
            &[
                json!([{"name": "x"}]),
                json!([{"name": "x"}, {"name": "x"}]),
                json!([{"count": 2}]),
                json!([{"name": "y", "count": 3, "junk": 1}]),
            ],
        ),
        ("box", &[json!({"a": "1"}), json!({"a": 1})]),
        ("maybe", &[json!(null), json!("yes")]),
        ("frozen", &[json!("ice"), json!("water")]),
    ];
    for (name, values) in fields {
        if name == "size" || rng.u8(0..3) == 0 {
            // Mostly what is right, so that not every object is refused.
            let value = if rng.u8(0..3) > 0 {
                &values[0]
            } else {
                pick(rng, values)
            };
            spec[name] = value.clone();
        }
    }
    if rng.u8(0..4) == 0 {
        spec["junk"] = json!({"deep": 1});
    }
    spec
}

//! The life of one object, from its creation to its deletion, in the ways a client may go about it.

use fastrand::Rng;
use http::Method;
use serde_json::{Value, json};

use super::{
    Place,
    objects::{KINDS, Kind},
    pick,
};
use crate::step::{Step, Until};

pub(super) fn steps(rng: &mut Rng, place: &Place) -> Vec<Step> {
    let kind = &KINDS[usize::try_from(place.seed).unwrap_or_default() % KINDS.len()];
    let object = kind.object(&place.namespace.replace("crud", "object"));
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let all = kind.collection(&place.namespace);
    let one = format!("{all}/{name}");
    let mut steps = vec![
        Step::post(format!("{all}?dryRun=All&fieldManager=draft"), &object),
        Step::get(&one),
        Step::post(format!("{all}?fieldManager=creator&fieldValidation=Strict"), &object)
            .keep("uid", "/metadata/uid")
            .keep("old", "/metadata/resourceVersion"),
        Step::post(&all, &object),
        Step::get(&one),
        Step::of(Method::HEAD, &one),
    ];
    let mut middle = vec![
        patches(kind, &one),
        updates(&object, &one),
        views(&all, &one, &name),
        subresources(kind, &object, &one, rng),
        owned(&object, &one),
    ];
    rng.shuffle(&mut middle);
    steps.extend(middle.into_iter().flatten());
    steps.extend(end(&one, rng));
    steps
}

fn with(object: &Value, changes: &Value) -> Value {
    let mut merged = object.clone();
    merge(&mut merged, changes);
    merged
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn patches(kind: &Kind, one: &str) -> Vec<Step> {
    let mut steps = vec![
        Step::patch(one, "merge", &json!({"metadata": {"labels": {"a": "1", "b": "2"}}})),
        Step::patch(
            one,
            "merge",
            &json!({"metadata": {"labels": {"a": null}, "annotations": {"note": "x"}}}),
        ),
        Step::patch(one, "merge", &json!({"metadata": {"labels": {"b": "2"}}})),
        Step::patch(
            one,
            "json",
            &json!([{"op": "test", "path": "/metadata/labels/b", "value": "2"},
            {"op": "add", "path": "/metadata/labels/c", "value": "3"}]),
        ),
        Step::patch(
            one,
            "json",
            &json!([{"op": "test", "path": "/metadata/labels/b", "value": "other"}]),
        ),
        Step::patch(
            one,
            "json",
            &json!([{"op": "remove", "path": "/metadata/labels/nothing"}]),
        ),
        Step::patch(
            one,
            "json",
            &json!([{"op": "move", "from": "/metadata/labels/c", "path": "/metadata/labels/d"}]),
        ),
        Step::patch(one, "json", &json!({"op": "remove"})),
        Step::patch(
            one,
            "strategic-merge",
            &json!({"metadata": {"labels": {"b": null, "e": "5"}}}),
        ),
        Step::patch(
            one,
            "strategic-merge",
            &json!({"metadata": {"finalizers": ["example.com/hold"]}}),
        ),
        Step::patch(
            one,
            "strategic-merge",
            &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/hold"]}}),
        ),
        Step::patch(
            format!("{one}?dryRun=All"),
            "merge",
            &json!({"metadata": {"labels": {"dry": "run"}}}),
        ),
        Step::patch(one, "merge", &json!({"metadata": {"name": "another"}})),
        Step::patch(
            one,
            "merge",
            &json!({"metadata": {"resourceVersion": "{old}", "labels": {"stale": "yes"}}}),
        ),
        Step::patch(
            format!("{one}?fieldValidation=Strict"),
            "merge",
            &json!({"nonsense": 1, "metadata": {"labels": {"n": "1"}}}),
        ),
        Step::patch(
            format!("{one}?fieldValidation=Warn"),
            "merge",
            &json!({"nonsense": 1, "metadata": {"labels": {"n": "1"}}}),
        ),
        Step::patch(one, "merge", &json!({"metadata": {"labels": {"bad key!": "x"}}})),
        Step::patch(one, "merge", &json!({"metadata": {"labels": {"a": 5}}})),
    ];
    if kind.plural == "deployments" || kind.plural == "statefulsets" {
        let containers = json!({"spec": {"template": {"spec": {"containers": [
            {"name": "main", "env": [{"name": "A", "value": "1"}]}, {"name": "second", "image": "example.com/b:2"}]}}}});
        steps.push(Step::patch(one, "strategic-merge", &containers));
        let gone = json!({"spec": {"template": {"spec": {"containers": [{"name": "second", "$patch": "delete"}]}}}});
        steps.push(Step::patch(one, "strategic-merge", &gone));
        let replaced = json!({"spec": {"template": {"spec": {"$retainKeys": ["containers", "nodeSelector"], "nodeSelector": {"x": "y"}}}}});
        steps.push(Step::patch(one, "strategic-merge", &replaced));
    }
    steps
}

fn updates(object: &Value, one: &str) -> Vec<Step> {
    // An owner that is not there gets its object collected, where there is a collector.
    let dry = format!("{one}?dryRun=All");
    let meta = |extra: Value| with(object, &json!({"metadata": extra}));
    vec![
        Step::put(one, &meta(json!({"labels": {"put": "1"}}))).keep("now", "/metadata/resourceVersion"),
        Step::put(one, &meta(json!({"labels": {"put": "1"}, "resourceVersion": "{now}"}))),
        Step::put(one, &meta(json!({"labels": {"put": "2"}, "resourceVersion": "{old}"}))),
        Step::put(
            one,
            &meta(json!({"labels": {"put": "2"}, "resourceVersion": "not a number"})),
        ),
        Step::put(one, &meta(json!({"uid": "11111111-2222-3333-4444-555555555555"}))),
        Step::put(one, &meta(json!({"uid": "{uid}", "labels": {"put": "3"}}))),
        Step::put(one, &meta(json!({"name": "another"}))),
        Step::put(one, &meta(json!({"namespace": "another"}))),
        Step::put(format!("{one}-missing"), object),
        Step::put(format!("{one}?dryRun=All"), &meta(json!({"labels": {"dry": "run"}}))),
        Step::put(format!("{one}?dryRun=Some"), object),
        Step::put(
            format!("{one}?fieldManager=a-second"),
            &meta(json!({"annotations": {"by": "second"}})),
        ),
        Step::put(format!("{one}?fieldManager={}", "x".repeat(129)), object),
        Step::put(one, &with(object, &json!({"kind": "Other"}))),
        Step::put(one, &with(object, &json!({"apiVersion": "example.com/v1"}))),
        Step::put(
            one,
            &meta(json!({"deletionTimestamp": "2020-01-01T00:00:00Z", "generation": 77,
            "creationTimestamp": "2020-01-01T00:00:00Z", "labels": {"put": "4"}})),
        ),
        Step::put(
            dry.clone(),
            &meta(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}]})),
        ),
        Step::put(
            one,
            &meta(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap"}]})),
        ),
        Step::put(one, &meta(json!({"finalizers": ["no slash", "example.com/ok"]}))),
    ]
}

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

fn views(all: &str, one: &str, name: &str) -> Vec<Step> {
    let named = format!("{all}?fieldSelector=metadata.name%3D{name}");
    vec![
        Step::get(one).header("accept", TABLE),
        Step::get(format!("{one}?includeObject=None")).header("accept", TABLE),
        Step::get(one).header("accept", PARTIAL),
        Step::get(&named),
        Step::get(&named).header("accept", TABLE),
        Step::get(format!("{named}&includeObject=Object")).header("accept", TABLE),
        Step::get(&named).header("accept", PARTIAL_LIST),
        Step::get(&named).header("accept", PARTIAL),
        Step::get(one).header("accept", &format!("{TABLE},application/json")),
        Step::get(one).header("accept", "text/html"),
        Step::get(one).header("accept", "application/json;as=Nothing;g=meta.k8s.io;v=v1"),
        Step::get(format!("{one}?pretty=true")),
        Step::get(format!("{one}?resourceVersion=0")),
        Step::get(format!("{one}?resourceVersion=nonsense")),
        Step::get(format!("{all}?fieldSelector=no.such%3Dfield")),
        Step::get(format!("{one}/nothing")),
        Step::of(Method::POST, one).json("application/json", &json!({})),
        Step::of(Method::PUT, all).json("application/json", &json!({})),
    ]
}

fn subresources(kind: &Kind, object: &Value, one: &str, rng: &mut Rng) -> Vec<Step> {
    let mut steps = Vec::new();
    for subresource in ["status", "scale"] {
        let path = format!("{one}/{subresource}");
        steps.push(Step::get(&path));
        if !kind.subresources.contains(&subresource) {
            steps.push(Step::patch(&path, "merge", &json!({"status": {}})));
            continue;
        }
        if subresource == "status" {
            steps.push(Step::put(
                &path,
                &with(object, &json!({"metadata": {"labels": {"by": "status"}}})),
            ));
            steps.push(Step::patch(
                &path,
                "merge",
                &json!({"status": {}, "metadata": {"annotations": {"by": "status"}}}),
            ));
            steps.push(Step::patch(&path, "merge", &json!({"status": {"nonsense": true}})));
            steps.push(Step::patch(
                format!("{path}?fieldManager=s"),
                "merge",
                &json!({"status": 5}),
            ));
        } else {
            let replicas = rng.u32(0..9);
            let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": object["metadata"]["name"]},
                "spec": {"replicas": replicas}});
            steps.push(Step::put(&path, &scale));
            steps.push(Step::patch(
                &path,
                "merge",
                &json!({"spec": {"replicas": replicas + 1}}),
            ));
            steps.push(Step::patch(&path, "merge", &json!({"spec": {"replicas": -1}})));
            steps.push(Step::patch(
                &path,
                "json",
                &json!([{"op": "replace", "path": "/spec/replicas", "value": 1}]),
            ));
            steps.push(Step::patch(
                &path,
                "merge",
                &json!({"metadata": {"resourceVersion": "{old}"}, "spec": {"replicas": 4}}),
            ));
            steps.push(Step::get(one));
        }
    }
    steps
}

fn owned(object: &Value, one: &str) -> Vec<Step> {
    let label = |value: &str| {
        let mut applied = object.clone();
        applied["metadata"]["labels"] = json!({"applied": value});
        applied
    };
    let kind = json!({"apiVersion": object["apiVersion"], "kind": object["kind"],
        "metadata": {"name": object["metadata"]["name"]}});
    vec![
        Step::apply(one, "alice", false, &label("1")),
        Step::apply(one, "alice", false, &label("1")),
        Step::apply(one, "bob", false, &label("2")),
        Step::apply(one, "bob", true, &label("2")),
        Step::apply(one, "alice", false, &kind),
        Step::apply(format!("{one}?dryRun=All"), "carol", true, &label("3")),
        Step::of(Method::PATCH, one).json("application/apply-patch+yaml", &label("1")),
        Step::apply(
            one,
            "alice",
            false,
            &with(&kind, &json!({"metadata": {"managedFields": [{"manager": "x"}]}})),
        ),
        Step::apply(one, "alice", false, &with(&kind, &json!({"nonsense": 1}))),
        Step::apply(
            one,
            "alice",
            false,
            &with(&kind, &json!({"metadata": {"labels": {"a": 5}}})),
        ),
        Step::apply(one, "alice", false, &json!({"metadata": {"labels": {"a": "5"}}})),
        Step::get(one),
    ]
}

fn end(one: &str, rng: &mut Rng) -> Vec<Step> {
    let policy = pick(rng, &["Background", "Foreground", "Orphan"]);
    let options = |body: Value| {
        let mut options = with(&json!({"apiVersion": "v1", "kind": "DeleteOptions"}), &body);
        options["gracePeriodSeconds"] = json!(0);
        options
    };
    let delete = |body: &Value| Step::delete(one).json("application/json", body);
    vec![
        delete(&options(
            json!({"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}),
        )),
        delete(&options(json!({"preconditions": {"resourceVersion": "{old}"}}))),
        delete(&options(json!({"propagationPolicy": "Sideways"}))),
        delete(&options(json!({"propagationPolicy": policy, "orphanDependents": true}))),
        delete(&options(json!({"dryRun": ["All"]}))),
        delete(&json!({"kind": "Nonsense", "apiVersion": "v1"})),
        Step::patch(
            one,
            "merge",
            &json!({"metadata": {"finalizers": ["example.com/hold"], "ownerReferences": null}}),
        ),
        delete(&options(json!({"propagationPolicy": "Background"}))).keep("marked", "/metadata/resourceVersion"),
        Step::get(one),
        delete(&options(json!({}))),
        Step::patch(
            one,
            "merge",
            &json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}),
        ),
        Step::patch(one, "merge", &json!({"metadata": {"finalizers": null}})),
        Step::get(one),
        Step::delete(one),
        Step::delete(format!("{one}?gracePeriodSeconds=0")).until(Until::Ignored),
    ]
}

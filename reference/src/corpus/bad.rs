//! What is no request at all: broken bodies, wrong types of content, paths that lead nowhere.

use fastrand::Rng;
use http::Method;
use serde_json::json;

use super::{Place, pick};
use crate::step::Step;

const BODIES: [(&str, &str); 34] = [
    ("application/json", ""),
    ("application/json", "{"),
    ("application/json", "null"),
    ("application/json", "[]"),
    ("application/json", "5"),
    ("application/json", "\"text\""),
    ("application/json", "{}"),
    ("application/json", "{} trailing"),
    ("application/json", "{\"kind\": \"Secret\"}"),
    (
        "application/json",
        "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"x\"}, \"data\": {\"a\": \"not base64!\"}}",
    ),
    (
        "application/json",
        "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": []}",
    ),
    (
        "application/json",
        "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": 5}}",
    ),
    (
        "application/json",
        "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"x\", \"name\": \"y\"}}",
    ),
    ("application/json", "{\"apiVersion\": 5, \"kind\": \"Secret\"}"),
    ("application/json", "{\"apiVersion\": \"v1\", \"kind\": {}}"),
    (
        "application/json",
        "{\"apiVersion\": \"a/b/c\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"x\"}}",
    ),
    (
        "application/json",
        "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"x\", \"labels\": null}, \"immutable\": \"yes\"}",
    ),
    ("application/json", "{\"metadata\": {\"name\": \"\\ud800\"}}"),
    ("application/json", "{\"metadata\": {\"name\": \"x\"}, \"type\": 1e400}"),
    ("application/json", "{'metadata': {}}"),
    ("application/json", "\u{feff}{}"),
    ("application/yaml", "metadata: {name: from-yaml}\nstringData: {a: b}\n"),
    ("application/yaml", "metadata: {name: from-yaml\n"),
    ("application/yaml", "- a\n- b\n"),
    ("application/yaml", "a: &a [1]\nb: *a\nmetadata: {name: aliased}\n"),
    ("application/yaml", "metadata: {name: x, name: y}\n"),
    ("application/yaml", ""),
    ("text/plain", "hello"),
    ("application/xml", "<a/>"),
    (
        "application/json; charset=utf-8",
        "{\"metadata\": {\"name\": \"charset\"}}",
    ),
    ("APPLICATION/JSON", "{\"metadata\": {\"name\": \"loud\"}}"),
    ("application/merge-patch+json", "{}"),
    ("application/vnd.kubernetes.protobuf", "not protobuf"),
    ("nonsense", "{}"),
];

pub(super) fn steps(rng: &mut Rng, place: &Place) -> Vec<Step> {
    let all = place.collection("/api/v1", "secrets");
    let one = format!("{all}/there");
    let mut steps = vec![Step::post(&all, &json!({"metadata": {"name": "there"}}))];
    for _ in 0..14 {
        let (content_type, body) = *pick(rng, &BODIES);
        let validation = *pick(
            rng,
            &[
                "",
                "?fieldValidation=Strict",
                "?fieldValidation=Warn",
                "?fieldValidation=Nonsense",
            ],
        );
        let step = match rng.u8(0..8) {
            0 => Step::of(Method::PUT, format!("{one}{validation}")),
            1 => Step::of(Method::PATCH, format!("{one}{validation}")),
            2 => Step::of(Method::DELETE, format!("{all}/missing{validation}")),
            _ => Step::of(Method::POST, format!("{all}{validation}")),
        };
        steps.push(step.raw(content_type, body));
    }
    for kind in ["json", "merge", "strategic-merge"] {
        let body = *pick(
            rng,
            &[
                "",
                "{",
                "[]",
                "{}",
                "null",
                "5",
                "[{\"op\": \"add\"}]",
                "[{\"op\": \"leap\", \"path\": \"/a\"}]",
                "[null]",
            ],
        );
        steps.push(Step::of(Method::PATCH, &one).raw(&format!("application/{kind}-patch+json"), body));
    }
    let apply = *pick(
        rng,
        &[
            "",
            "{",
            "[]",
            "null",
            "a: b",
            "apiVersion: v1\nkind: Secret\n",
            "a: [unclosed",
        ],
    );
    steps.push(Step::of(Method::PATCH, format!("{one}?fieldManager=m")).raw("application/apply-patch+yaml", apply));
    steps.push(
        Step::of(Method::PATCH, format!("{one}?force=perhaps&fieldManager=m"))
            .raw("application/apply-patch+yaml", "{}"),
    );
    steps.push(Step::of(Method::PATCH, format!("{one}?force=true")).raw("application/merge-patch+json", "{}"));
    let deep = format!(
        "{{\"metadata\": {{\"name\": \"deep\"}}, \"x\": {}{}}}",
        "[".repeat(90),
        "]".repeat(90)
    );
    steps.push(Step::of(Method::POST, format!("{all}?fieldValidation=Ignore")).raw("application/json", deep));
    for path in [
        "/nothing",
        "/api/v2",
        "/api/v1/nothings",
        "/api/v1/nothings/x",
        "/apis/no.such.group",
        "/apis/no.such.group/v1",
        "/apis/no.such.group/v1/things",
        "/apis/apps/v9/deployments",
        "/apis/apps/v1/namespaces/default/nothings",
        "/apis/apps/v1/namespaces/default/deployments/x/nothing",
        "/api/v1/namespaces/default/pods/x/log",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/pods/x",
        "/api/v1/namespaces/default/secrets/",
        "/api/v1//secrets",
        "/api/v1/namespaces/default/secrets/a%2Fb",
        "/api/v1/namespaces/default/secrets/UPPER",
        "/apis/",
        "/apis/apps",
        "/apis/apps/",
    ] {
        steps.push(Step::get(path));
    }
    // All namespaces, of which only this scenario's is looked at: others come and go meanwhile.
    steps.push(Step::get(format!(
        "/api/v1/namespaces//secrets?fieldSelector=metadata.namespace%3D{}",
        place.namespace
    )));
    for method in [
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
    ] {
        steps.push(Step::of(
            method,
            *pick(
                rng,
                &[
                    "/api",
                    "/apis",
                    "/version",
                    "/healthz",
                    "/api/v1",
                    "/api/v1/nothings",
                    "/nothing",
                ],
            ),
        ));
    }
    steps.push(Step::of(Method::OPTIONS, &all));
    steps
}

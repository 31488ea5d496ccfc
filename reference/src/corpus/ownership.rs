//! Server-side apply: two managers, their lists and maps, what they take over and what they give up.

use fastrand::Rng;
use serde_json::{Value, json};

use super::{Place, pick};
use crate::step::Step;

pub(super) fn steps(rng: &mut Rng, place: &Place) -> Vec<Step> {
    let all = place.collection("/apis/apps/v1", "deployments");
    let one = format!("{all}/d");
    let mut steps = vec![Step::apply(&one, "alice", false, &deployment(rng))];
    for _ in 0..14 {
        let manager = *pick(rng, &["alice", "bob", "carol"]);
        let step = match rng.u8(0..10) {
            0..=5 => Step::apply(&one, manager, rng.bool(), &deployment(rng)),
            6 => Step::patch(
                format!("{one}?fieldManager={manager}"),
                "strategic-merge",
                &partial(rng),
            ),
            7 => Step::patch(
                format!("{one}?fieldManager={manager}"),
                "merge",
                &json!({"spec": {"replicas": rng.u8(0..5)}}),
            ),
            8 => Step::patch(
                format!("{one}/scale?fieldManager={manager}"),
                "merge",
                &json!({"spec": {"replicas": rng.u8(0..5)}}),
            ),
            _ => Step::patch(
                format!("{one}?fieldManager={manager}"),
                "json",
                &json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]),
            ),
        };
        steps.push(step);
    }
    let service = format!("{}/s", place.collection("/api/v1", "services"));
    for _ in 0..4 {
        steps.push(Step::apply(
            &service,
            pick::<&str>(rng, &["alice", "bob"]),
            rng.bool(),
            &self::service(rng),
        ));
    }
    // What kubectl wrote client-side is taken over once it applies server-side.
    let map = format!("{}/m", place.collection("/api/v1", "configmaps"));
    let last =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}});
    let mut written = last.clone();
    written["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": last.to_string()});
    let mut fewer = last.clone();
    fewer["data"] = json!({"a": "1"});
    steps.push(Step::post(
        format!(
            "{}?fieldManager=kubectl-client-side-apply",
            place.collection("/api/v1", "configmaps")
        ),
        &written,
    ));
    steps.push(Step::apply(&map, "kubectl", false, &fewer));
    steps.push(Step::apply(&map, "other", false, &last));
    steps.push(Step::get(&one));
    steps
}

fn partial(rng: &mut Rng) -> Value {
    json!({"spec": {"template": {"spec": {"containers": containers(rng)}}}})
}

fn deployment(rng: &mut Rng) -> Value {
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "a"}},
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": containers(rng)}}}});
    if rng.bool() {
        object["spec"]["replicas"] = json!(rng.u8(0..5));
    }
    if rng.bool() {
        object["metadata"]["labels"] = json!({*pick(rng, &["x", "y"]): pick(rng, &["1", "2"])});
    }
    if rng.u8(0..4) == 0 {
        object["metadata"]["finalizers"] = json!([pick(rng, &["example.com/a", "example.com/b"])]);
    }
    if rng.u8(0..3) == 0 {
        object["spec"]["template"]["spec"]["tolerations"] =
            json!([{"key": pick(rng, &["k", "l"]), "operator": "Exists"}]);
    }
    if rng.u8(0..3) == 0 {
        object["spec"]["template"]["spec"]["nodeSelector"] = json!({*pick(rng, &["disk", "zone"]): "x"});
    }
    if rng.u8(0..3) == 0 {
        object["spec"]["strategy"] = pick(
            rng,
            &[
                json!({"type": "Recreate"}),
                json!({"rollingUpdate": {"maxSurge": "30%"}}),
            ],
        )
        .clone();
    }
    object
}

fn containers(rng: &mut Rng) -> Value {
    let mut containers = Vec::new();
    for name in ["main", "side", "more"] {
        if name != "main" && rng.bool() {
            continue;
        }
        let mut container = json!({"name": name, "image": pick(rng, &["example.com/a:1", "example.com/a:2"])});
        if rng.bool() {
            container["env"] = json!([{"name": pick(rng, &["A", "B"]), "value": pick(rng, &["1", "2"])}]);
        }
        if rng.bool() {
            container["ports"] =
                json!([{"containerPort": pick(rng, &[80, 81]), "protocol": pick(rng, &["TCP", "UDP"])}]);
        }
        if rng.u8(0..3) == 0 {
            container["args"] = json!([pick(rng, &["a", "b"])]);
        }
        if rng.u8(0..3) == 0 {
            container["resources"] = json!({"limits": {"cpu": pick(rng, &["1", "1000m", "0.5"])}});
        }
        if rng.u8(0..6) == 0 {
            container["nonsense"] = json!(true);
        }
        containers.push(container);
    }
    if rng.u8(0..10) == 0 {
        containers.push(containers[0].clone());
    }
    Value::Array(containers)
}

fn service(rng: &mut Rng) -> Value {
    let mut ports = Vec::new();
    for (name, port) in [("a", 80), ("b", 81), ("c", 80)] {
        if rng.bool() {
            ports.push(json!({"name": name, "port": port, "protocol": pick(rng, &["TCP", "UDP"])}));
        }
    }
    if ports.is_empty() {
        ports.push(json!({"name": "only", "port": 90}));
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": ports, "selector": {"app": pick(rng, &["a", "b"])}}})
}

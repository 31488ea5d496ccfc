//! What a real server answered, case by case, and what is answered here.
//!
//! `recorded/answers.jsonl` was recorded from kube-apiserver 1.36.4. A line with `object` is an object that a server
//! takes. Every other line changes such an object at some places (`set`) and says what came of creating it; with `then`,
//! what came of changing it further at these places when it stood there as `old`.

use std::collections::HashMap;

use moorline_machinery::{facts::Facts, gvk::GroupVersionKind};
use serde_json::{Value, json};

use super::super::{
    conform::{Purpose, conform},
    defaults, states,
};

struct Case {
    base: String,
    given: Value,
    outcome: Outcome,
    old: Option<Value>,
}

enum Outcome {
    /// Answer 422, with these causes. Where a text goes on in further lines, they are left out.
    Invalid(Vec<String>),
    /// Answer 400, with this message.
    Unreadable(String),
    /// What is stored.
    Stored(Value),
}

fn cases() -> Vec<Case> {
    let mut bases = HashMap::new();
    let mut cases = Vec::new();
    for line in include_str!("recorded/answers.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let base = line["base"].as_str().unwrap().to_owned();
        if let Some(object) = line.get("object") {
            bases.insert(base, object.clone());
            continue;
        }
        let old = line.get("old").cloned();
        let given = match &old {
            Some(old) => changed(old, &line["then"]),
            None => changed(&bases[&base], &line["set"]),
        };
        let outcome = if let Some(errors) = line.get("errors") {
            Outcome::Invalid(serde_json::from_value(errors.clone()).unwrap())
        } else if let Some(message) = line.get("refused") {
            Outcome::Unreadable(message.as_str().unwrap().to_owned())
        } else {
            Outcome::Stored(line["stored"].clone())
        };
        cases.push(Case {
            base,
            given,
            outcome,
            old,
        });
    }
    cases
}

/// An object with other values at some places; a value of `{"$del":1}` removes the one that is there.
fn changed(object: &Value, places: &Value) -> Value {
    let mut object = object.clone();
    for (pointer, value) in places.as_object().unwrap() {
        let mut steps: Vec<&str> = pointer.trim_start_matches('/').split('/').collect();
        let last = steps.pop().unwrap();
        let mut at = &mut object;
        for step in steps {
            at = match at {
                Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
                _ => &mut at[step],
            };
        }
        if *value == json!({ "$del": 1 }) {
            at.as_object_mut().unwrap().remove(last);
        } else if let Value::Array(items) = at {
            items[last.parse::<usize>().unwrap()] = value.clone();
        } else {
            at[last] = value.clone();
        }
    }
    object
}

/// What is stored, or the message of an answer 400, or the causes of an answer 422.
fn answer(facts: &Facts, case: &Case) -> Outcome {
    let kind = GroupVersionKind::of(&case.given).unwrap();
    let (group, name) = (&*kind.group, &*kind.kind);
    let mut object = case.given.clone();
    if let Err(message) = conform(facts, &kind, &mut object, Purpose::Store) {
        return Outcome::Unreadable(message);
    }
    if name == "Secret" {
        states::encode_string_data(&mut object);
    }
    let namespaced = case.base != "ns" && case.base != "node";
    if namespaced {
        object["metadata"]["namespace"] = json!("default");
    }
    defaults::fill(group, name, &mut object);
    if name == "Pod" {
        tolerate_lost_nodes(&mut object);
    }
    let mut errors = Vec::new();
    match &case.old {
        None => {
            object["metadata"]["uid"] = json!("u");
            states::first(group, name, &mut object);
            conform(facts, &kind, &mut object, Purpose::Store).unwrap();
        }
        Some(old) => {
            object["metadata"]["resourceVersion"] = json!("1");
            if !old["status"].is_null() {
                object["status"] = old["status"].clone();
            }
            states::next(group, name, &mut object, old);
            conform(facts, &kind, &mut object, Purpose::Store).unwrap();
        }
    }
    errors.extend(super::object(group, name, &object));
    if let Some(old) = &case.old {
        errors.extend(super::change(group, name, &object, old));
    }
    if errors.is_empty() {
        Outcome::Stored(object)
    } else {
        Outcome::Invalid(errors.iter().map(ToString::to_string).collect())
    }
}

/// What the recording server's admission adds to pods.
fn tolerate_lost_nodes(pod: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let list = &mut pod["spec"]["tolerations"];
        if list.is_null() {
            *list = json!([]);
        }
        let list = list.as_array_mut().unwrap();
        if list
            .iter()
            .all(|toleration| toleration["key"] != key && !toleration["key"].is_null())
        {
            let toleration =
                json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 });
            list.push(toleration);
        }
    }
}

/// Leaves out what depends on chance or on other objects: metadata, addresses and what is named after a uid.
fn comparable(mut object: Value) -> Value {
    object["metadata"] = json!({ "labels": object["metadata"]["labels"] });
    if object["kind"] == "PersistentVolume" {
        object["status"]["lastPhaseTransitionTime"] = Value::Null;
    }
    if object["kind"] == "Service" {
        for name in [
            "clusterIP",
            "clusterIPs",
            "ipFamilies",
            "ipFamilyPolicy",
            "healthCheckNodePort",
        ] {
            object["spec"][name] = Value::Null;
        }
        for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
            port["nodePort"] = Value::Null;
        }
    }
    if object["kind"] == "Job" {
        object["spec"]["selector"] = Value::Null;
        object["spec"]["template"]["metadata"] = Value::Null;
        object["metadata"] = Value::Null;
    }
    object
}

/// A whole template appears in one error, in the form that it has inside of Kubernetes. That form is not told here.
fn without_template(error: &str) -> String {
    match error.strip_prefix("spec.template: Invalid value: {") {
        Some(rest) => format!("spec.template: {}", rest.rsplit(": ").next().unwrap_or_default()),
        None => error.to_owned(),
    }
}

/// What an error says, without what follows in further lines.
fn first_line(text: &str) -> &str {
    text.split('\n').next().unwrap_or_default()
}

/// What the metadata, the addresses of services and compilers of expressions have to say is said elsewhere.
fn is_said_elsewhere(error: &str) -> bool {
    error.starts_with("metadata.annotations: ")
        || error.contains("compilation failed")
        || error.contains("must evaluate to")
        || error.contains("provided port is already allocated")
        || error.contains("failed to allocate IP")
        || error.contains("on this cluster")
        || error.contains("this cluster is not configured")
}

#[test]
fn answers_are_those_that_a_real_server_gave() {
    let facts = Facts::parse(include_str!("../../../facts/builtin.txt")).unwrap();
    let mut different = Vec::new();
    for case in cases() {
        let title = format!("{} {}", case.base, case.given);
        match (&case.outcome, answer(&facts, &case)) {
            (Outcome::Invalid(wanted), _) if wanted.iter().any(|error| is_said_elsewhere(error)) => {}
            (Outcome::Invalid(wanted), Outcome::Invalid(found)) => {
                let found: Vec<&str> = found.iter().map(|error| first_line(error)).collect();
                let equal = wanted.len() == found.len()
                    && wanted
                        .iter()
                        .zip(&found)
                        .all(|(wanted, found)| without_template(wanted) == without_template(found));
                if !equal {
                    different.push(format!("{title}\n  wanted {wanted:#?}\n  found {found:#?}"));
                }
            }
            (Outcome::Unreadable(wanted), Outcome::Unreadable(found)) => {
                if *wanted != found {
                    different.push(format!("{title}\n  wanted {wanted}\n  found  {found}"));
                }
            }
            (Outcome::Stored(wanted), Outcome::Stored(found)) => {
                let (wanted, found) = (comparable(wanted.clone()), comparable(found));
                if wanted != found {
                    different.push(format!("{title}\n  wanted {wanted}\n  found  {found}"));
                }
            }
            (Outcome::Invalid(wanted), Outcome::Stored(_)) => {
                different.push(format!("{title}\n  wanted {wanted:#?}\n  found  it right"));
            }
            (Outcome::Invalid(wanted), Outcome::Unreadable(found)) => {
                different.push(format!("{title}\n  wanted {wanted:#?}\n  found  {found}"));
            }
            (Outcome::Unreadable(wanted), Outcome::Invalid(found)) => {
                different.push(format!("{title}\n  wanted {wanted}\n  found  {found:#?}"));
            }
            (Outcome::Unreadable(wanted), Outcome::Stored(_)) => {
                different.push(format!("{title}\n  wanted {wanted}\n  found  it right"));
            }
            (Outcome::Stored(_), Outcome::Invalid(found)) => {
                different.push(format!("{title}\n  wanted it right\n  found  {found:#?}"));
            }
            (Outcome::Stored(_), Outcome::Unreadable(found)) => {
                different.push(format!("{title}\n  wanted it right\n  found  {found}"));
            }
        }
    }
    assert!(
        different.is_empty(),
        "{} differ:\n{}",
        different.len(),
        different.join("\n")
    );
}

/// What a client does to a pod.
type Change = Box<dyn Fn(&mut Value)>;

/// A pod as stored, and as a client then writes it to a subresource.
fn pods(change: impl Fn(&mut Value)) -> (Value, Value) {
    let facts = Facts::parse(include_str!("../../../facts/builtin.txt")).unwrap();
    let mut old = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": { "containers": [{
        "name": "c", "image": "i:1",
        "resources": { "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2" } },
    }] } });
    let kind = GroupVersionKind::of(&old).unwrap();
    conform(&facts, &kind, &mut old, Purpose::Store).unwrap();
    defaults::fill("", "Pod", &mut old);
    states::first("", "Pod", &mut old);
    old["metadata"]["resourceVersion"] = json!("1");
    let mut new = old.clone();
    change(&mut new);
    conform(&facts, &kind, &mut new, Purpose::Store).unwrap();
    defaults::fill("", "Pod", &mut new);
    (new, old)
}

#[test]
fn a_resize_changes_processor_time_and_memory_only() {
    let resources =
        |resources: Value| move |pod: &mut Value| pod["spec"]["containers"][0]["resources"] = resources.clone();
    let cases: [(Change, &str); 9] = [
        (
            Box::new(resources(
                json!({ "requests": { "cpu": "1500m", "memory": "1Gi" }, "limits": { "cpu": "2" } }),
            )),
            "",
        ),
        (Box::new(|pod| pod["spec"]["containers"][0]["image"] = json!("j:1")), ""),
        (
            Box::new(resources(
                json!({ "requests": { "cpu": "3", "memory": "1Gi" }, "limits": { "cpu": "2" } }),
            )),
            "spec.containers[0].resources.requests: Invalid value: \"3\": must be less than or equal to cpu limit of 2",
        ),
        (
            Box::new(resources(
                json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "2" } }),
            )),
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
        ),
        (
            Box::new(resources(json!({ "requests": { "cpu": "1", "memory": "1Gi" } }))),
            "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (
            Box::new(resources(json!({ "limits": { "cpu": "2", "memory": "1Gi" } }))),
            "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing",
        ),
        (
            Box::new(resources(
                json!({ "requests": { "cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi" }, "limits": { "cpu": "2" } }),
            )),
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
        (
            Box::new(|pod| {
                pod["spec"]["containers"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({ "name": "d", "image": "i:1" }));
            }),
            "spec.containers: Forbidden: containers may not be added or removed on resize",
        ),
        (
            Box::new(|pod| {
                let policy = json!([{ "resourceName": "cpu", "restartPolicy": "NotRequired" }]);
                pod["spec"]["containers"][0]["resizePolicy"] = policy;
            }),
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
    ];
    for (change, wanted) in cases {
        let (mut new, old) = pods(change);
        states::only_resources(&mut new, &old);
        let found: Vec<String> = super::pod_resize(&new, &old).iter().map(ToString::to_string).collect();
        assert_eq!(found.join(", "), wanted);
    }
}

#[test]
fn ephemeral_containers_are_added_and_nothing_else_changes() {
    let (mut new, old) = pods(|pod| {
        pod["spec"]["ephemeralContainers"] = json!([{ "name": "e", "image": "i:1" }]);
        pod["spec"]["nodeSelector"] = json!({ "a": "b" });
    });
    states::only_ephemeral_containers(&mut new, &old);
    assert!(new["spec"]["nodeSelector"].is_null());
    assert_eq!(super::pod_ephemeral_containers(&new, &old), []);
    let mut gone = new.clone();
    gone["spec"]["ephemeralContainers"] = json!([]);
    let found = super::pod_ephemeral_containers(&gone, &new);
    assert!(found[0].to_string().contains("may not be removed"));
    let (mut wrong, old) = pods(|pod| {
        pod["spec"]["ephemeralContainers"] = json!([{
            "name": "e", "image": "i:1", "ports": [{ "containerPort": 1 }], "resources": { "limits": { "cpu": "1" } },
            "livenessProbe": { "exec": { "command": ["a"] } }, "lifecycle": {}, "targetContainerName": "z",
        }]);
    });
    states::only_ephemeral_containers(&mut wrong, &old);
    let found: Vec<String> = super::pod_ephemeral_containers(&wrong, &old)
        .iter()
        .map(ToString::to_string)
        .collect();
    let forbidden = |field: &str| {
        format!("spec.ephemeralContainers[0].{field}: Forbidden: cannot be set for an Ephemeral Container")
    };
    let mut wanted = vec!["spec.ephemeralContainers[0].targetContainerName: Not found: \"z\"".to_owned()];
    wanted.extend(["ports", "resources", "livenessProbe", "lifecycle"].map(forbidden));
    assert_eq!(found, wanted);
}

#[test]
fn no_object_makes_the_checks_panic() {
    let wrong = [
        json!(null),
        json!(1),
        json!("x"),
        json!([]),
        json!({}),
        json!([null]),
        json!(["", 1]),
        json!({ "a": [1] }),
    ];
    let facts = Facts::parse(include_str!("../../../facts/builtin.txt")).unwrap();
    let mut random = fastrand::Rng::with_seed(0x6d6f_6f72);
    for case in cases() {
        let kind = GroupVersionKind::of(&case.given).unwrap();
        let mut object = case.given.clone();
        for _ in 0..6 {
            scramble(&mut object, &wrong, &mut random);
            let old = case.old.clone().unwrap_or_else(|| case.given.clone());
            let mut filled = object.clone();
            defaults::fill(&kind.group, &kind.kind, &mut filled);
            super::object(&kind.group, &kind.kind, &object);
            super::change(&kind.group, &kind.kind, &object, &old);
            if conform(&facts, &kind, &mut filled, Purpose::Store).is_ok() {
                states::next(&kind.group, &kind.kind, &mut filled.clone(), &old);
                states::first(&kind.group, &kind.kind, &mut filled);
            }
        }
    }
}

/// Puts a value of another type somewhere into an object.
fn scramble(value: &mut Value, wrong: &[Value], random: &mut fastrand::Rng) {
    let deeper = random.u8(..5) > 0;
    match value {
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let position = random.usize(..fields.len());
            scramble(fields.values_mut().nth(position).unwrap(), wrong, random);
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let position = random.usize(..items.len());
            scramble(&mut items[position], wrong, random);
        }
        _ => *value = wrong[random.usize(..wrong.len())].clone(),
    }
}

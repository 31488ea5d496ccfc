use serde_json::json;

use super::*;

fn facts() -> Facts {
    Facts::parse(include_str!("../../../facts/builtin.txt")).unwrap()
}

fn kind_of(object: &Value) -> GroupVersionKind {
    GroupVersionKind::of(object).unwrap()
}

fn conformed(mut object: Value) -> Value {
    conform(&facts(), &kind_of(&object), &mut object, Purpose::Store).unwrap();
    object
}

fn refused(mut object: Value) -> String {
    conform(&facts(), &kind_of(&object), &mut object, Purpose::Store).unwrap_err()
}

#[test]
fn structs_are_written_and_empty_values_are_not() {
    let deployment = conformed(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "a", "creationTimestamp": null, "labels": {}, "generation": 0 },
        "spec": {
            "replicas": 0, "paused": false, "minReadySeconds": 0, "selector": { "matchLabels": { "a": "b" } },
            "template": { "spec": { "hostNetwork": false, "nodeName": "", "tolerations": [], "containers": [
                { "name": "c", "image": null, "args": null, "env": [{ "name": "E", "value": "" }], "tty": true },
            ] } },
        },
    }));
    assert_eq!(
        deployment,
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "a" },
            "spec": {
                "replicas": 0, "selector": { "matchLabels": { "a": "b" } }, "strategy": {},
                "template": { "metadata": {}, "spec": { "containers": [
                    { "name": "c", "env": [{ "name": "E" }], "resources": {}, "tty": true },
                ] } },
            },
            "status": {},
        })
    );
}

#[test]
fn fields_without_omitempty_are_written_with_their_zero() {
    for (given, kept) in [
        (
            json!({ "kind": "Service", "apiVersion": "v1" }),
            json!({ "spec": {}, "status": { "loadBalancer": {} } }),
        ),
        (
            json!({ "kind": "Event", "apiVersion": "v1" }),
            json!({
                "eventTime": null, "firstTimestamp": null, "involvedObject": {}, "lastTimestamp": null,
                "reportingComponent": "", "reportingInstance": "", "source": {},
            }),
        ),
        (
            json!({ "kind": "ReplicaSet", "apiVersion": "apps/v1" }),
            json!({
                "spec": { "selector": null, "template": { "metadata": {}, "spec": { "containers": null } } },
                "status": { "replicas": 0 },
            }),
        ),
        (
            json!({ "kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1" }),
            json!({ "rules": null }),
        ),
    ] {
        let mut kept = kept;
        kept["apiVersion"] = given["apiVersion"].clone();
        kept["kind"] = given["kind"].clone();
        kept["metadata"] = json!({});
        if given["kind"] == "ReplicaSet" {
            kept["spec"]["template"] = json!({ "metadata": {}, "spec": { "containers": null } });
            kept["spec"]["template"] = conformed(given.clone())["spec"]["template"].clone();
        }
        assert_eq!(conformed(given), kept);
    }
}

#[test]
fn a_type_that_go_cannot_read_is_told_in_its_words() {
    let deployment = |spec: Value| json!({ "apiVersion": "apps/v1", "kind": "Deployment", "spec": spec });
    let pod = |spec: Value| json!({ "apiVersion": "v1", "kind": "Pod", "spec": spec });
    for (object, text) in [
        (
            deployment(json!({ "replicas": "3" })),
            "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal string into Go \
             struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            deployment(json!({ "replicas": 1.5 })),
            "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal number 1.5 into Go \
             struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            deployment(json!({ "replicas": 4_294_967_296_i64 })),
            "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal number 4294967296 \
             into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "a": 1 } }),
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct \
             field ConfigMap.data of type string",
        ),
        (
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "labels": { "a": true } } }),
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal bool into Go struct \
             field ObjectMeta.metadata.labels of type string",
        ),
        (
            pod(json!({ "containers": "c" })),
            "Pod in version \"v1\" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field \
             PodSpec.spec.containers of type []v1.Container",
        ),
        (
            pod(json!({ "containers": [{ "ports": [{ "containerPort": "80" }] }] })),
            "Pod in version \"v1\" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field \
             ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            pod(json!({ "containers": [{ "resources": { "limits": { "cpu": "x" } } }] })),
            "Pod in version \"v1\" cannot be handled as a Pod: quantities must match the regular expression \
             '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            json!({ "apiVersion": "v1", "kind": "Secret", "data": { "a": "%%%" } }),
            "Secret in version \"v1\" cannot be handled as a Secret: illegal base64 data at input byte 0",
        ),
        (
            json!({ "apiVersion": "v1", "kind": "Service", "spec": { "ports": [{ "targetPort": true }] } }),
            "Service in version \"v1\" cannot be handled as a Service: json: cannot unmarshal bool into Go struct \
             field ServicePort.spec.ports.targetPort of type int32",
        ),
    ] {
        assert_eq!(refused(object), text);
    }
}

#[test]
fn amounts_and_times_take_their_canonical_text() {
    let claim = conformed(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "spec": { "resources": { "requests": { "storage": 1024 }, "limits": { "storage": "0.5Gi" } } },
    }));
    assert_eq!(
        claim["spec"]["resources"],
        json!({ "requests": { "storage": "1024" }, "limits": { "storage": "512Mi" } })
    );
    let lease = conformed(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "deletionTimestamp": "2026-01-01T01:00:00.5+01:00" },
        "spec": { "renewTime": "2026-01-01T01:00:00.250000+01:00" },
    }));
    assert_eq!(lease["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(lease["spec"]["renewTime"], "2026-01-01T00:00:00.250000Z");
}

#[test]
fn null_is_the_zero_of_a_list_element_and_of_a_map_entry() {
    let pod = conformed(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "labels": { "a": null } },
        "spec": { "containers": [null], "nodeSelector": null },
    }));
    assert_eq!(pod["metadata"]["labels"], json!({ "a": "" }));
    assert_eq!(pod["spec"], json!({ "containers": [{ "name": "", "resources": {} }] }));
}

#[test]
fn unknown_fields_and_kinds_are_left_alone() {
    let object = json!({ "apiVersion": "example.com/v1", "kind": "Thing", "spec": { "a": null } });
    assert_eq!(conformed(object.clone()), object);
    let pod = conformed(json!({ "apiVersion": "v1", "kind": "Pod", "spec": { "unknown": null } }));
    assert!(pod["spec"].as_object().unwrap().contains_key("unknown"));
}

/// Values that mostly fit the field they are made for.
fn value_for(facts: &Facts, element: Element, depth: usize, random: &mut fastrand::Rng) -> Value {
    if random.u8(..12) == 0 {
        let misfits = [
            json!(null),
            json!(1),
            json!("x"),
            json!([]),
            json!({}),
            json!(true),
            json!([null]),
            json!(1.5),
        ];
        return misfits[random.usize(..misfits.len())].clone();
    }
    match element {
        Element::String => json!(["", "a"][random.usize(..2)]),
        Element::Int32 | Element::Int64 => json!(random.i32(-1..2)),
        Element::Double => json!(1.5),
        Element::Bool => json!(random.bool()),
        Element::Bytes => json!(["", "YQ==", "YQ=\n="][random.usize(..3)]),
        Element::Message(id) => match facts.message(id).form {
            Form::Object => object_for(facts, id, depth, random),
            Form::Time => json!("2026-01-01T00:00:00.5+01:00"),
            Form::MicroTime => json!("2026-01-01T00:00:00.500000+01:00"),
            Form::Duration => json!("90s"),
            Form::Quantity => json!(["1000m", "0.1", "1Gi", " 1", "1e3", "1.5Gi", "0"][random.usize(..7)]),
            Form::IntOrString => [json!(80), json!("80"), json!("")][random.usize(..3)].clone(),
            Form::Items => json!(["a", null]),
            _ => json!({ "type": "object", "properties": {} }),
        },
    }
}

fn object_for(facts: &Facts, id: MessageId, depth: usize, random: &mut fastrand::Rng) -> Value {
    let mut fields = Map::new();
    if depth == 0 {
        return Value::Object(fields);
    }
    for field in facts.fields(id) {
        if random.u8(..3) == 0 {
            continue;
        }
        let mut one = || value_for(facts, field.element, depth - 1, random);
        let value = match field.cardinality {
            _ if field.name.is_empty() => {
                if let Element::Message(inlined) = field.element {
                    fields.append(object_for(facts, inlined, depth, random).as_object_mut().unwrap());
                }
                continue;
            }
            Cardinality::One | Cardinality::Optional => one(),
            Cardinality::List => json!([one()]),
            Cardinality::Map => json!({ "k": one() }),
        };
        fields.insert(field.name.to_owned(), value);
    }
    Value::Object(fields)
}

#[test]
fn conforming_twice_is_conforming_once() {
    let facts = facts();
    let mut random = fastrand::Rng::with_seed(0x6d6f_6f72);
    let mut accepted = 0;
    for (api_version, kind, id) in facts.kinds() {
        for _ in 0..20 {
            let mut object = object_for(&facts, id, 5, &mut random);
            object["apiVersion"] = json!(api_version);
            object["kind"] = json!(kind);
            let gvk = kind_of(&object);
            if conform(&facts, &gvk, &mut object, Purpose::Store).is_err() {
                continue;
            }
            accepted += 1;
            let mut again = object.clone();
            assert_eq!(conform(&facts, &gvk, &mut again, Purpose::Store), Ok(()));
            assert_eq!(again, object);
        }
    }
    assert!(accepted > 500, "only {accepted} objects were read at all");
}

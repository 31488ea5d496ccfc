use serde_json::json;

use super::*;
use crate::amounts::Amounts;

fn container(value: serde_json::Value) -> Container {
    serde_json::from_value(value).unwrap()
}

fn resolved(
    pod: &k8s_openapi::api::core::v1::Pod,
    container: &Container,
    objects: &Objects,
    services: &[&Service],
) -> Result<BTreeMap<String, String>, EnvError> {
    let mut allocatable = Amounts::default();
    allocatable.set("cpu", 2000);
    let ips = ["10.1.2.3".parse().unwrap()];
    let hosts = ["10.0.0.1".parse().unwrap()];
    let facts = Facts {
        pod,
        container: Some(container),
        pod_ips: &ips,
        host_ips: &hosts,
        allocatable: &allocatable,
    };
    resolve(container, &facts, objects, services)
}

fn pod() -> k8s_openapi::api::core::v1::Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "p", "namespace": "n", "uid": "u", "labels": { "b": "2", "a": "x\"y" } },
        "spec": { "containers": [], "nodeName": "h", "serviceAccountName": "s" },
    }))
    .unwrap()
}

#[test]
fn later_variables_use_earlier_ones() {
    let container = container(json!({ "name": "c", "env": [
        { "name": "A", "value": "1" }, { "name": "B", "value": "$(A)2" }, { "name": "C", "value": "$(D)" },
    ] }));
    let env = resolved(&pod(), &container, &Objects::default(), &[]).unwrap();
    assert_eq!(env["B"], "12");
    assert_eq!(env["C"], "$(D)");
}

#[test]
fn the_pod_and_its_resources_are_told() {
    let container = container(json!({ "name": "c",
        "resources": { "limits": { "memory": "64Mi" }, "requests": { "cpu": "250m" } },
        "env": [
            { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
            { "name": "LABELS", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels" } } },
            { "name": "LABEL", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['b']" } } },
            { "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "requests.cpu" } } },
            { "name": "MILLI", "valueFrom": { "resourceFieldRef": { "resource": "requests.cpu", "divisor": "1m" } } },
            { "name": "ALL", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } },
            { "name": "MEM", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory", "divisor": "1Mi" } } },
        ] }));
    let env = resolved(&pod(), &container, &Objects::default(), &[]).unwrap();
    assert_eq!(env["IP"], "10.1.2.3");
    assert_eq!(env["LABELS"], "a=\"x\\\"y\"\nb=\"2\"");
    assert_eq!(env["LABEL"], "2");
    assert_eq!((env["CPU"].as_str(), env["MILLI"].as_str()), ("1", "250"));
    assert_eq!((env["ALL"].as_str(), env["MEM"].as_str()), ("2", "64"));
}

#[test]
fn what_is_not_there_is_named_unless_it_is_optional() {
    let needed = container(json!({ "name": "c", "env": [
        { "name": "A", "valueFrom": { "configMapKeyRef": { "name": "m", "key": "k" } } },
    ] }));
    let error = resolved(&pod(), &needed, &Objects::default(), &[]).unwrap_err();
    assert_eq!(error.to_string(), "configmap \"m\" not found");
    let mut objects = Objects::default();
    objects.config_maps.insert("m".to_owned(), ConfigMap::default());
    let error = resolved(&pod(), &needed, &objects, &[]).unwrap_err();
    assert_eq!(error.to_string(), "couldn't find key k in ConfigMap n/m");
    let optional = container(json!({ "name": "c", "envFrom": [{ "secretRef": { "name": "x", "optional": true } }] }));
    assert!(
        resolved(&pod(), &optional, &Objects::default(), &[])
            .unwrap()
            .is_empty()
    );
}

#[test]
fn services_are_told_by_variables() {
    let service: Service = serde_json::from_value(json!({
        "metadata": { "name": "red-is" },
        "spec": { "clusterIP": "10.0.0.11", "ports": [{ "port": 6379, "name": "db", "protocol": "TCP" }] },
    }))
    .unwrap();
    let env = resolved(
        &pod(),
        &container(json!({ "name": "c" })),
        &Objects::default(),
        &[&service],
    )
    .unwrap();
    assert_eq!(env["RED_IS_SERVICE_HOST"], "10.0.0.11");
    assert_eq!(env["RED_IS_SERVICE_PORT_DB"], "6379");
    assert_eq!(env["RED_IS_PORT"], "tcp://10.0.0.11:6379");
    assert_eq!(env["RED_IS_PORT_6379_TCP_ADDR"], "10.0.0.11");
}

#[test]
fn a_variable_comes_out_of_a_file_in_a_volume() {
    let from = |key: &str, path: &str, optional: bool| {
        container(json!({ "name": "c", "env": [{ "name": "A", "valueFrom": { "fileKeyRef":
            { "volumeName": "v", "path": path, "key": key, "optional": optional } } }] }))
    };
    let mut objects = Objects::default();
    let place = ("v".to_owned(), "f".to_owned());
    objects
        .files
        .insert(place.clone(), [("K".to_owned(), "1".to_owned())].into());
    assert_eq!(references(&from("K", "f", false)).files, [place]);
    let told = |container: &Container| resolved(&pod(), container, &objects, &[]);
    assert_eq!(told(&from("K", "f", false)).unwrap()["A"], "1");
    for (key, path, words) in [
        ("L", "f", "environment variable key \"L\" not found in file \"f\""),
        ("K", "g", "environment file \"g\" in volume \"v\" not found"),
    ] {
        assert_eq!(told(&from(key, path, false)).unwrap_err().to_string(), words);
        assert!(!told(&from(key, path, true)).unwrap().contains_key("A"));
    }
}

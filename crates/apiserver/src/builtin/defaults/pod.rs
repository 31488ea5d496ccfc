//! The defaults of pods and pod templates.

use moorline_machinery::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{absent, each, empty, object_at, part};

/// A pod template.
pub(super) fn template(template: &mut Map<String, Value>) {
    if let Some(spec) = part(template, "spec") {
        self::spec(spec);
    }
}

/// The spec of a pod, on its own or in a template.
pub(super) fn spec(spec: &mut Map<String, Value>) {
    empty(spec, "dnsPolicy", || json!("ClusterFirst"));
    empty(spec, "restartPolicy", || json!("Always"));
    absent(spec, "securityContext", || json!({}));
    absent(spec, "terminationGracePeriodSeconds", || json!(30));
    empty(spec, "schedulerName", || json!("default-scheduler"));
    // The old name of the field is kept in step with the new one.
    if let Some(account) = spec
        .get("serviceAccountName")
        .filter(|name| name.as_str() != Some(""))
        .cloned()
    {
        spec.insert("serviceAccount".to_owned(), account);
    } else if let Some(account) = spec
        .get("serviceAccount")
        .filter(|name| name.as_str() != Some(""))
        .cloned()
    {
        spec.insert("serviceAccountName".to_owned(), account);
    }
    let host_network = spec.get("hostNetwork") == Some(&json!(true));
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in each(spec, list) {
            self::container(container, host_network, list == "ephemeralContainers");
        }
    }
    for volume in each(spec, "volumes") {
        self::volume(volume);
    }
}

fn container(container: &mut Map<String, Value>, host_network: bool, ephemeral: bool) {
    absent(container, "resources", || json!({}));
    empty(container, "terminationMessagePath", || json!("/dev/termination-log"));
    empty(container, "terminationMessagePolicy", || json!("File"));
    let image = container
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    empty(container, "imagePullPolicy", || {
        if is_latest(&image) {
            json!("Always")
        } else {
            json!("IfNotPresent")
        }
    });
    for port in each(container, "ports") {
        empty(port, "protocol", || json!("TCP"));
        if host_network {
            let own = port.get("containerPort").cloned().unwrap_or_default();
            absent(port, "hostPort", || own);
        }
    }
    for variable in each(container, "env") {
        if let Some(field) = part(variable, "valueFrom").and_then(|from| part(from, "fieldRef")) {
            empty(field, "apiVersion", || json!("v1"));
        }
    }
    if ephemeral {
        return;
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = part(container, probe) {
            for (name, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                if probe
                    .get(name)
                    .is_none_or(|given| given.is_null() || *given == json!(0))
                {
                    probe.insert(name.to_owned(), json!(value));
                }
            }
            handler(probe);
        }
    }
    if let Some(lifecycle) = part(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = part(lifecycle, hook) {
                handler(hook);
            }
        }
    }
}

fn handler(handler: &mut Map<String, Value>) {
    if let Some(http) = part(handler, "httpGet") {
        empty(http, "path", || json!("/"));
        empty(http, "scheme", || json!("HTTP"));
    }
    if let Some(grpc) = part(handler, "grpc") {
        absent(grpc, "service", || json!(""));
    }
}

/// What is limited and not requested is requested as limited.
fn requests(container: &mut Map<String, Value>) {
    let resources = object_at(container, "resources");
    let limits = resources
        .get("limits")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    if !limits.is_empty() {
        let requests = object_at(resources, "requests");
        for (name, limit) in limits {
            absent(requests, &name, || limit);
        }
    }
}

/// What a pod requests without saying so; templates of pods are left as they were written. A pod that limits its
/// containers together requests what they request, or else what it is limited to.
pub(super) fn requests_of_pod(spec: &mut Map<String, Value>) {
    for list in ["containers", "initContainers"] {
        for container in each(spec, list) {
            requests(container);
        }
    }
    let containers = spec
        .get("containers")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let Some(resources) = part(spec, "resources") else {
        return;
    };
    let limits = resources
        .get("limits")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let shared = |name: &String| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-");
    for (name, limit) in limits.into_iter().filter(|(name, _)| shared(name)) {
        let of_containers = containers.iter().filter_map(|container| {
            container["resources"]["requests"][&name]
                .as_str()
                .and_then(|amount| amount.parse::<Quantity>().ok())
        });
        let sum = of_containers.fold(Quantity::ZERO, |sum, one| sum.checked_add(&one).unwrap_or(sum));
        let request = if sum.is_zero() { limit } else { sum.to_string().into() };
        absent(object_at(resources, "requests"), &name, || request);
    }
}

fn volume(volume: &mut Map<String, Value>) {
    const MODE: i64 = 0o644;
    if volume.len() <= 1 {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = part(volume, name) {
            absent(source, "defaultMode", || json!(MODE));
            for source in each(source, "sources") {
                if let Some(token) = part(source, "serviceAccountToken") {
                    absent(token, "expirationSeconds", || json!(3600));
                }
                if let Some(downward) = part(source, "downwardAPI") {
                    field_references(downward);
                }
            }
        }
    }
    if let Some(downward) = part(volume, "downwardAPI") {
        field_references(downward);
    }
    if let Some(path) = part(volume, "hostPath") {
        absent(path, "type", || json!(""));
    }
    if let Some(claim) = part(volume, "ephemeral").and_then(|source| part(source, "volumeClaimTemplate")) {
        absent(object_at(claim, "spec"), "volumeMode", || json!("Filesystem"));
    }
    if let Some(iscsi) = part(volume, "iscsi") {
        absent(iscsi, "iscsiInterface", || json!("default"));
    }
}

fn field_references(downward: &mut Map<String, Value>) {
    for item in each(downward, "items") {
        if let Some(field) = part(item, "fieldRef") {
            empty(field, "apiVersion", || json!("v1"));
        }
    }
}

/// Whether an image is asked for in its newest state: by a reference that is one, with that tag or with none at all.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image
        .split_once('@')
        .map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or_default();
    let (repository, tag) = match last.split_once(':') {
        Some((_, tag)) => (&name[..name.len() - tag.len() - 1], Some(tag)),
        None => (name, None),
    };
    digest.is_none() && is_repository(repository) && matches!(tag, None | Some("latest"))
}

/// Whether this names a repository: a host, perhaps, and a path in lower case.
fn is_repository(name: &str) -> bool {
    let path = match name.split_once('/') {
        Some((host, path)) if host == "localhost" || host.contains(['.', ':']) || host != host.to_lowercase() => path,
        _ => name,
    };
    let is_word = |part: &str| {
        let is_end = |end: Option<char>| end.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
        is_end(part.chars().next()) && is_end(part.chars().last()) && part.chars().all(known)
    };
    name.len() <= 255 && path.split('/').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_a_version_is_pulled_always() {
        for (image, latest) in [
            ("postgres", true),
            ("postgres:latest", true),
            ("postgres:17", false),
            ("registry:5000/postgres", true),
            ("registry:5000/postgres:17", false),
            ("postgres@sha256:00", false),
            ("", false),
            ("-5", false),
            ("Not_Valid!", false),
            ("Registry.example.com/a/b", true),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }

    #[test]
    fn a_bare_pod_gets_what_kubernetes_gives_it() {
        let mut object = json!({ "spec": { "containers": [{
            "name": "a", "image": "i:1",
            "ports": [{ "containerPort": 80 }],
            "livenessProbe": { "httpGet": { "port": 80 }, "timeoutSeconds": 5 },
            "resources": { "limits": { "cpu": "1" } },
        }], "volumes": [{ "name": "v" }, { "name": "c", "configMap": { "name": "c" } }] } });
        spec(object["spec"].as_object_mut().unwrap());
        assert_eq!(
            object,
            json!({ "spec": {
            "containers": [{
                "name": "a", "image": "i:1", "imagePullPolicy": "IfNotPresent",
                "ports": [{ "containerPort": 80, "protocol": "TCP" }],
                "livenessProbe": {
                    "httpGet": { "port": 80, "path": "/", "scheme": "HTTP" },
                    "timeoutSeconds": 5, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                },
                "resources": { "limits": { "cpu": "1" } },
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            }],
            "volumes": [{ "name": "v", "emptyDir": {} }, { "name": "c", "configMap": { "name": "c", "defaultMode": 420 } }],
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
            "securityContext": {}, "terminationGracePeriodSeconds": 30,
        } })
        );
    }
}

//! Containers of the three sorts.

use std::collections::{HashMap, HashSet};

use moorline_machinery::names;
use serde_json::Value;

use super::{
    super::{
        at::{At, Errors},
        text,
    },
    handler,
    resources::{self, ResourcesOf},
    security, variables,
};

/// What the volumes of a pod are, by name.
pub(super) type Volumes<'v> = HashMap<&'v str, &'v Value>;

pub(super) fn containers(spec: &At<'_>, volumes: &Volumes<'_>, host_network: bool, errors: &mut Errors) {
    let mut names = HashSet::new();
    let grace = spec.at("terminationGracePeriodSeconds").optional_number();
    let list = spec.at("containers");
    if list.items().is_empty() {
        list.missing(errors, "");
    } else {
        list.each(|container| {
            common(container, volumes, host_network, errors);
            // Two without a name have the same one.
            let name = container.at("name");
            if !names.insert(name.text().to_owned()) {
                name.duplicate(errors, name.text());
            }
            image_without_spaces(&container.at("image"), errors);
            handler::lifecycle(&container.at("lifecycle"), grace, errors);
            probes(container, errors);
            let policy = container.at("restartPolicy");
            if policy.is_set() {
                policy.one_of(errors, &["Always", "Never", "OnFailure"]);
            }
            restart_rules(container, errors);
        });
        host_port_conflicts(&list, errors);
    }
    spec.at("initContainers").each(|container| {
        common(container, volumes, host_network, errors);
        unique(&container.at("name"), &mut names, errors);
        image_without_spaces(&container.at("image"), errors);
        init(container, grace, errors);
    });
    // Init containers run one after the other, so only each by itself can claim a port twice.
    spec.at("initContainers").each(|container| {
        let mut seen = HashSet::new();
        host_ports(container, &mut seen, errors);
    });
    ephemeral(
        &spec.at("ephemeralContainers"),
        spec,
        volumes,
        host_network,
        &mut names,
        errors,
    );
}

fn common(container: &At<'_>, volumes: &Volumes<'_>, host_network: bool, errors: &mut Errors) {
    container.at("name").require_following(errors, names::dns_label);
    container.at("image").require(errors);
    container
        .at("terminationMessagePolicy")
        .require_one_of(errors, &["File", "FallbackToLogsOnError"]);
    ports(&container.at("ports"), errors);
    variables::variables(&container.at("env"), errors);
    variables::sources(&container.at("envFrom"), errors);
    mounts(container, volumes, errors);
    devices(container, volumes, errors);
    container
        .at("imagePullPolicy")
        .require_one_of(errors, &["Always", "IfNotPresent", "Never"]);
    resources::resource_requirements(&container.at("resources"), ResourcesOf::Container, errors);
    resources::resize_policy(&container.at("resizePolicy"), errors);
    security::container(&container.at("securityContext"), errors);
    if host_network {
        container.at("ports").each(|port| {
            let (host, own) = (port.at("hostPort"), port.at("containerPort"));
            if host.number() != own.number() {
                host.invalid_as(
                    errors,
                    host.number(),
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        });
    }
}

fn unique(name: &At<'_>, names: &mut HashSet<String>, errors: &mut Errors) {
    if !name.text().is_empty() && !names.insert(name.text().to_owned()) {
        name.duplicate(errors, name.text());
    }
}

fn image_without_spaces(image: &At<'_>, errors: &mut Errors) {
    if image.text().trim().len() != image.text().len() {
        image.invalid(errors, "must not have leading or trailing whitespace");
    }
}

fn probes(container: &At<'_>, errors: &mut Errors) {
    handler::liveness(&container.at("livenessProbe"), errors);
    handler::readiness(&container.at("readinessProbe"), errors);
    handler::liveness(&container.at("startupProbe"), errors);
}

fn init(container: &At<'_>, grace: Option<i64>, errors: &mut Errors) {
    let policy = container.at("restartPolicy");
    let restarts = policy.text() == "Always";
    if policy.is_set() {
        policy.one_of(errors, &["Always", "Never", "OnFailure"]);
    }
    restart_rules(container, errors);
    if restarts {
        handler::lifecycle(&container.at("lifecycle"), grace, errors);
        probes(container, errors);
        return;
    }
    for name in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        let part = container.at(name);
        if part.is_set() && !(name == "lifecycle" && only_stop_signal(&part)) {
            part.forbidden(
                errors,
                "may not be set for init containers without restartPolicy=Always",
            );
        }
    }
}

fn only_stop_signal(lifecycle: &At<'_>) -> bool {
    !lifecycle.at("postStart").is_set() && !lifecycle.at("preStop").is_set() && lifecycle.at("stopSignal").is_set()
}

fn restart_rules(container: &At<'_>, errors: &mut Errors) {
    let rules = container.at("restartPolicyRules");
    if !rules.items().is_empty() && !container.at("restartPolicy").is_set() {
        container
            .at("restartPolicy")
            .missing(errors, "must specify restartPolicy when restart rules are used");
    }
    rules.each(|rule| {
        rule.at("action").one_of(errors, &["Restart", "RestartAllContainers"]);
        let codes = rule.at("exitCodes");
        if codes.is_set() {
            codes.at("operator").one_of(errors, &["In", "NotIn"]);
        } else {
            codes.missing(errors, "must be specified");
        }
    });
}

/// What only a container that starts with its pod may have.
const NOT_IN_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn ephemeral(
    list: &At<'_>,
    spec: &At<'_>,
    volumes: &Volumes<'_>,
    host_network: bool,
    names: &mut HashSet<String>,
    errors: &mut Errors,
) {
    let regular: HashSet<String> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| spec.at(list).items())
        .filter_map(|container| Some(container.get("name")?.as_str()?.to_owned()))
        .collect();
    list.each(|container| {
        common(container, volumes, host_network, errors);
        unique(&container.at("name"), names, errors);
        let target = container.at("targetContainerName");
        if !target.text().is_empty() && !regular.contains(target.text()) {
            target.not_found(errors, target.text());
        }
        for name in NOT_IN_EPHEMERAL {
            let part = container.at(name);
            // A lifecycle and probes count even when there is nothing in them; the rest is always written.
            let counts_when_empty = name == "lifecycle" || name.ends_with("Probe");
            if part.is_set() && (counts_when_empty || !part.is_empty()) {
                part.forbidden(errors, "cannot be set for an Ephemeral Container");
            }
        }
        container.at("volumeMounts").each(|mount| {
            for name in ["subPath", "subPathExpr"] {
                let path = mount.at(name);
                if !path.text().is_empty() {
                    path.forbidden(errors, "cannot be set for an Ephemeral Container");
                }
            }
        });
    });
}

fn ports(ports: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    ports.each(|port| {
        let name = port.at("name");
        if !name.text().is_empty() {
            let complaints = text::port_name(name.text());
            if complaints.is_empty() && !seen.insert(name.text().to_owned()) {
                name.duplicate(errors, name.text());
            }
            for complaint in complaints {
                name.invalid(errors, complaint);
            }
        }
        if port.at("containerPort").require(errors) {
            port.at("containerPort").port(errors);
        }
        if port.at("hostPort").number() != 0 {
            port.at("hostPort").port(errors);
        }
        port.at("protocol").require_one_of(errors, &["SCTP", "TCP", "UDP"]);
    });
}

fn host_port_conflicts(containers: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    containers.each(|container| host_ports(container, &mut seen, errors));
}

fn host_ports(container: &At<'_>, seen: &mut HashSet<String>, errors: &mut Errors) {
    container.at("ports").each(|port| {
        let host = port.at("hostPort").number();
        if host != 0 {
            let key = format!("{}/{}/{host}", port.at("protocol").text(), port.at("hostIP").text());
            if !seen.insert(key.clone()) {
                port.at("hostPort").duplicate(errors, key);
            }
        }
    });
}

fn mounts(container: &At<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let mut paths = HashSet::new();
    let devices: HashSet<&str> = container
        .value
        .get("volumeDevices")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|device| device.get("devicePath")?.as_str())
        .collect();
    let mounts = container.at("volumeMounts");
    mounts.each(|mount| {
        let (name, path) = (mount.at("name"), mount.at("mountPath"));
        name.require(errors);
        if !volumes.contains_key(name.text()) {
            name.not_found(errors, name.text());
        }
        path.require(errors);
        if !paths.insert(path.text().to_owned()) {
            path.invalid(errors, "must be unique");
        }
        if devices.contains(path.text()) {
            path.invalid(errors, "must not already exist as a path in volumeDevices");
        }
        // Kubernetes leaves the position out here, and in the two checks below.
        let anywhere = At {
            value: mount.value,
            path: mounts.path,
        };
        anywhere.at("subPath").follow_if_set(errors, text::descending_path);
        let expression = mount.at("subPathExpr");
        if !expression.text().is_empty() {
            if !mount.at("subPath").text().is_empty() {
                expression.invalid(errors, "subPathExpr and subPath are mutually exclusive");
            }
            anywhere.at("subPathExpr").follow(errors, text::descending_path);
        }
        let propagation = anywhere.at("mountPropagation");
        if propagation.is_set() {
            propagation.one_of(errors, &["Bidirectional", "HostToContainer", "None"]);
            let privileged = container.at("securityContext").at("privileged").flag();
            if propagation.text() == "Bidirectional" && !privileged {
                propagation.forbidden(
                    errors,
                    "Bidirectional mount propagation is available only to privileged containers",
                );
            }
        }
        recursive_read_only(&anywhere, errors);
    });
}

fn recursive_read_only(mount: &At<'_>, errors: &mut Errors) {
    let recursive = mount.at("recursiveReadOnly");
    match recursive.text() {
        _ if !recursive.is_set() => {}
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.at("readOnly").flag() {
                recursive.forbidden(errors, "may only be specified when readOnly is true");
            }
            let propagation = mount.at("mountPropagation");
            if propagation.is_set() && propagation.text() != "None" {
                recursive.forbidden(
                    errors,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        _ => recursive.one_of(errors, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn devices(container: &At<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    container.at("volumeDevices").each(|device| {
        let (name, path) = (device.at("name"), device.at("devicePath"));
        name.require(errors);
        if !names.insert(name.text().to_owned()) {
            name.invalid(errors, "must be unique");
        }
        match volumes.get(name.text()) {
            Some(volume) if volume.get("persistentVolumeClaim").is_none() && volume.get("ephemeral").is_none() => {
                name.invalid(
                    errors,
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                );
            }
            Some(_) => {}
            None => name.not_found(errors, name.text()),
        }
        path.require(errors);
        if !path.text().is_empty() && !text::backstepless_path(path.text()).is_empty() {
            path.invalid(errors, "can not contain backsteps ('..')");
        }
        if !path.text().is_empty() && !paths.insert(path.text().to_owned()) {
            path.invalid(errors, "must be unique");
        }
    });
}

//! What whoever writes an object of a built-in kind is told besides: what will hardly be meant, and what works no more.
//!
//! Assumes: the object was validated.

use std::collections::{BTreeMap, BTreeSet};

use moorline_machinery::{meta, quantity::Quantity};
use serde_json::Value;

/// The warnings for a new object, or for a change of one.
pub(super) fn of(group: &str, kind: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
    // A change of the metadata says nothing new about a template.
    let is_restated = old.is_some_and(|old| meta::of(old).generation() == meta::of(object).generation());
    let mut warnings = Warnings(Vec::new());
    match (group, kind) {
        ("", "Pod") => warnings.pod("", &object["spec"], &object["metadata"]),
        ("", "PodTemplate") => {
            let template = &object["template"];
            warnings.pod("template.", &template["spec"], &template["metadata"]);
        }
        ("apps", "Deployment" | "DaemonSet" | "ReplicaSet" | "StatefulSet")
        | ("", "ReplicationController")
        | ("batch", "Job")
            if !is_restated =>
        {
            let template = &object["spec"]["template"];
            warnings.pod("spec.template.", &template["spec"], &template["metadata"]);
        }
        ("batch", "CronJob") if !is_restated => {
            let template = &object["spec"]["jobTemplate"]["spec"]["template"];
            warnings.pod(
                "spec.jobTemplate.spec.template.",
                &template["spec"],
                &template["metadata"],
            );
        }
        ("networking.k8s.io", "Ingress") if old.is_none() => warnings.ingress(object),
        _ => {}
    }
    warnings.0
}

/// Annotations that were replaced by fields long ago.
const DEAD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

/// Kinds of volumes that nothing provides any more.
const DEAD_VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// What is said of a label of nodes that has another name by now.
fn dead_label(label: &str) -> Option<String> {
    let (since, instead) = match label {
        "beta.kubernetes.io/arch" => ("v1.14", "kubernetes.io/arch"),
        "beta.kubernetes.io/os" => ("v1.14", "kubernetes.io/os"),
        "failure-domain.beta.kubernetes.io/region" => ("v1.17", "topology.kubernetes.io/region"),
        "failure-domain.beta.kubernetes.io/zone" => ("v1.17", "topology.kubernetes.io/zone"),
        "beta.kubernetes.io/instance-type" => ("v1.17", "node.kubernetes.io/instance-type"),
        _ => return None,
    };
    Some(format!("deprecated since {since}; use {instead:?} instead"))
}

struct Warnings(Vec<String>);

fn items<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = (usize, &'v Value)> {
    value[name].as_array().into_iter().flatten().enumerate()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

/// Every container of a pod with its path: first those that prepare it, then its own, then those that visit it.
fn containers<'v>(at: &str, spec: &'v Value) -> Vec<(String, &'v Value)> {
    let kinds = ["initContainers", "containers", "ephemeralContainers"];
    let all = kinds.iter().flat_map(|kind| {
        items(spec, kind).map(move |(index, container)| (format!("{at}spec.{kind}[{index}]"), container))
    });
    all.collect()
}

impl Warnings {
    fn say(&mut self, warning: String) {
        self.0.push(warning);
    }

    /// `at` is where the pod stands, ending in a dot, or nothing.
    fn pod(&mut self, at: &str, spec: &Value, metadata: &Value) {
        self.labels_of_nodes(at, spec);
        for (annotation, why) in DEAD_ANNOTATIONS {
            if !metadata["annotations"][annotation].is_null() {
                self.say(format!("{at}metadata.annotations[{annotation}]: {why}"));
            }
        }
        for (index, volume) in items(spec, "volumes") {
            for (kind, why) in DEAD_VOLUMES.iter().filter(|(kind, _)| !volume[*kind].is_null()) {
                let shown = if *kind == "storageos" { "storageOS" } else { kind };
                self.say(format!("{at}spec.volumes[{index}].{shown}: {why}"));
            }
        }
        self.repeated(at, spec, "hostAliases", "ip");
        self.repeated(at, spec, "imagePullSecrets", "name");
        for (index, secret) in items(spec, "imagePullSecrets") {
            if text(secret, "name").is_empty() {
                self.say(format!(
                    "{at}spec.imagePullSecrets[{index}].name: invalid empty name \"\""
                ));
            }
        }
        self.fractions(&format!("{at}spec.overhead"), &spec["overhead"]);
        for (path, container) in containers(at, spec) {
            for kind in ["limits", "requests"] {
                self.fractions(&format!("{path}.resources.{kind}"), &container["resources"][kind]);
            }
            self.variables(&path, container);
        }
        self.ports(at, spec);
        if spec["terminationGracePeriodSeconds"]
            .as_i64()
            .is_some_and(|grace| grace < 0)
        {
            self.say(format!(
                "{at}spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated \
                 as 1"
            ));
        }
        self.affinity(at, spec);
    }

    fn labels_of_nodes(&mut self, at: &str, spec: &Value) {
        for label in spec["nodeSelector"]
            .as_object()
            .into_iter()
            .flat_map(serde_json::Map::keys)
        {
            if let Some(why) = dead_label(label) {
                self.say(format!("{at}spec.nodeSelector[{label}]: {why}"));
            }
        }
        for (index, constraint) in items(spec, "topologySpreadConstraints") {
            let path = format!("{at}spec.topologySpreadConstraints[{index}]");
            let label = text(constraint, "topologyKey");
            if let Some(why) = dead_label(label) {
                self.say(format!("{path}.topologyKey: {label} is {why}"));
            }
            self.selector(&path, constraint);
        }
    }

    /// A selector that is not there selects nothing, which hardly anybody means.
    fn selector(&mut self, at: &str, holder: &Value) {
        if holder["labelSelector"].is_null() {
            self.say(format!(
                "{at}.labelSelector: a null labelSelector results in matching no pod"
            ));
        }
    }

    fn affinity(&mut self, at: &str, spec: &Value) {
        for kind in ["podAffinity", "podAntiAffinity"] {
            let affinity = &spec["affinity"][kind];
            let at = format!("{at}spec.affinity.{kind}");
            let required = "requiredDuringSchedulingIgnoredDuringExecution";
            for (index, term) in items(affinity, required) {
                self.selector(&format!("{at}.{required}[{index}]"), term);
            }
            let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
            for (index, term) in items(affinity, preferred) {
                self.selector(
                    &format!("{at}.{preferred}[{index}].podAffinityTerm"),
                    &term["podAffinityTerm"],
                );
            }
        }
    }

    /// Items of a list that bear the name of one before them.
    fn repeated(&mut self, at: &str, spec: &Value, list: &str, name: &str) {
        let mut seen = BTreeSet::new();
        for (index, item) in items(spec, list) {
            let given = text(item, name);
            if !seen.insert(given) {
                self.say(format!("{at}spec.{list}[{index}].{name}: duplicate {name} {given:?}"));
            }
        }
    }

    /// Nobody can give a part of a byte.
    fn fractions(&mut self, at: &str, amounts: &Value) {
        for name in ["memory", "ephemeral-storage"] {
            let given = text(amounts, name);
            let amount = given.parse::<Quantity>().ok();
            if amount.is_some_and(|amount| amount.milli_value() % 1000 != 0) {
                self.say(format!(
                    "{at}[{name}]: fractional byte value {given:?} is invalid, must be an integer"
                ));
            }
        }
    }

    /// Variables that hide others, unless they are made of what they hide.
    fn variables(&mut self, at: &str, container: &Value) {
        let mut seen = BTreeSet::new();
        for (index, variable) in items(container, "env") {
            let (name, value) = (text(variable, "name"), text(variable, "value"));
            let reference = format!("$({name})");
            let hides = !variable["valueFrom"].is_null() || value == reference || !value.contains(&reference);
            if !seen.insert(name) && hides {
                self.say(format!(
                    "{at}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
                ));
            }
        }
    }

    fn ports(&mut self, at: &str, spec: &Value) {
        let mut numbers: BTreeMap<(i64, &str), Vec<(String, &Value)>> = BTreeMap::new();
        let mut names: BTreeMap<&str, String> = BTreeMap::new();
        let mut of_names = Vec::new();
        for (path, container) in containers(at, spec) {
            for (index, port) in items(container, "ports") {
                let path = format!("{path}.ports[{index}]");
                let number = (
                    port["containerPort"].as_i64().unwrap_or_default(),
                    text(port, "protocol"),
                );
                let others = numbers.entry(number).or_default();
                self.0.extend(others.iter().filter_map(|(other, taken)| {
                    let how = overlap(port, taken)?;
                    Some(format!("{path}: {how} port definition with {other}"))
                }));
                others.push((path.clone(), port));
                let name = text(port, "name");
                match names.get(name) {
                    _ if name.is_empty() => {}
                    Some(other) => of_names.push(format!(
                        "{path}: duplicate port name {name:?} with {other}, services and probes that select ports by \
                         name will use {other}"
                    )),
                    None => drop(names.insert(name, path)),
                }
            }
        }
        self.0.extend(of_names);
    }

    fn ingress(&mut self, object: &Value) {
        const CLASS: &str = "kubernetes.io/ingress.class";
        if !object["metadata"]["annotations"][CLASS].is_null() {
            self.say(format!(
                "annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead"
            ));
        }
    }
}

/// How two ports of the same number and protocol get in each other's way.
fn overlap(port: &Value, other: &Value) -> Option<&'static str> {
    let (address, number) = (text(port, "hostIP"), port["hostPort"].as_i64().unwrap_or_default());
    let (other_address, other_number) = (text(other, "hostIP"), other["hostPort"].as_i64().unwrap_or_default());
    if address == other_address && number == other_number {
        Some("duplicate")
    } else if number == 0 || other_number == 0 {
        Some("overlapping")
    } else if number == other_number && address.is_empty() != other_address.is_empty() {
        Some("dangerously ambiguous")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(generation: u64) -> Value {
        json!({ "metadata": { "generation": generation }, "spec": { "template": { "spec": { "containers": [
            { "name": "a", "ports": [{ "containerPort": 80, "protocol": "TCP", "name": "p" }],
              "env": [{ "name": "X", "value": "1" }, { "name": "X", "value": "$(X)2" }, { "name": "X", "value": "3" }] },
            { "name": "b", "ports": [{ "containerPort": 80, "protocol": "UDP" },
              { "containerPort": 80, "protocol": "TCP", "hostPort": 8080, "name": "p" }],
              "resources": { "limits": { "memory": "100m" } } },
        ]}}}})
    }

    #[test]
    fn what_will_hardly_be_meant_is_told_with_its_place() {
        let at = "spec.template.spec.containers";
        assert_eq!(
            of("apps", "Deployment", &deployment(1), None),
            [
                format!("{at}[0].env[2]: hides previous definition of \"X\", which may be dropped when using apply"),
                format!(
                    "{at}[1].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer"
                ),
                format!("{at}[1].ports[1]: overlapping port definition with {at}[0].ports[0]"),
                format!(
                    "{at}[1].ports[1]: duplicate port name \"p\" with {at}[0].ports[0], services and probes that select \
                     ports by name will use {at}[0].ports[0]"
                ),
            ]
        );
    }

    #[test]
    fn a_template_that_did_not_change_is_not_told_of_again() {
        assert_eq!(
            of("apps", "Deployment", &deployment(1), Some(&deployment(1))),
            Vec::<String>::new()
        );
        assert_eq!(of("apps", "Deployment", &deployment(2), Some(&deployment(1))).len(), 4);
    }
}

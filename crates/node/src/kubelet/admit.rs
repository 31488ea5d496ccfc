//! Whether a node takes a pod that was bound to it: who bound it may have known less. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Taint};

use crate::{
    amounts::{Amounts, qos_class},
    pod::{EVICTED, Ending},
    pressure::{Condition, is_critical},
    scheduler::{Wanted, tolerates},
};

/// What a node is like when a pod comes to it.
pub(crate) struct House<'a> {
    pub(crate) node: &'a str,
    /// What the API has of the node; nothing when it has no such node.
    pub(crate) registered: Option<Registered<'a>>,
    pub(crate) allocatable: &'a Amounts,
    /// The pods that it has taken already and that are not over.
    pub(crate) taken: &'a [Wanted],
    /// What there is too little of.
    pub(crate) pressure: &'a BTreeSet<Condition>,
}

/// What others may have changed about a node.
pub(crate) struct Registered<'a> {
    pub(crate) labels: &'a BTreeMap<String, String>,
    pub(crate) taints: &'a [Taint],
}

/// Kernel settings that a pod may have without asking anybody.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Why a node does not take a pod, if it does not. Reasons and messages are a kubelet's.
pub(crate) fn refuse(pod: &Pod, house: &House<'_>) -> Option<Ending> {
    let (reason, message) = refusal(pod, house)?;
    Some(Ending::Failed {
        reason,
        message: format!("Pod was rejected: {message}"),
        grace: 0,
    })
}

fn refusal(pod: &Pod, house: &House<'_>) -> Option<(String, String)> {
    let spec = pod.spec.as_ref()?;
    let of = |reason: &str, message: String| Some((reason.to_owned(), message));
    if let Some(os) = spec.os.as_ref().filter(|os| os.name != "linux") {
        let message = format!(
            "Failed to admit pod as the OS field {:?} doesn't match node OS \"linux\"",
            os.name
        );
        return of("PodOSNotSupported", message);
    }
    let sysctls = spec
        .security_context
        .iter()
        .flat_map(|security| security.sysctls.iter().flatten());
    for sysctl in sysctls {
        let name = sysctl.name.replace('/', ".");
        if !SAFE_SYSCTLS.contains(&name.as_str()) {
            return of("SysctlForbidden", format!("forbidden sysctl: {name:?} not allowlisted"));
        }
    }
    let wanted = Wanted::of(pod);
    // Want of memory keeps out only those who say nothing of how much they need.
    let only_memory = house.pressure.iter().all(|condition| *condition == Condition::Memory);
    let has_a_say = qos_class(spec) != "BestEffort"
        || wanted.tolerations.iter().any(|own| {
            let taint = Taint {
                key: "node.kubernetes.io/memory-pressure".to_owned(),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            };
            tolerates(own, &taint)
        });
    if !(house.pressure.is_empty() || is_critical(pod) || only_memory && has_a_say) {
        let names: Vec<_> = house.pressure.iter().map(|condition| condition.name()).collect();
        return of(EVICTED, format!("The node had condition: [{}]. ", names.join(" ")));
    }
    let mut used = Amounts::default();
    for other in house.taken {
        used.add(&other.requests);
    }
    // What others say that the node has is for them to share out.
    for (name, all) in house.allocatable.iter() {
        let (asked, taken) = (wanted.requests.get(name), used.get(name));
        if asked > 0 && asked > all - taken {
            let message =
                format!("Node didn't have enough resource: {name}, requested: {asked}, used: {taken}, capacity: {all}");
            return of(&format!("OutOf{name}"), message);
        }
    }
    let predicate = |name: &str, why: &str| of(name, format!("Predicate {name} failed: {why}"));
    if let Some(node) = &house.registered {
        if !wanted.chooses(house.node, node.labels) {
            return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
        }
        let tolerated = |taint: &Taint| wanted.tolerations.iter().any(|own| tolerates(own, taint));
        if node
            .taints
            .iter()
            .any(|taint| taint.effect == "NoExecute" && !tolerated(taint))
        {
            return predicate("TaintToleration", "node(s) had untolerated taint(s)");
        }
    }
    let theirs = house.taken.iter().flat_map(|other| &other.ports);
    let mut conflicts = theirs.filter(|theirs| wanted.ports.iter().any(|ours| ours.conflicts(theirs)));
    if conflicts.next().is_some() {
        return predicate(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": spec })).unwrap()
    }

    fn told(spec: &Value, taken: &[Value], taints: &Value) -> Option<(String, String)> {
        told_when_short_of(&[], spec, taken, taints)
    }

    fn told_when_short_of(
        short: &[Condition],
        spec: &Value,
        taken: &[Value],
        taints: &Value,
    ) -> Option<(String, String)> {
        let allocatable = [("cpu", "2"), ("memory", "1Gi"), ("pods", "3")];
        let allocatable = allocatable.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
        let taken: Vec<_> = taken.iter().map(|spec| Wanted::of(&pod(spec))).collect();
        let taints: Vec<Taint> = serde_json::from_value(taints.clone()).unwrap();
        let house = House {
            node: "n1",
            registered: Some(Registered {
                labels: &[("disk".to_owned(), "ssd".to_owned())].into(),
                taints: &taints,
            }),
            allocatable: &Amounts::of(Some(&allocatable.into())),
            taken: &taken,
            pressure: &short.iter().copied().collect(),
        };
        match refuse(&pod(spec), &house)? {
            Ending::Failed { reason, message, .. } => Some((reason, message)),
            other => panic!("{other:?}"),
        }
    }

    fn asking(cpu: &str) -> Value {
        json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] })
    }

    #[test]
    fn a_pod_that_does_not_fit_beside_those_taken_already_is_refused() {
        assert_eq!(told(&asking("1500m"), &[], &json!([])), None);
        assert_eq!(
            told(&asking("1500m"), &[asking("1")], &json!([])),
            Some((
                "OutOfcpu".to_owned(),
                "Pod was rejected: Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"
                    .to_owned()
            ))
        );
        let small = asking("1m");
        let foreign = json!({ "containers": [{ "name": "c", "resources": { "requests": { "example.com/x": "9" } } }] });
        assert_eq!(told(&foreign, &[], &json!([])), None, "the node knows nothing of it");
        let full = told(&small, &[small.clone(), small.clone(), small.clone()], &json!([]));
        assert_eq!(full.unwrap().0, "OutOfpods");
    }

    #[test]
    fn a_pod_that_asks_for_another_node_is_refused() {
        let selecting = json!({ "nodeSelector": { "disk": "hdd" }, "containers": [] });
        let (reason, message) = told(&selecting, &[], &json!([])).unwrap();
        assert_eq!(reason, "NodeAffinity");
        assert_eq!(
            message,
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        );
        let fitting = json!({ "nodeSelector": { "disk": "ssd" }, "containers": [] });
        assert_eq!(told(&fitting, &[], &json!([])), None);
        let other = json!({ "os": { "name": "windows" }, "containers": [] });
        assert_eq!(told(&other, &[], &json!([])).unwrap().0, "PodOSNotSupported");
    }

    #[test]
    fn only_taints_that_drive_pods_away_keep_them_out() {
        let plain = json!({ "containers": [] });
        let taint = |effect: &str| json!([{ "key": "k", "effect": effect }]);
        assert_eq!(told(&plain, &[], &taint("NoSchedule")), None);
        assert_eq!(told(&plain, &[], &taint("NoExecute")).unwrap().0, "TaintToleration");
        let tolerant = json!({ "tolerations": [{ "operator": "Exists" }], "containers": [] });
        assert_eq!(told(&tolerant, &[], &taint("NoExecute")), None);
    }

    #[test]
    fn a_port_that_is_taken_and_a_setting_that_is_not_safe_are_refused() {
        let port = json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 80 }] }] });
        assert_eq!(told(&port, &[], &json!([])), None);
        assert_eq!(
            told(&port, std::slice::from_ref(&port), &json!([])).unwrap().0,
            "NodePorts"
        );
        let sysctl = json!({ "securityContext": { "sysctls": [{ "name": "kernel.msgmax", "value": "1" }] },
            "containers": [] });
        assert_eq!(
            told(&sysctl, &[], &json!([])).unwrap(),
            (
                "SysctlForbidden".to_owned(),
                "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted".to_owned()
            )
        );
    }

    #[test]
    fn a_node_that_runs_short_takes_only_who_matters_or_says_how_much_memory_it_needs() {
        let told = |short: &[Condition], spec: &Value| {
            told_when_short_of(short, spec, &[], &json!([])).map(|(reason, message)| {
                assert_eq!(reason, "Evicted");
                message
            })
        };
        let (memory, disk) = (&[Condition::Memory][..], &[Condition::Disk][..]);
        let vague = json!({ "containers": [{ "name": "c" }] });
        let refused = |names: &str| Some(format!("Pod was rejected: The node had condition: [{names}]. "));
        assert_eq!(told(memory, &vague), refused("MemoryPressure"));
        assert_eq!(told(disk, &vague), refused("DiskPressure"));
        assert_eq!(told(&Condition::ALL, &vague), refused("MemoryPressure DiskPressure"));
        assert_eq!(told(memory, &asking("1m")), None);
        assert_eq!(told(disk, &asking("1m")), refused("DiskPressure"));
        let tolerant = json!({ "tolerations": [{ "key": "node.kubernetes.io/memory-pressure", "operator": "Exists" }],
            "containers": [{ "name": "c" }] });
        assert_eq!(told(memory, &tolerant), None);
        let critical = json!({ "priority": 2_000_000_000, "containers": [{ "name": "c" }] });
        assert_eq!(told(&Condition::ALL, &critical), None);
    }
}

use std::time::Instant;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::*;
use crate::key::Key;

#[expect(
    clippy::needless_pass_by_value,
    reason = "literals read better where they are handed in whole"
)]
fn node(name: &str, labels: Value) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels },
        "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "10" } },
    }))
    .unwrap()
}

fn pod(name: &str, spec: Value) -> Pod {
    let mut spec = spec;
    if spec["containers"].is_null() {
        spec["containers"] = json!([{ "name": "c" }]);
    }
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "n", "uid": format!("uid-{name}"), "labels": { "app": "a" } },
        "spec": spec,
    }))
    .unwrap()
}

fn asking(name: &str, cpu: &str) -> Pod {
    pod(
        name,
        json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] }),
    )
}

fn three() -> Cluster {
    let mut cluster = Cluster::default();
    for (name, zone) in [("a", "x"), ("b", "x"), ("c", "y")] {
        cluster.node_applied(&node(
            name,
            json!({ "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone }),
        ));
    }
    cluster
}

fn put(cluster: &mut Cluster, pod: &Pod, on: &str) {
    cluster.place(Wanted::of(pod), on);
}

fn placed(cluster: &Cluster, pod: &Pod) -> String {
    match decide(cluster, &Wanted::of(pod)) {
        Verdict::Place { node, .. } => node,
        Verdict::Refuse { message, .. } => panic!("refused: {message}"),
    }
}

fn refused(cluster: &Cluster, pod: &Pod) -> String {
    match decide(cluster, &Wanted::of(pod)) {
        Verdict::Place { node, .. } => panic!("placed on {node}"),
        Verdict::Refuse { message, .. } => message,
    }
}

const ANTI: &str = "requiredDuringSchedulingIgnoredDuringExecution";

fn apart(name: &str) -> Pod {
    pod(
        name,
        json!({ "affinity": { "podAntiAffinity": { ANTI: [{
            "labelSelector": { "matchLabels": { "app": "a" } }, "topologyKey": "kubernetes.io/hostname",
        }] } } }),
    )
}

#[test]
fn without_nodes_that_is_said() {
    assert_eq!(
        refused(&Cluster::default(), &pod("p", json!({}))),
        "no nodes available to schedule pods"
    );
}

#[test]
fn reasons_are_counted_and_sorted() {
    let mut cluster = three();
    let mut cordoned = node("c", json!({}));
    cordoned.spec = serde_json::from_value(json!({ "unschedulable": true })).unwrap();
    cluster.node_applied(&cordoned);
    assert_eq!(
        refused(&cluster, &asking("p", "5")),
        "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu. preemption: 0/3 nodes are \
         available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn a_node_takes_only_what_it_has_room_for() {
    let mut cluster = three();
    for name in ["a", "b"] {
        put(&mut cluster, &asking(name, "3"), name);
    }
    assert_eq!(placed(&cluster, &asking("p", "2")), "c");
    put(&mut cluster, &asking("q", "3"), "c");
    let message = refused(&cluster, &asking("p", "2"));
    assert!(
        message.starts_with("0/3 nodes are available: 3 Insufficient cpu."),
        "{message}"
    );
    assert!(cluster.pod_removed(&Key::new("n", "q")));
    assert_eq!(placed(&cluster, &asking("p", "2")), "c");
}

#[test]
fn the_number_of_pods_is_limited() {
    let mut cluster = Cluster::default();
    cluster.node_applied(&node("a", json!({})));
    for number in 0..10 {
        put(&mut cluster, &pod(&format!("p{number}"), json!({})), "a");
    }
    assert!(refused(&cluster, &pod("p", json!({}))).contains("1 Too many pods"));
}

#[test]
fn selectors_and_affinity_choose_nodes() {
    let cluster = three();
    assert_eq!(
        placed(
            &cluster,
            &pod("p", json!({ "nodeSelector": { "topology.kubernetes.io/zone": "y" } }))
        ),
        "c"
    );
    let affinity = json!({ "affinity": { "nodeAffinity": { ANTI: { "nodeSelectorTerms": [
        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["b"] }] },
    ] } } } });
    assert_eq!(placed(&cluster, &pod("p", affinity)), "b");
    let nowhere = refused(&cluster, &pod("p", json!({ "nodeSelector": { "disk": "ssd" } })));
    assert!(nowhere.starts_with("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."));
}

#[test]
fn what_is_preferred_wins_among_nodes_that_fit() {
    let cluster = three();
    let preferred = json!({ "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
        { "weight": 10, "preference": { "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": ["b"] },
        ] } },
    ] } } });
    assert_eq!(placed(&cluster, &pod("p", preferred)), "b");
}

#[test]
fn taints_repel_unless_tolerated() {
    let mut cluster = Cluster::default();
    let mut tainted = node("a", json!({}));
    tainted.spec =
        serde_json::from_value(json!({ "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule" }] })).unwrap();
    cluster.node_applied(&tainted);
    assert!(refused(&cluster, &pod("p", json!({}))).contains("1 node(s) had untolerated taint(s)"));
    for toleration in [
        json!({ "key": "k", "value": "v", "effect": "NoSchedule" }),
        json!({ "key": "k", "operator": "Exists" }),
        json!({ "operator": "Exists" }),
    ] {
        assert_eq!(placed(&cluster, &pod("p", json!({ "tolerations": [toleration] }))), "a");
    }
}

#[test]
fn ports_of_the_host_are_taken_once() {
    let with = |name: &str, ip: &str, protocol: &str| {
        let port = json!({ "containerPort": 80, "hostPort": 8080, "hostIP": ip, "protocol": protocol });
        pod(name, json!({ "containers": [{ "name": "c", "ports": [port] }] }))
    };
    let mut cluster = Cluster::default();
    cluster.node_applied(&node("a", json!({})));
    put(&mut cluster, &with("one", "127.0.0.1", "TCP"), "a");
    assert_eq!(placed(&cluster, &with("two", "127.0.0.2", "TCP")), "a");
    assert_eq!(placed(&cluster, &with("two", "127.0.0.1", "UDP")), "a");
    assert!(
        refused(&cluster, &with("two", "0.0.0.0", "TCP"))
            .contains("didn't have free ports for the requested pod ports")
    );
}

#[test]
fn pods_that_want_to_be_apart_are_kept_apart_both_ways() {
    let mut cluster = three();
    for name in ["a", "b"] {
        put(&mut cluster, &apart(name), name);
    }
    assert_eq!(placed(&cluster, &apart("p")), "c");
    assert_eq!(
        placed(&cluster, &pod("q", json!({}))),
        "c",
        "those that are there want no neighbour"
    );
    put(&mut cluster, &apart("c"), "c");
    assert!(refused(&cluster, &apart("p")).contains("3 node(s) didn't match pod anti-affinity rules"));
    let message = refused(&cluster, &pod("q", json!({})));
    assert!(
        message.contains("3 node(s) didn't satisfy existing pods anti-affinity rules"),
        "{message}"
    );
}

#[test]
fn the_first_of_a_group_that_wants_to_be_together_may_go_anywhere() {
    let near = |name: &str| {
        pod(
            name,
            json!({ "affinity": { "podAffinity": { ANTI: [{
            "labelSelector": { "matchLabels": { "app": "a" } }, "topologyKey": "topology.kubernetes.io/zone",
        }] } } }),
        )
    };
    let mut cluster = three();
    placed(&cluster, &near("first"));
    put(&mut cluster, &near("first"), "c");
    assert_eq!(placed(&cluster, &near("second")), "c");
}

#[test]
fn pods_spread_evenly_over_zones() {
    let spread = |name: &str| {
        pod(
            name,
            json!({ "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "a" } },
        }] }),
        )
    };
    let mut cluster = three();
    put(&mut cluster, &spread("one"), "a");
    assert_eq!(placed(&cluster, &spread("two")), "c");
    put(&mut cluster, &spread("two"), "c");
    cluster.node_deleted("c");
    cluster.node_applied(&node("d", json!({})));
    put(&mut cluster, &spread("three"), "b");
    let message = refused(
        &cluster,
        &pod(
            "p",
            spread("p")
                .spec
                .map(|spec| {
                    let mut spec = serde_json::to_value(spec).unwrap();
                    spec["topologySpreadConstraints"][0]["minDomains"] = json!(2);
                    spec
                })
                .unwrap(),
        ),
    );
    assert!(
        message.contains("1 node(s) didn't match pod topology spread constraints (missing required label)"),
        "{message}"
    );
    assert!(
        message.contains("2 node(s) didn't match pod topology spread constraints"),
        "{message}"
    );
}

#[test]
fn an_important_pod_takes_the_place_of_the_least_important_ones() {
    let of = |name: &str, priority: i32, cpu: &str| {
        pod(
            name,
            json!({ "priority": priority, "containers": [
            { "name": "c", "resources": { "requests": { "cpu": cpu } } },
        ] }),
        )
    };
    let mut cluster = three();
    put(&mut cluster, &of("a-high", 100, "3"), "a");
    put(&mut cluster, &of("b-low", 1, "2"), "b");
    put(&mut cluster, &of("b-mid", 5, "2"), "b");
    put(&mut cluster, &of("c-mid", 5, "4"), "c");
    let Verdict::Refuse {
        preemption: Some(preemption),
        ..
    } = decide(&cluster, &Wanted::of(&of("p", 50, "2")))
    else {
        panic!("someone less important has room");
    };
    assert_eq!(preemption.node, "b");
    assert_eq!(preemption.victims, [(Key::new("n", "b-low"), "uid-b-low".to_owned())]);
    let never = {
        let mut pod = of("p", 50, "2");
        pod.spec.as_mut().unwrap().preemption_policy = Some("Never".to_owned());
        pod
    };
    let Verdict::Refuse { preemption, message } = decide(&cluster, &Wanted::of(&never)) else {
        panic!("placed")
    };
    assert!(preemption.is_none());
    assert!(
        message.ends_with("preemption: not eligible due to preemptionPolicy=Never."),
        "{message}"
    );
}

#[test]
fn room_that_was_made_is_kept_for_whom_it_was_made() {
    let mut cluster = Cluster::default();
    cluster.node_applied(&node("a", json!({})));
    let mut important = asking("important", "3");
    important.spec.as_mut().unwrap().priority = Some(10);
    cluster.nominate(std::sync::Arc::new(Wanted::of(&important)), "a");
    assert!(refused(&cluster, &asking("p", "2")).contains("1 Insufficient cpu"));
    assert_eq!(placed(&cluster, &important), "a");
}

#[test]
fn a_claim_decides_where_its_pod_goes() {
    let with_claim = || {
        pod(
            "p",
            json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }] }),
        )
    };
    let mut cluster = three();
    assert!(refused(&cluster, &with_claim()).contains("persistentvolumeclaim \"data\" not found"));
    let claim = |volume: Option<&str>, phase: &str| {
        serde_json::from_value(json!({
            "metadata": { "name": "data", "namespace": "n", "uid": "u" },
            "spec": { "storageClassName": "local", "volumeName": volume, "accessModes": ["ReadWriteOnce"],
                      "resources": { "requests": { "storage": "1Gi" } } },
            "status": { "phase": phase },
        }))
        .unwrap()
    };
    cluster.claim_applied(claim(None, "Pending"));
    assert!(refused(&cluster, &with_claim()).contains("pod has unbound immediate PersistentVolumeClaims"));
    cluster.class_applied(
        serde_json::from_value(json!({
            "metadata": { "name": "local" }, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer",
        }))
        .unwrap(),
    );
    let Verdict::Place { claims, .. } = decide(&cluster, &Wanted::of(&with_claim())) else {
        panic!("refused")
    };
    assert_eq!(
        claims,
        [ClaimChoice::Provision {
            claim: "data".to_owned()
        }]
    );
    cluster.volume_applied(
        serde_json::from_value(json!({
            "metadata": { "name": "pv" },
            "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": ["b"] },
            ] }] } } },
        }))
        .unwrap(),
    );
    cluster.claim_applied(claim(Some("pv"), "Bound"));
    assert_eq!(placed(&cluster, &with_claim()), "b");
    cluster.node_deleted("b");
    assert!(refused(&cluster, &with_claim()).contains("2 node(s) didn't match PersistentVolume's node affinity"));
}

#[test]
fn thousands_of_pods_are_placed_in_seconds() {
    let mut cluster = Cluster::default();
    for number in 0..100 {
        let mut node = node(
            &format!("n{number}"),
            json!({ "kubernetes.io/hostname": format!("n{number}") }),
        );
        node.status =
            serde_json::from_value(json!({ "allocatable": { "cpu": "100", "memory": "100Gi", "pods": "500" } }))
                .unwrap();
        cluster.node_applied(&node);
    }
    let begin = Instant::now();
    for number in 0..3000 {
        let instance = format!("db-{}", number / 3);
        let mut pod = pod(
            &format!("p{number}"),
            json!({ "affinity": { "podAntiAffinity": { ANTI: [{
            "labelSelector": { "matchLabels": { "instance": instance } }, "topologyKey": "kubernetes.io/hostname",
        }] } } }),
        );
        pod.metadata.labels = Some([("instance".to_owned(), instance)].into());
        let wanted = Wanted::of(&pod);
        let Verdict::Place { node, .. } = decide(&cluster, &wanted) else {
            panic!("there is room")
        };
        cluster.place(wanted, &node);
    }
    let most = cluster.nodes.values().map(|node| node.pods.len()).max().unwrap();
    assert_eq!(most, 30, "they lie evenly");
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

//! What is not in a namespace: nodes, their pods' eviction, certificates.

use crate::harness::Namespace;

/// A node that has the namespace's name, so that no other test has it.
fn node(ns: &Namespace) {
    ns.ok_with(
        "create -f -",
        &format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {}}}\n", ns.name),
    );
}

#[test]
fn a_node_is_cordoned_uncordoned_and_tainted() {
    let ns = Namespace::new();
    node(&ns);
    let name = &ns.name;
    assert_eq!(ns.ok(&format!("cordon {name}")), format!("node/{name} cordoned\n"));
    assert_eq!(
        ns.ok(&format!("get node {name} -o jsonpath={{.spec.unschedulable}}")),
        "true"
    );
    assert_eq!(ns.ok(&format!("uncordon {name}")), format!("node/{name} uncordoned\n"));
    assert_eq!(
        ns.ok(&format!("taint node {name} k=v:NoSchedule")),
        format!("node/{name} tainted\n")
    );
    assert!(ns.ok(&format!("describe node {name}")).contains("k=v:NoSchedule"));
}

#[test]
fn draining_a_node_evicts_its_pods() {
    let ns = Namespace::new();
    node(&ns);
    let name = &ns.name;
    ns.ok(&format!(
        r#"run p --image=busybox --overrides='{{"spec":{{"nodeName":"{name}","terminationGracePeriodSeconds":0}}}}'"#
    ));
    let said = ns.ok(&format!("drain {name} --force --grace-period=0 --timeout=30s"));
    assert!(
        said.contains("pod/p evicted") && said.ends_with(&format!("node/{name} drained\n")),
        "{said}"
    );
    assert_eq!(ns.ok("get pods -o name"), "");
}

/// A pod `p` that is ready or not, in a budget `b` that spares nobody, and the command that evicts it but for the query.
fn a_pod_in_a_budget(ready: bool) -> (Namespace, impl Fn(&str) -> String) {
    let ns = Namespace::new();
    let (status, healthy) = if ready { ("True", 1) } else { ("False", 0) };
    ns.ok("run p --image=busybox --labels=app=p");
    ns.ok(&format!(
        r#"patch pod p --subresource=status --type=merge -p '{{"status":{{"phase":"Running","conditions":[{{"type":"Ready","status":"{status}"}}]}}}}'"#
    ));
    ns.ok("create poddisruptionbudget b --selector=app=p --min-available=1");
    ns.ok(&format!(
        r#"patch pdb b --subresource=status --type=merge -p '{{"status":{{"observedGeneration":1,"disruptionsAllowed":0,"currentHealthy":{healthy},"desiredHealthy":1,"expectedPods":1}}}}'"#
    ));
    let name = ns.name.clone();
    let eviction = ns.file(
        "eviction",
        &format!(r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"p","namespace":"{name}"}}}}"#),
    );
    let evict =
        move |query: &str| format!("create --raw /api/v1/namespaces/{name}/pods/p/eviction{query} -f {eviction}");
    (ns, evict)
}

#[test]
fn a_budget_keeps_a_pod_from_being_evicted() {
    let (ns, evict) = a_pod_in_a_budget(true);
    let complaint = ns.fails(&evict(""));
    assert!(
        complaint.contains("Cannot evict pod as it would violate the pod's disruption budget."),
        "{complaint}"
    );
    ns.ok(r#"patch pdb b --type=merge -p '{"spec":{"minAvailable":0}}'"#);
    ns.ok("wait --for=jsonpath={.status.disruptionsAllowed}=1 pdb/b --timeout=30s");
    ns.ok(&evict("?dryRun=All"));
    let allowed = ns.ok("get pdb b -o jsonpath={.status.disruptionsAllowed}");
    assert_eq!(allowed, "1", "only seeming to evict spends nothing");
    // Somebody keeps it, so that it can be looked at.
    ns.ok(r#"patch pod p --type=merge -p '{"metadata":{"finalizers":["example.com/keep"]}}'"#);
    ns.ok(&evict(""));
    let told = ns.ok(r#"get pod p -o jsonpath={.status.conditions[?(@.type=="DisruptionTarget")].reason}"#);
    assert_eq!(told, "EvictionByEvictionAPI");
    ns.ok(r#"patch pod p --type=merge -p '{"metadata":{"finalizers":null}}'"#);
}

#[test]
fn a_pod_that_is_not_ready_is_evicted_where_the_budget_says_so() {
    let (ns, evict) = a_pod_in_a_budget(false);
    ns.fails(&evict(""));
    ns.ok(r#"patch pdb b --type=merge -p '{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}'"#);
    ns.ok(&evict(""));
}

#[test]
fn the_parts_of_the_control_plane_say_how_they_are() {
    let ns = Namespace::new();
    let table = ns.ok("get componentstatuses");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "STATUS", "MESSAGE", "ERROR"]);
    assert_eq!(
        rows[1][..2],
        ["scheduler", "Unhealthy"],
        "nobody schedules for a server alone"
    );
    assert_eq!(rows[2], ["controller-manager", "Healthy", "ok"]);
    assert_eq!(ns.ok("get cs etcd-0 -o jsonpath={.conditions[0].status}"), "True");
    assert!(ns.fails("get cs none").contains("componentstatuses \"none\" not found"));
}

#[test]
fn a_certificate_request_is_approved_or_denied() {
    let ns = Namespace::new();
    let request = include_str!("request.b64").trim();
    for (verdict, condition) in [("approve", "Approved"), ("deny", "Denied")] {
        let name = format!("{}-{verdict}", ns.name);
        ns.ok_with(
            "create -f -",
            &format!(
                "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\n\
                 spec: {{request: {request}, signerName: example.com/signer, usages: [client auth]}}\n",
            ),
        );
        ns.ok(&format!("certificate {verdict} {name}"));
        assert_eq!(
            ns.ok(&format!(
                "get csr {name} -o jsonpath={{.status.conditions[*].type}}/{{.spec.groups}}"
            )),
            format!(r#"{condition}/["system:masters","system:authenticated"]"#)
        );
    }
}

use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

/// The cells of an object that is five days and three hours old.
fn cells(api_version: &str, kind: &str, mut object: Value) -> Value {
    if object.get("metadata").is_none() {
        object["metadata"] = json!({});
    }
    object["metadata"]["name"] = json!("x");
    object["metadata"]["creationTimestamp"] = json!("2026-01-04T21:00:00Z");
    Printer::builtin(api_version, kind).row(&object, now(), IncludeObject::None)["cells"].clone()
}

#[test]
fn kinds_show_what_kubectl_shows() {
    let template = json!({"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}});
    let selector = json!({"matchLabels": {"app": "x"}});
    for (api_version, kind, object, expected) in [
        (
            "v1",
            "ConfigMap",
            json!({"data": {"a": ""}, "binaryData": {"b": ""}}),
            json!(["x", 2, "5d3h"]),
        ),
        (
            "v1",
            "Secret",
            json!({"type": "Opaque", "data": {"a": ""}}),
            json!(["x", "Opaque", 1, "5d3h"]),
        ),
        (
            "v1",
            "Namespace",
            json!({"status": {"phase": "Active"}}),
            json!(["x", "Active", "5d3h"]),
        ),
        ("v1", "ServiceAccount", json!({}), json!(["x", "5d3h"])),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"replicas": 3, "template": template, "selector": selector},
                "status": {"readyReplicas": 2, "updatedReplicas": 1, "availableReplicas": 2}}),
            json!(["x", "2/3", 1, 2, "5d3h", "a,b", "i,j", "app=x"]),
        ),
        (
            "apps/v1",
            "ReplicaSet",
            json!({"spec": {"replicas": 3, "template": template, "selector": selector}, "status": {"replicas": 3}}),
            json!(["x", 3, 3, 0, "5d3h", "a,b", "i,j", "app=x"]),
        ),
        (
            "v1",
            "ReplicationController",
            json!({"spec": {"replicas": 1, "template": template, "selector": {"app": "x"}}}),
            json!(["x", 1, 0, 0, "5d3h", "a,b", "i,j", "app=x"]),
        ),
        (
            "apps/v1",
            "StatefulSet",
            json!({"spec": {"replicas": 1, "template": template}, "status": {"readyReplicas": 1}}),
            json!(["x", "1/1", "5d3h", "a,b", "i,j"]),
        ),
        (
            "apps/v1",
            "DaemonSet",
            json!({"spec": {"template": template, "selector": selector}, "status": {"desiredNumberScheduled": 2}}),
            json!(["x", 2, 0, 0, 0, 0, "<none>", "5d3h", "a,b", "i,j", "app=x"]),
        ),
        (
            "apps/v1",
            "ControllerRevision",
            json!({"revision": 4, "metadata": {"ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "controller": true}]}}),
            json!(["x", "statefulset.apps/s", 4, "5d3h"]),
        ),
        (
            "batch/v1",
            "Job",
            json!({"spec": {"completions": 2, "template": template}, "status": {"succeeded": 2,
                "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:05Z",
                "conditions": [{"type": "Complete", "status": "True"}]}}),
            json!(["x", "Complete", "2/2", "65s", "5d3h", "a,b", "i,j", "<none>"]),
        ),
        (
            "batch/v1",
            "CronJob",
            json!({"spec": {"schedule": "@daily", "suspend": false, "jobTemplate": {"spec": {"template": template}}},
                "status": {"active": [{}], "lastScheduleTime": "2026-01-09T00:00:00Z"}}),
            json!([
                "x", "@daily", "<none>", "False", 1, "24h", "5d3h", "a,b", "i,j", "<none>"
            ]),
        ),
        (
            "v1",
            "Service",
            json!({"spec": {"type": "ClusterIP", "clusterIPs": ["10.0.0.1"], "selector": {"app": "x"},
                "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "nodePort": 30053, "protocol": "UDP"}]}}),
            json!([
                "x",
                "ClusterIP",
                "10.0.0.1",
                "<none>",
                "80/TCP,53:30053/UDP",
                "5d3h",
                "app=x"
            ]),
        ),
        (
            "v1",
            "Service",
            json!({"spec": {"type": "LoadBalancer"}}),
            json!(["x", "LoadBalancer", "<none>", "<pending>", "<none>", "5d3h", "<none>"]),
        ),
        (
            "v1",
            "Service",
            json!({"spec": {"type": "LoadBalancer", "externalIPs": ["1.1.1.1"]},
                "status": {"loadBalancer": {"ingress": [{"hostname": "h"}, {"ip": "2.2.2.2"}]}}}),
            json!([
                "x",
                "LoadBalancer",
                "<none>",
                "2.2.2.2,h,1.1.1.1",
                "<none>",
                "5d3h",
                "<none>"
            ]),
        ),
        (
            "v1",
            "Endpoints",
            json!({"subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "fe80::1"}], "ports": [{"port": 1}, {"port": 2}]}]}),
            json!(["x", "1.1.1.1:1,[fe80::1]:1,1.1.1.1:2 + 1 more...", "5d3h"]),
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({"addressType": "IPv4", "ports": [{"port": 5}], "endpoints": [{"addresses": ["1.1.1.1"]}]}),
            json!(["x", "IPv4", "5", "1.1.1.1", "5d3h"]),
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            json!({"spec": {"rules": [{"host": "a"}, {"host": "b"}, {"host": "c"}, {"host": "d"}], "tls": [{}]}}),
            json!(["x", "<none>", "a,b,c + 1 more...", "", "80, 443", "5d3h"]),
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({"spec": {"podSelector": {}}}),
            json!(["x", "<none>", "5d3h"]),
        ),
        (
            "policy/v1",
            "PodDisruptionBudget",
            json!({"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 1}}),
            json!(["x", "50%", "N/A", 1, "5d3h"]),
        ),
        (
            "v1",
            "Node",
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}},
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.4", "kernelVersion": "6.1", "architecture": "amd64"}}}),
            json!([
                "x",
                "Ready,SchedulingDisabled",
                "control-plane",
                "5d3h",
                "v1.36.4",
                "10.0.0.1",
                "<none>",
                "<unknown>",
                "6.1 (amd64)",
                "<unknown>"
            ]),
        ),
        (
            "v1",
            "PersistentVolume",
            json!({"spec": {"capacity": {"storage": "1024Mi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "n", "name": "c"},
                "storageClassName": "fast", "volumeMode": "Filesystem"}, "status": {"phase": "Bound"}}),
            json!([
                "x",
                "1Gi",
                "RWO,RWX",
                "Retain",
                "Bound",
                "n/c",
                "fast",
                "<unset>",
                "",
                "5d3h",
                "Filesystem"
            ]),
        ),
        (
            "v1",
            "PersistentVolumeClaim",
            json!({"spec": {"volumeName": "v", "storageClassName": "fast"}, "status": {"phase": "Bound",
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}}),
            json!(["x", "Bound", "v", "1Gi", "RWO", "fast", "<unset>", "5d3h", "<unset>"]),
        ),
        (
            "v1",
            "PersistentVolumeClaim",
            json!({"status": {"phase": "Pending", "capacity": {"storage": "1Gi"}}}),
            json!(["x", "Pending", "", "", "", "", "<unset>", "5d3h", "<unset>"]),
        ),
        (
            "storage.k8s.io/v1",
            "StorageClass",
            json!({"provisioner": "p",
                "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
            json!(["x (default)", "p", "Delete", "Immediate", false, "5d3h"]),
        ),
        (
            "v1",
            "ResourceQuota",
            json!({"status": {"hard": {"pods": "4", "limits.cpu": "2000m"}, "used": {"pods": "1"}}}),
            json!(["x", "pods: 1/4", "limits.cpu: 0/2", "5d3h"]),
        ),
        (
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 5,
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}}]},
                "status": {"currentReplicas": 2,
                    "currentMetrics": [{"type": "Resource", "resource": {"current": {"averageUtilization": 10}}}]}}),
            json!(["x", "Deployment/d", "cpu: 10%/80%", "<unset>", 5, 2, "5d3h"]),
        ),
        (
            "autoscaling/v1",
            "HorizontalPodAutoscaler",
            json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "minReplicas": 1, "maxReplicas": 5,
                "targetCPUUtilizationPercentage": 80}}),
            json!(["x", "Deployment/d", "cpu: <unknown>/80%", "1", 5, 0, "5d3h"]),
        ),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"},
                {"kind": "Group", "name": "g"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]}),
            json!(["x", "Role/r", "5d3h", "u", "g", "n/s"]),
        ),
        (
            "coordination.k8s.io/v1",
            "Lease",
            json!({"spec": {"holderIdentity": "h"}}),
            json!(["x", "h", "5d3h"]),
        ),
        (
            "scheduling.k8s.io/v1",
            "PriorityClass",
            json!({"value": 10, "preemptionPolicy": "Never"}),
            json!(["x", 10, false, "5d3h", "Never"]),
        ),
        (
            "node.k8s.io/v1",
            "RuntimeClass",
            json!({"handler": "h"}),
            json!(["x", "h", "5d3h"]),
        ),
        (
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            json!({"spec": {"signerName": "s", "username": "u", "expirationSeconds": 3600},
                "status": {"conditions": [{"type": "Approved"}], "certificate": "AA=="}}),
            json!(["x", "5d3h", "s", "u", "60m", "Approved,Issued"]),
        ),
        (
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            json!({"webhooks": [{}, {}]}),
            json!(["x", 2, "5d3h"]),
        ),
        (
            "apiregistration.k8s.io/v1",
            "APIService",
            json!({"status": {"conditions": [{"type": "Available", "status": "False", "reason": "R"}]}}),
            json!(["x", "Local", "False (R)", "5d3h"]),
        ),
        (
            "rbac.authorization.k8s.io/v1",
            "Role",
            json!({}),
            json!(["x", "2026-01-04T21:00:00Z"]),
        ),
        (
            "v1",
            "ComponentStatus",
            json!({"conditions": [{"type": "Healthy", "status": "False", "message": "m", "error": "e"}]}),
            json!(["x", "Unhealthy", "m", "e"]),
        ),
        ("v1", "LimitRange", json!({}), json!(["x", "2026-01-04T21:00:00Z"])),
    ] {
        assert_eq!(cells(api_version, kind, object), expected, "{kind}");
    }
}

#[test]
fn events_of_both_groups_show_the_same() {
    let core = json!({"type": "Warning", "reason": "R", "message": " m\n", "count": 3,
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec"}, "source": {"component": "c", "host": "h"},
        "firstTimestamp": "2026-01-09T23:00:00Z", "lastTimestamp": "2026-01-09T23:59:00Z"});
    let events = json!({"type": "Warning", "reason": "R", "note": "m",
        "regarding": {"kind": "Pod", "name": "p", "fieldPath": "spec"}, "reportingController": "c",
        "reportingInstance": "h", "eventTime": "2026-01-09T23:00:00.000000Z",
        "series": {"count": 3, "lastObservedTime": "2026-01-09T23:59:00.000000Z"}});
    let expected = json!(["60s", "Warning", "R", "pod/p", "spec", "c, h", "m", "60m", 3, "x"]);
    assert_eq!(cells("v1", "Event", core), expected);
    assert_eq!(cells("events.k8s.io/v1", "Event", events), expected);
}

#[test]
fn every_row_has_a_cell_for_every_column() {
    for (api_version, kind) in [
        ("v1", "Pod"),
        ("v1", "Event"),
        ("apps/v1", "Deployment"),
        ("v1", "Binding"),
    ] {
        let printer = Printer::builtin(api_version, kind);
        let columns = printer.column_definitions().as_array().unwrap().len();
        let row = printer.row(&json!({}), now(), IncludeObject::None);
        assert_eq!(row["cells"].as_array().unwrap().len(), columns, "{kind}");
    }
}

#[test]
fn custom_columns_are_shown_by_their_type() {
    let printer = Printer::custom(&[
        json!({"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1}),
        json!({"name": "Load", "type": "number", "jsonPath": ".status.load"}),
        json!({"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}),
        json!({"name": "Paused", "type": "boolean", "jsonPath": ".spec.paused", "description": "whether it rests"}),
        json!({"name": "Ports", "type": "string", "jsonPath": ".spec.ports"}),
        json!({"name": "Since", "type": "date", "jsonPath": ".status.since"}),
        json!({"name": "Odd", "type": "date", "jsonPath": ".spec.odd"}),
        json!({"name": "Missing", "type": "string", "jsonPath": ".spec.missing"}),
        json!({"name": "Wrong", "type": "integer", "jsonPath": ".spec.odd"}),
    ])
    .unwrap();
    let object = json!({
        "metadata": {"name": "c"}, "spec": {"replicas": 3, "paused": true, "ports": [1, 2], "odd": "odd"},
        "status": {"load": 2, "since": "2026-01-09T00:00:00Z", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let row = printer.row(&object, now(), IncludeObject::None);
    assert_eq!(
        row["cells"],
        json!(["c", 3, 2.0, "True", true, "[1,2]", "24h", "<invalid>", null, null])
    );
    let columns = printer.column_definitions();
    assert_eq!(columns[1]["priority"], json!(1));
    assert_eq!(
        columns[1]["description"],
        json!("Custom resource definition column (in JSONPath format): .spec.replicas")
    );
    assert_eq!(columns[4]["description"], json!("whether it rests"));
    assert!(Printer::custom(&[json!({"name": "Bad", "type": "string", "jsonPath": "spec"})]).is_err());
}

#[test]
fn custom_kinds_without_columns_show_their_age() {
    let printer = Printer::custom(&[]).unwrap();
    let object = json!({"metadata": {"name": "c", "creationTimestamp": "2026-01-09T23:59:50Z"}});
    assert_eq!(
        printer.row(&object, now(), IncludeObject::None)["cells"],
        json!(["c", "10s"])
    );
}

#[test]
fn a_table_carries_list_metadata_and_as_much_of_the_objects_as_asked_for() {
    let pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Succeeded"}});
    let list = json!({"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": "t"}, "items": [pod]});
    let printer = Printer::builtin("v1", "Pod");
    let table = printer.table(&list, now(), IncludeObject::default(), Headers::Shown);
    assert_eq!(
        (&table["kind"], &table["apiVersion"]),
        (&json!("Table"), &json!("meta.k8s.io/v1"))
    );
    assert_eq!(table["metadata"], json!({"resourceVersion": "7", "continue": "t"}));
    assert_eq!(table["columnDefinitions"][0]["format"], json!("name"));
    assert_eq!(
        table["rows"][0]["object"],
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "p"}})
    );
    assert_eq!(table["rows"][0]["conditions"][0]["reason"], json!("Succeeded"));
    let whole = printer.table(&list["items"][0], now(), IncludeObject::Object, Headers::Omitted);
    assert_eq!(whole["rows"][0]["object"], pod);
    assert_eq!(whole["columnDefinitions"], Value::Null);
    assert_eq!(printer.row(&pod, now(), IncludeObject::None)["object"], Value::Null);
    assert_eq!(IncludeObject::parse("Everything"), None);
}

#[test]
fn partial_lists_keep_the_metadata_of_list_and_items() {
    let list = json!({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}, "spec": 1}]});
    assert_eq!(
        partial_object_metadata_list(&list),
        json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "7"},
            "items": [{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "a"}}],
        })
    );
}

#[test]
fn kinds_that_few_look_at_have_the_columns_of_kubernetes() {
    let row = |api_version: &str, kind: &str, object: Value| {
        let printer = Printer::builtin(api_version, kind);
        let mut cells = printer.row(&object, now(), IncludeObject::None)["cells"].take();
        let columns = printer.column_definitions();
        let names: Vec<&str> = columns
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|column| column["name"].as_str())
            .collect();
        (names.join(" "), cells.take())
    };
    let created = "2026-01-09T23:59:50Z";
    let driver = json!({"metadata": {"name": "d", "creationTimestamp": created},
        "spec": {"attachRequired": false, "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        "tokenRequests": [{"audience": "a"}, {"audience": "b"}]}});
    assert_eq!(
        row("storage.k8s.io/v1", "CSIDriver", driver),
        (
            "Name AttachRequired PodInfoOnMount StorageCapacity TokenRequests RequiresRepublish Modes Age".to_owned(),
            json!(["d", false, false, false, "a,b", false, "Persistent,Ephemeral", "10s"])
        )
    );
    let level = json!({"metadata": {"name": "l", "creationTimestamp": created}, "spec": {"type": "Limited",
        "limited": {"nominalConcurrencyShares": 30, "limitResponse": {"type": "Reject"}}}});
    assert_eq!(
        row("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", level).1,
        json!(["l", "Limited", 30, "<none>", "<none>", "<none>", "10s"])
    );
    let policy = json!({"metadata": {"name": "p", "creationTimestamp": created}, "spec": {"validations": [{}, {}],
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}});
    assert_eq!(
        row("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", policy).1,
        json!(["p", 2, "v1/ConfigMap", "10s"])
    );
    let binding = json!({"metadata": {"name": "b", "creationTimestamp": created}, "spec": {"policyName": "p",
        "paramRef": {"name": "c"}}});
    assert_eq!(
        row(
            "admissionregistration.k8s.io/v1",
            "ValidatingAdmissionPolicyBinding",
            binding
        )
        .1,
        json!(["b", "p", "*/c", "10s"])
    );
    let address = json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"resource": "services",
        "namespace": "default", "name": "s"}}});
    assert_eq!(
        row("networking.k8s.io/v1", "IPAddress", address).1,
        json!(["10.0.0.1", "services/default/s"])
    );
    let schema = json!({"metadata": {"name": "f", "creationTimestamp": created}, "spec": {"matchingPrecedence": 5,
        "priorityLevelConfiguration": {"name": "l"}}});
    assert_eq!(
        row("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", schema).1,
        json!(["f", "l", 5, "<none>", "10s", "?"])
    );
}

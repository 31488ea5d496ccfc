//! What Kubernetes itself adds to writes and refuses, on a server without a socket.

mod kit;

use http::{Method, StatusCode};
use kit::{Cluster, pod};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}

fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "a": "b" } },
            "template": {
                "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [{ "name": "c", "image": "i:1" }] },
            },
        },
    })
}

#[tokio::test]
async fn a_pod_gets_its_account_its_token_its_priority_and_its_patience() {
    let cluster = Cluster::start().await;
    let spec = cluster.create(PODS, &pod("a")).await.object()["spec"].take();
    assert_eq!(spec["serviceAccountName"], "default");
    let volume = &spec["volumes"][0];
    assert!(
        volume["name"].as_str().unwrap().starts_with("kube-api-access-"),
        "{volume}"
    );
    assert_eq!(
        spec["containers"][0]["volumeMounts"][0]["mountPath"],
        "/var/run/secrets/kubernetes.io/serviceaccount"
    );
    assert_eq!(spec["priority"], 0);
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_pod_of_an_account_that_is_not_there_is_refused() {
    let cluster = Cluster::start().await;
    let mut stranger = pod("a");
    stranger["spec"]["serviceAccountName"] = json!("nobody");
    let refused = cluster.create(PODS, &stranger).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(
        refused.message(),
        "pods \"a\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found"
    );
}

#[tokio::test]
async fn a_claim_stays_while_a_pod_on_a_node_uses_it() {
    let cluster = Cluster::start().await;
    let made = cluster.create(CLAIMS, &claim("data")).await.object();
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let mut user = pod("user");
    user["spec"]["nodeName"] = json!("n");
    user["spec"]["volumes"] = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }]);
    cluster.create(PODS, &user).await.object();
    let path = format!("{CLAIMS}/data");
    cluster.delete(&path).await.object();
    // Something that happens later, by the same controller, shows that it has had its turn.
    cluster.create(CLAIMS, &claim("other")).await.object();
    cluster.delete(&format!("{CLAIMS}/other")).await.object();
    cluster.until_gone(&format!("{CLAIMS}/other")).await;
    assert_eq!(cluster.get(&path).await.status, StatusCode::OK);
    cluster
        .delete_with(&format!("{PODS}/user"), &json!({ "gracePeriodSeconds": 0 }))
        .await
        .object();
    cluster.until_gone(&path).await;
}

#[tokio::test]
async fn a_claim_that_names_no_class_gets_the_default_one() {
    let cluster = Cluster::start().await;
    let class = |name: &str, default: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "example.com/p",
            "metadata": { "name": name, "annotations": { "storageclass.kubernetes.io/is-default-class": default } },
        })
    };
    for (name, default) in [("plain", "false"), ("usual", "true")] {
        let made = cluster
            .create("/apis/storage.k8s.io/v1/storageclasses", &class(name, default))
            .await;
        made.object();
    }
    let made = cluster.create(CLAIMS, &claim("data")).await.object();
    assert_eq!(made["spec"]["storageClassName"], "usual");
}

#[tokio::test]
async fn a_new_node_takes_no_pods_until_it_is_ready() {
    let cluster = Cluster::start().await;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" } });
    let made = cluster.create("/api/v1/nodes", &node).await.object();
    assert_eq!(made["spec"]["taints"][0]["key"], "node.kubernetes.io/not-ready");
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    cluster.merge("/api/v1/nodes/n/status", &ready).await.object();
    cluster
        .until("/api/v1/nodes/n", |node| node.body["spec"]["taints"].is_null())
        .await;
}

#[tokio::test]
async fn limits_are_filled_in_and_held_to() {
    let cluster = Cluster::start().await;
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "l" },
        "spec": { "limits": [{
            "type": "Container", "default": { "cpu": "500m" }, "defaultRequest": { "cpu": "100m" }, "max": { "cpu": "1" },
        }] },
    });
    cluster
        .create("/api/v1/namespaces/default/limitranges", &range)
        .await
        .object();
    let made = cluster.create(PODS, &pod("a")).await.object();
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({ "limits": { "cpu": "500m" }, "requests": { "cpu": "100m" } })
    );
    let mut greedy = pod("b");
    greedy["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "2" } });
    let refused = cluster.create(PODS, &greedy).await;
    assert_eq!(
        refused.message(),
        "pods \"b\" is forbidden: maximum cpu usage per Container is 1, but limit is 2"
    );
}

#[tokio::test]
async fn a_namespace_says_what_its_pods_may_do() {
    let cluster = Cluster::start().await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "safe", "labels": {
        "pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted",
    } } });
    cluster.create("/api/v1/namespaces", &namespace).await.object();
    let pods = "/api/v1/namespaces/safe/pods";
    let mut wild = pod("a");
    wild["spec"]["hostNetwork"] = json!(true);
    let refused = cluster.create(pods, &wild).await;
    assert_eq!(
        refused.message(),
        "pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    let warned = cluster.create(pods, &pod("b")).await;
    assert!(
        warned.warnings[0].contains("would violate PodSecurity"),
        "{:?}",
        warned.warnings
    );
    warned.object();
}

#[tokio::test]
async fn a_quota_lets_nobody_exceed_it_and_tells_what_is_used() {
    let cluster = Cluster::start().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "q" },
        "spec": { "hard": { "pods": "2", "requests.cpu": "1" } },
    });
    cluster.create(quotas, &quota).await.object();
    let asking = |name: &str, cpu: &str| {
        let mut pod = pod(name);
        pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": cpu } });
        pod
    };
    let silent = cluster.create(PODS, &pod("silent")).await;
    assert_eq!(
        silent.message(),
        "pods \"silent\" is forbidden: failed quota: q: must specify requests.cpu for: c"
    );
    cluster.create(PODS, &asking("a", "600m")).await.object();
    let refused = cluster.create(PODS, &asking("b", "500m")).await;
    assert_eq!(
        refused.message(),
        "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: \
         requests.cpu=1"
    );
    let used = |used: Value| move |quota: &kit::Answer| quota.body["status"]["used"] == used;
    let path = format!("{quotas}/q");
    cluster
        .until(&path, used(json!({ "pods": "1", "requests.cpu": "600m" })))
        .await;
    cluster.delete(&format!("{PODS}/a")).await.object();
    cluster
        .until(&path, used(json!({ "pods": "0", "requests.cpu": "0" })))
        .await;
}

#[tokio::test]
async fn many_at_once_do_not_exceed_a_quota() {
    let cluster = Cluster::start().await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "q" },
        "spec": { "hard": { "count/configmaps": "5" } },
    });
    let quotas = "/api/v1/namespaces/kube-public/resourcequotas";
    cluster.create(quotas, &quota).await.object();
    let maps = "/api/v1/namespaces/kube-public/configmaps";
    let attempts = (0..20).map(|index| {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("m{index}") } });
        let cluster = &cluster;
        async move { cluster.create(maps, &map).await.status }
    });
    let made = futures_util::future::join_all(attempts).await;
    // One is there already: the root certificate.
    let made = made.into_iter().filter(|status| *status == StatusCode::CREATED).count();
    assert_eq!(made, 4);
}

#[tokio::test]
async fn a_validating_policy_refuses_and_says_why() {
    let cluster = Cluster::start().await;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "few" },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["deployments"],
            }] },
            "variables": [{ "name": "replicas", "expression": "object.spec.replicas" }],
            "validations": [{
                "expression": "variables.replicas <= 3",
                "messageExpression": "'at most 3, not ' + string(variables.replicas)",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "few-here" },
        "spec": {
            "policyName": "few", "validationActions": ["Deny"], "matchResources": { "namespaceSelector": {
                "matchLabels": { "kubernetes.io/metadata.name": "default" },
            } },
        },
    });
    cluster
        .create(&format!("{POLICIES}/validatingadmissionpolicies"), &policy)
        .await
        .object();
    let bindings = format!("{POLICIES}/validatingadmissionpolicybindings");
    cluster.create(&bindings, &binding).await.object();
    let refused = cluster
        .create("/apis/apps/v1/namespaces/default/deployments", &deployment("a", 5))
        .await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        refused.message(),
        "deployments.apps \"a\" is forbidden: ValidatingAdmissionPolicy 'few' with binding 'few-here' denied request: at \
         most 3, not 5"
    );
    let elsewhere = cluster
        .create("/apis/apps/v1/namespaces/kube-public/deployments", &deployment("a", 5))
        .await;
    elsewhere.object();
    let few = cluster
        .create("/apis/apps/v1/namespaces/default/deployments", &deployment("b", 3))
        .await;
    few.object();
}

#[tokio::test]
async fn a_mutating_policy_lays_its_configuration_over_an_object() {
    let cluster = Cluster::start().await;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": { "name": "marked" },
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"],
            }] },
            "mutations": [
                { "patchType": "ApplyConfiguration", "applyConfiguration": {
                    "expression": "Object{metadata: Object.metadata{annotations: {\"by\": \"policy\"}}, \
                                   spec: Object.spec{replicas: object.spec.replicas + 1}}",
                } },
                { "patchType": "JSONPatch", "jsonPatch": {
                    "expression": "[JSONPatch{op: \"add\", path: \"/metadata/labels\", value: {\"l\": \"m\"}}]",
                } },
            ],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": { "name": "marked" }, "spec": { "policyName": "marked" },
    });
    cluster
        .create(&format!("{POLICIES}/mutatingadmissionpolicies"), &policy)
        .await
        .object();
    let bindings = format!("{POLICIES}/mutatingadmissionpolicybindings");
    cluster.create(&bindings, &binding).await.object();
    let made = cluster
        .create("/apis/apps/v1/namespaces/default/deployments", &deployment("a", 2))
        .await;
    let made = made.object();
    assert_eq!(made["metadata"]["annotations"], json!({ "by": "policy" }));
    assert_eq!(made["metadata"]["labels"], json!({ "l": "m" }));
    assert_eq!(made["spec"]["replicas"], 3);
}

#[tokio::test]
async fn a_certificate_request_has_to_be_one() {
    let cluster = Cluster::start().await;
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": "r" },
        "spec": { "request": "bm9uc2Vuc2U=", "signerName": "example.com/s", "usages": ["client auth"] },
    });
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let refused = cluster.create(path, &request).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused.message().contains("PEM block type must be CERTIFICATE REQUEST"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn a_refused_write_still_warns() {
    let cluster = Cluster::start().await;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "Not A Name" }, "nonsense": 1,
    });
    let path = "/api/v1/namespaces/default/configmaps";
    let refused = cluster
        .send(Method::POST, path, "application/json", map.to_string())
        .await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(refused.warnings, ["299 - \"unknown field \\\"nonsense\\\"\""]);
}

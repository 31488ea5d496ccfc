//! A small valid object of every kind that the corpus knows.

use serde_json::{Value, json};

/// A kind and an object of it.
pub struct Kind {
    /// As in `/apis/apps/v1`.
    pub version: &'static str,
    /// As in `deployments`.
    pub plural: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Its subresources that can be read and written like itself.
    pub subresources: &'static [&'static str],
    object: fn() -> Value,
}

impl Kind {
    /// The object under this name. Kinds whose names follow rules of their own keep what they need of it.
    pub fn object(&self, name: &str) -> Value {
        let mut object = (self.object)();
        let name = match self.plural {
            "ipaddresses" => "10.99.1.7".to_owned(),
            "csidrivers" => format!("{name}.example.com"),
            "apiservices" => format!("v1.{name}.example.com"),
            _ => name.to_owned(),
        };
        if self.plural == "apiservices" {
            object["spec"]["group"] = json!(name.trim_start_matches("v1."));
        }
        object["metadata"] = json!({"name": name});
        if self.plural == "daemonsets" {
            // Left out, it means another number than the stored one; whether that makes a PUT that changes nothing else
            // a new revision depends on whether a second has passed meanwhile.
            object["metadata"]["annotations"] = json!({"deprecated.daemonset.template.generation": "1"});
        }
        object
    }

    /// The path of its collection.
    pub fn collection(&self, namespace: &str) -> String {
        if self.namespaced {
            format!("{}/namespaces/{namespace}/{}", self.version, self.plural)
        } else {
            format!("{}/{}", self.version, self.plural)
        }
    }
}

macro_rules! kind {
    ($version:literal, $kind:literal, $plural:literal, $namespaced:literal, [$($sub:literal),*], {$($body:tt)*}) => {
        Kind {
            version: $version,
            plural: $plural,
            namespaced: $namespaced,
            subresources: &[$($sub),*],
            object: || {
                let api_version = $version.trim_start_matches("/apis/").trim_start_matches("/api/");
                let mut object = json!({$($body)*});
                object["apiVersion"] = json!(api_version);
                object["kind"] = json!($kind);
                object
            },
        }
    };
}

fn pod() -> Value {
    json!({"containers": [{"name": "main", "image": "example.com/app:1"}]})
}

fn template() -> Value {
    json!({"metadata": {"labels": {"app": "a"}}, "spec": pod()})
}

fn job() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "example.com/app:1"}], "restartPolicy": "Never"}})
}

fn selector() -> Value {
    json!({"matchLabels": {"app": "a"}})
}

/// All kinds.
pub static KINDS: [Kind; 45] = [
    kind!("/api/v1", "Pod", "pods", true, ["status"], {"spec": pod()}),
    kind!("/api/v1", "Service", "services", true, ["status"], {"spec": {"ports": [{"port": 80}], "selector": {"app": "a"}}}),
    kind!("/api/v1", "ConfigMap", "configmaps", true, [], {"data": {"a": "b"}}),
    kind!("/api/v1", "Secret", "secrets", true, [], {"stringData": {"a": "b"}}),
    kind!("/api/v1", "Namespace", "namespaces", false, ["status"], {}),
    kind!("/api/v1", "Node", "nodes", false, ["status"], {"spec": {"podCIDR": "10.1.0.0/24"}}),
    kind!("/api/v1", "PersistentVolume", "persistentvolumes", false, ["status"], {"spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"}}}),
    kind!("/api/v1", "PersistentVolumeClaim", "persistentvolumeclaims", true, ["status"], {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    kind!("/api/v1", "ServiceAccount", "serviceaccounts", true, [], {}),
    kind!("/api/v1", "Endpoints", "endpoints", true, [], {"subsets": [{"addresses": [{"ip": "10.1.0.5"}], "ports": [{"port": 80}]}]}),
    kind!("/api/v1", "Event", "events", true, [], {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Because", "message": "it was so", "type": "Normal"}),
    kind!("/api/v1", "LimitRange", "limitranges", true, [], {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}}),
    kind!("/api/v1", "ResourceQuota", "resourcequotas", true, ["status"], {"spec": {"hard": {"pods": "100"}}}),
    kind!("/api/v1", "PodTemplate", "podtemplates", true, [], {"template": template()}),
    kind!("/api/v1", "ReplicationController", "replicationcontrollers", true, ["status", "scale"], {"spec": {"replicas": 1,
        "selector": {"app": "a"}, "template": template()}}),
    kind!("/apis/apps/v1", "Deployment", "deployments", true, ["status", "scale"], {"spec": {"replicas": 2,
        "selector": selector(), "template": template()}}),
    kind!("/apis/apps/v1", "ReplicaSet", "replicasets", true, ["status", "scale"], {"spec": {"selector": selector(), "template": template()}}),
    kind!("/apis/apps/v1", "StatefulSet", "statefulsets", true, ["status", "scale"], {"spec": {"serviceName": "s",
        "selector": selector(), "template": template()}}),
    kind!("/apis/apps/v1", "DaemonSet", "daemonsets", true, ["status"], {"spec": {"selector": selector(), "template": template()}}),
    kind!("/apis/apps/v1", "ControllerRevision", "controllerrevisions", true, [], {"revision": 3, "data": {"a": 1}}),
    kind!("/apis/batch/v1", "Job", "jobs", true, ["status"], {"spec": {"template": job()}}),
    kind!("/apis/batch/v1", "CronJob", "cronjobs", true, ["status"], {"spec": {"schedule": "*/5 * * * *",
        "jobTemplate": {"spec": {"template": job()}}}}),
    kind!("/apis/policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true, ["status"], {"spec": {"minAvailable": 1, "selector": selector()}}),
    kind!("/apis/autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", true, ["status"], {"spec": {"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}),
    kind!("/apis/autoscaling/v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", true, ["status"], {"spec": {"maxReplicas": 3,
        "targetCPUUtilizationPercentage": 60, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}),
    kind!("/apis/networking.k8s.io/v1", "Ingress", "ingresses", true, ["status"], {"spec": {"defaultBackend": {"service": {"name": "s",
        "port": {"number": 80}}}}}),
    kind!("/apis/networking.k8s.io/v1", "IngressClass", "ingressclasses", false, [], {"spec": {"controller": "example.com/c"}}),
    kind!("/apis/networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true, [], {"spec": {"podSelector": {},
        "ingress": [{"ports": [{"port": 80}]}]}}),
    kind!("/apis/networking.k8s.io/v1", "IPAddress", "ipaddresses", false, [], {"spec": {"parentRef": {"resource": "services",
        "namespace": "default", "name": "s"}}}),
    kind!("/apis/discovery.k8s.io/v1", "EndpointSlice", "endpointslices", true, [], {"addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.5"]}], "ports": [{"name": "http", "port": 80}]}),
    kind!("/apis/coordination.k8s.io/v1", "Lease", "leases", true, [], {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}),
    kind!("/apis/rbac.authorization.k8s.io/v1", "Role", "roles", true, [], {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
    kind!("/apis/rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false, [], {"rules": [{"apiGroups": [""], "resources": ["pods"],
        "verbs": ["get"]}]}),
    kind!("/apis/rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", true, [], {"roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}]}),
    kind!("/apis/rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", false, [], {"roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "default"}]}),
    kind!("/apis/storage.k8s.io/v1", "StorageClass", "storageclasses", false, [], {"provisioner": "example.com/disk"}),
    kind!("/apis/storage.k8s.io/v1", "CSIDriver", "csidrivers", false, [], {"spec": {"attachRequired": false}}),
    kind!("/apis/storage.k8s.io/v1", "CSINode", "csinodes", false, [], {"spec": {"drivers": [{"name": "d.example.com", "nodeID": "n"}]}}),
    kind!("/apis/storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", false, ["status"], {"spec": {"attacher": "d.example.com",
        "nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
    kind!("/apis/scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", false, [], {"value": 1000, "description": "of some weight"}),
    kind!("/apis/node.k8s.io/v1", "RuntimeClass", "runtimeclasses", false, [], {"handler": "other"}),
    kind!("/apis/admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", false, [], {"webhooks": [{
        "name": "a.example.com", "clientConfig": {"url": "https://127.0.0.1:1/x"}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "rules": [{"operations": ["CREATE"], "apiGroups": ["none.example.com"], "apiVersions": ["v1"], "resources": ["nothings"]}]}]}),
    kind!("/apis/admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false, ["status"], {"spec": {
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["none.example.com"], "apiVersions": ["v1"],
        "resources": ["nothings"]}]}, "validations": [{"expression": "true"}]}}),
    kind!("/apis/certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", false, ["status"], {"spec": {
        "request": REQUEST, "signerName": "example.com/signer", "usages": ["client auth"]}}),
    kind!("/apis/flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", false, ["status"], {"spec": {
        "type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}}),
];

/// A signing request in PEM, in base64.
const REQUEST: &str = concat!(
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIT01IWUNBUUF3RkRFU01CQUdBMVVFQXd3SmNtVm1aWEpsYm1O",
    "bE1Ga3dFd1lIS29aSXpqMENBUVlJS29aSQp6ajBEQVFjRFFnQUV3L0Y0SmxRU0p4UXNwUUMyZk1HY3FPWXhUZEg5andFczYxWGpQ",
    "Ri9lRzFlK2tGdmh3cmFECmlIb2F2QmpWODFPTkliVnlTaTc3Q2ZpQlhybGxJd2xnV2FBQU1Bb0dDQ3FHU000OUJBTUNBMGdBTUVV",
    "Q0lFREIKNW5OTlloeFJnSlpKblFMcGFKZnhGcEY1WnhkRm9rYldSZUdEYUU0b0FpRUFqR2NyVzNLUDRWUFVsd2JIZ0FsWQorZkFV",
    "R1NIeUNCU1hFdU1iUkdjNzlrbz0KLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==",
);

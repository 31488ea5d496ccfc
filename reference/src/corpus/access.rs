//! Who may do what: roles, impersonation, refusals and reviews.

use fastrand::Rng;
use serde_json::{Value, json};

use super::{Place, pick};
use crate::step::{Step, Until};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

pub(super) fn steps(rng: &mut Rng, place: &Place) -> Vec<Step> {
    let namespace = &place.namespace;
    let roles = format!("{RBAC}/namespaces/{namespace}/roles");
    let bindings = format!("{RBAC}/namespaces/{namespace}/rolebindings");
    let user = format!("jane-{}", place.seed);
    let permitted = json!([
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "deployments/scale"], "verbs": ["*"]},
    ]);
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]});
    let mut steps = vec![
        Step::post(&roles, &json!({"metadata": {"name": "r"}, "rules": permitted})),
        Step::post(&bindings, &binding),
        // The rules take effect in a server's own time.
        Step::get(place.collection("/api/v1", "configmaps?labelSelector=none"))
            .impersonate(&user)
            .until(Until::Found),
    ];
    let asked = [
        ("/api/v1", "configmaps?labelSelector=none"),
        ("/api/v1", "configmaps/missing"),
        ("/api/v1", "secrets"),
        ("/api/v1", "secrets/mine"),
        ("/api/v1", "secrets/other"),
        ("/apis/apps/v1", "deployments"),
        ("/apis/apps/v1", "deployments/d/scale"),
        ("/apis/apps/v1", "statefulsets"),
        ("/apis/example.com/v1", "things"),
    ];
    for (version, what) in asked {
        steps.push(Step::get(place.collection(version, what)).impersonate(&user));
    }
    let map = json!({"metadata": {"name": "by-jane"}});
    steps.extend([
        Step::post(place.collection("/api/v1", "configmaps"), &map).impersonate(&user),
        Step::put(place.collection("/api/v1", "configmaps/by-jane"), &map).impersonate(&user),
        Step::patch(place.collection("/api/v1", "configmaps/by-jane"), "merge", &json!({})).impersonate(&user),
        Step::delete(place.collection("/api/v1", "configmaps/by-jane")).impersonate(&user),
        Step::delete(place.collection("/api/v1", "configmaps")).impersonate(&user),
        Step::get("/api/v1/nodes").impersonate(&user),
        Step::get("/api/v1/pods").impersonate(&user),
        Step::get(format!("/api/v1/namespaces/{namespace}")).impersonate(&user),
        Step::get("/metrics").impersonate(&user),
        Step::get("/version").impersonate(&user),
        Step::get("/api").impersonate(&user),
        Step::get("/nothing").impersonate(&user),
        Step::get("/api/v1/pods?watch=true&timeoutSeconds=1").impersonate(&user),
        Step::get(place.collection("/api/v1", "pods")).impersonate("jane").header("impersonate-group", "system:masters"),
        Step::get(place.collection("/api/v1", "pods")).impersonate("system:serviceaccount:default:default"),
        Step::get(place.collection("/api/v1", "pods")).impersonate("system:anonymous"),
        Step::get("/api/v1/pods").header("impersonate-group", "system:masters"),
        Step::get("/api/v1/pods").impersonate(&user).header("impersonate-extra-scopes", "a"),
        Step::get("/api/v1/pods").header("impersonate-uid", "5"),
        // Nobody gives away what they have not got.
        Step::post(&roles, &json!({"metadata": {"name": "more"}, "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]}))
            .impersonate(&user),
        Step::post(&roles, &json!({"metadata": {"name": "odd"}, "rules": [{"verbs": []}]})),
        Step::post(&bindings, &json!({"metadata": {"name": "odd"}, "roleRef": {"kind": "Nothing", "name": ""}, "subjects": [{"kind": "Robot"}]})),
        Step::patch(format!("{bindings}/b"), "merge", &json!({"roleRef": {"name": "other"}})),
    ]);
    let review = |kind: &str, spec: Value| {
        let path = match kind {
            "LocalSubjectAccessReview" => format!("{REVIEWS}/namespaces/{namespace}/localsubjectaccessreviews"),
            _ => format!("{REVIEWS}/{}s", kind.to_lowercase()),
        };
        Step::post(
            path,
            &json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}),
        )
    };
    let attributes = json!({"namespace": namespace, "verb": pick(rng, &["get", "list", "delete", "*"]),
        "resource": pick(rng, &["configmaps", "secrets", "pods"])});
    steps.extend([
        review("SelfSubjectAccessReview", json!({"resourceAttributes": attributes})).impersonate(&user),
        review("SelfSubjectAccessReview", json!({"resourceAttributes": attributes})),
        review(
            "SelfSubjectAccessReview",
            json!({"nonResourceAttributes": {"path": "/nothing", "verb": "get"}}),
        )
        .impersonate(&user),
        review("SelfSubjectAccessReview", json!({})),
        review(
            "SelfSubjectAccessReview",
            json!({"resourceAttributes": attributes, "nonResourceAttributes": {"path": "/", "verb": "get"}}),
        ),
        review(
            "SubjectAccessReview",
            json!({"user": user, "resourceAttributes": attributes}),
        ),
        review("SubjectAccessReview", json!({"resourceAttributes": attributes})),
        review(
            "SubjectAccessReview",
            json!({"user": user, "groups": ["system:masters"], "resourceAttributes": attributes}),
        ),
        review(
            "LocalSubjectAccessReview",
            json!({"user": user, "resourceAttributes": attributes}),
        ),
        review(
            "LocalSubjectAccessReview",
            json!({"user": user, "resourceAttributes": {"namespace": "other", "verb": "get", "resource": "pods"}}),
        ),
        review("SelfSubjectRulesReview", json!({"namespace": namespace})).impersonate(&user),
        Step::post(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
        )
        .impersonate(&user)
        .header("impersonate-group", "g")
        .header("impersonate-extra-example.com%2fscope", "x"),
        Step::post(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": "nonsense"}}),
        ),
    ]);
    // Tokens of service accounts.
    let accounts = place.collection("/api/v1", "serviceaccounts");
    let request = |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    steps.extend([
        Step::post(&accounts, &json!({"metadata": {"name": "sa"}})),
        Step::post(format!("{accounts}/sa/token"), &request(json!({}))).keep("token", "/status/token"),
        Step::post(
            format!("{accounts}/sa/token"),
            &request(json!({"expirationSeconds": 5})),
        ),
        Step::post(
            format!("{accounts}/sa/token"),
            &request(json!({"audiences": ["other"], "expirationSeconds": 700})),
        )
        .keep("foreign", "/status/token"),
        Step::post(format!("{accounts}/none/token"), &request(json!({}))),
        Step::post(
            format!("{accounts}/sa/token"),
            &request(json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}})),
        ),
        Step::post(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": "{token}"}}),
        ),
        Step::post(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": "{foreign}"}}),
        ),
    ]);
    steps
}

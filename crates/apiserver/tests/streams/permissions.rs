//! Who may reach into pods.

use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::harness::Cluster;

/// Lets jane do so much with a part of pods.
async fn let_jane(cluster: &Cluster, part: &str, verbs: &[&str]) {
    let roles: Api<Role> = Api::default_namespaced(cluster.client());
    let _ = roles.delete("jane", &DeleteParams::default()).await;
    let role = json!({
        "metadata": { "name": "jane" },
        "rules": [
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": [part], "verbs": verbs },
        ],
    });
    let role: Role = serde_json::from_value(role).unwrap();
    roles.create(&PostParams::default(), &role).await.unwrap();
    let bindings: Api<RoleBinding> = Api::default_namespaced(cluster.client());
    let binding = json!({
        "metadata": { "name": "jane" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jane" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane" }],
    });
    let binding: RoleBinding = serde_json::from_value(binding).unwrap();
    let _ = bindings.create(&PostParams::default(), &binding).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_a_command_needs_create_also_where_it_is_asked_for_with_get() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    let exec = ["exec", "--as=jane", "web", "--", "echo", "in"];
    let_jane(&cluster, "pods/exec", &["get"]).await;
    let stderr = cluster.fails(&exec).await;
    assert!(stderr.contains("cannot create resource \"pods/exec\""), "{stderr}");
    let_jane(&cluster, "pods/exec", &["get", "create"]).await;
    assert_eq!(cluster.ok(&exec).await, "in\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_a_log_needs_get() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    cluster.pods.start("app", "echo read");
    cluster.pods.has_said("app", 1).await;
    let_jane(&cluster, "pods/exec", &["get", "create"]).await;
    let stderr = cluster.fails(&["logs", "--as=jane", "web"]).await;
    assert!(stderr.contains("cannot get resource \"pods/log\""), "{stderr}");
    let_jane(&cluster, "pods/log", &["get"]).await;
    assert_eq!(cluster.ok(&["logs", "--as=jane", "web"]).await, "read\n");
}

//! What the server says of itself: `explain`, `api-resources`, `api-versions`, `version`, health.

use crate::harness::Namespace;

#[test]
fn explain_tells_a_built_in_field_with_its_type_and_text() {
    let ns = Namespace::new();
    let said = ns.ok("explain deployment.spec.strategy");
    for part in [
        "GROUP:      apps\nKIND:       Deployment\nVERSION:    v1\n",
        "FIELD: strategy <DeploymentStrategy>",
        "rollingUpdate\t<RollingUpdateDeployment>",
        "type\t<string>",
    ] {
        assert!(said.contains(part), "{part:?} is missing: {said}");
    }
    assert!(
        ns.ok("explain cm --recursive")
            .contains("\n  metadata\t<ObjectMeta>\n    annotations\t<map[string]string>\n")
    );
    assert_eq!(
        ns.fails("explain pod.spec.nonsense"),
        "error: field \"nonsense\" does not exist\n"
    );
}

#[test]
fn api_resources_lists_names_verbs_and_categories() {
    let ns = Namespace::new();
    let wide = ns.ok("api-resources --api-group=apps -o wide");
    let deployments = wide.lines().find(|line| line.starts_with("deployments ")).unwrap();
    let columns: Vec<_> = deployments.split_whitespace().collect();
    assert_eq!(
        columns,
        [
            "deployments",
            "deploy",
            "apps/v1",
            "true",
            "Deployment",
            "create,delete,deletecollection,get,list,patch,update,watch",
            "all"
        ]
    );
    assert!(
        ns.ok("api-resources --namespaced=false -o name")
            .contains("\nnamespaces\n")
    );
    assert!(
        !ns.ok("api-resources --namespaced=true -o name")
            .contains("\nnamespaces\n")
    );
}

#[test]
fn api_versions_lists_every_group() {
    let ns = Namespace::new();
    let versions = ns.ok("api-versions");
    for version in [
        "v1",
        "apps/v1",
        "batch/v1",
        "rbac.authorization.k8s.io/v1",
        "apiextensions.k8s.io/v1",
    ] {
        assert!(
            versions.lines().any(|line| line == version),
            "{version} is missing: {versions}"
        );
    }
}

#[test]
fn the_server_has_a_version_and_is_healthy() {
    let ns = Namespace::new();
    assert!(ns.ok("version").contains("Server Version: v1.36."));
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(ns.ok(&format!("get --raw {path}")), "ok", "{path}");
    }
    assert!(ns.ok("get --raw /readyz?verbose").ends_with("readyz check passed\n"));
    assert!(ns.ok("cluster-info").contains("is running at"));
}

#[test]
fn a_resource_that_is_not_served_is_named() {
    let ns = Namespace::new();
    assert_eq!(
        ns.fails("get nonsense"),
        "error: the server doesn't have a resource type \"nonsense\"\n"
    );
}

//! Who one is and what one may: `auth`, tokens, RBAC, impersonation.

use serde_json::{Value, json};

use crate::harness::Namespace;

#[test]
fn the_administrator_may_do_everything_and_a_stranger_nothing() {
    let ns = Namespace::new();
    assert_eq!(ns.ok("auth can-i create pods"), "yes\n");
    assert_eq!(ns.ok("auth can-i delete nodes -q"), "");
    let stranger = ns.run("auth can-i create pods --as=stranger", "");
    assert_eq!((stranger.code, stranger.stdout.as_str()), (Some(1), "no\n"));
    let rules = ns.ok("auth can-i --list");
    assert!(
        rules
            .lines()
            .any(|line| line.split_whitespace().eq(["*.*", "[]", "[]", "[*]"])),
        "{rules}"
    );
}

#[test]
fn whoami_tells_the_user_and_whom_one_impersonates() {
    let ns = Namespace::new();
    assert!(ns.ok("auth whoami").contains("[system:masters system:authenticated]"));
    assert_eq!(
        ns.ok("auth whoami --as=joe --as-group=devs"),
        "ATTRIBUTE   VALUE\nUsername    joe\nGroups      [devs system:authenticated]\n"
    );
}

#[test]
fn what_is_forbidden_says_who_what_and_where() {
    let ns = Namespace::new();
    assert_eq!(
        ns.fails("get pods --as=joe"),
        format!(
            "Error from server (Forbidden): pods is forbidden: User \"joe\" cannot list resource \"pods\" in API group \
             \"\" in the namespace \"{}\"\n",
            ns.name
        )
    );
    assert_eq!(
        ns.fails("get deployments.apps -A --as=system:anonymous"),
        "Error from server (Forbidden): deployments.apps is forbidden: User \"system:anonymous\" cannot list resource \
         \"deployments\" in API group \"apps\" at the cluster scope\n"
    );
    assert_eq!(
        ns.fails("get pod one --as=joe"),
        format!(
            "Error from server (Forbidden): pods \"one\" is forbidden: User \"joe\" cannot get resource \"pods\" in API \
             group \"\" in the namespace \"{}\"\n",
            ns.name
        )
    );
}

#[test]
fn a_role_allows_what_it_lists_where_it_is_bound() {
    let (ns, other) = (Namespace::new(), Namespace::new());
    ns.ok("create role reader --verb=get,list --resource=configmaps");
    ns.ok("create rolebinding readers --role=reader --user=jane");
    ns.ok("create configmap a");
    ns.eventually("auth can-i get configmaps --as=jane", |can| can.stdout == "yes\n");
    assert_eq!(ns.ok("get cm a -o name --as=jane"), "configmap/a\n");
    assert!(
        ns.fails("delete cm a --as=jane")
            .contains("cannot delete resource \"configmaps\"")
    );
    assert!(
        other
            .fails("get cm --as=jane")
            .contains("cannot list resource \"configmaps\"")
    );
}

#[test]
fn a_default_cluster_role_can_be_bound_to_a_group() {
    let ns = Namespace::new();
    ns.ok("create rolebinding viewers --clusterrole=view --group=auditors");
    ns.ok("create configmap a");
    ns.eventually("auth can-i list configmaps --as=kim --as-group=auditors", |said| {
        said.stdout == "yes\n"
    });
    assert_eq!(ns.ok("get cm a -o name --as=kim --as-group=auditors"), "configmap/a\n");
    assert!(
        ns.fails("get secrets --as=kim --as-group=auditors")
            .contains("cannot list resource \"secrets\"")
    );
}

/// A kubeconfig for the same server that has only `token` to show.
fn kubeconfig_with(ns: &Namespace, token: &str) -> String {
    let mut config: Value = serde_json::from_str(&ns.ok("config view --raw -o json")).unwrap();
    config["users"][0]["user"] = json!({ "token": token });
    ns.file("token.kubeconfig", &config.to_string())
}

#[test]
fn a_token_of_a_service_account_is_that_account() {
    let ns = Namespace::new();
    ns.ok("create serviceaccount bot");
    let token = ns.ok("create token bot");
    let kubeconfig = kubeconfig_with(&ns, token.trim());
    let said = ns.ok(&format!("auth whoami --kubeconfig={kubeconfig}"));
    assert!(
        said.contains(&format!("system:serviceaccount:{}:bot\n", ns.name)),
        "{said}"
    );
    let groups = format!(
        "[system:serviceaccounts system:serviceaccounts:{} system:authenticated]",
        ns.name
    );
    assert!(said.contains(&groups), "{said}");
    assert!(
        ns.fails(&format!("get cm --kubeconfig={kubeconfig}"))
            .contains("is forbidden")
    );
}

#[test]
fn a_token_ends_with_its_service_account() {
    let ns = Namespace::new();
    ns.ok("create serviceaccount bot");
    let token = ns.ok("create token bot");
    let kubeconfig = kubeconfig_with(&ns, token.trim());
    ns.ok(&format!("auth whoami --kubeconfig={kubeconfig}"));
    ns.ok("delete serviceaccount bot");
    // A real API server remembers for ten seconds that a token was good.
    ns.eventually(&format!("get cm --kubeconfig={kubeconfig}"), |outcome| {
        outcome.stderr.contains("You must be logged in to the server")
    });
}

#[test]
fn a_bad_token_is_nobody() {
    let ns = Namespace::new();
    let kubeconfig = kubeconfig_with(&ns, "nonsense");
    let complaint = ns.fails(&format!("get cm --kubeconfig={kubeconfig}"));
    assert!(complaint.contains("You must be logged in to the server"), "{complaint}");
}

#[test]
fn nobody_gives_away_what_he_does_not_have() {
    let ns = Namespace::new();
    ns.ok("create role maker --verb=create --resource=roles.rbac.authorization.k8s.io");
    ns.ok("create rolebinding makers --role=maker --user=eve");
    ns.eventually("auth can-i create roles --as=eve", |can| can.stdout == "yes\n");
    let complaint = ns.fails("create role thief --verb=get --resource=secrets --as=eve");
    assert!(
        complaint.contains("user \"eve\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions"),
        "{complaint}"
    );
}

#[test]
fn reconcile_brings_roles_to_what_the_file_says() {
    let ns = Namespace::new();
    let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r, namespace: NS}\nrules:\n\
                - {apiGroups: [''], resources: [pods], verbs: [get]}\n";
    ns.ok_with("auth reconcile -f -", &role.replace("NS", &ns.name));
    assert_eq!(ns.ok("get role r -o jsonpath={.rules[0].resources}"), r#"["pods"]"#);
}

//! `kubectl apply` from both sides, and `kubectl diff`.

use crate::harness::Namespace;

fn config_map(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {data}\n")
}

#[test]
fn apply_creates_then_configures_then_changes_nothing() {
    let ns = Namespace::new();
    assert_eq!(
        ns.ok_with("apply -f -", &config_map("{x: one}")),
        "configmap/a created\n"
    );
    assert_eq!(
        ns.ok_with("apply -f -", &config_map("{x: two}")),
        "configmap/a configured\n"
    );
    assert_eq!(
        ns.ok_with("apply -f -", &config_map("{x: two}")),
        "configmap/a unchanged\n"
    );
}

#[test]
fn apply_removes_what_is_no_longer_in_the_file_and_keeps_what_others_set() {
    let ns = Namespace::new();
    ns.ok_with("apply -f -", &config_map("{x: one, y: two}"));
    ns.ok(r#"patch cm a --type=merge -p '{"data":{"z":"three"}}'"#);
    ns.ok_with("apply -f -", &config_map("{x: one}"));
    assert_eq!(ns.ok("get cm a -o jsonpath={.data}"), r#"{"x":"one","z":"three"}"#);
}

#[test]
fn apply_merges_the_containers_of_a_deployment_by_name() {
    let ns = Namespace::new();
    let deployment = |containers: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  \
             selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    \
             spec: {{containers: {containers}}}\n"
        )
    };
    ns.ok_with(
        "apply -f -",
        &deployment("[{name: a, image: one}, {name: b, image: two}]"),
    );
    ns.ok("patch deploy web -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]}}}}'");
    ns.ok_with("apply -f -", &deployment("[{name: a, image: three}]"));
    assert_eq!(
        ns.ok("get deploy web -o jsonpath={.spec.template.spec.containers[*].image}"),
        "i three"
    );
}

#[test]
fn apply_of_a_dry_run_tells_what_would_happen() {
    let ns = Namespace::new();
    assert_eq!(
        ns.ok_with("apply --dry-run=server -f -", &config_map("{x: one}")),
        "configmap/a created (server dry run)\n"
    );
    assert_eq!(ns.ok("get cm a --ignore-not-found"), "");
}

#[test]
fn apply_prunes_what_left_the_set() {
    let ns = Namespace::new();
    let both = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {set: s}}\n---\n\
                apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, labels: {set: s}}\n";
    ns.ok_with("apply -f -", both);
    let one = both.split("---\n").next().unwrap();
    let said = ns.ok_with("apply -f - --prune -l set=s --prune-allowlist=core/v1/ConfigMap", one);
    assert!(said.contains("configmap/b pruned"), "{said}");
    assert_eq!(ns.ok("get cm -l set=s -o name"), "configmap/a\n");
}

#[test]
fn server_side_apply_owns_exactly_the_fields_of_the_file() {
    let ns = Namespace::new();
    assert_eq!(
        ns.ok_with("apply --server-side -f -", &config_map("{x: one}")),
        "configmap/a serverside-applied\n"
    );
    let owners = ns.ok(
        "get cm a --show-managed-fields -o jsonpath='{range .metadata.managedFields[*]}{.manager} {.operation} {.fieldsV1}{end}'",
    );
    assert_eq!(owners, r#"kubectl Apply {"f:data":{"f:x":{}}}"#);
}

#[test]
fn server_side_apply_removes_fields_that_only_it_owned() {
    let ns = Namespace::new();
    ns.ok_with("apply --server-side -f -", &config_map("{x: one, y: two}"));
    ns.ok_with("apply --server-side -f -", &config_map("{x: one}"));
    assert_eq!(ns.ok("get cm a -o jsonpath={.data}"), r#"{"x":"one"}"#);
}

#[test]
fn server_side_apply_conflicts_with_another_manager_until_forced() {
    let ns = Namespace::new();
    ns.ok_with(
        "apply --server-side --field-manager=first -f -",
        &config_map("{x: one}"),
    );
    let second = "apply --server-side --field-manager=second -f -";
    let complaint = ns.fails_with(second, &config_map("{x: two}"));
    assert!(
        complaint.starts_with("error: Apply failed with 1 conflict: conflict with \"first\": .data.x\n"),
        "{complaint}"
    );
    ns.ok_with(&format!("{second} --force-conflicts"), &config_map("{x: two}"));
    assert_eq!(ns.ok("get cm a -o jsonpath={.data.x}"), "two");
    let complaint = ns.fails_with(
        "apply --server-side --field-manager=first -f -",
        &config_map("{x: one}"),
    );
    assert!(complaint.contains("conflict with \"second\": .data.x"), "{complaint}");
}

#[test]
fn two_managers_that_agree_share_a_field() {
    let ns = Namespace::new();
    ns.ok_with(
        "apply --server-side --field-manager=first -f -",
        &config_map("{x: one}"),
    );
    ns.ok_with(
        "apply --server-side --field-manager=second -f -",
        &config_map("{x: one}"),
    );
    ns.ok_with("apply --server-side --field-manager=first -f -", &config_map("{}"));
    assert_eq!(ns.ok("get cm a -o jsonpath={.data.x}"), "one");
}

#[test]
fn an_object_of_client_side_apply_moves_to_server_side_apply() {
    let ns = Namespace::new();
    ns.ok_with("apply -f -", &config_map("{x: one, y: two}"));
    ns.ok_with("apply --server-side -f -", &config_map("{x: three}"));
    assert_eq!(ns.ok("get cm a -o jsonpath={.data}"), r#"{"x":"three"}"#);
    let managers = ns.ok("get cm a --show-managed-fields -o jsonpath='{.metadata.managedFields[*].manager}'");
    assert!(!managers.contains("kubectl-client-side-apply"), "{managers}");
}

#[test]
fn diff_exits_one_when_something_differs_and_zero_when_not() {
    let ns = Namespace::new();
    ns.ok_with("apply -f -", &config_map("{x: one}"));
    for side in ["", " --server-side"] {
        let outcome = ns.run(&format!("diff{side} -f -"), &config_map("{x: two}"));
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stdout.contains("-  x: one\n+  x: two\n"), "{outcome:?}");
    }
    assert_eq!(ns.ok_with("diff -f -", &config_map("{x: one}")), "");
    assert_eq!(ns.ok("get cm a -o jsonpath={.data.x}"), "one");
}

#[test]
fn a_kustomization_is_built_and_applied() {
    let ns = Namespace::new();
    let directory = ns.directory(
        "kustomization.yaml",
        "configMapGenerator:\n- {name: made, literals: [x=1], options: {disableNameSuffixHash: true}}\nnamePrefix: my-\n",
    );
    assert_eq!(ns.ok(&format!("apply -k {directory}")), "configmap/my-made created\n");
    assert_eq!(ns.ok("get cm my-made -o jsonpath={.data.x}"), "1");
}

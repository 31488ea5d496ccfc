//! What the server refuses, in the words of a real API server.

use serde_json::{Value, json};

use crate::harness::Namespace;

#[test]
fn what_is_missing_or_there_already_is_named() {
    let ns = Namespace::new();
    assert_eq!(
        ns.fails("get configmap nope"),
        "Error from server (NotFound): configmaps \"nope\" not found\n"
    );
    assert_eq!(
        ns.fails("get deploy nope"),
        "Error from server (NotFound): deployments.apps \"nope\" not found\n"
    );
    ns.ok("create configmap a");
    assert_eq!(
        ns.fails("create configmap a"),
        "error: failed to create configmap: configmaps \"a\" already exists\n"
    );
    assert_eq!(
        ns.fails_with("create -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"),
        "Error from server (AlreadyExists): error when creating \"STDIN\": configmaps \"a\" already exists\n"
    );
}

#[test]
fn a_namespace_that_is_not_there_is_named() {
    let ns = Namespace::new();
    assert_eq!(
        ns.fails("create configmap a --namespace=not-there"),
        "error: failed to create configmap: namespaces \"not-there\" not found\n"
    );
}

#[test]
fn an_invalid_name_says_which_rule_it_breaks() {
    let ns = Namespace::new();
    let complaint = ns.fails_with(
        "create -f -",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_Valid}\n",
    );
    assert!(
        complaint.starts_with(
            "The ConfigMap \"Not_Valid\" is invalid: metadata.name: Invalid value: \"Not_Valid\": a lowercase RFC 1123 \
             subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an \
             alphanumeric character"
        ),
        "{complaint}"
    );
}

#[test]
fn every_wrong_field_of_an_object_is_listed() {
    let ns = Namespace::new();
    let complaint = ns.fails_with(
        "create -f -",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: -1\n  \
         selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: other}}\n    \
         spec: {containers: [{name: a, image: i}]}\n",
    );
    assert!(
        complaint.starts_with("The Deployment \"web\" is invalid: "),
        "{complaint}"
    );
    assert!(
        complaint.contains("* spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        "{complaint}"
    );
    assert!(
        complaint.contains("`selector` does not match template `labels`"),
        "{complaint}"
    );
}

#[test]
fn a_field_that_must_not_change_keeps_its_value() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx");
    let complaint = ns.fails(r#"patch deploy web --type=merge -p '{"spec":{"selector":{"matchLabels":{"app":"x"}}}}'"#);
    assert!(complaint.contains("spec.selector: Invalid value: "), "{complaint}");
    assert!(complaint.contains("field is immutable"), "{complaint}");
}

#[test]
fn strict_validation_names_unknown_and_duplicate_fields() {
    let ns = Namespace::new();
    let unknown = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nfoo: bar\n";
    assert_eq!(
        ns.fails_with("create -f - --validate=strict", unknown),
        "Error from server (BadRequest): error when creating \"STDIN\": ConfigMap in version \"v1\" cannot be handled as \
         a ConfigMap: strict decoding error: unknown field \"foo\"\n"
    );
    let warned = ns.run("create -f - --validate=warn", unknown);
    assert_eq!(warned.code, Some(0), "{warned:?}");
    assert_eq!(warned.stderr, "Warning: unknown field \"foo\"\n");
    ns.ok_with("replace -f - --validate=ignore", unknown);
    assert_eq!(ns.ok("get cm a -o jsonpath={.foo}"), "");
}

#[test]
fn a_value_of_the_wrong_type_is_refused() {
    let ns = Namespace::new();
    let complaint = ns.fails_with(
        "create -f - --validate=ignore",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: 5}\n",
    );
    assert!(
        complaint.contains("ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string"),
        "{complaint}"
    );
}

#[test]
fn an_unknown_kind_is_told_with_its_version() {
    let ns = Namespace::new();
    let complaint = ns.fails_with(
        "create -f -",
        "apiVersion: nowhere.example.com/v1\nkind: Nothing\nmetadata: {name: a}\n",
    );
    assert!(
        complaint.contains("no matches for kind \"Nothing\" in version \"nowhere.example.com/v1\""),
        "{complaint}"
    );
}

#[test]
fn an_immutable_config_map_stays_as_it_is() {
    let ns = Namespace::new();
    ns.ok_with(
        "create -f -",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nimmutable: true\ndata: {x: one}\n",
    );
    let complaint = ns.fails(r#"patch cm a --type=merge -p '{"data":{"x":"two"}}'"#);
    assert!(
        complaint.contains("data: Forbidden: field is immutable when `immutable` is set"),
        "{complaint}"
    );
}

#[test]
fn a_delete_with_the_uid_of_another_object_is_a_conflict() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    let uid = ns.ok("get cm a -o jsonpath={.metadata.uid}");
    let options = ns.file(
        "options",
        r#"{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"other"}}"#,
    );
    let path = format!("/api/v1/namespaces/{}/configmaps/a", ns.name);
    let complaint = ns.fails(&format!("delete --raw {path} -f {options}"));
    assert!(
        complaint.contains(&format!(
            "the UID in the precondition (other) does not match the UID in record ({uid}). The object might have been \
             deleted and then recreated"
        )),
        "{complaint}"
    );
    let status: Value = serde_json::from_str(&ns.ok(&format!("delete --raw {path}"))).unwrap();
    assert_eq!(status["status"], "Success");
    assert_eq!(
        status["details"],
        json!({ "name": "a", "kind": "configmaps", "uid": uid })
    );
}

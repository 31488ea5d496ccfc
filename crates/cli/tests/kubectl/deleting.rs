//! `kubectl delete`: one, many, what they own, what holds them back, and whole namespaces.

use crate::harness::Namespace;

/// An owner `a`, and a config map `b` that it owns.
fn owner_and_owned(ns: &Namespace) {
    ns.ok("create configmap a");
    let uid = ns.ok("get cm a -o jsonpath={.metadata.uid}");
    ns.ok_with(
        "create -f -",
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b\n  ownerReferences:\n  \
             - {{apiVersion: v1, kind: ConfigMap, name: a, uid: {uid}, blockOwnerDeletion: true}}\n"
        ),
    );
}

#[test]
fn delete_waits_until_the_object_is_gone() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    let said = ns.ok("delete cm a");
    assert!(said.starts_with("configmap \"a\" deleted"), "{said}");
    assert_eq!(ns.ok("get cm a --ignore-not-found"), "");
}

#[test]
fn delete_takes_all_that_a_selector_finds() {
    let ns = Namespace::new();
    for name in ["a", "b", "c"] {
        ns.ok(&format!("create configmap {name}"));
    }
    ns.ok("label cm a b pick=me");
    ns.ok("delete cm -l pick=me");
    assert_eq!(ns.ok("get cm a b c --ignore-not-found -o name"), "configmap/c\n");
    ns.ok("delete cm --all");
    assert_eq!(ns.ok("get cm a b c --ignore-not-found -o name"), "");
}

#[test]
fn delete_of_a_dry_run_keeps_the_object() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    ns.ok("delete cm a --dry-run=server");
    assert_eq!(ns.ok("get cm a -o name"), "configmap/a\n");
}

#[test]
fn background_deletion_takes_what_is_owned_afterwards() {
    let ns = Namespace::new();
    owner_and_owned(&ns);
    ns.ok("delete cm a --cascade=background");
    ns.ok("wait --for=delete cm/b --timeout=30s");
}

#[test]
fn foreground_deletion_takes_what_is_owned_first() {
    let ns = Namespace::new();
    owner_and_owned(&ns);
    ns.ok("delete cm a --cascade=foreground");
    assert_eq!(ns.ok("get cm a b --ignore-not-found -o name"), "");
}

#[test]
fn foreground_deletion_waits_for_what_is_owned_and_blocks() {
    let ns = Namespace::new();
    owner_and_owned(&ns);
    ns.ok(r#"patch cm b --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'"#);
    ns.ok("delete cm a --cascade=foreground --wait=false");
    ns.eventually("get cm b -o jsonpath={.metadata.deletionTimestamp}", |time| {
        !time.stdout.is_empty()
    });
    assert_eq!(
        ns.ok("get cm a -o jsonpath={.metadata.finalizers}"),
        r#"["foregroundDeletion"]"#
    );
    ns.ok(r#"patch cm b --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    ns.ok("wait --for=delete cm/a --timeout=30s");
}

#[test]
fn orphaning_deletion_keeps_what_is_owned_and_cuts_the_tie() {
    let ns = Namespace::new();
    owner_and_owned(&ns);
    ns.ok("delete cm a --cascade=orphan");
    assert_eq!(
        ns.ok("get cm b -o jsonpath={.metadata.name}/{.metadata.ownerReferences}"),
        "b/"
    );
}

#[test]
fn a_finalizer_holds_an_object_until_it_is_removed() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    ns.ok(r#"patch cm a --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'"#);
    ns.ok("delete cm a --wait=false");
    assert!(!ns.ok("get cm a -o jsonpath={.metadata.deletionTimestamp}").is_empty());
    ns.ok(r#"patch cm a --type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]'"#);
    assert_eq!(ns.ok("get cm a --ignore-not-found"), "");
}

#[test]
fn a_pod_without_a_node_is_deleted_at_once() {
    let ns = Namespace::new();
    ns.ok("run p --image=busybox");
    ns.ok("delete pod p");
    ns.ok("run p --image=busybox");
    let said = ns.ok("delete pod p --grace-period=0 --force");
    assert!(said.starts_with("pod \"p\" force deleted"), "{said}");
}

#[test]
fn deleting_a_namespace_takes_everything_in_it() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx");
    ns.ok("create configmap a");
    ns.ok(&format!("delete namespace {}", ns.name));
    assert_eq!(
        ns.fails(&format!("get namespace {}", ns.name)),
        format!("Error from server (NotFound): namespaces \"{}\" not found\n", ns.name)
    );
    assert_eq!(ns.ok("get deploy,cm -o name"), "");
}

#[test]
fn a_namespace_that_is_being_deleted_says_why_and_takes_nothing_new() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    ns.ok(r#"patch cm a --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'"#);
    ns.ok(&format!("delete namespace {} --wait=false", ns.name));
    let phase = format!("get ns {} -o jsonpath={{.status.phase}}", ns.name);
    ns.eventually(&phase, |phase| phase.stdout == "Terminating");
    let complaint = ns.fails("create configmap b");
    assert!(
        complaint.contains(&format!(
            "configmaps \"b\" is forbidden: unable to create new content in namespace {} because it is being terminated",
            ns.name
        )),
        "{complaint}"
    );
    ns.eventually(
        &format!("get ns {} -o jsonpath={{.status.conditions[*].message}}", ns.name),
        |said| said.stdout.contains("example.com/hold in 1 resource instances"),
    );
    ns.ok(r#"patch cm a --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    ns.ok(&format!("wait --for=delete namespace/{} --timeout=30s", ns.name));
}

//! `kubectl wait` and `kubectl get --watch`.

use crate::harness::Namespace;

#[test]
fn wait_returns_when_a_condition_becomes_true() {
    let ns = Namespace::new();
    // A pod that no node has: nobody else writes its conditions.
    ns.ok("run p --image=busybox");
    let waiting = ns.start("wait --for=condition=Ready pod/p --timeout=50s");
    ns.ok(
        r#"patch pod p --subresource=status --type=merge -p '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'"#,
    );
    assert!(waiting.ended().success());
}

#[test]
fn wait_gives_up_when_its_time_is_over() {
    let ns = Namespace::new();
    ns.ok("run p --image=busybox");
    assert_eq!(
        ns.fails("wait --for=condition=Ready pod/p --timeout=100ms"),
        "error: timed out waiting for the condition on pods/p\n"
    );
}

#[test]
fn wait_sees_a_value_by_its_path() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    let waiting = ns.start("wait --for=jsonpath={.data.x}=done cm/a --timeout=50s");
    ns.ok(r#"patch cm a --type=merge -p '{"data":{"x":"done"}}'"#);
    assert!(waiting.ended().success());
}

#[test]
fn wait_sees_a_deletion() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    let waiting = ns.start("wait --for=delete cm/a --timeout=50s");
    ns.ok("delete cm a");
    assert!(waiting.ended().success());
    ns.ok("wait --for=delete cm/never-there --timeout=1s");
}

#[test]
fn a_watch_shows_what_is_there_and_then_every_change() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    let mut watch = ns.start("get cm --watch --output-watch-events");
    let header = watch.line_with("NAME");
    assert_eq!(
        header.split_whitespace().collect::<Vec<_>>(),
        ["EVENT", "NAME", "DATA", "AGE"]
    );
    watch.line_with(" a ");
    ns.ok("create configmap b --from-literal=x=1");
    assert!(watch.line_with(" b ").starts_with("ADDED"));
    ns.ok(r#"patch cm b --type=merge -p '{"data":{"y":"2"}}'"#);
    let changed = watch.line_with(" b ");
    assert!(changed.starts_with("MODIFIED") && changed.contains(" 2 "), "{changed}");
    ns.ok("delete cm b");
    assert!(watch.line_with(" b ").starts_with("DELETED"));
}

#[test]
fn a_watch_with_a_selector_sees_an_object_leave() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    ns.ok("label cm a pick=me");
    let mut watch = ns.start("get cm -l pick=me --watch --output-watch-events");
    watch.line_with(" a ");
    ns.ok("label cm a pick-");
    assert!(watch.line_with(" a ").starts_with("DELETED"));
    ns.ok("label cm a pick=me");
    assert!(watch.line_with(" a ").starts_with("ADDED"));
}

#[test]
fn a_watch_of_one_object_in_yaml_prints_the_whole_object_again() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=before");
    let mut watch = ns.start("get cm a --watch -o yaml");
    watch.line_with("x: before");
    ns.ok(r#"patch cm a --type=merge -p '{"data":{"x":"after"}}'"#);
    watch.line_with("x: after");
}

//! `kubectl rollout` with the workload controllers and no node: what a node says of pods is played by patches.

use std::time::{Duration, Instant};

use crate::harness::Namespace;

fn deployment(ns: &Namespace) {
    ns.ok("create deployment web --image=nginx --replicas=2");
}

#[test]
fn a_rollout_is_paused_once_and_resumed_once() {
    let ns = Namespace::new();
    deployment(&ns);
    assert_eq!(ns.ok("rollout pause deploy web"), "deployment.apps/web paused\n");
    assert_eq!(
        ns.fails("rollout pause deploy web"),
        "error: deployments.apps \"web\" is already paused\n"
    );
    assert_eq!(ns.ok("get deploy web -o jsonpath={.spec.paused}"), "true");
    assert_eq!(ns.ok("rollout resume deploy web"), "deployment.apps/web resumed\n");
    assert_eq!(
        ns.fails("rollout resume deploy web"),
        "error: deployments.apps \"web\" is not paused\n"
    );
}

#[test]
fn a_restart_marks_the_template() {
    let ns = Namespace::new();
    deployment(&ns);
    assert_eq!(ns.ok("rollout restart deploy web"), "deployment.apps/web restarted\n");
    let annotations = ns.ok("get deploy web -o jsonpath={.spec.template.metadata.annotations}");
    assert!(
        annotations.contains("kubectl.kubernetes.io/restartedAt"),
        "{annotations}"
    );
}

#[test]
fn a_rollout_is_over_when_its_status_says_so() {
    let ns = Namespace::new();
    deployment(&ns);
    let mut waiting = ns.start("rollout status deploy web --timeout=50s");
    waiting.line_with("Waiting for deployment");
    // No node runs its pods, so they are said to be ready from here, and the controllers count them.
    let pods = || ns.ok("get pods -o name");
    let started = Instant::now();
    while pods().lines().count() < 2 {
        assert!(started.elapsed() < Duration::from_secs(50), "no pods: {}", pods());
        std::thread::sleep(Duration::from_millis(50));
    }
    for pod in pods().lines() {
        ns.ok(&format!(
            r#"patch {pod} --subresource=status --type=merge -p '{{"status":{{"conditions":[{{"type":"Ready","status":"True"}}]}}}}'"#
        ));
    }
    waiting.line_with("deployment \"web\" successfully rolled out");
    assert!(waiting.ended().success());
}

#[test]
fn the_history_lists_the_replica_sets_of_a_deployment() {
    let ns = Namespace::new();
    deployment(&ns);
    let uid = ns.ok("get deploy web -o jsonpath={.metadata.uid}");
    for revision in [1, 2] {
        ns.ok_with(
            "create -f -",
            &format!(
                "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata:\n  name: web-{revision}\n  labels: {{app: web}}\n  \
                 annotations: {{deployment.kubernetes.io/revision: '{revision}', kubernetes.io/change-cause: cause-{revision}}}\n  \
                 ownerReferences: [{{apiVersion: apps/v1, kind: Deployment, name: web, uid: {uid}, controller: true}}]\n\
                 spec:\n  selector: {{matchLabels: {{app: web, pod-template-hash: h{revision}}}}}\n  \
                 template: {{metadata: {{labels: {{app: web, pod-template-hash: h{revision}}}}}, spec: {{containers: [{{name: nginx, image: \"nginx:{revision}\"}}]}}}}\n"
            ),
        );
    }
    let history = ns.ok("rollout history deploy web");
    assert!(history.contains("1         cause-1\n2         cause-2\n"), "{history}");
    assert_eq!(
        ns.ok("rollout undo deploy web --to-revision=1"),
        "deployment.apps/web rolled back\n"
    );
    assert_eq!(
        ns.ok("get deploy web -o jsonpath={.spec.template.spec.containers[0].image}"),
        "nginx:1"
    );
}

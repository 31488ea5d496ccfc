//! The cells of a pod, of which the status is the one that everybody reads.

use serde_json::{Value, json};

use super::subject::{Subject, at, integer, text};
use crate::time;

/// What the statuses of a pod's containers add up to.
struct Summary {
    ready: usize,
    containers: usize,
    reason: String,
    restarts: i64,
    /// When the last restarted container had ended.
    last_restart: Option<String>,
}

pub(super) fn ready(pod: &Subject<'_>) -> Value {
    let summary = Summary::of(pod);
    format!("{}/{}", summary.ready, summary.containers).into()
}

pub(super) fn status(pod: &Subject<'_>) -> Value {
    let phase = pod.text("status.phase");
    let deleting = pod.meta().is_deleting();
    if deleting && pod.text("status.reason") == "NodeLost" {
        "Unknown".into()
    } else if deleting && !matches!(phase, "Failed" | "Succeeded") {
        "Terminating".into()
    } else {
        Summary::of(pod).reason.into()
    }
}

pub(super) fn restarts(pod: &Subject<'_>) -> Value {
    let summary = Summary::of(pod);
    match summary.last_restart {
        Some(then) if summary.restarts != 0 => format!("{} ({} ago)", summary.restarts, pod.since(Some(&then))).into(),
        _ => summary.restarts.to_string().into(),
    }
}

/// The single address is the one that counts where both are given and differ.
pub(super) fn address(pod: &Subject<'_>) -> Value {
    let first = pod
        .items("status.podIPs")
        .first()
        .map_or("", |address| text(address, "ip"));
    match (pod.text("status.podIP"), first) {
        ("", "") => "<none>".into(),
        ("", first) => first.into(),
        (address, _) => address.into(),
    }
}

pub(super) fn readiness_gates(pod: &Subject<'_>) -> Value {
    let gates = pod.items("spec.readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates
        .iter()
        .filter(|gate| pod.condition_is_true(text(gate, "conditionType")))
        .count();
    format!("{open}/{}", gates.len()).into()
}

/// A finished pod says so in its row, for clients that hide such pods.
pub(super) fn row_conditions(pod: &Value) -> Option<Value> {
    let (reason, message) = match text(pod, "status.phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

impl Summary {
    fn of(pod: &Subject<'_>) -> Self {
        let sidecars = pod
            .items("spec.initContainers")
            .iter()
            .filter(|container| is_sidecar(container))
            .count();
        let mut summary = Summary {
            ready: 0,
            containers: pod.items("spec.containers").len() + sidecars,
            reason: phase(pod),
            restarts: 0,
            last_restart: None,
        };
        let initializing = summary.add_init_containers(pod);
        if !initializing || pod.condition_is_true("Initialized") {
            summary.add_containers(pod);
        }
        summary
    }

    /// Takes init containers into account up to the first that has not done its part, and tells if there is one.
    fn add_init_containers(&mut self, pod: &Subject<'_>) -> bool {
        let declared = pod.items("spec.initContainers");
        for (position, status) in pod.items("status.initContainerStatuses").iter().enumerate() {
            self.add_restarts(status);
            let name = text(status, "name");
            let sidecar = declared
                .iter()
                .any(|container| text(container, "name") == name && is_sidecar(container));
            let terminated = present(status, "state.terminated");
            if terminated.is_some_and(|terminated| integer(terminated, "exitCode") == 0) {
                continue;
            }
            if sidecar && is_true(status, "started") {
                self.ready += usize::from(is_true(status, "ready"));
                continue;
            }
            let waiting = text(status, "state.waiting.reason");
            self.reason = if let Some(terminated) = terminated {
                format!("Init:{}", ending(terminated))
            } else if !matches!(waiting, "" | "PodInitializing") {
                format!("Init:{waiting}")
            } else {
                format!("Init:{position}/{}", declared.len())
            };
            return true;
        }
        false
    }

    fn add_containers(&mut self, pod: &Subject<'_>) {
        let (mut running, mut failure) = (false, None);
        // Restarts during initialization no longer count, but those of sidecars go on.
        (self.restarts, self.last_restart) = (0, None);
        for status in pod.items("status.initContainerStatuses") {
            let name = text(status, "name");
            let mut declared = pod.items("spec.initContainers").iter();
            if declared.any(|container| text(container, "name") == name && is_sidecar(container)) {
                self.add_restarts(status);
            }
        }
        for status in pod.items("status.containerStatuses").iter().rev() {
            self.add_restarts(status);
            let waiting = text(status, "state.waiting.reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if let Some(terminated) = present(status, "state.terminated") {
                self.reason = ending(terminated);
                if integer(terminated, "exitCode") != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if is_true(status, "ready") && present(status, "state.running").is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && pod.condition_is_true("Ready") {
                "Running".clone_into(&mut self.reason);
            } else if let Some(failure) = failure {
                self.reason = failure;
            } else if running {
                "NotReady".clone_into(&mut self.reason);
            }
        }
    }

    fn add_restarts(&mut self, status: &Value) {
        self.restarts += integer(status, "restartCount");
        let ended = text(status, "lastState.terminated.finishedAt");
        let later = |earlier: &String| time::parse(ended).ok() > time::parse(earlier).ok();
        if !ended.is_empty() && self.last_restart.as_ref().is_none_or(later) {
            self.last_restart = Some(ended.to_owned());
        }
    }
}

fn phase(pod: &Subject<'_>) -> String {
    let gated = pod
        .condition("PodScheduled")
        .is_some_and(|condition| text(condition, "reason") == "SchedulingGated");
    match pod.text("status.reason") {
        _ if gated => "SchedulingGated",
        "" => pod.text("status.phase"),
        reason => reason,
    }
    .to_owned()
}

/// How a container ended, in a word.
fn ending(terminated: &Value) -> String {
    match (text(terminated, "reason"), integer(terminated, "signal")) {
        ("", 0) => format!("ExitCode:{}", integer(terminated, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Init containers that restart always run beside the others.
fn is_sidecar(container: &Value) -> bool {
    text(container, "restartPolicy") == "Always"
}

fn is_true(value: &Value, path: &str) -> bool {
    at(value, path) == Some(&Value::Bool(true))
}

fn present<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    at(value, path).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(pod: &Value) -> (String, String, String) {
        let subject = Subject::new(pod, "2026-01-01T00:10:00Z".parse().unwrap());
        let text = |value: Value| value.as_str().unwrap().to_owned();
        (text(ready(&subject)), text(status(&subject)), text(restarts(&subject)))
    }

    fn expect(pod: &Value, ready: &str, status: &str, restarts: &str) {
        assert_eq!(
            cells(pod),
            (ready.to_owned(), status.to_owned(), restarts.to_owned()),
            "{pod}"
        );
    }

    fn running() -> Value {
        json!({"name": "a", "ready": true, "state": {"running": {}}})
    }

    #[test]
    fn a_pod_without_statuses_shows_its_phase() {
        expect(
            &json!({"spec": {"containers": [{}, {}]}, "status": {"phase": "Pending"}}),
            "0/2",
            "Pending",
            "0",
        );
        let evicted = json!({"spec": {"containers": [{}]}, "status": {"phase": "Failed", "reason": "Evicted"}});
        expect(&evicted, "0/1", "Evicted", "0");
        let gated = json!({"spec": {"containers": [{}]}, "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}});
        expect(&gated, "0/1", "SchedulingGated", "0");
    }

    #[test]
    fn running_waiting_and_ended_containers_show() {
        let spec = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        let crashing = json!({"name": "b", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:05:00Z"}}});
        for (statuses, expected) in [
            (json!([running(), running()]), ("2/2", "Running", "0")),
            (json!([running(), crashing]), ("1/2", "CrashLoopBackOff", "3 (5m ago)")),
            (
                json!([running(), {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]),
                ("1/2", "OOMKilled", "0"),
            ),
            (
                json!([running(), {"state": {"terminated": {"exitCode": 3}}}]),
                ("1/2", "ExitCode:3", "0"),
            ),
            (
                json!([{"state": {"terminated": {"exitCode": 137, "signal": 9}}}]),
                ("0/2", "Signal:9", "0"),
            ),
            (
                json!([running(), {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]),
                ("1/2", "NotReady", "0"),
            ),
        ] {
            let pod = json!({"spec": spec, "status": {"phase": "Running", "containerStatuses": statuses}});
            expect(&pod, expected.0, expected.1, expected.2);
        }
    }

    #[test]
    fn a_completed_container_does_not_hide_a_ready_pod() {
        let pod = json!({"spec": {"containers": [{}, {}]}, "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}, running()]}});
        expect(&pod, "1/2", "Running", "0");
    }

    #[test]
    fn initialization_is_told_step_by_step() {
        let spec = json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{}]});
        let done = json!({"name": "i", "state": {"terminated": {"exitCode": 0}}});
        for (statuses, status) in [
            (json!([{"name": "i", "state": {"running": {}}}]), "Init:0/2"),
            (
                json!([done, {"name": "j", "state": {"waiting": {"reason": "PodInitializing"}}}]),
                "Init:1/2",
            ),
            (
                json!([done, {"name": "j", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]),
                "Init:CrashLoopBackOff",
            ),
            (
                json!([{"name": "i", "state": {"terminated": {"exitCode": 2}}}]),
                "Init:ExitCode:2",
            ),
            (
                json!([{"name": "i", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}]),
                "Init:Error",
            ),
            (
                json!([done, {"name": "j", "state": {"terminated": {"exitCode": 0}}}]),
                "Pending",
            ),
        ] {
            let pod = json!({"spec": spec, "status": {"phase": "Pending", "initContainerStatuses": statuses}});
            expect(&pod, "0/1", status, "0");
        }
    }

    #[test]
    fn sidecars_count_as_containers() {
        let pod = json!({
            "spec": {"initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": [{"name": "a"}]},
            "status": {"phase": "Running",
                "initContainerStatuses": [
                    {"name": "s", "started": true, "ready": true, "restartCount": 2, "state": {"running": {}}}],
                "containerStatuses": [running()]},
        });
        expect(&pod, "2/2", "Running", "2");
    }

    #[test]
    fn a_deleted_pod_is_terminating_until_it_has_ended() {
        for (phase, reason, status) in [
            ("Running", "", "Terminating"),
            ("Succeeded", "", "Succeeded"),
            ("Running", "NodeLost", "Unknown"),
        ] {
            let pod = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"containers": [{}]},
                "status": {"phase": phase, "reason": reason}});
            expect(&pod, "0/1", status, "0");
        }
    }

    #[test]
    fn readiness_gates_are_counted() {
        let pod = json!({"spec": {"readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
            "status": {"conditions": [{"type": "a", "status": "True"}, {"type": "b", "status": "False"}]}});
        assert_eq!(
            readiness_gates(&Subject::new(&pod, "2026-01-01T00:10:00Z".parse().unwrap())),
            json!("1/2")
        );
    }
}

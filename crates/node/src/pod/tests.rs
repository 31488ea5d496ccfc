use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use super::*;

/// A pod on a node, driven by hand.
struct Bench {
    pod: Pod,
    memory: Memory,
    now: Timestamp,
}

impl Bench {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "literals read better where they are handed in whole"
    )]
    fn new(spec: Value) -> Self {
        let pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u", "generation": 1 }, "spec": spec,
        }))
        .unwrap();
        let now = Timestamp::from_second(1_000_000).unwrap();
        Self {
            pod,
            memory: Memory::new(now),
            now,
        }
    }

    fn decide(&self) -> Decision {
        decide(&self.pod, &Shape::of(&self.pod), &self.memory, self.now)
    }

    fn started(&self) -> Vec<String> {
        let actions = self.decide().actions;
        let started = actions.into_iter().filter_map(|action| match action {
            Action::Start { container, .. } => Some(container),
            _ => None,
        });
        started.collect()
    }

    fn prepare(mut self) -> Self {
        assert_eq!(self.decide().actions, [Action::Prepare]);
        self.memory.sandbox = Some(Sandbox {
            ips: vec!["10.0.0.5".parse().unwrap()],
        });
        self.memory.had_sandbox = true;
        self
    }

    fn run(&mut self, name: &str) {
        let now = self.now;
        let known = self.memory.container_mut(name);
        let since = known.ended().map_or(now, |ended| ended.finished);
        if known.ended().is_some() {
            known.backoff.attempted(since, now);
        }
        known.begin(Attempt {
            id: format!("moorline://{name}"),
            image: "i".to_owned(),
            image_id: "sha".to_owned(),
            state: State::Running { since: now },
        });
    }

    fn end(&mut self, name: &str, exit_code: i32) {
        let now = self.now;
        let known = self.memory.container_mut(name);
        let attempt = known.current.as_mut().unwrap();
        attempt.state = State::Ended(Ended {
            id: attempt.id.clone(),
            exit_code,
            signal: None,
            reason: if exit_code == 0 { "Completed" } else { "Error" }.to_owned(),
            message: None,
            started: Some(now),
            finished: now,
        });
    }

    fn status(&self) -> PodStatus {
        let hosts = ["10.9.9.9".parse().unwrap()];
        status(&self.pod, &Shape::of(&self.pod), &self.memory, &hosts, self.now)
    }

    fn phase(&self) -> String {
        self.status().phase.unwrap()
    }

    fn condition(&self, name: &str) -> (String, Option<String>, Option<String>) {
        let conditions = self.status().conditions.unwrap();
        let condition = conditions
            .into_iter()
            .find(|condition| condition.type_ == name)
            .unwrap();
        (condition.status, condition.reason, condition.message)
    }

    fn waiting(&self, index: usize) -> String {
        let statuses = self.status().container_statuses.unwrap();
        statuses[index]
            .state
            .as_ref()
            .unwrap()
            .waiting
            .as_ref()
            .unwrap()
            .reason
            .clone()
            .unwrap()
    }
}

fn one(restart: &str) -> Bench {
    Bench::new(json!({ "restartPolicy": restart, "containers": [{ "name": "c", "image": "i" }] }))
}

#[test]
fn a_pod_is_prepared_started_and_ready() {
    let mut bench = one("Always");
    assert_eq!(bench.phase(), "Pending");
    assert_eq!(bench.waiting(0), "ContainerCreating");
    bench = bench.prepare();
    assert_eq!(bench.condition("PodReadyToStartContainers").0, "True");
    assert_eq!(bench.started(), ["c"]);
    bench.run("c");
    assert_eq!(bench.decide(), Decision::default(), "there is nothing to do");
    let status = bench.status();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.5"));
    assert_eq!(status.host_ip.as_deref(), Some("10.9.9.9"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(status.observed_generation, Some(1));
    for condition in ["Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert_eq!(bench.condition(condition).0, "True", "{condition}");
    }
}

#[test]
fn a_container_that_ends_is_restarted_at_once_and_then_ever_later() {
    let mut bench = one("Always").prepare();
    bench.run("c");
    bench.end("c", 1);
    assert_eq!(bench.started(), ["c"], "the first restart does not wait");
    bench.run("c");
    bench.end("c", 1);
    let decision = bench.decide();
    assert_eq!(decision.look_again, Some(bench.now + Duration::from_secs(10)));
    let [Action::Wait { trouble, .. }] = decision.actions.as_slice() else {
        panic!("it waits")
    };
    assert_eq!(trouble.message, "back-off 10s restarting failed container=c pod=p_n(u)");
    bench.memory.container_mut("c").trouble = Some(trouble.clone());
    assert_eq!(bench.waiting(0), "CrashLoopBackOff");
    let status = bench.status();
    let container = &status.container_statuses.unwrap()[0];
    assert_eq!(container.restart_count, 1);
    assert_eq!(
        container
            .last_state
            .as_ref()
            .unwrap()
            .terminated
            .as_ref()
            .unwrap()
            .exit_code,
        1
    );
    assert_eq!(
        status.phase.as_deref(),
        Some("Running"),
        "a pod that will be restarted runs"
    );
    bench.now += Duration::from_secs(10);
    assert_eq!(bench.started(), ["c"]);
}

#[test]
fn policies_decide_how_a_pod_ends() {
    for (policy, code, phase) in [
        ("Never", 0, "Succeeded"),
        ("Never", 3, "Failed"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 3, "Running"),
        ("Always", 0, "Running"),
    ] {
        let mut bench = one(policy).prepare();
        bench.run("c");
        bench.end("c", code);
        let over = bench.decide().actions == [Action::End(Ending::Over)];
        assert_eq!(over, phase != "Running", "{policy} {code}");
        if over {
            bench.memory.ending = Some(Ending::Over);
        }
        assert_eq!(bench.phase(), phase, "{policy} {code}");
    }
}

#[test]
fn a_pod_that_is_over_says_so_in_its_conditions() {
    let mut bench = one("Never").prepare();
    bench.run("c");
    bench.end("c", 0);
    assert_eq!(
        bench.condition("Ready"),
        ("False".to_owned(), Some("PodCompleted".to_owned()), None)
    );
    assert_eq!(
        bench.condition("Initialized"),
        ("True".to_owned(), Some("PodCompleted".to_owned()), None)
    );
}

fn with_inits(restart: &str) -> Bench {
    Bench::new(json!({
        "restartPolicy": restart,
        "initContainers": [{ "name": "i1" }, { "name": "s", "restartPolicy": "Always" }, { "name": "i2" }],
        "containers": [{ "name": "c" }],
    }))
    .prepare()
}

#[test]
fn init_containers_run_in_turn_and_sidecars_beside_them() {
    let mut bench = with_inits("Always");
    assert_eq!(bench.started(), ["i1"]);
    assert_eq!(bench.waiting(0), "PodInitializing");
    bench.run("i1");
    assert!(bench.started().is_empty());
    assert_eq!(
        bench.condition("Initialized"),
        (
            "False".to_owned(),
            Some("ContainersNotInitialized".to_owned()),
            Some("containers with incomplete status: [i1 s i2]".to_owned())
        )
    );
    bench.end("i1", 0);
    assert_eq!(bench.started(), ["s"]);
    bench.run("s");
    assert_eq!(bench.started(), ["i2"]);
    bench.run("i2");
    bench.end("i2", 0);
    assert_eq!(bench.phase(), "Pending");
    assert_eq!(bench.started(), ["c"]);
    bench.run("c");
    assert_eq!(bench.phase(), "Running");
    assert_eq!(bench.condition("Initialized").0, "True");
    bench.end("s", 1);
    assert_eq!(bench.started(), ["s"], "a sidecar that ends is started again");
}

#[test]
fn a_failed_init_container_fails_a_pod_that_is_never_restarted() {
    let mut bench = with_inits("Never");
    bench.run("i1");
    bench.end("i1", 1);
    assert_eq!(bench.decide().actions, [Action::End(Ending::Over)]);
    bench.memory.ending = Some(Ending::Over);
    assert_eq!(bench.phase(), "Failed");
    let mut bench = with_inits("Always");
    bench.run("i1");
    bench.end("i1", 1);
    assert_eq!(bench.started(), ["i1"]);
    assert_eq!(bench.phase(), "Pending");
}

#[test]
fn probes_decide_readiness_and_start() {
    let mut bench = Bench::new(json!({ "containers": [
        { "name": "c", "readinessProbe": { "periodSeconds": 1 }, "startupProbe": { "periodSeconds": 1 } },
    ] }))
    .prepare();
    bench.run("c");
    let message = Some("containers with unready status: [c]".to_owned());
    assert_eq!(
        bench.condition("Ready"),
        ("False".to_owned(), Some("ContainersNotReady".to_owned()), message)
    );
    bench.memory.container_mut("c").readiness = Some(true);
    assert_eq!(bench.condition("Ready").0, "False", "it has not started yet");
    bench.memory.container_mut("c").startup = Some(true);
    assert_eq!(bench.condition("Ready").0, "True");
}

#[test]
fn readiness_gates_are_waited_for() {
    let mut bench =
        Bench::new(json!({ "readinessGates": [{ "conditionType": "g" }], "containers": [{ "name": "c" }] })).prepare();
    bench.run("c");
    let (status, reason, message) = bench.condition("Ready");
    assert_eq!(
        (status.as_str(), reason.as_deref()),
        ("False", Some("ReadinessGatesNotReady"))
    );
    assert_eq!(
        message.unwrap(),
        "corresponding condition of pod readiness gate \"g\" does not exist."
    );
    bench.pod.status = serde_json::from_value(json!({ "conditions": [{ "type": "g", "status": "True" }] })).unwrap();
    assert_eq!(bench.condition("Ready").0, "True");
    assert_eq!(bench.condition("g").0, "True", "what others wrote stays");
}

#[test]
fn a_deleted_pod_ends_with_its_grace_which_may_shorten() {
    let mut bench = one("Always").prepare();
    bench.run("c");
    bench.pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(bench.now));
    bench.pod.metadata.deletion_grace_period_seconds = Some(30);
    assert_eq!(bench.decide().actions, [Action::End(Ending::Deleted { grace: 30 })]);
    bench.memory.ending = Some(Ending::Deleted { grace: 30 });
    assert!(bench.decide().actions.is_empty());
    bench.pod.metadata.deletion_grace_period_seconds = Some(1);
    assert_eq!(bench.decide().actions, [Action::End(Ending::Deleted { grace: 1 })]);
    bench.end("c", 137);
    assert_eq!(bench.phase(), "Failed");
}

#[test]
fn a_pod_that_outlives_its_deadline_fails() {
    let mut bench = one("Always");
    bench.pod.spec.as_mut().unwrap().active_deadline_seconds = Some(5);
    let mut bench = bench.prepare();
    bench.run("c");
    assert_eq!(bench.decide().look_again, Some(bench.now + Duration::from_secs(5)));
    bench.now += Duration::from_secs(5);
    let [Action::End(ending @ Ending::Failed { .. })] = &bench.decide().actions[..] else {
        panic!("it is late")
    };
    bench.memory.ending = Some(ending.clone());
    bench.end("c", 143);
    let status = bench.status();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
}

#[test]
fn rules_on_exit_codes_restart_a_container_of_a_pod_that_is_not() {
    let mut bench = Bench::new(json!({ "restartPolicy": "Never", "containers": [{
        "name": "c", "restartPolicy": "Never",
        "restartPolicyRules": [{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }],
    }] }))
    .prepare();
    bench.run("c");
    bench.end("c", 42);
    assert_eq!(bench.status().phase.as_deref(), Some("Running"), "it is not over yet");
    assert_eq!(bench.started(), ["c"]);
    bench.run("c");
    bench.end("c", 1);
    assert_eq!(bench.status().phase.as_deref(), Some("Failed"));
    assert_eq!(bench.decide().actions, [Action::End(Ending::Over)]);
}

#[test]
fn an_unhealthy_container_is_killed_and_started_again() {
    let mut bench = one("Always").prepare();
    bench.run("c");
    let reason = KillReason::Unhealthy { grace: None };
    bench.memory.container_mut("c").unwanted = Some(reason.clone());
    assert_eq!(
        bench.decide().actions,
        [Action::Kill {
            container: "c".to_owned(),
            reason
        }]
    );
    bench.end("c", 137);
    assert_eq!(bench.started(), ["c"]);
}

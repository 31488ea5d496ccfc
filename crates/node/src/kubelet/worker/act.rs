//! What a worker sets about.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use moorline_container as run;
use tokio::sync::{mpsc, watch};

use super::{
    super::{
        adopt,
        context::run_id,
        prepare::{self, told},
        resize::{self, Resize},
        spec,
        start::{self, Order, field_path},
        stop::{self, Victim},
    },
    Life, Probes, Task, Update, Worker, target,
};
use crate::{
    env::Facts,
    events::Severity,
    pod::{self, Action, Decision, Ending, KillReason, Kind, Trouble, described},
    probe::{self, Question, Watch},
    volume::{Failure, Setting, refresh},
};

impl Worker {
    /// Keeps what a decision says about waiting, so that status and events tell it.
    pub(super) fn note_waits(&mut self, decision: &Decision) {
        for action in &decision.actions {
            let Action::Wait { container, trouble } = action else {
                continue;
            };
            let kind = self.shape.find(container).map_or(Kind::Main, |(kind, _)| kind);
            let known = self.memory.container_mut(container);
            if known.trouble.as_ref() != Some(trouble) {
                known.trouble = Some(trouble.clone());
                let message = format!(
                    "Back-off restarting failed container {container} in pod {}",
                    described(&self.pod)
                );
                let field = field_path(kind, container);
                self.context
                    .recorder
                    .tell_container(&self.pod, &field, Severity::Warning, "BackOff", message);
            }
        }
    }

    pub(super) fn spawn(&mut self, task: Task, work: impl Future<Output = Update> + Send + 'static) {
        let own = self.own.clone();
        let handle = self.tasks.spawn(async move {
            // The worker's own channel is open while it lives.
            let _ = own.send(work.await);
        });
        self.running.insert(task, handle);
    }

    pub(super) fn act(&mut self, decision: &Decision) {
        for action in &decision.actions {
            match action {
                Action::Prepare => {
                    if !self.running.contains_key(&Task::Prepare) {
                        let (context, pod) = (self.context.clone(), self.pod.clone());
                        self.spawn(Task::Prepare, async move {
                            Update::Prepared(prepare::prepare(&context, &pod).await)
                        });
                    }
                }
                Action::Start { container, kind } => self.start(container, *kind),
                Action::Kill { container, reason } => self.kill(container, reason),
                Action::Wait { .. } => {}
                Action::End(ending) => self.end(ending),
            }
        }
        let refreshes = self.memory.ending.is_none() && self.memory.sandbox.is_some();
        let due = self.volumes.renew.is_some_and(|renew| renew <= Timestamp::now());
        if refreshes && (self.stale_volumes || due) && !self.running.contains_key(&Task::Refresh) {
            self.stale_volumes = false;
            self.refresh();
        }
    }

    /// Gives running containers the resources that they ask for now.
    pub(super) fn resize(&mut self) {
        if self.memory.ending.is_some() || self.memory.sandbox.is_none() {
            return;
        }
        let pods = self.context.shared.pods.all();
        let needed = self.memory.allocated.iter().any(|(name, given)| {
            self.shape
                .find(name)
                .is_some_and(|(_, container)| container.resources.as_ref() != Some(given))
        });
        if !needed {
            self.memory.resize_pending = None;
            return;
        }
        let others = resize::others(
            pods.iter().map(AsRef::as_ref),
            &self.context.name,
            self.pod.metadata.uid.as_deref(),
        );
        let outcome = resize::compare(&self.pod, &self.shape, &self.memory, &self.context.allocatable, &others);
        match outcome {
            Resize::Nothing => self.memory.resize_pending = None,
            Resize::Pending(reason, message) => self.memory.resize_pending = Some((reason, message)),
            Resize::Apply(changes) => {
                self.memory.resize_pending = None;
                self.apply_resize(changes);
                // The status tells of it at once.
                let _ = self.own.send(Update::Nothing);
            }
        }
    }

    pub(super) fn apply_resize(&mut self, changes: Vec<resize::Change>) {
        let (Ok(id), Some(spec)) = (run_id(&self.pod), self.pod.spec.clone()) else {
            return;
        };
        let runtime = self.context.shared.runtime.clone();
        let failed = |error: &run::Error| tracing::debug!(pod = %id, error = told(error), "resources were not changed");
        // The pod first makes room for what grows, and last takes it from what shrinks.
        let whole = spec::pod_resources(&spec);
        let mut roomy = whole.clone();
        roomy.memory_limit_bytes = None;
        roomy.cpu_quota_micros = None;
        if let Err(error) = runtime.update_pod(&id, &roomy) {
            failed(&error);
        }
        for change in changes {
            let known = self.memory.container_mut(&change.container);
            if change.restarts {
                known.unwanted = known.is_running().then_some(KillReason::Resized);
            } else if known.is_running()
                && let Ok(container) = adopt::container_name(&change.container, known.restarts).parse()
                && let Err(error) = runtime.update(&id, &container, &spec::of_requirements(Some(&change.resources)))
            {
                failed(&error);
                self.memory.resize_running = true;
                continue;
            }
            self.memory.allocated.insert(change.container, change.resources);
            self.memory.resize_running = false;
        }
        if let Err(error) = runtime.update_pod(&id, &whole) {
            failed(&error);
        }
    }

    pub(super) fn refresh(&mut self) {
        let (context, pod) = (self.context.clone(), self.pod.clone());
        let mut volumes = self.volumes.clone();
        let ips = self
            .memory
            .sandbox
            .as_ref()
            .map(|sandbox| sandbox.ips.clone())
            .unwrap_or_default();
        self.spawn(Task::Refresh, async move {
            if volumes.places.is_empty() {
                // A pod that was taken over: find its volumes first.
                let found = prepare::volumes(&context, &pod, &ips).await;
                return Update::Refreshed(found.map_err(|unready| Failure {
                    volume: String::new(),
                    reason: unready.message,
                }));
            }
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let facts = Facts {
                pod: &pod,
                container: None,
                pod_ips: &ips,
                host_ips: &context.addresses,
                allocatable: &context.allocatable,
            };
            let setting = Setting {
                client: &context.client,
                directory: &context.shared.volume_directory(&uid),
                private: &context.shared.private_directory(&uid),
                facts: &facts,
            };
            Update::Refreshed(refresh(&setting, &mut volumes).await.map(|()| volumes))
        });
    }

    pub(super) fn start(&mut self, name: &str, kind: Kind) {
        let task = Task::Container(name.to_owned());
        if self.running.contains_key(&task) || self.running.contains_key(&Task::Kill(name.to_owned())) {
            return;
        }
        let Some((_, container)) = self.shape.find(name) else {
            return;
        };
        let container = container.clone();
        let now = Timestamp::now();
        let image = container.image.clone().unwrap_or_default();
        let known = self.memory.container_mut(name);
        if let Some((since, why)) = &known.pull_failed
            && let Some((until, _)) = known.pull_backoff.until(*since)
            && now < until
        {
            let trouble = Trouble {
                reason: "ImagePullBackOff".to_owned(),
                message: format!("Back-off pulling image {image:?}: ErrImagePull: {why}"),
                until,
            };
            known.trouble = Some(trouble);
            let field = field_path(kind, name);
            let message = format!("Back-off pulling image {image:?}");
            self.context
                .recorder
                .tell_container(&self.pod, &field, Severity::Normal, "BackOff", message);
            let failed = "Error: ImagePullBackOff".to_owned();
            self.context
                .recorder
                .tell_container(&self.pod, &field, Severity::Warning, "Failed", failed);
            // Say so in the status at once.
            let _ = self.own.send(Update::Nothing);
            return;
        }
        if self.volumes.places.is_empty() && self.running.contains_key(&Task::Refresh) {
            return;
        }
        let attempt = if known.current.is_some() {
            known.restarts + 1
        } else {
            known.restarts
        };
        let order = Order {
            pod: self.pod.clone(),
            kind,
            container,
            attempt,
            ips: self
                .memory
                .sandbox
                .as_ref()
                .map(|sandbox| sandbox.ips.clone())
                .unwrap_or_default(),
            volumes: self.volumes.clone(),
        };
        let (context, own) = (self.context.clone(), self.own.clone());
        let name = name.to_owned();
        self.spawn(task, async move {
            match start::start(&context, &order).await {
                Ok(attempt) => {
                    let id = attempt.id.clone();
                    let hook = order
                        .container
                        .lifecycle
                        .as_ref()
                        .and_then(|lifecycle| lifecycle.post_start.clone());
                    let began = Update::Began {
                        container: name.clone(),
                        attempt,
                    };
                    let Some(handler) = hook else { return began };
                    let _ = own.send(began);
                    let target = target(&context, &order.pod, &order.container, order.attempt, &order.ips);
                    let outcome = probe::hook(&handler, &target, start::HOOK_LIMIT).await;
                    Update::Hooked {
                        container: name,
                        attempt: id,
                        outcome,
                    }
                }
                Err(refusal) => Update::Refused {
                    container: name,
                    refusal,
                },
            }
        });
    }

    pub(super) fn victim(&self, name: &str, message: String) -> Option<Victim> {
        let (kind, container) = self.shape.find(name)?;
        let known = self.memory.container(name)?;
        Some(Victim {
            kind,
            container: container.clone(),
            attempt: known.restarts,
            message,
        })
    }

    pub(super) fn kill(&mut self, name: &str, reason: &KillReason) {
        let task = Task::Kill(name.to_owned());
        if self.running.contains_key(&task) {
            return;
        }
        let (message, own_grace) = match reason {
            KillReason::Unhealthy { grace } => (
                format!("Container {name} failed liveness probe, will be restarted"),
                *grace,
            ),
            KillReason::NotStarted { grace } => (
                format!("Container {name} failed startup probe, will be restarted"),
                *grace,
            ),
            KillReason::Hook => (format!("Container {name} failed postStartHook"), None),
            KillReason::Resized => (format!("Container {name} resize requires restart"), None),
            KillReason::Changed => (format!("Container {name} definition changed, will be restarted"), None),
        };
        let Some(victim) = self.victim(name, message) else {
            return;
        };
        let whole = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period_seconds)
            .unwrap_or(30);
        let grace = Duration::from_secs(u64::try_from(own_grace.unwrap_or(whole)).unwrap_or(0));
        let (context, pod, own) = (self.context.clone(), self.pod.clone(), self.own.clone());
        self.probes.remove(name);
        let handle = self.tasks.spawn(async move {
            stop::stop(&context, &pod, &victim, grace).await;
            let _ = own.send(Update::Nothing);
        });
        self.running.insert(task, handle);
    }

    pub(super) fn end(&mut self, ending: &Ending) {
        let grace = match ending {
            Ending::Deleted { grace } | Ending::Failed { grace, .. } => *grace,
            Ending::Over => pod::grace_of(&self.pod),
        };
        self.memory.ending = Some(ending.clone());
        self.life = Life::Runs;
        for (_, task) in self.running.drain() {
            task.abort();
        }
        for container in self.memory.containers.values_mut() {
            container.readiness = container.readiness.map(|_| false);
        }
        // Readiness and liveness of what is ending are nobody's concern.
        self.probes.clear();
        let names: Vec<_> = self.memory.containers.keys().cloned().collect();
        let victims: Vec<_> = names
            .iter()
            .filter(|name| {
                self.memory
                    .container(name)
                    .is_some_and(|known| known.is_running() || known.is_created())
            })
            .filter_map(|name| self.victim(name, format!("Stopping container {name}")))
            .collect();
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let (context, pod, shape) = (self.context.clone(), self.pod.clone(), self.shape.clone());
        let ending = ending.clone();
        self.spawn(Task::End, async move {
            stop::stop_all(&context, &pod, &shape, &victims, grace).await;
            // A start that was cut short may have left a process that nobody has heard of.
            if let Ok(id) = run_id(&pod)
                && let Ok(status) = context.shared.runtime.pod(&id)
            {
                for left in status.containers {
                    if matches!(left.state, run::State::Running { .. }) {
                        let _ = context.shared.runtime.kill(&id, &left.spec.id).await;
                        let _ = context
                            .shared
                            .runtime
                            .wait(&id, &left.spec.id, Duration::from_secs(20))
                            .await;
                    }
                }
            }
            Update::Stopped(ending)
        });
    }

    /// Starts the probes of what began to run, and forgets those of what ended.
    pub(super) fn tend_probes(&mut self) {
        self.running.retain(|_, task| !task.is_finished());
        if self.memory.ending.is_some() {
            return;
        }
        let mut wanted = Vec::new();
        for (_, container) in self.shape.of_kind(&[Kind::Sidecar, Kind::Main]) {
            let Some(known) = self.memory.container(&container.name) else {
                continue;
            };
            let Some(attempt) = known
                .current
                .as_ref()
                .filter(|_| known.is_running() && !known.hook_pending)
            else {
                continue;
            };
            let running = self
                .probes
                .get(&container.name)
                .is_some_and(|probes| probes.attempt == attempt.id);
            if !running && known.unwanted.is_none() {
                wanted.push((container.clone(), attempt.id.clone(), known.restarts, known.startup));
            }
        }
        for (container, attempt, number, startup) in wanted {
            let ips = self
                .memory
                .sandbox
                .as_ref()
                .map(|sandbox| sandbox.ips.clone())
                .unwrap_or_default();
            let target = Arc::new(target(&self.context, &self.pod, &container, number, &ips));
            let (started, receiver) = watch::channel(container.startup_probe.is_none() || startup == Some(true));
            let mut tasks = Vec::new();
            for (question, probe) in [
                (Question::Startup, &container.startup_probe),
                (Question::Liveness, &container.liveness_probe),
                (Question::Readiness, &container.readiness_probe),
            ] {
                let Some(probe) = probe.clone() else { continue };
                if question == Question::Startup && startup == Some(true) {
                    continue;
                }
                let (reports, mut heard) = mpsc::unbounded_channel();
                let own = self.own.clone();
                let watch = Watch {
                    question,
                    probe,
                    target: target.clone(),
                    container: container.name.clone(),
                    attempt: attempt.clone(),
                    started: receiver.clone(),
                    reports,
                };
                tasks.push(self.tasks.spawn(async move {
                    tokio::join!(probe::watch(watch), async {
                        while let Some(report) = heard.recv().await {
                            let _ = own.send(Update::Probe(report));
                        }
                    });
                }));
            }
            self.probes.insert(
                container.name.clone(),
                Probes {
                    attempt,
                    started,
                    tasks,
                },
            );
        }
    }
}
